//! The rounds of a bridge.

use std::collections::VecDeque;
use std::io;

use segue::encap::Mac;
use segue::gro::Popped;
use segue::time::Nanos;
use segue::wire::ethernet;
use segue_port::{Page, Polled, Received, RxBatch};

use super::port::{Port, addresses, copy, cost, segments};
use super::settings::Settings;
use super::stations::{Learned, Stations};
use super::{Dropped, Parts};
use crate::board::Sink;
use crate::knobs::Dial;
use crate::napi::PollPolicy;
use crate::pipeline::{Interest, Pipeline, Round};
use crate::sys::Ready;
use crate::tuning::{Cuts, GroSettings};

/// Number of rounds after which the state of the ports' interfaces is read even without an event.
const LISTEN_EVERY: u64 = 64;
/// Lifetime of a cached forwarding decision for packets with the same addresses, nanoseconds: much shorter than the
/// shortest ageing.
const RECENT: u64 = 100_000_000;
/// Number of interface-state calls or guest messages that count as one call without a packet: a front end sends some
/// forty messages before its guest is ready.
const FREE_LINK_CALLS: u32 = 8;
/// Interval in nanoseconds at which ports do a part of longer work if the loop never sleeps. A part takes about a
/// millisecond, and the other ports have the rest.
const WORK_EVERY: u64 = 3_000_000;
/// Time for which a port stays muted if the kernel has no memory to add it to the poll sets again, nanoseconds.
const MUTED_AGAIN: u64 = 16_000_000;
/// Number of descriptors in the worker's poll set before those of blocked ports: the poll set of ports with packets,
/// and that of ports whose interface changed.
const INTERESTS: usize = 2;

/// A bridge; see the [module](super).
pub struct Bridge {
    ports: Vec<Port>,
    stations: Stations,
    settings: Settings,
    rx: RxBatch,
    /// Poll set of ports with packets.
    ready: Ready,
    /// Poll set of ports whose interfaces have changed.
    links: Ready,
    /// Active ports, which may have packets, in the order of their turns.
    active: VecDeque<usize>,
    /// Ports that have packets to send.
    touched: Vec<usize>,
    /// Ports whose transmit queue is full.
    blocked: Vec<usize>,
    /// Ports that are not polled for a time, because they woke the loop without packets.
    muted: Vec<usize>,
    rounds: u64,
    taken: u64,
    /// Whether a readable port has woken the loop, and whether an interface's state may have changed.
    is_woken: bool,
    is_told: bool,
    /// Time of the next part of a port's longer work.
    work_due: Option<Nanos>,
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bridge").field("ports", &self.ports.len()).finish_non_exhaustive()
    }
}

/// The decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    To(usize),
    Flood,
    Drop(Dropped),
}

impl Bridge {
    /// Returns a bridge between these ports.
    ///
    /// # Errors
    /// Where the kernel refuses a poll set.
    pub fn new(parts: Parts) -> io::Result<Bridge> {
        let named = parts.ports.iter().map(|port| (port.config.name.clone(), port.config.gro));
        let settings = Settings::new(named, parts.budget);
        let ports: Vec<Port> = parts.ports.into_iter().map(Port::new).collect();
        let followed = ports.iter().map(|port| port.end.port.link_fd());
        let links = Ready::new(std::iter::empty())?;
        for (at, fd) in followed.enumerate() {
            fd.map_or(Ok(()), |fd| links.add(at, fd))?;
        }
        let mut made = Bridge {
            stations: Stations::new(ports.len()),
            ready: Ready::new(ports.iter().map(|port| port.end.port.fd()))?,
            links,
            active: VecDeque::with_capacity(ports.len()),
            touched: Vec::with_capacity(ports.len()),
            blocked: Vec::with_capacity(ports.len()),
            muted: Vec::new(),
            rx: RxBatch::over(parts.pages),
            rounds: 0,
            taken: 0,
            is_woken: false,
            is_told: true,
            work_due: None,
            settings,
            ports,
        };
        made.settle();
        Ok(made)
    }

    /// Applies changed settings to the ports. Packets that GRO holds are released first, in the next round.
    fn settle(&mut self) {
        let Settings { protocols, ports, sharing, ageing_s } = &self.settings;
        let limits = ports.iter().map(|port| port.max_learned as usize);
        self.stations.limit(ageing_s.saturating_mul(1_000_000_000), limits);
        for (at, (port, settings)) in self.ports.iter_mut().zip(ports).enumerate() {
            port.end.set_egress(settings.egress);
            port.end.polls.weight = settings.weight as usize;
            let others = ports.iter().enumerate().filter(|(other, _)| *other != at);
            let exact = others.filter_map(|(_, other)| other.gro.as_ref()).any(GroSettings::is_strict);
            (port.end.exact, port.path.exact) = (exact, exact);
            port.path.cuts = Cuts::new(protocols, &settings.egress);
            port.flood.set(settings.flood_limit);
            port.moved.set(true);
            if let (Some(stage), Some(gro)) = (&mut port.stage, &settings.gro) {
                stage.retune(gro, protocols, sharing);
            }
        }
        (0..self.ports.len()).for_each(|at| self.activate(at));
    }

    fn activate(&mut self, at: usize) {
        let port = &mut self.ports[at];
        if !port.is_active {
            port.is_active = true;
            self.active.push_back(at);
        }
    }

    /// Reads the state of interfaces that have changed, or of all of them.
    fn listen(&mut self, all: bool, now: Nanos) -> io::Result<()> {
        self.work_due = None;
        if all {
            (0..self.ports.len()).for_each(|at| self.follow(at, now));
            return Ok(());
        }
        let (count, more) = self.links.poll()?;
        self.is_told = more;
        for place in 0..count {
            let at = self.links.at(place);
            if at < self.ports.len() {
                let port = &mut self.ports[at];
                port.link_calls = port.link_calls.wrapping_add(1);
                port.has_called |= port.link_calls.is_multiple_of(FREE_LINK_CALLS);
                self.follow(at, now);
                self.activate(at);
            }
        }
        Ok(())
    }

    fn follow(&mut self, at: usize, now: Nanos) {
        let port = &mut self.ports[at];
        port.end.listen(true);
        if port.end.port.is_busy() {
            self.work_due = Some(Nanos(now.0.saturating_add(WORK_EVERY)));
        }
        if let Some(own) = port.own.take().or_else(|| port.end.port.mac()) {
            self.stations.own(own, at, now);
        }
        self.forget_when_down(at);
    }

    /// Removes the addresses learned on a port that has gone down, which a guest's port may do in any of its calls.
    fn forget_when_down(&mut self, at: usize) {
        let port = &mut self.ports[at];
        let is_up = port.end.port.is_up();
        if std::mem::replace(&mut port.was_up, is_up) != is_up {
            port.moved.set(true);
            if !is_up {
                self.stations.forget(at);
            }
        }
    }

    /// Activates the ports that have packets, and those with trains that are due.
    fn find_active(&mut self, now: Nanos) -> io::Result<()> {
        let woken = std::mem::take(&mut self.is_woken);
        let (count, _) = self.ready.poll()?;
        for place in 0..count {
            let at = self.ready.at(place);
            let Some(port) = self.ports.get_mut(at) else { continue };
            port.end.polls.wake_ups += u64::from(woken);
            port.has_called = true;
            self.activate(at);
        }
        for at in 0..self.ports.len() {
            let stage = self.ports[at].stage.as_ref();
            if stage.and_then(|stage| stage.gro.deadline()).is_some_and(|due| due <= now) {
                self.activate(at);
            }
        }
        Ok(())
    }

    /// Sends the packets that wait for blocked ports.
    fn retry(&mut self) -> io::Result<()> {
        let mut blocked = std::mem::take(&mut self.blocked);
        let mut outcome = Ok(());
        blocked.retain(|&at| {
            let port = &mut self.ports[at];
            if outcome.is_ok() && port.muted.is_none() {
                outcome = port.transmit(&mut self.rx);
            }
            port.is_waiting = port.end.blocked;
            port.moved.set(true);
            let is_waiting = port.is_waiting;
            self.forget_when_down(at);
            is_waiting
        });
        self.blocked = blocked;
        outcome
    }

    /// Runs the turn of each active port, within `left` packets. Returns whether one of them has more.
    fn run_turns(&mut self, now: Nanos, left: &mut usize) -> io::Result<bool> {
        // Ports that have overdrawn wait as many turns as the first of them to have credit again.
        let missing_turns = |port: &Port, quantum: i64| (quantum - port.credit).div_euclid(quantum.max(1));
        let quantum = |settings: &Settings, at: usize| settings.ports[at].quantum as i64;
        let Bridge { ports, active, settings, .. } = &mut *self;
        let wait = active.iter().map(|&at| missing_turns(&ports[at], quantum(settings, at))).min();
        let wait = wait.unwrap_or(1).max(1);
        let mut more = false;
        for _ in 0..self.active.len() {
            let Some(at) = self.active.pop_front() else { break };
            if *left == 0 {
                self.active.push_front(at);
                return Ok(true);
            }
            let share = quantum(&self.settings, at);
            let port = &mut self.ports[at];
            port.credit = port.credit.saturating_add(share.saturating_mul(wait)).min(share);
            if port.credit <= 0 || self.turn(at, now, left)? {
                self.active.push_back(at);
                more = true;
            } else {
                let port = &mut self.ports[at];
                port.is_active = false;
                port.credit = port.credit.min(0);
                self.guard(at, now);
            }
        }
        Ok(more)
    }

    /// Forwards packets of one port until it has no more, or until its credit or `left` is used up. Returns whether it
    /// may have more. A poll that ends before its budget although there is more ends the turn too: packets that the
    /// port has read and dropped are charged nowhere else, and a guest may send such packets without end.
    fn turn(&mut self, from: usize, now: Nanos, left: &mut usize) -> io::Result<bool> {
        self.ports[from].moved.set(true);
        // Packets that a change of settings, or the time, has released.
        self.release(from, now);
        loop {
            let port = &mut self.ports[from];
            let most = port.affordable().min(*left);
            let mut part = most;
            let polled = port.end.poll(&mut self.rx, &mut part)?;
            *left -= (most - part).min(*left);
            let is_short = most - part < most.min(port.end.polls.weight);
            let was_starved = std::mem::replace(&mut port.is_starved, polled == Polled::Starved);
            *left = left.saturating_sub(port.charge(&self.rx));
            self.taken += self.rx.packets.len() as u64;
            match port.stage.as_mut().filter(|stage| stage.on) {
                Some(stage) => {
                    stage.push_all(&mut self.rx, now);
                    stage.settle(polled, now);
                    self.release(from, now);
                }
                None => {
                    while let Some(received) = self.rx.packets.pop_front() {
                        let popped = match received {
                            Received::Frame(frame) => Popped::Frame(frame),
                            Received::Packet(packet) => Popped::Packet(packet),
                        };
                        self.forward(from, popped, now);
                    }
                }
            }
            self.transmit()?;
            match polled {
                Polled::Idle => {
                    self.forget_when_down(from);
                    return Ok(false);
                }
                // What GRO held has left. If that did not suffice, what waits for ports that take nothing has the
                // memory: that of the one that has been blocked for longest makes room, then that of the next one.
                Polled::Starved => {
                    if was_starved && !self.blocked.is_empty() {
                        let at = self.blocked.remove(0);
                        self.ports[at].is_waiting = false;
                        self.ports[at].shed(&mut self.rx);
                    }
                    return Ok(true);
                }
                Polled::More if is_short || self.ports[from].credit <= 0 || *left == 0 => return Ok(true),
                Polled::More => {}
            }
        }
    }

    /// Forwards the packets of a port that GRO has released.
    fn release(&mut self, from: usize, now: Nanos) {
        while let Some(popped) = self.ports[from].stage.as_mut().and_then(|stage| stage.gro.pop_unparsed()) {
            self.forward(from, popped, now);
        }
    }

    /// Decides on the egress port of a packet, and queues it there.
    fn forward(&mut self, from: usize, popped: Popped<Page>, now: Nanos) {
        let decision = match addresses(&popped) {
            Some(addresses) => self.decide(from, addresses, now),
            None => Decision::Drop(Dropped::Runt),
        };
        match decision {
            Decision::To(to) => self.hand(from, to, popped),
            Decision::Flood => self.flood(from, popped, now),
            Decision::Drop(why) => self.discard(from, why, popped),
        }
    }

    /// Drops a packet, and counts it at the port by which it came in.
    fn discard(&mut self, from: usize, why: Dropped, popped: Popped<Page>) {
        self.ports[from].drops.add_many(why, segments(&popped));
        if let Popped::Packet(packet) = popped {
            self.rx.pool.put(packet);
        }
    }

    fn decide(&mut self, from: usize, addresses: [u8; 12], now: Nanos) -> Decision {
        let recent = &self.ports[from].recent;
        if recent.addresses == addresses && recent.generation == self.stations.generation() && now < recent.until {
            return Decision::To(recent.to);
        }
        let [destination, source]: [Mac; 2] = [0, 6].map(|at| std::array::from_fn(|byte| addresses[at + byte]));
        if !ethernet::is_station(source) {
            return Decision::Drop(Dropped::Source);
        }
        let port = &mut self.ports[from];
        match self.stations.learn(source, from, now) {
            Learned::Unchanged => {}
            Learned::New => port.numbers.learned += 1,
            Learned::Moved => port.numbers.moved += 1,
            Learned::Full => port.numbers.full += 1,
            Learned::Own => return Decision::Drop(Dropped::OwnSource),
        }
        if is_reserved(destination) {
            return Decision::Drop(Dropped::Reserved);
        }
        if ethernet::is_group(destination) {
            return Decision::Flood;
        }
        match self.stations.lookup(destination, now) {
            None => Decision::Flood,
            Some(to) if to == from => Decision::Drop(Dropped::SamePort),
            Some(to) => {
                let until = Nanos(now.0.saturating_add(RECENT));
                let generation = self.stations.generation();
                port.recent = super::port::Recent { addresses, to, generation, until };
                Decision::To(to)
            }
        }
    }

    /// Queues a packet at all other ports that are up.
    fn flood(&mut self, from: usize, popped: Popped<Page>, now: Nanos) {
        let (packets, cost) = (segments(&popped), cost(&popped));
        if !self.ports[from].flood.take(packets, now) {
            return self.discard(from, Dropped::Flood, popped);
        }
        let mut copies = 0;
        let mut last = None;
        for to in 0..self.ports.len() {
            if to != from && self.ports[to].end.port.is_up() {
                copies += 1;
                if let Some(before) = last.replace(to) {
                    let copy = copy(&popped, &mut self.rx);
                    self.hand(from, before, copy);
                }
            }
        }
        let Some(to) = last else { return self.discard(from, Dropped::NoPort, popped) };
        self.hand(from, to, popped);
        self.ports[from].numbers.flooded += packets;
        self.ports[from].charge_copies(cost, copies);
    }

    fn hand(&mut self, from: usize, to: usize, popped: Popped<Page>) {
        let Ok([from, port]) = self.ports.get_disjoint_mut([from, to]) else { return };
        port.take(from, popped, &mut self.rx);
        if !port.is_touched && !port.end.blocked {
            port.is_touched = true;
            self.touched.push(to);
        }
    }

    /// Sends the packets queued at ports that are not blocked.
    fn transmit(&mut self) -> io::Result<()> {
        while let Some(at) = self.touched.pop() {
            let port = &mut self.ports[at];
            port.is_touched = false;
            port.transmit(&mut self.rx)?;
            if port.end.blocked && !port.is_waiting {
                port.is_waiting = true;
                self.blocked.push(at);
            }
            self.forget_when_down(at);
        }
        Ok(())
    }

    /// Mutes a port for a while if it keeps waking the loop without packets.
    fn guard(&mut self, at: usize, now: Nanos) {
        let port = &mut self.ports[at];
        if !std::mem::take(&mut port.has_called) {
            return;
        }
        let (taken, sent) = (port.end.polls.taken, port.end.sent());
        let Some(pause) = port.guard.round(taken, || Some(sent), now) else { return };
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        if port.muted.replace(Nanos(now.0.saturating_add(pause))).is_none() {
            port.numbers.pauses += 1;
            self.muted.push(at);
            self.ready.remove(port.end.port.fd());
            port.end.port.link_fd().into_iter().for_each(|fd| self.links.remove(fd));
        }
    }

    /// Ends the pauses that are over. A port that the kernel cannot add to the poll sets pauses again: the lack of
    /// memory is temporary, and the other ports go on.
    fn unmute(&mut self, now: Nanos) {
        let Bridge { ports, muted, ready, links, .. } = self;
        muted.retain(|&at| {
            let port = &mut ports[at];
            if port.muted.is_some_and(|until| until > now) {
                return true;
            }
            let fd = port.end.port.fd();
            let link = || port.end.port.link_fd().map_or(Ok(()), |fd| links.add(at, fd));
            let is_added = ready.add(at, fd).and_then(|()| link()).is_ok();
            if is_added {
                port.muted = None;
            } else {
                ready.remove(fd);
                port.muted = Some(Nanos(now.0.saturating_add(MUTED_AGAIN)));
                port.numbers.pauses += 1;
                port.moved.set(true);
            }
            !is_added
        });
    }
}

/// Returns whether the address is reserved, so that no bridge forwards frames to it (IEEE 802.1Q, table 8-1). The
/// spanning tree protocol's is excepted: segue does not run it, and bridges that do find each other through segue, as
/// with Linux.
fn is_reserved(mac: Mac) -> bool {
    mac[..5] == [0x01, 0x80, 0xc2, 0, 0] && (0x01..=0x0f).contains(&mac[5])
}

impl Pipeline for Bridge {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        let all = self.rounds == 0;
        self.rounds = self.rounds.wrapping_add(1);
        // A loop that never sleeps is never woken for it.
        let is_due = self.work_due.is_some_and(|due| due <= now);
        if all || self.is_told || is_due || self.rounds.is_multiple_of(LISTEN_EVERY) {
            self.listen(all, now)?;
        }
        if !self.muted.is_empty() {
            self.unmute(now);
        }
        self.stations.sweep(now);
        self.retry()?;
        self.find_active(now)?;
        let mut left = self.settings.sharing.budget as usize;
        let more = self.run_turns(now, &mut left)?;
        Ok(if more { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        wait(Interest { fd: self.ready.fd(), read: true, write: false });
        wait(Interest { fd: self.links.fd(), read: true, write: false });
        for &at in &self.blocked {
            let port = &self.ports[at];
            match port.muted {
                None => port.end.wait_to_write(wait),
                Some(_) => wait(Interest { fd: port.end.port.fd(), read: false, write: false }),
            }
        }
    }

    fn woken(&mut self, place: usize) {
        match place {
            0 => self.is_woken = true,
            1 => self.is_told = true,
            _ => {
                let at = place.checked_sub(INTERESTS).and_then(|place| self.blocked.get(place)).copied();
                if let Some(at) = at {
                    self.ports[at].has_called = true;
                    self.activate(at);
                }
            }
        }
    }

    fn poll_policy(&self) -> PollPolicy {
        self.settings.sharing.poll_policy()
    }

    fn taken(&self) -> u64 {
        self.taken
    }

    fn deadline(&self) -> Option<Nanos> {
        let stages = self.ports.iter().filter_map(|port| port.stage.as_ref()?.gro.deadline());
        let muted = self.muted.iter().filter_map(|&at| self.ports[at].muted);
        stages.chain(muted).min()
    }

    fn close(&mut self) -> bool {
        self.ports.iter_mut().for_each(|port| port.end.polls.closed = true);
        self.settle();
        true
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        self.settings.tune(dial);
        self.settle();
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        let ports = self.ports.iter().enumerate();
        ports.for_each(|(at, port)| port.collect(self.stations.learned_at(at), sink));
    }
}
