//! The flows that are held: a bounded table with constant-time find, insert, remove and oldest.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::form::Which;
use super::renew;
use super::rules::{self, Flush};
use crate::packet::Packet;
use crate::time::Nanos;
use crate::wire::tcp;

/// Most flows whose hashes may share a bucket; the oldest of them makes room for one more.
const MAX_CHAIN: usize = 8;
const NONE: u32 = u32::MAX;
/// TCP flags with which a segment is the last of its train.
const CLOSING: u8 = tcp::FIN | tcp::PSH;

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

/// What is held, in what form, and whether its transport checksums are pending: all that has to be the same before headers
/// are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Is {
    form: Which,
    /// Headers in front of IP.
    link: u8,
    pub(super) carries: Carries,
    is_owed: bool,
}

impl Is {
    /// Its form.
    #[inline(always)]
    pub(super) fn which(self) -> Which {
        self.form
    }

    /// Whether it is a train of packets with `link` headers in front of IP.
    #[inline(always)]
    pub(super) fn train_of(self, link: usize, is_owed: bool) -> bool {
        (self.link, self.carries, self.is_owed) == (link as u8, Carries::Data, is_owed)
    }

    /// A train of packets of a usual form.
    #[inline(always)]
    pub(super) fn train(form: Which, is_owed: bool) -> Is {
        Is { form, link: form.link() as u8, carries: Carries::Data, is_owed }
    }

    /// Of another form, it may be.
    pub(super) fn other(form: Option<Which>, carries: Carries, is_owed: bool) -> Is {
        let form = form.unwrap_or(Which::NONE);
        Is { form, link: form.link() as u8, carries, is_owed }
    }
}

/// The bytes of a whole frame and the number of headers in front of IP, of a train whose next segment needs no other look than
/// the one at what is expected of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Follow(usize);

impl Follow {
    /// None may.
    pub(super) const NOTHING: Follow = Follow(usize::MAX);

    #[inline(always)]
    pub(super) fn new(link: usize, total: usize) -> Follow {
        Follow(total << 2 | link)
    }
}

/// A train under construction, or the newest of some pure acknowledgments.
#[derive(Debug)]
pub(super) struct Held<B> {
    pub(super) packet: Box<Packet<B>>,
    pub(super) hash: u64,
    pub(super) since: Nanos,
    /// Payload bytes of the first segment; in profile `lro` of the largest TCP segment.
    pub(super) size: usize,
    /// Payload bytes that it may still take, where the sizes of segments differ (profile `lro`).
    pub(super) room: usize,
    /// How many more segments of this size it takes.
    pub(super) left: u32,
    /// Packets it stands for.
    pub(super) segs: u32,
    /// Most packets.
    pub(super) most: u32,
    pub(super) next_seq: u32,
    /// The timestamp of the newest TCP segment, where profile `lro` lets it move on.
    pub(super) stamp: u32,
    pub(super) ids: Ids,
    pub(super) is: Is,
    /// What a packet is that may follow at once, or [`Follow::NOTHING`].
    pub(super) follow: Follow,
    /// Whether the first packet's checksums were verified; later ones are before they join.
    pub(super) verified: bool,
}

impl<B: AsRef<[u8]>> Held<B> {
    /// Takes note of a segment that fits: where its TCP header is, if it has one, that header, and the bytes of its payload,
    /// which the caller moves. Returns why the train is to be closed, where it is.
    #[inline(always)]
    pub(super) fn add(&mut self, ids: Ids, at: Option<usize>, tcp: &[u8], len: usize, is_lro: bool) -> Option<Flush> {
        self.ids = ids;
        self.segs += 1;
        self.left = self.left.saturating_sub(1);
        self.next_seq = self.next_seq.wrapping_add(len as u32);
        let flags = tcp.get(tcp::FLAGS).copied().unwrap_or(0);
        // Each of them is rare.
        if len != self.size || self.left == 0 || flags & CLOSING != 0 || is_lro {
            return self.close(at, tcp, len, is_lro);
        }
        None
    }

    /// The rest of [`Held::add`], where something may close the train or the header is renewed.
    #[cold]
    #[inline(never)]
    fn close(&mut self, at: Option<usize>, tcp: &[u8], len: usize, is_lro: bool) -> Option<Flush> {
        let is_short = len < self.size && !is_lro;
        let mut why = None;
        if let (Some(at), Some(&flags)) = (at, tcp.get(tcp::FLAGS)) {
            why = rules::closing(flags);
            let header = &mut self.packet.head.bytes_mut()[at..];
            header[tcp::FLAGS] |= flags & CLOSING;
            if is_lro {
                self.stamp = renew(header, tcp);
                self.size = self.size.max(len);
                self.room = self.room.saturating_sub(len);
                self.left = left(self.most.saturating_sub(self.segs), self.room, self.size);
            }
        }
        let is_full = self.left == 0;
        why.or(if is_short {
            Some(Flush::Short)
        } else if is_full {
            Some(Flush::Full)
        } else {
            None
        })
    }
}

/// How many more segments of `size` bytes fit, where no more than `most` and `room` bytes do.
#[inline(always)]
pub(super) fn left(most: u32, room: usize, size: usize) -> u32 {
    // A train has far less than 4 GiB.
    (room as u32).checked_div(size as u32).unwrap_or(0).min(most)
}

/// The neighbours of a slot. They are apart from what is held: what is written in small parts and read at once as a whole
/// makes the processor wait.
#[derive(Clone, Copy, Debug)]
struct Links {
    /// Next slot of the bucket, or of the free list.
    next: u32,
    /// Neighbours in order of age.
    older: u32,
    newer: u32,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table<B> {
    slots: Vec<Option<Held<B>>>,
    links: Vec<Links>,
    buckets: Vec<u32>,
    free: u32,
    oldest: u32,
    newest: u32,
    len: usize,
}

impl<B> Table<B> {
    pub(super) fn new(capacity: usize) -> Table<B> {
        let links =
            |i: usize| Links { next: if i + 1 < capacity { i as u32 + 1 } else { NONE }, older: NONE, newer: NONE };
        Table {
            slots: (0..capacity).map(|_| None).collect(),
            links: (0..capacity).map(links).collect(),
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
            match &self.slots[at as usize] {
                Some(held) if held.hash == hash && is_it(held) => return Some(at as usize),
                _ => at = self.links[at as usize].next,
            }
        }
        None
    }

    /// The place that is first in the bucket of this hash, and what is held there, where that has the hash.
    #[inline(always)]
    pub(super) fn first_mut(&mut self, hash: u64) -> Option<(usize, &mut Held<B>)> {
        let at = self.buckets[self.bucket(hash)] as usize;
        let held = self.slots.get_mut(at)?.as_mut()?;
        (held.hash == hash).then_some((at, held))
    }

    /// Whether nothing is in the bucket of this hash.
    #[inline(always)]
    pub(super) fn is_free(&self, hash: u64) -> bool {
        self.buckets[self.bucket(hash)] == NONE
    }

    /// The one that must leave before a flow can be inserted into a bucket in which nothing is, where there is one.
    #[inline(always)]
    pub(super) fn oldest_if_full(&self) -> Option<usize> {
        if self.free == NONE { self.oldest() } else { None }
    }

    /// The one that must leave before a flow with this hash can be inserted, where there is one.
    #[inline(always)]
    pub(super) fn make_room(&self, hash: u64) -> Option<usize> {
        let (mut at, mut chain, mut last) = (self.buckets[self.bucket(hash)], 0, NONE);
        // Most buckets are empty.
        while at != NONE {
            chain += 1;
            last = at;
            at = self.links[at as usize].next;
        }
        // New ones enter a bucket at its front, so the last one is the oldest.
        if chain >= MAX_CHAIN {
            return Some(last as usize);
        }
        self.oldest_if_full()
    }

    /// Inserts; the caller has made room. Without room nothing is kept, which cannot happen after `make_room`.
    #[inline(always)]
    pub(super) fn insert(&mut self, held: Held<B>) {
        let at = self.free;
        if at == NONE {
            return;
        }
        let bucket = self.bucket(held.hash);
        self.slots[at as usize] = Some(held);
        let links = &mut self.links[at as usize];
        self.free = links.next;
        *links = Links { next: self.buckets[bucket], older: self.newest, newer: NONE };
        self.buckets[bucket] = at;
        match self.newest {
            NONE => self.oldest = at,
            newest => self.links[newest as usize].newer = at,
        }
        self.newest = at;
        self.len += 1;
    }

    #[inline(always)]
    pub(super) fn oldest(&self) -> Option<usize> {
        (self.oldest != NONE).then_some(self.oldest as usize)
    }

    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> &Held<B> {
        self.slots[at].as_ref().expect("places come from find, make_room or oldest, which name occupied slots")
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, at: usize) -> &mut Held<B> {
        self.slots[at].as_mut().expect("places come from find, make_room or oldest, which name occupied slots")
    }

    /// Takes out what is held at a place.
    #[inline(always)]
    pub(super) fn remove(&mut self, at: usize) -> Held<B> {
        self.unlink(at, self.get(at).hash);
        self.slots[at].take().expect("it was there a moment ago")
    }

    /// Has `each` take out all, oldest first. It is given the places, so that it need not move what it does not use.
    #[inline(always)]
    pub(super) fn remove_all(&mut self, mut each: impl FnMut(&mut Option<Held<B>>)) {
        let mut at = self.oldest;
        while at != NONE {
            let links = &mut self.links[at as usize];
            let following = links.newer;
            (links.next, self.free) = (self.free, at);
            let slot = &mut self.slots[at as usize];
            if let Some(held) = slot {
                // Whatever else is in the bucket leaves as well.
                let bucket = held.hash as usize & (self.buckets.len() - 1);
                self.buckets[bucket] = NONE;
                each(slot);
            }
            at = following;
        }
        (self.oldest, self.newest, self.len) = (NONE, NONE, 0);
    }

    #[inline]
    fn unlink(&mut self, at: usize, hash: u64) {
        let links = &mut self.links[at];
        let Links { next, older, newer } = *links;
        links.next = self.free;
        self.free = at as u32;
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        let bucket = self.bucket(hash);
        let mut place = self.buckets[bucket];
        if place == at as u32 {
            self.buckets[bucket] = next;
        } else {
            while place != NONE {
                let following = self.links[place as usize].next;
                if following == at as u32 {
                    self.links[place as usize].next = next;
                    break;
                }
                place = following;
            }
        }
        self.len -= 1;
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}
