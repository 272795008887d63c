//! The configuration of a gateway in the user's terms, and its parsers.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use segue::gro::Profile;
use segue_datapath::nat::Protocol;
use serde::{Serialize, Serializer};

use crate::daemon::mappings::protocol_name;
use crate::daemon::{MOST_WORKERS, usual_workers};

/// Default size of the largest train, bytes.
pub const MAX_BYTES: u32 = 65_535;
/// Largest number of packets in a train by default.
pub const MAX_PACKETS: u32 = 1000;

/// The spelling of options in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// Options with two dashes, as on a command line.
    Option,
    /// Keys without dashes, as in a file.
    Key,
}

impl Spelling {
    /// Returns the option `name` in this spelling.
    pub fn of(self, name: &str) -> String {
        match self {
            Spelling::Option => format!("--{name}"),
            Spelling::Key => name.to_owned(),
        }
    }
}

/// The configuration of a gateway, from its command line or from a table of a file.
#[derive(Clone, Debug)]
pub struct Config {
    /// The end IN: an interface, `tap:NAME[@NETNS]`, or `vhost:PATH` with options.
    pub from: String,
    /// The end OUT, in the form of IN.
    pub to: String,
    /// Further ends, in the form of IN. With any the gateway is a bridge.
    pub more: Vec<String>,
    /// Whether received packets are forwarded without being joined.
    pub no_lro: bool,
    /// Profile by which packets are joined, if given.
    pub profile: Option<Profile>,
    /// Whether a newer pure acknowledgment replaces older ones.
    pub ack_aggregation: bool,
    /// Largest number of acknowledgments that one may replace.
    pub max_acks: u32,
    /// Size of the receive pages, KiB; `None` for one buffer for each frame.
    pub page_kib: Option<usize>,
    /// Longest wait of a packet for the next one, microseconds.
    pub hold_us: u64,
    /// Size of the largest train, bytes.
    pub max_bytes: u32,
    /// Largest number of packets in a train.
    pub max_packets: u32,
    /// MTU in bytes of a TAP that the gateway creates, or of a guest; by default the MTU of the other end.
    pub tap_mtu: Option<u32>,
    /// Whether packets that exceed the MTU of the other end are fragmented.
    pub fragment: bool,
    /// Whether the gateway forwards at layer 3 by the kernel's routes.
    pub route: bool,
    /// Whether routes from router advertisements are used.
    pub accept_ra: bool,
    /// The source address of IPv4 packets that leave by OUT.
    pub nat: Option<Ipv4Addr>,
    /// Ports of the address `nat` that are forwarded to inside hosts.
    pub forward: Vec<PortForward>,
    /// The number of threads that move packets.
    pub workers: Workers,
    /// The name of the gateway; IN-OUT by default, by the first two ends.
    pub name: Option<String>,
    /// Whether the gateway runs without a part of the sandbox that the kernel lacks.
    pub is_weak: bool,
    /// The spelling of the gateway's options in messages.
    pub spelling: Spelling,
    /// Knobs to set at the start.
    pub set: Vec<(String, String)>,
}

impl Config {
    /// Returns the names of all ports, as on the command line: IN, OUT and further ones.
    pub fn ends(&self) -> Vec<String> {
        [&self.from, &self.to].into_iter().chain(&self.more).cloned().collect()
    }
}

/// A number of threads that move packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// A fixed number of workers.
    Count(u16),
    /// One worker for each processor ([`usual_workers`]) if several can be used.
    Auto,
}

impl Workers {
    /// Returns the number, for an instance that several workers can serve.
    pub fn count(self) -> u16 {
        match self {
            Workers::Count(count) => count,
            Workers::Auto => usual_workers(),
        }
    }
}

/// Parses a number of workers.
pub fn parse_workers(text: &str) -> Result<Workers, String> {
    match text.parse() {
        _ if text == "auto" => Ok(Workers::Auto),
        Ok(count) if (1..=MOST_WORKERS).contains(&count) => Ok(Workers::Count(count)),
        _ => Err(format!("expected auto, or a number from 1 to {MOST_WORKERS}")),
    }
}

/// A port of the outside address that is forwarded to a host inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForward {
    /// Forwarded protocol: TCP or UDP.
    pub protocol: Protocol,
    /// Outside port of the forward.
    pub outside: u16,
    /// Inside host of the forward, and its port.
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

/// The configuration of a NAT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NatPlan {
    /// Outside address of the NAT.
    pub address: Ipv4Addr,
    /// Ports that are forwarded to the inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<PortForward>,
}

/// Parses the outside address of a NAT.
pub fn parse_nat(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| "expected an IPv4 address, as 198.18.2.9".to_owned())
}

/// Parses a port forward, such as `tcp:8080=198.18.1.2:80`.
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
    fn workers_are_a_number_within_limits_or_one_for_each_processor() {
        assert_eq!([1, 64].map(|n: u16| parse_workers(&n.to_string())), [1, 64].map(|n| Ok(Workers::Count(n))));
        assert_eq!(parse_workers("auto"), Ok(Workers::Auto));
        assert!((1..=16).contains(&Workers::Auto.count()));
        for text in ["", "0", "65", "-1", "Auto", "2 "] {
            assert!(parse_workers(text).unwrap_err().starts_with("expected auto"), "{text}");
        }
    }

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
