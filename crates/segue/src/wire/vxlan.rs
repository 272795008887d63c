//! VXLAN (RFC 7348), with the remote checksum bit of Linux (`draft-herbert-vxlan-rco`).
//!
//! RFC 7348 has receivers ignore reserved bits. This parser refuses them, as Linux does: extensions (GPE, group policy)
//! use them to say that something else follows.

use super::{Format, Kind, Next, Remcsum, Shim, Unread, ethertype, read_u32, tcp, udp};

/// UDP port of VXLAN, assigned by IANA.
pub const PORT: u16 = 4789;
/// Length of the VXLAN header in bytes.
pub const LEN: usize = 8;
/// Largest virtual network identifier (VNI).
pub const MAX_VNI: u32 = 0x00ff_ffff;
/// Largest start that a remote checksum option can state, in bytes.
pub const MAX_START: u16 = 254;

/// Flag in the first word: the network identifier is valid.
pub const VALID: u32 = 0x0800_0000;
/// Flag in the first word: the last byte of the header is a remote checksum option.
pub const REMCSUM: u32 = 0x0020_0000;
/// Flag in a remote checksum option: the checksum field is UDP's, else TCP's; the other bits are half of the start.
const REMCSUM_UDP: u8 = 0x80;

/// The row of the table of formats.
pub const FORMAT: Format =
    Format { kind: Kind::Vxlan, name: "VXLAN", port: PORT, read, withdraw: Some(Vxlan::withdraw_remcsum), flow: 4..7 };

fn read(bytes: &[u8]) -> Result<Shim, Unread> {
    let vxlan = Vxlan::parse(bytes)?;
    Ok(Shim { len: LEN, next: Next::Type(ethertype::TEB), remcsum: vxlan.remcsum })
}

/// The fields of a VXLAN header. An Ethernet frame follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Remote checksum option, where present: an even start, and the checksum field of TCP or UDP.
    pub remcsum: Option<Remcsum>,
}

crate::reasons! {
    /// Reason why a datagram on a VXLAN port is dropped.
    pub enum Refusal {
        Truncated = "vxlan_truncated": "The datagram ends inside the VXLAN header.",
        NoVni = "vxlan_no_vni": "The VXLAN header has no valid network identifier.",
        Flags = "vxlan_flags": "A VXLAN flag is unknown, or a reserved bit is set.",
    }
}

impl From<Refusal> for Unread {
    fn from(refusal: Refusal) -> Unread {
        match refusal {
            Refusal::Truncated => Unread::Malformed,
            Refusal::NoVni | Refusal::Flags => Unread::Foreign,
        }
    }
}

impl Vxlan {
    /// Reads the header at the start of a UDP payload.
    ///
    /// # Errors
    /// [`Refusal`] for a datagram to be dropped.
    pub fn parse(bytes: &[u8]) -> Result<Vxlan, Refusal> {
        let flags = read_u32(bytes, 0).ok_or(Refusal::Truncated)?;
        let word = read_u32(bytes, 4).ok_or(Refusal::Truncated)?;
        if flags & VALID == 0 {
            return Err(Refusal::NoVni);
        }
        let (vni, last) = (word >> 8, word as u8);
        match flags & !VALID {
            0 if last == 0 => Ok(Vxlan { vni, remcsum: None }),
            REMCSUM => {
                let start = u16::from(last & !REMCSUM_UDP) * 2;
                let field = if last & REMCSUM_UDP != 0 { udp::CHECKSUM } else { tcp::CHECKSUM };
                Ok(Vxlan { vni, remcsum: Some(Remcsum { start, offset: start + field as u16 }) })
            }
            _ => Err(Refusal::Flags),
        }
    }

    /// Removes the remote checksum option from a header that has one.
    pub fn withdraw_remcsum(bytes: &mut [u8]) {
        if Vxlan::parse(bytes).is_ok_and(|vxlan| vxlan.remcsum.is_some()) {
            // The bit of the flag, and the byte after the network identifier.
            bytes[1] &= !(REMCSUM >> 16) as u8;
            bytes[7] = 0;
        }
    }

    /// Returns whether the header can express the option: its start is even and at most [`MAX_START`], and its field is
    /// that of TCP or UDP.
    pub fn is_representable(option: Remcsum) -> bool {
        last_byte(option).is_some()
    }

    /// Writes the header; `None` if there is less room than [`LEN`], or if it cannot express the option.
    pub fn emit(&self, bytes: &mut [u8]) -> Option<()> {
        let bytes = bytes.get_mut(..LEN)?;
        let (flags, last) = match self.remcsum {
            None => (VALID, 0),
            Some(option) => (VALID | REMCSUM, last_byte(option)?),
        };
        bytes[..4].copy_from_slice(&flags.to_be_bytes());
        bytes[4..].copy_from_slice(&((self.vni & MAX_VNI) << 8 | u32::from(last)).to_be_bytes());
        Some(())
    }
}

fn last_byte(option: Remcsum) -> Option<u8> {
    if option.start > MAX_START || !option.start.is_multiple_of(2) {
        return None;
    }
    // At most 127.
    let half = (option.start / 2) as u8;
    match usize::from(option.offset.checked_sub(option.start)?) {
        tcp::CHECKSUM => Some(half),
        udp::CHECKSUM => Some(half | REMCSUM_UDP),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_reads_back_as_written() {
        for remcsum in [None, Some(Remcsum { start: 34, offset: 50 }), Some(Remcsum { start: 254, offset: 260 })] {
            let vxlan = Vxlan { vni: 0x123456, remcsum };
            let mut bytes = [0xee; 9];
            vxlan.emit(&mut bytes).unwrap();
            assert_eq!(Vxlan::parse(&bytes[..LEN]), Ok(vxlan));
            assert_eq!(Vxlan::parse(&bytes[..LEN - 1]), Err(Refusal::Truncated));
            assert_eq!(bytes[8], 0xee);
        }
    }

    #[test]
    fn the_linux_layout_of_the_option() {
        // Inner IPv4 and UDP: flags 08200000, the start 34 as 0x11, and 0x80 for UDP.
        let mut bytes = [0; LEN];
        Vxlan { vni: 0x123456, remcsum: Some(Remcsum { start: 34, offset: 40 }) }.emit(&mut bytes).unwrap();
        assert_eq!(bytes, [0x08, 0x20, 0, 0, 0x12, 0x34, 0x56, 0x91]);
    }

    #[test]
    fn what_the_last_byte_cannot_say_is_not_written() {
        for (start, offset) in [(35, 51), (256, 272), (34, 36), (34, 33)] {
            let remcsum = Remcsum { start, offset };
            assert!(!Vxlan::is_representable(remcsum));
            assert_eq!(Vxlan { vni: 1, remcsum: Some(remcsum) }.emit(&mut [0; LEN]), None);
        }
    }

    #[test]
    fn each_malformed_header_has_its_own_reason() {
        assert_eq!(Vxlan::parse(&[]), Err(Refusal::Truncated));
        assert_eq!(Vxlan::parse(&[0; 8]), Err(Refusal::NoVni));
        assert_eq!(Vxlan::parse(&[0x08, 0, 1, 0, 0, 0, 1, 0]), Err(Refusal::Flags));
        assert_eq!(Vxlan::parse(&[0x0c, 0, 0, 3, 0, 0, 1, 0]), Err(Refusal::Flags));
        assert_eq!(Vxlan::parse(&[0x88, 0, 0, 1, 0, 0, 1, 0]), Err(Refusal::Flags));
        assert_eq!(Vxlan::parse(&[0x08, 0, 0, 0, 0, 0, 1, 7]), Err(Refusal::Flags));
        assert_eq!(Vxlan::parse(&[0x08, 0x20, 0, 1, 0, 0, 1, 7]), Err(Refusal::Flags));
    }

    #[test]
    fn an_option_is_taken_out_and_nothing_else() {
        let mut with = [0; LEN];
        let remcsum = Some(Remcsum { start: 34, offset: 50 });
        Vxlan { vni: 0x123456, remcsum }.emit(&mut with).unwrap();
        let mut without = [0; LEN];
        Vxlan { vni: 0x123456, remcsum: None }.emit(&mut without).unwrap();
        for bytes in [&mut with, &mut without.clone()] {
            Vxlan::withdraw_remcsum(bytes);
            assert_eq!(*bytes, without);
        }
        Vxlan::withdraw_remcsum(&mut []);
    }
}
