//! Where a router's packets pass its NAT: in front of the routes what is for the outside address, behind them what leaves by the
//! outside port.

use std::net::Ipv4Addr;

use segue::time::Nanos;

use super::early::{At, Waiting};
use super::look::{destination_v4, is_v4, keep, page_of, source_v4};
use super::{Boxed, HERE, OUTSIDE, Router};
use crate::ingress::packets;
use crate::nat::{Done, Part, Refusal};

impl Router {
    /// What is for the outside address gets the one inside.
    pub(super) fn translate_in(&mut self, from: u16, mut batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
        let Some(own) = self.outside_address() else { return batch };
        let mut kept = Vec::with_capacity(batch.len());
        for packet in batch.drain(..) {
            if destination_v4(&packet) == Some(own) {
                self.translate(from, At::Ingress, packet, now, &mut |_, packet| kept.push(packet));
            } else {
                kept.push(packet);
            }
        }
        kept
    }

    /// Sends a packet that has its link header, from the outside address where that is to be.
    pub(super) fn leave(&mut self, from: u16, port: usize, packet: Boxed, mtu: u32, now: Nanos) {
        let own = self.outside_address();
        // A source that is the outside address was translated already, in front of the routes.
        let is_translated = port == OUTSIDE
            && usize::from(from) != OUTSIDE
            && own.is_some()
            && is_v4(&packet)
            && source_v4(&packet) != own;
        if is_translated {
            let at = At::Exit { port, mtu };
            self.translate(from, at, packet, now, &mut |router, packet| router.push(port, packet, mtu));
        } else {
            self.push(port, packet, mtu);
        }
    }

    fn outside_address(&self) -> Option<Ipv4Addr> {
        self.nat.as_ref().map(|(_, own)| *own)
    }

    /// Translates a packet, hands it to `next`, and then fragments that have waited for it.
    fn translate(&mut self, from: u16, at: At, packet: Boxed, now: Nanos, next: &mut dyn FnMut(&mut Router, Boxed)) {
        let stats = &mut self.stats[usize::from(from).min(OUTSIDE)];
        match at {
            At::Ingress => stats.nat_in.add(&packet),
            At::Exit { .. } => stats.nat_out.add(&packet),
        }
        let part = Part::of(&packet);
        self.translate_one(from, at, part, packet, now, next);
        if let Some(Part { datagram, is_first: true }) = part {
            let is_there = |place: At| (place == At::Ingress) == (at == At::Ingress);
            for Waiting { from, at, packet, .. } in self.early.take(&datagram, is_there) {
                let next = &mut |router: &mut Router, packet| match at {
                    At::Ingress => next(router, packet),
                    At::Exit { port, mtu } => router.push(port, packet, mtu),
                };
                self.translate_one(from, at, None, packet, now, next);
            }
        }
    }

    fn translate_one(
        &mut self,
        from: u16,
        at: At,
        part: Option<Part>,
        mut packet: Boxed,
        now: Nanos,
        next: &mut dyn FnMut(&mut Router, Boxed),
    ) {
        let Router { nat: Some((nat, _)), stats, pair, early, .. } = self else { return };
        let stats = &mut stats[usize::from(from).min(OUTSIDE)];
        let pages = &mut pair.rx.pages;
        let copy = &mut |bytes: &[u8]| page_of(pages, bytes);
        let done = if at == At::Ingress && usize::from(from) == OUTSIDE {
            nat.inbound(&mut packet, now, copy)
        } else {
            nat.outbound(&mut packet, now, copy)
        };
        let refused = match done {
            Ok(Done::Early) => match part {
                Some(Part { datagram, .. }) if early.has_room(&datagram) && keep(&mut packet, &mut pair.rx.pages) => {
                    return early.hold(Waiting { datagram, from, at, packet }, now);
                }
                _ => Refusal::Fragment,
            },
            Ok(_) => return next(self, packet),
            // An error of this router about a packet that had no mapping goes as it is, except to the outside address.
            Err(_) if from == HERE && at != At::Ingress => return next(self, packet),
            Err(why) => why,
        };
        stats.refusals.add_many(refused, packets(&packet));
        pair.rx.pool.put(packet);
    }

    /// Drops fragments that have waited too long.
    pub(super) fn drop_early(&mut self, now: Nanos) {
        while let Some(Waiting { from, packet, .. }) = self.early.expired(now) {
            self.stats[usize::from(from).min(OUTSIDE)].refusals.add(Refusal::Fragment);
            self.pair.rx.pool.put(packet);
        }
    }
}
