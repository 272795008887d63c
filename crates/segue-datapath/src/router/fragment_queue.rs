//! Fragments that arrive before the first one of their datagram, and wait for it because only the first one has ports
//! (RFC 4787, REQ-14: fragments out of order are translated too).
//!
//! A new fragment always finds room: where its source has used up its share, its oldest one makes room, and where the
//! queue is full, the oldest of all. So a host that floods costs only itself, and forged sources only shorten the wait.

use std::collections::VecDeque;

use segue::packet::Packet;
use segue::time::Nanos;
use segue_port::Page;

use crate::nat::Datagram;

/// Largest number of waiting fragments altogether.
const MAX_FRAGMENTS: usize = 256;
/// Largest number of waiting fragments of one source: a datagram of 64 KiB has 53 in packets of 1280 bytes.
const MAX_PER_SOURCE: usize = 64;
/// Largest number of pages that waiting fragments occupy: 4 MiB.
pub(super) const MAX_PAGES: usize = 1024;
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
    /// Adds a fragment. Returns the one that had to make room for it.
    pub(super) fn hold(&mut self, one: QueuedFragment, now: Nanos) -> Option<QueuedFragment> {
        let source = one.datagram.source;
        let is_same = |(_, other): &(Nanos, QueuedFragment)| other.datagram.source == source;
        let evicted = match self.waiting.iter().filter(|other| is_same(other)).count() {
            MAX_PER_SOURCE.. => self.waiting.iter().position(is_same),
            _ => (self.waiting.len() >= MAX_FRAGMENTS).then_some(0),
        };
        let evicted = evicted.and_then(|at| self.waiting.remove(at));
        self.waiting.push_back((Nanos(now.0 + LIFETIME), one));
        evicted.map(|(_, one)| one)
    }

    /// Removes and returns a fragment that makes room for one of `source`: the oldest one of that source where its
    /// fragments have a quarter of the memory or more, else the oldest of all.
    pub(super) fn evict(&mut self, source: u32) -> Option<QueuedFragment> {
        let is_same = |(_, other): &(Nanos, QueuedFragment)| other.datagram.source == source;
        let pages = self.waiting.iter().filter(|other| is_same(other)).map(|(_, one)| one.packet.payload.frags().len());
        let at = if pages.sum::<usize>() < MAX_PAGES / 4 { None } else { self.waiting.iter().position(is_same) };
        self.waiting.remove(at.unwrap_or(0)).map(|(_, one)| one)
    }

    /// Removes and returns a datagram's fragments waiting at the hooks that `is_there` accepts, in their order.
    pub(super) fn take(&mut self, datagram: &Datagram, is_there: impl Fn(NatHook) -> bool) -> Vec<QueuedFragment> {
        let is_one = |one: &QueuedFragment| one.datagram == *datagram && is_there(one.hook);
        // Most first fragments precede the others; the queue is not rebuilt for those.
        if !self.waiting.iter().any(|(_, one)| is_one(one)) {
            return Vec::new();
        }
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
