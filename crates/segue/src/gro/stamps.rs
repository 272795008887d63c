//! TCP timestamps in their usual layout (RFC 7323), and the distance of two sequence numbers or timestamps.

use crate::wire::{read_u32, tcp};

/// The timestamps option of a TCP header: the sender's value and the echo of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    pub(super) value: u32,
    pub(super) echo: u32,
}

impl Stamps {
    /// Returns whether neither value goes back since `before`, and the echo is valid (zero means none: RFC 7323,
    /// section 3.2).
    pub(super) fn may_follow(self, before: Stamps) -> bool {
        self.echo != 0 && distance(before.value, self.value) >= 0 && distance(before.echo, self.echo) >= 0
    }
}

/// Returns the timestamps of a TCP header whose only options are timestamps in the usual layout.
pub(super) fn stamps(header: &[u8]) -> Option<Stamps> {
    let is_usual = header.len() == tcp::STAMPED_LEN && header.get(tcp::OPTIONS..tcp::STAMP) == Some(&tcp::STAMPED[..]);
    let (value, echo) = (read_u32(header, tcp::STAMP)?, read_u32(header, tcp::ECHO)?);
    is_usual.then_some(Stamps { value, echo })
}

/// Returns how far `a` is behind `b`, modulo 2^32: negative if it is ahead.
pub(super) fn distance(a: u32, b: u32) -> i32 {
    b.wrapping_sub(a) as i32
}
