//! TCP (RFC 9293), with the ECN flags of RFC 3168 and the AE flag of accurate ECN.

/// Length in bytes of a header without options.
pub const MIN_LEN: usize = 20;
/// Length of the longest header in bytes.
pub const MAX_LEN: usize = 60;

/// Source port; the destination port follows.
pub const PORTS: usize = 0;
/// Offset of the sequence number.
pub const SEQ: usize = 4;
/// Offset of the acknowledgment number.
pub const ACK_NUMBER: usize = 8;
/// Data offset (upper 4 bits), reserved bits and AE.
pub const OFFSET: usize = 12;
/// Offset of the eight flags.
pub const FLAGS: usize = 13;
/// Offset of the window.
pub const WINDOW: usize = 14;
/// Offset of the checksum.
pub const CHECKSUM: usize = 16;
/// Offset of the urgent pointer.
pub const URGENT: usize = 18;
/// Offset of the options, if any.
pub const OPTIONS: usize = 20;

/// The first bytes of a timestamp option after two NOPs, as every stack writes it (RFC 7323, appendix A); the values
/// follow.
pub const STAMPED: [u8; 4] = [1, 1, 8, 10];
/// Length in bytes of a header with two NOPs and a timestamp option only.
pub const STAMPED_LEN: usize = 32;
/// Offset of the timestamp value (`TSval`) in a header of [`STAMPED_LEN`] bytes.
pub const STAMP: usize = 24;
/// Offset of the timestamp echo reply (`TSecr`) in a header of [`STAMPED_LEN`] bytes.
pub const ECHO: usize = 28;
/// Kind of the window scale option (RFC 7323, section 2.2); its length is 3.
pub const WINDOW_SCALE: u8 = 3;
/// Largest window scale (RFC 7323, section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// Flag: the sender has no more data.
pub const FIN: u8 = 0x01;
/// Flag: synchronise sequence numbers.
pub const SYN: u8 = 0x02;
/// Flag: reset the connection.
pub const RST: u8 = 0x04;
/// Flag: push the data to the application.
pub const PSH: u8 = 0x08;
/// Flag: the acknowledgment number is valid.
pub const ACK: u8 = 0x10;
/// Flag: the urgent pointer is valid.
pub const URG: u8 = 0x20;
/// Flag: ECN echo.
pub const ECE: u8 = 0x40;
/// Flag: congestion window reduced.
pub const CWR: u8 = 0x80;

/// Returns the header length in bytes that the data-offset byte states (0..=60, unchecked against the minimum).
pub const fn header_len(offset: u8) -> usize {
    (offset as usize >> 4) * 4
}
