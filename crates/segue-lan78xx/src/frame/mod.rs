//! How frames lie in USB transfers: the commands in front of each frame, both ways, and the bytes between frames.
//!
//! [`tx`] is what a host sends (bulk-out), [`rx`] what the chip sends (bulk-in). All fields are little-endian.

pub mod rx;
pub mod tx;

/// Bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Bytes of a VLAN tag.
pub const VLAN_LEN: usize = 4;
/// Bytes of the frame check sequence.
pub const FCS_LEN: usize = 4;
/// Largest MTU.
pub const MAX_MTU: usize = 9000;
/// Smallest MTU.
pub const MIN_MTU: usize = 68;
/// Bytes of the largest frame: with a tag and the FCS.
pub const MAX_FRAME: usize = MAX_MTU + ETHERNET_LEN + VLAN_LEN + FCS_LEN;

/// Whether a frame is of this MTU whose transfer would end where a USB packet ends, which Linux's driver refuses.
pub const fn is_awkward_mtu(mtu: usize, max_packet: usize) -> bool {
    (mtu + ETHERNET_LEN + VLAN_LEN).is_multiple_of(max_packet)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
