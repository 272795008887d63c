//! IPv4 (RFC 791), with the DSCP and ECN fields of RFC 2474 and RFC 3168.

use core::ops::Range;

/// Bytes of a header without options.
pub const MIN_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_LEN: usize = 60;

/// Most that the total length can say.
pub const MAX_TOTAL_LEN: usize = 65_535;

/// Version and header length in 32-bit words.
pub const VERSION_IHL: usize = 0;
/// DSCP (6 bits) and ECN (2 bits).
pub const TOS: usize = 1;
/// Total length, header included.
pub const TOTAL_LEN: usize = 2;
/// Identification.
pub const ID: usize = 4;
/// Flags (3 bits) and fragment offset (13 bits, in 8-byte units).
pub const FRAGMENT: usize = 6;
/// Time to live.
pub const TTL: usize = 8;
/// Protocol of the payload.
pub const PROTOCOL: usize = 9;
/// Header checksum.
pub const CHECKSUM: usize = 10;
/// Source address.
pub const SRC: Range<usize> = 12..16;
/// Destination address.
pub const DST: Range<usize> = 16..20;

/// Reserved flag; RFC 791 wants it zero.
pub const RESERVED: u16 = 0x8000;
/// Don't fragment.
pub const DF: u16 = 0x4000;
/// More fragments.
pub const MF: u16 = 0x2000;
/// Mask of the fragment offset.
pub const OFFSET: u16 = 0x1fff;

/// Header length in bytes as the first byte states it (0..=60, unchecked against the minimum).
pub const fn header_len(first: u8) -> usize {
    (first as usize & 0x0f) * 4
}
