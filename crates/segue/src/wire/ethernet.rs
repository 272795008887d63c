//! Ethernet II and its VLAN tags (IEEE 802.3, 802.1Q, 802.1ad).

use core::ops::Range;

/// Bytes of an Ethernet header without tags.
pub const LEN: usize = 14;
/// Bytes that one VLAN tag adds: the tag control information and the type that follows it.
pub const VLAN_LEN: usize = 4;
/// Most VLAN tags that the parser follows: a customer and a service tag.
pub const MAX_TAGS: usize = 2;

/// Destination address.
pub const DST: Range<usize> = 0..6;
/// Source address.
pub const SRC: Range<usize> = 6..12;
/// In the first byte of an address: it is that of a group.
pub const GROUP: u8 = 1;
/// EtherType, or the tag protocol identifier of the first tag.
pub const TYPE: usize = 12;
/// In a tag: the bits of the tag control information that are the VLAN's identifier; the others are its priority and the
/// drop eligible indicator.
pub const VLAN_ID: u16 = 0x0fff;
/// In a tag: the type of what follows, counted from the tag control information.
pub const VLAN_TYPE: usize = 2;
