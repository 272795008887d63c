//! Reader of capture files.

use std::io::Read;

use super::source::Source;
use super::{
    Block, BlockKind, Form, Format, Interface, Item, MAX_RECORD, Order, PCAP_HEADER_LEN, PCAP_RECORD_HEADER_LEN,
    PcapHeader, ReadError, Record, Resolution, options,
};

/// Type of a section header block: a palindrome, the same in either byte order.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OBSOLETE: u32 = 2;
const SIMPLE: u32 = 3;
const ENHANCED: u32 = 6;
/// Maximum number of interfaces of one section, which bounds memory; real files have far fewer.
const MAX_INTERFACES: usize = 65_536;
/// Number of bytes of an interface's name that are kept, which bounds memory too. In Linux no name has more than 127
/// (`ALTIFNAMSIZ`).
const MAX_NAME: usize = 256;

/// A reader of a capture file of either format, one item at a time.
///
/// ```
/// use segue_capture::file::{Item, Order, PcapHeader, Reader, link};
///
/// // The header of a pcap file without packets; any `Read` will do.
/// let head = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 262_144, link: u32::from(link::RAW) };
/// let file = head.bytes();
/// let mut reader = Reader::new(&file[..])?;
/// let mut packets = 0;
/// while let Some(item) = reader.next()? {
///     packets += usize::from(matches!(item, Item::Packet(_)));
/// }
/// assert_eq!(packets, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader<R> {
    source: Source<R>,
    kind: Kind,
    interfaces: Vec<Interface>,
    /// Number of bytes of the last returned item, which are still in the buffer.
    given: usize,
    packets: u64,
    ended: bool,
}

enum Kind {
    Pcap { head: PcapHeader, raw: [u8; PCAP_HEADER_LEN] },
    Pcapng { order: Order },
}

impl<R> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("packets", &self.packets).field("interfaces", &self.interfaces).finish()
    }
}

/// An item in the buffer as offsets, so that the buffer is borrowed only when it is returned.
enum Found {
    Packet { interface: u32, ticks: Option<u64>, len: u32, form: Form, data: (usize, usize), options: (usize, usize) },
    Block(BlockKind),
}

impl<R: Read> Reader<R> {
    /// Reads the start of `input` and detects the file format.
    ///
    /// # Errors
    /// [`ReadError`] if it is not a capture file, is compressed or empty, or cannot be read.
    pub fn new(input: R) -> Result<Reader<R>, ReadError> {
        let mut source = Source::new(input);
        let have = source.fill(PCAP_HEADER_LEN)?;
        if let Some(what) = source.fault().filter(|_| have < PCAP_HEADER_LEN) {
            return Err(ReadError::Damaged { number: 1, offset: 0, what });
        }
        if have == 0 {
            return Err(ReadError::Empty);
        }
        let bytes = source.bytes();
        let kind = match bytes {
            [0x1f, 0x8b, ..] => return Err(ReadError::Compressed("gzip")),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return Err(ReadError::Compressed("zstd")),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => return Err(ReadError::Compressed("xz")),
            [0x04, 0x22, 0x4d, 0x18, ..] => return Err(ReadError::Compressed("lz4")),
            [b'B', b'Z', b'h', ..] => return Err(ReadError::Compressed("bzip2")),
            [0xa1, 0xb2, 0xcd, 0x34, ..] | [0x34, 0xcd, 0xb2, 0xa1, ..] => {
                return Err(ReadError::Unknown("a modified pcap file (magic a1b2cd34), which is not understood"));
            }
            [0x0a, 0x0d, 0x0d, 0x0a, ..] => Kind::Pcapng { order: Order::NATIVE },
            _ => Self::pcap(bytes)?,
        };
        let mut reader = Reader { source, kind, interfaces: Vec::new(), given: 0, packets: 0, ended: false };
        if let Kind::Pcap { head, .. } = reader.kind {
            reader.interfaces.push(head.interface());
            reader.source.consume(PCAP_HEADER_LEN);
        }
        Ok(reader)
    }

    fn pcap(bytes: &[u8]) -> Result<Kind, ReadError> {
        let unknown = "neither a pcap nor a pcapng file";
        let cut = |promised| ReadError::Cut { number: 1, offset: 0, promised, present: bytes.len() as u64 };
        let Some(raw) = bytes.first_chunk::<PCAP_HEADER_LEN>() else {
            let magic = bytes.first_chunk().map(|b| u32::from_be_bytes(*b));
            let is_pcap = matches!(magic, Some(0xa1b2_c3d4 | 0xd4c3_b2a1 | 0xa1b2_3c4d | 0x4d3c_b2a1));
            return Err(if is_pcap { cut(PCAP_HEADER_LEN as u64) } else { ReadError::Unknown(unknown) });
        };
        match PcapHeader::parse(raw) {
            Some(head) => Ok(Kind::Pcap { head, raw: *raw }),
            None => Err(ReadError::Unknown(unknown)),
        }
    }

    /// Returns the format of the file.
    pub fn format(&self) -> Format {
        match self.kind {
            Kind::Pcap { .. } => Format::Pcap,
            Kind::Pcapng { .. } => Format::Pcapng,
        }
    }

    /// Returns the header of a pcap file, parsed and as bytes; `None` for pcapng.
    pub fn pcap_header(&self) -> Option<(&PcapHeader, &[u8; PCAP_HEADER_LEN])> {
        match &self.kind {
            Kind::Pcap { head, raw, .. } => Some((head, raw)),
            Kind::Pcapng { .. } => None,
        }
    }

    /// Returns the byte order of the file, or in pcapng of the section of the last item.
    pub fn order(&self) -> Order {
        match &self.kind {
            Kind::Pcap { head, .. } => head.order,
            Kind::Pcapng { order } => *order,
        }
    }

    /// Returns the interfaces described so far in the section; exactly one for pcap.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Returns the number of packets returned so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the offset in the file after the last item, in bytes.
    pub fn offset(&self) -> u64 {
        self.source.offset() + self.given as u64
    }

    /// Returns the next item, or `None` at the end of the file.
    ///
    /// # Errors
    /// [`ReadError`]; every call after an error returns `None`.
    #[expect(clippy::should_implement_trait, reason = "the item borrows the reader")]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, ReadError> {
        self.source.consume(self.given);
        self.given = 0;
        if self.ended {
            return Ok(None);
        }
        let found = match self.kind {
            Kind::Pcap { .. } => self.record(),
            Kind::Pcapng { .. } => self.block(),
        };
        // A record that ends early, and an end between two records, are the fault of what the data is read from.
        let found = match (found, self.source.fault()) {
            (Ok(None) | Err(ReadError::Cut { .. }), Some(what)) => Err(self.damaged(what)),
            (found, _) => found,
        };
        let (found, whole) = match found {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.ended = true;
                return Ok(None);
            }
            Err(error) => {
                self.ended = true;
                return Err(error);
            }
        };
        self.given = whole;
        let offset = self.source.offset();
        if matches!(found, Found::Packet { .. }) {
            self.packets += 1;
        }
        let order = self.order();
        let raw = &self.source.bytes()[..whole];
        Ok(Some(match found {
            Found::Block(kind) => {
                let interface = self.interfaces.last().filter(|_| kind == BlockKind::Interface);
                Item::Block(Block { kind, raw, order, interface })
            }
            Found::Packet { interface, ticks, len, form, data, options } => {
                // Present: the block was accepted only with its interface.
                let of = self.interfaces.get(interface as usize);
                let fcs_len = own_fcs_len(&raw[options.0..options.1], order);
                Item::Packet(Record {
                    number: self.packets,
                    offset,
                    interface,
                    link: of.map_or(0, |of| of.link),
                    fcs_len: fcs_len.unwrap_or_else(|| of.map_or(0, |of| of.fcs_len)),
                    ticks,
                    nanos: ticks.and_then(|ticks| of.map(|of| of.nanos(ticks))),
                    len,
                    form,
                    raw,
                    data: data.0..data.1,
                    options: options.0..options.1,
                })
            }
        }))
    }

    fn cut(&self, promised: usize) -> ReadError {
        ReadError::Cut {
            number: self.packets + 1,
            offset: self.source.offset(),
            promised: promised as u64,
            present: self.source.bytes().len() as u64,
        }
    }

    fn damaged(&self, what: &'static str) -> ReadError {
        ReadError::Damaged { number: self.packets + 1, offset: self.source.offset(), what }
    }

    /// Finds the next record of a pcap file; returns it with its length in bytes.
    fn record(&mut self) -> Result<Option<(Found, usize)>, ReadError> {
        let have = self.source.fill(PCAP_RECORD_HEADER_LEN)?;
        if have == 0 {
            return Ok(None);
        }
        if have < PCAP_RECORD_HEADER_LEN {
            return Err(self.cut(PCAP_RECORD_HEADER_LEN));
        }
        let order = self.order();
        let caplen = order.read32(self.source.bytes(), 8) as usize;
        if caplen > MAX_RECORD {
            return Err(self.damaged("a packet of more than 16 MiB"));
        }
        let whole = PCAP_RECORD_HEADER_LEN + caplen;
        if self.source.fill(whole)? < whole {
            return Err(self.cut(whole));
        }
        let word = |at| order.read32(self.source.bytes(), at);
        let per_second =
            if matches!(&self.kind, Kind::Pcap { head, .. } if head.nanos) { 1_000_000_000 } else { 1_000_000 };
        let found = Found::Packet {
            interface: 0,
            ticks: Some(u64::from(word(0)) * per_second + u64::from(word(4))),
            len: word(12),
            form: Form::Pcap,
            data: (PCAP_RECORD_HEADER_LEN, whole),
            options: (whole, whole),
        };
        Ok(Some((found, whole)))
    }

    /// Finds the next block of a pcapng file; returns it with its length in bytes.
    fn block(&mut self) -> Result<Option<(Found, usize)>, ReadError> {
        let have = self.source.fill(12)?;
        if have == 0 {
            return Ok(None);
        }
        if have < 12 {
            return Err(self.cut(12));
        }
        let head = BlockHead::parse(self.source.bytes(), self.order()).map_err(|what| self.damaged(what))?;
        let BlockHead { kind, len: whole, order } = head;
        if self.source.fill(whole)? < whole {
            return Err(self.cut(whole));
        }
        let block = &self.source.bytes()[..whole];
        if !head.is_repeated_in(block) {
            return Err(self.damaged("the two lengths of a block differ"));
        }
        let found = match kind {
            SECTION => {
                if !is_known_version(block, order) {
                    return Err(ReadError::Unknown("a pcapng file of a major version other than 1"));
                }
                self.kind = Kind::Pcapng { order };
                self.interfaces.clear();
                Found::Block(BlockKind::Section)
            }
            INTERFACE => {
                if self.interfaces.len() == MAX_INTERFACES {
                    return Err(self.damaged("more than 65536 interfaces"));
                }
                let interface = interface(block, order);
                self.interfaces.push(interface);
                Found::Block(BlockKind::Interface)
            }
            ENHANCED => self.packet(
                block.len(),
                order.read32(block, 8),
                Some(u64::from(order.read32(block, 12)) << 32 | u64::from(order.read32(block, 16))),
                (order.read32(block, 20), order.read32(block, 24)),
                Form::Enhanced,
            )?,
            OBSOLETE => self.packet(
                block.len(),
                u32::from(order.read16(block, 8)),
                Some(u64::from(order.read32(block, 12)) << 32 | u64::from(order.read32(block, 16))),
                (order.read32(block, 20), order.read32(block, 24)),
                Form::Obsolete,
            )?,
            SIMPLE => {
                let len = order.read32(block, 8);
                let room = (whole - 16) as u32;
                let Some(interface) = self.interfaces.first() else {
                    return Err(self.damaged("a packet without an interface description"));
                };
                let snaplen = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
                let end = 12 + len.min(room).min(snaplen) as usize;
                Found::Packet {
                    interface: 0,
                    ticks: None,
                    len,
                    form: Form::Simple,
                    data: (12, end),
                    options: (end, end),
                }
            }
            _ => Found::Block(BlockKind::Other),
        };
        Ok(Some((found, whole)))
    }

    /// Locates the parts of an enhanced or obsolete packet block of `whole` bytes.
    fn packet(
        &self,
        whole: usize,
        interface: u32,
        ticks: Option<u64>,
        (caplen, len): (u32, u32),
        form: Form,
    ) -> Result<Found, ReadError> {
        if self.interfaces.get(interface as usize).is_none() {
            return Err(self.damaged("a packet without an interface description"));
        }
        let (start, last) = (28_usize, whole - 4);
        // The sum of a crafted length does not fit where addresses have 32 bits.
        let Some(end) = start.checked_add(caplen as usize).filter(|end| *end <= last) else {
            return Err(self.damaged("a packet longer than its block"));
        };
        let options = (end.next_multiple_of(4).min(last), last);
        Ok(Found::Packet { interface, ticks, len, form, data: (start, end), options })
    }
}

/// The first 12 bytes of a pcapng block.
struct BlockHead {
    kind: u32,
    /// Length of the whole block in bytes.
    len: usize,
    order: Order,
}

impl BlockHead {
    /// Parses the first 12 of `bytes`; `section` is the byte order of the section, which a section header changes.
    ///
    /// # Errors
    /// A description of the contradiction for a block that no file can have.
    fn parse(bytes: &[u8], section: Order) -> Result<BlockHead, &'static str> {
        let is_section = Order::NATIVE.read32(bytes, 0) == SECTION;
        let order = match (is_section, &bytes[8..12]) {
            (false, _) => section,
            (true, [0x1a, 0x2b, 0x3c, 0x4d]) => Order::Big,
            (true, [0x4d, 0x3c, 0x2b, 0x1a]) => Order::Little,
            (true, _) => return Err("a section header without a byte order"),
        };
        let kind = order.read32(bytes, 0);
        let len = order.read32(bytes, 4) as usize;
        let least = match kind {
            SECTION => 28,
            INTERFACE => 20,
            OBSOLETE | ENHANCED => 32,
            SIMPLE => 16,
            _ => 12,
        };
        if len < least || !len.is_multiple_of(4) {
            return Err("a block length that makes no sense");
        }
        if len > MAX_RECORD {
            return Err("a block of more than 16 MiB");
        }
        Ok(BlockHead { kind, len, order })
    }

    /// Returns whether `block`, of the length stated, ends with that length.
    fn is_repeated_in(&self, block: &[u8]) -> bool {
        self.order.read32(block, self.len - 4) as usize == self.len
    }
}

/// Returns whether a section header is of a version that this module reads.
fn is_known_version(section: &[u8], order: Order) -> bool {
    order.read16(section, 12) == 1
}

/// Returns whether `block` is one whole section header or interface description of byte order `order`, as `kind` says,
/// that a [`Reader`] accepts.
pub(crate) fn is_whole(kind: BlockKind, block: &[u8], order: Order) -> bool {
    let expected = match kind {
        BlockKind::Section => SECTION,
        BlockKind::Interface => INTERFACE,
        BlockKind::Other => return false,
    };
    let Some(Ok(head)) = block.get(..12).map(|first| BlockHead::parse(first, order)) else { return false };
    (head.kind, head.len, head.order) == (expected, block.len(), order)
        && head.is_repeated_in(block)
        && (kind != BlockKind::Section || is_known_version(block, order))
}

/// Returns the length in bytes of the frame check sequence that the flags among a packet's options state, which
/// overrides that of its interface; `None` where they state none.
fn own_fcs_len(list: &[u8], order: Order) -> Option<u8> {
    let (_, flags) = options::list(list, order).find(|(code, _)| *code == options::EPB_FLAGS)?;
    let len = (order.read32(flags, 0) >> 5) as u8 & 0xf;
    (len != 0).then_some(len)
}

/// Parses an interface description block of at least 20 bytes.
fn interface(block: &[u8], order: Order) -> Interface {
    let mut interface = Interface {
        link: order.read16(block, 8),
        fcs_len: 0,
        snaplen: order.read32(block, 12),
        resolution: Resolution::MICRO,
        offset_seconds: 0,
        name: None,
    };
    for (code, value) in options::list(&block[16..block.len() - 4], order) {
        match (code, value) {
            (options::IF_NAME, name) => {
                let kept = &name[..name.len().min(MAX_NAME)];
                interface.name = Some(String::from_utf8_lossy(kept).into_owned());
            }
            (options::IF_TSRESOL, &[value]) => interface.resolution = Resolution::from_option(value),
            (options::IF_FCSLEN, &[value]) => interface.fcs_len = value,
            (options::IF_TSOFFSET, value) => {
                if let Some(bytes) = value.first_chunk::<8>() {
                    interface.offset_seconds =
                        if order == Order::Big { i64::from_be_bytes(*bytes) } else { i64::from_le_bytes(*bytes) };
                }
            }
            _ => {}
        }
    }
    interface
}
