//! Fragments that came before the first one of their datagram, whose ports they need (RFC 4787, REQ-14: also out of order).

use std::collections::VecDeque;

use segue::packet::Packet;
use segue::time::Nanos;
use segue_port::Page;

use crate::nat::Datagram;

/// Most that wait, altogether and of one datagram: one of 64 KiB in packets of 1500 bytes has 45.
const MAX_FRAGMENTS: usize = 256;
const MAX_PER_DATAGRAM: usize = 48;
/// How long one waits, nanoseconds (RFC 6146, section 3.4: at least 2 seconds).
const LIFETIME: u64 = 2_000_000_000;

/// Where a fragment was on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NatHook {
    /// In front of the routes.
    Prerouting,
    /// Behind them: the port that it leaves by, and the longest packet.
    Postrouting { port: usize, mtu: u32 },
}

/// A fragment that waits.
#[derive(Debug)]
pub(super) struct QueuedFragment {
    pub(super) datagram: Datagram,
    /// The port that it came in by.
    pub(super) from: u16,
    pub(super) hook: NatHook,
    pub(super) packet: Box<Packet<Page>>,
}

#[derive(Debug, Default)]
pub(super) struct FragmentQueue {
    /// Oldest first, with the time until which they wait.
    waiting: VecDeque<(Nanos, QueuedFragment)>,
}

impl FragmentQueue {
    /// Whether one more of a datagram may wait.
    pub(super) fn has_room(&self, datagram: &Datagram) -> bool {
        self.waiting.len() < MAX_FRAGMENTS
            && self.waiting.iter().filter(|(_, one)| one.datagram == *datagram).count() < MAX_PER_DATAGRAM
    }

    pub(super) fn hold(&mut self, one: QueuedFragment, now: Nanos) {
        self.waiting.push_back((Nanos(now.0 + LIFETIME), one));
    }

    /// Those of a datagram that wait there, in their order.
    pub(super) fn take(&mut self, datagram: &Datagram, is_there: impl Fn(NatHook) -> bool) -> Vec<QueuedFragment> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let is_one = |one: &QueuedFragment| one.datagram == *datagram && is_there(one.hook);
        let (taken, left) = self.waiting.drain(..).partition(|(_, one)| is_one(one));
        self.waiting = left;
        let taken: VecDeque<(Nanos, QueuedFragment)> = taken;
        taken.into_iter().map(|(_, one)| one).collect()
    }

    /// One that has waited too long.
    pub(super) fn expired(&mut self, now: Nanos) -> Option<QueuedFragment> {
        self.waiting.front().filter(|(until, _)| *until < now)?;
        self.waiting.pop_front().map(|(_, one)| one)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
