//! The memory that segments are written to, reused for every batch.

use alloc::vec::Vec;
use core::ops::Range;

use super::refusal::Refusal;
use super::segment::{Segment, SegmentCsum};
use crate::hash::Key;
use crate::packet::Gso;
use crate::wire::parse::MAX_HEADER_BYTES;

/// The generator of identifications of fragmented packets: a counter shared by all, with a different start for each
/// pair of addresses (RFC 7739, section 5.3), so that an observer of one flow cannot guess the numbers of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentIds {
    key: Key,
    next: u32,
}

impl FragmentIds {
    /// Creates a generator that counts from 0; `key` should be random, and different for each arena of the same host.
    pub const fn new(key: Key) -> FragmentIds {
        FragmentIds { key, next: 0 }
    }

    /// Returns the next identification for these addresses.
    pub(super) fn next(&mut self, addresses: &[u8]) -> u32 {
        let id = (self.key.hash(addresses) as u32).wrapping_add(self.next);
        self.next = self.next.wrapping_add(1);
        id
    }
}

/// Number of bytes of headers that are copied at once; most headers are not longer.
pub(super) const BLOCK: usize = 80;

/// Segments in scatter form: their headers, concatenated, and everything else that a port must know.
///
/// It grows to the size of the largest batch and allocates nothing afterwards.
#[derive(Debug)]
pub struct Arena {
    heads: Vec<u8>,
    segments: Vec<Segment>,
    pub(super) checksummed: u64,
    start: usize,
    /// Identifications of fragmented packets.
    pub ids: FragmentIds,
}

impl Default for Arena {
    fn default() -> Self {
        Arena::new()
    }
}

impl Arena {
    /// Creates an empty arena without memory.
    pub const fn new() -> Arena {
        let ids = FragmentIds::new(Key([0; 2]));
        Arena { heads: Vec::new(), segments: Vec::new(), checksummed: 0, start: 0, ids }
    }

    /// Removes all segments and keeps the memory.
    pub fn clear(&mut self) {
        self.heads.clear();
        self.segments.clear();
    }

    /// Returns the segments since [`Arena::clear`], in the order in which they must leave.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the headers of `segment`; empty if it belongs to another arena.
    pub fn head(&self, segment: &Segment) -> &[u8] {
        self.heads.get(segment.head.start as usize..segment.head.end as usize).unwrap_or(&[])
    }

    /// Returns the number of payload bytes summed since the last call.
    pub fn take_checksummed(&mut self) -> u64 {
        core::mem::take(&mut self.checksummed)
    }

    /// Appends a segment without headers for a frame of `len` bytes that leaves unchanged.
    ///
    /// # Errors
    /// [`Refusal::Length`] if the frame is too long for a segment.
    #[inline]
    pub fn push_frame(&mut self, len: usize, is_verified: bool) -> Result<(), Refusal> {
        let len = u32::try_from(len).map_err(|_| Refusal::Length)?;
        self.start = self.heads.len();
        let csum = if is_verified { SegmentCsum::Verified } else { SegmentCsum::AsIs };
        self.finish_head(0..len, csum, None);
        Ok(())
    }

    /// Appends a train of `len` bytes that leaves unsplit, with the headers of its packet, which are not copied.
    #[inline]
    pub(super) fn push_unsplit(&mut self, len: u32, gso: Gso) {
        self.start = self.heads.len();
        self.finish_head(0..len, SegmentCsum::Partial, Some(gso));
    }

    /// Reserves memory for `count` heads of `len` bytes.
    pub(super) fn reserve(&mut self, count: usize, len: usize) -> Result<(), Refusal> {
        let bytes = count.checked_mul(len).ok_or(Refusal::Full)?;
        let end = self.heads.len().checked_add(bytes).ok_or(Refusal::Full)?;
        u32::try_from(end).map_err(|_| Refusal::Full)?;
        // Includes what a copy of constant length may write after the last one.
        self.heads.reserve(bytes + MAX_HEADER_BYTES);
        self.segments.reserve(count);
        Ok(())
    }

    /// Starts a segment with `len` bytes of headers, to be written, after [`Arena::reserve`].
    pub(super) fn push_zeros(&mut self, len: usize) -> &mut [u8] {
        self.start = self.heads.len();
        self.heads.resize(self.start + len, 0);
        &mut self.heads[self.start..]
    }

    /// Returns the headers of the segment with this index.
    pub(super) fn head_mut(&mut self, number: usize) -> &mut [u8] {
        let range = self.segments.get(number).map_or(0..0, |s| s.head.start as usize..s.head.end as usize);
        &mut self.heads[range]
    }

    /// Starts a segment with a copy of `template`, to be changed, after [`Arena::reserve`].
    pub(super) fn push_head(&mut self, template: &[u8]) -> &mut [u8] {
        self.start = self.heads.len();
        self.heads.extend_from_slice(template);
        &mut self.heads[self.start..]
    }

    /// Starts a segment with the first `len` bytes of `template`, by a copy of constant length where that is enough.
    #[inline(always)]
    pub(super) fn push_template(&mut self, template: &[u8; MAX_HEADER_BYTES], len: usize) -> &mut [u8] {
        self.start = self.heads.len();
        if len <= BLOCK {
            self.heads.extend_from_slice(&template[..BLOCK]);
            self.heads.truncate(self.start + len);
        } else {
            self.heads.extend_from_slice(&template[..len]);
        }
        &mut self.heads[self.start..]
    }

    /// Adds `count` segments of `size` payload bytes each, from payload offset `start` on. `write` fills in a block for
    /// each, of which the first `len` bytes are its headers. Call [`Arena::reserve`] first.
    #[inline(always)]
    pub(super) fn push_run(
        &mut self,
        len: usize,
        (start, size, count): (usize, usize, usize),
        csum: SegmentCsum,
        mut write: impl FnMut(&mut [u8; BLOCK]),
    ) {
        let first = self.heads.len();
        self.heads.resize(first + count * len + BLOCK, 0);
        let (mut at, mut from) = (first, start as u32);
        // All offsets fit in 32 bits: `reserve` checked those of the headers, and the payload's length is a 32-bit
        // number.
        self.segments.extend((0..count).map(|_| {
            if let Some(head) = self.heads.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                write(head);
            }
            let segment =
                Segment { head: at as u32..(at + len) as u32, payload: from..from + size as u32, csum, gso: None };
            (at, from) = (at + len, from + size as u32);
            segment
        }));
        self.heads.truncate(first + count * len);
    }

    /// Ends the segment that [`Arena::push_head`] or a similar function started.
    #[inline(always)]
    pub(super) fn finish_head(&mut self, payload: Range<u32>, csum: SegmentCsum, gso: Option<Gso>) {
        // `reserve` checked that all offsets fit in 32 bits.
        let head = self.start as u32..self.heads.len() as u32;
        self.segments.push(Segment { head, payload, csum, gso });
    }

    /// Adds a segment's head: a copy of `head` that `change` completes; removes it again if that fails.
    pub(super) fn append<T>(
        &mut self,
        head: &[u8],
        change: impl FnOnce(&mut [u8]) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.reserve(1, head.len())?;
        let result = change(self.push_head(head));
        if result.is_err() {
            self.heads.truncate(self.start);
        }
        result
    }
}

/// One contiguous frame in a [`Frames`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Range of the frame's bytes; see [`Frames::bytes`].
    pub range: Range<u32>,
    /// Number of free bytes in front of the frame; see [`Frames::room_in_front`].
    pub room: u32,
    /// The port's task for the innermost transport checksum.
    pub csum: SegmentCsum,
    /// The port's task of segmenting the frame; `None` for a single packet.
    pub gso: Option<Gso>,
}

/// Segments in linear form: whole frames, concatenated.
///
/// It grows to the size of the largest batch and allocates nothing afterwards.
#[derive(Debug)]
pub struct Frames {
    /// The memory of all frames. Its length only grows: bytes past `used` are left from earlier batches, which saves
    /// clearing them.
    bytes: Vec<u8>,
    used: usize,
    frames: Vec<Frame>,
    pub(super) checksummed: u64,
    /// Identifications of fragmented packets.
    pub ids: FragmentIds,
}

impl Default for Frames {
    fn default() -> Self {
        Frames::new()
    }
}

impl Frames {
    /// Creates an empty list without memory.
    pub const fn new() -> Frames {
        let ids = FragmentIds::new(Key([0; 2]));
        Frames { bytes: Vec::new(), used: 0, frames: Vec::new(), checksummed: 0, ids }
    }

    /// Removes all frames and keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.frames.clear();
    }

    /// Returns the frames since [`Frames::clear`], in the order in which they must leave.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the bytes of `frame`; empty if it belongs to another list.
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        self.bytes.get(frame.range.start as usize..frame.range.end as usize).unwrap_or(&[])
    }

    /// Returns the headroom of `frame` that its limits request
    /// ([`Limits::header_room`](super::Limits::header_room)), for a header of the port.
    pub fn room_in_front(&mut self, frame: &Frame) -> &mut [u8] {
        let end = frame.range.start as usize;
        self.bytes.get_mut(end.saturating_sub(frame.room as usize)..end).unwrap_or(&mut [])
    }

    /// Returns the number of payload bytes summed since the last call.
    pub fn take_checksummed(&mut self) -> u64 {
        core::mem::take(&mut self.checksummed)
    }

    /// Checks that `count` frames of `len` bytes in total, each with `room` bytes of headroom, fit, and allocates the
    /// memory.
    pub(super) fn reserve(&mut self, count: usize, len: usize, room: usize) -> Result<(), Refusal> {
        let len = count.checked_mul(room).and_then(|rooms| rooms.checked_add(len)).ok_or(Refusal::Full)?;
        self.room(0, len).map(|_| ())
    }

    /// Returns the next `len` bytes after `room` bytes of headroom, to be written and then added with [`Frames::push`].
    pub(super) fn room(&mut self, room: usize, len: usize) -> Result<&mut [u8], Refusal> {
        let start = self.used.checked_add(room).ok_or(Refusal::Full)?;
        let end = start.checked_add(len).ok_or(Refusal::Full)?;
        u32::try_from(end).map_err(|_| Refusal::Full)?;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        Ok(&mut self.bytes[start..end])
    }

    /// Returns the bytes of the frame with this index.
    pub(super) fn frame_mut(&mut self, number: usize) -> &mut [u8] {
        let range = self.frames.get(number).map_or(0..0, |f| f.range.start as usize..f.range.end as usize);
        &mut self.bytes[range]
    }

    /// Adds `count` frames of `len` bytes, each after `room` bytes of headroom, after [`Frames::reserve`], and returns
    /// their memory, to be written.
    #[inline(always)]
    pub(super) fn push_run(&mut self, room: usize, len: usize, count: usize, csum: SegmentCsum) -> Option<&mut [u8]> {
        let (first, step) = (self.used + room, room + len);
        let memory = self.bytes.get_mut(self.used..)?.get_mut(..count * step)?;
        self.frames.extend((0..count).map(move |at| {
            // `reserve` checked that all offsets fit in 32 bits.
            let start = first + at * step;
            Frame { range: start as u32..(start + len) as u32, room: room as u32, csum, gso: None }
        }));
        self.used += memory.len();
        Some(memory)
    }

    /// Adds the `len` bytes that [`Frames::room`] returned as a frame, with `room` bytes of headroom.
    pub(super) fn push(&mut self, room: usize, len: usize, csum: SegmentCsum, gso: Option<Gso>) {
        let start = self.used + room;
        self.used = start + len;
        // `room` checked that all offsets fit in 32 bits.
        self.frames.push(Frame { range: start as u32..self.used as u32, room: room as u32, csum, gso });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that more than a 32-bit offset can express is refused before memory is taken.
    #[test]
    fn more_than_offsets_can_express_is_refused() {
        let (mut arena, mut frames) = (Arena::new(), Frames::new());
        for (count, len) in [(usize::MAX, 2), (1 << 31, 2)] {
            assert_eq!(arena.reserve(count, len), Err(Refusal::Full), "{count} heads of {len} bytes");
        }
        for (count, len, room) in [(usize::MAX, 0, 2), (1, usize::MAX, 1), (1 << 31, 0, 2), (2, 1 << 31, 1 << 30)] {
            assert_eq!(frames.reserve(count, len, room), Err(Refusal::Full), "{count} frames, {len} bytes, {room}");
        }
        assert_eq!(frames.room(usize::MAX, 1).err(), Some(Refusal::Full));
        assert_eq!((arena.heads.capacity(), arena.segments.capacity(), frames.bytes.len()), (0, 0, 0));
    }

    /// Tests that a batch takes the memory that was reserved for it, and a reservation not many times what was asked.
    #[test]
    fn a_batch_takes_the_memory_that_was_reserved_for_it() {
        let (mut arena, mut frames) = (Arena::new(), Frames::new());
        arena.reserve(3, 20).unwrap();
        let reserved = arena.heads.capacity();
        assert!((60 + MAX_HEADER_BYTES..2 * (60 + MAX_HEADER_BYTES)).contains(&reserved), "{reserved}");
        arena.push_run(20, (0, 100, 3), SegmentCsum::AsIs, |head| head[19] = 9);
        assert_eq!(arena.heads.capacity(), reserved);
        let heads: Vec<&[u8]> = arena.segments().iter().map(|segment| arena.head(segment)).collect();
        let expected = [[0; 19].as_slice(), &[9]].concat();
        assert_eq!(heads, [&expected[..]; 3]);
        frames.reserve(3, 360, 10).unwrap();
        assert_eq!(frames.bytes.len(), 390);
    }
}
