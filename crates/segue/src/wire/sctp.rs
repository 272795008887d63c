//! SCTP (RFC 9260): the common header.

/// Length of the common header in bytes.
pub const LEN: usize = 12;
/// Offset of the checksum, a CRC32c whose least significant byte comes first.
pub const CHECKSUM: usize = 8;
