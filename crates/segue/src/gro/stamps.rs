//! TCP timestamps in their usual layout (RFC 7323), and the distance of two sequence numbers or timestamps.

use crate::wire::{read_u32, tcp};

/// The timestamps option of a TCP header: the sender's value and the echo of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    pub(super) value: u32,
    pub(super) echo: u32,
}

impl Stamps {
    /// Returns whether both values have not decreased since `before`, and the echo is valid (zero means none: RFC 7323,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that numbers are compared modulo 2^32 (RFC 9293, section 3.4).
    #[test]
    fn a_distance_is_counted_around_the_end_of_the_numbers() {
        for (a, b, expected) in [
            (7, 7, 0),
            (5, 7, 2),
            (7, 5, -2),
            (u32::MAX, 1, 2),
            (1, u32::MAX, -2),
            (0, (1 << 31) - 1, i32::MAX),
            (0, 1 << 31, i32::MIN),
        ] {
            assert_eq!(distance(a, b), expected, "{a} to {b}");
        }
    }

    /// Tests that a segment joins only if neither TSval nor TSecr is older (RFC 7323, sections 3.2 and 5), and that a
    /// TSecr of 0 counts as absent.
    #[test]
    fn timestamps_follow_where_neither_goes_back_and_there_is_an_echo() {
        let before = Stamps { value: 100, echo: 50 };
        for (value, echo, expected) in [
            (100, 50, true),
            (101, 50, true),
            (100, 51, true),
            (99, 50, false),
            (100, 49, false),
            (101, 49, false),
            (99, 51, false),
            (100, 0, false),
        ] {
            assert_eq!(Stamps { value, echo }.may_follow(before), expected, "{value} {echo}");
        }
        assert!(!Stamps { value: 1, echo: 0 }.may_follow(Stamps { value: 1, echo: 0 }));
        assert!(Stamps { value: 1, echo: 2 }.may_follow(Stamps { value: u32::MAX, echo: u32::MAX }));
    }

    /// Tests that timestamps are read only in the layout of RFC 7323, appendix A: two NOPs and the option.
    #[test]
    fn timestamps_are_read_in_their_usual_layout_only() {
        let mut header = [0; tcp::STAMPED_LEN + 4];
        header[tcp::OPTIONS..tcp::STAMP].copy_from_slice(&[1, 1, 8, 10]);
        header[tcp::STAMP..tcp::STAMP + 8].copy_from_slice(&[0, 0, 1, 2, 0, 0, 3, 4]);
        let usual = Some(Stamps { value: 0x0102, echo: 0x0304 });
        for len in 0..=header.len() {
            let expected = usual.filter(|_| len == tcp::STAMPED_LEN);
            assert_eq!(stamps(&header[..len]), expected, "{len} bytes");
        }
        for at in tcp::OPTIONS..tcp::STAMP {
            let mut other = header;
            other[at] ^= 1;
            assert_eq!(stamps(&other[..tcp::STAMPED_LEN]), None, "byte {at}");
        }
    }
}
