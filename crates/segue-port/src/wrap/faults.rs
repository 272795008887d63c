//! Seeded loss, duplication, reordering and corruption of received packets, and calls that fail.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use segue::gso::Limits;
use segue::packet::{Csum, Frag, Frame, Kind, Start, Unit};

use super::failing::{Calls, Failure, Outcome, Plan};
use crate::batch::{Burst, Received, RxBatch, TxBatch};
use crate::failures::ReadFailures;
use crate::link::LinkState;
use crate::page::{Page, PagePool};
use crate::port::{Blocked, Counters, Drop, Extra, OffloadState, Path, Polled, Port, Sent, pass_on};

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
    /// Number of receive calls that failed with an error.
    pub receive_errors: u64,
    /// Number of receive calls whose first packet or datagram was cut short.
    pub short_receives: u64,
    /// Number of send calls that failed with an error.
    pub send_errors: u64,
}

/// A port with injected faults on its receive side, and calls that fail in both directions, reproducible for equal seed
/// and traffic. The statistics have the number of each (`fault_lost` among the drops).
///
/// Bursts are divided, so that faults hit single datagrams; trains of a packet port are hit as a whole. A corrupt
/// packet is no longer marked as verified. Checksums that a kernel verified were verified before the damage: damage
/// done here is not covered by the outer checksum.
#[derive(Debug)]
pub struct Faults<P> {
    inner: P,
    odds: Odds,
    random: Random,
    counts: FaultCounts,
    fresh: RxBatchParts,
    receives: Option<Plan<Failure>>,
    sends: Option<Plan<i32>>,
    failures: ReadFailures,
    /// Counters of the failed calls alone.
    own: Counters,
    /// Sums of the inner port's counters and `own`, as of the last call.
    counters: Counters,
}

/// A generator of random numbers: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
/// 2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// Returns the next number.
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
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
        let counters = inner.counters().clone();
        Faults {
            inner,
            odds,
            random: Random(seed),
            counts: FaultCounts::default(),
            fresh: RxBatchParts::default(),
            receives: None,
            sends: None,
            failures: ReadFailures::default(),
            own: Counters::default(),
            counters,
        }
    }

    /// Makes `calls` of those that receive fail, with the consequences that a failed read of a real port has. An error
    /// leaves the packets in the inner port and ends the poll. It is counted as `read_failed`, EAGAIN excepted; one
    /// that says that the device is gone, and one that does not pass in a thousand calls, is the port's error. A packet
    /// cut short arrives as what is left of it; where nothing is left, it is dropped (`vnet_short`, `empty`).
    #[must_use]
    pub fn failing_receives(self, failure: Failure, calls: Calls) -> Faults<P> {
        Faults { receives: Some(Plan::new(failure, calls)), ..self }
    }

    /// Makes `calls` of those that send fail at their first packet with an error number; calls with nothing to send are
    /// not among them. The consequences are those of a real port: with EAGAIN and EINTR it is blocked and all packets
    /// stay; with an error that says that the device is gone, the port fails; with any other one the packet is dropped
    /// under its reason (such as `queue_full` for ENOBUFS), and the inner port sends those behind it.
    #[must_use]
    pub fn failing_sends(self, errno: i32, calls: Calls) -> Faults<P> {
        Faults { sends: Some(Plan::new(errno, calls)), ..self }
    }

    /// Returns the numbers of faults so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Returns the port inside.
    pub fn into_inner(self) -> P {
        self.inner
    }

    fn hit(&mut self, one_in: u32) -> bool {
        one_in != 0 && self.random.draw().is_multiple_of(u64::from(one_in))
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
        let bit = self.random.draw() as usize % (len * 8);
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

    /// Receives, or fails. Counts what the failure is.
    fn poll(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let Faults { receives, random, .. } = self;
        let failure = receives.as_mut().and_then(|plan| plan.call(|| random.draw()));
        if let Some(Failure::Error(errno)) = failure {
            self.counts.receive_errors += 1;
            self.own.rx.calls += 1;
            if errno == libc::EAGAIN {
                self.failures.end();
            } else {
                self.failures.add(io::Error::from_raw_os_error(errno), &mut self.own)?;
            }
            return Ok(Polled::Idle);
        }
        self.failures.end();
        // Packets that are in the caller's batch already have passed here before.
        let (packets, bursts) = (std::mem::take(&mut into.packets), std::mem::take(&mut into.bursts));
        let polled = self.inner.receive(into, budget);
        self.fresh.packets = std::mem::replace(&mut into.packets, packets);
        self.fresh.bursts = std::mem::replace(&mut into.bursts, bursts);
        if let Some(Failure::Short(len)) = failure
            && (self.shorten_burst(len) || self.shorten_packet(len, into))
        {
            self.counts.short_receives += 1;
        }
        self.spoil_bursts(into);
        self.spoil_packets(into);
        polled
    }

    /// Cuts the first datagram that was received to `len` bytes. Returns whether there was one.
    fn shorten_burst(&mut self, len: usize) -> bool {
        let Some(burst) = self.fresh.bursts.pop_front() else { return false };
        let end = burst.segment_len.min(burst.page.len());
        let first = part(&burst, 0..len.min(end));
        if first.is_none() {
            self.own.drops.add(Drop::Empty);
        }
        for burst in [part(&burst, end..burst.page.len()), first].into_iter().flatten() {
            self.fresh.bursts.push_front(burst);
        }
        true
    }

    /// Cuts the first packet that was received to `len` bytes. Returns whether there was one, and a page for it.
    fn shorten_packet(&mut self, len: usize, into: &mut RxBatch) -> bool {
        let Some(received) = self.fresh.packets.pop_front() else { return false };
        let start = match &received {
            Received::Frame(frame) => frame.start,
            Received::Packet(packet) => match packet.layout.headers().first() {
                Some(header) if header.kind == Kind::Ethernet => Start::Ethernet,
                _ => Start::Ip,
            },
        };
        let len = len.min(received.len()).min(into.pages.page_len());
        if len == 0 {
            self.own.drops.add(Drop::VnetShort);
        } else {
            let Some(mut page) = into.pages.take() else {
                self.fresh.packets.push_front(received);
                return false;
            };
            let mut at = 0;
            for piece in received.pieces() {
                let end = (at + piece.len()).min(len);
                page.bytes_mut()[at..end].copy_from_slice(&piece[..end - at]);
                at = end;
            }
            let frame = Frame { bytes: Frag::all(page.freeze(len)), start, csum: Csum::Unknown };
            self.fresh.packets.push_front(Received::Frame(frame));
        }
        if let Received::Packet(packet) = received {
            into.pool.put(packet);
        }
        true
    }

    /// Sends, or fails at the first packet. Counts what the failure is.
    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let first = batch.units().next().map(|unit| unit.segments() as u64);
        let Faults { sends, random, .. } = self;
        let failure = sends.as_mut().filter(|_| first.is_some()).and_then(|plan| plan.call(|| random.draw()));
        if let (Some(segments), Some(errno)) = (first, failure) {
            self.counts.send_errors += 1;
            self.own.tx.calls += 1;
            match Outcome::of(errno, self.inner.path(0, 0).is_some()) {
                Outcome::Blocked => {
                    self.own.blocked += 1;
                    return Ok(Sent::Blocked);
                }
                Outcome::Gone => return Err(io::Error::from_raw_os_error(errno)),
                Outcome::Lost(reason) => {
                    self.own.drops.add_many(reason, segments);
                    batch.sent(1);
                }
            }
        }
        self.inner.transmit(batch)
    }

    /// Adds the counts of failed calls to the counters of the inner port.
    fn add_up(&mut self) {
        let Faults { inner, own, counters, .. } = self;
        counters.clone_from(inner.counters());
        counters.rx.calls += own.rx.calls;
        counters.tx.calls += own.tx.calls;
        counters.blocked += own.blocked;
        own.drops.iter().for_each(|(reason, count)| counters.drops.add_many(reason, count));
        own.fallbacks.iter().for_each(|(reason, count)| counters.fallbacks.add_many(reason, count));
    }
}

fn push_range(into: &mut RxBatch, burst: &Burst, range: Range<usize>) {
    into.bursts.extend(part(burst, range));
}

/// Returns the datagrams in `range` of a burst; `None` where it is empty.
fn part(burst: &Burst, range: Range<usize>) -> Option<Burst> {
    let page = burst.page.slice(range);
    (!page.is_empty()).then(|| Burst { segment_len: burst.segment_len.min(page.len()), page, ..burst.clone() })
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
        let polled = self.poll(into, budget);
        self.add_up();
        polled
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let sent = self.send(batch);
        self.add_up();
        sent
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        self.inner.extras(put);
        let counts = &self.counts;
        put(Extra::Drop, "fault_lost", counts.lost);
        for (key, value) in [
            ("fault_duplicated", counts.duplicated),
            ("fault_reordered", counts.reordered),
            ("fault_corrupted", counts.corrupted),
            ("fault_receive_errors", counts.receive_errors),
            ("fault_short_receives", counts.short_receives),
            ("fault_send_errors", counts.send_errors),
        ] {
            put(Extra::Number, key, value);
        }
    }
}
