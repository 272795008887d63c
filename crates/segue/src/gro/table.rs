//! The flows that are held: a bounded table with constant-time find, insert, remove and oldest.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::form::Which;
use crate::packet::Packet;
use crate::time::Nanos;

/// Most flows whose hashes may share a bucket; the oldest of them makes room for one more.
const MAX_CHAIN: usize = 8;
const NONE: u32 = u32::MAX;

/// How the IPv4 identifications of a train go on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ids {
    /// Bit i: the header at index i keeps its identification; else it counts up.
    pub(super) fixed: u16,
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    /// A train under construction.
    Data,
    /// The newest of some pure acknowledgments.
    Acks,
}

/// A train under construction, or the newest of some pure acknowledgments.
#[derive(Debug)]
pub(super) struct Held<B> {
    pub(super) packet: Box<Packet<B>>,
    pub(super) hash: u64,
    pub(super) since: Nanos,
    /// Payload bytes of the first segment; in profile `lro` of the largest TCP segment.
    pub(super) size: usize,
    /// Payload bytes that it may still take.
    pub(super) room: usize,
    /// Packets it stands for.
    pub(super) segs: u32,
    /// Most packets.
    pub(super) most: u32,
    pub(super) next_seq: u32,
    /// The timestamp of the newest TCP segment, where profile `lro` lets it move on.
    pub(super) stamp: u32,
    pub(super) ids: Ids,
    pub(super) form: Which,
    pub(super) carries: Carries,
    /// Whether the first packet's checksums were verified; later ones are before they join.
    pub(super) verified: bool,
}

#[derive(Debug)]
struct Slot<B> {
    held: Option<Held<B>>,
    /// Next slot of the bucket, or of the free list.
    next: u32,
    /// Neighbours in order of age.
    older: u32,
    newer: u32,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table<B> {
    slots: Vec<Slot<B>>,
    buckets: Vec<u32>,
    free: u32,
    oldest: u32,
    newest: u32,
    len: usize,
}

impl<B> Table<B> {
    pub(super) fn new(capacity: usize) -> Table<B> {
        let slot = |i: usize| Slot {
            held: None,
            next: if i + 1 < capacity { i as u32 + 1 } else { NONE },
            older: NONE,
            newer: NONE,
        };
        Table {
            slots: (0..capacity).map(slot).collect(),
            buckets: alloc::vec![NONE; (capacity * 2).next_power_of_two()],
            free: 0,
            oldest: NONE,
            newest: NONE,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What is held of a flow with this hash, of which `is_it` knows whether it is the one.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&Held<B>) -> bool) -> Option<usize> {
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let slot = &self.slots[at as usize];
            match &slot.held {
                Some(held) if held.hash == hash && is_it(held) => return Some(at as usize),
                _ => at = slot.next,
            }
        }
        None
    }

    /// The one that must leave before a flow with this hash can be inserted, where there is one.
    pub(super) fn make_room(&self, hash: u64) -> Option<usize> {
        let (mut at, mut chain, mut last) = (self.buckets[self.bucket(hash)], 0, NONE);
        while at != NONE {
            chain += 1;
            last = at;
            at = self.slots[at as usize].next;
        }
        // New ones enter a bucket at its front, so the last one is the oldest.
        if chain >= MAX_CHAIN {
            return Some(last as usize);
        }
        if self.free == NONE { self.oldest() } else { None }
    }

    /// Inserts; the caller has made room. Without room nothing is kept, which cannot happen after `make_room`.
    pub(super) fn insert(&mut self, held: Held<B>) {
        let at = self.free;
        if at == NONE {
            return;
        }
        let bucket = self.bucket(held.hash);
        let slot = &mut self.slots[at as usize];
        self.free = slot.next;
        slot.next = self.buckets[bucket];
        slot.older = self.newest;
        slot.newer = NONE;
        slot.held = Some(held);
        self.buckets[bucket] = at;
        match self.newest {
            NONE => self.oldest = at,
            newest => self.slots[newest as usize].newer = at,
        }
        self.newest = at;
        self.len += 1;
    }

    pub(super) fn oldest(&self) -> Option<usize> {
        (self.oldest != NONE).then_some(self.oldest as usize)
    }

    pub(super) fn get(&self, at: usize) -> &Held<B> {
        self.slots[at].held.as_ref().expect("places come from find, make_room or oldest, which name occupied slots")
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut Held<B> {
        self.slots[at].held.as_mut().expect("places come from find, make_room or oldest, which name occupied slots")
    }

    pub(super) fn remove(&mut self, at: usize) -> Held<B> {
        let slot = &mut self.slots[at];
        let held = slot.held.take().expect("places come from find, make_room or oldest, which name occupied slots");
        let (next, older, newer) = (slot.next, slot.older, slot.newer);
        slot.next = self.free;
        self.free = at as u32;
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        let bucket = self.bucket(held.hash);
        let mut place = self.buckets[bucket];
        if place == at as u32 {
            self.buckets[bucket] = next;
        } else {
            while place != NONE {
                let following = self.slots[place as usize].next;
                if following == at as u32 {
                    self.slots[place as usize].next = next;
                    break;
                }
                place = following;
            }
        }
        self.len -= 1;
        held
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}
