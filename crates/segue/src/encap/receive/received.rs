//! What a port knows of a datagram that it received.

use crate::checksum::Sum;

/// What the port knows of a datagram's UDP checksum. One that was wrong never comes this far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OuterCsum {
    /// It was there, not zero, and right.
    Verified,
    /// There was none: the field was zero.
    Absent,
    /// The port cannot tell.
    #[default]
    Unknown,
}

/// What came with a datagram from its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Outer DSCP and ECN.
    pub tos: u8,
    /// Outer UDP checksum.
    pub csum: OuterCsum,
    /// The sum of the datagram's bytes from the first to the last, where the port has it; a verified outer checksum
    /// yields it. Checksums inside are then checked without touching payload.
    pub sum: Option<Sum>,
}

/// Whether a sum is one of the two zeros of ones-complement arithmetic, as that of data with a good checksum is.
pub(super) fn is_zero(sum: Sum) -> bool {
    sum.fold().is_multiple_of(0xffff)
}
