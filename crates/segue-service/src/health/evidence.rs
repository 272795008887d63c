//! The facts about a tunnel: its constants, and the evidence that the watch gathers.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use segue::wire::icmp::v4 as icmp;
use segue_host::error_queue::SocketError;

use super::flow::{Flow, Outgoing};

/// The constant facts about one tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Monitored {
    /// The name of the interface.
    pub(crate) name: String,
    /// Index of the interface; 0 if unknown.
    pub(crate) index: u32,
    /// The mode and the encapsulation, for output.
    pub(crate) kind: String,
    /// Local address of the tunnel.
    pub(crate) local: IpAddr,
    /// Addresses of the remote ends; the first one is that of the plan.
    pub(crate) remotes: Vec<IpAddr>,
    /// The first remote with its port, for output.
    pub(crate) remote_name: String,
    /// The index of the link of link-local addresses; `None` where there are none.
    pub(crate) zone: Option<u32>,
    /// UDP ports of the local and the remote end, for tunnels over UDP.
    pub(crate) ports: Option<(u16, u16)>,
    /// The MTU of the interface at the start, bytes.
    pub(crate) mtu: u32,
    /// Number of bytes of the headers that the tunnel adds.
    pub(crate) overhead: u32,
    /// The name of the underlay's link at the start.
    pub(crate) underlay: String,
    /// The index of the link with the local address at the start, where the remotes are the peers of a table, so that
    /// no route tells the link.
    pub(crate) link: Option<u32>,
    /// The MTU of the path at the start, bytes.
    pub(crate) path_mtu: u32,
    /// Whether the daemon passes datagrams to the kernel in trains, which needs the link's checksum offload.
    pub(crate) sends_trains: bool,
    /// Whether received packets are joined into trains.
    pub(crate) joins: bool,
    /// Whether the interface takes trains from the local stack.
    pub(crate) takes_trains: bool,
}

/// The kinds of ICMP errors that are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No program listens on the remote's UDP port.
    Port,
    /// No program at the remote accepts the IP protocol.
    Protocol,
    /// A packet filter refuses the packets.
    Filtered,
    /// The host or its network is not reachable.
    Unreachable,
}

impl Refusal {
    /// Returns the kind of an error of the error queue; `None` for those that do not mean a refusal.
    pub(super) fn of(error: &SocketError) -> Option<Refusal> {
        // Three codes of ICMP's destination unreachable are prohibitions (RFC 1812, section 5.2.7.1); those of ICMPv6
        // are EACCES.
        let is_prohibited = error.icmp_type == icmp::UNREACHABLE
            && matches!(error.icmp_code, icmp::NET_PROHIBITED | icmp::HOST_PROHIBITED | icmp::PROHIBITED);
        match error.errno {
            libc::ECONNREFUSED => Some(Refusal::Port),
            libc::ENOPROTOOPT => Some(Refusal::Protocol),
            libc::EACCES => Some(Refusal::Filtered),
            libc::EHOSTUNREACH | libc::ENETUNREACH if is_prohibited => Some(Refusal::Filtered),
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENONET => Some(Refusal::Unreachable),
            _ => None,
        }
    }
}

/// The last ICMP error about datagrams to a remote.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) kind: Refusal,
    /// Sender of the ICMP error.
    pub(super) from: Option<IpAddr>,
    pub(super) at: Instant,
}

/// Time after an ICMP error from which on a packet that leaves without another one ends the refusal. Linux sends at
/// most one error a second to each destination (`icmp_ratelimit`).
pub(super) const FORGIVEN: Duration = Duration::from_millis(1500);

impl Refused {
    /// Returns whether the error counts for a tunnel to its remote. Where it does not, it never will again.
    pub(super) fn counts_for(&self, monitored: &Monitored, flow: &Flow) -> bool {
        let is_over = flow.sent_since(self.at + FORGIVEN);
        // An answer to a probe shows that packets arrive there again, and so does whatever else the only other end
        // sends.
        let replies = flow.last_reply.is_some_and(|reply| reply > self.at);
        let is_back = monitored.remotes.len() == 1 && flow.is_heard_again();
        !(is_over || replies || is_back)
    }
}

/// The state of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkView {
    pub(super) name: String,
    pub(super) is_gone: bool,
    pub(super) is_up: bool,
    pub(super) has_carrier: bool,
    pub(super) mtu: u32,
    /// Whether transmit checksum offload, TCP segmentation offload and generic segmentation offload are on; `None`
    /// where they are unreadable or cannot be switched on.
    pub(super) tx: Option<bool>,
    pub(super) tso: Option<bool>,
    pub(super) gso: Option<bool>,
    /// Whether generic receive offload is on.
    pub(super) gro: Option<bool>,
    /// Whether segmentation and receive offload were on at some time since the start.
    pub(super) had_tso: bool,
    pub(super) had_gro: bool,
}

/// The directions in which the in-kernel path carries the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByKernel {
    pub(super) sends: bool,
    pub(super) receives: bool,
}

/// The path to a remote: link, next hop, path MTU, state of the neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathState {
    /// The index of the output link.
    pub(super) link: u32,
    /// The next hop, where it is not the remote itself.
    pub(super) gateway: Option<IpAddr>,
    /// The MTU of the route, bytes, where it has one.
    pub(super) mtu: Option<u32>,
    /// Whether the kernel's entry for the neighbour has failed.
    pub(super) has_failed: bool,
}

/// A local address of tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Local {
    /// The index of the link that has it, or had it last.
    pub(super) link: u32,
    /// Prefix length of the address at the start.
    pub(super) len: u8,
    /// The index of the only link that counts, for a link-local address.
    pub(super) zone: Option<u32>,
    /// Whether the host has it.
    pub(super) is_here: bool,
}

/// The state of the underlay.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// The last path to each remote by the underlay, and whether the kernel still has a route.
    pub(super) paths: HashMap<IpAddr, (Option<PathState>, bool)>,
    /// The remotes whose route leads back into the tunnel, each with the index of the interface that it leads to.
    pub(super) loops: HashMap<IpAddr, u32>,
    pub(super) links: HashMap<u32, LinkView>,
    /// Local addresses of the tunnels.
    pub(super) locals: HashMap<IpAddr, Local>,
}

impl View {
    /// Returns the index of the link with the local address of a tunnel with a peer table.
    pub(super) fn owner(&self, monitored: &Monitored) -> Option<u32> {
        monitored.link.map(|at_start| self.locals.get(&monitored.local).map_or(at_start, |local| local.link))
    }
}

/// Observations at one time.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The traffic of each tunnel, in the order of the facts.
    pub(super) flows: Vec<Flow>,
    /// The last ICMP error about each remote for which one counts.
    pub(super) refused: HashMap<IpAddr, Refused>,
    pub(super) view: View,
    /// The packets of all tunnels to the outside.
    pub(super) outgoing: Outgoing,
    pub(super) by_kernel: ByKernel,
}

impl Evidence {
    /// Notes an ICMP error about datagrams to `remote`. Only the known remotes count, so that the table cannot grow.
    pub(super) fn note_refusal(&mut self, remote: IpAddr, refused: Refused) {
        if self.view.paths.contains_key(&remote) {
            self.refused.insert(remote, refused);
        }
    }

    /// Forgets the refused datagrams from remotes from which any tunnel has received a packet at the update at `now`:
    /// not everything from them is dropped.
    pub(super) fn forgive_received(&mut self, monitored: &[Monitored], now: Instant) {
        if !self.flows.iter().any(Flow::has_refused) {
            return;
        }
        let receives = |(_, flow): &(&Monitored, &Flow)| flow.last_received == Some(now);
        let received: HashSet<IpAddr> =
            monitored.iter().zip(&self.flows).filter(receives).flat_map(|(of, _)| &of.remotes).copied().collect();
        for (monitored, flow) in monitored.iter().zip(&mut self.flows) {
            if monitored.remotes.iter().any(|remote| received.contains(remote)) {
                flow.forgive();
            }
        }
    }

    /// Drops the ICMP errors that count for none of the tunnels any more.
    pub(super) fn forget_refusals(&mut self, monitored: &[Monitored]) {
        if self.refused.is_empty() {
            return;
        }
        let mut counting = HashSet::new();
        for (monitored, flow) in monitored.iter().zip(&self.flows) {
            let remotes = monitored.remotes.iter().copied();
            let counts = |refused: &Refused| refused.counts_for(monitored, flow);
            counting.extend(remotes.filter(|remote| self.refused.get(remote).is_some_and(counts)));
        }
        self.refused.retain(|remote, _| counting.contains(remote));
    }
}
