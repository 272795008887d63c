//! GRE (RFC 2784) with key and sequence number (RFC 2890).

use super::layout::Stop;
use super::{read_u16, read_u32};

/// Length in bytes of a header without options.
pub const MIN_LEN: usize = 4;
/// Length in bytes of a header with checksum, key and sequence number.
pub const MAX_LEN: usize = 16;

/// Flag: a checksum is present; it covers the GRE header and all that follows, without a pseudo-header.
pub const CSUM: u16 = 0x8000;
/// Flag: routing is present (RFC 1701 only). The parser does not read such headers.
pub const ROUTING: u16 = 0x4000;
/// Flag: a key is present.
pub const KEY: u16 = 0x2000;
/// Flag: a sequence number is present.
pub const SEQ: u16 = 0x1000;
/// Flags of the optional fields that the parser supports.
const SUPPORTED_FLAGS: u16 = CSUM | KEY | SEQ;
/// Mask of the version; version 1 is PPTP's (RFC 2637, section 4.1), whose header differs.
const VERSION: u16 = 0x0007;
/// Offset of the checksum, where present.
pub const CHECKSUM: usize = 4;

/// The fields of a GRE header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gre {
    /// EtherType of the payload.
    pub protocol: u16,
    /// Checksum as found in the header, where present.
    pub checksum: Option<u16>,
    /// Key of the GRE header, where present.
    pub key: Option<u32>,
    /// Sequence number, where present.
    pub seq: Option<u32>,
}

impl Gre {
    /// Parses a header; `None` if it is truncated, has a version other than 0, or flags other than checksum, key and
    /// sequence number.
    pub fn parse(bytes: &[u8]) -> Option<Gre> {
        let flags = read_u16(bytes, 0)?;
        if flags & !SUPPORTED_FLAGS != 0 {
            return None;
        }
        let protocol = read_u16(bytes, 2)?;
        let mut at = MIN_LEN;
        let mut next = |present: bool| {
            if !present {
                return Some(None);
            }
            let value = read_u32(bytes, at)?;
            at += 4;
            Some(Some(value))
        };
        let checksum = next(flags & CSUM != 0)?.map(|word| (word >> 16) as u16);
        Some(Gre { protocol, checksum, key: next(flags & KEY != 0)?, seq: next(flags & SEQ != 0)? })
    }

    /// Returns the reason why [`Gre::parse`] cannot read a header: another protocol, unknown flags, or truncation.
    #[cold]
    pub(super) fn unread(bytes: &[u8]) -> Stop {
        match read_u16(bytes, 0).filter(|_| bytes.len() >= MIN_LEN) {
            Some(flags) if flags & VERSION != 0 => Stop::Protocol,
            Some(flags) if flags & !SUPPORTED_FLAGS != 0 => Stop::Foreign,
            _ => Stop::Malformed,
        }
    }

    /// Returns the length of this header in bytes: 4 to 16.
    pub fn len(&self) -> usize {
        MIN_LEN + 4 * [self.checksum.is_some(), self.key.is_some(), self.seq.is_some()].iter().filter(|&&p| p).count()
    }

    /// Returns `false`: a header has at least 4 bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the offset of the sequence number from the start of the header, if present.
    pub fn seq_at(&self) -> Option<usize> {
        self.seq.map(|_| self.len() - 4)
    }

    /// Writes the header into the first [`Gre::len`] bytes; `None` where `bytes` is shorter.
    pub fn emit(&self, bytes: &mut [u8]) -> Option<()> {
        let bytes = bytes.get_mut(..self.len())?;
        let mut flags = 0;
        let mut at = MIN_LEN;
        let words = [(CSUM, self.checksum.map(|c| u32::from(c) << 16)), (KEY, self.key), (SEQ, self.seq)];
        for (flag, word) in words {
            if let Some(word) = word {
                flags |= flag;
                bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
                at += 4;
            }
        }
        bytes[..2].copy_from_slice(&u16::to_be_bytes(flags));
        bytes[2..4].copy_from_slice(&self.protocol.to_be_bytes());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Gre = Gre { protocol: 0x0800, checksum: Some(0xabcd), key: Some(0x1020_3040), seq: Some(7) };

    #[test]
    fn every_form_reads_back_as_written() {
        for form in 0..8 {
            let gre = Gre {
                protocol: 0x86dd,
                checksum: FULL.checksum.filter(|_| form & 1 != 0),
                key: FULL.key.filter(|_| form & 2 != 0),
                seq: FULL.seq.filter(|_| form & 4 != 0),
            };
            let mut bytes = [0xee; 16];
            gre.emit(&mut bytes).unwrap();
            assert_eq!(Gre::parse(&bytes[..gre.len()]), Some(gre));
            assert_eq!(Gre::parse(&bytes[..gre.len() - 1]), None);
            assert!(bytes[gre.len()..].iter().all(|&b| b == 0xee));
        }
    }

    #[test]
    fn the_order_of_the_words_is_checksum_key_sequence() {
        let mut bytes = [0; 16];
        FULL.emit(&mut bytes).unwrap();
        assert_eq!(bytes, [0xb0, 0, 8, 0, 0xab, 0xcd, 0, 0, 0x10, 0x20, 0x30, 0x40, 0, 0, 0, 7]);
        assert_eq!(FULL.seq_at(), Some(12));
    }

    #[test]
    fn routing_and_other_versions_are_refused() {
        // Routing, strict source route, recursion control, other flags, versions (RFC 1701; RFC 2784, section 2.3).
        for bit in (0..16).map(|bit| 1_u16 << bit).filter(|bit| bit & SUPPORTED_FLAGS == 0) {
            let [high, low] = bit.to_be_bytes();
            assert_eq!(Gre::parse(&[high, low, 8, 0, 0, 0, 0, 0]), None, "{bit:#06x}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_another_protocol_foreign_or_cut_off() {
        for (bytes, stop) in [
            (&[0x00, 1, 8, 0][..], Stop::Protocol),
            (&[0x40, 1, 8, 0], Stop::Protocol),
            (&[0x40, 0, 8, 0], Stop::Foreign),
            (&[0x00, 0x80, 8, 0], Stop::Foreign),
            (&[0x20, 0, 8, 0], Stop::Malformed),
            (&[0x00, 1, 8], Stop::Malformed),
            (&[], Stop::Malformed),
        ] {
            assert_eq!(Gre::unread(bytes), stop, "{bytes:02x?}");
        }
        assert!(!FULL.is_empty());
        assert!(FULL.emit(&mut [0; 15]).is_none());
    }
}
