//! What every pipeline gives the worker.

use std::io;
use std::os::fd::BorrowedFd;

use segue::time::Nanos;

use crate::board::Sink;
use crate::knobs::Dial;
use crate::napi::PollPolicy;

/// What the worker is to wait for on a port.
#[derive(Clone, Copy, Debug)]
pub struct Interest<'a> {
    /// The port's descriptor.
    pub fd: BorrowedFd<'a>,
    /// Wake when it has something to read. Off while the way out is blocked, so that a slow port holds back its source
    /// and nothing piles up here.
    pub read: bool,
    /// Wake when it can take more.
    pub write: bool,
}

/// What one round left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Every port was emptied; sleep until one has something.
    Idle,
    /// A budget was used up: go on at once.
    More,
}

/// A set of ports with a way through them.
pub trait Pipeline {
    /// One bounded round; `now` is read once for it.
    ///
    /// # Errors
    /// Only where a port has become useless.
    fn round(&mut self, now: Nanos) -> io::Result<Round>;
    /// Tells `wait` what to wait for when the round was idle.
    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>));
    /// Hears that what it told [`each_interest`](Self::each_interest) in this place, counted from 0, woke the loop.
    fn woken(&mut self, place: usize) {
        let _ = place;
    }
    /// When a round is due even if nothing arrives.
    fn deadline(&self) -> Option<Nanos>;
    /// What the loop does before it waits for a port.
    fn poll_policy(&self) -> PollPolicy {
        PollPolicy::default()
    }
    /// Packets and bursts taken from ports so far.
    fn taken(&self) -> u64 {
        0
    }
    /// Takes nothing more from its ports, and holds nothing back: the rounds that follow send what there is. `false` where it
    /// never holds anything, and no rounds need to follow.
    fn close(&mut self) -> bool {
        false
    }
    /// The number of the next packet of each interface whose packets are numbered (GRE sequence numbers).
    fn sequences(&self) -> Vec<(&str, u32)> {
        Vec::new()
    }
    /// Numbers packets of the interface `name` from `next` on: it goes on where another process has stopped.
    fn go_on(&mut self, name: &str, next: u32) {
        let _ = (name, next);
    }
    /// Shows every setting that can change while packets move to `dial`, always the same ones in the same order, and goes by
    /// what they are afterwards. No packet is lost by it.
    fn tune(&mut self, dial: &mut Dial<'_>) {
        let _ = dial;
    }
    /// Writes every counter, always the same ones in the same order.
    fn collect(&self, sink: &mut Sink<'_>);
}
