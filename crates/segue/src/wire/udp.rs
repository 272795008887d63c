//! UDP (RFC 768; zero checksums over IPv6: RFC 6935 and RFC 6936).

/// Length of a UDP header, bytes.
pub const LEN: usize = 8;

/// Source port; the destination port follows.
pub const PORTS: usize = 0;
/// Offset of the source port.
pub const SRC_PORT: usize = 0;
/// Offset of the destination port.
pub const DST_PORT: usize = 2;
/// Offset of the length, which includes the header.
pub const LENGTH: usize = 4;
/// Checksum field; zero means no checksum.
pub const CHECKSUM: usize = 6;
