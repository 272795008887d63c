//! UDP (RFC 768; zero checksums over IPv6: RFC 6935 and RFC 6936).

/// Length of a UDP header, bytes.
pub const LEN: usize = 8;

/// Source port; the destination port follows.
pub const PORTS: usize = 0;
/// Source port.
pub const SRC_PORT: usize = 0;
/// Destination port.
pub const DST_PORT: usize = 2;
/// Length, header included.
pub const LENGTH: usize = 4;
/// Checksum field; zero means no checksum.
pub const CHECKSUM: usize = 6;
