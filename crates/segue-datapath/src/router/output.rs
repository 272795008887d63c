//! Routing and output: from a received batch to the queues of the ports.

use std::net::IpAddr;

use segue::packet::{Frag, Start, Tunnels, Unit};
use segue::time::Nanos;

use super::fields::{is_forwardable, page_of, source};
use super::state::{Boxed, HERE, OUTSIDE, Router};
use crate::forward::{DropReason, Verdict};
use crate::icmp;
use crate::ingress::packets;
use crate::port_pair::PortPair;

impl Router {
    /// Routes a batch that was received on `from`, and then the packets that the router created in response to it.
    /// Returns the empty batch, for its memory.
    pub(super) fn route(&mut self, from: u16, batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
        if batch.is_empty() {
            // What it has made otherwise, such as about a packet that waited.
            self.route_made(now);
            return batch;
        }
        let batch = self.without_forged(from, batch);
        let batch = self.translate_in(from, batch, now);
        let empty = self.forward(from, batch, now);
        self.route_made(now);
        empty
    }

    /// Routes packets that the router itself created. An ICMP error about a hairpinned packet may be addressed to the
    /// outside address and is translated first.
    pub(super) fn route_made(&mut self, now: Nanos) {
        if !self.made.is_empty() {
            let made = std::mem::take(&mut self.made);
            let made = self.translate_in(HERE, made, now);
            self.made = self.forward(HERE, made, now);
        }
    }

    /// Drops packets with a forged source: an address of this router (RFC 1812, section 5.3.8), on the inside one that
    /// is not routed there, or on the outside one that is routed elsewhere; with NAT also one that no router forwards,
    /// for which there must be no mapping. Packets for the host itself are left to its own check.
    fn without_forged(&mut self, from: u16, mut batch: Vec<Boxed>) -> Vec<Boxed> {
        let Router { addrs, nat, stats, pair, source_check, forwarder, .. } = self;
        let is_own = |source: IpAddr| match source {
            IpAddr::V4(source) => {
                nat.as_ref().is_some_and(|(_, own)| *own == source)
                    || addrs.iter().any(|port| port.v4.iter().any(|(own, _)| *own == source))
            }
            IpAddr::V6(source) => addrs.iter().any(|port| port.v6.iter().any(|(own, _)| *own == source)),
        };
        let mut fault = |packet: &Boxed| {
            let source = source(packet)?;
            if is_own(source) {
                return Some(DropReason::Own);
            }
            // Without NAT, the forwarder finds what no router forwards.
            let reason = match is_forwardable(source) {
                true if !source_check.allows(&forwarder.routes, from, source) => DropReason::ReversePath,
                false if nat.is_some() => DropReason::Source,
                _ => return None,
            };
            (!forwarder.is_local(from, packet)).then_some(reason)
        };
        if batch.iter().all(|packet| fault(packet).is_none()) {
            return batch;
        }
        let mut kept = Vec::with_capacity(batch.len());
        for packet in batch.drain(..) {
            match fault(&packet) {
                Some(reason) => {
                    stats[usize::from(from).min(OUTSIDE)].drops.add_many(reason, packets(&packet));
                    pair.rx.pool.put(packet);
                }
                None => kept.push(packet),
            }
        }
        kept
    }

    /// Counts and forwards the packets of a batch. Returns the empty batch, for its memory.
    fn forward(&mut self, from: u16, batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
        let counted = usize::from(from).min(OUTSIDE);
        batch.iter().for_each(|packet| self.stats[counted].route.add(packet));
        self.decide(from, batch, now)
    }

    /// Decides on the packets of a batch without counting them: each is sent, dropped or kept. Returns the empty batch.
    pub(super) fn decide(&mut self, from: u16, mut batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
        let counted = usize::from(from).min(OUTSIDE);
        let mut verdicts = std::mem::take(&mut self.verdicts);
        verdicts.clear();
        if self.by_groups {
            self.forwarder.batch(from, &mut batch, &mut verdicts);
        } else {
            self.forwarder.one_by_one(from, &mut batch, &mut verdicts);
        }
        self.probe_used(now);
        for (packet, verdict) in batch.drain(..).zip(&verdicts) {
            match *verdict {
                Verdict::Send { port, mtu } => self.leave(from, usize::from(port), packet, mtu, now),
                Verdict::Local => {
                    self.stats[counted].local += packets(&packet);
                    self.pair.rx.pool.put(packet);
                }
                // The packets of a train are treated as they would be alone: the last one may be short enough.
                Verdict::Drop { reason: DropReason::TooBig, .. }
                    if matches!(packet.offload.unit, Unit::Train { .. }) =>
                {
                    self.decide_per_segment(from, packet, now);
                }
                Verdict::Drop { reason: DropReason::NoNeighbour, .. } => self.wait(from, packet, now),
                Verdict::Drop { reason, mtu } => self.refuse(from, packet, reason, mtu, now),
            }
        }
        self.verdicts = verdicts;
        batch
    }

    /// Splits a train and decides on each of its packets.
    fn decide_per_segment(&mut self, from: u16, train: Boxed, now: Nanos) {
        let counted = usize::from(from).min(OUTSIDE);
        let PortPair { ingress, split_drops, rx, .. } = &mut self.pair;
        let mut packets = Vec::new();
        ingress[counted].apart(train, rx, &mut split_drops[counted], |packet| packets.push(packet));
        self.decide(from, packets, now);
    }

    /// Queues a packet with its link header on an egress port.
    pub(super) fn push(&mut self, port: usize, packet: Boxed, mtu: u32) {
        match self.pair.ends.get_mut(port) {
            Some(end) if end.blocked => {
                self.stats[port].drops.add_many(DropReason::Blocked, packets(&packet));
                self.pair.rx.pool.put(packet);
            }
            Some(end) => {
                end.push_within(packet, mtu as usize, &mut self.pair.rx, &mut self.pair.split_drops[port]);
            }
            None => self.pair.rx.pool.put(packet),
        }
    }

    /// Drops a packet, and sends an ICMP error to its sender where the reason and the rate limit allow.
    pub(super) fn refuse(&mut self, from: u16, packet: Boxed, reason: DropReason, mtu: u32, now: Nanos) {
        let stats = &mut self.stats[usize::from(from).min(OUTSIDE)];
        stats.drops.add_many(reason, packets(&packet));
        // An uplink may have link-local addresses alone: then another address of the router serves (RFC 4443, section
        // 2.2; RFC 1812, section 4.3.2.4).
        let own = |sender: IpAddr| {
            let near = self.addrs.get(usize::from(from))?.address_towards(sender);
            near.or_else(|| self.addrs.iter().find_map(|port| port.address_towards(sender)))
        };
        if let Some((sender, own)) = source(&packet).and_then(|sender| Some((sender, own(sender)?)))
            && let Some(kind) = icmp::kind_of(&packet, reason)
            // By the kernel's tables a directed broadcast (RFC 1812, section 4.3.2.7) or an anycast address (RFC 4443,
            // section 2.4 (e.6)): packets from addresses of the ports do not get here.
            && !self.forwarder.routes.is_local(sender)
        {
            // No port's senders use up the limit of the other's.
            if !self.limits[usize::from(from).min(OUTSIDE)].take(kind, sender, now) {
                stats.errors_limited += 1;
            } else if let Some(bytes) = icmp::error(&packet, reason, mtu, own, &mut self.scratch) {
                match page_of(&mut self.error_pages, &bytes) {
                    Some(page) => {
                        stats.errors += 1;
                        let mut made = self.pair.rx.pool.take();
                        made.load(Frag::all(page), Start::Ip, &Tunnels::NONE);
                        self.made.push(made);
                    }
                    None => stats.errors_limited += 1,
                }
            }
        }
        self.pair.rx.pool.put(packet);
    }
}
