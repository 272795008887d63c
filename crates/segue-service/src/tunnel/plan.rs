//! A tunnel as it was asked for.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

pub use super::kinds::{Choice, Df, Encap, Gre, Mode, Neighbour, Overlay, Profile};
use segue_host::prefix::Prefix;

/// The port that Linux takes for VXLAN where none is said; the registered one is 4789.
pub const LINUX_VXLAN_PORT: u16 = 8472;
/// Smallest MTU that IPv6 works with (RFC 8200, section 5).
pub const IPV6_MIN_MTU: u32 = 1280;

/// A tunnel as it was asked for: everything is checked that needs no question to the system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Name of the interface.
    pub dev: String,
    /// What is inside.
    pub mode: Mode,
    /// The other end; its family is the family outside.
    pub remote: IpAddr,
    /// This end; `None` is what the route prefers.
    pub local: Option<IpAddr>,
    /// What carries it.
    pub encap: Encap,
    /// UDP port of the other end.
    #[serde(rename = "encap_dport")]
    pub dport: u16,
    /// UDP source port; never [`Choice::Inherit`].
    #[serde(rename = "encap_sport")]
    pub sport: Choice<u16>,
    /// First and last of the UDP source ports, where they are to be out of a range.
    pub srcport: Option<(u16, u16)>,
    /// UDP port to listen on.
    pub port: u16,
    /// UDP checksums outside.
    pub encap_csum: bool,
    /// Remote checksum offload when sending.
    pub encap_remcsum: bool,
    /// Addresses for the interface.
    #[serde(serialize_with = "prefixes")]
    pub addr: Vec<Prefix>,
    /// MTU of the interface, bytes; never [`Choice::Inherit`].
    pub mtu: Choice<u32>,
    /// TTL or hop limit outside; never [`Choice::Auto`].
    pub ttl: Choice<u8>,
    /// What option outside limits nesting: always `none`.
    pub encaplimit: &'static str,
    /// TOS or traffic class outside, ECN bits included; never [`Choice::Auto`].
    pub tos: Choice<u8>,
    /// Outer packets forbid fragmentation.
    pub pmtudisc: bool,
    /// GRE's options; `None` in other modes.
    pub gre: Option<Gre>,
    /// What only VXLAN and Geneve have.
    #[serde(flatten)]
    pub overlay: Overlay,
    /// Received packets are joined.
    pub gro: bool,
    /// Trains are sent.
    pub gso: bool,
    /// Which packets form trains.
    pub profile: Profile,
    /// Threads that move packets.
    pub workers: u16,
    /// Where to write what crosses the outside.
    pub trace: Option<PathBuf>,
    /// Settings to begin with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<(String, String)>,
}

fn prefixes<S: Serializer>(prefixes: &[Prefix], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(prefixes.iter().map(ToString::to_string))
}

/// One header that the tunnel adds, and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Overhead {
    /// The header's name, as in `IPv4`.
    pub header: &'static str,
    /// Its length.
    pub bytes: u32,
}

impl Plan {
    /// The headers that the tunnel adds, from the outside in.
    ///
    /// The eight bytes of remote checksum offload count always when it is on, as Linux counts them, though packets
    /// without a pending checksum go without.
    pub fn overhead(&self) -> Vec<Overhead> {
        let outer = if self.remote.is_ipv4() { ("IPv4", 20) } else { ("IPv6", 40) };
        let mut parts = vec![outer];
        if self.has_udp() {
            parts.push(("UDP", 8));
        }
        match (self.encap, self.mode) {
            (Encap::Gue, _) => parts.push(("GUE", if self.encap_remcsum { 12 } else { 4 })),
            (_, Mode::Vxlan) => parts.push(("VXLAN", 8)),
            (_, Mode::Geneve) => parts.push(("Geneve", 8)),
            _ => {}
        }
        if let Some(gre) = self.gre {
            let options = [gre.ocsum, gre.okey.is_some(), gre.oseq];
            parts.push(("GRE", 4 + 4 * options.iter().filter(|&&on| on).count() as u32));
        }
        if self.mode.is_ethernet() {
            parts.push(("Ethernet", 14));
        }
        parts.into_iter().map(|(header, bytes)| Overhead { header, bytes }).collect()
    }

    /// Whether it is carried in UDP.
    pub fn has_udp(&self) -> bool {
        self.encap != Encap::None || self.mode.is_overlay()
    }

    /// Whether inner checksums are left to the remote end.
    pub fn leaves_checksums(&self) -> bool {
        self.encap_remcsum || self.overlay.remcsumtx
    }

    /// Notes about this plan that its user should read, whatever happens.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.mode == Mode::Vxlan && self.dport == LINUX_VXLAN_PORT {
            notes.push(
                "the remote's port is 8472, as Linux has it; VXLAN's registered one is `dstport 4789`".to_owned(),
            );
        }
        if !self.has_udp() {
            notes.push(
                "without encap nothing gathers packets outside: each is sent and received by itself; `encap gue` does"
                    .to_owned(),
            );
        } else if !self.encap_csum {
            notes.push(
                "without encap-csum the kernel takes no trains of datagrams: sending one datagram at a time".to_owned(),
            );
        }
        if self.gre.is_some_and(|gre| gre.oseq) {
            notes
                .push("GRE sequence numbers differ in each packet: trains are cut before they are numbered".to_owned());
        }
        notes
    }
}
