//! A pair of ports with GRO, ingress and settings of each, which the gateway and the router share.

use std::collections::VecDeque;
use std::vec::Drain;

use segue::gro::{self, Gro};
use segue::gso;
use segue::hash::Key;
use segue::packet::{Csum, Frame, Packet, Pool};
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{Page, PagePool, Polled, Port, Received, RxBatch};

use crate::board::{Group, Sink, Stage};
use crate::endpoint::{self, Endpoint};
use crate::ingress::{Ingress, Traffic};
use crate::knobs::{Dial, Knobs};
use crate::napi::{PollPolicy, RoundRobin, Sharing};
use crate::tuning::{GroSettings, Protocols, Remcsum, Settings};

/// Longest time in nanoseconds that a train stays open while its port has more to read and no hold time is set: a train
/// may be longer than one round reads, and a port that always has more must not delay a packet of another flow.
const BUSY_HOLD: u64 = 50_000;

/// Number of rounds after which the state of the ports' interfaces is read even without an event.
const LISTEN_EVERY: u64 = 64;

/// One port of a gateway or a router, with its settings.
pub struct PortConfig {
    /// Name of the port in statistics: that of the interface.
    pub name: String,
    /// The port that packets are received and sent on.
    pub port: Box<dyn Port>,
    /// GRO for packets received on the port, which knobs can change and switch off later; with `None` packets are never
    /// joined. A hold time of 0 ends every train as soon as nothing more waits to be read.
    pub gro: Option<gro::Config>,
    /// Fragmentation of packets that exceed the MTU on egress, on behalf of their sender. With `None` the port refuses
    /// them, or a router fragments them by the MTU that it knows.
    pub fragments: Option<Fragments>,
}

impl PortConfig {
    /// Returns the endpoint of the port, without its GRO.
    pub(crate) fn endpoint(self) -> Endpoint {
        let mut end = Endpoint::new(self.name, self.port);
        if let Some(Fragments { mtu, key }) = self.fragments {
            // Linux sets DF on packets that it sends whole, and path MTU discovery concerns no others.
            end.fragment_to(mtu, gso::Fragment::Sender { clears_df: true });
            end.number_fragments(key);
        }
        end
    }
}

/// Fragmentation on behalf of the sender.
#[derive(Clone, Copy, Debug)]
pub struct Fragments {
    /// Length of the longest IP packet, bytes.
    pub mtu: usize,
    /// Key by which fragments are numbered; it should be random.
    pub key: Key,
}

/// Returns the knobs of a pair of the named ports, before it is created; `budget` as in [`PortPair::new`]. `more` adds
/// knobs of its own.
pub(crate) fn knobs(
    names: [&str; 2],
    gro: [Option<gro::Config>; 2],
    budget: usize,
    more: impl FnOnce(&mut Dial<'_>),
) -> Knobs {
    Knobs::of(|dial| {
        Settings::new(names.map(str::to_owned), gro, Remcsum::None, budget).tune(dial);
        more(dial);
    })
}

/// A pair of open ports with their state. Arrays are indexed by port.
pub(crate) struct PortPair {
    pub(crate) ends: [Endpoint; 2],
    /// GRO for the packets that each port receives.
    pub(crate) stages: [Option<GroStage>; 2],
    /// The ingress of the path to each port.
    pub(crate) ingress: [Ingress; 2],
    pub(crate) settings: Settings,
    /// Numbers of packets that could not be split for each port, by reason.
    pub(crate) split_drops: [Counts<gso::Refusal>; 2],
    pub(crate) rx: RxBatch,
    round_robin: RoundRobin,
    crossing: Crossing,
    rounds: u64,
}

/// Ports through which a packet may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crossing {
    /// Only the port that did not receive the packet.
    Other,
    /// Both ports, including the one that received the packet.
    Both,
}

/// GRO for the packets that one port receives.
pub(crate) struct GroStage {
    pub(crate) gro: Gro<Page>,
    pub(crate) on: bool,
    /// Whether packets are held for the hold time even when no more packets wait to be read.
    holds: bool,
    pub(crate) seen: Traffic,
}

impl GroStage {
    pub(crate) fn new(config: gro::Config) -> GroStage {
        let holds = config.hold > Nanos::ZERO;
        let hold = if holds { config.hold } else { Nanos(BUSY_HOLD) };
        let gro = Gro::new(gro::Config { hold, ..config });
        GroStage { gro, on: true, holds, seen: Traffic::default() }
    }

    /// Applies changed GRO settings to the stage. Packets that are held become ready first.
    pub(crate) fn retune(&mut self, gro: &GroSettings, protocols: &Protocols, sharing: &Sharing) {
        let hold = sharing.hold(gro.hold());
        (self.on, self.holds) = (gro.on, hold > 0);
        self.gro.reconfigure(gro.config(protocols, if self.holds { hold } else { BUSY_HOLD }));
    }

    /// Pushes a parsed packet.
    #[inline]
    pub(crate) fn push(&mut self, packet: Box<Packet<Page>>, now: Nanos, pool: &mut Pool<Page>) {
        self.seen.add(&packet);
        self.gro.push(packet, now, pool);
    }

    /// Pushes all packets that a port has received.
    #[inline(never)]
    pub(crate) fn push_all(&mut self, rx: &mut RxBatch, now: Nanos) {
        let RxBatch { packets, pool, .. } = rx;
        // As a list, since the places of a ring are costlier to find; nothing is moved for it, unless the
        // batch was popped from for another port before.
        let mut list = Vec::from(std::mem::take(packets));
        let mut rest = list.drain(..);
        loop {
            self.push_frames(&mut rest, |_| true, now, pool);
            let Some(packet) = next_packet(&mut rest) else { break };
            self.push(packet, now, pool);
        }
        drop(rest);
        *packets = VecDeque::from(list);
    }

    /// Pushes the frames at the front of a batch, up to the first packet that is parsed or that `is_meant` does not
    /// accept. They go to GRO unparsed, and most of them are never parsed. The payload of the next ones is asked for
    /// ahead: no code but the device and the kernel has touched it yet.
    #[inline(always)]
    pub(crate) fn push_frames(
        &mut self,
        rest: &mut Drain<'_, Received>,
        is_meant: impl Fn(&Frame<Page>) -> bool,
        now: Nanos,
        pool: &mut Pool<Page>,
    ) {
        const AHEAD: usize = 2;
        let before = rest.as_slice().len();
        while let Some(Received::Frame(frame)) = rest.as_slice().first()
            && is_meant(frame)
        {
            self.seen.add_bytes_of(frame.len());
            // Payload is read only where the checksum is not known.
            if frame.csum == Csum::Unknown
                && let Some(Received::Frame(later)) = rest.as_slice().get(AHEAD)
            {
                later.prefetch();
            }
            self.gro.push_from(rest, first_frame, next_frame, now, pool);
        }
        self.seen.add_frames((before - rest.as_slice().len()) as u64);
    }

    /// Ends the trains that must end after a poll with the given result.
    #[inline(never)]
    pub(crate) fn settle(&mut self, polled: Polled, now: Nanos) {
        match polled {
            Polled::Idle if !self.holds => self.gro.flush(),
            Polled::Idle | Polled::More => self.gro.expire(now),
            // The packets that are held occupy the pages that are missing.
            Polled::Starved => self.gro.flush(),
        }
    }
}

/// Returns the next packet, if it is a frame.
#[inline(always)]
fn first_frame<'a>(rest: &'a Drain<'_, Received>) -> Option<&'a Frame<Page>> {
    match rest.as_slice().first() {
        Some(Received::Frame(frame)) => Some(frame),
        _ => None,
    }
}

/// Takes the next packet, which is a frame.
// Both cases are named, here and below, so that no whole packet is put in memory for the one that does not occur.
#[inline(always)]
fn next_frame(rest: &mut Drain<'_, Received>) -> Option<Frame<Page>> {
    match rest.next()? {
        Received::Frame(frame) => Some(frame),
        Received::Packet(packet) => {
            drop(packet);
            None
        }
    }
}

/// Takes the next packet, which is parsed.
#[inline(always)]
fn next_packet(rest: &mut Drain<'_, Received>) -> Option<Box<Packet<Page>>> {
    match rest.next()? {
        Received::Frame(frame) => {
            drop(frame);
            None
        }
        Received::Packet(packet) => Some(packet),
    }
}

impl PortPair {
    /// Returns a pair of ports with their initial settings; `budget` is the initial weight of both.
    pub(crate) fn new(ports: [PortConfig; 2], budget: usize, pages: PagePool, crossing: Crossing) -> PortPair {
        let configs = ports.each_ref().map(|port| port.gro);
        let names = ports.each_ref().map(|port| port.name.clone());
        let mut made = PortPair {
            ends: ports.map(PortConfig::endpoint),
            stages: configs.map(|config| config.map(GroStage::new)),
            ingress: Default::default(),
            settings: Settings::new(names, configs, Remcsum::None, budget),
            split_drops: Default::default(),
            rx: RxBatch::over(pages),
            round_robin: RoundRobin::default(),
            crossing,
            rounds: 0,
        };
        made.settle();
        made
    }

    /// Applies the settings to both ports.
    fn settle(&mut self) {
        let Settings { protocols, egress, gro, sharing, .. } = &self.settings;
        for at in 0..2 {
            self.ends[at].set_egress(egress[at]);
            self.ends[at].polls.weight = sharing.weights[at] as usize;
            let from = |end: usize| end != at || self.crossing == Crossing::Both;
            let mut feeding = gro.iter().enumerate().filter(|(end, _)| from(*end)).filter_map(|(_, one)| one.as_ref());
            self.ends[at].exact = feeding.any(GroSettings::is_strict);
            self.ingress[at].exact = self.ends[at].exact;
            self.ingress[at].cuts = self.settings.cuts(at);
            if let (Some(join), Some(gro)) = (&mut self.stages[at], &gro[at]) {
                join.retune(gro, protocols, sharing);
            }
        }
    }

    pub(crate) fn close(&mut self) {
        self.ends.iter_mut().for_each(|end| end.polls.closed = true);
        self.settle();
    }

    pub(crate) fn tune(&mut self, dial: &mut Dial<'_>) {
        self.settings.tune(dial);
        self.settle();
    }

    /// Begins a round: returns the order of the ports and the budget. [`PortPair::end_round`] takes the order back.
    pub(crate) fn begin_round(&mut self) -> (RoundRobin, u64) {
        self.rounds = self.rounds.wrapping_add(1);
        // A loop that never sleeps is never woken for it.
        let looks = self.rounds.is_multiple_of(LISTEN_EVERY);
        self.ends.iter_mut().for_each(|end| end.listen(looks));
        (self.round_robin, self.settings.sharing.budget)
    }

    pub(crate) fn end_round(&mut self, round_robin: RoundRobin) {
        self.round_robin = round_robin;
    }

    /// Records that one of the ports' interests, in their order, woke the loop.
    pub(crate) fn woken(&mut self, place: usize) {
        endpoint::woken(&mut self.ends, place);
    }

    pub(crate) fn poll_policy(&self) -> PollPolicy {
        self.settings.sharing.poll_policy()
    }

    /// Returns the number of packets received from both ports so far.
    pub(crate) fn taken(&self) -> u64 {
        self.ends.iter().map(|end| end.polls.taken).sum()
    }

    /// Returns whether a port's queue is full.
    pub(crate) fn is_blocked(&self) -> bool {
        self.ends.iter().any(|end| end.blocked)
    }

    /// Writes the counters of the port with index `at`.
    pub(crate) fn collect(&self, at: usize, sink: &mut Sink<'_>) {
        let (end, join) = (&self.ends[at], &self.stages[at]);
        self.ingress[1 - at].collect(&end.name, &self.ends[1 - at].name, sink);
        let stats = join.as_ref().map(|join| join.gro.stats());
        end.collect(stats.map_or(0, |stats| stats.checksummed_bytes) + self.ingress[at].checksummed(), sink);
        sink.reasons(&end.name, Group::Drops, &self.split_drops[at]);
        if let Some(join) = join {
            join.seen.collect(&end.name, Stage::Gro, sink);
        }
        if let Some(stats) = stats {
            endpoint::collect_gro(&end.name, stats, sink);
        }
    }
}
