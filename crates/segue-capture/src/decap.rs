//! Decap: removes one layer of tunnel from each packet.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use segue::packet::{Header, Kind, Packet, Remote, Tunnels, remote};
use segue::wire::{ethernet, ethertype, ipv4, ipv6, read_u16};

use crate::checksums::{Finding, Layer, Verdict};
use crate::error::CaptureError;
use crate::file::undo_notes::{self, filtered};
use crate::file::{Block, BlockKind, Form, Item, Order, Outgoing, ReadError, Reader, Record, Writer, link, options};
use crate::finish::finish;
use crate::frame::{Frame, USUAL_MTU};
use crate::lanes::Bypass;
use crate::stream::{each_item, of_other_length, section_options};

/// Configuration of [`decap`].
#[derive(Clone, Debug)]
pub struct DecapConfig {
    /// UDP ports that carry tunnels.
    pub tunnels: Tunnels,
    /// Whether packets without a recognised tunnel are left out of the output.
    pub only_tunnelled: bool,
}

impl Default for DecapConfig {
    /// Returns the default: no tunnel on a UDP port, and all packets are written.
    fn default() -> DecapConfig {
        DecapConfig { tunnels: Tunnels::NONE, only_tunnelled: false }
    }
}

/// Counters of [`decap`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct DecapReport {
    /// Number of packets read.
    pub packets_in: u64,
    /// Number of packets written.
    pub packets_out: u64,
    /// Number of packets that were decapsulated.
    pub decapsulated: u64,
    /// Number of remote checksums that were finished.
    pub finished: u64,
    /// Number of packets written unchanged.
    pub passed: u64,
    /// Number of packets left out of the output.
    pub dropped: u64,
    /// Number of packets that were not decapsulated, by reason; they are among those passed or dropped.
    pub kept: BTreeMap<&'static str, u64>,
    /// The position at which the input is truncated or damaged; all packets before it were decapsulated.
    pub fault: Option<ReadError>,
}

/// Removes the outermost tunnel from each packet.
///
/// # Errors
/// [`CaptureError::Read`] and [`CaptureError::Write`].
pub fn decap<R: Read, W: Write>(
    reader: &mut Reader<R>,
    writer: &mut Writer<W>,
    config: &DecapConfig,
) -> Result<DecapReport, CaptureError> {
    let mut work = Decapsulator {
        tunnels: config.tunnels,
        only: config.only_tunnelled,
        order: reader.order(),
        findings: Vec::new(),
        counts: DecapReport::default(),
    };
    let before = writer.packets();
    if let Some((head, raw)) = reader.pcap_header() {
        let mut head = *head;
        head.link = head.link & !0xffff | u32::from(widened(head.link as u16));
        writer.begin_pcap(&head, raw, &section_options()).map_err(CaptureError::Write)?;
    }
    let fault = each_item(reader, |item| {
        match item {
            Item::Packet(record) => work.record(&record, writer),
            Item::Block(block) => {
                work.order = block.order;
                work.block(&block, writer)
            }
        }
        .map_err(CaptureError::Write)
    })?;
    Ok(DecapReport { packets_in: reader.packets(), packets_out: writer.packets() - before, fault, ..work.counts })
}

/// Returns the link type for both versions of IP instead of one for a single version, since a tunnel may carry the
/// other version.
fn widened(number: u16) -> u16 {
    if matches!(number, link::IPV4 | link::IPV6) { link::RAW } else { number }
}

struct Decapsulator {
    tunnels: Tunnels,
    only: bool,
    order: Order,
    findings: Vec<Finding>,
    counts: DecapReport,
}

/// The packet inside of a tunnel.
struct InnerPacket {
    /// Bytes of the packet, from its Ethernet header or else its IP header.
    bytes: Vec<u8>,
    is_ethernet: bool,
    finished: bool,
}

impl Decapsulator {
    fn block(&mut self, block: &Block<'_>, sink: &mut Writer<impl Write>) -> io::Result<()> {
        let Some(interface) = block.interface.filter(|interface| widened(interface.link) != interface.link) else {
            return sink.block(&Block { raw: &of_other_length(block), ..*block });
        };
        // Only the link type changes, in the first two bytes of the body.
        let mut raw = block.raw.to_vec();
        let number = widened(interface.link);
        raw[8..10].copy_from_slice(&if block.order == Order::Big {
            number.to_be_bytes()
        } else {
            number.to_le_bytes()
        });
        let mut interface = interface.clone();
        interface.link = number;
        sink.block(&Block { kind: BlockKind::Interface, raw: &raw, order: block.order, interface: Some(&interface) })
    }

    fn record(&mut self, record: &Record<'_>, sink: &mut Writer<impl Write>) -> io::Result<()> {
        let data = record.data();
        let frame = Frame::open(record.link, data, &self.tunnels, USUAL_MTU);
        let tunnel = frame.as_ref().and_then(|frame| Some((frame, carried(frame)?)));
        let result = match tunnel {
            None => None,
            Some(_) if record.is_cut() => Some(Err(Bypass::Cut.name())),
            Some(_) if record.fcs_len != 0 => Some(Err(Bypass::CheckSequence.name())),
            Some((frame, first)) => Some(self.open(frame, first)),
        };
        let inside = match result {
            Some(Ok(inside)) => inside,
            Some(Err(why)) => {
                *self.counts.kept.entry(why).or_default() += 1;
                return self.leave(record, sink);
            }
            None => {
                return self.leave(record, sink);
            }
        };
        let prefix_len =
            tunnel.map_or(0, |(frame, _)| frame.prefix + if is_ethernet(record.link) { frame.l3() } else { 0 });
        let mut prefix = data[..prefix_len].to_vec();
        let mut bytes = &inside.bytes[..];
        if inside.is_ethernet {
            if is_ethernet(record.link) {
                prefix.clear();
            } else {
                // The link type of the capture has no place for the inner Ethernet header, so only its payload is kept.
                let kind = read_u16(bytes, ethernet::TYPE).unwrap_or(0);
                if !matches!(kind, ethertype::IPV4 | ethertype::IPV6) {
                    *self.counts.kept.entry("inner_ethernet").or_default() += 1;
                    return self.leave(record, sink);
                }
                bytes = &bytes[ethernet::LEN..];
            }
        }
        if !(inside.is_ethernet && is_ethernet(record.link)) {
            let version = bytes.first().map_or(0, |byte| byte >> 4);
            let kind = if version == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
            if matches!(record.link, link::NULL | link::LOOP) {
                // Systems number address families differently; the record shows only that of the outer packet.
                let is_same = data.get(prefix_len).is_some_and(|outer| outer >> 4 == version);
                if !is_same {
                    *self.counts.kept.entry("loopback_family").or_default() += 1;
                    return self.leave(record, sink);
                }
            }
            link::set_protocol(record.link, &mut prefix, kind);
        }
        self.counts.decapsulated += 1;
        self.counts.finished += u64::from(inside.finished);
        let keep = |code| code != options::EPB_HASH && code != undo_notes::OPTION;
        sink.packet(&Outgoing {
            interface: record.interface,
            ticks: if record.form == Form::Simple { None } else { record.ticks },
            len: (prefix.len() + bytes.len()) as u32,
            data: &[&prefix, bytes],
            options: &filtered(record.options(), self.order, keep),
        })
    }

    fn leave(&mut self, record: &Record<'_>, sink: &mut Writer<impl Write>) -> io::Result<()> {
        if self.only {
            self.counts.dropped += 1;
            return Ok(());
        }
        self.counts.passed += 1;
        sink.record(record)
    }

    /// Extracts the inner packet, which begins with the header at index `first`.
    fn open(&mut self, frame: &Frame<'_>, first: usize) -> Result<InnerPacket, &'static str> {
        frame.judge(&mut self.findings);
        // A packet with a wrong outer checksum stays in its tunnel; an unfinished one is not wrong.
        let outer = |f: &&Finding| f.is_outer && f.level == 0 && f.verdict == Verdict::Bad;
        if let Some(bad) = self.findings.iter().find(outer) {
            return Err(match bad.layer {
                Layer::Ipv4 => "outer_ip_csum",
                Layer::Gre => "gre_csum",
                _ => "outer_csum",
            });
        }
        let headers = frame.layout.headers();
        let start = headers[first].start();
        let packet: Packet<&[u8]> = frame.packet();
        let remote = packet.offload.layers().first().and_then(|layer| layer.remote);
        let has_option = (0..first).any(|index| remote::option(&packet.head, &frame.layout, index).is_some());
        if has_option {
            // Without a right outer checksum nothing protects the inner packet.
            let udp = self.findings.iter().find(|f| f.is_outer && f.level == 0 && f.layer == Layer::Udp);
            match (remote, udp.map(|f| f.verdict)) {
                (None, _) => return Err("remcsum_field"),
                (_, Some(Verdict::Good | Verdict::Unfinished)) => {}
                _ => return Err("remcsum_no_outer_csum"),
            }
        }
        let end = inner_end(frame, &headers[first..]).ok_or("inner_malformed")?;
        let bytes = frame.bytes.get(start..end).ok_or("inner_malformed")?;
        let is_ethernet = headers[first].kind == Kind::Ethernet;
        let mut inside = InnerPacket { bytes: bytes.to_vec(), is_ethernet, finished: false };
        if remote == Some(Remote::Transport) {
            let open = self
                .findings
                .iter()
                .find(|f| !f.is_outer && matches!(f.layer, Layer::Tcp | Layer::Udp))
                .is_some_and(|f| f.verdict == Verdict::Remote);
            if !open {
                return Err("remcsum_primed");
            }
            let number = if is_ethernet { link::ETHERNET } else { link::RAW };
            let inner = Frame::open(number, bytes, &self.tunnels, usize::MAX).ok_or("inner_malformed")?;
            let mut findings = Vec::new();
            inner.judge(&mut findings);
            let wanted = |f: &Finding| !f.is_outer && f.verdict == Verdict::Unfinished && f.layer != Layer::Ipv4;
            inside.bytes = finish(&inner, &findings, wanted).bytes;
            inside.finished = true;
        }
        Ok(inside)
    }
}

fn is_ethernet(number: u16) -> bool {
    number == link::ETHERNET
}

/// Returns the index of the first header inside the outermost tunnel; `None` without a tunnel.
fn carried(frame: &Frame<'_>) -> Option<usize> {
    let outer = frame.layout.outer_ip_index()?;
    let mut inside = frame.layout.inside_outer_ip().iter();
    let first = inside.position(|header| header.is_ip() || header.kind == Kind::Ethernet)?;
    Some(outer + 1 + first)
}

/// Returns the offset of the end of the inner packet, from its own length field.
fn inner_end(frame: &Frame<'_>, headers: &[Header]) -> Option<usize> {
    if frame.is_unsized || headers.first()?.kind == Kind::Ethernet {
        return Some(frame.total);
    }
    let ip = headers.first()?;
    let field = |at: usize| read_u16(&frame.bytes, ip.start() + at).map(usize::from);
    let end = match ip.kind {
        Kind::Ipv4 => ip.start() + field(ipv4::TOTAL_LEN)?,
        _ => ip.start() + ipv6::LEN + field(ipv6::PAYLOAD_LEN)?,
    };
    Some(end.min(frame.total))
}
