//! Packets queued by flow for the outside port or for the inside ports.

use segue::encap::{Flows, mark_congestion};
use segue::hash::Key;
use segue::packet::Packet;
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{Page, RxBatch};

use super::dropped::Dropped;
use crate::board::{Group, Sink};
use crate::fq::{FlowQueues, Signalled};
use crate::ingress::packets;
use crate::tuning::QueueSettings;

/// Smallest number of bytes in one poll at which the packets are queued by flow even if the queues are empty, because
/// they would noticeably delay a following packet.
const MANY: usize = 128 << 10;

/// A queued packet, and the index of its tunnel.
type Waiting = (usize, Box<Packet<Page>>);

/// The next packet to send.
pub(super) struct Next {
    pub(super) member: usize,
    pub(super) packet: Box<Packet<Page>>,
    /// Whether the first packet of the train is to be dropped, for CoDel.
    pub(super) loses_first: bool,
}

/// A direction through the tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The direction to the outside port.
    Outward,
    /// The direction to the inside ports.
    Inward,
}

/// Queues of all tunnels that share an outside port: for packets to it, and for packets received from it.
#[derive(Debug)]
pub(super) struct Queues {
    directions: [FlowQueues<Waiting>; 2],
    flows: Flows,
    settings: QueueSettings,
    /// Number of packets and trains that were queued.
    queued: u64,
    /// Number of packets that CoDel marked.
    marked: u64,
    /// Number of rounds in which a port was not read because its queues were full.
    full: u64,
}

impl Queues {
    /// Returns empty queues; `key` is the key by which flows are spread over them.
    pub(super) fn new(key: Key, settings: QueueSettings) -> Queues {
        let directions = [(); 2].map(|()| FlowQueues::new(settings.config()));
        let [low, high] = key.0;
        let seed = std::array::from_fn(|at| if at < 8 { low.to_le_bytes()[at] } else { high.to_le_bytes()[at - 8] });
        Queues { directions, flows: Flows::new(seed), settings, queued: 0, marked: 0, full: 0 }
    }

    /// Applies changed queue settings. What waits is sent in its order, even where queues are off from now on.
    pub(super) fn settle(&mut self, settings: QueueSettings) {
        self.settings = settings;
        self.directions.iter_mut().for_each(|queues| queues.configure(settings.config()));
    }

    /// Returns whether packets are queued in the direction.
    pub(super) fn has(&self, direction: Direction) -> bool {
        !self.directions[direction as usize].is_empty()
    }

    /// Returns whether reading must stop, because queues are full or `is_short`, and counts it.
    pub(super) fn is_full(&mut self, direction: Direction, is_short: bool) -> bool {
        let is_full = is_short || self.directions[direction as usize].is_full();
        self.full += u64::from(is_full);
        is_full
    }

    /// Returns whether the `count` packets read by a poll must pass the queues.
    pub(super) fn wants(&self, direction: Direction, count: usize, bytes: impl FnOnce() -> usize) -> bool {
        self.has(direction) || self.settings.on && count > 1 && bytes() > MANY
    }

    /// Queues a packet for the tunnel with the given index.
    pub(super) fn push(&mut self, direction: Direction, member: usize, packet: Box<Packet<Page>>, now: Nanos) {
        let (hash, bytes) = (self.flows.of(&packet), packet.len());
        self.directions[direction as usize].push((member, packet), hash, bytes, now);
        self.queued += 1;
    }

    /// Returns the next packet in fair order. Where its flow has waited for long, its sender is told, by a mark or by
    /// the loss of one packet.
    pub(super) fn next(
        &mut self,
        direction: Direction,
        rx: &mut RxBatch,
        drops: &mut Counts<Dropped>,
        now: Nanos,
    ) -> Option<Next> {
        let Queues { directions, settings, marked, .. } = self;
        let mut loses_first = false;
        let next = directions[direction as usize].pop(now, |(member, mut packet)| {
            if settings.ecn && mark_congestion(&mut packet) {
                *marked += packets(&packet);
                return Signalled::Sent((member, packet));
            }
            drops.add(Dropped::Codel);
            // The loss of one packet says all that the loss of a train would, and costs its sender less.
            if packets(&packet) > 1 {
                loses_first = true;
                return Signalled::Sent((member, packet));
            }
            rx.pool.put(packet);
            Signalled::Dropped
        });
        next.map(|(member, packet)| Next { member, packet, loses_first })
    }

    pub(super) fn collect(&self, name: &str, sink: &mut Sink<'_>) {
        for (key, value) in [("queued", self.queued), ("marked", self.marked), ("queues_full", self.full)] {
            sink.put(name, Group::Port, key, value);
        }
    }
}
