//! Explicit congestion notification across a tunnel (RFC 6040).

use super::receive::set_tos;
use crate::packet::{Buffer, Csum, Packet, Unit};
use crate::wire::{ipv4, ipv6};

/// The two ECN bits of a DSCP and ECN byte.
pub(super) const MASK: u8 = 3;

const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const CE: u8 = 3;

/// Returns the outer DSCP and ECN byte: `dscp` from its source, ECN as in the inner header (RFC 6040, section 4.1,
/// normal mode).
pub(super) fn encapsulate(dscp: u8, inner: u8) -> u8 {
    dscp & !MASK | inner & MASK
}

/// Returns the inner DSCP and ECN byte after decapsulation (RFC 6040, section 4.2, figure 4); `None` if the packet must
/// be dropped: congestion was marked in the outer header and the inner packet does not support ECN.
pub const fn combine(inner: u8, outer: u8) -> Option<u8> {
    let ecn = match (inner & MASK, outer & MASK) {
        (NOT_ECT, CE) => return None,
        (NOT_ECT, _) => NOT_ECT,
        (CE, _) | (_, CE) => CE,
        (_, ECT_1) => ECT_1,
        (inner, _) => inner,
    };
    Some(inner & !MASK | ecn)
}

/// Marks congestion in the outermost IP header of a packet or train, as a router with a long queue does (RFC 3168,
/// section 5). Returns `false`, and changes nothing, unless the packet says that its transport supports ECN.
pub fn mark<B: Buffer>(packet: &mut Packet<B>) -> bool {
    let Some(at) = packet.layout.outer_ip().map(|ip| ip.start()) else { return false };
    let tos = match packet.head.bytes().get(at..) {
        Some(&[first, second, ..]) if first >> 4 == 6 => ipv6::traffic_class(first, second),
        Some(header) if header.len() >= ipv4::MIN_LEN => header[ipv4::TOS],
        _ => return false,
    };
    if tos & MASK == NOT_ECT {
        return false;
    }
    let mut sum = match packet.offload.unit {
        Unit::Whole(Csum::Complete(sum)) => Some(sum),
        _ => None,
    };
    set_tos(&mut packet.head, at, tos | CE, &mut sum);
    if let (Unit::Whole(Csum::Complete(known)), Some(sum)) = (&mut packet.offload.unit, sum) {
        *known = sum;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_decapsulation_table() {
        // Rows: inner Not-ECT, ECT(1), ECT(0), CE in the order of their values; columns: outer, the same.
        let table = [
            [Some(0), Some(0), Some(0), None],
            [Some(1), Some(1), Some(1), Some(3)],
            [Some(2), Some(1), Some(2), Some(3)],
            [Some(3), Some(3), Some(3), Some(3)],
        ];
        for (inner, row) in table.iter().enumerate() {
            for (outer, cell) in row.iter().enumerate() {
                let (inner, outer) = (0xb8 | inner as u8, 0x40 | outer as u8);
                assert_eq!(combine(inner, outer), cell.map(|ecn| 0xb8 | ecn), "inner {inner:x}, outer {outer:x}");
            }
        }
    }

    #[test]
    fn the_outer_field_is_the_inner_one_under_any_dscp() {
        for ecn in 0..4 {
            assert_eq!(encapsulate(0xb9, 0x20 | ecn), 0xb8 | ecn);
        }
    }

    /// Returns whether the header checksum of an IPv4 packet is right.
    fn is_right(packet: &[u8]) -> bool {
        let sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    #[test]
    fn a_mark_changes_two_bits_and_the_header_checksum_and_only_where_ecn_is_supported() {
        for tos in [0xb8, 0xb9, 0xba, 0xbb_u8] {
            let mut v4 =
                [0x45, tos, 0, 28, 0, 7, 0x40, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0];
            let sum: u32 = v4[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            v4[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
            let mut v6 = [0_u8; 48];
            (v6[0], v6[1], v6[5], v6[6], v6[7]) = (0x60 | tos >> 4, tos << 4 | 0xa, 8, 17, 64);
            for bytes in [&v4[..], &v6] {
                let mut packet = Packet::default();
                packet.load(crate::packet::Frag::all(bytes), crate::packet::Start::Ip, &crate::packet::Tunnels::NONE);
                let is_marked = mark(&mut packet);
                assert_eq!(is_marked, tos & 3 != 0, "{tos:x}");
                let after = packet.head.bytes();
                let expected = if is_marked { tos | 3 } else { tos };
                if bytes.len() == 28 {
                    assert!(after[1] == expected && is_right(bytes) && is_right(after), "{after:x?}");
                    assert_eq!((after[0], &after[2..10], &after[12..]), (bytes[0], &bytes[2..10], &bytes[12..]));
                } else {
                    assert_eq!((after[0], after[1]), (0x60 | expected >> 4, expected << 4 | 0xa));
                    assert_eq!(after[2..], bytes[2..after.len()]);
                }
            }
        }
    }

    #[test]
    fn a_mark_is_in_a_known_sum_and_not_in_a_header_that_is_cut_off() {
        use crate::checksum::Sum;
        use crate::packet::{Frag, Start, Tunnels};
        let v4 =
            [0x45, 2, 0, 28, 0, 7, 0x40, 0, 64, 17, 0xae, 0xa0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0];
        let mut v6 = [0_u8; 48];
        (v6[0], v6[1], v6[5], v6[6], v6[7], v6[45]) = (0x60, 0x2a, 8, 17, 64, 8);
        for bytes in [&v4[..], &v6] {
            let mut packet = Packet::default();
            packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
            packet.offload.unit = Unit::Whole(Csum::Complete(Sum::of(bytes)));
            assert!(mark(&mut packet));
            let mut after = packet.head.bytes().to_vec();
            packet.payload.frags().iter().for_each(|frag| after.extend(frag.bytes()));
            assert_ne!(after, bytes);
            assert_eq!(packet.offload.unit, Unit::Whole(Csum::Complete(Sum::of(&after))));
        }
        let mut packet = Packet::default();
        packet.load(Frag::all(&v4[..]), Start::Ip, &Tunnels::NONE);
        packet.head.set(&v4[..19]);
        assert!(!mark(&mut packet));
        assert_eq!(packet.head.bytes(), &v4[..19]);
    }
}
