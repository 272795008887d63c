//! The interface between a pipeline and the worker that runs it.

use std::io;

use segue::time::Nanos;
pub use segue_port::Interest;

use crate::board::Sink;
use crate::knobs::Dial;
use crate::napi::PollPolicy;

/// Result of one round of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Every port was emptied, so the loop may sleep.
    Idle,
    /// A budget was used up, so the next round follows at once.
    More,
}

/// Ports and the forwarding between them.
pub trait Pipeline {
    /// Runs one bounded round; `now` is the time at its beginning.
    ///
    /// # Errors
    /// Only where a port has become useless.
    fn round(&mut self, now: Nanos) -> io::Result<Round>;
    /// Passes every interest to `wait`, always the same number in the same order, for when a round was idle.
    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>));
    /// Records that the interest with the given index in [`each_interest`](Self::each_interest), counted from 0, woke
    /// the loop.
    fn woken(&mut self, place: usize) {
        let _ = place;
    }
    /// Returns the time at which a round is due even without packets.
    fn deadline(&self) -> Option<Nanos>;
    /// Returns the loop's behaviour before it waits for a port.
    fn poll_policy(&self) -> PollPolicy {
        PollPolicy::default()
    }
    /// Returns the number of packets and bursts received from ports so far.
    fn taken(&self) -> u64 {
        0
    }
    /// Returns the number of packets sent to ports or dropped by them so far; `None` where that is not counted.
    fn sent(&self) -> Option<u64> {
        None
    }
    /// Stops receiving and holding packets; the following rounds send the remaining ones. Returns `false` where the
    /// pipeline never holds anything, and no rounds need to follow.
    fn close(&mut self) -> bool {
        false
    }
    /// Returns the next GRE sequence number of each interface whose packets have sequence numbers.
    fn sequences(&self) -> Vec<(&str, u32)> {
        Vec::new()
    }
    /// Continues the GRE sequence numbers of the interface `name` at `next`, after the preceding process.
    fn go_on(&mut self, name: &str, next: u32) {
        let _ = (name, next);
    }
    /// Passes to `dial` every setting that can change while packets are forwarded, always the same ones in the same
    /// order, and applies the new values. No packet is lost by it.
    fn tune(&mut self, dial: &mut Dial<'_>) {
        let _ = dial;
    }
    /// Writes every counter, always the same ones in the same order.
    fn collect(&self, sink: &mut Sink<'_>);
}
