//! What a packet or train is split into.

use core::ops::Range;

use crate::packet::Gso;

/// What a port is to do about the innermost transport checksum of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentCsum {
    /// Nothing: send what stands there.
    AsIs,
    /// Nothing; it may tell its receiver that the field is right. Only packets without tunnel levels are marked so.
    Verified,
    /// Complete it: the field of the innermost transport header holds the pseudo-header sum.
    Partial,
}

/// One packet, or one smaller train, for a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its headers, in the arena: [`Arena::head`](super::Arena::head).
    pub head: Range<u32>,
    /// Its payload, in the payload of the packet that was split.
    pub payload: Range<u32>,
    /// The innermost transport checksum.
    pub csum: SegmentCsum,
    /// How the port is to cut it; `None` for a single packet.
    pub gso: Option<Gso>,
}
