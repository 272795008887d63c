//! The options of `segue lan78xx`.

use std::net::SocketAddr;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

/// `segue lan78xx`
#[derive(Args, Debug)]
pub(crate) struct Lan78xx {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// serve a model of the adapter by USB/IP
    Model(Model),
}

impl Action {
    /// The name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Action::Model(_) => "model",
        }
    }
}

/// What a model is, wherever it runs.
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

/// `segue lan78xx model`
#[derive(Args, Debug)]
pub(crate) struct Model {
    /// Where to answer
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:3240")]
    pub(crate) usbip: SocketAddr,
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
