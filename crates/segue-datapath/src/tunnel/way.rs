//! What the way to the remote takes, as far as the kernel has learned that.

use std::ops::Range;

use segue::time::Nanos;
use segue_port::Port;

/// How often the outside port is asked for the MTU of the way, in nanoseconds: more often than any TCP repeats itself.
const ASK_EVERY: u64 = 100_000_000;

/// What is known of the way's MTU.
#[derive(Debug, Default)]
pub(super) struct WayMtu {
    asked: Option<Nanos>,
    /// What it was at first: the interface and whoever set the inside's MTU know that much.
    first: Option<usize>,
    /// Bytes of inner IP that fit, once that is less than at first.
    pub(super) inside: Option<usize>,
    /// The packet at hand is to be fragmented outside.
    pub(super) fragments: bool,
}

impl WayMtu {
    /// Asks for the ways to these of the port's peers; the narrowest counts.
    pub(super) fn ask(&mut self, port: &dyn Port, peers: Range<u16>, overhead: usize, now: Nanos) {
        if self.asked.is_some_and(|asked| now.0.saturating_sub(asked.0) < ASK_EVERY) {
            return;
        }
        self.asked = Some(now);
        let mtu = peers.filter_map(|peer| port.path_mtu(peer)).min();
        let first = *self.first.get_or_insert(mtu.unwrap_or(usize::MAX));
        self.inside = mtu.filter(|mtu| *mtu < first).map(|mtu| mtu.saturating_sub(overhead));
    }
}
