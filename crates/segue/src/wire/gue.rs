//! Generic UDP encapsulation as Linux speaks it: version 0 with the private flags word and the remote checksum option,
//! and version 1, which is a bare IP packet (`draft-ietf-intarea-gue`, Linux `include/net/gue.h` layout).
//!
//! The later drafts put the remote checksum option elsewhere (flag 0x0200, header length 1); Linux drops that form and
//! so does this parser.

pub use super::Remcsum;
use super::{Format, Kind, Next, Shim, Unread, protocol, read_u16, read_u32};

/// UDP port of GUE, assigned by IANA.
pub const PORT: u16 = 6080;
/// Length of the base header in bytes.
pub const BASE_LEN: usize = 4;
/// Length in bytes of a header with the remote checksum option.
pub const REMCSUM_LEN: usize = 12;

/// The only standard flag that Linux knows: a word of private flags follows.
const PRIVATE: u16 = 0x0001;
/// The only private flag that Linux knows: start and offset of a remote checksum follow.
const PRIVATE_REMCSUM: u32 = 0x8000_0000;
const CONTROL: u8 = 0x20;
const HLEN: u8 = 0x1f;

/// The row of the table of formats.
pub const FORMAT: Format =
    Format { kind: Kind::Gue, name: "GUE", port: PORT, read, withdraw: Some(Gue::withdraw_remcsum), flow: 0..0 };

fn read(bytes: &[u8]) -> Result<Shim, Unread> {
    let gue = Gue::parse(bytes)?;
    Ok(Shim { len: gue.len, next: Next::Protocol(gue.protocol), remcsum: gue.remcsum })
}

/// The fields of a GUE header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gue {
    /// IP protocol of the payload.
    pub protocol: u8,
    /// Length in bytes of the header: 0 for version 1, 4 to 128 for version 0.
    pub len: usize,
    /// Remote checksum option, where present. Its values are not checked here.
    pub remcsum: Option<Remcsum>,
}

crate::reasons! {
    /// Reason why a datagram on a GUE port is dropped.
    pub enum Refusal {
        Truncated = "gue_truncated": "The datagram ends inside the GUE header.",
        Version = "gue_version": "The GUE version is 2 or 3, or 1 with a payload that is neither IPv4 nor IPv6.",
        Control = "gue_control": "The packet is a GUE control message.",
        Flags = "gue_flags": "A GUE flag or private flag is unknown.",
        HeaderLen = "gue_header_len": "The GUE header is too short for the options that its flags announce.",
    }
}

impl From<Refusal> for Unread {
    fn from(refusal: Refusal) -> Unread {
        match refusal {
            Refusal::Truncated | Refusal::HeaderLen => Unread::Malformed,
            Refusal::Version | Refusal::Control | Refusal::Flags => Unread::Foreign,
        }
    }
}

impl Gue {
    /// Reads the header at the start of a UDP payload.
    ///
    /// A header longer than its flags need is accepted and the surplus skipped, as Linux does. A header whose length
    /// does not cover the remote checksum field is refused, which Linux does not do.
    ///
    /// # Errors
    /// [`Refusal`] for a datagram to be dropped.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<Gue, Refusal> {
        let &first = bytes.first().ok_or(Refusal::Truncated)?;
        match first >> 6 {
            0 => {}
            1 => {
                let protocol = match first >> 4 {
                    4 => protocol::IPV4,
                    6 => protocol::IPV6,
                    _ => return Err(Refusal::Version),
                };
                return Ok(Gue { protocol, len: 0, remcsum: None });
            }
            _ => return Err(Refusal::Version),
        }
        let len = BASE_LEN + usize::from(first & HLEN) * 4;
        if bytes.len() < len {
            return Err(Refusal::Truncated);
        }
        let flags = read_u16(bytes, 2).ok_or(Refusal::Truncated)?;
        if flags & !PRIVATE != 0 {
            return Err(Refusal::Flags);
        }
        let mut remcsum = None;
        if flags & PRIVATE != 0 {
            if len < BASE_LEN + 4 {
                return Err(Refusal::HeaderLen);
            }
            let private = read_u32(bytes, BASE_LEN).ok_or(Refusal::Truncated)?;
            if private & !PRIVATE_REMCSUM != 0 {
                return Err(Refusal::Flags);
            }
            if private & PRIVATE_REMCSUM != 0 {
                if len < REMCSUM_LEN {
                    return Err(Refusal::HeaderLen);
                }
                let word = read_u32(bytes, BASE_LEN + 4).ok_or(Refusal::Truncated)?;
                remcsum = Some(Remcsum { start: (word >> 16) as u16, offset: word as u16 });
            }
        }
        if first & CONTROL != 0 {
            return Err(Refusal::Control);
        }
        Ok(Gue { protocol: bytes[1], len, remcsum })
    }

    /// Removes the remote checksum option from a header that has one. Its bytes become zero and stay in the header as
    /// surplus, which receivers skip, so that nothing moves.
    pub fn withdraw_remcsum(bytes: &mut [u8]) {
        if Gue::parse(bytes).is_ok_and(|gue| gue.remcsum.is_some()) {
            // The flag of the option is the only private flag.
            bytes[2..REMCSUM_LEN].fill(0);
        }
    }

    /// Returns the length in bytes of the header that [`Gue::emit`] writes, with or without the remote checksum option.
    pub const fn emit_len(remcsum: bool) -> usize {
        if remcsum { REMCSUM_LEN } else { BASE_LEN }
    }

    /// Writes a version 0 header of 4 or 12 bytes; `None` where there is less room.
    pub fn emit(bytes: &mut [u8], protocol: u8, remcsum: Option<Remcsum>) -> Option<()> {
        let bytes = bytes.get_mut(..Self::emit_len(remcsum.is_some()))?;
        match remcsum {
            None => bytes.copy_from_slice(&[0, protocol, 0, 0]),
            Some(Remcsum { start, offset }) => {
                bytes[..BASE_LEN].copy_from_slice(&[2, protocol, 0, 1]);
                bytes[4..8].copy_from_slice(&PRIVATE_REMCSUM.to_be_bytes());
                bytes[8..10].copy_from_slice(&start.to_be_bytes());
                bytes[10..12].copy_from_slice(&offset.to_be_bytes());
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_read_back_as_written() {
        for remcsum in [None, Some(Remcsum { start: 24, offset: 40 })] {
            let mut bytes = [0xee; 16];
            Gue::emit(&mut bytes, 47, remcsum).unwrap();
            let len = Gue::emit_len(remcsum.is_some());
            assert_eq!(Gue::parse(&bytes[..len]), Ok(Gue { protocol: 47, len, remcsum }));
            assert_eq!(Gue::parse(&bytes[..len - 1]), Err(Refusal::Truncated));
            assert!(bytes[len..].iter().all(|&b| b == 0xee));
        }
    }

    #[test]
    fn the_linux_layout_of_the_option() {
        let bytes = [0x02, 0x04, 0x00, 0x01, 0x80, 0, 0, 0, 0x00, 0x14, 0x00, 0x1a];
        let expected = Gue { protocol: 4, len: 12, remcsum: Some(Remcsum { start: 20, offset: 26 }) };
        assert_eq!(Gue::parse(&bytes), Ok(expected));
    }

    #[test]
    fn surplus_header_words_are_skipped() {
        let bytes = [0x03, 0x04, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9];
        assert_eq!(Gue::parse(&bytes).unwrap().len, 16);
    }

    #[test]
    fn version_one_is_bare_ip_and_other_versions_are_refused() {
        assert_eq!(Gue::parse(&[0x45]), Ok(Gue { protocol: 4, len: 0, remcsum: None }));
        assert_eq!(Gue::parse(&[0x60]), Ok(Gue { protocol: 41, len: 0, remcsum: None }));
        for first in [0x50, 0x70, 0x80, 0xc0, 0xff] {
            assert_eq!(Gue::parse(&[first; 16]), Err(Refusal::Version));
        }
    }

    #[test]
    fn a_word_of_private_flags_may_be_empty_and_must_be_there() {
        assert_eq!(Gue::parse(&[1, 4, 0, 1, 0, 0, 0, 0]), Ok(Gue { protocol: 4, len: 8, remcsum: None }));
        assert_eq!(Gue::parse(&[0, 4, 0, 1, 0, 0, 0, 0]), Err(Refusal::HeaderLen));
        // Without that option nothing is withdrawn.
        let mut bytes = [1, 4, 0, 1, 0, 0, 0, 0, 7, 7, 7, 7];
        Gue::withdraw_remcsum(&mut bytes);
        assert_eq!(bytes, [1, 4, 0, 1, 0, 0, 0, 0, 7, 7, 7, 7]);
        let mut bytes = [3, 4, 0, 1, 0x80, 0, 0, 0, 0, 20, 0, 26, 7, 7, 7, 7];
        Gue::withdraw_remcsum(&mut bytes);
        assert_eq!(bytes, [3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7]);
        assert_eq!(Gue::parse(&bytes), Ok(Gue { protocol: 4, len: 16, remcsum: None }));
    }

    #[test]
    fn each_malformed_header_has_its_own_reason() {
        assert_eq!(Gue::parse(&[]), Err(Refusal::Truncated));
        assert_eq!(Gue::parse(&[0x1f, 4, 0, 0]), Err(Refusal::Truncated));
        assert_eq!(Gue::parse(&[0, 4, 0x02, 0]), Err(Refusal::Flags));
        assert_eq!(Gue::parse(&[1, 4, 0, 1, 0x40, 0, 0, 0]), Err(Refusal::Flags));
        assert_eq!(Gue::parse(&[0, 4, 0, 1, 0x80, 0, 0, 0]), Err(Refusal::HeaderLen));
        assert_eq!(Gue::parse(&[1, 4, 0, 1, 0x80, 0, 0, 0, 0, 20, 0, 26]), Err(Refusal::HeaderLen));
        assert_eq!(Gue::parse(&[0x20, 0, 0, 0]), Err(Refusal::Control));
    }
}
