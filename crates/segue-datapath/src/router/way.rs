//! The way of packets through a router, from the batch that came in to the ports.

use std::net::IpAddr;

use segue::packet::{Frag, Start, Tunnels};
use segue::time::Nanos;

use super::look::{is_v4, page_of};
use super::{Boxed, HERE, OUTSIDE, Router};
use crate::forward::{Verdict, Why};
use crate::icmp;

impl Router {
    /// Routes what came in by `from`, then what was made here because of it. The memory of the batch comes back.
    pub(super) fn route(&mut self, from: u16, batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
        if batch.is_empty() {
            return batch;
        }
        let batch = self.translate_in(from, batch, now);
        let empty = self.forward(from, batch, now);
        let made = std::mem::take(&mut self.made);
        if !made.is_empty() {
            self.made = self.forward(HERE, made, now);
        }
        empty
    }

    /// Decides on packets and sends them, or does with them what else is to be done. The memory of the batch comes back.
    pub(super) fn forward(&mut self, from: u16, mut batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
        let counted = usize::from(from).min(OUTSIDE);
        batch.iter().for_each(|packet| self.stats[counted].route.add(packet));
        let mut verdicts = std::mem::take(&mut self.verdicts);
        verdicts.clear();
        if self.by_groups {
            self.forwarder.batch(from, &mut batch, &mut verdicts);
        } else {
            self.forwarder.one_by_one(from, &mut batch, &mut verdicts);
        }
        for (packet, verdict) in batch.drain(..).zip(&verdicts) {
            match *verdict {
                Verdict::Send { port, mtu } => self.leave(from, usize::from(port), packet, mtu, now),
                Verdict::Local => {
                    self.stats[counted].local += 1;
                    self.sides.rx.pool.put(packet);
                }
                Verdict::Drop { why: Why::NoNeighbour, .. } => self.wait(from, packet, now),
                Verdict::Drop { why, mtu } => self.refuse(from, packet, why, mtu, now),
            }
        }
        self.verdicts = verdicts;
        batch
    }

    /// Puts a packet that is final into the batch of its port.
    pub(super) fn push(&mut self, port: usize, packet: Boxed, mtu: u32) {
        match self.sides.ends.get_mut(port) {
            Some(end) => {
                end.push_within(packet, mtu as usize, &mut self.sides.rx, &mut self.sides.split_drops[port]);
            }
            None => self.sides.rx.pool.put(packet),
        }
    }

    /// Drops a packet, and tells its sender where that is to be.
    pub(super) fn refuse(&mut self, from: u16, packet: Boxed, why: Why, mtu: u32, now: Nanos) {
        let stats = &mut self.stats[usize::from(from).min(OUTSIDE)];
        stats.drops.add(why);
        if let Some(facts) = self.facts.get(usize::from(from)) {
            let own = if is_v4(&packet) {
                facts.v4.first().map(|(own, _)| IpAddr::V4(*own))
            } else {
                let global = facts.v6.iter().find(|(own, _)| !own.is_unicast_link_local());
                global.map(|(own, _)| IpAddr::V6(*own))
            };
            let reply = own.and_then(|own| icmp::error(&packet, why, mtu, own, &mut self.scratch));
            if reply.is_some() && !self.limiter.take(now) {
                stats.errors_limited += 1;
            } else if let Some(page) = reply.and_then(|bytes| page_of(&mut self.sides.rx.pages, &bytes)) {
                stats.errors += 1;
                let mut made = self.sides.rx.pool.take();
                made.load(Frag::all(page), Start::Ip, &Tunnels::NONE);
                self.made.push(made);
            }
        }
        self.sides.rx.pool.put(packet);
    }
}
