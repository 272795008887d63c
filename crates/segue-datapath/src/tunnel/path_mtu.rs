//! What the way to the remote takes, as far as the kernel has learned that.

use std::ops::Range;

use segue::time::Nanos;
use segue_port::Port;

/// How often the outside port is asked for the MTU of the way, in nanoseconds: more often than any TCP repeats itself.
const ASK_EVERY: u64 = 100_000_000;

/// What is known of the way's MTU.
#[derive(Debug, Default)]
pub(super) struct PathMtu {
    asked: Option<Nanos>,
    /// Bytes of inner IP that fit. The inside's own MTU may be larger from the start: whoever set it, or a way that became
    /// narrower before.
    pub(super) inside: Option<usize>,
    /// The packet at hand is to be fragmented outside.
    pub(super) fragments: bool,
}

impl PathMtu {
    /// Asks for the ways to these of the port's peers; the narrowest counts.
    pub(super) fn ask(&mut self, port: &dyn Port, peers: Range<u16>, overhead: usize, now: Nanos) {
        if self.asked.is_some_and(|asked| now.0.saturating_sub(asked.0) < ASK_EVERY) {
            return;
        }
        self.asked = Some(now);
        let mtu = peers.filter_map(|peer| port.path_mtu(peer)).min();
        self.inside = mtu.map(|mtu| mtu.saturating_sub(overhead));
    }
}
