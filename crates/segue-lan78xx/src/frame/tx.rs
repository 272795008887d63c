//! Frames to the chip: an 8-byte command, then the frame without FCS. Each command starts at a multiple of 4 bytes from
//! the beginning of the transfer.

use super::u32_at;

/// Length of a transmit command in bytes.
pub const COMMAND_LEN: usize = 8;
/// Alignment of commands, bytes.
pub const ALIGN: usize = 4;
/// Smallest segment size that the chip accepts.
pub const MIN_MSS: u16 = 8;
/// Largest segment size that a command can express.
pub const MAX_MSS: u16 = 0x3fff;

const LEN: u32 = 0xf_ffff;
const FCS: u32 = 1 << 22;
const REPLACE_TAG: u32 = 1 << 23;
const INSERT_TAG: u32 = 1 << 24;
const TRANSPORT: u32 = 1 << 25;
const IP: u32 = 1 << 26;
const LSO: u32 = 1 << 27;
const ICMP: u32 = 1 << 28;
const IGMP: u32 = 1 << 29;
/// Reserved bits: 31, 30, and those between the length and the flags.
const RESERVED: u32 = !(LEN | FCS | REPLACE_TAG | INSERT_TAG | TRANSPORT | IP | LSO | ICMP | IGMP);
const MSS_SHIFT: u32 = 16;

/// The treatment of a frame's VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// The frame is sent with its own tags.
    Keep,
    /// A tag with this control information is inserted.
    Insert(u16),
    /// The frame's tag gets this control information.
    Replace(u16),
}

/// Command in front of a frame, which tells the chip how to send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Length in bytes of the frame that follows, 1 to 1,048,575.
    pub len: u32,
    /// Whether the chip appends the FCS, and pads short frames.
    pub fcs: bool,
    /// The treatment of the VLAN tag.
    pub tag: Tag,
    /// Whether the chip computes the TCP or UDP checksum.
    pub transport_csum: bool,
    /// Whether the chip computes the IPv4 header checksum.
    pub ip_csum: bool,
    /// Whether the chip computes the ICMP checksum.
    pub icmp_csum: bool,
    /// Whether the chip computes the IGMP checksum.
    pub igmp_csum: bool,
    /// Segment size: the chip splits the frame into TCP segments with this many bytes of payload.
    pub mss: Option<u16>,
}

impl Command {
    /// Creates a command for a frame of `len` bytes to which only the FCS is added.
    pub const fn plain(len: u32) -> Command {
        Command {
            len,
            fcs: true,
            tag: Tag::Keep,
            transport_csum: false,
            ip_csum: false,
            icmp_csum: false,
            igmp_csum: false,
            mss: None,
        }
    }

    /// Returns the command's bytes. A segment size is clamped to the chip's range.
    pub fn emit(&self) -> [u8; COMMAND_LEN] {
        let mut a = self.len & LEN;
        let mut b = 0;
        for (flag, bit) in [
            (self.fcs, FCS),
            (self.transport_csum, TRANSPORT),
            (self.ip_csum, IP),
            (self.icmp_csum, ICMP),
            (self.igmp_csum, IGMP),
        ] {
            a |= if flag { bit } else { 0 };
        }
        match self.tag {
            Tag::Keep => {}
            Tag::Insert(tag) => (a, b) = (a | INSERT_TAG, u32::from(tag)),
            Tag::Replace(tag) => (a, b) = (a | REPLACE_TAG, u32::from(tag)),
        }
        if let Some(mss) = self.mss {
            a |= LSO;
            b |= u32::from(mss.clamp(MIN_MSS, MAX_MSS)) << MSS_SHIFT;
        }
        let mut bytes = [0; COMMAND_LEN];
        bytes[..4].copy_from_slice(&a.to_le_bytes());
        bytes[4..].copy_from_slice(&b.to_le_bytes());
        bytes
    }

    /// Reads a command; `None` if it is too short, has reserved bits set, has length 0, or has contradictory flags.
    pub fn parse(bytes: &[u8]) -> Option<Command> {
        let (a, b) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
        let tag = match (a & INSERT_TAG != 0, a & REPLACE_TAG != 0) {
            (false, false) => Tag::Keep,
            (true, false) => Tag::Insert(b as u16),
            (false, true) => Tag::Replace(b as u16),
            (true, true) => return None,
        };
        let mss = (b >> MSS_SHIFT) as u16 & MAX_MSS;
        if a & RESERVED != 0 || a & LEN == 0 || b >> 30 != 0 {
            return None;
        }
        Some(Command {
            len: a & LEN,
            fcs: a & FCS != 0,
            tag,
            transport_csum: a & TRANSPORT != 0,
            ip_csum: a & IP != 0,
            icmp_csum: a & ICMP != 0,
            igmp_csum: a & IGMP != 0,
            mss: (a & LSO != 0).then_some(mss),
        })
    }
}

/// Returns the number of bytes of padding in front of the next command of a transfer that has `len` bytes.
pub const fn padding(len: usize) -> usize {
    len.next_multiple_of(ALIGN) - len
}

/// Returns whether a transfer of `len` bytes needs a zero-length packet after it, so that the chip sees its end.
pub const fn needs_zero_packet(len: usize, max_packet: usize) -> bool {
    len > 0 && len.is_multiple_of(max_packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_commands_have_the_known_bytes() {
        let plain = Command::plain(60);
        assert_eq!(plain.emit(), [0x3c, 0x00, 0x40, 0x00, 0, 0, 0, 0]);
        let summed = Command { transport_csum: true, ip_csum: true, ..plain };
        assert_eq!(summed.emit()[..4], [0x3c, 0x00, 0x40, 0x06]);
        let cut = Command { len: 32_000, mss: Some(1448), ..summed };
        assert_eq!(cut.emit(), [0x00, 0x7d, 0x40, 0x0e, 0x00, 0x00, 0xa8, 0x05]);
    }

    #[test]
    fn every_command_reads_back_as_written() {
        for tag in [Tag::Keep, Tag::Insert(0xb123), Tag::Replace(0x1fff)] {
            for mss in [None, Some(8), Some(1448), Some(16_383)] {
                for bits in 0..32 {
                    let flag = |bit: u32| bits >> bit & 1 == 1;
                    let command = Command {
                        len: 0x8_1234,
                        fcs: flag(0),
                        tag,
                        transport_csum: flag(1),
                        ip_csum: flag(2),
                        icmp_csum: flag(3),
                        igmp_csum: flag(4),
                        mss,
                    };
                    assert_eq!(Command::parse(&command.emit()), Some(command));
                }
            }
        }
    }

    #[test]
    fn a_segment_size_is_brought_into_the_chips_range() {
        let with = |mss| Command::parse(&Command { mss: Some(mss), ..Command::plain(100) }.emit()).unwrap().mss;
        assert_eq!((with(1), with(7), with(u16::MAX)), (Some(8), Some(8), Some(16_383)));
    }

    #[test]
    fn invalid_tx_commands_are_rejected() {
        let good = Command::plain(60).emit();
        assert!(Command::parse(&good[..7]).is_none());
        for (at, value) in [(0, 0), (3, 0x80), (3, 0x40), (2, 0x50), (2, 0x60), (7, 0x80), (7, 0x40)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(Command::parse(&bytes).is_none(), "{value:#x} at {at}");
        }
        let mut both = good;
        both[3] = 0x01;
        both[2] |= 0x80;
        assert!(Command::parse(&both).is_none(), "insert and replace");
    }

    #[test]
    fn commands_are_aligned_to_four_bytes() {
        assert_eq!([60, 61, 62, 63].map(padding), [0, 3, 2, 1]);
        assert!(needs_zero_packet(1024, 512) && needs_zero_packet(1024, 1024));
        assert!(!needs_zero_packet(1023, 512) && !needs_zero_packet(0, 512) && !needs_zero_packet(1536, 1024));
    }
}
