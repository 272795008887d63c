//! TCP (RFC 9293), with the ECN flags of RFC 3168 and the AE flag of accurate ECN.

/// Bytes of a header without options.
pub const MIN_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_LEN: usize = 60;

/// Source port; the destination port follows.
pub const PORTS: usize = 0;
/// Sequence number.
pub const SEQ: usize = 4;
/// Acknowledgment number.
pub const ACK_NUMBER: usize = 8;
/// Data offset (upper 4 bits), reserved bits and AE.
pub const OFFSET: usize = 12;
/// The eight flags.
pub const FLAGS: usize = 13;
/// Window.
pub const WINDOW: usize = 14;
/// Checksum.
pub const CHECKSUM: usize = 16;
/// Urgent pointer.
pub const URGENT: usize = 18;
/// Options, if any.
pub const OPTIONS: usize = 20;

/// The bytes of a timestamp option behind two NOPs, as every stack writes it (RFC 7323, appendix A), but for the values.
pub const STAMPED: [u8; 4] = [1, 1, 8, 10];
/// Bytes of a header with nothing but that.
pub const STAMPED_LEN: usize = 32;
/// The timestamp in such a header.
pub const STAMP: usize = 24;
/// The timestamp that it echoes.
pub const ECHO: usize = 28;
/// Kind of the window scale option (RFC 7323, section 2.2); its length is 3.
pub const WINDOW_SCALE: u8 = 3;
/// Largest window scale (RFC 7323, section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// No more data from the sender.
pub const FIN: u8 = 0x01;
/// Synchronise.
pub const SYN: u8 = 0x02;
/// Reset.
pub const RST: u8 = 0x04;
/// Push.
pub const PSH: u8 = 0x08;
/// The acknowledgment number is meant.
pub const ACK: u8 = 0x10;
/// The urgent pointer is meant.
pub const URG: u8 = 0x20;
/// ECN echo.
pub const ECE: u8 = 0x40;
/// Congestion window reduced.
pub const CWR: u8 = 0x80;

/// Header length in bytes as the data-offset byte states it (0..=60, unchecked against the minimum).
pub const fn header_len(offset: u8) -> usize {
    (offset as usize >> 4) * 4
}
