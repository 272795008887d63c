//! Receiving packets with a virtio-net header, which [`segue::virtio`] checks against their bytes.

use std::iter;
use std::ops::Range;

use segue::checksum::{Crc32c, Sum};
use segue::packet::{Frag, Packet, Start, Tunnels, Unit};
use segue::virtio::{self, Loaded, Refusal, SctpPlace, VirtioNet};

use crate::batch::{Received, RxBatch, TxUnit};
use crate::page::Page;
use crate::port::{Counters, Drop, Fallback};

/// Appends the packet in `ranges`, received with `header`, to `into`. A packet in one range that is no train, and owes
/// no checksum but that of a plain transport header, is not parsed. A packet that contradicts its header is counted and
/// dropped.
#[inline]
pub(crate) fn deliver(
    header: &VirtioNet,
    ranges: impl Iterator<Item = Frag<Page>> + Clone,
    start: Start,
    into: &mut RxBatch,
    counters: &mut Counters,
) {
    let mut rest = ranges.clone();
    match (rest.next(), rest.next()) {
        (Some(only), None) => deliver_piece(header, only, start, into, counters),
        _ => deliver_parsed(header, ranges, start, into, counters),
    }
}

/// Appends the packet in one piece, like [`deliver`].
// Always, so that the header's fields are compared where they were read.
#[inline(always)]
pub(crate) fn deliver_piece(
    header: &VirtioNet,
    piece: Frag<Page>,
    start: Start,
    into: &mut RxBatch,
    counters: &mut Counters,
) {
    match virtio::frame(header, piece, start) {
        Ok(frame) => {
            counters.rx.add(frame.len(), 1);
            into.packets.push_back(Received::Frame(frame));
        }
        Err(piece) => deliver_parsed(header, iter::once(piece), start, into, counters),
    }
}

/// Parses a packet, checks it against its header and appends it, like [`deliver`].
#[inline(never)]
fn deliver_parsed(
    header: &VirtioNet,
    ranges: impl Iterator<Item = Frag<Page>> + Clone,
    start: Start,
    into: &mut RxBatch,
    counters: &mut Counters,
) {
    let mut packet = into.pool.take();
    let mut first = ranges.clone();
    let loaded = match (first.next(), first.next()) {
        (Some(only), None) => virtio::load(header, only, start, &mut packet),
        _ => virtio::load_ranges(header, ranges.clone(), start, &mut packet),
    };
    let len = match loaded {
        Ok(Loaded::Ready) => packet.len(),
        Ok(Loaded::Owed(place)) => {
            let covered = place.start..packet.len();
            let value = place.value(sum(ranges.clone(), covered.clone())).to_be_bytes();
            if !complete(ranges, covered, (place.field, &value), start, (into, &mut packet), counters) {
                return into.pool.put(packet);
            }
            packet.len()
        }
        Ok(Loaded::OwedSctp(place)) => {
            let value = crc(ranges.clone(), place);
            let field = (place.field(), &value[..]);
            if !complete(ranges, place.start..place.end, field, start, (into, &mut packet), counters) {
                return into.pool.put(packet);
            }
            packet.len()
        }
        Err(reason) => {
            counters.drops.add(drop_of(reason));
            return into.pool.put(packet);
        }
    };
    let segments = match packet.offload.unit {
        Unit::Whole(_) => 1,
        Unit::Train { gso, .. } => gso.segs(packet.payload.len()),
    };
    counters.rx.add(len, segments);
    into.packets.push_back(Received::Packet(packet));
}

/// Loads the packet in `ranges` again with the given bytes in the checksum field at that offset. Received memory is
/// shared and never written: the field alone is written elsewhere. Returns whether there was memory for it.
fn complete(
    ranges: impl Iterator<Item = Frag<Page>> + Clone,
    covered: Range<usize>,
    (field, value): (usize, &[u8]),
    start: Start,
    (into, packet): (&mut RxBatch, &mut Packet<Page>),
    counters: &mut Counters,
) -> bool {
    let Some(mut piece) = into.fields.take() else {
        counters.drops.add(Drop::NoPage);
        return false;
    };
    piece.bytes_mut()[..value.len()].copy_from_slice(value);
    counters.checksummed_bytes += covered.len() as u64;
    counters.fallbacks.add(Fallback::ForeignChecksum);
    let len = packet.len();
    let finished = cut(ranges.clone(), 0..field)
        .chain([Frag::all(piece.freeze(value.len()))])
        .chain(cut(ranges, field + value.len()..len));
    packet.load_ranges(finished, start, &Tunnels::NONE);
    true
}

/// Returns the sum of the part `covered` of the bytes in `ranges`.
fn sum(ranges: impl Iterator<Item = Frag<Page>>, covered: Range<usize>) -> Sum {
    cut(ranges, covered).fold(Sum::ZERO, |mut sum, part| {
        sum.add(part.bytes());
        sum
    })
}

/// Returns the checksum field of the SCTP packet at `place` in the bytes in `ranges`.
fn crc(ranges: impl Iterator<Item = Frag<Page>> + Clone, place: SctpPlace) -> [u8; 4] {
    let mut crc = Crc32c::NEW;
    cut(ranges.clone(), place.start..place.field()).for_each(|part| crc.add(part.bytes()));
    crc.add(&[0; 4]);
    cut(ranges, place.field() + 4..place.end).for_each(|part| crc.add(part.bytes()));
    crc.field()
}

/// Returns the drop reason for a packet that contradicts its header.
fn drop_of(reason: Refusal) -> Drop {
    match reason {
        Refusal::GsoType => Drop::GsoType,
        Refusal::GsoHeaders => Drop::GsoHeaders,
        Refusal::GsoChecksumPlace => Drop::GsoChecksumPlace,
        Refusal::GsoSize => Drop::GsoSize,
        Refusal::GsoSegments => Drop::GsoSegments,
        Refusal::ChecksumBounds => Drop::ChecksumBounds,
        _ => Drop::VnetShort,
    }
}

/// Returns the part `range` of the bytes in `ranges`.
fn cut(ranges: impl Iterator<Item = Frag<Page>>, range: Range<usize>) -> impl Iterator<Item = Frag<Page>> {
    let mut at = 0;
    ranges.filter_map(move |frag| {
        let (from, to) = (range.start.saturating_sub(at), range.end.saturating_sub(at));
        at += frag.len();
        let part = frag.first(to).skip(from);
        (!part.is_empty()).then_some(part)
    })
}

/// Returns the virtio-net header for a unit to be sent.
pub(crate) fn header_of(unit: &TxUnit<'_>) -> Option<VirtioNet> {
    virtio::describe(unit.segment(), unit.head(), unit.layout())
}

#[cfg(test)]
mod tests;
