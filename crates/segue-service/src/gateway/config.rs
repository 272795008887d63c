//! What a gateway is asked to be.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use segue::gro::Profile;
use segue_datapath::nat::Protocol;
use serde::{Serialize, Serializer};

use crate::daemon::mappings::protocol_name;

/// The largest train, bytes, when nothing says another.
pub const MAX_BYTES: u32 = 65_535;
/// The most packets of a train, when nothing says another.
pub const MAX_PACKETS: u32 = 1000;
/// How messages write the options of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// With two dashes, as on a command line.
    Option,
    /// Without, as the keys of a file.
    Key,
}

impl Spelling {
    /// The option of this name.
    pub fn of(self, name: &str) -> String {
        match self {
            Spelling::Option => format!("--{name}"),
            Spelling::Key => name.to_owned(),
        }
    }
}

/// What a gateway is asked to be, as its command line or its table of a file says it.
#[derive(Clone, Debug)]
pub struct Config {
    /// IN: an interface, or `tap:NAME[@NETNS]`.
    pub from: String,
    /// OUT, in the same form.
    pub to: String,
    /// Leave packets as they come.
    pub no_lro: bool,
    /// By whose rules packets are joined, where that is said.
    pub profile: Option<Profile>,
    /// Whether pure acknowledgments give way to the newest.
    pub ack_aggregation: bool,
    /// How many acknowledgments one may stand for.
    pub max_acks: u32,
    /// KiB of the pages to receive into; `None` for a buffer for each frame.
    pub page_kib: Option<usize>,
    /// Longest wait of a packet for the next, microseconds.
    pub hold_us: u64,
    /// Largest train, bytes.
    pub max_bytes: u32,
    /// Most packets of a train.
    pub max_packets: u32,
    /// MTU of a TAP that is made, bytes; else the other side's.
    pub tap_mtu: Option<u32>,
    /// Fragment what is too long for the other side.
    pub fragment: bool,
    /// Forward at layer 3, by the kernel's routes.
    pub route: bool,
    /// The address that IPv4 leaves OUT from.
    pub nat: Option<Ipv4Addr>,
    /// Ports of that address that lead inside.
    pub forward: Vec<PortForward>,
    /// The name; IN-OUT where none is given.
    pub name: Option<String>,
    /// How messages write these options.
    pub spelling: Spelling,
    /// Settings to begin with.
    pub set: Vec<(String, String)>,
}

/// A port outside that leads to one inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForward {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The port outside.
    pub outside: u16,
    /// The host inside and its port.
    pub inside: SocketAddrV4,
}

impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}={}", protocol_name(self.protocol), self.outside, self.inside)
    }
}

impl Serialize for PortForward {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How a NAT is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NatPlan {
    /// The address that those outside see.
    pub address: Ipv4Addr,
    /// Ports that are passed on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<PortForward>,
}

/// The address of a NAT.
pub fn parse_nat(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| "expected an IPv4 address, as 198.18.2.9".to_owned())
}

/// `tcp:8080=198.18.1.2:80`.
pub fn parse_forward(text: &str) -> Result<PortForward, String> {
    let expected = || "expected PROTOCOL:PORT=ADDRESS:PORT, as tcp:8080=198.18.1.2:80".to_owned();
    let (protocol, rest) = text.split_once(':').ok_or_else(expected)?;
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return Err("expected tcp or udp".to_owned()),
    };
    let (outside, inside) = rest.split_once('=').ok_or_else(expected)?;
    let (outside, inside): (u16, SocketAddrV4) =
        (outside.parse().map_err(|_| expected())?, inside.parse().map_err(|_| expected())?);
    if outside == 0 || inside.port() == 0 || inside.ip().is_unspecified() {
        return Err("expected ports and an address that are not 0".to_owned());
    }
    Ok(PortForward { protocol, outside, inside })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_forward_reads_back_as_it_was_written() {
        for text in ["tcp:8080=198.18.1.2:80", "udp:53=198.18.1.3:5353"] {
            assert_eq!(parse_forward(text).unwrap().to_string(), text);
        }
        for text in
            ["", "tcp", "sctp:1=198.18.1.2:1", "tcp:0=198.18.1.2:1", "tcp:1=198.18.1.2", "tcp:70000=198.18.1.2:1"]
        {
            assert!(parse_forward(text).unwrap_err().starts_with("expected "), "{text}");
        }
        for text in ["", "host", "2001:db8::1", "198.18.2.9/24"] {
            assert!(parse_nat(text).unwrap_err().starts_with("expected "), "{text}");
        }
    }
}
