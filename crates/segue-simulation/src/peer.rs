//! The peer: a host that is never the bottleneck, connected by a wire of 1 Gbit/s and a switch.

use segue_lan78xx::model::Model;

use crate::Traffic;
use crate::bus::{BYTE_TIME, WIRE_OVERHEAD};
use crate::frames::{self, MSS, Segment, Sender, TCP_HEAD, UDP_HEAD};

/// Largest number of TCP bytes in flight: the largest window that Linux's default socket memory allows.
pub(super) const WINDOW: u64 = 3 << 20;
/// Time for which the peer's network card coalesces frames before they are received and acknowledged, nanoseconds.
pub(super) const GATHER: u64 = 50_000;
/// Number of frames that the switch buffers while the adapter pauses the link: 128 KiB.
pub(super) const SWITCH: usize = 85;
/// TCP retransmission timeout, nanoseconds.
const PATIENCE: u64 = 10_000_000;
/// Number of duplicate acknowledgments that indicate a loss (RFC 5681, section 3.2).
const DUPLICATES: u32 = 3;

#[derive(Debug)]
pub(super) struct Peer {
    traffic: Traffic,
    /// Time at which the peer's wire is free.
    slot: u64,
    id: u16,
    next: u64,
    acknowledged: u64,
    /// TCP congestion window, bytes.
    congestion: u64,
    /// Receive window of the host, bytes.
    offered: u64,
    duplicates: u32,
    progress: u64,
    expected: u64,
    ack_at: Option<u64>,
    /// Number of datagrams or segments sent.
    pub(super) sent: u64,
    /// Number of bytes of payload received in order.
    pub(super) received: u64,
    pub(super) retransmits: u64,
}

impl Peer {
    pub(super) fn new(traffic: Traffic, start: u64) -> Peer {
        Peer {
            traffic,
            slot: start,
            id: 1,
            next: 0,
            acknowledged: 0,
            congestion: WINDOW,
            offered: WINDOW,
            duplicates: 0,
            progress: start,
            expected: 0,
            ack_at: None,
            sent: 0,
            received: 0,
            retransmits: 0,
        }
    }

    fn may_send(&self) -> bool {
        match self.traffic {
            Traffic::UdpRx => true,
            Traffic::TcpRx => self.next + MSS as u64 <= self.acknowledged + self.congestion.min(self.offered),
            Traffic::TcpTx | Traffic::UdpTx => false,
        }
    }

    /// Returns the time of the peer's next action that needs no frame from the host.
    pub(super) fn next_event(&self) -> Option<u64> {
        let send = self.may_send().then_some(self.slot);
        let again = (self.traffic == Traffic::TcpRx).then_some(self.progress + PATIENCE);
        [send, again, self.ack_at].into_iter().flatten().min()
    }

    pub(super) fn step(&mut self, now: u64, model: &mut Model) {
        if self.ack_at.take_if(|at| *at <= now).is_some() {
            let segment = Segment { seq: 0, ack: self.expected as u32, window: u16::MAX };
            self.give(now, model, |id| frames::tcp(Sender::Peer, id, segment, 0));
        }
        if self.traffic == Traffic::TcpRx && now >= self.progress + PATIENCE {
            self.lost(now);
        }
        if self.may_send() && self.slot <= now {
            let seq = self.next as u32;
            let udp = self.traffic == Traffic::UdpRx;
            self.give(now, model, |id| match udp {
                true => frames::udp(Sender::Peer, id, MSS),
                false => frames::tcp(Sender::Peer, id, Segment { seq, ack: 0, window: u16::MAX }, MSS),
            });
            self.next += MSS as u64;
            self.sent += 1;
        }
    }

    fn give(&mut self, now: u64, model: &mut Model, frame: impl FnOnce(u16) -> Vec<u8>) {
        let frame = frame(self.id);
        self.id = self.id.wrapping_add(1);
        let wire = (frame.len().max(60) + WIRE_OVERHEAD) as u64 * BYTE_TIME;
        self.slot = self.slot.max(now) + wire;
        model.receive(frame);
    }

    /// Retransmits from the first unacknowledged byte, with half the congestion window.
    fn lost(&mut self, now: u64) {
        self.retransmits += 1;
        self.next = self.acknowledged;
        self.congestion = (self.congestion / 2).max(32 << 10);
        (self.duplicates, self.progress) = (0, now);
    }

    /// Processes a frame from the host.
    pub(super) fn take(&mut self, now: u64, frame: &[u8]) {
        match self.traffic {
            Traffic::UdpTx => self.received += frame.len().saturating_sub(UDP_HEAD) as u64,
            Traffic::UdpRx => {}
            Traffic::TcpTx => {
                let len = frame.len().saturating_sub(TCP_HEAD) as u64;
                if frames::segment(frame).seq == self.expected as u32 {
                    (self.expected, self.received) = (self.expected + len, self.received + len);
                }
                self.ack_at.get_or_insert(now + GATHER);
            }
            Traffic::TcpRx => self.acknowledge(now, frames::segment(frame)),
        }
    }

    fn acknowledge(&mut self, now: u64, segment: Segment) {
        self.offered = u64::from(segment.window) << 8;
        let fresh = u64::from(segment.ack.wrapping_sub(self.acknowledged as u32));
        if fresh > 0 && fresh <= WINDOW {
            self.acknowledged += fresh;
            self.next = self.next.max(self.acknowledged);
            (self.duplicates, self.progress) = (0, now);
            let more = fresh * MSS as u64 / self.congestion;
            self.congestion = (self.congestion + more).min(WINDOW);
        } else if fresh == 0 && self.next > self.acknowledged {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES {
                self.lost(now);
            }
        }
    }
}
