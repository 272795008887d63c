//! The pipeline of a router between two packet ports: `segue gateway --route`.
//!
//! Frames to a port's own link address are joined, translated where they are for the outside address, routed in batches
//! ([`forward`](crate::forward)), translated where they leave by the outside port, and cut in front of the port. A train
//! is one packet all the way. What is for the host itself is left to the host's stack, which has its own copy of every frame.
//!
//! Routes, addresses and neighbours come from the kernel, through a [`Feed`]. A neighbour that it does not know is asked for
//! here, by ARP or a neighbour solicitation, while a bounded number of packets wait.

mod ask;
mod resolver;
mod tables;

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use segue::gro;
use segue::gso::{self, Frames};
use segue::hash::Key;
use segue::packet::{Frag, Kind, Packet, Start, Tunnels};
use segue::reason::Counts;
use segue::time::Nanos;
use segue::wire::{ipv4, ipv6};
use segue_port::{Page, PagePool, Polled, RxBatch};

use crate::board::{Group, Sink, Stage};
use crate::end::{self, End};
use crate::entry::{Entry, Seen};
use crate::forward::{Forwarder, Verdict, Why};
use crate::gateway::{Join, Side};
use crate::group::Reads;
use crate::icmp::{self, Limiter};
use crate::knobs::Dial;
use crate::nat::{self, Done, Nat};
use crate::pipeline::{Interest, Pipeline, Round};
use crate::route::{Hop, Link, Neighbours, Routes};
use crate::tuning::{Joining, Remcsum, Settings};
use ask::Heard;
use resolver::{Held, MOST_KNOWN, Resolver};
pub use tables::{Facts, Feed, Mappings, Message, Neighbour, Tables, Teller, feed};

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
    /// Both sides; the second one is the outside of a NAT.
    pub sides: [Side; 2],
    /// Frames taken from one port in one round.
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
    ends: [End; 2],
    joins: [Option<Join>; 2],
    entries: [Entry; 2],
    settings: Settings,
    split_drops: [Counts<gso::Refusal>; 2],
    rx: RxBatch,
    budget: usize,
    feed: Feed,
    forwarder: Forwarder,
    facts: [Facts; 2],
    resolver: Resolver,
    nat: Option<(Nat, Ipv4Addr)>,
    limiter: Limiter,
    next_tick: Nanos,
    batch: Vec<Boxed>,
    verdicts: Vec<Verdict>,
    /// What was made here and is to be routed.
    made: Vec<Boxed>,
    scratch: Frames,
    stats: [Stats; 2],
}

/// What is counted at the port where packets came in; at the second one also for what was made here.
#[derive(Debug, Default)]
struct Stats {
    nat_in: Seen,
    route: Seen,
    nat_out: Seen,
    drops: Counts<Why>,
    refusals: Counts<nat::Refusal>,
    /// Frames to others, which a port sees where several hosts share a link, and packets for the host itself.
    foreign: u64,
    local: u64,
    /// Errors sent to those whose packets came in here, and those that were too many.
    errors: u64,
    errors_limited: u64,
    /// Questions for link addresses.
    questions: u64,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.ends.each_ref().map(|end| &end.name);
        f.debug_struct("Router").field("ends", &names).finish_non_exhaustive()
    }
}

impl Router {
    /// A router between two ports.
    pub fn new(parts: Parts) -> Router {
        let configs: [Option<gro::Config>; 2] = parts.sides.each_ref().map(|side| side.gro);
        let names = parts.sides.each_ref().map(|side| side.name.clone());
        let Key([seed, _]) = parts.key;
        let mut ends = parts.sides.map(|side| End::new(side.name, side.port));
        ends.iter_mut().for_each(|end| end.number_fragments(parts.key));
        let forwarder = Forwarder::new(Routes::new(0), Neighbours::new(MOST_KNOWN), Reads::default(), seed);
        let mut made = Router {
            ends,
            joins: configs.map(|config| config.map(Join::new)),
            entries: Default::default(),
            settings: Settings::new(names, configs, Remcsum::None),
            split_drops: Default::default(),
            rx: RxBatch::over(parts.pages),
            budget: parts.budget.max(1),
            feed: parts.feed,
            forwarder,
            facts: Default::default(),
            resolver: Resolver::default(),
            nat: parts.nat,
            limiter: Limiter::new(ERRORS.0, ERRORS.1, Nanos(0)),
            next_tick: Nanos(0),
            batch: Vec::new(),
            verdicts: Vec::new(),
            made: Vec::new(),
            scratch: Frames::default(),
            stats: Default::default(),
        };
        made.settle();
        made
    }

    /// Goes by the settings.
    fn settle(&mut self) {
        let Settings { protocols, leaving, joining, .. } = &self.settings;
        for at in 0..2 {
            self.ends[at].leave(leaving[at]);
            self.ends[at].exact = joining.iter().flatten().any(Joining::is_strict);
            self.entries[at].cuts = self.settings.cuts(at);
            if let (Some(join), Some(joining)) = (&mut self.joins[at], &joining[at]) {
                join.retune(joining, protocols);
            }
        }
    }

    /// What the kernel and others say.
    fn listen(&mut self, now: Nanos) {
        while let Some(message) = self.feed.next() {
            match message {
                Message::Tables(tables) => self.learn(*tables, now),
                Message::Mappings(reply) => {
                    let all = self.nat.as_ref().map(|(nat, _)| nat.mappings(now).cloned().collect());
                    // Who asked may have gone.
                    let _ = reply.try_send((now, all.unwrap_or_default()));
                }
            }
        }
    }

    fn learn(&mut self, tables: Tables, now: Nanos) {
        self.forwarder.routes = tables.routes;
        self.facts = tables.ports;
        for (end, facts) in self.ends.iter_mut().zip(&self.facts) {
            end.fragment_to(facts.mtu as usize, gso::Fragment::Router);
        }
        self.resolver.forget_permanent();
        let mut ready = Vec::new();
        for neighbour in tables.neighbours {
            ready.extend(self.resolver.told(neighbour.hop, neighbour.mac, neighbour.is_permanent, now));
        }
        // Its own link address may be another one now.
        self.forwarder.neighbours = Neighbours::new(MOST_KNOWN);
        for (hop, known) in self.resolver.known() {
            if let Some(port) = self.facts.get(usize::from(hop.port)) {
                let _ = self.forwarder.neighbours.insert(*hop, Link::Ethernet { to: known.mac, from: port.mac });
            }
        }
        self.again(ready, now);
    }

    /// From one end to wherever packets go.
    fn receive(&mut self, from: usize, now: Nanos) -> io::Result<Polled> {
        for at in 0..2 {
            self.ends[at].transmit(&mut self.rx, &mut self.split_drops[at])?;
        }
        if self.ends.iter().any(|end| end.blocked) {
            return Ok(Polled::Idle);
        }
        let polled = self.ends[from].port.receive(&mut self.rx, self.budget)?;
        while let Some(packet) = self.joins[from].as_mut().and_then(|join| join.gro.pop()) {
            self.enter(from, packet);
        }
        while let Some(packet) = self.rx.packets.pop_front() {
            let Some(packet) = self.accept(from, packet, now) else { continue };
            match self.joins[from].as_mut().filter(|join| join.on) {
                Some(join) => {
                    join.seen.add(&packet);
                    join.gro.push(packet, now, &mut self.rx.pool);
                }
                None => self.enter(from, packet),
            }
        }
        if let Some(join) = self.joins[from].as_mut().filter(|join| join.on) {
            join.settle(polled, now);
            while let Some(packet) = self.joins[from].as_mut().and_then(|join| join.gro.pop()) {
                self.enter(from, packet);
            }
        }
        let batch = std::mem::take(&mut self.batch);
        self.batch = self.route(from as u16, batch, now);
        for at in 0..2 {
            self.ends[at].transmit(&mut self.rx, &mut self.split_drops[at])?;
        }
        Ok(polled)
    }

    /// A packet that is to be routed; others are heard, or left to the host.
    fn accept(&mut self, from: usize, packet: Boxed, now: Nanos) -> Option<Boxed> {
        let head = packet.head.bytes();
        let is_own = head.get(..6) == Some(&self.facts[from].mac[..]);
        let mut headers = packet.layout.headers().iter();
        let is_ip =
            headers.next().is_some_and(|h| h.kind == Kind::Ethernet) && headers.next().is_some_and(|h| h.is_ip());
        if is_own && is_ip && !is_between_neighbours(&packet) {
            return Some(packet);
        }
        let mut frame = [0; ask::LOOK];
        let headers = head.len().min(frame.len());
        frame[..headers].copy_from_slice(&head[..headers]);
        let len = headers + packet.payload.copy_to(0..ask::LOOK - headers, &mut frame[headers..]);
        let is_broadcast = head.get(..6) == Some(&[0xff; 6][..]);
        match ask::hear(&frame[..len]).filter(|_| is_own || is_broadcast) {
            Some(Heard::Answer(address, mac)) if is_own => {
                let hop = Hop::new(from as u16, Some(address), 0, address.is_ipv4());
                if let Some(held) = self.resolver.answered(hop, mac, now) {
                    let link = Link::Ethernet { to: mac, from: self.facts[from].mac };
                    let _ = self.forwarder.neighbours.insert(hop, link);
                    self.again(held, now);
                }
            }
            Some(Heard::Asked { target, by, mac })
                if from == OUTSIDE && self.nat.as_ref().is_some_and(|(_, own)| *own == target) =>
            {
                let frame = ask::answer(self.facts[from].mac, target, by, mac);
                self.send_frame(from, &frame);
            }
            _ if is_own => self.stats[from].local += 1,
            _ => self.stats[from].foreign += 1,
        }
        self.rx.pool.put(packet);
        None
    }

    /// Puts a packet into the batch, or what it is cut into.
    fn enter(&mut self, from: usize, packet: Boxed) {
        // Where a packet goes is not known here; from one of two ports it goes to the other.
        let (entry, drops) = (&mut self.entries[1 - from], &mut self.split_drops[1 - from]);
        let batch = &mut self.batch;
        entry.each(packet, &mut self.rx, drops, |packet, _, _| batch.push(packet));
    }

    /// Routes what came in by `from`, then what was made here because of it. The memory of the batch comes back.
    fn route(&mut self, from: u16, batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
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

    /// Routes packets that have waited for a neighbour.
    fn again(&mut self, held: impl IntoIterator<Item = Held>, now: Nanos) {
        for (from, packet) in held {
            self.forward(from, vec![packet], now);
        }
    }

    /// What is for the outside address gets the one inside.
    fn translate_in(&mut self, from: u16, mut batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
        let Router { nat, stats, rx, .. } = self;
        let Some((nat, own)) = nat else { return batch };
        let stats = &mut stats[usize::from(from)];
        let mut kept = Vec::with_capacity(batch.len());
        for mut packet in batch.drain(..) {
            if destination_v4(&packet) != Some(*own) {
                kept.push(packet);
                continue;
            }
            stats.nat_in.add(&packet);
            let pages = &mut rx.pages;
            let copy = &mut |bytes: &[u8]| page_of(pages, bytes);
            let done = match usize::from(from) {
                OUTSIDE => nat.inbound(&mut packet, now, copy),
                _ => nat.outbound(&mut packet, now, copy),
            };
            match done {
                Ok(Done::Translated | Done::Hairpin | Done::Untouched) => kept.push(packet),
                Err(why) => {
                    stats.refusals.add(why);
                    rx.pool.put(packet);
                }
            }
        }
        kept
    }

    fn forward(&mut self, from: u16, mut batch: Vec<Boxed>, now: Nanos) -> Vec<Boxed> {
        let counted = usize::from(from).min(OUTSIDE);
        batch.iter().for_each(|packet| self.stats[counted].route.add(packet));
        let mut verdicts = std::mem::take(&mut self.verdicts);
        verdicts.clear();
        self.forwarder.batch(from, &mut batch, &mut verdicts);
        for (packet, verdict) in batch.drain(..).zip(&verdicts) {
            match *verdict {
                Verdict::Send { port, mtu } => self.leave(from, usize::from(port), packet, mtu, now),
                Verdict::Local => {
                    self.stats[counted].local += 1;
                    self.rx.pool.put(packet);
                }
                Verdict::Drop { why: Why::NoNeighbour, .. } => self.wait(from, packet, now),
                Verdict::Drop { why, mtu } => self.refuse(from, packet, why, mtu, now),
            }
        }
        self.verdicts = verdicts;
        batch
    }

    /// Sends a packet that has its link header.
    fn leave(&mut self, from: u16, port: usize, mut packet: Boxed, mtu: u32, now: Nanos) {
        let Some(end) = self.ends.get_mut(port) else { return };
        if let Some((nat, own)) = self.nat.as_mut().filter(|_| port == OUTSIDE && usize::from(from) != OUTSIDE)
            && is_v4(&packet)
            // Hairpin and what has been translated already.
            && source_v4(&packet) != Some(*own)
        {
            let counted = usize::from(from).min(OUTSIDE);
            let stats = &mut self.stats[counted];
            stats.nat_out.add(&packet);
            let pages = &mut self.rx.pages;
            let done = nat.outbound(&mut packet, now, &mut |bytes: &[u8]| page_of(pages, bytes));
            match done {
                Ok(_) => {}
                // An error of this router about a packet that had no mapping goes as it is.
                Err(_) if from == HERE => {}
                Err(why) => {
                    stats.refusals.add(why);
                    self.rx.pool.put(packet);
                    return;
                }
            }
        }
        end.push_within(packet, mtu as usize, &mut self.rx, &mut self.split_drops[port]);
    }

    /// Keeps a packet until its next hop is known.
    fn wait(&mut self, from: u16, packet: Boxed, now: Nanos) {
        let Some(hop) = self.forwarder.next_hop(from, &packet) else { return self.rx.pool.put(packet) };
        match self.resolver.hold(hop, (from, packet), now) {
            Ok(true) => self.ask(&hop),
            Ok(false) => {}
            Err((from, packet)) => {
                self.stats[usize::from(from).min(OUTSIDE)].drops.add(Why::NoNeighbour);
                self.rx.pool.put(packet);
            }
        }
    }

    fn ask(&mut self, hop: &Hop) {
        let port = usize::from(hop.port);
        let Some(facts) = self.facts.get(port) else { return };
        let frame = ask::question(hop, facts);
        self.stats[port].questions += 1;
        self.send_frame(port, &frame);
    }

    fn send_frame(&mut self, port: usize, bytes: &[u8]) {
        let Some(page) = page_of(&mut self.rx.pages, bytes) else { return };
        let mut packet = self.rx.pool.take();
        packet.load(Frag::all(page), Start::Ethernet, &Tunnels::NONE);
        self.ends[port].push(packet, &mut self.rx, &mut self.split_drops[port]);
    }

    /// Drops a packet, and tells its sender where that is to be.
    fn refuse(&mut self, from: u16, packet: Boxed, why: Why, mtu: u32, now: Nanos) {
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
            match reply {
                None => {}
                Some(_) if !self.limiter.take(now) => stats.errors_limited += 1,
                Some(bytes) => {
                    if let Some(page) = page_of(&mut self.rx.pages, &bytes) {
                        stats.errors += 1;
                        let mut made = self.rx.pool.take();
                        made.load(Frag::all(page), Start::Ip, &Tunnels::NONE);
                        self.made.push(made);
                    }
                }
            }
        }
        self.rx.pool.put(packet);
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
        let due = self.resolver.due(now);
        for hop in due.gone {
            self.forwarder.neighbours.remove(hop);
        }
        due.ask.iter().for_each(|hop| self.ask(hop));
        for (from, packet) in due.failed {
            self.refuse(from, packet, Why::NoNeighbour, 0, now);
        }
        let made = std::mem::take(&mut self.made);
        self.made = self.forward(HERE, made, now);
        for at in 0..2 {
            self.ends[at].transmit(&mut self.rx, &mut self.split_drops[at])?;
        }
        Ok(())
    }
}

/// Whether a packet is for its neighbours alone: IPv6 from or to a link-local address, or to a group.
fn is_between_neighbours(packet: &Packet<Page>) -> bool {
    let Some(header) = ip(packet).filter(|_| !is_v4(packet)) else { return false };
    let is_local = |range: std::ops::Range<usize>| {
        header.get(range).is_some_and(|a| a[0] == 0xff || a[0] == 0xfe && a[1] & 0xc0 == 0x80)
    };
    is_local(ipv6::DST) || is_local(ipv6::SRC)
}

fn ip(packet: &Packet<Page>) -> Option<&[u8]> {
    let header = packet.layout.headers().iter().find(|header| header.is_ip())?;
    packet.head.bytes().get(header.start()..header.end())
}

fn is_v4(packet: &Packet<Page>) -> bool {
    packet.layout.headers().iter().find(|header| header.is_ip()).is_some_and(|header| header.kind == Kind::Ipv4)
}

fn address_v4(packet: &Packet<Page>, range: std::ops::Range<usize>) -> Option<Ipv4Addr> {
    let bytes: [u8; 4] = ip(packet).filter(|_| is_v4(packet))?.get(range)?.try_into().ok()?;
    Some(bytes.into())
}

fn destination_v4(packet: &Packet<Page>) -> Option<Ipv4Addr> {
    address_v4(packet, ipv4::DST)
}

fn source_v4(packet: &Packet<Page>) -> Option<Ipv4Addr> {
    address_v4(packet, ipv4::SRC)
}

/// A page that begins with these bytes.
fn page_of(pages: &mut PagePool, bytes: &[u8]) -> Option<Page> {
    let mut page = pages.take()?;
    page.bytes_mut().get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(page.freeze(bytes.len()))
}

impl Pipeline for Router {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        self.listen(now);
        self.tick(now)?;
        let polled = [self.receive(0, now)?, self.receive(1, now)?];
        let blocked = self.ends.iter().any(|end| end.blocked);
        let more = polled.iter().any(|polled| *polled != Polled::Idle);
        Ok(if more && !blocked { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let blocked = self.ends.iter().any(|end| end.blocked);
        self.ends.iter().for_each(|end| end.interests(blocked, wait));
        wait(Interest { fd: self.feed.fd(), read: true, write: false });
    }

    fn deadline(&self) -> Option<Nanos> {
        let joins = self.joins.iter().flatten().filter_map(|join| join.gro.deadline());
        let is_timed = !self.resolver.is_idle() || self.nat.as_ref().is_some_and(|(nat, _)| !nat.is_empty());
        // What is held for a blocked port has to wait for that port anyway.
        let joins = joins.min().filter(|_| !self.ends.iter().any(|end| end.blocked));
        joins.into_iter().chain(is_timed.then_some(self.next_tick)).min()
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        self.settings.tune(dial);
        self.settle();
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        for at in 0..2 {
            let (end, stats) = (&self.ends[at], &self.stats[at]);
            let name = end.name.as_str();
            self.entries[1 - at].collect(name, &self.ends[1 - at].name, sink);
            let gro = self.joins[at].as_ref().map(|join| join.gro.stats());
            end.collect(gro.map_or(0, |gro| gro.checksummed_bytes) + self.entries[at].checksummed(), sink);
            sink.reasons(name, Group::Drops, &self.split_drops[at]);
            if let Some(join) = &self.joins[at] {
                join.seen.collect(name, Stage::Gro, sink);
            }
            if let Some(gro) = gro {
                end::collect_gro(name, gro, sink);
            }
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
            ] {
                sink.put(name, Group::Port, key, value);
            }
        }
        let lookups = self.forwarder.lookups();
        for (key, value) in [
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
        }
    }
}
