//! Ethernet II and its VLAN tags (IEEE 802.3, 802.1Q, 802.1ad).

use core::ops::Range;

/// Length in bytes of an Ethernet header without tags.
pub const LEN: usize = 14;
/// Number of bytes that one VLAN tag adds: the tag control information and the type that follows it.
pub const VLAN_LEN: usize = 4;
/// Maximum number of VLAN tags that the parser follows: a customer and a service tag.
pub const MAX_TAGS: usize = 2;

/// Byte range of the destination address.
pub const DST: Range<usize> = 0..6;
/// Byte range of the source address.
pub const SRC: Range<usize> = 6..12;
/// Bit of an address's first byte that is set in group addresses.
pub const GROUP: u8 = 1;
/// The Ethernet broadcast address.
pub const BROADCAST: [u8; 6] = [0xff; 6];
/// EtherType, or the tag protocol identifier of the first tag.
pub const TYPE: usize = 12;
/// Mask of the VLAN identifier in the tag control information; other bits are the priority and the drop eligible
/// indicator.
pub const VLAN_ID: u16 = 0x0fff;
/// The EtherType in a tag, counted from the tag control information.
pub const VLAN_TYPE: usize = 2;

/// Returns whether `address` is a group address: multicast or broadcast.
#[inline]
pub const fn is_group(address: [u8; 6]) -> bool {
    address[0] & GROUP != 0
}

/// Returns whether `address` can be a unicast address: neither a group address nor zero.
#[inline]
pub const fn is_station(address: [u8; 6]) -> bool {
    !is_group(address) && !matches!(address, [0, 0, 0, 0, 0, 0])
}

/// Returns an Ethernet header without tags.
#[inline]
pub const fn header(destination: [u8; 6], source: [u8; 6], kind: u16) -> [u8; LEN] {
    let [a, b, c, d, e, f] = destination;
    let [g, h, i, j, k, l] = source;
    let [m, n] = kind.to_be_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stations_are_neither_groups_nor_zero() {
        for (address, group, station) in [
            ([0; 6], false, false),
            ([2, 0, 0, 0, 0, 1], false, true),
            ([0, 0, 0, 0, 0, 1], false, true),
            ([0x33, 0x33, 0, 0, 0, 1], true, false),
            (BROADCAST, true, false),
        ] {
            assert_eq!((is_group(address), is_station(address)), (group, station), "{address:x?}");
        }
    }

    #[test]
    fn a_header_has_its_fields_in_their_places() {
        let bytes = header([1; 6], [2; 6], 0x0806);
        assert_eq!((&bytes[DST], &bytes[SRC], &bytes[TYPE..]), (&[1; 6][..], &[2; 6][..], &[8, 6][..]));
    }
}
