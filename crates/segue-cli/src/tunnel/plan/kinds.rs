//! What the words of a tunnel stand for.

use std::net::IpAddr;

use serde::{Serialize, Serializer};

/// What the tunnel carries. iproute2's `ip6gre` is [`Mode::Gre`] over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
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
    pub(crate) fn name(self) -> &'static str {
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
    pub(crate) fn name_to(self, remote: IpAddr) -> &'static str {
        match (self, remote.is_ipv6()) {
            (Mode::Ipip, true) => "ipip6",
            (Mode::Sit, true) => "ip6ip6",
            (Mode::Gre, true) => "ip6gre",
            (Mode::Gretap, true) => "ip6gretap",
            (mode, _) => mode.name(),
        }
    }

    /// Whether Ethernet frames are inside.
    pub(crate) fn is_ethernet(self) -> bool {
        matches!(self, Mode::Gretap | Mode::Vxlan | Mode::Geneve)
    }

    /// Whether it has a UDP header and a network identifier of its own.
    pub(crate) fn is_overlay(self) -> bool {
        matches!(self, Mode::Vxlan | Mode::Geneve)
    }

    /// Whether packets of this kind may be inside.
    pub(crate) fn carries(self, address: IpAddr) -> bool {
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
pub(crate) enum Encap {
    /// Generic UDP Encapsulation, Linux's layout.
    Gue,
    /// UDP, and the inner protocol at once.
    Fou,
    /// Nothing.
    None,
}

impl Encap {
    /// The word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Encap::Gue => "gue",
            Encap::Fou => "fou",
            Encap::None => "none",
        }
    }
}

/// A number, or the name that stands for "not a fixed one".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice<T> {
    /// `auto`: segue chooses.
    Auto,
    /// `inherit`: from the inner packet.
    Inherit,
    /// This.
    Fixed(T),
}

impl<T: Copy> Choice<T> {
    /// The number, if it is fixed.
    pub(crate) fn fixed(self) -> Option<T> {
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
pub(crate) enum Profile {
    /// Those that can be taken apart again byte for byte.
    Strict,
    /// Those that Linux would join.
    Linux,
}

/// GRE's options, for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Gre {
    /// The key that a received packet must have.
    pub(crate) ikey: Option<u32>,
    /// The key that is sent.
    pub(crate) okey: Option<u32>,
    /// A received packet must have a checksum.
    pub(crate) icsum: bool,
    /// A checksum is sent.
    pub(crate) ocsum: bool,
    /// A received packet must have a sequence number.
    pub(crate) iseq: bool,
    /// Sequence numbers are sent.
    pub(crate) oseq: bool,
}

/// Don't Fragment outside, of VXLAN and Geneve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Df {
    /// Never.
    Unset,
    /// Always.
    Set,
    /// As inside.
    Inherit,
}

/// An Ethernet address and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    /// The address; zero stands for groups and whatever is unknown.
    pub(crate) mac: [u8; 6],
    /// The remote.
    pub(crate) remote: IpAddr,
}

impl Serialize for Neighbour {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let [a, b, c, d, e, f] = self.mac;
        to.collect_str(&format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x},{}", self.remote))
    }
}

/// What only VXLAN and Geneve have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Overlay {
    /// Network identifier; `None` in other modes.
    pub(crate) id: Option<u32>,
    /// No UDP checksums over IPv6 are sent.
    pub(crate) udp6zerocsumtx: bool,
    /// None are asked for over IPv6.
    pub(crate) udp6zerocsumrx: bool,
    /// Remote checksum offload when sending.
    pub(crate) remcsumtx: bool,
    /// And when receiving.
    pub(crate) remcsumrx: bool,
    /// Addresses are learned.
    pub(crate) learning: bool,
    /// For so many seconds.
    pub(crate) ageing: u32,
    /// So many at least.
    pub(crate) maxaddress: u32,
    /// Addresses that are set.
    pub(crate) fdb: Vec<Neighbour>,
    /// Don't Fragment.
    pub(crate) df: Df,
}

impl Overlay {
    /// Every remote but `first`, each once.
    pub(crate) fn others(&self, first: IpAddr) -> Vec<IpAddr> {
        let mut others: Vec<IpAddr> = Vec::new();
        for entry in &self.fdb {
            if entry.remote != first && !others.contains(&entry.remote) {
                others.push(entry.remote);
            }
        }
        others
    }
}
