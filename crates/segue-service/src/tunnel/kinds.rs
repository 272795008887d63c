//! The types of a tunnel's settings: mode, encapsulation, GRE options, forwarding entries.

use std::net::IpAddr;
use std::path::PathBuf;

use segue_control::peers::{Encap as PeerEncap, Mac};
use serde::{Serialize, Serializer};

/// Mode of a tunnel: the carried packets and the tunnel header. iproute2's `ip6gre` is [`Mode::Gre`] over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// IPv4 packets inside (iproute2: `ipip`).
    Ipip,
    /// IPv6 packets inside (iproute2: `sit`).
    Sit,
    /// IPv4 and IPv6 packets after a GRE header.
    Gre,
    /// IPv4 and IPv6 packets, distinguished by the protocol number or, over FOU, the first nibble.
    Ip6tnl,
    /// Ethernet frames after a GRE header.
    Gretap,
    /// Ethernet frames in VXLAN over UDP.
    Vxlan,
    /// Ethernet frames in Geneve over UDP.
    Geneve,
    /// Ethernet frames to the peers of a table, each with its own encapsulation.
    Eth,
}

impl Mode {
    /// Returns the mode's keyword.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Ipip => "ipip",
            Mode::Sit => "sit",
            Mode::Gre => "gre",
            Mode::Ip6tnl => "ip6tnl",
            Mode::Gretap => "gretap",
            Mode::Vxlan => "vxlan",
            Mode::Geneve => "geneve",
            Mode::Eth => "eth",
        }
    }

    /// Returns iproute2's word for the mode towards `remote`, which often names the family.
    pub fn name_to(self, remote: IpAddr) -> &'static str {
        match (self, remote.is_ipv6()) {
            (Mode::Ipip, true) => "ipip6",
            (Mode::Sit, true) => "ip6ip6",
            (Mode::Gre, true) => "ip6gre",
            (Mode::Gretap, true) => "ip6gretap",
            (mode, _) => mode.name(),
        }
    }

    /// Returns whether the tunnel carries Ethernet frames.
    pub fn is_ethernet(self) -> bool {
        matches!(self, Mode::Gretap | Mode::Vxlan | Mode::Geneve | Mode::Eth)
    }

    /// Returns whether the mode includes a UDP header and a network identifier.
    pub fn is_overlay(self) -> bool {
        matches!(self, Mode::Vxlan | Mode::Geneve)
    }

    /// Returns whether the tunnel can carry packets of the family of `address`.
    pub fn carries(self, address: IpAddr) -> bool {
        match self {
            Mode::Ipip => address.is_ipv4(),
            Mode::Sit => address.is_ipv6(),
            Mode::Gre | Mode::Ip6tnl | Mode::Gretap | Mode::Vxlan | Mode::Geneve | Mode::Eth => true,
        }
    }
}

/// The encapsulation between the outer IP header and the mode's own header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Encap {
    /// Generic UDP Encapsulation in Linux's layout.
    Gue,
    /// Foo over UDP: the inner protocol follows the UDP header.
    Fou,
    /// No encapsulation in UDP.
    None,
}

impl Encap {
    /// Returns the encapsulation's keyword.
    pub fn name(self) -> &'static str {
        match self {
            Encap::Gue => "gue",
            Encap::Fou => "fou",
            Encap::None => "none",
        }
    }
}

/// A fixed number, or a word for a number that is determined later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// `auto`: segue chooses.
    Auto,
    /// `inherit`: the value of the inner packet.
    Inherit,
    /// A fixed number.
    Fixed(T),
}

impl<T: Copy> Choice<T> {
    /// Returns the number, if it is fixed.
    pub fn fixed(self) -> Option<T> {
        match self {
            Choice::Fixed(number) => Some(number),
            Choice::Auto | Choice::Inherit => None,
        }
    }
}

impl<T: Serialize> Serialize for Choice<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Choice::Auto => to.serialize_str("auto"),
            Choice::Inherit => to.serialize_str("inherit"),
            Choice::Fixed(number) => number.serialize(to),
        }
    }
}

/// Whether packets take the in-kernel path, past the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fastpath {
    /// The in-kernel path is used where it can carry both directions and the host sees no difference except in speed.
    #[default]
    Auto,
    /// The path is used wherever the kernel can.
    On,
    /// The in-kernel path is never used.
    Off,
    /// The path must carry both directions; otherwise the tunnel does not start.
    Require,
}

impl Fastpath {
    /// Returns the policy's keyword.
    pub fn name(self) -> &'static str {
        match self {
            Fastpath::Auto => "auto",
            Fastpath::On => "on",
            Fastpath::Off => "off",
            Fastpath::Require => "require",
        }
    }
}

/// The packets that may form a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Joins packets that can be restored byte for byte.
    Strict,
    /// Joins the packets that Linux would join.
    Linux,
}

/// The GRE options of each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gre {
    /// The key that a received packet must have.
    pub ikey: Option<u32>,
    /// The key of sent packets.
    pub okey: Option<u32>,
    /// Whether a received packet must have a checksum.
    pub icsum: bool,
    /// Whether packets are sent with a checksum.
    pub ocsum: bool,
    /// Whether a received packet must have a sequence number.
    pub iseq: bool,
    /// Whether packets are sent with a sequence number.
    pub oseq: bool,
}

/// The Don't Fragment flag of the outer packet, for VXLAN and Geneve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Df {
    /// The DF flag is never set.
    Unset,
    /// The DF flag is always set.
    Set,
    /// The flag is that of the inner packet.
    Inherit,
}

/// A static entry of the forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The Ethernet address; zero stands for groups and for unknown addresses.
    pub mac: [u8; 6],
    /// The remote that has the address.
    pub remote: IpAddr,
}

impl Serialize for Neighbour {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let [a, b, c, d, e, f] = self.mac;
        to.collect_str(&format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x},{}", self.remote))
    }
}

/// The settings that only VXLAN and Geneve have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlay {
    /// The network identifier; `None` in other modes.
    pub id: Option<u32>,
    /// Whether datagrams are sent without UDP checksum over IPv6.
    pub udp6zerocsumtx: bool,
    /// Whether datagrams without UDP checksum are accepted over IPv6.
    pub udp6zerocsumrx: bool,
    /// Whether remote checksum offload is used when sending.
    pub remcsumtx: bool,
    /// Whether remote checksum offload is accepted.
    pub remcsumrx: bool,
    /// Whether addresses are learned from received frames.
    pub learning: bool,
    /// Lifetime of a learned address, seconds.
    pub ageing: u32,
    /// Smallest number of addresses that the table has room for.
    pub maxaddress: u32,
    /// Static entries of the forwarding table.
    pub fdb: Vec<Neighbour>,
    /// Policy for the Don't Fragment flag.
    pub df: Df,
}

impl Overlay {
    /// Returns every remote but `first`, each one once.
    pub fn others(&self, first: IpAddr) -> Vec<IpAddr> {
        let mut others: Vec<IpAddr> = Vec::new();
        for entry in &self.fdb {
            if entry.remote != first && !others.contains(&entry.remote) {
                others.push(entry.remote);
            }
        }
        others
    }
}

/// The settings of a tunnel with a peer table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerTable {
    /// The file of the first table; `None` for an empty one.
    pub file: Option<PathBuf>,
    /// Encapsulations with the UDP ports on which they are received, at least one.
    #[serde(serialize_with = "listeners")]
    pub listen: Vec<(PeerEncap, u16)>,
    /// Local Ethernet address of the tunnel.
    #[serde(serialize_with = "text")]
    pub lladdr: Mac,
    /// Whether datagrams have an outer checksum if the peer's entry does not specify it.
    pub outer_checksum: bool,
}

fn listeners<S: Serializer>(listeners: &[(PeerEncap, u16)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(listeners.iter().map(|(encap, port)| format!("{encap}:{port}")))
}

fn text<T: std::fmt::Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}
