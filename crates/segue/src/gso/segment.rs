//! The segments that a packet or train is split into.

use core::ops::Range;

use crate::packet::{Gso, Packet, Pieces};

/// The port's task for the innermost transport checksum of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentCsum {
    /// The field is correct, and the port may declare that to its receiver.
    AsIs,
    /// The field is correct, and the port may tell its receiver so. Only packets without tunnel levels are marked so.
    Verified,
    /// The port completes it: the field of the innermost transport header holds the pseudo-header sum.
    Partial,
}

/// A packet, or a smaller train, for a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Range of the segment's headers in the arena; see [`Arena::head`](super::Arena::head).
    pub head: Range<u32>,
    /// Range of the segment's payload in the payload of the packet that was split.
    pub payload: Range<u32>,
    /// The port's task for the innermost transport checksum.
    pub csum: SegmentCsum,
    /// The port's task of segmenting the frame; `None` for a single packet.
    pub gso: Option<Gso>,
}

impl Segment {
    /// Returns the length of the segment's payload, in bytes.
    #[inline]
    pub fn payload_len(&self) -> usize {
        (self.payload.end - self.payload.start) as usize
    }

    /// Returns the segment's payload in `packet`, the packet that was split, in contiguous pieces.
    #[inline]
    pub fn pieces<'a, B: AsRef<[u8]>>(&self, packet: &'a Packet<B>) -> Pieces<'a, B> {
        packet.payload.pieces(self.payload.start as usize..self.payload.end as usize)
    }
}
