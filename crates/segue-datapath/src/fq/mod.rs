//! Fair queues of packets by flow, for a port that is slower than its traffic (FQ-CoDel, RFC 8290).
//!
//! Flows take turns, each with as many bytes (deficit round robin). A flow that has just begun to wait comes before all
//! that have waited longer, so that a packet of a flow that seldom sends passes the trains of the others. Each flow's
//! queue is under CoDel ([`codel`]), which tells the sender of a flow whose packets wait too long, unless only a few
//! trains wait.
//!
//! Nothing is read from a port while the queues are full: what comes in beyond that waits in the kernel, and no packet
//! that was read is dropped for lack of room. Memory is taken when packets wait for the first time, once for all.

mod codel;

use segue::time::Nanos;

use codel::{Codel, Taken};
pub(crate) use codel::{Signalled, Times};

/// Number of queues, over which flows are spread by their hash.
const FLOWS: usize = 1024;
/// Quantum: number of bytes that a flow may send in its turn. Short trains go together, and the receiver's GRO makes
/// long ones of them; alternating with those of other flows they would stay short at each later step, and each would
/// have an acknowledgment of its own. It is below the length of a long train: a flow that has just begun is no longer
/// first after one.
const QUANTUM: i64 = 48 << 10;
/// Number of packets of the largest size up to which a flow's queue is short: CoDel does not signal its sender. Linux's
/// TCP makes trains of at most a third of its window (`tcp_tso_win_divisor`), and a signal halves the window: from
/// fewer than six trains it would go on with shorter ones, of which each costs nearly as much as a long one.
const TRAINS: usize = 6;
/// Number of times the target after which a packet has waited for long, so that even a short queue is one too many: a
/// slow link sends a few trains for as long.
const LATE: u64 = 8;
/// Largest number of queued packets.
const MOST_PACKETS: usize = 1024;

const NONE: u32 = u32::MAX;

/// The settings of the queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) times: Times,
    /// Number of queued bytes at which ports are no longer read.
    pub(crate) limit: usize,
}

/// An entry for one waiting packet, in the list of its flow or in the free list.
#[derive(Debug)]
struct Place<P> {
    packet: Option<P>,
    bytes: u32,
    since: Nanos,
    next: u32,
}

/// The list of flows that a flow is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum In {
    #[default]
    Neither,
    New,
    Old,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Entry of the oldest packet.
    head: u32,
    /// Entry of the newest packet.
    tail: u32,
    bytes: usize,
    deficit: i64,
    codel: Codel,
    list: In,
    next: u32,
}

/// A list of flows, first in, first out.
#[derive(Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// Queues of packets by flow; see the [module](self).
#[derive(Debug)]
pub(crate) struct FlowQueues<P> {
    config: Config,
    flows: Vec<Flow>,
    places: Vec<Place<P>>,
    free: u32,
    new: List,
    old: List,
    packets: usize,
    bytes: usize,
    /// Number of flows with packets.
    active: usize,
    /// Length of the largest packet so far, bytes.
    largest: usize,
}

impl List {
    const EMPTY: List = List { head: NONE, tail: NONE };

    fn push(&mut self, flows: &mut [Flow], at: u32) {
        flows[at as usize].next = NONE;
        match self.tail {
            NONE => self.head = at,
            tail => flows[tail as usize].next = at,
        }
        self.tail = at;
    }

    /// Removes the first flow from the list.
    fn shift(&mut self, flows: &[Flow]) {
        if let Some(flow) = flows.get(self.head as usize) {
            self.head = flow.next;
            if self.head == NONE {
                self.tail = NONE;
            }
        }
    }
}

impl<P> FlowQueues<P> {
    /// Creates flow queues without packets.
    pub(crate) fn new(config: Config) -> FlowQueues<P> {
        FlowQueues {
            config,
            flows: Vec::new(),
            places: Vec::new(),
            free: NONE,
            new: List::EMPTY,
            old: List::EMPTY,
            packets: 0,
            bytes: 0,
            active: 0,
            largest: 0,
        }
    }

    /// Changes the settings of the queues; queued packets keep their places.
    pub(crate) fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// Returns whether no packet waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns whether no more packets should be read.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= self.config.limit || self.packets >= MOST_PACKETS
    }

    /// Appends a packet to the flow with the given hash.
    pub(crate) fn push(&mut self, packet: P, hash: u64, bytes: usize, now: Nanos) {
        if self.flows.is_empty() {
            let codel = Codel::default();
            let flow = Flow { head: NONE, tail: NONE, bytes: 0, deficit: 0, codel, list: In::Neither, next: NONE };
            self.flows.resize(FLOWS, flow);
            self.places.reserve_exact(MOST_PACKETS);
        }
        let place = Place { packet: Some(packet), bytes: bytes as u32, since: now, next: NONE };
        let to = match self.places.get_mut(self.free as usize) {
            Some(free) => {
                let to = std::mem::replace(&mut self.free, free.next);
                *free = place;
                to
            }
            None => {
                self.places.push(place);
                (self.places.len() - 1) as u32
            }
        };
        let at = (hash % FLOWS as u64) as u32;
        let flow = &mut self.flows[at as usize];
        match flow.tail {
            NONE => {
                flow.head = to;
                self.active += 1;
            }
            tail => self.places[tail as usize].next = to,
        }
        flow.tail = to;
        flow.bytes += bytes;
        (self.bytes, self.packets, self.largest) = (self.bytes + bytes, self.packets + 1, self.largest.max(bytes));
        if flow.list == In::Neither {
            (flow.list, flow.deficit) = (In::New, QUANTUM);
            self.new.push(&mut self.flows, at);
        }
    }

    /// Removes and returns the next packet in fair order. `signal` tells the sender of a flow that its packets wait too
    /// long.
    pub(crate) fn pop(&mut self, now: Nanos, mut signal: impl FnMut(P) -> Signalled<P>) -> Option<P> {
        loop {
            let is_new = self.new.head != NONE;
            let at = if is_new { self.new.head } else { self.old.head };
            if at == NONE {
                return None;
            }
            if self.flows[at as usize].deficit <= 0 {
                self.flows[at as usize].deficit += QUANTUM;
                self.requeue(at, is_new);
                continue;
            }
            match self.pop_from(at as usize, now, &mut signal) {
                Some(packet) => return Some(packet),
                // A flow that was new passes the others no second time.
                None if is_new && self.old.head != NONE => self.requeue(at, is_new),
                None => {
                    let list = if is_new { &mut self.new } else { &mut self.old };
                    list.shift(&self.flows);
                    self.flows[at as usize].list = In::Neither;
                }
            }
        }
    }

    /// Moves the first flow of a list to the end of the list of old flows.
    fn requeue(&mut self, at: u32, is_new: bool) {
        let list = if is_new { &mut self.new } else { &mut self.old };
        list.shift(&self.flows);
        self.flows[at as usize].list = In::Old;
        self.old.push(&mut self.flows, at);
    }

    /// Takes the next packet of one flow and reduces its deficit.
    fn pop_from(&mut self, at: usize, now: Nanos, signal: impl FnMut(P) -> Signalled<P>) -> Option<P> {
        // A flow that has its share of full queues cannot wait for an interval. What is full of short packets may be so
        // by a flow with few bytes.
        let has_share = self.flows[at].bytes as u64 * self.active as u64 >= self.bytes as u64;
        let is_full = self.is_full() && (has_share || self.packets >= MOST_PACKETS);
        let (times, mut codel, mut bytes) = (self.config.times, self.flows[at].codel, 0);
        let take = || {
            let (taken, len) = self.take(at, now, is_full)?;
            bytes = len;
            Some(taken)
        };
        let next = codel.next(&times, now, is_full, take, signal);
        let flow = &mut self.flows[at];
        flow.codel = codel;
        if next.is_some() {
            flow.deficit -= bytes as i64;
        }
        next
    }

    /// Takes the oldest packet of one flow. Returns it with its length. `is_full` says that the flow fills the queues.
    fn take(&mut self, at: usize, now: Nanos, is_full: bool) -> Option<(Taken<P>, usize)> {
        let flow = &mut self.flows[at];
        let index = flow.head;
        let place = self.places.get_mut(index as usize)?;
        let packet = place.packet.take()?;
        let (bytes, since) = (place.bytes as usize, place.since);
        flow.head = std::mem::replace(&mut place.next, self.free);
        self.free = index;
        if flow.head == NONE {
            flow.tail = NONE;
            self.active -= 1;
        }
        flow.bytes -= bytes;
        let left = flow.bytes;
        (self.bytes, self.packets) = (self.bytes - bytes, self.packets - 1);
        let sojourn = Nanos(now.0.saturating_sub(since.0));
        let is_late = sojourn.0 >= LATE.saturating_mul(self.config.times.target.0);
        let short = if is_full || is_late { self.largest } else { self.short() };
        Some((Taken { packet, sojourn, is_long: left > short }, bytes))
    }

    /// Returns the number of bytes up to which the queue of a flow is short.
    fn short(&self) -> usize {
        // Many flows would fill the queues with so many trains each, and ports are not read then: the flows share three
        // quarters of the limit.
        let share = self.config.limit / 4 * 3 / self.active.max(1);
        share.min(TRAINS * self.largest).max(self.largest)
    }
}

#[cfg(test)]
mod tests;
