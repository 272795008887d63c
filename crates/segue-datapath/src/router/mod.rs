//! The pipeline of a router between two packet ports: `segue gateway --route`.
//!
//! Frames to a port's own link address are joined, translated where they are for the outside address, routed in batches
//! ([`forward`](crate::forward)), translated where they leave by the outside port, and cut in front of the port. A train
//! is one packet all the way. What is for the host itself is left to the host's stack, which has its own copy of every frame.
//!
//! Routes, addresses and neighbours come from the kernel, through a [`Feed`]. A neighbour that it does not know is asked for
//! here, by ARP or a neighbour solicitation, while a bounded number of packets wait; one that is used is asked again from time
//! to time.

mod fields;
mod fragment_queue;
mod messages;
mod neighbour_cache;
mod neighbours;
mod output;
mod resolver;
mod stats;
mod tables;
mod translate;

use std::io;
use std::net::Ipv4Addr;

use segue::gro;
use segue::gso::Frames;
use segue::hash::Key;
use segue::packet::Packet;
use segue::time::Nanos;
use segue_port::{Page, PagePool, Polled};

use crate::board::Sink;
use crate::forward::{DropReason, Forwarder, Verdict};
use crate::group::Reads;
use crate::icmp::Limiter;
use crate::knobs::{Dial, Knob, Knobs};
use crate::napi::PollPolicy;
use crate::nat::Nat;
use crate::pipeline::{Interest, Pipeline, Round};
use crate::port_pair::{self, Crossing, PortConfig, PortPair};
use crate::route::{Neighbours, Routes};
use fragment_queue::FragmentQueue;
use neighbour_cache::MAX_LINKS;
use resolver::Resolver;
use stats::Stats;
pub use tables::{Feed, FeedSender, InterfaceAddrs, Mappings, Message, Neighbour, NeighbourEvent, Tables, feed};

/// The port behind which the outside of a NAT is.
pub const OUTSIDE: usize = 1;
/// The port of entry of what is made here.
const HERE: u16 = 2;
/// How often time is looked at, nanoseconds.
const TICK: u64 = 250_000_000;
/// ICMP errors in a second, and at once.
const ERRORS: (u32, u32) = (1000, 100);

/// What a router is made of.
pub struct Parts {
    /// Both ports; the second one is the outside of a NAT.
    pub ports: [PortConfig; 2],
    /// Frames taken from one port in one round: the weight that both begin with.
    pub budget: usize,
    /// Memory to receive into.
    pub pages: PagePool,
    /// Where the kernel's tables come from. Nothing is forwarded before they have come.
    pub feed: Feed,
    /// For IPv4, translation to an address that the host itself has not.
    pub nat: Option<(Nat, Ipv4Addr)>,
    /// Random numbers: for hashes and for the identification of fragments.
    pub key: Key,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parts")
    }
}

type Boxed = Box<Packet<Page>>;

/// A router; see the module.
pub struct Router {
    pair: PortPair,
    feed: Feed,
    forwarder: Forwarder,
    /// Whether packets are looked up by groups.
    by_groups: bool,
    addrs: [InterfaceAddrs; 2],
    resolver: Resolver,
    nat: Option<(Nat, Ipv4Addr)>,
    fragments: FragmentQueue,
    limiter: Limiter,
    next_tick: Nanos,
    /// Times that hosts outside are still to be told where the outside address is, and when next.
    announcements: u8,
    next_announcement: Nanos,
    batch: Vec<Boxed>,
    verdicts: Vec<Verdict>,
    /// What was made here and is to be routed.
    made: Vec<Boxed>,
    scratch: Frames,
    stats: [Stats; 2],
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.pair.ends.each_ref().map(|end| &end.name);
        f.debug_struct("Router").field("ends", &names).finish_non_exhaustive()
    }
}

/// The knobs that a router between ports of these names has, before it is made; `budget` as in [`Parts`].
pub fn knobs(names: [&str; 2], gro: [Option<gro::Config>; 2], budget: usize) -> Knobs {
    port_pair::knobs(names, gro, budget, |dial| tune_groups(dial, &mut true))
}

fn tune_groups(dial: &mut Dial<'_>, by_groups: &mut bool) {
    let help = "packets of one poll with the same destination are looked up once; 0 looks up each";
    dial.switch(|| Knob::switch("net.route.groups", help), by_groups);
}

impl Router {
    /// A router between two ports.
    pub fn new(parts: Parts) -> Router {
        let Key([seed, _]) = parts.key;
        let mut pair = PortPair::new(parts.ports, parts.budget, parts.pages, Crossing::Both);
        pair.ends.iter_mut().for_each(|end| end.number_fragments(parts.key));
        Router {
            pair,
            feed: parts.feed,
            forwarder: Forwarder::new(Routes::new(0), Neighbours::new(MAX_LINKS), Reads::default(), seed),
            by_groups: true,
            addrs: Default::default(),
            resolver: Resolver::default(),
            nat: parts.nat,
            fragments: FragmentQueue::default(),
            limiter: Limiter::new(ERRORS.0, ERRORS.1, Nanos(0)),
            next_tick: Nanos(0),
            announcements: 0,
            next_announcement: Nanos(0),
            batch: Vec::new(),
            verdicts: Vec::new(),
            made: Vec::new(),
            scratch: Frames::default(),
            stats: Default::default(),
        }
    }

    /// From one end to wherever packets go, at most `left` packets, which becomes what is left of it.
    fn receive(&mut self, from: usize, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        self.transmit()?;
        if self.pair.is_blocked() {
            return Ok(Polled::Idle);
        }
        let polled = self.pair.ends[from].poll(&mut self.pair.rx, left)?;
        self.enter_joined(from);
        while let Some(packet) = self.pair.rx.packets.pop_front() {
            let Some(packet) = self.accept(from, packet, now) else { continue };
            match self.pair.stages[from].as_mut().filter(|join| join.on) {
                Some(join) => {
                    join.seen.add(&packet);
                    join.gro.push(packet, now, &mut self.pair.rx.pool);
                }
                None => self.enter(from, packet),
            }
        }
        if let Some(join) = self.pair.stages[from].as_mut().filter(|join| join.on) {
            join.settle(polled, now);
            self.enter_joined(from);
        }
        let batch = std::mem::take(&mut self.batch);
        self.batch = self.route(from as u16, batch, now);
        self.transmit()?;
        Ok(polled)
    }

    /// What joining has let go.
    fn enter_joined(&mut self, from: usize) {
        while let Some(packet) = self.pair.stages[from].as_mut().and_then(|join| join.gro.pop()) {
            self.enter(from, packet);
        }
    }

    /// Puts a packet into the batch, or what it is cut into.
    fn enter(&mut self, from: usize, packet: Boxed) {
        // Where a packet goes is not known here; from one of two ports it goes to the other.
        let PortPair { ingress, split_drops, rx, .. } = &mut self.pair;
        let (to, batch) = (1 - from, &mut self.batch);
        ingress[to].each(packet, rx, &mut split_drops[to], |packet, _, _| batch.push(packet));
    }

    fn transmit(&mut self) -> io::Result<()> {
        let PortPair { ends, split_drops, rx, .. } = &mut self.pair;
        ends.iter_mut().zip(split_drops).try_for_each(|(end, drops)| end.transmit(rx, drops))
    }

    /// What time brings.
    fn tick(&mut self, now: Nanos) -> io::Result<()> {
        if now < self.next_tick {
            return Ok(());
        }
        self.next_tick = Nanos(now.0 + TICK);
        if let Some((nat, _)) = &mut self.nat {
            nat.expire(now);
        }
        self.drop_expired_fragments(now);
        let due = self.resolver.due(now);
        for hop in due.gone {
            self.forwarder.neighbours.remove(hop);
        }
        due.solicit.iter().for_each(|(hop, at)| self.solicit(hop, *at));
        for (from, packet) in due.failed {
            self.refuse(from, packet, DropReason::NoNeighbour, 0, now);
        }
        self.route_made(now);
        self.announce(now);
        self.transmit()
    }
}

impl Pipeline for Router {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        self.read_feed(now);
        self.tick(now)?;
        let (mut round_robin, budget) = self.pair.begin_round();
        let more = round_robin.round(budget, |from, left| self.receive(from, now, left))?;
        self.pair.end_round(round_robin);
        Ok(if more && !self.pair.is_blocked() { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let blocked = self.pair.is_blocked();
        self.pair.ends.iter().for_each(|end| end.interests(blocked, wait));
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

    fn deadline(&self) -> Option<Nanos> {
        let joins = self.pair.stages.iter().flatten().filter_map(|join| join.gro.deadline());
        // What is held for a blocked port has to wait for that port anyway.
        let joins = joins.min().filter(|_| !self.pair.is_blocked());
        let has_mappings = self.nat.as_ref().is_some_and(|(nat, _)| !nat.is_empty());
        let is_timed = !self.resolver.is_idle() || !self.fragments.is_empty() || has_mappings || self.announcements > 0;
        joins.into_iter().chain(is_timed.then_some(self.next_tick)).min()
    }

    fn close(&mut self) -> bool {
        self.pair.close();
        true
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        self.pair.tune(dial);
        tune_groups(dial, &mut self.by_groups);
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        (0..2).for_each(|at| self.collect_port(at, sink));
        self.collect_tables(sink);
    }
}
