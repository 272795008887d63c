//! One port of a running bridge: its queue, its credit and its counters.

use std::cell::Cell;

use segue::encap::Mac;
use segue::gro::Popped;
use segue::gso;
use segue::packet::Packet;
use segue::reason::Counts;
use segue::time::Nanos;
use segue::wire::ethernet;
use segue_port::{Page, Received, RxBatch};

use super::{BridgePort, Dropped};
use crate::board::{Group, Sink, Stage};
use crate::endpoint::{self, Endpoint};
use crate::flood::FloodLimit;
use crate::ingress::{Ingress, Traffic, packets};
use crate::port_pair::GroStage;
use crate::stall::Stall;

/// Largest number of bytes in a blocked port's queue.
const QUEUE_BYTES: usize = 1 << 20;
/// Largest number of packets and trains in a blocked port's queue.
const QUEUE_LEN: usize = 4096;
/// Bytes added per packet or train when a port is charged, for work that does not depend on the length.
const OVERHEAD: usize = 512;
/// Number of bytes of a train for which one segment is free; further segments are charged like packets. Trains of usual
/// segments cost one packet, since most ports take them whole. Those of very short ones cost nearly as much as their
/// packets alone, whether they are cut here, by the kernel, or not at all: a guest whose trains have thousands of
/// segments, for a port that takes no trains, would otherwise get many times its share of the work.
const SEGMENT: usize = 1024;

/// A port of a bridge.
pub(super) struct Port {
    pub(super) end: Endpoint,
    /// GRO for the packets that the port receives.
    pub(super) stage: Option<GroStage>,
    /// The ingress of the path to the port.
    pub(super) path: Ingress,
    /// Traffic that the port received, at the ingress.
    entered: Traffic,
    /// Numbers of packets that could not be split for the port, by reason.
    pub(super) split_drops: Counts<gso::Refusal>,
    pub(super) drops: Counts<Dropped>,
    pub(super) flood: FloodLimit,
    pub(super) numbers: Numbers,
    pub(super) own: Option<Mac>,
    /// Number of bytes that the port may still send in its turn; below 0 its turn is skipped.
    pub(super) credit: i64,
    /// Mean cost of the packets and trains received last, bytes.
    mean: usize,
    /// Bytes queued since the port was blocked.
    queued: usize,
    /// Whether the port is in the lists of active ports, of ports with packets to send, and of blocked ports.
    pub(super) is_active: bool,
    pub(super) is_touched: bool,
    pub(super) is_waiting: bool,
    pub(super) was_up: bool,
    /// Whether the port has woken the loop since its last turn, and the guard against wake-ups without packets.
    pub(super) has_called: bool,
    pub(super) link_calls: u32,
    pub(super) guard: Stall,
    /// Whether the last poll of the port ended for lack of memory.
    pub(super) is_starved: bool,
    /// The time until which the port is muted.
    pub(super) muted: Option<Nanos>,
    /// Whether counters may have changed since they were published.
    pub(super) moved: Cell<bool>,
    /// Numbers of the port's counters and of its stations at the last write; `None` before the first.
    collected: Cell<Option<(usize, usize)>>,
    pub(super) recent: Recent,
}

/// Counters that only a bridge's ports have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub(super) learned: u64,
    pub(super) moved: u64,
    pub(super) full: u64,
    pub(super) flooded: u64,
    pub(super) pauses: u64,
}

/// The last forwarding decision of a port, which usually applies to the next packet too.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    /// Destination and source addresses of the frame.
    pub(super) addresses: [u8; 12],
    pub(super) to: usize,
    /// The generation of the station table on which the decision is based.
    pub(super) generation: u64,
    /// Time until which the decision is valid.
    pub(super) until: Nanos,
}

impl Port {
    pub(super) fn new(port: BridgePort) -> Port {
        let stage = port.config.gro.map(GroStage::new);
        Port {
            end: port.config.endpoint(),
            stage,
            path: Ingress::default(),
            entered: Traffic::default(),
            split_drops: Counts::default(),
            drops: Counts::default(),
            flood: FloodLimit::default(),
            numbers: Numbers::default(),
            own: port.own,
            credit: 0,
            mean: 0,
            queued: 0,
            is_active: false,
            is_touched: false,
            is_waiting: false,
            was_up: false,
            has_called: false,
            link_calls: 0,
            guard: Stall::default(),
            is_starved: false,
            muted: None,
            moved: Cell::new(true),
            collected: Cell::new(None),
            recent: Recent::default(),
        }
    }

    /// Returns the number of packets that the port may send with its credit, at least one.
    pub(super) fn affordable(&self) -> usize {
        (self.credit.max(0) as usize / self.mean.max(OVERHEAD)).max(1)
    }

    /// Charges the port for the packets that it has just received. Returns the number of segments that were charged
    /// like packets.
    pub(super) fn charge(&mut self, rx: &RxBatch) -> usize {
        let (mut bytes, mut short) = (0, 0);
        for received in &rx.packets {
            bytes += received.len();
            if let Received::Packet(packet) = received {
                short += short_segments(packet);
            }
        }
        let count = rx.packets.len();
        let cost = bytes + (count + short) * OVERHEAD;
        self.mean = cost.checked_div(count).unwrap_or(self.mean);
        self.credit -= cost as i64;
        short
    }

    /// Charges the port for copies of a packet of this cost beyond the first.
    pub(super) fn charge_copies(&mut self, cost: usize, copies: usize) {
        self.credit -= (cost * copies.saturating_sub(1)) as i64;
    }

    /// Queues a packet received from the port `from`, unless this port is blocked and its queue is full.
    pub(super) fn take(&mut self, from: &mut Port, popped: Popped<Page>, rx: &mut RxBatch) {
        self.moved.set(true);
        let len = len(&popped);
        if self.end.blocked {
            if self.queued + len > QUEUE_BYTES || self.end.waiting() >= QUEUE_LEN {
                self.drops.add_many(Dropped::Queue, segments(&popped));
                if let Popped::Packet(packet) = popped {
                    rx.pool.put(packet);
                }
                return;
            }
            self.queued += len;
        }
        let Port { end, path, split_drops, .. } = self;
        path.swap_traffic(&mut from.entered);
        match popped {
            Popped::Packet(packet) => {
                path.each(packet, rx, split_drops, |packet, rx, drops| end.push(packet, rx, drops));
            }
            Popped::Frame(frame) => {
                path.pass(len);
                end.push_frame(frame, rx, split_drops);
            }
        }
        path.swap_traffic(&mut from.entered);
    }

    /// Transmits the packets that are queued for the port.
    pub(super) fn transmit(&mut self, rx: &mut RxBatch) -> std::io::Result<()> {
        let sent = self.end.transmit(rx, &mut self.split_drops);
        if !self.end.blocked {
            self.queued = 0;
        }
        sent
    }

    /// Drops the packets queued for the port, which is blocked.
    pub(super) fn shed(&mut self, rx: &mut RxBatch) {
        self.moved.set(true);
        self.drops.add_many(Dropped::Memory, self.end.drop_waiting(rx));
        self.queued = 0;
    }

    /// Writes the port's counters, or skips them if none has changed; `stations` is the number of stations learned at
    /// the port.
    pub(super) fn collect(&self, stations: usize, sink: &mut Sink<'_>) {
        let known = self.collected.get().filter(|(_, before)| !self.moved.get() && *before == stations);
        if known.is_some_and(|(count, _)| sink.skip(count)) {
            return;
        }
        let before = sink.place();
        self.write(stations, sink);
        // Names are listed before any value is written.
        if sink.skip(0) {
            self.moved.set(false);
            self.collected.set(Some((sink.place() - before, stations)));
        }
    }

    fn write(&self, stations: usize, sink: &mut Sink<'_>) {
        let name = self.end.name.as_str();
        self.entered.collect(name, Stage::Ingress, sink);
        self.path.collect_cuts(name, sink);
        let stats = self.stage.as_ref().map(|stage| stage.gro.stats());
        self.end.collect(stats.map_or(0, |stats| stats.checksummed_bytes) + self.path.checksummed(), sink);
        sink.reasons(name, Group::Drops, &self.split_drops);
        sink.reasons(name, Group::Drops, &self.drops);
        let Numbers { learned, moved, full, flooded, pauses } = self.numbers;
        for (key, value) in [
            ("fdb_entries", stations as u64),
            ("fdb_learned", learned),
            ("fdb_moved", moved),
            ("fdb_full", full),
            ("flooded", flooded),
            ("pauses", pauses),
        ] {
            sink.put(name, Group::Port, key, value);
        }
        if let (Some(stage), Some(stats)) = (&self.stage, stats) {
            stage.seen.collect(name, Stage::Gro, sink);
            endpoint::collect_gro(name, stats, sink);
        }
    }
}

/// Returns the length of a packet, a train or a frame, bytes.
fn len(popped: &Popped<Page>) -> usize {
    match popped {
        Popped::Packet(packet) => packet.len(),
        Popped::Frame(frame) => frame.len(),
    }
}

/// Returns the cost of a packet, a train or a frame, bytes.
pub(super) fn cost(popped: &Popped<Page>) -> usize {
    let short = match popped {
        Popped::Packet(packet) => short_segments(packet),
        Popped::Frame(_) => 0,
    };
    len(popped) + (1 + short) * OVERHEAD
}

/// Returns the number of further segments of a train that are charged like packets.
fn short_segments(packet: &Packet<Page>) -> usize {
    (packets(packet) as usize).saturating_sub(1 + packet.len() / SEGMENT)
}

/// Returns the number of packets in a packet, a train or a frame.
pub(super) fn segments(popped: &Popped<Page>) -> u64 {
    match popped {
        Popped::Packet(packet) => packets(packet),
        Popped::Frame(_) => 1,
    }
}

/// Returns the addresses of a frame, destination and source.
pub(super) fn addresses(popped: &Popped<Page>) -> Option<[u8; 12]> {
    const LEN: usize = ethernet::LEN;
    let front = match popped {
        Popped::Packet(packet) => packet.head.bytes(),
        Popped::Frame(frame) => frame.bytes.bytes(),
    };
    if let Some(front) = front.get(..LEN) {
        return front[..12].try_into().ok();
    }
    // A packet without a header that is known.
    let Popped::Packet(packet) = popped else { return None };
    let mut found = front.to_vec();
    found.extend(packet.payload.pieces(0..packet.payload.len()).flatten().copied().take(LEN - front.len()));
    if found.len() < LEN { None } else { found[..12].try_into().ok() }
}

/// Returns another packet with the same content. The payload is shared.
pub(super) fn copy(popped: &Popped<Page>, rx: &mut RxBatch) -> Popped<Page> {
    match popped {
        Popped::Frame(frame) => Popped::Frame(frame.clone()),
        Popped::Packet(packet) => {
            let mut copy = rx.pool.take();
            copy.copy_from(packet);
            Popped::Packet(copy)
        }
    }
}
