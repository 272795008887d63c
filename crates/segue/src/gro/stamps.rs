//! TCP timestamps in their usual layout (RFC 7323), and how far two sequence numbers or timestamps are apart.

use crate::wire::{read_u32, tcp};

/// Timestamp and echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    pub(super) value: u32,
    pub(super) echo: u32,
}

impl Stamps {
    /// Whether neither goes back, and the echo is one (zero is none: RFC 7323, section 3.2).
    pub(super) fn may_follow(self, before: Stamps) -> bool {
        self.echo != 0 && distance(before.value, self.value) >= 0 && distance(before.echo, self.echo) >= 0
    }
}

/// The timestamps of a TCP header with exactly the usual layout of that option.
pub(super) fn stamps(header: &[u8]) -> Option<Stamps> {
    let is_usual = header.len() == tcp::STAMPED_LEN && header.get(tcp::OPTIONS..tcp::STAMP) == Some(&tcp::STAMPED[..]);
    let (value, echo) = (read_u32(header, tcp::STAMP)?, read_u32(header, tcp::ECHO)?);
    is_usual.then_some(Stamps { value, echo })
}

/// How far `a` is behind `b`, modulo 2^32: negative where it is ahead.
pub(super) fn distance(a: u32, b: u32) -> i32 {
    b.wrapping_sub(a) as i32
}
