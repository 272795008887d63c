//! The options of `segue lan78xx`.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

/// The arguments of `segue lan78xx`.
#[derive(Args, Debug)]
pub(crate) struct Lan78xx {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,
}

/// The subcommand to run, with its options.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// available adapters
    List(List),
    /// run an adapter as a network interface until Ctrl-C
    Up(Up),
    /// serve a model of the adapter over USB/IP
    Model(Model),
}

impl Action {
    /// Returns the name of the subcommand.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Action::List(_) => "list",
            Action::Up(_) => "up",
            Action::Model(_) => "model",
        }
    }
}

/// The options that describe a model, in `up` as well as in `model`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Chip {
    /// Chip of the model
    #[arg(long, value_name = "NAME", default_value = "lan7800", value_parser = PossibleValuesParser::new(["lan7800", "lan7801", "lan7850"]))]
    pub(crate) chip: String,
    /// USB speed of the model
    #[arg(long, value_name = "NAME", default_value = "super", value_parser = PossibleValuesParser::new(["super", "high", "full"]))]
    pub(crate) speed: String,
    /// MAC address of the model
    #[arg(long, value_name = "MAC", default_value = "02:78:00:00:00:01")]
    pub(crate) mac: String,
    /// Limit the cable to the link's speed
    #[arg(long)]
    pub(crate) paced: bool,
}

/// The arguments of `segue lan78xx model`.
#[derive(Args, Debug)]
pub(crate) struct Model {
    /// Start even if the kernel has no Landlock or no seccomp filters
    #[arg(long, hide_short_help = true)]
    pub(crate) weak_sandbox: bool,
    /// Address and port to serve
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:3240")]
    pub(crate) usbip: String,
    /// The cable: tap:NAME[@NETNS], a new TAP
    #[arg(long, value_name = "tap:NAME")]
    pub(crate) wire: Option<String>,
    /// MTU of the TAP
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(68..=9000))]
    pub(crate) wire_mtu: u32,
    #[command(flatten)]
    pub(crate) chip: Chip,
    /// Read commands from stdin: unplug, plug, link down, and so on
    #[arg(long)]
    pub(crate) commands: bool,
    /// The name for segue stat
    #[arg(long, value_name = "NAME", default_value = "lan78xx-model")]
    pub(crate) name: String,
}

/// The arguments of `segue lan78xx list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// List the adapters of a USB/IP server too
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) usbip: Option<String>,
}

/// The arguments of `segue lan78xx up`.
#[derive(Args, Debug)]
pub(crate) struct Up {
    /// The adapter: auto, its port, usbip://HOST/BUSID, or model
    #[arg(long, value_name = "USB", default_value = "auto")]
    pub(crate) usb: String,
    /// The form of the driver
    #[arg(long, value_name = "NAME", default_value = "napi", value_parser = PossibleValuesParser::new(["napi", "standard"]))]
    pub(crate) mode: String,
    /// Name of the interface; default: lan0
    #[arg(long, value_name = "NAME")]
    pub(crate) dev: Option<String>,
    /// Name of the interface, in the words of iproute2: dev NAME
    #[arg(value_name = "dev NAME", hide = true)]
    pub(crate) words: Vec<String>,
    /// Override the adapter's MAC address
    #[arg(long, value_name = "MAC")]
    pub(crate) mac: Option<String>,
    /// MTU of the interface
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(68..=9000))]
    pub(crate) mtu: u32,
    /// Do not merge received packets; default: by mode
    #[arg(long)]
    pub(crate) no_gro: bool,
    /// Segment trains in software instead of in the chip
    #[arg(long)]
    pub(crate) no_lso: bool,
    /// Bulk-in transfers in flight; default: by mode
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) rx_transfers: Option<u16>,
    /// Bulk-out transfers in flight
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) tx_transfers: Option<u16>,
    /// Most packets per poll; default: by mode
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) budget: Option<u32>,
    /// Start even if the kernel has no Landlock or no seccomp filters
    #[arg(long, hide_short_help = true)]
    pub(crate) weak_sandbox: bool,
    /// Do not negotiate pause frames
    #[arg(long)]
    pub(crate) no_pause: bool,
    /// Negotiate energy efficient Ethernet
    #[arg(long)]
    pub(crate) eee: bool,
    /// The cable of a model: tap:NAME[@NETNS], a new TAP
    #[arg(long, value_name = "tap:NAME")]
    pub(crate) wire: Option<String>,
    /// Chip of a model; default: lan7800
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = PossibleValuesParser::new(["lan7800", "lan7801", "lan7850"]))]
    pub(crate) chip: Option<String>,
    /// USB speed of a model; default: super
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = PossibleValuesParser::new(["super", "high", "full"]))]
    pub(crate) speed: Option<String>,
    /// Limit a model's cable to the link's speed
    #[arg(long, hide_short_help = true)]
    pub(crate) paced: bool,
    /// Initial value of a knob of segue set; may be given several times
    #[arg(long, hide_short_help = true, value_name = "KNOB=VALUE", value_parser = segue_service::daemon::knobs::assignment)]
    pub(crate) set: Vec<(String, String)>,
    /// Process id of the supervisor, with which this process ends
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) supervised: Option<i32>,
}
