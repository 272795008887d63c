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
    /// Numbers of frames to other stations, as on a link with several hosts, and of packets for the host itself.
    pub(super) foreign: u64,
    pub(super) local: u64,
    /// Numbers of ICMP errors sent about packets of this port, and of errors suppressed by the rate limit.
    pub(super) errors: u64,
    pub(super) errors_limited: u64,
    /// Number of ARP requests and neighbour solicitations sent.
    pub(super) questions: u64,
    /// Numbers of solicited advertisements received, and of ARP announcements of the outside address sent.
    pub(super) answers: u64,
    pub(super) announcements: u64,
    /// Numbers of neighbours whose link address changed, and of entries evicted from the neighbour cache.
    pub(super) moved: u64,
    pub(super) displaced: u64,
}
