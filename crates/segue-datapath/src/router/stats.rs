//! What a router counts.

use segue::reason::Counts;

use crate::forward::DropReason;
use crate::ingress::Traffic;
use crate::nat;

/// What is counted at the port where packets came in; at the second one also for what was made here.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) nat_in: Traffic,
    pub(super) route: Traffic,
    pub(super) nat_out: Traffic,
    pub(super) drops: Counts<DropReason>,
    pub(super) refusals: Counts<nat::Refusal>,
    /// Frames to others, which a port sees where several hosts share a link, and packets for the host itself.
    pub(super) foreign: u64,
    pub(super) local: u64,
    /// Errors sent to those whose packets came in here, and those that were too many.
    pub(super) errors: u64,
    pub(super) errors_limited: u64,
    /// Questions for link addresses.
    pub(super) questions: u64,
    /// Neighbours that were heard of at another link address, and those that have made room for others.
    pub(super) moved: u64,
    pub(super) displaced: u64,
}
