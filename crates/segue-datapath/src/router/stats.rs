//! The counters of a router.

use segue::reason::Counts;

use crate::forward::DropReason;
use crate::ingress::Traffic;
use crate::nat;

/// Counters of one ingress port; those of the second one include packets that the router itself created.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) nat_in: Traffic,
    pub(super) route: Traffic,
    pub(super) nat_out: Traffic,
    pub(super) drops: Counts<DropReason>,
    pub(super) refusals: Counts<nat::Refusal>,
    /// Frames to other stations, which a port sees where several hosts share a link, and packets for the host itself.
    pub(super) foreign: u64,
    pub(super) local: u64,
    /// ICMP errors sent about packets of this port, and errors that the rate limit suppressed.
    pub(super) errors: u64,
    pub(super) errors_limited: u64,
    /// ARP requests and neighbour solicitations sent.
    pub(super) questions: u64,
    /// Solicited advertisements received, and ARP announcements of the outside address sent.
    pub(super) answers: u64,
    pub(super) announcements: u64,
    /// Neighbours whose link address changed, and entries evicted from the neighbour cache.
    pub(super) moved: u64,
    pub(super) displaced: u64,
}
