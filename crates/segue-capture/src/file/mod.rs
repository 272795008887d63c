//! Capture files, pcap and pcapng: read and written as a stream, whatever their size.
//!
//! A [`Reader`] takes any `Read` and gives one [`Item`] after the other: packets with what the file says of them, and in
//! pcapng all other blocks as they stand. It knows the microsecond and nanosecond forms of pcap, both byte orders, and
//! in pcapng several sections and interfaces, any timestamp resolution, and enhanced, simple and obsolete packet blocks.
//! A [`Writer`] takes them in either form and converts where the forms differ. [`link`] says where in a record the
//! network header begins, [`undo_notes`] is the note that a merged packet carries so that it can be taken apart again.
//!
//! Memory is bounded by the largest record, at most [`MAX_RECORD`]. A file that is cut or damaged gives every whole record
//! in front of the fault, then one [`ReadError`] that says which packet and which byte; nothing in a file makes it panic.
//!
//! Sources: `draft-ietf-opsawg-pcap` and `draft-ietf-opsawg-pcapng`. The crate `pcap-file` would serve for pcap only: its
//! pcapng half knows neither timestamp resolutions nor options without a registered meaning, and loses both.

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
pub use write::{DifferentHeader, Outgoing, SecondLinkType, Writer, interface_block, is_unusual_tail, section_block};

/// Longest record or block that is taken; a longer one is damage. libpcap's own limit is 256 KiB for most links.
pub const MAX_RECORD: usize = 16 << 20;

/// The largest snap length that readers take (libpcap, Wireshark); what a file with trains announces.
pub const MAX_SNAPLEN: u32 = 262_144;

/// The two forms of capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One link type, one header, one record for each packet.
    Pcap,
    /// Blocks with options, several interfaces.
    Pcapng,
}

impl Format {
    /// `pcap` or `pcapng`.
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
    /// The order of this machine.
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

    /// The 32-bit value at `at`; 0 past the end, which callers have ruled out.
    pub(crate) fn read32(self, bytes: &[u8], at: usize) -> u32 {
        bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |chunk| self.u32(*chunk))
    }

    /// The 16-bit value at `at`; 0 past the end, which callers have ruled out.
    pub(crate) fn read16(self, bytes: &[u8], at: usize) -> u16 {
        bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |chunk| self.u16(*chunk))
    }
}

/// What one tick of a timestamp is (option `if_tsresol`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution(u8);

impl Resolution {
    /// A millionth of a second: pcap's usual form, and pcapng's default.
    pub const MICRO: Resolution = Resolution(6);
    /// A thousand-millionth of a second.
    pub const NANO: Resolution = Resolution(9);

    /// The option's value: a negative power of 10, or of 2 where the high bit is set.
    pub const fn from_option(value: u8) -> Resolution {
        Resolution(value)
    }

    /// The option's value.
    pub const fn option(self) -> u8 {
        self.0
    }

    /// Whether no tick is shorter than a microsecond.
    pub fn is_coarse(self) -> bool {
        self.per_second().is_some_and(|ticks| ticks <= 1_000_000)
    }

    /// Ticks in a second, where that fits 64 bits.
    fn per_second(self) -> Option<u64> {
        let power = u32::from(self.0 & 0x7f);
        if self.0 & 0x80 == 0 { 10_u64.checked_pow(power) } else { 1_u64.checked_shl(power) }
    }

    /// `ticks` in nanoseconds, rounded down; the largest value where they do not fit.
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

    /// `nanos` in ticks, rounded down; the largest value where they do not fit.
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

/// What the file says of the interface that packets were captured on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The link type (`LINKTYPE_` values): [`link`].
    pub link: u16,
    /// Bytes of frame check sequence behind each packet, where the file says so; 0 else.
    pub fcs_len: u8,
    /// Most bytes kept of a packet; 0 for no limit.
    pub snaplen: u32,
    /// What one tick of its timestamps is.
    pub resolution: Resolution,
    /// Seconds to add to its timestamps (option `if_tsoffset`).
    pub offset_seconds: i64,
    /// Its name, where there is one.
    pub name: Option<String>,
}

impl Interface {
    /// Nanoseconds since 1970 of a timestamp of this interface.
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
    /// Nanosecond form.
    pub nanos: bool,
    /// Most bytes kept of a packet.
    pub snaplen: u32,
    /// Link type in the low 16 bits; the upper ones may announce a frame check sequence.
    pub link: u32,
}

/// Bytes of a pcap file's header.
pub const PCAP_HEADER_LEN: usize = 24;
/// Bytes in front of each packet of a pcap file.
pub const PCAP_RECORD_HEADER_LEN: usize = 16;

impl PcapHeader {
    /// The interface that the header describes.
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

    /// The fields of a header's bytes; `None` where they are none.
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

    /// The header's bytes, version 2.4, without a time zone.
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

/// How a packet stands in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A record of a pcap file.
    Pcap,
    /// An enhanced packet block.
    Enhanced,
    /// A simple packet block: no time, no options, first interface.
    Simple,
    /// A packet block, which enhanced packet blocks have replaced.
    Obsolete,
}

/// One packet of a capture file.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// Which packet of the file, from 1.
    pub number: u64,
    /// Where its record or block begins, in bytes from the start of the file.
    pub offset: u64,
    /// Which interface of its section, from 0.
    pub interface: u32,
    /// The link type of that interface: [`link`].
    pub link: u16,
    /// Bytes of frame check sequence behind the packet, where the file says so.
    pub fcs_len: u8,
    /// Its timestamp in ticks of its interface; `None` where it has none.
    pub ticks: Option<u64>,
    /// The same in nanoseconds since 1970.
    pub nanos: Option<u64>,
    /// Bytes of the packet when it was captured; more than are here if it was cut.
    pub len: u32,
    /// How it stands in the file.
    pub form: Form,
    /// The whole record or block.
    pub raw: &'a [u8],
    /// Where in it the packet's bytes are.
    pub data: Range<usize>,
    /// Where in it the options are, in the section's byte order.
    pub options: Range<usize>,
}

impl<'a> Record<'a> {
    /// The packet's bytes.
    pub fn data(&self) -> &'a [u8] {
        self.raw.get(self.data.clone()).unwrap_or(&[])
    }

    /// Its options, as they stand.
    pub fn options(&self) -> &'a [u8] {
        self.raw.get(self.options.clone()).unwrap_or(&[])
    }

    /// Whether bytes of the packet are missing.
    pub fn is_cut(&self) -> bool {
        (self.len as usize) > self.data.len()
    }
}

/// What a block of a pcapng file is, where it is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// A section header: interfaces are counted anew behind it, and the byte order may be another.
    Section,
    /// An interface description.
    Interface,
    /// Anything else: names, statistics, secrets, comments of somebody.
    Other,
}

/// A block of a pcapng file that is no packet.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// What it is.
    pub kind: BlockKind,
    /// All of it, as it stands.
    pub raw: &'a [u8],
    /// The byte order of its section.
    pub order: Order,
    /// What an interface description describes.
    pub interface: Option<&'a Interface>,
}

/// What a [`Reader`] gives.
#[derive(Clone, Debug)]
pub enum Item<'a> {
    /// A packet.
    Packet(Record<'a>),
    /// A block that is no packet.
    Block(Block<'a>),
}

/// Why a file cannot be read, or no further.
#[derive(Debug)]
pub enum ReadError {
    /// What the system said.
    Io(io::Error),
    /// It has no bytes.
    Empty,
    /// It is compressed, with this program.
    Compressed(&'static str),
    /// It is no capture file, or a form of it that is not known.
    Unknown(&'static str),
    /// It ends in the middle of a record.
    Cut {
        /// The number of the packet that is not whole.
        number: u64,
        /// Where its record begins, in bytes from the start.
        offset: u64,
        /// Bytes that the record should have, as far as that is known.
        promised: u64,
        /// Bytes that are there.
        present: u64,
    },
    /// A record contradicts itself; nothing behind it can be found.
    Damaged {
        /// The number of the packet that should have come.
        number: u64,
        /// Where the record begins, in bytes from the start.
        offset: u64,
        /// What is wrong with it.
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

impl std::error::Error for ReadError {}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}
