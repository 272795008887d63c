//! Fragments that arrive before the first one of their datagram, and wait for it because only the first one has ports
//! (RFC 4787, REQ-14: fragments out of order are translated too).

use std::collections::VecDeque;

use segue::packet::Packet;
use segue::time::Nanos;
use segue_port::Page;

use crate::nat::Datagram;

/// Largest number of waiting fragments altogether.
const MAX_FRAGMENTS: usize = 256;
/// Largest number of waiting fragments of one datagram: one of 64 KiB in packets of 1500 bytes has 45.
const MAX_PER_DATAGRAM: usize = 48;
/// Time that a fragment waits, nanoseconds (RFC 6146, section 3.4: at least 2 seconds).
const LIFETIME: u64 = 2_000_000_000;

/// The point in the router at which a fragment waits, named after netfilter's hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NatHook {
    /// The hook before the routing decision.
    Prerouting,
    /// The hook after the routing decision, with the egress port and its MTU in bytes.
    Postrouting { port: usize, mtu: u32 },
}

/// A fragment that waits for the first fragment of its packet.
#[derive(Debug)]
pub(super) struct QueuedFragment {
    pub(super) datagram: Datagram,
    /// Ingress port of the fragment.
    pub(super) from: u16,
    pub(super) hook: NatHook,
    pub(super) packet: Box<Packet<Page>>,
}

#[derive(Debug, Default)]
pub(super) struct FragmentQueue {
    /// Waiting fragments with their deadlines, oldest first.
    waiting: VecDeque<(Nanos, QueuedFragment)>,
}

impl FragmentQueue {
    /// Returns whether one more fragment of the datagram may wait.
    pub(super) fn has_room(&self, datagram: &Datagram) -> bool {
        self.waiting.len() < MAX_FRAGMENTS
            && self.waiting.iter().filter(|(_, one)| one.datagram == *datagram).count() < MAX_PER_DATAGRAM
    }

    pub(super) fn hold(&mut self, one: QueuedFragment, now: Nanos) {
        self.waiting.push_back((Nanos(now.0 + LIFETIME), one));
    }

    /// Removes and returns a datagram's fragments waiting at the hooks that `is_there` accepts, in their order.
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

    /// Removes and returns a fragment whose deadline has passed.
    pub(super) fn expired(&mut self, now: Nanos) -> Option<QueuedFragment> {
        self.waiting.front().filter(|(until, _)| *until < now)?;
        self.waiting.pop_front().map(|(_, one)| one)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
