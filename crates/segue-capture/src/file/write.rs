//! Writer of capture files.

use std::io::{self, Write};

use super::{
    Block, BlockKind, Form, Format, Interface, MAX_RECORD, MAX_SNAPLEN, Order, PCAP_HEADER_LEN, PcapHeader, Record,
    Resolution, options,
};

/// A packet for [`Writer::packet`].
#[derive(Clone, Debug)]
pub struct Outgoing<'a> {
    /// Index of the interface in the section, from 0.
    pub interface: u32,
    /// Timestamp in ticks of the packet's interface; `None` writes a simple packet block.
    pub ticks: Option<u64>,
    /// Original length of the packet in bytes.
    pub len: u32,
    /// Bytes of the packet, in pieces.
    pub data: &'a [&'a [u8]],
    /// Options in the byte order of the section, without the end-of-options option.
    pub options: &'a [u8],
}

/// A writer of a capture file of either format, from items of either format.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    target: Target,
    packets: u64,
    block: Vec<u8>,
}

#[derive(Debug)]
enum Target {
    /// A pcap file, whose header is written with the first interface. The interfaces are kept without their names.
    Pcap { head: Option<(PcapHeader, [u8; PCAP_HEADER_LEN])>, interfaces: Vec<Interface> },
    /// A pcapng file, whose section headers come from the input, or are created with the first interface.
    Pcapng { order: Order },
}

/// Error: the input has a second link type, and a pcap file holds one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondLinkType(pub u16);

impl std::fmt::Display for SecondLinkType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a second link type ({}), where pcap can hold only one", super::link::name(self.0))
    }
}

impl std::error::Error for SecondLinkType {}

/// Error: the input has a second file header that differs from the first, and a pcap file holds one only: that of
/// another pcap file, or after one with microseconds an interface with finer timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DifferentHeader;

impl std::fmt::Display for DifferentHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("two files whose headers differ, where pcap can hold only one")
    }
}

impl std::error::Error for DifferentHeader {}

impl<W: Write> Writer<W> {
    /// Creates a writer of `format`; nothing is written yet.
    pub fn new(out: W, format: Format) -> Writer<W> {
        let target = match format {
            Format::Pcap => Target::Pcap { head: None, interfaces: Vec::new() },
            Format::Pcapng => Target::Pcapng { order: Order::NATIVE },
        };
        Writer { out, target, packets: 0, block: Vec::new() }
    }

    /// Returns the format of the output file.
    pub fn format(&self) -> Format {
        match self.target {
            Target::Pcap { .. } => Format::Pcap,
            Target::Pcapng { .. } => Format::Pcapng,
        }
    }

    /// Returns the number of packets written.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns a mutable reference to the underlying output.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Returns the underlying output without flushing it.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Flushes and returns the underlying output. A pcap file without an interface, and so without packets, gets the
    /// header of a capture of Ethernet.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn finish(mut self) -> io::Result<W> {
        if let Target::Pcap { head: None, .. } = self.target {
            let link = u32::from(super::link::ETHERNET);
            let head = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: MAX_SNAPLEN, link };
            self.out.write_all(&head.bytes())?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    /// Begins the output with the header of a pcap file that is the input. Into pcap `raw` is written with the snap
    /// length and link type of `head`; a repeated call with the same header writes nothing. Into pcapng a section
    /// header with the options `section` (without the end-of-options option) and an interface description are written.
    ///
    /// # Errors
    /// Errors of the output, or [`DifferentHeader`] inside of an [`io::Error`].
    pub fn begin_pcap(&mut self, head: &PcapHeader, raw: &[u8; PCAP_HEADER_LEN], section: &[u8]) -> io::Result<()> {
        match &mut self.target {
            Target::Pcap { head: written, interfaces, .. } => {
                let mut bytes = *raw;
                bytes[16..20].copy_from_slice(&head.order.put32(head.snaplen));
                bytes[20..24].copy_from_slice(&head.order.put32(head.link));
                interfaces.push(head.interface());
                match written {
                    Some((_, before)) if *before == bytes => Ok(()),
                    Some(_) => Err(io::Error::other(DifferentHeader)),
                    None => {
                        *written = Some((*head, bytes));
                        self.out.write_all(&bytes)
                    }
                }
            }
            Target::Pcapng { order } => {
                let order = *order;
                self.out.write_all(&section_block(order, section))?;
                self.out.write_all(&interface_block(order, &head.interface()))
            }
        }
    }

    /// Writes a block that is not a packet: byte for byte into pcapng. A pcap file takes its link type and the length
    /// of a frame check sequence from the first interface description, and nothing else: its timestamps are in
    /// nanoseconds, and its snap length is at least [`MAX_SNAPLEN`], because of interfaces that may follow.
    ///
    /// # Errors
    /// Errors of the output, or [`SecondLinkType`] or [`DifferentHeader`] inside of an [`io::Error`]; into pcapng a
    /// block of more than [`MAX_RECORD`] is `InvalidInput`.
    pub fn block(&mut self, block: &Block<'_>) -> io::Result<()> {
        let Block { kind, raw, order, interface } = *block;
        match (&mut self.target, kind, interface) {
            (Target::Pcapng { order: ours }, ..) => {
                if kind == BlockKind::Section {
                    *ours = order;
                }
                check_len(raw.len())?;
                self.out.write_all(raw)
            }
            (Target::Pcap { interfaces, .. }, BlockKind::Section, _) => {
                interfaces.clear();
                Ok(())
            }
            (Target::Pcap { head, interfaces, .. }, BlockKind::Interface, Some(interface)) => {
                interfaces.push(Interface { name: None, ..*interface });
                match head {
                    Some((head, _)) if head.link as u16 != interface.link => {
                        Err(io::Error::other(SecondLinkType(interface.link)))
                    }
                    Some((head, _)) if !head.nanos && !interface.resolution.is_coarse() => {
                        Err(io::Error::other(DifferentHeader))
                    }
                    Some(_) => Ok(()),
                    None => {
                        let fcs = u32::from(interface.fcs_len / 2) << 28;
                        let fcs = if fcs != 0 { fcs | 0x0400_0000 } else { 0 };
                        let made = PcapHeader {
                            order: Order::NATIVE,
                            nanos: true,
                            snaplen: interface.snaplen.max(MAX_SNAPLEN),
                            link: u32::from(interface.link) | fcs,
                        };
                        let bytes = made.bytes();
                        *head = Some((made, bytes));
                        self.out.write_all(&bytes)
                    }
                }
            }
            // A pcap file cannot hold other blocks.
            (Target::Pcap { .. }, ..) => Ok(()),
        }
    }

    /// Writes a packet of the input unchanged.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn record(&mut self, record: &Record<'_>) -> io::Result<()> {
        let same = match (&self.target, record.form) {
            (Target::Pcap { head, .. }, form) => form == Form::Pcap && head.is_some(),
            (Target::Pcapng { .. }, form) => form != Form::Pcap,
        };
        if same {
            self.packets += 1;
            return self.out.write_all(record.raw);
        }
        self.packet(&Outgoing {
            interface: record.interface,
            ticks: Some(record.ticks.unwrap_or(0)),
            len: record.len,
            data: &[record.data()],
            options: &[],
        })
    }

    /// Writes one packet.
    ///
    /// # Errors
    /// Errors of the output; a packet without an interface, and one whose record or block would be longer than
    /// [`MAX_RECORD`], is `InvalidInput`.
    pub fn packet(&mut self, packet: &Outgoing<'_>) -> io::Result<()> {
        self.packet_behind(packet, None)
    }

    /// Writes a packet; into pcapng with the bytes `tail` instead of padding and options. The length of `tail` pads
    /// the block to a multiple of four bytes.
    ///
    /// # Errors
    /// The errors of [`Writer::packet`].
    pub fn packet_with_tail(&mut self, packet: &Outgoing<'_>, tail: &[u8]) -> io::Result<()> {
        self.packet_behind(packet, Some(tail))
    }

    fn packet_behind(&mut self, packet: &Outgoing<'_>, tail: Option<&[u8]>) -> io::Result<()> {
        self.packets += 1;
        let caplen: usize = packet.data.iter().map(|piece| piece.len()).sum();
        check_len(caplen)?;
        let caplen32 = caplen as u32;
        match &mut self.target {
            Target::Pcap { head, interfaces } => {
                let (Some((head, _)), Some(interface)) = (head, interfaces.get(packet.interface as usize)) else {
                    return Err(io::Error::from(io::ErrorKind::InvalidInput));
                };
                let ticks = packet.ticks.unwrap_or(0);
                let ours = if head.nanos { Resolution::NANO } else { Resolution::MICRO };
                let ticks = if interface.resolution == ours && interface.offset_seconds == 0 {
                    ticks
                } else {
                    ours.ticks(interface.nanos(ticks))
                };
                let per_second = if head.nanos { 1_000_000_000 } else { 1_000_000 };
                // The field ends in 2106; later times saturate.
                let seconds = u32::try_from(ticks / per_second).unwrap_or(u32::MAX);
                let words =
                    [seconds, (ticks % per_second) as u32, caplen32, packet.len].map(|word| head.order.put32(word));
                self.out.write_all(words.as_flattened())?;
                packet.data.iter().try_for_each(|piece| self.out.write_all(piece))
            }
            Target::Pcapng { order } => {
                let order = *order;
                let block = &mut self.block;
                block.clear();
                let head = match packet.ticks {
                    Some(ticks) => {
                        &[6, 0, packet.interface, (ticks >> 32) as u32, ticks as u32, caplen32, packet.len][..]
                    }
                    None => &[3, 0, packet.len],
                };
                head.iter().for_each(|&word| block.extend(order.put32(word)));
                packet.data.iter().for_each(|piece| block.extend_from_slice(piece));
                match tail {
                    Some(tail) => block.extend_from_slice(tail),
                    None => {
                        let options = if packet.ticks.is_some() { packet.options } else { &[] };
                        usual_tail(block, order, options);
                    }
                }
                // A tail of wrong length must not damage the file.
                block.resize(block.len().next_multiple_of(4), 0);
                check_len(block.len() + 4)?;
                let whole = order.put32((block.len() + 4) as u32);
                block[4..8].copy_from_slice(&whole);
                block.extend(whole);
                self.out.write_all(block)
            }
        }
    }
}

/// Returns an error for a record or block of `len` bytes that a [`Reader`](super::Reader) refuses, as libpcap and
/// Wireshark do: all that follows it in its file would be lost.
fn check_len(len: usize) -> io::Result<()> {
    if len > MAX_RECORD {
        let text = "it would need a block of more than 16 MiB, which no reader accepts";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

/// Returns whether a packet of `data` bytes with `options`, which have no end-of-options option yet, fits an enhanced
/// packet block of [`MAX_RECORD`].
pub(crate) fn fits_block(data: usize, options: usize) -> bool {
    /// Header, padding, end-of-options option and the block's last length, in bytes.
    const REST: usize = 28 + 3 + 4 + 4;
    data + options + REST <= MAX_RECORD
}

/// Appends padding of zeros and `options`, which have no end-of-options option yet, to the bytes of a packet block.
fn usual_tail(block: &mut Vec<u8>, order: Order, options: &[u8]) {
    block.resize(block.len().next_multiple_of(4), 0);
    if !options.is_empty() {
        block.extend_from_slice(options);
        block.resize(block.len().next_multiple_of(4), 0);
        options::push(block, order, options::END, &[]);
    }
}

/// Returns whether the `tail` of a packet block, from the end of the packet to the block's last length, differs from
/// what a [`Writer`] writes for `options`: no end-of-options option, or padding that is not zero. `front` is the offset
/// of the tail in its block.
pub fn is_unusual_tail(tail: &[u8], front: usize, order: Order, options: &[u8]) -> bool {
    // Padding depends on the offset modulo four only.
    let front = front % 4;
    let mut usual = vec![0; front];
    usual_tail(&mut usual, order, options);
    tail != &usual[front..]
}

/// Builds a section header block of version 1.0 and unknown length, with `options` that have no `opt_endofopt` yet.
pub fn section_block(order: Order, options: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    body.extend(order.put32(0x1a2b_3c4d));
    body.extend(order.put16(1));
    body.extend(order.put16(0));
    body.extend([0xff; 8]);
    body.extend_from_slice(options);
    if !options.is_empty() {
        options::push(&mut body, order, options::END, &[]);
    }
    wrap(order, 0x0a0d_0d0a, &body)
}

/// Builds an interface description block.
pub fn interface_block(order: Order, interface: &Interface) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    body.extend(order.put16(interface.link));
    body.extend([0, 0]);
    body.extend(order.put32(interface.snaplen));
    let mut list = Vec::new();
    if let Some(name) = &interface.name {
        options::push(&mut list, order, options::IF_NAME, name.as_bytes());
    }
    options::push(&mut list, order, options::IF_TSRESOL, &[interface.resolution.option()]);
    if interface.fcs_len != 0 {
        options::push(&mut list, order, options::IF_FCSLEN, &[interface.fcs_len]);
    }
    if interface.offset_seconds != 0 {
        let seconds = interface.offset_seconds;
        let bytes = if order == Order::Big { seconds.to_be_bytes() } else { seconds.to_le_bytes() };
        options::push(&mut list, order, options::IF_TSOFFSET, &bytes);
    }
    options::end(&mut list, order);
    body.extend(list);
    wrap(order, 1, &body)
}

/// Builds a block around `body`, whose length is a multiple of four.
pub(super) fn wrap(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let whole = (body.len() + 12) as u32;
    let mut block = Vec::with_capacity(body.len() + 12);
    block.extend(order.put32(kind));
    block.extend(order.put32(whole));
    block.extend_from_slice(body);
    block.extend(order.put32(whole));
    block
}
