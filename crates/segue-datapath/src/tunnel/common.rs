//! State and counters that the tunnels of one outside port share.

use segue::encap::{DecapRefusal, OuterCsum};
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{PagePool, RxBatch};

use super::dropped::Dropped;
use super::queue::{Direction, Next, Queues};
use crate::endpoint::Endpoint;
use crate::ingress::{CutCounts, Traffic};

/// The outside port, the receive buffers and the counters that all tunnels share; the counters are published under the
/// outside port's name.
pub(super) struct Common {
    pub(super) outside: Endpoint,
    pub(super) rx: RxBatch,
    /// Pages for ICMP errors and replies to probes.
    pub(super) replies: PagePool,
    /// Largest number of pages to receive into.
    pub(super) pages: usize,
    pub(super) outer_csum: OuterCsum,
    /// Number of packets and bursts received from all ports.
    pub(super) taken: u64,
    /// Counters of remote checksum offload, where the receiver completes the checksum.
    pub(super) remote: Remote,
    /// Counters of packets after decapsulation.
    pub(super) unwrapped: Traffic,
    /// Packets and trains after GRO.
    pub(super) joined: Traffic,
    /// Packets and trains that entered encapsulation.
    pub(super) entered: Traffic,
    /// Packets split by GSO on egress.
    pub(super) cuts: CutCounts,
    /// Number of payload bytes summed to verify checksums.
    pub(super) verified: u64,
    /// Ethernet addresses learned, moved and evicted.
    pub(super) fdb: [u64; 3],
    /// Packets that are queued for the ports.
    pub(super) queues: Queues,
    /// Whether the packets received last pass the queues.
    pub(super) queues_in: bool,
    pub(super) drops: Counts<Dropped>,
    pub(super) decap_drops: Counts<DecapRefusal>,
}

/// Counters of remote checksum offload, where the receiver completes the checksum.
#[derive(Debug, Default)]
pub(super) struct Remote {
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Common {
    /// Returns whether reading stops in a direction, because its queues are full or packets hold most pages.
    pub(super) fn is_full(&mut self, direction: Direction) -> bool {
        let is_short = self.queues.has(direction) && self.rx.pages.in_use() > self.pages / 4 * 3;
        self.queues.is_full(direction, is_short)
    }

    /// Returns the next queued packet in fair order.
    pub(super) fn next(&mut self, direction: Direction, now: Nanos) -> Option<Next> {
        self.queues.next(direction, &mut self.rx, &mut self.drops, now)
    }
}
