//! The header in front of each frame of a receive ring (`struct tpacket2_hdr`), and restoring VLAN tags.

use std::ops::Range;

use segue::wire::virtio::{Form, VirtioNet};
use segue::wire::{ethernet, ethertype};

use super::sys::VNET_LEN;

/// The `TP_STATUS_` bits of a slot. `TP_STATUS_CSUM_VALID` is not among them: it says only that the kernel has verified
/// some checksum, which may be that of a header that it has removed since, such as the datagram of its own VXLAN.
pub(super) mod status {
    /// Status bit: the ring holds only the beginning of the frame; the whole frame is in the socket's queue.
    pub(crate) const COPY: u32 = 1 << 1;
    /// Status bit: frames were dropped since the statistics were last read.
    pub(crate) const LOSING: u32 = 1 << 2;
    /// Status bit: the frame had a VLAN tag.
    pub(crate) const VLAN_VALID: u32 = 1 << 4;
    /// Status bit: the tag's protocol identifier is known.
    pub(crate) const VLAN_TPID_VALID: u32 = 1 << 6;
}

/// Length in bytes of the ring's own header.
const HEADER_LEN: usize = 32;

/// Used fields of a ring's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) status: u32,
    /// Length of the frame, bytes.
    pub(super) len: usize,
    /// Number of bytes of the frame that are in the ring.
    snap_len: usize,
    /// Start of the frame in the slot.
    at: usize,
    vlan_tci: u16,
    vlan_tpid: u16,
}

impl Header {
    /// Reads the header of a slot; `None` if its fields exceed the slot.
    #[inline]
    pub(super) fn parse(slot: &[u8]) -> Option<Header> {
        let bytes = slot.get(..HEADER_LEN)?;
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let header = Header {
            status: word(0),
            len: word(4) as usize,
            snap_len: word(8) as usize,
            at: usize::from(half(12)),
            vlan_tci: half(24),
            vlan_tpid: half(26),
        };
        let fits = header.at >= HEADER_LEN + VNET_LEN && header.at + header.snap_len <= slot.len();
        fits.then_some(header)
    }

    /// Returns the range of the frame in its slot; `None` if the slot holds only a part of the frame.
    pub(super) fn frame(&self) -> Option<Range<usize>> {
        (self.snap_len == self.len).then_some(self.at..self.at + self.len)
    }

    /// Returns the four bytes of a valid tag, which the kernel took out of the frame. A tag of zero is a tag.
    fn tag(&self) -> [u8; ethernet::VLAN_LEN] {
        let known = self.status & status::VLAN_TPID_VALID != 0;
        let [a, b] = if known { self.vlan_tpid } else { ethertype::VLAN }.to_be_bytes();
        let [c, d] = self.vlan_tci.to_be_bytes();
        [a, b, c, d]
    }

    /// Restores the frame in `bytes[frame]` to its form on the wire: the tag is reinserted after the addresses, which
    /// move to the front over the virtio header. Returns that header, adapted, and the range of the frame.
    #[inline]
    pub(super) fn restore(&self, bytes: &mut [u8], frame: Range<usize>) -> Option<(VirtioNet, Range<usize>)> {
        let front = frame.start.checked_sub(VNET_LEN)?;
        let mut vnet = parse_native(bytes.get(front..frame.start)?)?;
        if self.status & status::VLAN_VALID == 0 || frame.len() < ethernet::TYPE {
            return Some((vnet, frame));
        }
        let tag = self.tag();
        let start = frame.start - ethernet::VLAN_LEN;
        bytes.copy_within(frame.start..frame.start + ethernet::TYPE, start);
        bytes[start + ethernet::TYPE..frame.start + ethernet::TYPE].copy_from_slice(&tag);
        // Other fields count from the checksum's start, and the header length is not used.
        vnet.csum_start = vnet.csum_start.saturating_add(ethernet::VLAN_LEN as u16);
        Some((vnet, start..frame.end))
    }
}

/// Reads a slot of a receive ring, whose content is untrusted: reinserts the VLAN tag of its frame, and returns the
/// virtio header and the range of the frame. `None` for a slot whose fields do not fit it, and for one that holds only
/// a part of its frame.
pub fn restored(slot: &mut [u8]) -> Option<(VirtioNet, Range<usize>)> {
    let header = Header::parse(slot)?;
    let frame = header.frame()?;
    header.restore(slot, frame)
}

/// Parses a virtio-net header in the machine's byte order, which packet sockets always use.
fn parse_native(bytes: &[u8]) -> Option<VirtioNet> {
    VirtioNet::parse_native(bytes, Form::Basic)
}

/// Returns the bytes of a virtio-net header for a packet socket.
pub(super) fn emit_native(header: &VirtioNet) -> [u8; VNET_LEN] {
    let mut bytes = [0; VNET_LEN];
    bytes.copy_from_slice(&header.emit_native(Form::Basic)[..VNET_LEN]);
    bytes
}

#[cfg(test)]
mod tests {
    use segue::wire::virtio;

    use super::*;

    /// Builds a slot with a frame of `len` bytes at offset 76, which begins with addresses and an EtherType.
    fn slot(status: u32, tci: u16, tpid: u16, len: usize) -> Vec<u8> {
        let mut slot = vec![0; 76];
        slot.extend((0..len).map(|at| at as u8));
        slot[0..4].copy_from_slice(&status.to_ne_bytes());
        slot[4..8].copy_from_slice(&(len as u32).to_ne_bytes());
        slot[8..12].copy_from_slice(&(len as u32).to_ne_bytes());
        slot[12..14].copy_from_slice(&76u16.to_ne_bytes());
        slot[24..26].copy_from_slice(&tci.to_ne_bytes());
        slot[26..28].copy_from_slice(&tpid.to_ne_bytes());
        let vnet = VirtioNet { flags: virtio::NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..VirtioNet::default() };
        slot[66..76].copy_from_slice(&emit_native(&vnet));
        slot
    }

    fn restored(mut slot: Vec<u8>) -> (VirtioNet, Vec<u8>) {
        let header = Header::parse(&slot).unwrap();
        let frame = header.frame().unwrap();
        let (vnet, frame) = header.restore(&mut slot, frame).unwrap();
        (vnet, slot[frame].to_vec())
    }

    #[test]
    fn a_frame_without_a_tag_stays_as_it_is() {
        let (vnet, frame) = restored(slot(1, 77, 0x88a8, 60));
        assert_eq!((vnet.csum_start, vnet.flags), (34, virtio::NEEDS_CSUM));
        assert_eq!(frame, (0..60).collect::<Vec<u8>>());
    }

    #[test]
    fn a_tag_goes_back_behind_the_addresses_and_moves_the_checksum() {
        let both = status::VLAN_VALID | status::VLAN_TPID_VALID;
        for (status, tci, tpid, tag) in [
            (both, 0x2005, 0x8100, [0x81, 0, 0x20, 5]),
            (both, 0x2005, 0x88a8, [0x88, 0xa8, 0x20, 5]),
            (both, 0, 0x8100, [0x81, 0, 0, 0]),
            (status::VLAN_VALID, 0xffff, 0, [0x81, 0, 0xff, 0xff]),
        ] {
            let (vnet, frame) = restored(slot(1 | status, tci, tpid, 60));
            assert_eq!((vnet.csum_start, vnet.csum_offset), (38, 16));
            assert_eq!(frame[..12], (0..12).collect::<Vec<u8>>());
            assert_eq!(frame[12..16], tag);
            assert_eq!(frame[16..], (12..60).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn what_does_not_fit_the_slot_is_refused() {
        let good = slot(1, 0, 0, 60);
        for len in 0..76 {
            assert_eq!(Header::parse(&good[..len]), None);
        }
        assert_eq!(Header::parse(&good[..135]), None, "the frame ends behind the slot");
        let mut low = good.clone();
        low[12..14].copy_from_slice(&41u16.to_ne_bytes());
        assert_eq!(Header::parse(&low), None, "the virtio header would lie over the ring's");
        let mut part = good;
        part[4..8].copy_from_slice(&9000u32.to_ne_bytes());
        assert_eq!(Header::parse(&part).unwrap().frame(), None);
    }

    /// Tests that a checksum is verified where the virtio-net header says so, and that `TP_STATUS_CSUM_VALID` says
    /// nothing: the kernel sets it for the datagram of a tunnel too that it has taken away.
    #[test]
    fn a_checksum_is_verified_only_where_the_virtio_header_says_so() {
        const CSUM_VALID: u32 = 1 << 7;
        for flags in [0, virtio::NEEDS_CSUM, virtio::DATA_VALID] {
            for status in [1, 1 | CSUM_VALID] {
                let mut slot = slot(status, 0, 0, 60);
                slot[66] = flags;
                assert_eq!(restored(slot).0.flags, flags, "{status:#x}");
            }
        }
    }
}
