//! The table of held flows: bounded, with constant-time find, insert, remove and oldest.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::form::FormId;
use super::ip_id::Ids;
use super::lro::renew;
use super::pending_first::PendingFirst;
use super::rules::{self, Flush};
use super::tunnel_form::TunnelFormId;
use crate::packet::Packet;
use crate::time::Nanos;
use crate::wire::tcp;

/// Largest number of flows in a bucket; when it is full, the oldest of them is evicted.
const MAX_CHAIN: usize = 8;
const NONE: u32 = u32::MAX;
/// TCP flags that make a segment the last of its train.
const CLOSING: u8 = tcp::FIN | tcp::PSH;

/// The content of a flow in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldKind {
    /// A train under construction.
    Data,
    /// The newest of several pure acknowledgments.
    Acks,
}

/// Properties of a held packet that must match before headers are compared: its form, what is held, and whether its
/// transport checksum is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatchKey {
    form: FormId,
    /// Number of headers in front of IP.
    link: u8,
    pub(super) carries: HeldKind,
    is_owed: bool,
}

impl MatchKey {
    /// Returns the identifier of the packets' form.
    #[inline(always)]
    pub(super) fn form(self) -> FormId {
        self.form
    }

    /// Returns whether the key is that of a train of packets with `link` headers in front of IP and the same checksum
    /// state.
    #[inline(always)]
    pub(super) fn train_of(self, link: usize, is_owed: bool) -> bool {
        (self.link, self.carries, self.is_owed) == (link as u8, HeldKind::Data, is_owed)
    }

    /// Creates the key of a train of packets of a known form.
    #[inline(always)]
    pub(super) fn train(form: FormId, is_owed: bool) -> MatchKey {
        MatchKey { form, link: form.link() as u8, carries: HeldKind::Data, is_owed }
    }

    /// Creates the key of packets that may have no known form.
    pub(super) fn other(form: Option<FormId>, carries: HeldKind, is_owed: bool) -> MatchKey {
        let form = form.unwrap_or(FormId::NONE);
        MatchKey { form, link: form.link() as u8, carries, is_owed }
    }
}

/// The length of the next full segment's frame in bytes, together with its number of headers in front of IP. A frame
/// that has both is compared with the train at once, without other checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpectedNext(usize);

impl ExpectedNext {
    /// A value that no frame has.
    pub(super) const NOTHING: ExpectedNext = ExpectedNext(usize::MAX);

    #[inline(always)]
    pub(super) fn new(link: usize, total: usize) -> ExpectedNext {
        ExpectedNext(total << 2 | link)
    }
}

/// A train under construction, or the newest of several pure acknowledgments.
#[derive(Debug)]
pub(super) struct Held<B> {
    pub(super) packet: Box<Packet<B>>,
    pub(super) since: Nanos,
    /// Number of payload bytes of the first segment; in profile `lro` those of the largest TCP segment.
    pub(super) size: usize,
    /// Number of payload bytes that may be added to the first segment; where sizes may differ (profile `lro`), to all
    /// segments.
    pub(super) room: usize,
    /// Number of segments of size `size` that may still be added.
    pub(super) left: u32,
    /// Number of packets merged so far.
    pub(super) segs: u32,
    /// Largest number of packets of the train.
    pub(super) most: u32,
    pub(super) next_seq: u32,
    /// Timestamp of the newest TCP segment, where profile `lro` lets it advance.
    pub(super) stamp: u32,
    pub(super) ids: Ids,
    pub(super) key: MatchKey,
    /// The form of a packet inside a tunnel, or [`TunnelFormId::NONE`].
    pub(super) tunnel_form: TunnelFormId,
    /// The frame that may follow without other checks, or [`ExpectedNext::NOTHING`].
    pub(super) expected: ExpectedNext,
    /// Whether the first packet's checksums were verified; later packets are verified before they join.
    pub(super) verified: bool,
}

/// The content of a slot of the table.
#[derive(Debug)]
pub(super) enum Slot<B> {
    /// The slot is free, or its content was removed.
    Free,
    /// A first segment, still a frame.
    First(PendingFirst<B>),
    /// A train or an acknowledgment, in a box.
    Held(Held<B>),
}

impl<B> Slot<B> {
    /// Takes the content out and leaves [`Slot::Free`].
    #[inline(always)]
    pub(super) fn take(&mut self) -> Slot<B> {
        core::mem::replace(self, Slot::Free)
    }
}

/// Result of a lookup by hash: the newest flow with that hash.
#[derive(Clone, Copy)]
pub(super) enum Lookup {
    /// The slot of that flow.
    Slot(usize),
    /// No flow has this hash.
    None,
    /// No flow has this hash, and the bucket is empty.
    Empty,
}

/// A frame that begins a train, of a flow whose hash no other one has.
#[derive(Clone, Copy)]
pub(super) struct FirstSegment {
    pub(super) hash: u64,
    /// Whether the bucket of the hash is empty.
    pub(super) is_alone: bool,
    pub(super) form_id: FormId,
    pub(super) seq: u32,
}

/// The relation of a frame to the trains that are held, as far as a few fields tell.
#[derive(Clone, Copy)]
pub(super) enum FrameMatch {
    /// The frame is the expected next segment of the train in this slot; its payload follows this many bytes of
    /// headers and is to be added there.
    Continues(usize, u16),
    /// The frame is TCP over IPv4 without options, bare or on untagged Ethernet, and begins a train: no flow with its
    /// hash is held.
    Starts(FirstSegment),
    /// The frame is such a one too, and neither simply continues nor begins a train. The hash of its flow, and the slot
    /// of the newest flow that has it.
    Plain(u64, Lookup),
    /// The frame is none of these, or was not examined yet.
    Unknown,
}

/// The result of a search for a flow.
pub(super) enum Found {
    /// A first segment with this hash, possibly of another flow.
    First(usize),
    Held(usize),
}

impl<B: AsRef<[u8]>> Held<B> {
    /// Returns whether the entry is a train of at least two packets.
    #[inline(always)]
    pub(super) fn is_train(&self) -> bool {
        self.segs > 1 && self.key.carries == HeldKind::Data
    }

    /// Returns how many bytes of payload may still be added. Segments before the last one have the size of the first,
    /// unless their sizes may differ.
    pub(super) fn spare(&self, is_lro: bool) -> usize {
        let used = if is_lro { 0 } else { (self.segs as usize - 1) * self.size };
        self.room.saturating_sub(used)
    }

    /// Accounts for a segment that joins; the caller moves its payload of `len` bytes. `at` and `tcp` are the offset
    /// and the bytes of its TCP header, if it has one. Returns the reason if the train is to be closed.
    #[inline(always)]
    pub(super) fn add(&mut self, ids: Ids, at: Option<usize>, tcp: &[u8], len: usize, is_lro: bool) -> Option<Flush> {
        self.ids = ids;
        self.segs += 1;
        self.left = self.left.saturating_sub(1);
        self.next_seq = self.next_seq.wrapping_add(len as u32);
        let flags = tcp.get(tcp::FLAGS).copied().unwrap_or(0);
        // Each of these cases is rare.
        if len != self.size || self.left == 0 || flags & CLOSING != 0 || is_lro {
            return self.close(at, tcp, len, is_lro);
        }
        None
    }

    /// Handles the cases of [`Held::add`] in which a train may be closed or its header is renewed.
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
        // Without room for another full segment a shorter one may still fit.
        let is_full = self.left == 0 && (self.segs >= self.most || self.spare(is_lro) == 0);
        why.or(if is_short {
            Some(Flush::Short)
        } else if is_full {
            Some(Flush::Full)
        } else {
            None
        })
    }
}

/// Returns how many more segments of `size` bytes fit, limited to `most` segments and `room` bytes.
#[inline(always)]
pub(super) fn left(most: u32, room: usize, size: usize) -> u32 {
    // A train has far less than 4 GiB.
    (room as u32).checked_div(size as u32).unwrap_or(0).min(most)
}

/// The links of a slot. They are kept apart from its content: writing parts of a structure that is then read as a whole
/// stalls the processor.
#[derive(Clone, Copy, Debug)]
struct Links {
    hash: u64,
    /// Index of the next slot of the bucket or of the free list.
    next: u32,
    /// Neighbours in the list by age.
    older: u32,
    newer: u32,
}

/// The newest of the flows whose hashes share a bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    hash: u64,
    /// The round in which the bucket's other fields were written; in later rounds the bucket is empty.
    round: u32,
    /// Slot of the flow, or `NONE`.
    at: u32,
}

/// The table of held flows.
///
/// A flush costs nothing for each flow: it ends a round, buckets of earlier rounds count as empty, and their slots
/// stay in use until they are freed one by one, oldest first.
#[derive(Debug)]
pub(super) struct Table<B> {
    slots: Vec<Slot<B>>,
    links: Vec<Links>,
    buckets: Vec<Bucket>,
    round: u32,
    free: u32,
    oldest: u32,
    newest: u32,
    len: usize,
}

impl Bucket {
    const VOID: Bucket = Bucket { hash: 0, round: 0, at: NONE };
}

impl<B> Table<B> {
    pub(super) fn new(capacity: usize) -> Table<B> {
        let next = |i: usize| if i + 1 < capacity { i as u32 + 1 } else { NONE };
        let links = |i: usize| Links { hash: 0, next: next(i), older: NONE, newer: NONE };
        Table {
            slots: (0..capacity).map(|_| Slot::Free).collect(),
            links: (0..capacity).map(links).collect(),
            buckets: alloc::vec![Bucket::VOID; (capacity * 2).next_power_of_two()],
            round: 1,
            free: 0,
            oldest: NONE,
            newest: NONE,
            len: 0,
        }
    }

    /// Returns the number of flows held in this round.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no slot is free.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.free == NONE
    }

    /// Returns the flow with this hash for which `is_it` is true. A first segment is found by the hash alone.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&Held<B>) -> bool) -> Option<Found> {
        let mut at = self.first_of(hash);
        while at != NONE {
            let links = &self.links[at as usize];
            if links.hash == hash {
                match &self.slots[at as usize] {
                    Slot::Held(held) if is_it(held) => return Some(Found::Held(at as usize)),
                    Slot::First(_) => return Some(Found::First(at as usize)),
                    _ => {}
                }
            }
            at = links.next;
        }
        None
    }

    /// Returns the slot of the newest flow with this hash.
    #[inline(always)]
    pub(super) fn lookup(&self, hash: u64) -> Lookup {
        let bucket = self.buckets[self.bucket(hash)];
        if bucket.round != self.round || bucket.at == NONE {
            return Lookup::Empty;
        }
        if bucket.hash == hash {
            return Lookup::Slot(bucket.at as usize);
        }
        self.lookup_in_chain(bucket.at, hash)
    }

    #[inline(never)]
    fn lookup_in_chain(&self, mut at: u32, hash: u64) -> Lookup {
        while let Some(links) = self.links.get(at as usize) {
            if links.hash == hash {
                return Lookup::Slot(at as usize);
            }
            at = links.next;
        }
        Lookup::None
    }

    /// Returns the content of a slot.
    #[inline(always)]
    pub(super) fn slot_mut(&mut self, at: usize) -> Option<&mut Slot<B>> {
        self.slots.get_mut(at)
    }

    /// Returns the flow to evict before one with the given hash can be inserted, if its bucket is full.
    #[inline(always)]
    pub(super) fn make_room(&self, hash: u64) -> Option<usize> {
        let (mut at, mut chain, mut last) = (self.first_of(hash), 0, NONE);
        // Most buckets are empty.
        while at != NONE {
            chain += 1;
            last = at;
            at = self.links[at as usize].next;
        }
        // New ones enter a bucket at its front, so the last one is the oldest.
        (chain >= MAX_CHAIN).then_some(last as usize)
    }

    /// Inserts a flow; the caller has made room. Without room it would be dropped, which cannot happen after
    /// `make_room`.
    #[inline(always)]
    pub(super) fn insert(&mut self, hash: u64, what: Slot<B>) {
        self.insert_before(self.first_of(hash), hash, what);
    }

    /// Inserts a flow whose bucket is known to be empty.
    #[inline(always)]
    pub(super) fn insert_alone(&mut self, hash: u64, what: Slot<B>) {
        self.insert_before(NONE, hash, what);
    }

    #[inline(always)]
    fn insert_before(&mut self, next: u32, hash: u64, what: Slot<B>) {
        let (at, bucket) = (self.free, self.bucket(hash));
        let Some((links, slot)) = self.links.get_mut(at as usize).zip(self.slots.get_mut(at as usize)) else { return };
        // The content that was there has been taken already.
        core::mem::forget(core::mem::replace(slot, what));
        self.free = links.next;
        *links = Links { hash, next, older: self.newest, newer: NONE };
        self.buckets[bucket] = Bucket { hash, round: self.round, at };
        match self.links.get_mut(self.newest as usize) {
            None => self.oldest = at,
            Some(newest) => newest.newer = at,
        }
        self.newest = at;
        self.len += 1;
    }

    #[inline(always)]
    pub(super) fn oldest(&self) -> Option<usize> {
        (self.oldest != NONE).then_some(self.oldest as usize)
    }

    /// Returns the arrival time of the content of a slot.
    pub(super) fn since(&self, at: usize) -> Nanos {
        match &self.slots[at] {
            Slot::Free => Nanos(0),
            Slot::First(first) => first.since,
            Slot::Held(held) => held.since,
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> &Held<B> {
        match &self.slots[at] {
            Slot::Held(held) => held,
            _ => unreachable!("slots come from find, which says that something is held there"),
        }
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, at: usize) -> &mut Held<B> {
        match &mut self.slots[at] {
            Slot::Held(held) => held,
            _ => unreachable!("slots come from find, which says that something is held there"),
        }
    }

    /// Removes and returns the content of a slot that was inserted in this round.
    #[inline(always)]
    pub(super) fn remove(&mut self, at: usize) -> Slot<B> {
        self.unlink(at);
        self.slots[at].take()
    }

    /// Ends a round, which empties all buckets. Returns the first of its slots, which are to be freed one by one with
    /// [`Table::release`].
    #[inline]
    pub(super) fn flush(&mut self) -> Option<usize> {
        let oldest = self.oldest();
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            // No bucket may seem to be of a future round.
            self.buckets.fill(Bucket::VOID);
            self.round = 1;
        }
        (self.oldest, self.newest, self.len) = (NONE, NONE, 0);
        oldest
    }

    /// Frees a slot of an earlier round. Returns its content, which must be taken at once, and the next such slot.
    #[inline(always)]
    pub(super) fn release(&mut self, at: usize) -> (&mut Slot<B>, Option<usize>) {
        let links = &mut self.links[at];
        let newer = links.newer;
        links.next = self.free;
        self.free = at as u32;
        (&mut self.slots[at], (newer != NONE).then_some(newer as usize))
    }

    #[inline]
    fn unlink(&mut self, at: usize) {
        let links = &mut self.links[at];
        let Links { hash, next, older, newer, .. } = *links;
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
        let mut idx = self.buckets[bucket].at;
        if idx == at as u32 {
            let hash = self.links.get(next as usize).map_or(0, |links| links.hash);
            self.buckets[bucket] = Bucket { hash, round: self.round, at: next };
        } else {
            while idx != NONE {
                let following = self.links[idx as usize].next;
                if following == at as u32 {
                    self.links[idx as usize].next = next;
                    break;
                }
                idx = following;
            }
        }
        self.len -= 1;
    }

    /// Returns the first slot in the bucket of this hash.
    #[inline(always)]
    fn first_of(&self, hash: u64) -> u32 {
        let bucket = self.buckets[self.bucket(hash)];
        if bucket.round == self.round { bucket.at } else { NONE }
    }

    #[inline(always)]
    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}
