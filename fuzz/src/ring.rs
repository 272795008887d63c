use segue_port::packet_socket::restored;

use crate::resources::bounded;

/// Number of bytes that may be held in addition to the slot.
const FREE: usize = 4 << 10;

/// Reads an arbitrary slot of a receive ring: its frame lies within the slot, and a reinserted VLAN tag is the only
/// change.
pub fn ring(data: &[u8]) {
    let mut slot = data.to_vec();
    bounded(data.len(), FREE, || {
        let Some((_, frame)) = restored(&mut slot) else { return };
        assert!(frame.start <= frame.end && frame.end <= slot.len());
        let came = &data[frame.end - (frame.len())..frame.end];
        let left = &slot[frame.clone()];
        if left != came {
            // Twelve bytes of addresses have moved to the front by the four bytes of the tag.
            assert_eq!(left[16..], came[16..]);
            assert_eq!(left[..12], data[frame.start + 4..frame.start + 16]);
        }
    });
}
