//! The slots of the table: finding the slot of a flow, taking one for a new flow, and freeing one of a full table.

use super::engine::Gro;
use super::ip_id::Ids;
use super::pending_first::PendingFirst;
use super::rules::Flush;
use super::table::{ExpectedNext, FirstSegment, Found, Held, HeldKind, MatchKey, Slot, left};
use super::tunnel_form::TunnelFormId;
use crate::packet::{Frag, Pool};
use crate::time::Nanos;

impl<B: AsRef<[u8]>> Gro<B> {
    /// Returns the slot of a flow with this hash for which `is_it` is true. First segments with this hash are unpacked
    /// into boxes on the way.
    #[inline(always)]
    pub(super) fn find(&mut self, hash: u64, pool: &mut Pool<B>, is_it: impl Fn(&Held<B>) -> bool) -> Option<usize> {
        loop {
            match self.table.find(hash, &is_it)? {
                Found::Held(idx) => return Some(idx),
                Found::First(idx) => self.unpack(idx, pool),
            }
        }
    }

    /// Inserts a flow that begins with this frame.
    #[inline(always)]
    pub(super) fn keep_first(&mut self, bytes: Frag<B>, first: FirstSegment, verified: bool, now: Nanos) {
        let FirstSegment { hash, is_alone, form_id, seq } = first;
        self.stats.packets += 1;
        let first = Slot::First(PendingFirst { bytes: Some(bytes), since: now, seq, form: form_id, verified });
        if is_alone {
            self.insert_into_empty_bucket(hash, first);
        } else {
            self.keep(hash, first);
        }
    }

    /// Inserts a flow into the table, evicting another one if needed.
    #[inline(always)]
    pub(super) fn keep(&mut self, hash: u64, what: Slot<B>) {
        if let Some(evicted) = self.table.make_room(hash) {
            self.finish(evicted, Flush::Evicted);
        } else if self.table.is_full() {
            self.evict_for_space();
        }
        self.held_packets += 1;
        self.table.insert(hash, what);
    }

    /// Inserts a flow whose bucket is known to be empty.
    #[inline(always)]
    pub(super) fn insert_into_empty_bucket(&mut self, hash: u64, what: Slot<B>) {
        if self.table.is_full() {
            self.evict_for_space();
        }
        self.held_packets += 1;
        self.table.insert_alone(hash, what);
    }

    /// Evicts a flow from a full table to free a slot.
    #[cold]
    #[inline(never)]
    fn evict_for_space(&mut self) {
        self.spill();
        if let Some(oldest) = self.table.oldest().filter(|_| self.table.is_full()) {
            self.finish(oldest, Flush::Evicted);
        }
    }

    /// Moves the first segment in a slot into a box.
    #[inline(never)]
    pub(super) fn unpack(&mut self, idx: usize, pool: &mut Pool<B>) {
        let Some(slot) = self.table.slot_mut(idx) else { return };
        let Slot::First(first) = slot else { return };
        let Some((packet, has_form)) = first.load(&self.forms, pool) else { return };
        let PendingFirst { since, seq, form: form_id, verified, .. } = *first;
        let (size, total) = (packet.payload.len(), packet.len());
        let (most, limit) = self.rules.tcp;
        let room = limit.saturating_sub(total.saturating_sub(form_id.l3()));
        let (key, expected) = if has_form {
            (MatchKey::train(form_id, false), ExpectedNext::new(form_id.link(), total))
        } else {
            (MatchKey::other(None, HeldKind::Data, false), ExpectedNext::NOTHING)
        };
        *slot = Slot::Held(Held {
            since,
            size,
            room,
            left: left(most - 1, room, size),
            segs: 1,
            most,
            next_seq: seq.wrapping_add(size as u32),
            stamp: 0,
            ids: Ids::default(),
            key,
            tunnel_form: TunnelFormId::NONE,
            expected,
            verified,
            packet,
        });
    }
}
