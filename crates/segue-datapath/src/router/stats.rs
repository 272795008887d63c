//! The counters of a router.

use segue::reason::Counts;

use crate::forward::DropReason;
use crate::ingress::Traffic;
use crate::nat;

/// Counters of one ingress port; those of the second port include packets that the router itself created.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) nat_in: Traffic,
    pub(super) route: Traffic,
    pub(super) nat_out: Traffic,
    pub(super) drops: Counts<DropReason>,
    pub(super) refusals: Counts<nat::Refusal>,
    /// Number of frames to other stations, as on a link with several hosts.
    pub(super) foreign: u64,
    /// Number of packets for the host itself.
    pub(super) local: u64,
    /// Number of ICMP errors sent about packets of this port.
    pub(super) errors: u64,
    /// Number of ICMP errors suppressed by the rate limit.
    pub(super) errors_limited: u64,
    /// Number of ARP requests and neighbour solicitations sent.
    pub(super) questions: u64,
    /// Number of solicited advertisements received.
    pub(super) answers: u64,
    /// Number of ARP announcements of the outside address sent.
    pub(super) announcements: u64,
    /// Number of messages of other hosts that have the outside address.
    pub(super) conflicts: u64,
    /// Number of neighbours whose link address changed.
    pub(super) moved: u64,
    /// Number of entries evicted from the neighbour cache.
    pub(super) displaced: u64,
}
