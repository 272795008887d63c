//! The plan of a tunnel: the settings that the user requested, with all checks that need no query to the system.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use segue_control::peers::Encap as PeerEncap;

pub use super::kinds::{Choice, Df, Encap, Fastpath, Gre, Mode, Neighbour, Overlay, PeerTable, Profile};
use segue_host::prefix::Prefix;

use crate::vhost::Spec;

/// Linux's default port of VXLAN; the registered one is 4789.
pub const LINUX_VXLAN_PORT: u16 = 8472;
/// Smallest MTU that IPv6 works with (RFC 8200, section 5).
pub const IPV6_MIN_MTU: u32 = 1280;

/// The requested settings of one tunnel, in which everything is checked that needs no query to the system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The name of the interface.
    pub dev: String,
    /// The socket of the guest whose network device replaces the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Spec>,
    /// The mode: the packets that the tunnel carries.
    pub mode: Mode,
    /// Address of the remote end; its family is the outer family.
    pub remote: IpAddr,
    /// Interface of link-local addresses; `None` without such addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The local address; `None` for the preferred source address of the route.
    pub local: Option<IpAddr>,
    /// Settings of the peer table, if the tunnel has one instead of a remote. `remote` is the unspecified address then,
    /// and `mode`, `encap`, `encap_dport` and `port` stand for the first of its encapsulations.
    #[serde(rename = "peers", skip_serializing_if = "Option::is_none")]
    pub table: Option<PeerTable>,
    /// The encapsulation of the tunnel.
    pub encap: Encap,
    /// UDP port of the remote end.
    #[serde(rename = "encap_dport")]
    pub dport: u16,
    /// The UDP source port; never [`Choice::Inherit`].
    #[serde(rename = "encap_sport")]
    pub sport: Choice<u16>,
    /// First and last UDP source port, if a range is given.
    pub srcport: Option<(u16, u16)>,
    /// The UDP port to listen on.
    pub port: u16,
    /// Whether outer UDP checksums are sent.
    pub encap_csum: bool,
    /// Whether remote checksum offload is used when sending.
    pub encap_remcsum: bool,
    /// The addresses of the interface.
    #[serde(serialize_with = "prefixes")]
    pub addr: Vec<Prefix>,
    /// The MTU of the interface, bytes; never [`Choice::Inherit`].
    pub mtu: Choice<u32>,
    /// The outer TTL or hop limit; never [`Choice::Auto`].
    pub ttl: Choice<u8>,
    /// The outer tunnel encapsulation limit option: always `none`.
    pub encaplimit: &'static str,
    /// The outer TOS or traffic class with the ECN bits; never [`Choice::Auto`].
    pub tos: Choice<u8>,
    /// Whether outer packets have the DF flag set (path MTU discovery).
    pub pmtudisc: bool,
    /// The options of GRE; `None` in other modes.
    pub gre: Option<Gre>,
    /// The settings that only VXLAN and Geneve have.
    #[serde(flatten)]
    pub overlay: Overlay,
    /// Whether received packets are joined by GRO.
    pub gro: bool,
    /// Whether trains are sent unsplit.
    pub gso: bool,
    /// The packets that may form trains.
    pub profile: Profile,
    /// Whether packets take the in-kernel path.
    pub fastpath: Fastpath,
    /// The number of threads that move packets.
    pub workers: u16,
    /// Seconds between two probes of the remote end; 0 for none.
    pub probe: u16,
    /// The capture file for packets of the outside.
    pub trace: Option<PathBuf>,
    /// The size at which the capture file ends, in millions of bytes.
    pub trace_size: Option<u32>,
    /// Knobs to set at the start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<(String, String)>,
}

fn prefixes<S: Serializer>(prefixes: &[Prefix], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(prefixes.iter().map(ToString::to_string))
}

/// A header that the tunnel adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Overhead {
    /// The name of the header, such as `IPv4`.
    pub header: &'static str,
    /// The length of the header, bytes.
    pub bytes: u32,
}

impl Plan {
    /// Returns the headers that the tunnel adds, the outermost first.
    ///
    /// As in Linux, the eight bytes of remote checksum offload always count where it is on, although packets without a
    /// pending checksum do not have them.
    pub fn overhead(&self) -> Vec<Overhead> {
        let outer = if self.remote.is_ipv4() { ("IPv4", 20) } else { ("IPv6", 40) };
        let mut parts = vec![outer];
        if self.has_udp() {
            parts.push(("UDP", 8));
        }
        if let Some(table) = &self.table {
            // The longest counts: a packet that the interface takes fits whichever peer it is for.
            let has = |wanted| table.listen.iter().any(|(encap, _)| *encap == wanted);
            if has(PeerEncap::Vxlan) {
                parts.extend([("VXLAN", 8), ("Ethernet", 14)]);
            } else if has(PeerEncap::Gue) {
                parts.push(("GUE", if self.encap_remcsum { 12 } else { 4 }));
            }
            if self.mode == Mode::Eth {
                // With the option GUE is longer than VXLAN.
                parts.truncate(2);
                let gue = has(PeerEncap::Gue) && (self.encap_remcsum || !has(PeerEncap::Vxlan));
                let of_gue = ("GUE", if self.encap_remcsum { 12 } else { 4 });
                parts.extend([if gue { of_gue } else { ("VXLAN", 8) }, ("Ethernet", 14)]);
            }
            return parts.into_iter().map(|(header, bytes)| Overhead { header, bytes }).collect();
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

    /// Returns the remote's address for output, with its interface if it is link-local, and the port if there is UDP.
    pub(crate) fn remote_name(&self) -> String {
        match (&self.zone, self.has_udp()) {
            (Some(zone), true) => format!("[{}%{zone}]:{}", self.remote, self.dport),
            (Some(zone), false) => format!("{}%{zone}", self.remote),
            (None, true) => SocketAddr::new(self.remote, self.dport).to_string(),
            (None, false) => self.remote.to_string(),
        }
    }

    /// Returns the names of the outside ports in statistics and knobs: one for each encapsulation of a table.
    pub fn outside_names(&self) -> Vec<&'static str> {
        match &self.table {
            Some(table) => table.listen.iter().map(|(encap, _)| encap.name()).collect(),
            None if self.has_udp() => vec!["udp"],
            None => vec!["raw"],
        }
    }

    /// Returns whether the tunnel has an outer UDP header.
    pub fn has_udp(&self) -> bool {
        self.encap != Encap::None || self.mode.is_overlay()
    }

    /// Returns the reason why only one thread can move the tunnel's packets; `None` where several can.
    pub fn only_one_worker(&self) -> Option<&'static str> {
        if self.table.is_some() {
            Some("the peer table belongs to one thread")
        } else if self.guest.is_some() {
            Some("a guest has one queue in each direction")
        } else if !self.has_udp() {
            Some(
                "a raw socket receives all packets, and no source port tells their flows apart: `encap gue` spreads them",
            )
        } else if self.sport.fixed().is_some() {
            Some("one source port for all flows: the worker of a flow is chosen by it, at both ends")
        } else if self.gre.is_some_and(|gre| gre.iseq || gre.oseq) {
            Some("GRE sequence numbers count the packets of all flows together")
        } else if self.overlay.learning && !self.overlay.others(self.remote).is_empty() {
            Some("the addresses that one worker learns are unknown to the others: `nolearning` with static entries")
        } else {
            None
        }
    }

    /// Returns whether the remote end can be probed: only GUE has control messages that a tunnel without segue ignores.
    pub fn can_probe(&self) -> bool {
        self.encap == Encap::Gue && self.table.is_none()
    }

    /// Returns the setting that needs the daemon, as the reason why the in-kernel path is not taken; `None` if there is
    /// none.
    pub fn needs_daemon(&self) -> Option<&'static str> {
        match self {
            Plan { trace: Some(_), .. } => Some("--trace needs the daemon"),
            Plan { guest: Some(_), .. } => Some("a guest needs the daemon"),
            Plan { mode: Mode::Eth, .. } => Some("a peer table of Ethernet addresses needs the daemon"),
            Plan { zone: Some(_), .. } => Some("a link-local remote needs the daemon"),
            Plan { gro: false, .. } => Some("gro off needs the daemon"),
            Plan { gso: false, .. } => Some("gso off needs the daemon"),
            Plan { overlay, .. } if !overlay.fdb.is_empty() => Some("several remotes (fdb) need the daemon"),
            _ => None,
        }
    }

    /// Returns whether the in-kernel path may carry the packets, according to the plan alone.
    pub(crate) fn may_leave_daemon(&self) -> bool {
        self.fastpath != Fastpath::Off && self.needs_daemon().is_none()
    }

    /// Returns whether datagrams are passed to the kernel in trains (UDP_SEGMENT).
    pub(crate) fn sends_trains(&self) -> bool {
        self.has_udp() && self.encap_csum && self.gso
    }

    /// Returns whether inner checksums are left to the remote end.
    pub(crate) fn leaves_checksums(&self) -> bool {
        self.encap_remcsum || self.overlay.remcsumtx
    }

    /// Returns notes on the plan for the user.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.mode == Mode::Vxlan && self.dport == LINUX_VXLAN_PORT {
            notes.push(
                "the remote's port is 8472, as Linux has it; VXLAN's registered one is `dstport 4789`".to_owned(),
            );
        }
        // What the in-kernel path does not carry is served like this too, which the line on the path shows then.
        let by_daemon = self.fastpath == Fastpath::Off;
        if !self.has_udp() && by_daemon {
            notes.push(
                "without encap, UDP_SEGMENT and UDP_GRO do not apply: each packet is sent and received by itself; `encap gue` does"
                    .to_owned(),
            );
        } else if self.has_udp() && !self.encap_csum && by_daemon {
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
