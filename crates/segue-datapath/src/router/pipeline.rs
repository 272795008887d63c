//! The poll loop of a router: receiving, timers and counters.

use std::collections::VecDeque;
use std::io;

use segue::time::Nanos;
use segue_port::Polled;

use super::fields::is_routed;
use super::state::{Boxed, OUTSIDE, Router, tune_groups, tune_source_check};
use crate::board::{Group, Sink, Stage};
use crate::forward::DropReason;
use crate::knobs::Dial;
use crate::napi::PollPolicy;
use crate::pipeline::{Interest, Pipeline, Round};
use crate::port_pair::PortPair;

/// Interval of the router's timers, nanoseconds.
const TICK: u64 = 250_000_000;
/// Number of messages to neighbours that wait to be sent, from which on they are sent before there are more.
const MOST_MESSAGES: usize = 32;

impl Router {
    /// Receives at most `left` packets from one port and routes them; `left` is reduced by their number. None is read
    /// while the other port, by which most of them leave, is blocked.
    fn receive(&mut self, from: usize, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        let Router { pair: PortPair { ends, split_drops, rx, .. }, late, .. } = self;
        let to = 1 - from;
        if ends[to].blocked {
            ends[to].transmit(rx, &mut split_drops[to])?;
            if !ends[to].blocked {
                late[to] = 0;
            }
        }
        // What the kernel's tables have released may block it too.
        self.transmit()?;
        if self.pair.ends[to].blocked {
            return Ok(Polled::Idle);
        }
        let polled = self.pair.ends[from].poll(&mut self.pair.rx, left)?;
        self.enter_joined(from);
        self.enter_received(from, now);
        if let Some(join) = self.pair.stages[from].as_mut().filter(|join| join.on) {
            join.settle(polled, now);
            self.enter_joined(from);
        }
        let batch = std::mem::take(&mut self.batch);
        self.batch = self.route(from as u16, batch, now);
        self.transmit()?;
        Ok(polled)
    }

    /// Passes the received packets that are to be routed to GRO, or to the batch where GRO is off, in the order of
    /// their arrival. Frames that a few bytes show to be routed go to GRO from where they lie; the others are parsed
    /// here.
    #[inline(never)]
    fn enter_received(&mut self, from: usize, now: Nanos) {
        // As a list, like in `GroStage::push_all`.
        let mut list = Vec::from(std::mem::take(&mut self.pair.rx.packets));
        let mut rest = list.drain(..);
        loop {
            let Router { pair: PortPair { stages, rx, .. }, addrs, .. } = self;
            if let Some(stage) = stages[from].as_mut().filter(|stage| stage.on) {
                let own = &addrs[from].mac;
                stage.push_frames(&mut rest, |frame| is_routed(frame, own), now, &mut rx.pool);
            }
            let Some(received) = rest.next() else { break };
            let packet = received.parse(&mut rx.pool);
            let Some(packet) = self.accept(from, packet, now) else { continue };
            let PortPair { stages, rx, .. } = &mut self.pair;
            match stages[from].as_mut().filter(|stage| stage.on) {
                Some(stage) => stage.push(packet, now, &mut rx.pool),
                None => self.enter(from, packet),
            }
        }
        drop(rest);
        self.pair.rx.packets = VecDeque::from(list);
    }

    /// Appends the packets that GRO has released to the batch.
    fn enter_joined(&mut self, from: usize) {
        loop {
            let PortPair { stages, rx, .. } = &mut self.pair;
            let Some(packet) = stages[from].as_mut().and_then(|stage| stage.gro.pop_from(&mut rx.pool)) else { return };
            self.enter(from, packet);
        }
    }

    /// Appends a packet to the batch, or the packets into which it is split.
    fn enter(&mut self, from: usize, packet: Boxed) {
        // The egress port is not known yet; of two ports it is most likely the other one.
        let PortPair { ingress, split_drops, rx, .. } = &mut self.pair;
        let (to, batch) = (1 - from, &mut self.batch);
        ingress[to].each(packet, rx, &mut split_drops[to], |packet, _, _| batch.push(packet));
    }

    /// Sends what is queued for the ports that are not blocked.
    fn transmit(&mut self) -> io::Result<()> {
        let PortPair { ends, split_drops, rx, .. } = &mut self.pair;
        let mut open = ends.iter_mut().zip(split_drops).filter(|(end, _)| !end.blocked);
        open.try_for_each(|(end, drops)| end.transmit(rx, drops))
    }

    /// Runs the router's timers: NAT and neighbour timeouts, waiting fragments, announcements.
    fn tick(&mut self, now: Nanos) -> io::Result<()> {
        if now < self.next_tick {
            return Ok(());
        }
        self.next_tick = Nanos(now.0 + TICK);
        if let Some((nat, _)) = &mut self.nat {
            nat.expire(now);
        }
        self.drop_expired_fragments(now);
        // While a port is blocked, the other one is not read, and what neighbours of its own are asked does not leave.
        let due = self.resolver.due(now, !self.pair.is_blocked());
        for hop in due.gone {
            self.forwarder.neighbours.remove(hop);
        }
        for (hop, at) in &due.solicit {
            let port = usize::from(hop.port != 0);
            if !self.pair.ends[port].blocked && self.message_pages[port].in_use() >= MOST_MESSAGES {
                self.transmit()?;
            }
            self.solicit(hop, *at);
        }
        for (from, packet) in due.failed {
            self.refuse(from, packet, DropReason::NoNeighbour, 0, now);
        }
        self.route_made(now);
        self.announce(now);
        self.transmit()
    }

    /// Writes the counters of the port `at`.
    fn collect_port(&self, at: usize, sink: &mut Sink<'_>) {
        self.pair.collect(at, sink);
        let (name, stats) = (self.pair.ends[at].name.as_str(), &self.stats[at]);
        stats.route.collect(name, Stage::Route, sink);
        if self.nat.is_some() {
            stats.nat_in.collect(name, Stage::NatIn, sink);
            stats.nat_out.collect(name, Stage::NatOut, sink);
            sink.reasons(name, Group::Drops, &stats.refusals);
        }
        sink.reasons(name, Group::Drops, &stats.drops);
        for (key, value) in [
            ("foreign", stats.foreign),
            ("local", stats.local),
            ("icmp_errors", stats.errors),
            ("icmp_errors_limited", stats.errors_limited),
            ("neighbour_questions", stats.questions),
            ("neighbour_answers", stats.answers),
            ("announcements", stats.announcements),
            ("address_conflicts", stats.conflicts),
            ("neighbours_moved", stats.moved),
            ("neighbours_displaced", stats.displaced),
        ] {
            sink.put(name, Group::Port, key, value);
        }
        if self.nat.is_some() && at == OUTSIDE {
            sink.put(name, Group::Port, "address_local", u64::from(self.is_outside_local));
            sink.put(name, Group::Port, "address_conflict", u64::from(self.conflict_until.is_some()));
        }
    }

    /// Writes the counters that belong to no port.
    fn collect_tables(&self, sink: &mut Sink<'_>) {
        let lookups = self.forwarder.lookups();
        for (key, value) in [
            ("route_batches", lookups.batches),
            ("route_packets", lookups.packets),
            ("route_groups", lookups.groups),
            ("route_lookups", lookups.routes),
            ("neighbour_lookups", lookups.neighbours),
            ("routes", self.forwarder.routes.len() as u64),
            ("neighbours", self.forwarder.neighbours.len() as u64),
        ] {
            sink.put("", Group::Worker, key, value);
        }
        if let Some((nat, _)) = &self.nat {
            sink.put("", Group::Worker, "nat_mappings", nat.len() as u64);
            sink.put("", Group::Worker, "nat_early_drops", nat.early_drops());
        }
    }
}

impl Pipeline for Router {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        self.read_feed(now);
        self.tick(now)?;
        let (mut round_robin, budget) = self.pair.begin_round();
        let before = self.pair.taken();
        let more = round_robin.round(budget, |from, left| self.receive(from, now, left))?;
        self.pair.end_round(round_robin);
        let more = more && (!self.pair.is_blocked() || self.pair.taken() != before);
        Ok(if more { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let [first, second] = &self.pair.ends;
        first.interests(second.blocked, wait);
        second.interests(first.blocked, wait);
        wait(Interest { fd: self.feed.fd(), read: true, write: false });
    }

    fn woken(&mut self, place: usize) {
        self.pair.woken(place);
    }

    fn poll_policy(&self) -> PollPolicy {
        self.pair.poll_policy()
    }

    fn taken(&self) -> u64 {
        self.pair.taken()
    }

    fn sent(&self) -> Option<u64> {
        Some(self.pair.ends.iter().map(|end| end.sent()).sum())
    }

    fn deadline(&self) -> Option<Nanos> {
        let [first, second] = &self.pair.ends;
        // Packets held for a blocked port have to wait for that port anyway.
        let joins = self.pair.stages.iter().zip([second, first]).filter(|(_, to)| !to.blocked);
        let joins = joins.filter_map(|(join, _)| join.as_ref()?.gro.deadline());
        let has_mappings = self.nat.as_ref().is_some_and(|(nat, _)| !nat.is_idle());
        let is_announced = self.announcements > 0 || self.conflict_until.is_some();
        let is_timed = !self.resolver.is_idle() || !self.fragments.is_empty() || has_mappings || is_announced;
        joins.chain(is_timed.then_some(self.next_tick)).min()
    }

    fn close(&mut self) -> bool {
        self.pair.close();
        true
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        self.pair.tune(dial);
        tune_groups(dial, &mut self.by_groups);
        tune_source_check(dial, &mut self.source_check.mode);
        self.source_check.forget();
        if let Some((nat, _)) = &mut self.nat {
            self.nat_limits.tune(dial);
            self.nat_limits.apply(nat);
        }
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        (0..2).for_each(|at| self.collect_port(at, sink));
        self.collect_tables(sink);
    }
}
