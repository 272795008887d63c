//! The properties of a received datagram that its port knows.

use crate::checksum::Sum;

/// The state of a datagram's UDP checksum, as the port knows it. Datagrams with a wrong checksum are dropped before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OuterCsum {
    /// The checksum was present, not zero, and right.
    Verified,
    /// No checksum: the field was zero.
    Absent,
    /// The port does not know the state.
    #[default]
    Unknown,
}

/// The outer header fields that a port passes with a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Outer DSCP and ECN byte.
    pub tos: u8,
    /// State of the outer UDP checksum.
    pub csum: OuterCsum,
    /// Sum of all bytes of the datagram, if the port knows it; a verified outer checksum implies it. Inner checksums
    /// are then verified without touching payload.
    pub sum: Option<Sum>,
}

/// Returns whether a sum is one of the two zeros of ones-complement arithmetic, like the sum of data with a good
/// checksum.
pub(super) fn is_zero(sum: Sum) -> bool {
    sum.fold().is_multiple_of(0xffff)
}
