//! The poll loop of a tunnel with a peer table.

use std::io;

use segue::encap::{DecapRefusal, EncapRefusal, OuterCsum};
use segue::gro::{self, Gro};
use segue::gso::{self, Frames};
use segue::hash::Key;
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{Page, PagePool, Polled, Port, RxBatch};

use super::counts::Dropped;
use super::swap::TableReceiver;
use super::table::{QueryLimit, Table};
use crate::board::{Group, Sink, Stage};
use crate::endpoint::{self, Endpoint, reply_pages};
use crate::flood::FloodLimit;
use crate::icmp::ErrorLimits;
use crate::ingress::{Ingress, Traffic};
use crate::knobs::{Dial, Knobs};
use crate::napi::{PollPolicy, RoundRobin};
use crate::pipeline::{Interest, Pipeline, Round};
use crate::sys;
use crate::tuning::{Remcsum, Settings};

/// Most copies of flooded frames a second, unless the knob says otherwise.
const FLOOD_LIMIT: u64 = 100_000;

/// A listener: a datagram port, and the state of outer checksums there.
pub struct Listener {
    /// Name of the port in statistics.
    pub name: String,
    /// The port that receives and sends datagrams. Its destinations are set by the table.
    pub port: Box<dyn Port>,
    /// The state of the outer checksum of datagrams with a remote checksum option, as verified by the port.
    pub csum: OuterCsum,
}

/// Parts that a tunnel with a peer table is made of.
pub struct Parts {
    /// Name of the inside port in statistics: the interface.
    pub inside_name: String,
    /// The port for inner packets.
    pub inside: Box<dyn Port>,
    /// Whether the packet port inside carries Ethernet frames; otherwise IP.
    pub frames: bool,
    /// Listeners in the order that tables use; at least one.
    pub listeners: Vec<Listener>,
    /// The peer table at the start.
    pub table: Box<Table>,
    /// The receiver of new tables.
    pub tables: TableReceiver,
    /// Local Ethernet address, for encapsulations that carry frames.
    pub mac: [u8; 6],
    /// Initial configuration of GRO for inbound packets.
    pub gro: Option<gro::Config>,
    /// Whether remote checksum offload can be switched.
    pub remcsum: bool,
    /// Largest number of packets or bursts taken from one port in one round: the initial weight of all ports.
    pub budget: usize,
    /// Largest number of pages of memory to receive into.
    pub pages: usize,
    /// Key of the limits of ICMP errors; it should be random.
    pub key: Key,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("inside", &self.inside_name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The properties of a tunnel with a peer table on which its knobs depend, as in [`Parts`].
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Whether the interface carries Ethernet frames; otherwise IP.
    pub frames: bool,
    /// Initial configuration of GRO for inbound packets.
    pub gro: Option<gro::Config>,
    /// Whether remote checksum offload can be switched.
    pub remcsum: bool,
    /// The initial weight of all ports.
    pub budget: usize,
}

/// Returns the knobs of a tunnel between the named ports.
pub fn knobs(inside: &str, outsides: &[&str], form: Form) -> Knobs {
    let mut settings = settings(inside, outsides, form);
    Knobs::of(|dial| tune(&mut settings, dial))
}

fn settings(inside: &str, outsides: &[&str], form: Form) -> Vec<Settings> {
    let remcsum = if form.remcsum { Remcsum::Can(true) } else { Remcsum::Never };
    let of = |outside: &&str| {
        let names = [inside, *outside].map(str::to_owned);
        let flood = form.frames.then_some(FLOOD_LIMIT);
        Settings { flood, ..Settings::new(names, [form.gro, None], remcsum, form.budget) }
    };
    outsides.iter().map(of).collect()
}

/// Shows all settings of the first listener to `dial`, and the port settings of the others.
fn tune(settings: &mut [Settings], dial: &mut Dial<'_>) {
    if let Some((first, others)) = settings.split_first_mut() {
        first.tune(dial);
        others.iter_mut().for_each(|other| other.tune_outside(dial, first));
    }
}

/// A listener in use, with the counters of its datagrams.
pub(super) struct Outside {
    pub(super) end: Endpoint,
    pub(super) csum: OuterCsum,
    pub(super) drops: Counts<Dropped>,
    pub(super) decap_drops: Counts<DecapRefusal>,
    /// Counters of packets after decapsulation.
    pub(super) unwrapped: Traffic,
    /// Numbers of packets with a remote checksum option, sent and received.
    pub(super) remcsum: [u64; 2],
    /// Number of packets whose inner checksum the sender's kernel has left unfinished.
    pub(super) unfinished: u64,
}

/// The pipeline of a tunnel with a peer table.
pub struct Overlay {
    pub(super) inside: Endpoint,
    pub(super) outsides: Vec<Outside>,
    pub(super) table: Box<Table>,
    tables: TableReceiver,
    pub(super) frames: bool,
    pub(super) mac: [u8; 6],
    pub(super) rx: RxBatch,
    /// Pages for ICMP errors.
    pub(super) replies: PagePool,
    pub(super) gro: Option<Gro<Page>>,
    pub(super) joins: bool,
    pub(super) settings: Vec<Settings>,
    /// Ingress stage of the outbound direction.
    pub(super) outward: Ingress,
    /// Ingress stage of the inbound direction.
    pub(super) inward: Ingress,
    pub(super) wrapped: Traffic,
    pub(super) joined: Traffic,
    pub(super) drops: Counts<Dropped>,
    pub(super) encap_drops: Counts<EncapRefusal>,
    pub(super) split_drops: Counts<gso::Refusal>,
    /// Numbers of ICMP errors that were sent, and of those that were not, for the rate limit or since the interface did
    /// not take them.
    pub(super) errors: [u64; 2],
    pub(super) limits: ErrorLimits,
    pub(super) scratch: Frames,
    pub(super) queries: QueryLimit,
    pub(super) flood_limit: FloodLimit,
    /// Number of times the table was replaced.
    swaps: u64,
    /// Duration of the longest round during a table change, nanoseconds of processor time.
    longest_change: u64,
    /// Number of packets and bursts received from all ports.
    taken: u64,
    /// Whether GRO may hold packets.
    is_due: bool,
    /// Whether a port lacked pages to receive into, since packets that GRO holds occupy them.
    is_starved: bool,
    round_robin: RoundRobin,
    /// Index of the listener that is read first in the next round.
    turn: usize,
    /// The ports whose readiness has woken the loop since the last round, as bits: the interface is the lowest one.
    /// `None` where the round was not begun by a port.
    wake: Option<u32>,
}

impl std::fmt::Debug for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Overlay").field("listeners", &self.outsides.len()).finish_non_exhaustive()
    }
}

impl Overlay {
    /// Creates the overlay's pipeline.
    pub fn new(parts: Parts) -> Overlay {
        let names: Vec<&str> = parts.listeners.iter().map(|listener| listener.name.as_str()).collect();
        let Parts { frames, gro, remcsum, budget, .. } = parts;
        let settings = settings(&parts.inside_name, &names, Form { frames, gro, remcsum, budget });
        let outside = |listener: Listener| Outside {
            end: Endpoint::new(listener.name, listener.port),
            csum: listener.csum,
            drops: Counts::default(),
            decap_drops: Counts::default(),
            unwrapped: Traffic::default(),
            remcsum: [0; 2],
            unfinished: 0,
        };
        let mut made = Overlay {
            inside: Endpoint::new(parts.inside_name, parts.inside),
            outsides: parts.listeners.into_iter().map(outside).collect(),
            table: parts.table,
            tables: parts.tables,
            frames: parts.frames,
            mac: parts.mac,
            rx: RxBatch::new(parts.pages),
            replies: reply_pages(),
            joins: parts.gro.is_some(),
            gro: parts.gro.map(Gro::new),
            settings,
            outward: Ingress::default(),
            inward: Ingress::default(),
            wrapped: Traffic::default(),
            joined: Traffic::default(),
            drops: Counts::default(),
            encap_drops: Counts::default(),
            split_drops: Counts::default(),
            errors: [0; 2],
            limits: ErrorLimits::new(parts.key, Nanos(0)),
            scratch: Frames::default(),
            queries: QueryLimit::default(),
            flood_limit: FloodLimit::default(),
            swaps: 0,
            longest_change: 0,
            taken: 0,
            is_due: false,
            is_starved: false,
            round_robin: RoundRobin::default(),
            turn: 0,
            wake: None,
        };
        made.address();
        made.settle();
        made
    }

    /// Sets the ports' destinations to those of the table.
    fn address(&mut self) {
        for (outside, destinations) in self.outsides.iter_mut().zip(&self.table.destinations) {
            outside.end.port.set_peers(destinations);
        }
    }

    /// Applies a new table, unless a packet waits for a socket.
    fn renew(&mut self) {
        if self.tables.is_waiting()
            && self.outsides.iter().all(|outside| outside.end.is_empty())
            && self.tables.take(&mut self.table)
        {
            self.swaps += 1;
            self.address();
        }
    }

    fn is_blocked(&self) -> bool {
        self.outsides.iter().any(|outside| outside.end.blocked)
    }

    /// Moves at most `left` packets from the interface to the listeners' ports, and reduces `left` by their number.
    fn send(&mut self, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        if self.is_blocked() {
            self.transmit()?;
            if self.is_blocked() {
                return Ok(Polled::Idle);
            }
            // A socket that stays busy is blocked again at the start of the next round.
            self.renew();
        }
        let polled = self.inside.poll(&mut self.rx, left)?;
        self.is_starved |= polled == Polled::Starved;
        self.taken += self.rx.packets.len() as u64;
        if self.rx.packets.is_empty() {
            return Ok(polled);
        }
        while let Some(packet) = self.rx.pop_packet() {
            let mut next = self.outward.enter(packet, &mut self.rx, &mut self.split_drops);
            while let Some(packet) = next {
                match self.frames {
                    true => self.forward(packet, now)?,
                    false => self.route(packet, now),
                }
                next = self.outward.more();
            }
        }
        self.transmit()?;
        if !self.inside.blocked {
            self.inside.transmit(&mut self.rx, &mut self.split_drops)?;
        }
        Ok(polled)
    }

    /// Transmits queued packets on the listeners' ports.
    fn transmit(&mut self) -> io::Result<()> {
        let Overlay { outsides, rx, split_drops, .. } = self;
        outsides.iter_mut().try_for_each(|outside| outside.end.transmit(rx, split_drops))
    }

    /// Moves at most `left` bursts from the listeners' ports to the interface, and reduces `left` by their number.
    fn receive(&mut self, now: Nanos, left: &mut usize, wake: Option<u32>) -> io::Result<Polled> {
        if self.inside.blocked {
            self.inside.transmit(&mut self.rx, &mut self.split_drops)?;
            if self.inside.blocked {
                return Ok(Polled::Idle);
            }
        }
        if let (Some(gro), false) = (&mut self.gro, self.joins) {
            // What GRO has released when it was switched off; later packets pass it by.
            self.inside.push_released(gro, &mut self.inward, &mut self.rx, &mut self.split_drops);
        }
        let (count, first) = (self.outsides.len(), self.turn);
        let mut more = false;
        for at in (first..first + count).map(|at| at % count) {
            if wake.is_some_and(|wake| wake >> (1 + at) & 1 == 0) {
                continue;
            }
            if *left == 0 {
                (self.turn, more) = (at, true);
                break;
            }
            let polled = self.outsides[at].end.poll(&mut self.rx, left)?;
            self.is_starved |= polled == Polled::Starved;
            more |= polled != Polled::Idle;
            self.taken += self.rx.bursts.len() as u64;
            while let Some(burst) = self.rx.bursts.pop_front() {
                self.take_apart(at, &burst, now);
            }
        }
        self.deliver(now)?;
        Ok(if more { Polled::More } else { Polled::Idle })
    }

    /// Writes the packets that GRO releases to the interface.
    fn deliver(&mut self, now: Nanos) -> io::Result<()> {
        let Overlay { gro, inward, inside, split_drops, rx, is_starved, .. } = self;
        if let Some(gro) = gro {
            match std::mem::take(is_starved) {
                true => gro.flush(),
                false => gro.expire(now),
            }
            inside.push_released(gro, inward, rx, split_drops);
        }
        self.inside.transmit(&mut self.rx, &mut self.split_drops)?;
        self.is_due = self.gro.as_ref().and_then(Gro::deadline).is_some();
        Ok(())
    }

    /// Returns whether queued packets wait for a writable port, or for their time.
    fn has_waiting(&self) -> bool {
        self.inside.blocked || self.is_blocked() || self.is_due
    }

    /// Applies the settings; GRO releases what it holds.
    fn settle(&mut self) {
        for (outside, settings) in self.outsides.iter_mut().zip(&self.settings) {
            outside.end.set_egress(settings.egress[1]);
            outside.end.polls.weight = settings.sharing.weights[1] as usize;
        }
        let Some(first) = self.settings.first() else { return };
        self.flood_limit.set(first.flood.unwrap_or(0));
        self.inside.set_egress(first.egress[0]);
        self.inside.polls.weight = first.sharing.weights[0] as usize;
        (self.inward.cuts, self.outward.cuts) = (first.cuts(0), first.cuts(1));
        if let (Some(gro), Some(wanted)) = (&mut self.gro, &first.gro[0]) {
            self.joins = wanted.on;
            gro.reconfigure(wanted.config(&first.protocols, first.sharing.hold(wanted.hold())));
        }
        self.is_due = true;
    }

    /// Runs one round of the pipeline.
    fn move_packets(&mut self, now: Nanos) -> io::Result<Round> {
        self.renew();
        let mut round_robin = self.round_robin;
        // What waits is looked after whichever port has woken the loop.
        let wake = self.wake.take().filter(|_| !self.has_waiting());
        if let Some(wake) = wake {
            // The answers of this host to what comes in are there as soon as that is written.
            round_robin.begin_with(usize::from(wake > 1));
        }
        let before = self.taken;
        let budget = self.settings.first().map_or(1, |settings| settings.sharing.budget);
        let more = round_robin.round(budget, |from, left| match (from, wake) {
            // A call for each port that is known to have nothing would be most of the work for a lone packet.
            (0, Some(wake)) if wake & 1 == 0 && self.taken == before => Ok(Polled::Idle),
            (0, _) => self.send(now, left),
            (_, Some(1)) => Ok(Polled::Idle),
            (_, wake) => self.receive(now, left, wake),
        })?;
        self.round_robin = round_robin;
        let blocked = self.inside.blocked || self.is_blocked();
        Ok(if more && !blocked { Round::More } else { Round::Idle })
    }
}

impl Pipeline for Overlay {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        let begin = self.tables.is_changing().then(sys::thread_time);
        let round = self.move_packets(now);
        if let Some(begin) = begin {
            self.longest_change = self.longest_change.max(sys::thread_time().0.saturating_sub(begin.0));
        }
        round
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        self.inside.wait_to_read(self.is_blocked(), wait);
        self.outsides.iter().for_each(|outside| outside.end.wait_to_read(self.inside.blocked, wait));
        self.inside.wait_to_write(wait);
        self.outsides.iter().for_each(|outside| outside.end.wait_to_write(wait));
    }

    fn woken(&mut self, place: usize) {
        let wake = self.wake.get_or_insert_default();
        if place <= self.outsides.len() {
            *wake |= 1 << place;
        }
        match place.checked_sub(1) {
            None => self.inside.woken(0),
            Some(at) => self.outsides.get_mut(at).into_iter().for_each(|outside| outside.end.woken(0)),
        }
    }

    fn poll_policy(&self) -> PollPolicy {
        self.settings.first().map(|settings| settings.sharing.poll_policy()).unwrap_or_default()
    }

    fn taken(&self) -> u64 {
        self.taken
    }

    fn sent(&self) -> Option<u64> {
        Some(self.inside.sent() + self.outsides.iter().map(|outside| outside.end.sent()).sum::<u64>())
    }

    fn deadline(&self) -> Option<Nanos> {
        // Packets held for a blocked interface wait for it anyway.
        self.gro.as_ref().filter(|_| !self.inside.blocked)?.deadline()
    }

    fn close(&mut self) -> bool {
        self.inside.polls.closed = true;
        self.outsides.iter_mut().for_each(|outside| outside.end.polls.closed = true);
        self.settle();
        true
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        tune(&mut self.settings, dial);
        self.settle();
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        let name = self.inside.name.as_str();
        let verified = self.gro.as_ref().map_or(0, |gro| gro.stats().checksummed_bytes);
        self.inside.collect(self.inward.checksummed(), sink);
        self.outward.collect_traffic(name, sink);
        self.inward.collect_cuts(name, sink);
        self.wrapped.collect(name, Stage::Encap, sink);
        sink.put(name, Group::Port, "peer_tables", self.swaps);
        sink.put(name, Group::Port, "peer_table_round_ns", self.longest_change);
        sink.put(name, Group::Port, "icmp_errors", self.errors[0]);
        sink.put(name, Group::Port, "icmp_errors_limited", self.errors[1]);
        sink.reasons(name, Group::Drops, &self.drops);
        sink.reasons(name, Group::Drops, &self.encap_drops);
        sink.reasons(name, Group::Drops, &self.split_drops);
        if let Some(gro) = &self.gro {
            endpoint::collect_gro(name, gro.stats(), sink);
        }
        for (at, outside) in self.outsides.iter().enumerate() {
            let name = outside.end.name.as_str();
            let is_first = at == 0;
            outside.end.collect(if is_first { verified + self.outward.checksummed() } else { 0 }, sink);
            if is_first {
                self.outward.collect_cuts(name, sink);
                self.inward.collect_traffic(name, sink);
                self.joined.collect(name, Stage::Gro, sink);
            }
            outside.unwrapped.collect(name, Stage::Decap, sink);
            sink.put(name, Group::Remcsum, "sent", outside.remcsum[0]);
            sink.put(name, Group::Remcsum, "received", outside.remcsum[1]);
            sink.put(name, Group::Port, "inner_csum_unfinished", outside.unfinished);
            sink.reasons(name, Group::Drops, &outside.drops);
            sink.reasons(name, Group::Drops, &outside.decap_drops);
        }
    }
}
