//! Form of the packets that a port's tunnels receive.

use std::net::IpAddr;

use segue::encap::Config;
use segue::wire::{geneve, gue, vxlan};

use crate::layout::room;
use crate::wire;

/// The encapsulation header between the outer IP header and the inner packet or GRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// No encapsulation header: the IP protocol number identifies the inner packet.
    Bare,
    /// UDP datagrams to this port.
    Fou(u16),
    /// GUE in UDP datagrams to this port.
    Gue(u16),
    /// VXLAN with Ethernet frames, in UDP datagrams to this port.
    Vxlan(u16),
    /// Geneve with Ethernet frames, in UDP datagrams to this port.
    Geneve(u16),
}

impl Carrier {
    /// Returns the UDP port, and the length of the tunnel header that follows UDP.
    pub(crate) fn udp(self) -> Option<(u16, i16)> {
        match self {
            Carrier::Bare => None,
            Carrier::Fou(port) => Some((port, 0)),
            Carrier::Gue(port) => Some((port, gue::BASE_LEN as i16)),
            Carrier::Vxlan(port) => Some((port, vxlan::LEN as i16)),
            Carrier::Geneve(port) => Some((port, geneve::MIN_LEN as i16)),
        }
    }

    /// Returns whether the tunnel carries Ethernet frames.
    pub(crate) fn has_frames(self) -> bool {
        matches!(self, Carrier::Vxlan(_) | Carrier::Geneve(_))
    }
}

/// Features of the kernel's helper that removes headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Whether the helper can remove a tunnel's marks from an aggregate, so that it can be forwarded (Linux of 2026).
    pub(crate) clears_marks: bool,
    /// Whether the helper can remove outer headers of another IP version than the inner packet's (Linux 6.3).
    pub(crate) crosses: bool,
}

impl Abilities {
    /// Combinations of features that kernels have, the best first.
    pub(crate) const ALL: [Abilities; 3] = [
        Abilities { clears_marks: true, crosses: true },
        Abilities { clears_marks: false, crosses: true },
        Abilities { clears_marks: false, crosses: false },
    ];

    /// Returns whether a tunnel's outer headers can be removed from an inner packet of the given IP version.
    pub(crate) fn remove(self, config: &Config, version: u8) -> bool {
        self.crosses || config.local.is_ipv4() == (version == 4)
    }
}

/// Form of the packets for the tunnels of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Local outer address of the tunnels.
    pub(crate) local: IpAddr,
    pub(crate) carrier: Carrier,
    /// Whether a GRE header follows; with GUE, the GUE header tells instead.
    pub(crate) has_gre: bool,
    /// Whether datagrams without UDP checksum are accepted over IPv6.
    pub(crate) zero_csum6: bool,
    pub(crate) abilities: Abilities,
    /// Constants for a tunnel with a peer table, whose interface carries IP.
    pub(crate) table: Option<OfTable>,
}

/// The constants of the program for one listener of a tunnel with a peer table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfTable {
    /// The Ethernet address of this end, the destination of frames.
    pub(crate) station: [u8; 6],
    /// Index of the counters of the listener.
    pub(crate) counters: i32,
}

impl Form {
    pub(crate) fn is_v4(&self) -> bool {
        self.local.is_ipv4()
    }

    pub(crate) fn has_gue(&self) -> bool {
        matches!(self.carrier, Carrier::Gue(_))
    }

    pub(crate) fn ip_len(&self) -> i16 {
        wire::ip_len(self.is_v4())
    }

    /// Returns whether packets of this form may have GRE.
    pub(crate) fn may_have_gre(&self) -> bool {
        self.has_gre || matches!(self.carrier, Carrier::Gue(_)) && self.table.is_none()
    }

    /// Returns whether inner frames go to an interface that carries frames.
    pub(crate) fn delivers_frames(&self) -> bool {
        self.carrier.has_frames() && self.table.is_none()
    }

    /// Returns the flags with which the kernel removes the headers of a packet with the given inner IP version.
    pub(crate) fn room(&self, version: u8) -> u64 {
        let marks = match (self.abilities.clears_marks, self.carrier, self.has_gre, self.is_v4()) {
            (false, ..) => 0,
            (true, carrier, ..) if carrier != Carrier::Bare => room::DECAP_UDP,
            (true, _, true, _) => room::DECAP_GRE,
            (true, _, false, true) => room::DECAP_IPXIP4,
            (true, _, false, false) => room::DECAP_IPXIP6,
        };
        let family = match (self.is_v4(), version) {
            (true, 6) => room::DECAP_IPV6,
            (false, 4) => room::DECAP_IPV4,
            _ => 0,
        };
        room::FIXED_GSO | marks | family
    }
}
