//! What the words of a tunnel stand for.

use std::net::IpAddr;

use serde::{Serialize, Serializer};

/// What the tunnel carries. iproute2's `ip6gre` is [`Mode::Gre`] over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// IPv4.
    Ipip,
    /// IPv6.
    Sit,
    /// IPv4 and IPv6 behind a GRE header.
    Gre,
    /// IPv4 and IPv6, told apart by the protocol number or, over FOU, the first nibble.
    Ip6tnl,
    /// Ethernet behind a GRE header.
    Gretap,
    /// Ethernet behind UDP and a VXLAN header.
    Vxlan,
    /// Ethernet behind UDP and a Geneve header.
    Geneve,
}

impl Mode {
    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Ipip => "ipip",
            Mode::Sit => "sit",
            Mode::Gre => "gre",
            Mode::Ip6tnl => "ip6tnl",
            Mode::Gretap => "gretap",
            Mode::Vxlan => "vxlan",
            Mode::Geneve => "geneve",
        }
    }

    /// The word of iproute2 for it towards `remote`, whose family it often names.
    pub fn name_to(self, remote: IpAddr) -> &'static str {
        match (self, remote.is_ipv6()) {
            (Mode::Ipip, true) => "ipip6",
            (Mode::Sit, true) => "ip6ip6",
            (Mode::Gre, true) => "ip6gre",
            (Mode::Gretap, true) => "ip6gretap",
            (mode, _) => mode.name(),
        }
    }

    /// Whether Ethernet frames are inside.
    pub fn is_ethernet(self) -> bool {
        matches!(self, Mode::Gretap | Mode::Vxlan | Mode::Geneve)
    }

    /// Whether it has a UDP header and a network identifier of its own.
    pub fn is_overlay(self) -> bool {
        matches!(self, Mode::Vxlan | Mode::Geneve)
    }

    /// Whether packets of this kind may be inside.
    pub fn carries(self, address: IpAddr) -> bool {
        match self {
            Mode::Ipip => address.is_ipv4(),
            Mode::Sit => address.is_ipv6(),
            Mode::Gre | Mode::Ip6tnl | Mode::Gretap | Mode::Vxlan | Mode::Geneve => true,
        }
    }
}

/// What stands between the outer IP header and the mode's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Encap {
    /// Generic UDP Encapsulation, Linux's layout.
    Gue,
    /// UDP, and the inner protocol at once.
    Fou,
    /// Nothing.
    None,
}

impl Encap {
    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Encap::Gue => "gue",
            Encap::Fou => "fou",
            Encap::None => "none",
        }
    }
}

/// A number, or the name that stands for "not a fixed one".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// `auto`: segue chooses.
    Auto,
    /// `inherit`: from the inner packet.
    Inherit,
    /// This.
    Fixed(T),
}

impl<T: Copy> Choice<T> {
    /// The number, if it is fixed.
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

/// Which packets may form a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Those that can be taken apart again byte for byte.
    Strict,
    /// Those that Linux would join.
    Linux,
}

/// GRE's options, for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gre {
    /// The key that a received packet must have.
    pub ikey: Option<u32>,
    /// The key that is sent.
    pub okey: Option<u32>,
    /// A received packet must have a checksum.
    pub icsum: bool,
    /// A checksum is sent.
    pub ocsum: bool,
    /// A received packet must have a sequence number.
    pub iseq: bool,
    /// Sequence numbers are sent.
    pub oseq: bool,
}

/// Don't Fragment outside, of VXLAN and Geneve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Df {
    /// Never.
    Unset,
    /// Always.
    Set,
    /// As inside.
    Inherit,
}

/// An Ethernet address and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The address; zero stands for groups and whatever is unknown.
    pub mac: [u8; 6],
    /// The remote.
    pub remote: IpAddr,
}

impl Serialize for Neighbour {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let [a, b, c, d, e, f] = self.mac;
        to.collect_str(&format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x},{}", self.remote))
    }
}

/// What only VXLAN and Geneve have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlay {
    /// Network identifier; `None` in other modes.
    pub id: Option<u32>,
    /// No UDP checksums over IPv6 are sent.
    pub udp6zerocsumtx: bool,
    /// None are asked for over IPv6.
    pub udp6zerocsumrx: bool,
    /// Remote checksum offload when sending.
    pub remcsumtx: bool,
    /// And when receiving.
    pub remcsumrx: bool,
    /// Addresses are learned.
    pub learning: bool,
    /// For so many seconds.
    pub ageing: u32,
    /// So many at least.
    pub maxaddress: u32,
    /// Addresses that are set.
    pub fdb: Vec<Neighbour>,
    /// Don't Fragment.
    pub df: Df,
}

impl Overlay {
    /// Every remote but `first`, each once.
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
