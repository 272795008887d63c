//! The packets that wait for the outside port or for the inside ports, in queues by flow.

use segue::encap::mark_congestion;
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

/// Bytes of one poll from which on its packets are put in order by flow even with empty queues: they would delay a
/// packet that follows them noticeably.
const MANY: usize = 128 << 10;

/// A packet, and the index of the tunnel that it is for.
type Waiting = (usize, Box<Packet<Page>>);

/// A packet that is to be sent.
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

/// The queues of all tunnels that share an outside port: packets that wait for it, and packets that it has received.
#[derive(Debug)]
pub(super) struct Queues {
    directions: [FlowQueues<Waiting>; 2],
    key: Key,
    settings: QueueSettings,
    /// Packets and trains that waited.
    queued: u64,
    /// Packets that were marked.
    marked: u64,
    /// Rounds in which a port was not read because its queues were full.
    full: u64,
}

impl Queues {
    /// Returns empty queues; `key` is the hash key of flows.
    pub(super) fn new(key: Key, settings: QueueSettings) -> Queues {
        let directions = [(); 2].map(|()| FlowQueues::new(settings.config()));
        Queues { directions, key, settings, queued: 0, marked: 0, full: 0 }
    }

    /// Applies the settings. What waits is sent in its order, even where queues are off from now on.
    pub(super) fn settle(&mut self, settings: QueueSettings) {
        self.settings = settings;
        self.directions.iter_mut().for_each(|queues| queues.configure(settings.config()));
    }

    /// Returns whether packets wait.
    pub(super) fn has(&self, direction: Direction) -> bool {
        !self.directions[direction as usize].is_empty()
    }

    /// Returns whether no more is to be read, because queues are full or `is_short`, which is counted.
    pub(super) fn is_full(&mut self, direction: Direction, is_short: bool) -> bool {
        let is_full = is_short || self.directions[direction as usize].is_full();
        self.full += u64::from(is_full);
        is_full
    }

    /// Returns whether the `count` packets that a poll has read have to pass the queues.
    pub(super) fn wants(&self, direction: Direction, count: usize, bytes: impl FnOnce() -> usize) -> bool {
        self.has(direction) || self.settings.on && count > 1 && bytes() > MANY
    }

    /// Takes a packet for the tunnel with this index.
    pub(super) fn push(&mut self, direction: Direction, member: usize, packet: Box<Packet<Page>>, now: Nanos) {
        let (hash, bytes) = (flow(&packet, self.key), packet.len());
        self.directions[direction as usize].push((member, packet), hash, bytes, now);
        self.queued += 1;
    }

    /// Returns the packet whose turn it is. Where its flow has waited for long, its sender is told, by a mark or by the
    /// loss of one packet.
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

/// Returns the hash of a packet's flow: addresses and ports, the MAC addresses where there is no IP.
fn flow(packet: &Packet<Page>, key: Key) -> u64 {
    let head = packet.head.bytes();
    let Some(ip) = packet.layout.outer_ip() else { return key.hash(&head[..head.len().min(14)]) };
    let mut bytes = [0; 37];
    let mut len = 0;
    let mut add = |part: Option<&[u8]>| {
        for (to, from) in bytes[len..].iter_mut().zip(part.unwrap_or(&[])) {
            *to = *from;
            len += 1;
        }
    };
    let header = head.get(ip.start()..ip.end()).unwrap_or(&[]);
    let is_v4 = header.first().is_some_and(|first| first >> 4 == 4);
    add(header.get(if is_v4 { 12..20 } else { 8..40 }));
    add(header.get(if is_v4 { 9..10 } else { 6..7 }));
    if let Some((_, transport)) = packet.transport() {
        add(transport.get(..4));
    }
    key.hash(&bytes[..len])
}
