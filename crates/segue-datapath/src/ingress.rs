//! The ingress of the path to a port: it counts packets, and segments trains if GSO is off for that port.

use std::collections::VecDeque;

use segue::gso::{self, Arena};
use segue::packet::{Packet, Unit};
use segue::reason::Counts;
use segue_port::{Page, RxBatch};

use crate::board::{Group, Sink, Stage};
use crate::tuning::{Cuts, is_verified_tcp};

/// Returns the number of packets that `packet` stands for: the segments of a train.
#[inline]
pub(crate) fn packets(packet: &Packet<Page>) -> u64 {
    match packet.offload.unit {
        Unit::Whole(_) => 1,
        Unit::Train { gso, .. } => gso.segs(packet.payload.len()) as u64,
    }
}

/// Numbers of packets, bytes, trains and segments that passed a stage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    packets: u64,
    bytes: u64,
    trains: u64,
    segments: u64,
}

impl Traffic {
    #[inline]
    pub(crate) fn add(&mut self, packet: &Packet<Page>) {
        self.packets += 1;
        self.bytes += packet.len() as u64;
        self.trains += u64::from(matches!(packet.offload.unit, Unit::Train { .. }));
        self.segments += packets(packet);
    }

    /// Counts a frame of `len` bytes, which is one packet.
    #[inline]
    pub(crate) fn add_frame(&mut self, len: usize) {
        self.packets += 1;
        self.bytes += len as u64;
        self.segments += 1;
    }

    /// Counts the bytes of a frame that [`Traffic::add_frames`] counts later.
    #[inline(always)]
    pub(crate) fn add_bytes_of(&mut self, len: usize) {
        self.bytes += len as u64;
    }

    /// Counts frames, each of which is one packet, without their bytes.
    #[inline]
    pub(crate) fn add_frames(&mut self, frames: u64) {
        self.packets += frames;
        self.segments += frames;
    }

    pub(crate) fn collect(&self, port: &str, stage: Stage, sink: &mut Sink<'_>) {
        sink.put(port, Group::Stage(stage), "packets", self.packets);
        sink.put(port, Group::Stage(stage), "bytes", self.bytes);
        sink.put(port, Group::Stage(stage), "trains", self.trains);
        sink.put(port, Group::Stage(stage), "segments", self.segments);
    }
}

/// Counters of the trains that were segmented at an ingress.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CutCounts {
    /// Number of trains that were segmented.
    cut: u64,
    /// Number of packets into which they were segmented.
    made: u64,
    /// Number of payload bytes that were summed for segmentation.
    pub(crate) checksummed: u64,
}

impl CutCounts {
    /// Writes the counters under the port `to` for which trains were segmented.
    pub(crate) fn collect(&self, to: &str, sink: &mut Sink<'_>) {
        sink.put(to, Group::Gso, "cut_on_entry", self.cut);
        sink.put(to, Group::Gso, "made_on_entry", self.made);
    }
}

/// The ingress of the path to one port.
#[derive(Debug, Default)]
pub(crate) struct Ingress {
    pub(crate) cuts: Cuts,
    /// Whether segmentation must restore the packets of a train byte for byte.
    pub(crate) exact: bool,
    seen: Traffic,
    done: CutCounts,
    arena: Arena,
    pieces: VecDeque<Box<Packet<Page>>>,
}

impl Ingress {
    /// Passes `packet` to `each`, or the packets into which it is segmented, one after the other.
    #[inline]
    pub(crate) fn each(
        &mut self,
        packet: Box<Packet<Page>>,
        rx: &mut RxBatch,
        drops: &mut Counts<gso::Refusal>,
        mut each: impl FnMut(Box<Packet<Page>>, &mut RxBatch, &mut Counts<gso::Refusal>),
    ) {
        let mut next = self.enter(packet, rx, drops);
        while let Some(packet) = next {
            each(packet, rx, drops);
            next = self.more();
        }
    }

    /// Counts a frame of `len` bytes that passes unparsed: a frame needs no segmentation.
    #[inline]
    pub(crate) fn pass(&mut self, len: usize) {
        self.seen.add_frame(len);
    }

    /// Segments a train regardless of the settings, and passes its packets to `each`, for packets that may be treated
    /// differently.
    pub(crate) fn apart(
        &mut self,
        train: Box<Packet<Page>>,
        rx: &mut RxBatch,
        drops: &mut Counts<gso::Refusal>,
        mut each: impl FnMut(Box<Packet<Page>>),
    ) {
        let finishes = self.finishes(&train);
        let checksummed = &mut self.done.checksummed;
        let done = gso::cut(&train, &mut self.arena, &mut rx.pool, |mut piece, _| {
            if finishes {
                *checksummed += gso::finish(&mut piece).unwrap_or(0);
            }
            each(piece);
        });
        if let Err(why) = done {
            drops.add_many(why, packets(&train));
        }
        self.done.checksummed += self.arena.take_checksummed();
        rx.pool.put(train);
    }

    /// Returns `packet`, or the first of the packets into which it is segmented; [`more`](Self::more) returns the
    /// others.
    #[inline]
    pub(crate) fn enter(
        &mut self,
        packet: Box<Packet<Page>>,
        rx: &mut RxBatch,
        drops: &mut Counts<gso::Refusal>,
    ) -> Option<Box<Packet<Page>>> {
        self.seen.add(&packet);
        if !self.cuts.cuts(&packet.offload.unit) {
            return Some(packet);
        }
        self.cut_apart(packet, rx, drops);
        self.more()
    }

    /// Counts a train and segments it whatever the settings; [`more`](Self::more) returns its packets.
    pub(crate) fn cut(&mut self, train: Box<Packet<Page>>, rx: &mut RxBatch, drops: &mut Counts<gso::Refusal>) {
        self.seen.add(&train);
        self.cut_apart(train, rx, drops);
    }

    fn cut_apart(&mut self, packet: Box<Packet<Page>>, rx: &mut RxBatch, drops: &mut Counts<gso::Refusal>) {
        let finishes = self.finishes(&packet);
        let (pieces, checksummed) = (&mut self.pieces, &mut self.done.checksummed);
        let done = gso::cut(&packet, &mut self.arena, &mut rx.pool, |mut piece, _| {
            if finishes {
                *checksummed += gso::finish(&mut piece).unwrap_or(0);
            }
            pieces.push_back(piece);
        });
        match done {
            Ok(made) => {
                self.done.cut += 1;
                self.done.made += made as u64;
                self.done.checksummed += self.arena.take_checksummed();
            }
            Err(why) => drops.add_many(why, packets(&packet)),
        }
        rx.pool.put(packet);
    }

    /// Returns whether the checksums of the packets of a train are completed when it is segmented.
    fn finishes(&self, train: &Packet<Page>) -> bool {
        self.exact && matches!(train.offload.unit, Unit::Train { csum, gso } if is_verified_tcp(csum, gso))
    }

    /// Returns the next packet of the train that was segmented last.
    #[inline]
    pub(crate) fn more(&mut self) -> Option<Box<Packet<Page>>> {
        self.pieces.pop_front()
    }

    /// Returns the number of payload bytes that were summed for segmentation.
    pub(crate) fn checksummed(&self) -> u64 {
        self.done.checksummed
    }

    /// Exchanges the traffic counters with `seen`, for several ingresses that share counters.
    pub(crate) fn swap_traffic(&mut self, seen: &mut Traffic) {
        std::mem::swap(&mut self.seen, seen);
    }

    /// Exchanges the counters of segmentation with `cuts`, as [`swap_traffic`](Self::swap_traffic).
    pub(crate) fn share_cuts(&mut self, cuts: &mut CutCounts) {
        std::mem::swap(&mut self.done, cuts);
    }

    /// Writes the traffic under the port `from` that received it, and the counters of segmentation under the port `to`.
    pub(crate) fn collect(&self, from: &str, to: &str, sink: &mut Sink<'_>) {
        self.collect_traffic(from, sink);
        self.collect_cuts(to, sink);
    }

    /// Writes the traffic under the port `from` that received it.
    pub(crate) fn collect_traffic(&self, from: &str, sink: &mut Sink<'_>) {
        self.seen.collect(from, Stage::Ingress, sink);
    }

    /// Writes the counters of segmentation under the port `to` for which trains were segmented.
    pub(crate) fn collect_cuts(&self, to: &str, sink: &mut Sink<'_>) {
        self.done.collect(to, sink);
    }
}
