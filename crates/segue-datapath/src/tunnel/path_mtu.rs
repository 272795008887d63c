//! The path MTU to the remotes, as the kernel has learned it.

use std::ops::Range;

use segue::time::Nanos;
use segue_port::Port;

/// Interval at which the path MTU is queried from the outside port, nanoseconds: shorter than any TCP retransmission
/// timeout.
const QUERY_INTERVAL: u64 = 100_000_000;

/// The path MTU of one tunnel.
#[derive(Debug, Default)]
pub(super) struct PathMtu {
    asked: Option<Nanos>,
    /// Largest inner IP packet that fits, bytes. The interface's own MTU may be larger, by configuration or because the
    /// path MTU has decreased since.
    pub(super) inside: Option<usize>,
    /// Whether the outer packet of the current packet is to be fragmented.
    pub(super) fragments: bool,
}

impl PathMtu {
    /// Queries the path MTU to the given peers of the port; the smallest counts.
    pub(super) fn query(&mut self, port: &dyn Port, peers: Range<u16>, overhead: usize, now: Nanos) {
        if self.asked.is_some_and(|asked| now.0.saturating_sub(asked.0) < QUERY_INTERVAL) {
            return;
        }
        self.asked = Some(now);
        let mtu = peers.filter_map(|peer| port.path_mtu(peer)).min();
        self.inside = mtu.map(|mtu| mtu.saturating_sub(overhead));
    }
}
