//! NAT in a router: before the routing decision for packets to the outside address, after it for packets that leave by
//! the outside port.

use std::net::Ipv4Addr;

use segue::time::Nanos;

use super::fields::{AddressPair, ends, keep, page_of_either};
use super::fragment_queue::{NatHook, QueuedFragment};
use super::state::{Boxed, HERE, OUTSIDE, Router};
use crate::ingress::packets;
use crate::nat::{Done, Part, Refusal};

impl Router {
    /// Translates packets to the outside address before they are routed.
    pub(super) fn translate_in(&mut self, from: u16, mut batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
        let Some(own) = self.outside_address() else { return batch };
        let is_meant = |packet: &Boxed| matches!(ends(packet), Some(AddressPair::V4(_, to)) if to == own);
        if !batch.iter().any(is_meant) {
            return batch;
        }
        let mut kept = Vec::with_capacity(batch.len());
        for packet in batch.drain(..) {
            if is_meant(&packet) {
                self.translate(from, NatHook::Prerouting, packet, now, &mut |_, packet| kept.push(packet));
            } else {
                kept.push(packet);
            }
        }
        kept
    }

    /// Sends a packet with its link header, after translation if it leaves by the outside port.
    pub(super) fn leave(&mut self, from: u16, port: usize, packet: Boxed, mtu: u32, now: Nanos) {
        let own = self.outside_address();
        // A packet from the outside address was translated already, before the routing decision.
        let is_translated = port == OUTSIDE
            && usize::from(from) != OUTSIDE
            && own.is_some()
            && matches!(ends(&packet), Some(AddressPair::V4(source, _)) if Some(source) != own);
        if is_translated {
            let hook = NatHook::Postrouting { port, mtu };
            self.translate(from, hook, packet, now, &mut |router, packet| router.push(port, packet, mtu));
        } else {
            self.push(port, packet, mtu);
        }
    }

    fn outside_address(&self) -> Option<Ipv4Addr> {
        self.nat.as_ref().map(|(_, own)| *own)
    }

    /// Translates a packet and passes it to `next`, followed by the fragments that waited for it.
    fn translate(
        &mut self,
        from: u16,
        hook: NatHook,
        packet: Boxed,
        now: Nanos,
        next: &mut dyn FnMut(&mut Router, Boxed),
    ) {
        let stats = &mut self.stats[usize::from(from).min(OUTSIDE)];
        match hook {
            NatHook::Prerouting => stats.nat_in.add(&packet),
            NatHook::Postrouting { .. } => stats.nat_out.add(&packet),
        }
        let part = Part::of(&packet);
        self.translate_one(from, hook, part, packet, now, next);
        if let Some(Part { datagram, is_first: true }) = part {
            let is_there = |place: NatHook| (place == NatHook::Prerouting) == (hook == NatHook::Prerouting);
            for QueuedFragment { from, hook, packet, .. } in self.fragments.take(&datagram, is_there) {
                let next = &mut |router: &mut Router, packet| match hook {
                    NatHook::Prerouting => next(router, packet),
                    NatHook::Postrouting { port, mtu } => router.push(port, packet, mtu),
                };
                self.translate_one(from, hook, None, packet, now, next);
            }
        }
    }

    fn translate_one(
        &mut self,
        from: u16,
        hook: NatHook,
        part: Option<Part>,
        mut packet: Boxed,
        now: Nanos,
        next: &mut dyn FnMut(&mut Router, Boxed),
    ) {
        let Router { nat: Some((nat, _)), stats, pair, header_pages, .. } = self else { return };
        let stats = &mut stats[usize::from(from).min(OUTSIDE)];
        let pages = &mut pair.rx.pages;
        let copy = &mut |bytes: &[u8]| page_of_either([&mut *header_pages, &mut *pages], bytes);
        let done = if hook == NatHook::Prerouting && usize::from(from) == OUTSIDE {
            nat.inbound(&mut packet, now, copy)
        } else {
            nat.outbound(&mut packet, now, copy)
        };
        let refused = match done {
            Ok(Done::FirstMissing) => match part {
                Some(Part { datagram, .. }) => {
                    return self.hold_fragment(QueuedFragment { datagram, from, hook, packet }, now);
                }
                None => Refusal::Fragment,
            },
            Ok(_) => return next(self, packet),
            // An ICMP error of this router about a packet without mapping leaves as it is, unless it is for the outside
            // address.
            Err(_) if from == HERE && hook != NatHook::Prerouting => return next(self, packet),
            Err(why) => why,
        };
        stats.refusals.add_many(refused, packets(&packet));
        pair.rx.pool.put(packet);
    }

    /// Keeps a fragment until the first one of its datagram has come. Others make room where the queue, or its memory,
    /// is full.
    fn hold_fragment(&mut self, mut one: QueuedFragment, now: Nanos) {
        while !keep(&mut one.packet, &mut self.fragment_pages) {
            let Some(evicted) = self.fragments.evict(one.datagram.source) else { return self.drop_fragment(one) };
            self.drop_fragment(evicted);
        }
        if let Some(evicted) = self.fragments.hold(one, now) {
            self.drop_fragment(evicted);
        }
    }

    /// Drops fragments whose deadline has passed.
    pub(super) fn drop_expired_fragments(&mut self, now: Nanos) {
        while let Some(one) = self.fragments.expired(now) {
            self.drop_fragment(one);
        }
    }

    /// Drops and counts a fragment that has waited in vain.
    fn drop_fragment(&mut self, QueuedFragment { from, packet, .. }: QueuedFragment) {
        self.stats[usize::from(from).min(OUTSIDE)].refusals.add(Refusal::Fragment);
        self.pair.rx.pool.put(packet);
    }
}
