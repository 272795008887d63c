//! Split: reconstructs the packets on the wire from a capture with trains and partial checksums.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};

use segue::gso::{self, Frames, Limits, Refusal};
use segue::packet::{Gso, GsoKind, Header, Kind, Stop, TrainCsum, Tunnels, Unit};
use segue::reason::Reason;
use segue::wire::{ipv4, ipv6, tcp};

use crate::checksums::{Finding, Layer, Verdict};
use crate::error::CaptureError;
use crate::file::undo_notes::{self, filtered};
use crate::file::{Block, Form, Item, Order, Outgoing, ReadError, Reader, Record, Writer, options};
use crate::finish::{Finished, finish, spoil};
use crate::fragment;
use crate::frame::{Frame, USUAL_MTU};
use crate::lanes::Bypass;
use crate::stream::{each_item, of_other_length, section_options};

/// Maximum number of connections whose SYN options are stored.
const MOST_FLOWS: usize = 65_536;
/// Smallest MSS that a SYN agrees on, options included, and the payload that is left beside the longest ones: the least
/// that Linux sends (`tcp_min_snd_mss`, CVE-2019-11479). A file must not ask for a packet for each byte.
const LEAST_MSS: usize = 48;
const LEAST_PAYLOAD: usize = 8;

/// Configuration of [`split`].
#[derive(Clone, Debug)]
pub struct SplitConfig {
    /// UDP ports that carry tunnels.
    pub tunnels: Tunnels,
    /// The rule for the size of a train's segments.
    pub size: SegmentSize,
    /// Whether wrong checksums are corrected too, in addition to completing unfinished ones.
    pub fix_all: bool,
}

impl Default for SplitConfig {
    /// Returns the default: no tunnel on a UDP port, segment sizes as learned, wrong checksums left unchanged.
    fn default() -> SplitConfig {
        SplitConfig { tunnels: Tunnels::NONE, size: SegmentSize::Learned, fix_all: false }
    }
}

/// The rule for the size of a train's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentSize {
    /// Payload bytes of a segment, of TCP and UDP.
    Mss(usize),
    /// Bytes of the IP packet. What is longer and not TCP becomes IP fragments, unless its header forbids it.
    Mtu(usize),
    /// The MSS negotiated in the connection's SYNs, or else IP packets of 1500 bytes; UDP is not split.
    Learned,
}

/// Counters of [`split`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct SplitReport {
    /// Number of packets read.
    pub packets_in: u64,
    /// Number of packets written.
    pub packets_out: u64,
    /// Number of trains that were split.
    pub trains: u64,
    /// Number of packets that became IP fragments.
    pub fragmented: u64,
    /// Number of unfinished checksums that were finished.
    pub finished: u64,
    /// Number of wrong checksums that were corrected.
    pub fixed: u64,
    /// Number of IP lengths of zero that were filled in.
    pub lengths: u64,
    /// Number of packets whose wrong checksum was left unchanged.
    pub bad_left: u64,
    /// Number of packets written unchanged.
    pub unchanged: u64,
    /// Number of UDP packets longer than 1500 bytes that were not split, since the file does not state the size of
    /// their datagrams.
    pub udp_of_unknown_size: u64,
    /// Numbers of trains that could not be split, and of packets that were not examined, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// The position at which the input is truncated or damaged; all packets before it were split.
    pub fault: Option<ReadError>,
}

/// Splits the trains of a capture and completes its checksums.
///
/// # Errors
/// [`CaptureError::Read`] and [`CaptureError::Write`].
pub fn split<R: Read, W: Write>(
    reader: &mut Reader<R>,
    writer: &mut Writer<W>,
    config: &SplitConfig,
) -> Result<SplitReport, CaptureError> {
    let mut work = Splitter {
        tunnels: config.tunnels,
        size: config.size,
        fix_all: config.fix_all,
        syns: HashMap::new(),
        findings: Vec::new(),
        frames: Frames::new(),
        counts: SplitReport::default(),
        order: reader.order(),
    };
    let before = writer.packets();
    if let Some((head, raw)) = reader.pcap_header() {
        writer.begin_pcap(head, raw, &section_options()).map_err(CaptureError::Write)?;
    }
    let fault = each_item(reader, |item| {
        match item {
            Item::Packet(record) => work.record(&record, writer),
            Item::Block(block) => {
                work.order = block.order;
                writer.block(&Block { raw: &of_other_length(&block), ..block })
            }
        }
        .map_err(CaptureError::Write)
    })?;
    Ok(SplitReport { packets_in: reader.packets(), packets_out: writer.packets() - before, fault, ..work.counts })
}

/// One direction of a connection: addresses, then ports.
type Direction = ([u8; 32], [u8; 4]);

struct Splitter {
    tunnels: Tunnels,
    size: SegmentSize,
    fix_all: bool,
    /// MSS option of the SYN of each direction, in bytes.
    syns: HashMap<Direction, usize>,
    findings: Vec<Finding>,
    frames: Frames,
    counts: SplitReport,
    order: Order,
}

impl Splitter {
    fn record(&mut self, record: &Record<'_>, sink: &mut Writer<impl Write>) -> io::Result<()> {
        let mtu = if let SegmentSize::Mtu(mtu) = self.size { mtu } else { USUAL_MTU };
        let data = record.data();
        let frame = if record.is_cut() { None } else { Frame::open(record.link, data, &self.tunnels, mtu) };
        let Some(frame) = frame.filter(Frame::is_ip) else {
            self.counts.unchanged += 1;
            return sink.record(record);
        };
        self.learn(&frame);
        if record.fcs_len != 0 {
            // It would be wrong for what the packet becomes.
            *self.counts.refused.entry(Bypass::CheckSequence.name()).or_default() += 1;
            self.counts.unchanged += 1;
            return sink.record(record);
        }
        if let Some(size) = self.segment_size(&frame) {
            return self.train(record, &frame, size, sink);
        }
        self.single(record, &frame, sink)
    }

    /// Returns the payload bytes of the segments of a train; `None` for a single packet.
    fn segment_size(&mut self, frame: &Frame<'_>) -> Option<usize> {
        let transport = *frame.layout.transport()?;
        let payload = frame.total.checked_sub(frame.layout.header_len())?;
        let headers = frame.layout.header_len() - frame.l3();
        let by_mtu = |mtu: usize| if frame.ip_len() > mtu { Some(mtu.saturating_sub(headers).max(1)) } else { None };
        let size = match (self.size, transport.kind) {
            (SegmentSize::Mss(mss), _) => (payload > mss).then_some(mss),
            (SegmentSize::Mtu(mtu), Kind::Tcp) => by_mtu(mtu),
            (SegmentSize::Learned, Kind::Tcp) => match self.agreed(frame, &transport) {
                Some(size) => (payload > size).then_some(size),
                None => by_mtu(USUAL_MTU),
            },
            // It may be one datagram, which `single` fragments.
            (SegmentSize::Mtu(_), _) => None,
            (SegmentSize::Learned, _) => {
                self.counts.udp_of_unknown_size += u64::from(frame.ip_len() > USUAL_MTU);
                None
            }
        }?;
        // The engine states segment sizes in 16 bits.
        Some(size.min(usize::from(u16::MAX)))
    }

    fn train(
        &mut self,
        record: &Record<'_>,
        frame: &Frame<'_>,
        size: usize,
        sink: &mut Writer<impl Write>,
    ) -> io::Result<()> {
        frame.judge(&mut self.findings);
        if let Some(why) = recomputed(&self.findings).filter(|_| !self.fix_all) {
            *self.counts.refused.entry(why.name()).or_default() += 1;
            return self.single(record, frame, sink);
        }
        let wrong = wrong(&self.findings).count() as u64;
        let bad = self::wrong(&self.findings).next().copied();
        let mut packet = frame.packet();
        let kind =
            if frame.layout.transport().is_some_and(|h| h.kind == Kind::Tcp) { GsoKind::Tcp } else { GsoKind::Udp };
        let gso = Gso { kind, size: size as u16, fixed_ids: 0 };
        packet.offload.unit = Unit::Train { csum: TrainCsum::Stale, gso };
        self.frames.clear();
        if let Err(why) = gso::split_linear(&packet, &Limits::NONE, &mut self.frames) {
            *self.counts.refused.entry(why.name()).or_default() += 1;
            // Its checksums are completed nevertheless.
            return self.single(record, frame, sink);
        }
        self.counts.trains += 1;
        let honest = bad.filter(|_| !self.fix_all);
        self.counts.bad_left += u64::from(honest.is_some());
        self.counts.fixed += if self.fix_all { wrong } else { 0 };
        self.write(record, frame.prefix, honest, sink)
    }

    /// Writes the packets into which one record was split; `bad` is the wrong checksum that each of them keeps.
    fn write(
        &mut self,
        record: &Record<'_>,
        prefix: usize,
        bad: Option<Finding>,
        sink: &mut Writer<impl Write>,
    ) -> io::Result<()> {
        let prefix = &record.data()[..prefix];
        let kept = |code: u16| !matches!(code, options::EPB_HASH | undo_notes::OPTION);
        let first = filtered(record.options(), self.order, kept);
        let later = of_each_segment(record.options(), self.order);
        let mut bytes = Vec::new();
        for (at, segment) in self.frames.frames().iter().enumerate() {
            bytes.clear();
            bytes.extend_from_slice(self.frames.bytes(segment));
            if let Some(bad) = bad {
                spoil(&mut bytes, &bad);
            }
            sink.packet(&Outgoing {
                interface: record.interface,
                ticks: record.ticks,
                len: (prefix.len() + bytes.len()) as u32,
                data: &[prefix, &bytes],
                options: if at == 0 { &first } else { &later },
            })?;
        }
        Ok(())
    }

    fn single(&mut self, record: &Record<'_>, frame: &Frame<'_>, sink: &mut Writer<impl Write>) -> io::Result<()> {
        frame.judge(&mut self.findings);
        let wanted = |f: &Finding| f.verdict == Verdict::Unfinished || (self.fix_all && f.verdict == Verdict::Bad);
        let left = self.findings.iter().any(|f| f.verdict == Verdict::Bad) && !self.fix_all;
        self.counts.bad_left += u64::from(left);
        if frame.layout.stop() == Stop::TooDeep {
            // Headers further inside were not parsed.
            *self.counts.refused.entry("too_deep").or_default() += 1;
        }
        // A packet too long for its length field can only be cut.
        let is_too_long = frame.is_unsized && frame.ip_len() > usize::from(u16::MAX);
        let is_wanted = !is_too_long && (frame.is_unsized || self.findings.iter().any(wanted));
        let finished = is_wanted.then(|| finish(frame, &self.findings, wanted));
        // An equivalent value, such as 0xffff for 0, is not rewritten.
        let finished = finished.filter(|done| frame.is_unsized || done.finished + done.fixed > 0);
        if let Some(done) = &finished {
            self.counts.finished += done.finished;
            self.counts.fixed += done.fixed;
            self.counts.lengths += u64::from(frame.is_unsized);
        }
        if let SegmentSize::Mtu(mtu) = self.size
            && frame.ip_len() > mtu
            && frame.layout.transport().is_none_or(|header| header.kind != Kind::Tcp)
        {
            let whole = finished.as_ref().map(|done| {
                let packet = done.bytes.get(..frame.total).unwrap_or(&done.bytes);
                [&record.data()[..frame.prefix], packet].concat()
            });
            self.frames.clear();
            let data = whole.as_deref().unwrap_or(record.data());
            let (tunnels, findings) = (&self.tunnels, &mut self.findings);
            match fragment::cut(record.link, data, mtu, tunnels, findings, &mut self.frames) {
                Ok(()) => {
                    self.counts.fragmented += 1;
                    return self.write(record, frame.prefix, None, sink);
                }
                Err(why) => *self.counts.refused.entry(why).or_default() += 1,
            }
        }
        // Padding after the packet is kept.
        let Some(Finished { bytes, .. }) = finished else {
            self.counts.unchanged += 1;
            return sink.record(record);
        };
        let prefix = &record.data()[..frame.prefix];
        // A note of a merge is of the packet as it was.
        let kept = |code: u16| !matches!(code, options::EPB_HASH | undo_notes::OPTION);
        let carried = filtered(record.options(), self.order, kept);
        sink.packet(&Outgoing {
            interface: record.interface,
            ticks: if record.form == Form::Simple { None } else { record.ticks },
            len: (prefix.len() + bytes.len()) as u32,
            data: &[prefix, &bytes],
            options: &carried,
        })
    }

    /// Stores the MSS option of a SYN.
    fn learn(&mut self, frame: &Frame<'_>) {
        let Some(header) = frame.layout.transport().filter(|header| header.kind == Kind::Tcp) else { return };
        let bytes = &frame.bytes[header.start()..header.end()];
        if bytes[tcp::FLAGS] & tcp::SYN == 0 {
            return;
        }
        let (Some(mss), Some(key)) = (mss_option(&bytes[tcp::OPTIONS..]), direction(frame, header, false)) else {
            return;
        };
        if self.syns.len() >= MOST_FLOWS {
            // Nothing here knows which connections are over, so all are forgotten.
            self.syns.clear();
        }
        self.syns.insert(key, usize::from(mss));
    }

    /// Returns the payload bytes of a segment: the smaller MSS that the ends announced, or the only known one, minus
    /// the options of this packet, which the MSS does not include (RFC 6691).
    fn agreed(&self, frame: &Frame<'_>, header: &Header) -> Option<usize> {
        let there = direction(frame, header, false).and_then(|key| self.syns.get(&key));
        let back = direction(frame, header, true).and_then(|key| self.syns.get(&key));
        let mss = [there, back].into_iter().flatten().min()?;
        let ip = frame.layout.inner_ip()?;
        let fixed = if ip.kind == Kind::Ipv4 { ipv4::MIN_LEN } else { ipv6::LEN };
        let extra = usize::from(ip.len) - fixed + usize::from(header.len) - tcp::MIN_LEN;
        Some((*mss).max(LEAST_MSS).saturating_sub(extra).max(LEAST_PAYLOAD))
    }
}

/// Returns those options of a train that each of its packets has: its flags and its queue, once and of the length that
/// they have. Anything else would be copied into each of thousands of packets, however long it is.
fn of_each_segment(list: &[u8], order: Order) -> Vec<u8> {
    let mut kept = Vec::new();
    for wanted in [options::EPB_FLAGS, options::EPB_QUEUE] {
        let found = options::list(list, order).find(|(code, value)| *code == wanted && value.len() == 4);
        if let Some((code, value)) = found {
            options::push(&mut kept, order, code, value);
        }
    }
    kept
}

/// Returns the wrong checksums of a train. That of GRE says nothing where the one inside is unfinished: Linux fills in
/// neither (`gre_build_header`, `gre_gro_complete`).
fn wrong(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    let is_unfinished = findings.iter().any(|f| f.verdict == Verdict::Unfinished);
    findings.iter().filter(move |f| f.verdict == Verdict::Bad && !(is_unfinished && f.layer == Layer::Gre))
}

/// Returns the reason why a packet with a wrong checksum of a tunnel or of an IPv4 header is not cut: those of its
/// segments are computed anew, and would be right.
fn recomputed(findings: &[Finding]) -> Option<Refusal> {
    wrong(findings).find_map(|f| match f.layer {
        Layer::Ipv4 => Some(Refusal::IpChecksum),
        _ => f.is_outer.then_some(Refusal::Unverified),
    })
}

/// Returns the direction of a packet, or with `back` the reverse direction.
fn direction(frame: &Frame<'_>, transport: &Header, back: bool) -> Option<Direction> {
    let ip = frame.layout.inner_ip()?;
    let bytes = &frame.bytes;
    let (src, dst) = match ip.kind {
        Kind::Ipv4 => (ipv4::SRC, ipv4::DST),
        _ => (ipv6::SRC, ipv6::DST),
    };
    let part = |range: std::ops::Range<usize>| bytes.get(ip.start() + range.start..ip.start() + range.end);
    let ports = bytes.get(transport.start()..transport.start() + 4)?;
    let (a, b) = if back { (part(dst)?, part(src)?) } else { (part(src)?, part(dst)?) };
    let mut addresses = [0; 32];
    addresses[..a.len()].copy_from_slice(a);
    addresses[16..16 + b.len()].copy_from_slice(b);
    let ports = if back { [ports[2], ports[3], ports[0], ports[1]] } else { [ports[0], ports[1], ports[2], ports[3]] };
    Some((addresses, ports))
}

/// Returns the maximum segment size in a list of TCP options (RFC 9293, section 3.7.1).
fn mss_option(mut options: &[u8]) -> Option<u16> {
    while let Some((&kind, rest)) = options.split_first() {
        match (kind, rest) {
            (0, _) => return None,
            (1, _) => options = rest,
            (2, &[4, high, low, ..]) => return Some(u16::from_be_bytes([high, low])),
            (_, &[len, ..]) if len >= 2 => options = options.get(usize::from(len)..)?,
            _ => return None,
        }
    }
    None
}
