//! Splits a packet or train for a port: the scatter form and the linear form.

use super::arena::{Arena, Frames};
use super::cursor::Cursor;
use super::limits::Limits;
use super::plan::SegmentPlan;
use super::refusal::Refusal;
use super::segment::SegmentCsum;
use super::{fragment, uncut, whole};
use crate::checksum::Sum;
use crate::packet::{Buffer, Packet, Unit};

/// Splits `packet` for a port with `limits`, appends the segments to `arena` and returns their number.
///
/// A transport checksum that a remote checksum option leaves to the far end stays primed, with the pseudo-header sum of
/// the segment's own length, whatever the port can do. In a train every outer UDP and GRE checksum that is present is
/// computed anew, or left to the port with the train ([`Limits::udp_tunnel_csum`]); in a single packet only those that
/// are owed.
///
/// ```
/// use segue::gso::{Arena, Limits, split};
/// # use segue::packet::{Frag, Gso, GsoKind, Packet, Start, TrainCsum, Tunnels, Unit};
/// # let mut bytes = vec![0x45, 0, 1, 72, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
/// # bytes.extend([0, 1, 0, 2, 1, 52, 0, 0]);
/// # bytes.resize(328, 7);
/// # let mut train = Packet::default();
/// # train.load(Frag::all(&bytes[..]), Start::Ip, &Tunnels::NONE);
/// # let gso = Gso { kind: GsoKind::Udp, size: 100, fixed_ids: 0 };
/// # train.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
/// # segue::gso::request_checksum(&mut train)?;
/// // A train of 300 bytes in datagrams of 100.
/// let mut arena = Arena::new();
/// assert_eq!(split(&train, &Limits::NONE, &mut arena)?, 3);
/// for segment in arena.segments() {
///     let pieces: Vec<&[u8]> = [arena.head(segment)].into_iter().chain(segment.pieces(&train)).collect();
///     assert_eq!(pieces.concat().len(), 28 + 100); // to be sent in one call
/// }
/// # Ok::<(), segue::gso::Refusal>(())
/// ```
///
/// # Errors
/// A [`Refusal`]; the arena is then unchanged.
pub fn split<B: Buffer>(packet: &Packet<B>, limits: &Limits, arena: &mut Arena) -> Result<usize, Refusal> {
    let payload_len = u32::try_from(packet.payload.len()).map_err(|_| Refusal::Length)?;
    let Unit::Train { .. } = packet.offload.unit else {
        if fragment::is_needed(packet, limits) {
            return scatter_fragments(packet, limits, arena);
        }
        let filled = arena.append(packet.head.bytes(), |head| whole::fill(head, packet, limits))?;
        arena.checksummed += filled.summed;
        arena.finish_head(0..payload_len, filled.csum, None);
        return Ok(1);
    };
    if let Some(gso) = uncut::gso_of(packet, limits) {
        arena.reserve(1, packet.head.len())?;
        arena.push_head(packet.head.bytes());
        arena.finish_head(0..payload_len, SegmentCsum::Partial, Some(gso));
        return Ok(1);
    }
    let mut plan = SegmentPlan::new(packet, limits)?;
    arena.reserve(plan.count(), packet.head.len())?;
    let mut cursor = Cursor::new(&packet.payload);
    let mut count = 0;
    let mut parts = plan.parts(&packet.payload, limits);
    loop {
        count += plan.run(&mut parts, arena);
        let Some(part) = parts.next() else { return Ok(count) };
        plan.fit(part.len);
        let mut sum = Sum::ZERO;
        if plan.sums_payload() {
            sum = cursor.sum(part.len);
            arena.checksummed += part.len as u64;
        }
        let (template, head_len) = plan.template_block();
        let head = arena.push_template(template, head_len);
        plan.stamp(head, &part, sum);
        // Both casts fit, since the payload's length does.
        arena.finish_head(part.start as u32..(part.start + part.len) as u32, plan.csum(), plan.gso_of(&part));
        count += 1;
    }
}

/// Appends a train just joined by GRO to `arena`, like [`split()`], if the port accepts it unsplit, but without its
/// headers, which are those of the packet. Returns whether it did.
#[inline]
pub(crate) fn push_joined<B: Buffer>(packet: &Packet<B>, limits: &Limits, arena: &mut Arena) -> bool {
    let Some(gso) = uncut::gso_of_joined(packet, limits) else { return false };
    // The cast fits: one IP packet has all of it.
    arena.push_unsplit(packet.payload.len() as u32, gso);
    true
}

/// Splits a train like [`split()`], but writes contiguous frames: each head followed by its payload, which is copied
/// and summed in one pass.
///
/// ```
/// use segue::gso::{Frames, Limits, split_linear};
/// # use segue::packet::{Frag, Gso, GsoKind, Packet, Start, TrainCsum, Tunnels, Unit};
/// # let mut bytes = vec![0x45, 0, 1, 72, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
/// # bytes.extend([0, 1, 0, 2, 1, 52, 0, 0]);
/// # bytes.resize(328, 7);
/// # let mut train = Packet::default();
/// # train.load(Frag::all(&bytes[..]), Start::Ip, &Tunnels::NONE);
/// # let gso = Gso { kind: GsoKind::Udp, size: 100, fixed_ids: 0 };
/// # train.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
/// # segue::gso::request_checksum(&mut train)?;
/// let mut frames = Frames::new();
/// assert_eq!(split_linear(&train, &Limits { header_room: 10, ..Limits::NONE }, &mut frames)?, 3);
/// assert!(frames.frames().iter().all(|frame| frames.bytes(frame).len() == 28 + 100 && frame.room == 10));
/// # Ok::<(), segue::gso::Refusal>(())
/// ```
///
/// # Errors
/// A [`Refusal`]; `frames` is then unchanged.
pub fn split_linear<B: Buffer>(packet: &Packet<B>, limits: &Limits, frames: &mut Frames) -> Result<usize, Refusal> {
    let (head_len, front) = (packet.head.len(), limits.header_room);
    let mut cursor = Cursor::new(&packet.payload);
    let Unit::Train { .. } = packet.offload.unit else {
        if fragment::is_needed(packet, limits) {
            return copy_fragments(packet, limits, frames);
        }
        let frame = frames.room(front, packet.len())?;
        let (head, body) = frame.split_at_mut(head_len);
        head.copy_from_slice(packet.head.bytes());
        let filled = whole::fill(head, packet, limits)?;
        cursor.copy(body, None);
        frames.checksummed += filled.summed;
        frames.push(front, packet.len(), filled.csum, None);
        return Ok(1);
    };
    let mut plan = SegmentPlan::new(packet, limits)?;
    let heads = plan.count().checked_mul(head_len).ok_or(Refusal::Full)?;
    frames.reserve(plan.count(), heads.saturating_add(packet.payload.len()), front)?;
    let mut count = 0;
    let mut parts = plan.parts(&packet.payload, limits);
    loop {
        count += plan.run_linear(&mut parts, &mut cursor, frames, front);
        let Some(part) = parts.next() else { return Ok(count) };
        plan.fit(part.len);
        let frame = frames.room(front, head_len + part.len)?;
        plan.write_template(frame);
        let (head, body) = frame.split_at_mut(head_len);
        let mut sum = Sum::ZERO;
        cursor.copy(body, plan.sums_payload().then_some(&mut sum));
        plan.stamp(head, &part, sum);
        if plan.sums_payload() {
            frames.checksummed += part.len as u64;
        }
        frames.push(front, head_len + part.len, plan.csum(), plan.gso_of(&part));
        count += 1;
    }
}

/// Writes the fragments of a packet that is longer than the MTU, in scatter form.
fn scatter_fragments<B: Buffer>(packet: &Packet<B>, limits: &Limits, arena: &mut Arena) -> Result<usize, Refusal> {
    let mut ids = arena.ids;
    let cut = fragment::Cut::new(packet, limits, &mut ids)?;
    let first = arena.segments().len();
    arena.reserve(cut.count(), cut.max_header_len())?;
    (arena.ids, arena.checksummed) = (ids, arena.checksummed + cut.summed);
    let mut cursor = Cursor::new(&packet.payload);
    let mut whole = Fragments::default();
    let mut next = Some(cut.piece(0, 0));
    while let Some(piece) = next {
        let mut sum = Sum::ZERO;
        if cut.sums_payload() {
            sum = cursor.sum(piece.len);
            arena.checksummed += piece.len as u64;
        }
        let head = arena.push_zeros(cut.head_len(&piece));
        cut.write(head, &piece);
        if !piece.is_first() {
            cut.seal(head, &piece, sum);
        }
        // Both casts fit, since the payload's length does.
        let range = piece.start as u32..(piece.start + piece.len) as u32;
        arena.finish_head(range, SegmentCsum::AsIs, None);
        whole.add(&piece, sum);
        next = cut.next(&piece);
    }
    if cut.sums_payload() {
        let head = arena.head_mut(first);
        cut.complete(head, whole.sum);
        cut.seal(head, &cut.piece(0, 0), whole.first);
    }
    Ok(whole.count)
}

/// Writes the fragments of a packet that is longer than the MTU, in linear form.
fn copy_fragments<B: Buffer>(packet: &Packet<B>, limits: &Limits, frames: &mut Frames) -> Result<usize, Refusal> {
    let mut ids = frames.ids;
    let cut = fragment::Cut::new(packet, limits, &mut ids)?;
    let first = frames.frames().len();
    let heads = cut.count().checked_mul(cut.max_header_len()).ok_or(Refusal::Full)?;
    frames.reserve(cut.count(), heads.saturating_add(packet.payload.len()), limits.header_room)?;
    (frames.ids, frames.checksummed) = (ids, frames.checksummed + cut.summed);
    let mut cursor = Cursor::new(&packet.payload);
    let mut whole = Fragments::default();
    let mut next = Some(cut.piece(0, 0));
    while let Some(piece) = next {
        let head_len = cut.head_len(&piece);
        let (head, body) = frames.room(limits.header_room, head_len + piece.len)?.split_at_mut(head_len);
        let mut sum = Sum::ZERO;
        cursor.copy(body, cut.sums_payload().then_some(&mut sum));
        cut.write(head, &piece);
        if !piece.is_first() {
            cut.seal(head, &piece, sum);
        }
        if cut.sums_payload() {
            frames.checksummed += piece.len as u64;
        }
        frames.push(limits.header_room, head_len + piece.len, SegmentCsum::AsIs, None);
        whole.add(&piece, sum);
        next = cut.next(&piece);
    }
    if cut.sums_payload() {
        let piece = cut.piece(0, 0);
        let head = &mut frames.frame_mut(first)[..cut.head_len(&piece)];
        cut.complete(head, whole.sum);
        cut.seal(head, &piece, whole.first);
    }
    Ok(whole.count)
}

/// Totals over the fragments written so far.
#[derive(Default)]
struct Fragments {
    count: usize,
    /// Checksum of all payload.
    sum: Sum,
    /// Sum of the first fragment's payload.
    first: Sum,
}

impl Fragments {
    fn add(&mut self, piece: &fragment::Piece, sum: Sum) {
        if piece.is_first() {
            self.first = sum;
        }
        self.sum.append(sum, piece.len);
        self.count += 1;
    }
}
