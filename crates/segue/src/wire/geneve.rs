//! Header format of Geneve (RFC 8926).

use super::{Format, Kind, Next, Shim, Unread, ethertype, read_u16, read_u32};

/// UDP port of Geneve, assigned by IANA.
pub const PORT: u16 = 6081;
/// Length in bytes of a header without options.
pub const MIN_LEN: usize = 8;
/// Length of the longest header in bytes.
pub const MAX_LEN: usize = MIN_LEN + 63 * 4;
/// Largest virtual network identifier (VNI).
pub const MAX_VNI: u32 = 0x00ff_ffff;

/// Mask of the version in the first byte; the only one is 0.
pub const VERSION: u8 = 0xc0;
const OPT_LEN: u8 = 0x3f;
/// Flag in the second byte: the payload is a control message for the ends of the tunnel, and not to be forwarded.
pub const CONTROL: u8 = 0x80;
/// Flag in the type of an option: an end of the tunnel that does not know the option must drop the packet.
const CRITICAL: u8 = 0x80;
/// Mask of the length in the last byte of an option's header, in 4-byte words; the header is not included.
pub(crate) const WORDS: u8 = 0x1f;

/// The row of the table of formats.
pub const FORMAT: Format = Format { kind: Kind::Geneve, name: "Geneve", port: PORT, read, withdraw: None, flow: 4..7 };

fn read(bytes: &[u8]) -> Result<Shim, Unread> {
    let geneve = Geneve::parse(bytes)?;
    Ok(Shim { len: geneve.len, next: Next::Type(geneve.protocol), remcsum: None })
}

/// The fields of a Geneve header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geneve {
    /// EtherType of the payload; [`ethertype::TEB`] for an Ethernet frame.
    pub protocol: u16,
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Length in bytes of the header with its options.
    pub len: usize,
    /// Whether an option is critical, so that the end of the tunnel must know it. Others on the path may ignore it.
    pub is_critical: bool,
}

crate::reasons! {
    /// Reason why a datagram on a Geneve port is dropped.
    pub enum Refusal {
        Truncated = "geneve_truncated": "The datagram ends inside the Geneve header.",
        Version = "geneve_version": "The Geneve version is not 0.",
        Control = "geneve_control": "The packet is a Geneve control packet.",
        Options = "geneve_options": "The lengths of the Geneve options contradict each other.",
    }
}

impl From<Refusal> for Unread {
    fn from(refusal: Refusal) -> Unread {
        match refusal {
            Refusal::Truncated | Refusal::Options => Unread::Malformed,
            Refusal::Version | Refusal::Control => Unread::Foreign,
        }
    }
}

impl Geneve {
    /// Reads the header at the start of a UDP payload. Reserved bits are ignored (RFC 8926, section 3.4).
    ///
    /// # Errors
    /// [`Refusal`] for a datagram to be dropped.
    pub fn parse(bytes: &[u8]) -> Result<Geneve, Refusal> {
        let &[first, second, _, _] = bytes.first_chunk().ok_or(Refusal::Truncated)?;
        if first & VERSION != 0 {
            return Err(Refusal::Version);
        }
        let len = MIN_LEN + usize::from(first & OPT_LEN) * 4;
        let header = bytes.get(..len).ok_or(Refusal::Truncated)?;
        if second & CONTROL != 0 {
            return Err(Refusal::Control);
        }
        let (protocol, word) = (read_u16(header, 2), read_u32(header, 4));
        let (protocol, word) = protocol.zip(word).ok_or(Refusal::Truncated)?;
        let (mut at, mut is_critical) = (MIN_LEN, false);
        while let Some(&[_, _, kind, length]) = header.get(at..).and_then(|rest| rest.first_chunk()) {
            is_critical |= kind & CRITICAL != 0;
            at += 4 + usize::from(length & WORDS) * 4;
        }
        if at != len {
            return Err(Refusal::Options);
        }
        Ok(Geneve { protocol, vni: word >> 8, len, is_critical })
    }

    /// Writes a header without options for an Ethernet frame; `None` where there is less room than [`MIN_LEN`].
    pub fn emit(bytes: &mut [u8], vni: u32) -> Option<()> {
        let bytes = bytes.get_mut(..MIN_LEN)?;
        bytes[..2].fill(0);
        bytes[2..4].copy_from_slice(&ethertype::TEB.to_be_bytes());
        bytes[4..].copy_from_slice(&((vni & MAX_VNI) << 8).to_be_bytes());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_as_written() {
        let mut bytes = [0xee; 9];
        Geneve::emit(&mut bytes, 0x123456).unwrap();
        assert_eq!(bytes, [0, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0, 0xee]);
        let expected = Geneve { protocol: ethertype::TEB, vni: 0x123456, len: 8, is_critical: false };
        assert_eq!(Geneve::parse(&bytes[..8]), Ok(expected));
        assert_eq!(Geneve::parse(&bytes[..7]), Err(Refusal::Truncated));
    }

    #[test]
    fn options_are_skipped_and_critical_ones_noticed() {
        let options = |kind: u8| [3, 0x40, 0x08, 0, 0, 0, 9, 0, 1, 2, 3, 0, 1, 2, kind, 1, 5, 5, 5, 5];
        let plain = Geneve::parse(&options(0x7f)).unwrap();
        assert_eq!((plain.len, plain.is_critical, plain.protocol), (20, false, ethertype::IPV4));
        assert!(Geneve::parse(&options(0x80)).unwrap().is_critical);
    }

    /// Tests that reserved bits are ignored on receipt (RFC 8926, sections 3.4 and 3.5).
    #[test]
    fn reserved_bits_of_the_header_and_of_options_are_ignored() {
        let plain = [1, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0, 1, 2, 3, 0];
        let expected = Geneve { protocol: ethertype::TEB, vni: 0x123456, len: 12, is_critical: false };
        assert_eq!(Geneve::parse(&plain), Ok(expected));
        // Those after the flags O and C, the last byte, and those in front of the length of an option.
        for (at, bits) in [(1, 0x3f), (7, 0xff), (11, 0xe0)] {
            let mut bytes = plain;
            bytes[at] |= bits;
            assert_eq!(Geneve::parse(&bytes), Ok(expected), "byte {at}");
        }
    }

    #[test]
    fn each_malformed_header_has_its_own_reason() {
        assert_eq!(Geneve::parse(&[]), Err(Refusal::Truncated));
        assert_eq!(Geneve::parse(&[1, 0, 0x65, 0x58, 0, 0, 1, 0]), Err(Refusal::Truncated));
        assert_eq!(Geneve::parse(&[0x40; 80]), Err(Refusal::Version));
        assert_eq!(Geneve::parse(&[0, 0x80, 0x65, 0x58, 0, 0, 1, 0]), Err(Refusal::Control));
        let past_the_end = [1, 0, 0x65, 0x58, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(Geneve::parse(&past_the_end), Err(Refusal::Options));
    }

    #[test]
    fn the_longest_header_has_63_words_of_options() {
        // Options without content.
        let mut longest = [0; MAX_LEN];
        longest[0] = OPT_LEN;
        assert_eq!(Geneve::parse(&longest).map(|geneve| geneve.len), Ok(MAX_LEN));
        assert_eq!(Geneve::parse(&longest[..MAX_LEN - 1]), Err(Refusal::Truncated));
    }
}
