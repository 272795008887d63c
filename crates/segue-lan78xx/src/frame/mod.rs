//! The layout of frames in USB transfers: the command or header in front of each frame, and the padding between frames.
//!
//! [`tx`] is the bulk-out direction, host to chip; [`rx`] the bulk-in direction, chip to host. All fields are
//! little-endian.

pub mod rx;
pub mod tx;

/// Length in bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Length in bytes of a VLAN tag.
pub const VLAN_LEN: usize = 4;
/// Length in bytes of the frame check sequence.
pub const FCS_LEN: usize = 4;
/// Largest MTU of the chip, bytes.
pub const MAX_MTU: usize = 9000;
/// Smallest MTU of the chip, bytes.
pub const MIN_MTU: usize = 68;
/// Length in bytes of the largest frame, with one tag and the FCS.
pub const MAX_FRAME: usize = MAX_MTU + ETHERNET_LEN + VLAN_LEN + FCS_LEN;

/// Returns whether a full frame of this MTU ends where a USB packet ends; Linux's driver refuses such an MTU.
pub const fn is_awkward_mtu(mtu: usize, max_packet: usize) -> bool {
    (mtu + ETHERNET_LEN + VLAN_LEN).is_multiple_of(max_packet)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
