//! Seeded loss, duplication, reordering and corruption of received packets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use segue::gso::Limits;
use segue::packet::{Csum, Frag, Unit};

use crate::batch::{Burst, Received, RxBatch, TxBatch};
use crate::link::LinkState;
use crate::page::{Page, PagePool};
use crate::port::{Blocked, Counters, Extra, OffloadState, Path, Polled, Port, Sent, pass_on};

/// Odds of each fault: once in this many datagrams or packets on average; 0 means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odds {
    /// Probability that a packet is lost.
    pub loss: u32,
    /// Probability that a packet is duplicated.
    pub duplicate: u32,
    /// Probability that a packet changes places with the next one.
    pub reorder: u32,
    /// Probability that one bit of the packet's payload is flipped.
    pub corrupt: u32,
}

/// Numbers of injected faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Number of received datagrams or packets.
    pub seen: u64,
    /// Number of lost packets.
    pub lost: u64,
    /// Number of duplicated packets.
    pub duplicated: u64,
    /// Number of packets that changed places with the next one.
    pub reordered: u64,
    /// Number of packets with a flipped bit.
    pub corrupted: u64,
}

/// A port with injected faults on its receive side, reproducible for equal seed and traffic.
///
/// Bursts are divided, so that faults hit single datagrams; trains of a packet port are hit as a whole. A corrupt
/// packet is no longer marked as verified. Checksums that a kernel verified were verified before the damage: damage
/// done here is not covered by the outer checksum.
#[derive(Debug)]
pub struct Faults<P> {
    inner: P,
    odds: Odds,
    state: u64,
    counts: FaultCounts,
    fresh: RxBatchParts,
}

/// Packets and bursts that the inner port delivered in one call, removed from the caller's batch.
#[derive(Debug, Default)]
struct RxBatchParts {
    packets: std::collections::VecDeque<Received>,
    bursts: std::collections::VecDeque<Burst>,
}

#[derive(Clone, Copy, Default)]
struct Fate {
    lose: bool,
    duplicate: bool,
    reorder: bool,
    corrupt: bool,
}

impl<P: Port> Faults<P> {
    /// Wraps `inner` in a port with the given faults.
    pub fn new(inner: P, odds: Odds, seed: u64) -> Faults<P> {
        Faults { inner, odds, state: seed, counts: FaultCounts::default(), fresh: RxBatchParts::default() }
    }

    /// Returns the numbers of faults so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Returns the port inside.
    pub fn into_inner(self) -> P {
        self.inner
    }

    /// Returns the next number of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
    /// 2014).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn hit(&mut self, one_in: u32) -> bool {
        one_in != 0 && self.random().is_multiple_of(u64::from(one_in))
    }

    fn fate(&mut self) -> Fate {
        let odds = self.odds;
        self.counts.seen += 1;
        if self.hit(odds.loss) {
            self.counts.lost += 1;
            return Fate { lose: true, ..Fate::default() };
        }
        let fate = Fate {
            lose: false,
            duplicate: self.hit(odds.duplicate),
            reorder: self.hit(odds.reorder),
            corrupt: self.hit(odds.corrupt),
        };
        self.counts.duplicated += u64::from(fate.duplicate);
        fate
    }

    /// Returns a copy of `pieces` with one bit flipped, in a page of its own; `None` where no page is free or `len` is
    /// 0.
    fn damaged<'a>(
        &mut self,
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
        pages: &mut PagePool,
    ) -> Option<Page> {
        if len == 0 || len > pages.page_len() {
            return None;
        }
        let mut page = pages.take()?;
        let mut at = 0;
        for piece in pieces {
            page.bytes_mut()[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        let bit = self.random() as usize % (len * 8);
        page.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
        self.counts.corrupted += 1;
        Some(page.freeze(len))
    }

    fn spoil_bursts(&mut self, into: &mut RxBatch) {
        while let Some(burst) = self.fresh.bursts.pop_front() {
            // Untouched datagrams in a row stay one burst.
            let mut clean = 0..0;
            let mut held: Option<Burst> = None;
            let single = |page: Page| Burst { segment_len: page.len(), page, ..burst.clone() };
            for (index, page) in burst.datagrams().enumerate() {
                let fate = self.fate();
                let at = index * burst.segment_len;
                if !(fate.lose || fate.duplicate || fate.reorder || fate.corrupt) && held.is_none() {
                    clean.end = at + page.len();
                    continue;
                }
                push_range(into, &burst, clean.clone());
                clean = at + page.len()..at + page.len();
                if fate.lose {
                    continue;
                }
                let page = if fate.corrupt {
                    self.damaged(page.len(), [page.as_ref()].into_iter(), &mut into.pages).unwrap_or(page)
                } else {
                    page
                };
                if fate.reorder && held.is_none() {
                    held = Some(single(page.clone()));
                } else {
                    into.bursts.push_back(single(page.clone()));
                    if let Some(late) = held.take() {
                        self.counts.reordered += 1;
                        into.bursts.push_back(late);
                    }
                }
                if fate.duplicate {
                    into.bursts.push_back(single(page));
                }
            }
            push_range(into, &burst, clean);
            // Nothing followed in this burst, so nothing was overtaken.
            into.bursts.extend(held);
        }
    }

    fn spoil_packets(&mut self, into: &mut RxBatch) {
        let mut held: Option<Received> = None;
        while let Some(mut received) = self.fresh.packets.pop_front() {
            let fate = self.fate();
            if fate.lose {
                if let Received::Packet(packet) = received {
                    into.pool.put(packet);
                }
                continue;
            }
            if fate.corrupt {
                // Only payload is damaged, and the parser knows where it starts.
                let mut packet = received.parse(&mut into.pool);
                let len = packet.payload.len();
                if let Some(page) = self.damaged(len, packet.payload.pieces(0..len), &mut into.pages) {
                    packet.payload.clear();
                    packet.payload.push(Frag::all(page));
                    if packet.offload.unit == Unit::Whole(Csum::Verified) {
                        packet.offload.unit = Unit::Whole(Csum::Unknown);
                    }
                }
                received = Received::Packet(packet);
            }
            let copy = fate.duplicate.then(|| copy_of(&received, into));
            if fate.reorder && held.is_none() {
                held = Some(received);
            } else {
                into.packets.push_back(received);
                if let Some(late) = held.take() {
                    self.counts.reordered += 1;
                    into.packets.push_back(late);
                }
            }
            into.packets.extend(copy);
        }
        into.packets.extend(held);
    }
}

fn push_range(into: &mut RxBatch, burst: &Burst, range: std::ops::Range<usize>) {
    let page = burst.page.slice(range);
    if !page.is_empty() {
        into.bursts.push_back(Burst { segment_len: burst.segment_len.min(page.len()), page, ..burst.clone() });
    }
}

fn copy_of(received: &Received, into: &mut RxBatch) -> Received {
    let packet = match received {
        Received::Frame(frame) => return Received::Frame(frame.clone()),
        Received::Packet(packet) => packet,
    };
    let mut copy = into.pool.take();
    copy.head = packet.head.clone();
    copy.payload.clear();
    packet.payload.frags().iter().for_each(|frag| copy.payload.push(frag.clone()));
    copy.layout = packet.layout;
    copy.offload = packet.offload;
    copy.outer = packet.outer;
    Received::Packet(copy)
}

impl<P: Port> Port for Faults<P> {
    pass_on!(self, self.inner);

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        // Packets that are in the caller's batch already have passed here before.
        let (packets, bursts) = (std::mem::take(&mut into.packets), std::mem::take(&mut into.bursts));
        let polled = self.inner.receive(into, budget);
        self.fresh.packets = std::mem::replace(&mut into.packets, packets);
        self.fresh.bursts = std::mem::replace(&mut into.bursts, bursts);
        self.spoil_bursts(into);
        self.spoil_packets(into);
        polled
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        self.inner.transmit(batch)
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        self.inner.extras(put);
    }
}
