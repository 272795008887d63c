//! Capture files of the formats pcap and pcapng, read and written as a stream of any size.
//!
//! A [`Reader`] takes any `Read` and returns one [`Item`] after the other: packets with their metadata, and in pcapng
//! all other blocks byte for byte. It supports the microsecond and nanosecond formats of pcap, both byte orders, and in
//! pcapng several sections and interfaces, any timestamp resolution, and enhanced, simple and obsolete packet blocks.
//! A [`Writer`] writes items of either format and converts between them. [`link`] locates the network header in a
//! record; [`undo_notes`] is the note in a merged packet from which its packets are restored.
//!
//! Memory is bounded by the largest record, at most [`MAX_RECORD`], and the number of a section's interfaces, at most
//! 65,536. Of a cut or damaged file the reader returns every whole record in front of the fault, then one [`ReadError`]
//! with the packet's number and offset. No input makes it panic.
//!
//! Sources: `draft-ietf-opsawg-pcap` and `draft-ietf-opsawg-pcapng`. The crate `pcap-file` would serve for pcap only:
//! its pcapng half discards timestamp resolutions and options without a registered meaning.

#[cfg(feature = "compression")]
pub mod compression;
pub mod link;
pub mod options;
mod read;
mod source;
#[cfg(test)]
mod tests;
pub mod undo_notes;
mod write;

use std::fmt;
use std::io;
use std::ops::Range;

pub use read::Reader;
pub(crate) use read::is_whole;
pub(crate) use write::fits_block;
pub use write::{DifferentHeader, Outgoing, SecondLinkType, Writer, interface_block, is_unusual_tail, section_block};

/// Largest record or block in bytes; a larger one is reported as damage. libpcap's own limit is 256 KiB for most links.
pub const MAX_RECORD: usize = 16 << 20;

/// Largest snap length that libpcap and Wireshark accept; files with trains state it.
pub const MAX_SNAPLEN: u32 = 262_144;

/// The format of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The older format: one header with one link type, then one record for each packet.
    Pcap,
    /// The newer format: blocks with options, and several interfaces.
    Pcapng,
}

impl Format {
    /// Returns the name of the format: `pcap` or `pcapng`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Pcap => "pcap",
            Format::Pcapng => "pcapng",
        }
    }
}

/// The byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Order {
    /// The byte order of this machine.
    pub const NATIVE: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };

    pub(crate) fn u16(self, bytes: [u8; 2]) -> u16 {
        if self == Order::Big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    pub(crate) fn u32(self, bytes: [u8; 4]) -> u32 {
        if self == Order::Big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    pub(crate) fn put16(self, value: u16) -> [u8; 2] {
        if self == Order::Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    pub(crate) fn put32(self, value: u32) -> [u8; 4] {
        if self == Order::Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    /// Returns the 32-bit value at offset `at`; 0 past the end, which callers rule out.
    pub(crate) fn read32(self, bytes: &[u8], at: usize) -> u32 {
        bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |chunk| self.u32(*chunk))
    }

    /// Returns the 16-bit value at offset `at`; 0 past the end, which callers rule out.
    pub(crate) fn read16(self, bytes: &[u8], at: usize) -> u16 {
        bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |chunk| self.u16(*chunk))
    }
}

/// The length of one timestamp tick, as the option `if_tsresol` encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution(u8);

impl Resolution {
    /// One microsecond: the usual resolution of pcap, and the default of pcapng.
    pub const MICRO: Resolution = Resolution(6);
    /// The resolution of one nanosecond.
    pub const NANO: Resolution = Resolution(9);

    /// Returns the resolution for a value of `if_tsresol`: a negative power of 10, or of 2 if the high bit is set.
    pub const fn from_option(value: u8) -> Resolution {
        Resolution(value)
    }

    /// Returns the resolution as a value of `if_tsresol`.
    pub const fn option(self) -> u8 {
        self.0
    }

    /// Returns whether a tick is at least one microsecond long.
    pub fn is_coarse(self) -> bool {
        self.per_second().is_some_and(|ticks| ticks <= 1_000_000)
    }

    /// Returns the number of ticks per second; `None` if that exceeds 64 bits.
    fn per_second(self) -> Option<u64> {
        let power = u32::from(self.0 & 0x7f);
        if self.0 & 0x80 == 0 { 10_u64.checked_pow(power) } else { 1_u64.checked_shl(power) }
    }

    /// Converts `ticks` to nanoseconds, rounded down and saturating.
    pub fn nanos(self, ticks: u64) -> u64 {
        match self.per_second() {
            Some(1_000_000_000) => ticks,
            Some(per_second) => {
                u64::try_from(u128::from(ticks) * 1_000_000_000 / u128::from(per_second)).unwrap_or(u64::MAX)
            }
            // Ticks far below a nanosecond: 64 bits of them are less than 19 s.
            None => 0,
        }
    }

    /// Converts `nanos` to ticks, rounded down and saturating.
    pub fn ticks(self, nanos: u64) -> u64 {
        match self.per_second() {
            Some(1_000_000_000) => nanos,
            Some(per_second) => {
                u64::try_from(u128::from(nanos) * u128::from(per_second) / 1_000_000_000).unwrap_or(u64::MAX)
            }
            None => u64::MAX,
        }
    }
}

/// The description of an interface that packets were captured on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The link type (`LINKTYPE_` values): [`link`].
    pub link: u16,
    /// Length in bytes of the frame check sequence after each packet; 0 if the file states none.
    pub fcs_len: u8,
    /// Snapshot length: largest number of bytes captured of a packet; 0 for no limit.
    pub snaplen: u32,
    /// Resolution of the timestamps.
    pub resolution: Resolution,
    /// Seconds to add to the timestamps (option `if_tsoffset`).
    pub offset_seconds: i64,
    /// Name of the interface, if the file has one: its first 256 bytes.
    pub name: Option<String>,
}

impl Interface {
    /// Converts a timestamp of this interface to nanoseconds since 1970.
    pub fn nanos(&self, ticks: u64) -> u64 {
        let offset = i128::from(self.offset_seconds) * 1_000_000_000;
        let nanos = i128::from(self.resolution.nanos(ticks)) + offset;
        u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
    }
}

/// The header of a pcap file, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapHeader {
    /// Byte order of the file.
    pub order: Order,
    /// Whether timestamps are in nanoseconds; microseconds otherwise.
    pub nanos: bool,
    /// Snap length: most bytes kept of a packet.
    pub snaplen: u32,
    /// Link type in the low 16 bits; the upper ones may announce a frame check sequence.
    pub link: u32,
}

/// Length of the header of a pcap file in bytes.
pub const PCAP_HEADER_LEN: usize = 24;
/// Length of the record header in front of each packet of a pcap file, in bytes.
pub const PCAP_RECORD_HEADER_LEN: usize = 16;

impl PcapHeader {
    /// Returns the interface that the header describes.
    pub fn interface(&self) -> Interface {
        // The length is in 16-bit words in the four top bits, and meant only where the bit below them is set.
        let fcs_len = if self.link & 0x0400_0000 != 0 { (self.link >> 28) as u8 * 2 } else { 0 };
        Interface {
            link: self.link as u16,
            fcs_len,
            snaplen: self.snaplen,
            resolution: if self.nanos { Resolution::NANO } else { Resolution::MICRO },
            offset_seconds: 0,
            name: None,
        }
    }

    /// Parses a header; `None` if its magic number is unknown.
    pub fn parse(bytes: &[u8; PCAP_HEADER_LEN]) -> Option<PcapHeader> {
        let (order, nanos) = match bytes.first_chunk().map(|magic| u32::from_be_bytes(*magic))? {
            0xa1b2_c3d4 => (Order::Big, false),
            0xa1b2_3c4d => (Order::Big, true),
            0xd4c3_b2a1 => (Order::Little, false),
            0x4d3c_b2a1 => (Order::Little, true),
            _ => return None,
        };
        Some(PcapHeader { order, nanos, snaplen: order.read32(bytes, 16), link: order.read32(bytes, 20) })
    }

    /// Serializes the header as version 2.4 with time zone 0.
    pub fn bytes(&self) -> [u8; PCAP_HEADER_LEN] {
        let mut bytes = [0; PCAP_HEADER_LEN];
        let magic: u32 = if self.nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        bytes[..4].copy_from_slice(&self.order.put32(magic));
        bytes[4..6].copy_from_slice(&self.order.put16(2));
        bytes[6..8].copy_from_slice(&self.order.put16(4));
        bytes[16..20].copy_from_slice(&self.order.put32(self.snaplen));
        bytes[20..24].copy_from_slice(&self.order.put32(self.link));
        bytes
    }
}

/// The kind of record or block that holds a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A record of a pcap file.
    Pcap,
    /// An enhanced packet block.
    Enhanced,
    /// A simple packet block: no time, no options, first interface.
    Simple,
    /// An obsolete packet block, the predecessor of the enhanced one.
    Obsolete,
}

/// One packet of a capture file.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// Number of the packet in the file, from 1.
    pub number: u64,
    /// Offset of the packet's record or block in the file, in bytes.
    pub offset: u64,
    /// Index of the interface in its section, from 0.
    pub interface: u32,
    /// Link type of the packet's interface: [`link`].
    pub link: u16,
    /// Length in bytes of the frame check sequence after the packet, of its flags or else of its interface; 0 if the
    /// file states none.
    pub fcs_len: u8,
    /// Timestamp in ticks of the interface; `None` for a simple packet block.
    pub ticks: Option<u64>,
    /// Timestamp in nanoseconds since 1970.
    pub nanos: Option<u64>,
    /// Original length of the packet in bytes; more than its data if it was truncated.
    pub len: u32,
    /// Kind of the record or block.
    pub form: Form,
    /// Bytes of the whole record or block.
    pub raw: &'a [u8],
    /// Range of the packet's bytes in `raw`.
    pub data: Range<usize>,
    /// Range of the options in `raw`, in the byte order of the section.
    pub options: Range<usize>,
}

impl<'a> Record<'a> {
    /// Returns the packet's bytes.
    pub fn data(&self) -> &'a [u8] {
        self.raw.get(self.data.clone()).unwrap_or(&[])
    }

    /// Returns the packet's options, unparsed.
    pub fn options(&self) -> &'a [u8] {
        self.raw.get(self.options.clone()).unwrap_or(&[])
    }

    /// Returns whether bytes of the packet are missing.
    pub fn is_cut(&self) -> bool {
        (self.len as usize) > self.data.len()
    }
}

/// The kind of a pcapng block that is not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// A section header. Interfaces are numbered from 0 again after it, and the byte order may change.
    Section,
    /// An interface description.
    Interface,
    /// Any other block: name resolution, interface statistics, decryption secrets, custom blocks.
    Other,
}

/// A pcapng block other than a packet block.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Kind of the block.
    pub kind: BlockKind,
    /// Bytes of the whole block.
    pub raw: &'a [u8],
    /// The byte order of the block's section.
    pub order: Order,
    /// The interface, if the block is an interface description.
    pub interface: Option<&'a Interface>,
}

/// An item of a capture file, as a [`Reader`] returns it.
#[derive(Clone, Debug)]
pub enum Item<'a> {
    /// A packet with its timestamp and options.
    Packet(Record<'a>),
    /// A block that is not a packet.
    Block(Block<'a>),
}

/// The reason why a file cannot be read, or cannot be read to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The system reported an error.
    Io(io::Error),
    /// The file is empty.
    Empty,
    /// The file is compressed, by the named program.
    Compressed(&'static str),
    /// The file is not a capture file, or of an unknown format; the text says which.
    Unknown(&'static str),
    /// The file ends in the middle of a record.
    Cut {
        /// Number of the incomplete packet.
        number: u64,
        /// Offset of the incomplete record in bytes.
        offset: u64,
        /// Length of the record in bytes as stated in its header, or of its header if that is incomplete.
        promised: u64,
        /// Number of bytes of the record that are in the file.
        present: u64,
    },
    /// A record contradicts itself, so that the next one cannot be found.
    Damaged {
        /// Number that the packet would have.
        number: u64,
        /// Offset of the record in bytes.
        offset: u64,
        /// Description of the contradiction.
        what: &'static str,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io(error) => error.fmt(f),
            ReadError::Empty => f.write_str("the file is empty"),
            ReadError::Compressed(with) => write!(f, "the file is compressed ({with})"),
            ReadError::Unknown(what) => f.write_str(what),
            ReadError::Cut { number, offset, promised, present } => {
                write!(
                    f,
                    "packet {number} is cut off: {promised} bytes promised, {present} in the file (byte {offset})"
                )
            }
            ReadError::Damaged { number, offset, what } => {
                write!(f, "the file is damaged at packet {number} (byte {offset}): {what}")
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}
