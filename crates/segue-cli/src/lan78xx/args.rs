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
    /// adapters that can be had
    List(List),
    /// make an adapter a network interface and keep it until Ctrl-C
    Up(Up),
    /// serve a model of the adapter by USB/IP
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
    /// The chip
    #[arg(long, value_name = "NAME", default_value = "lan7800", value_parser = PossibleValuesParser::new(["lan7800", "lan7801", "lan7850"]))]
    pub(crate) chip: String,
    /// The bus
    #[arg(long, value_name = "NAME", default_value = "super", value_parser = PossibleValuesParser::new(["super", "high", "full"]))]
    pub(crate) speed: String,
    /// Its address
    #[arg(long, value_name = "MAC", default_value = "02:78:00:00:00:01")]
    pub(crate) mac: String,
    /// Frames take their time on the cable, as the link's speed says
    #[arg(long)]
    pub(crate) paced: bool,
}

/// The arguments of `segue lan78xx model`.
#[derive(Args, Debug)]
pub(crate) struct Model {
    /// Where to answer
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:3240")]
    pub(crate) usbip: String,
    /// The cable: tap:NAME[@NETNS], a TAP to be made
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
    /// Ask a USB/IP server too
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
    /// The interface; lan0 when not given
    #[arg(long, value_name = "NAME")]
    pub(crate) dev: Option<String>,
    /// The same: dev NAME
    #[arg(value_name = "dev NAME", hide = true)]
    pub(crate) words: Vec<String>,
    /// The adapter's address, not that which it has
    #[arg(long, value_name = "MAC")]
    pub(crate) mac: Option<String>,
    /// Largest packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(68..=9000))]
    pub(crate) mtu: u32,
    /// Leave received packets as they come; the mode says it when not given
    #[arg(long)]
    pub(crate) no_gro: bool,
    /// Cut trains in software, not in the chip
    #[arg(long)]
    pub(crate) no_lso: bool,
    /// Bulk-in transfers at a time; the mode says it when not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) rx_transfers: Option<u16>,
    /// Bulk-out transfers at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) tx_transfers: Option<u16>,
    /// Most packets of one poll; the mode says it when not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) budget: Option<u32>,
    /// Offer no pause frames
    #[arg(long)]
    pub(crate) no_pause: bool,
    /// Offer energy efficient Ethernet
    #[arg(long)]
    pub(crate) eee: bool,
    /// The cable of a model: tap:NAME[@NETNS], a TAP to be made
    #[arg(long, value_name = "tap:NAME")]
    pub(crate) wire: Option<String>,
    /// The chip of a model, lan7800 when not given
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = PossibleValuesParser::new(["lan7800", "lan7801", "lan7850"]))]
    pub(crate) chip: Option<String>,
    /// The bus of a model, super when not given
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = PossibleValuesParser::new(["super", "high", "full"]))]
    pub(crate) speed: Option<String>,
    /// Frames take their time on a model's cable, as the link's speed says
    #[arg(long, hide_short_help = true)]
    pub(crate) paced: bool,
}
