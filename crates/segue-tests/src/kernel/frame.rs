//! Frames sent and received by the sockets of this module.

use super::sys::Received;

/// A frame that wakes the receiver: its EtherType is for local experiments (IEEE 802, 0x88b5).
pub(super) const PRIMER: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xfe, 0x88, 0xb5];

/// Returns a frame with the VLAN tag reinserted that the kernel has removed.
pub(super) fn tagged(received: Received) -> Vec<u8> {
    let Received { mut frame, tag, .. } = received;
    if let Some((tpid, tci)) = tag {
        let bytes = [tpid.to_be_bytes(), tci.to_be_bytes()].concat();
        frame.splice(12..12, bytes);
    }
    frame
}
