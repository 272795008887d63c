//! The segments that a packet or train is split into.

use core::ops::Range;

use crate::packet::Gso;

/// What a port must do about the innermost transport checksum of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentCsum {
    /// Nothing: the field is sent as it stands.
    AsIs,
    /// Nothing; the port may tell its receiver that the field is right. Only packets without tunnel levels are marked
    /// so.
    Verified,
    /// The port completes it: the field of the innermost transport header holds the pseudo-header sum.
    Partial,
}

/// One packet, or one smaller train, for a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Range of its headers in the arena; see [`Arena::head`](super::Arena::head).
    pub head: Range<u32>,
    /// Range of its payload in the payload of the packet that was split.
    pub payload: Range<u32>,
    /// What the port must do about the innermost transport checksum.
    pub csum: SegmentCsum,
    /// How the port must cut it; `None` for a single packet.
    pub gso: Option<Gso>,
}
