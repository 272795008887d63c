//! `segue pcap split`: what was on the wire, from a capture taken where trains and unfinished checksums pass.

use std::collections::{BTreeMap, HashMap};
use std::io;

use segue::checksum::{Field, Sum};
use segue::gso::{self, Frames, Limits};
use segue::packet::{Gso, GsoKind, Header, Kind, Stop, TrainCsum, Unit};
use segue::reason::Reason;
use segue::wire::{ipv4, ipv6, read_u16, tcp, write_u16};
use segue_capture::file::{Form, Item, Order, Outgoing, Record, options};
use segue_control::error::Error;
use serde_json::json;

use super::args::Split;
use super::files::{End, Job, Sink};
use super::frame::{Finding, Frame, Layer, USUAL_MTU, Verdict};
use crate::out::Out;

/// Most connections whose SYN is remembered.
const MOST_FLOWS: usize = 65_536;

/// Runs it.
pub(super) fn run(args: &Split, out: &Out) -> Result<(), Error> {
    let (job, mut reader) = Job::open_to(&args.input, &args.output, "split", out)?;
    let mut sink = job.create(&args.output, reader.format(), out)?;
    let mut work = Work {
        tunnels: args.ports.tunnels(),
        size: match (args.mtu, args.mss) {
            (_, Some(mss)) => Size::Mss(mss as usize),
            (Some(mtu), None) => Size::Mtu(mtu as usize),
            (None, None) => Size::Learned,
        },
        fix_all: args.fix_checksums == "all",
        syns: HashMap::new(),
        findings: Vec::new(),
        frames: Frames::new(),
        counts: Counts::default(),
        order: reader.order(),
    };
    let mut end = End::default();
    if let Some((head, raw)) = reader.pcap_head() {
        sink.begin_pcap(head, raw, &user_application()).map_err(|error| job.write_failed(&error))?;
    }
    loop {
        match reader.next() {
            Ok(None) => break,
            Ok(Some(Item::Packet(record))) => {
                work.record(&record, &mut sink).map_err(|error| job.write_failed(&error))?;
            }
            Ok(Some(Item::Block(block))) => {
                work.order = block.order;
                sink.block(&block).map_err(|error| job.write_failed(&error))?;
            }
            Err(error) => job.fault(&error, &mut end)?,
        }
    }
    let counts = &work.counts;
    let summary = json!({
        "schema": "segue.pcap.split/1",
        "undo": false,
        "packets_in": reader.packets(),
        "packets_out": sink.packets(),
        "trains_cut": counts.trains,
        "checksums_finished": counts.finished,
        "checksums_fixed": counts.fixed,
        "lengths_filled_in": counts.lengths,
        "bad_left": counts.bad_left,
        "unchanged": counts.unchanged,
        "packets_fragmented": counts.fragmented,
        "udp_of_unknown_size": counts.udp,
        "left_as_they_are": counts.refused,
        "cut": end.fault.as_ref().map(|(what, _)| what),
    });
    let units = sink.packets();
    job.finish(sink)?;
    job.erase();
    if out.json {
        return super::show_json(out, summary, &job, &end);
    }
    out.note(&format!(
        "{} packets -> {units} packets ({} trains cut, {} fragmented, {} checksums finished, {} fixed, {} changed else)",
        reader.packets(),
        counts.trains,
        counts.fragmented,
        counts.finished,
        counts.fixed,
        counts.lengths,
    ));
    if counts.bad_left > 0 {
        out.note(&format!(
            "  {} with a wrong checksum left as they are; --fix-checksums all",
            super::packets(counts.bad_left)
        ));
    }
    if counts.udp > 0 {
        out.note(&format!(
            "  {} of UDP above 1500 bytes left as they are: the size of their datagrams is not in the file; --mss N cuts them, --mtu N makes fragments",
            super::packets(counts.udp)
        ));
    }
    for (reason, n) in &counts.refused {
        out.note(&format!("  {} left as they are: {}", super::packets(*n), reason.replace('_', " ")));
    }
    job.verdict(&end, out)
}

/// Options of the section header of a file that is made.
pub(super) fn user_application() -> Vec<u8> {
    let mut list = Vec::new();
    options::push(&mut list, Order::NATIVE, options::SHB_USERAPPL, super::USERAPPL.as_bytes());
    list
}

/// How large the segments of a train were.
#[derive(Clone, Copy, Debug)]
enum Size {
    /// Payload bytes.
    Mss(usize),
    /// Bytes of the IP packet.
    Mtu(usize),
    /// As the ends of the connection agreed, or the usual MTU.
    Learned,
}

#[derive(Debug, Default)]
struct Counts {
    trains: u64,
    fragmented: u64,
    finished: u64,
    fixed: u64,
    lengths: u64,
    bad_left: u64,
    unchanged: u64,
    udp: u64,
    refused: BTreeMap<&'static str, u64>,
}

/// One direction of a connection: addresses, then ports.
type Way = ([u8; 32], [u8; 4]);

struct Work {
    tunnels: segue::packet::Tunnels,
    size: Size,
    fix_all: bool,
    /// What the sender of a SYN said it can take.
    syns: HashMap<Way, usize>,
    findings: Vec<Finding>,
    frames: Frames,
    counts: Counts,
    order: Order,
}

impl Work {
    fn record(&mut self, record: &Record<'_>, sink: &mut Sink) -> io::Result<()> {
        let mtu = if let Size::Mtu(mtu) = self.size { mtu } else { USUAL_MTU };
        let data = record.data();
        let frame = if record.is_cut() { None } else { Frame::open(record.link, data, &self.tunnels, mtu) };
        let Some(frame) = frame.filter(Frame::is_ip) else {
            self.counts.unchanged += 1;
            return sink.record(record);
        };
        self.learn(&frame);
        if let Some(size) = self.segment_size(&frame) {
            return self.train(record, &frame, size, sink);
        }
        self.single(record, &frame, sink)
    }

    /// Payload bytes of the segments of a train; `None` where it is a single packet.
    fn segment_size(&mut self, frame: &Frame<'_>) -> Option<usize> {
        let transport = *frame.layout.transport()?;
        let payload = frame.total.checked_sub(frame.layout.header_len())?;
        let headers = frame.layout.header_len() - frame.l3();
        let by_mtu = |mtu: usize| if frame.ip_len() > mtu { Some(mtu.saturating_sub(headers).max(1)) } else { None };
        let size = match (self.size, transport.kind) {
            (Size::Mss(mss), _) => (payload > mss).then_some(mss),
            (Size::Mtu(mtu), Kind::Tcp) => by_mtu(mtu),
            (Size::Learned, Kind::Tcp) => match self.agreed(frame, &transport) {
                Some(size) => (payload > size).then_some(size),
                None => by_mtu(USUAL_MTU),
            },
            // One datagram, for all that is known: fragments, in `single`.
            (Size::Mtu(_), _) => None,
            (Size::Learned, _) => {
                self.counts.udp += u64::from(frame.ip_len() > USUAL_MTU);
                None
            }
        }?;
        // What the engine can say of a segment's size has 16 bits.
        Some(size.min(usize::from(u16::MAX)))
    }

    fn train(&mut self, record: &Record<'_>, frame: &Frame<'_>, size: usize, sink: &mut Sink) -> io::Result<()> {
        frame.judge(&mut self.findings);
        let bad =
            self.findings.iter().find(|f| !f.is_outer && f.layer != Layer::Ipv4 && f.verdict == Verdict::Bad).copied();
        let mut packet = frame.packet();
        let kind =
            if frame.layout.transport().is_some_and(|h| h.kind == Kind::Tcp) { GsoKind::Tcp } else { GsoKind::Udp };
        let gso = Gso { kind, size: size as u16, fixed_ids: 0 };
        packet.offload.unit = Unit::Train { csum: TrainCsum::Stale, gso };
        self.frames.clear();
        if let Err(why) = gso::split_linear(&packet, &Limits::NONE, &mut self.frames) {
            *self.counts.refused.entry(why.name()).or_default() += 1;
            // Its checksums are finished all the same.
            return self.single(record, frame, sink);
        }
        self.counts.trains += 1;
        let honest = bad.filter(|_| !self.fix_all);
        if honest.is_some() {
            self.counts.bad_left += 1;
        }
        self.counts.fixed += u64::from(bad.is_some() && self.fix_all);
        self.write(record, frame.prefix, honest, sink)
    }

    /// Writes what one record was cut into; `bad` is what stays wrong in each.
    fn write(&mut self, record: &Record<'_>, prefix: usize, bad: Option<Finding>, sink: &mut Sink) -> io::Result<()> {
        let prefix = &record.data()[..prefix];
        let carried = |first: bool| {
            segue_capture::file::undo_notes::filtered(record.options(), self.order, |code| match code {
                options::EPB_FLAGS | options::EPB_QUEUE => true,
                options::EPB_HASH | segue_capture::file::undo_notes::OPTION => false,
                _ => first,
            })
        };
        let (first, later) = (carried(true), carried(false));
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

    fn single(&mut self, record: &Record<'_>, frame: &Frame<'_>, sink: &mut Sink) -> io::Result<()> {
        frame.judge(&mut self.findings);
        let wanted = |f: &Finding| f.verdict == Verdict::Unfinished || (self.fix_all && f.verdict == Verdict::Bad);
        let left = self.findings.iter().any(|f| f.verdict == Verdict::Bad) && !self.fix_all;
        self.counts.bad_left += u64::from(left);
        if frame.layout.stop() == Stop::TooDeep {
            // What is further inside was not looked at.
            *self.counts.refused.entry("too_deep").or_default() += 1;
        }
        // A packet too long for its own length field cannot be made whole without being cut.
        let is_too_long = frame.is_unsized && frame.ip_len() > usize::from(u16::MAX);
        let is_wanted = !is_too_long && (frame.is_unsized || self.findings.iter().any(wanted));
        let finished = is_wanted.then(|| finish(frame, &self.findings, wanted));
        // What is right as it stands, such as 0xffff for 0, is not written anew.
        let finished = finished.filter(|done| frame.is_unsized || done.finished + done.fixed > 0);
        if let Some(done) = &finished {
            self.counts.finished += done.finished;
            self.counts.fixed += done.fixed;
            self.counts.lengths += u64::from(frame.is_unsized);
        }
        if let Size::Mtu(mtu) = self.size
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
            match super::fragment::cut(record.link, data, mtu, tunnels, findings, &mut self.frames) {
                Ok(()) => {
                    self.counts.fragmented += 1;
                    return self.write(record, frame.prefix, None, sink);
                }
                Err(why) => *self.counts.refused.entry(why).or_default() += 1,
            }
        }
        // What stood behind the packet stays there.
        let Some(Finished { bytes, .. }) = finished else {
            self.counts.unchanged += 1;
            return sink.record(record);
        };
        let prefix = &record.data()[..frame.prefix];
        let order = self.order;
        let carried =
            segue_capture::file::undo_notes::filtered(record.options(), order, |code| code != options::EPB_HASH);
        sink.packet(&Outgoing {
            interface: record.interface,
            ticks: if record.form == Form::Simple { None } else { record.ticks },
            len: (prefix.len() + bytes.len()) as u32,
            data: &[prefix, &bytes],
            options: &carried,
        })
    }

    /// Remembers the MSS option of a SYN.
    fn learn(&mut self, frame: &Frame<'_>) {
        let Some(header) = frame.layout.transport().filter(|header| header.kind == Kind::Tcp) else { return };
        let bytes = &frame.bytes[header.start()..header.end()];
        if bytes[tcp::FLAGS] & tcp::SYN == 0 {
            return;
        }
        let (Some(mss), Some(way)) = (mss_option(&bytes[tcp::OPTIONS..]), way(frame, header, false)) else { return };
        if self.syns.len() >= MOST_FLOWS {
            // Old connections are the likeliest to be over, but nothing here knows their age.
            self.syns.clear();
        }
        self.syns.insert(way, usize::from(mss));
    }

    /// Payload bytes of a segment by what both ends said, or the one that is known, less the options of this packet (RFC
    /// 6691: the MSS counts none).
    fn agreed(&self, frame: &Frame<'_>, header: &Header) -> Option<usize> {
        let there = way(frame, header, false).and_then(|way| self.syns.get(&way));
        let back = way(frame, header, true).and_then(|way| self.syns.get(&way));
        let mss = [there, back].into_iter().flatten().min()?;
        let ip = frame.layout.inner_ip()?;
        let fixed = if ip.kind == Kind::Ipv4 { ipv4::MIN_LEN } else { ipv6::LEN };
        let extra = usize::from(ip.len) - fixed + usize::from(header.len) - tcp::MIN_LEN;
        Some(mss.saturating_sub(extra).max(1))
    }
}

/// The way of a packet, or the way back.
fn way(frame: &Frame<'_>, transport: &Header, back: bool) -> Option<Way> {
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

/// The maximum segment size in a list of TCP options (RFC 9293, section 3.7.1).
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

/// What [`finish`] wrote.
#[derive(Debug)]
pub(super) struct Finished {
    /// [`Frame::bytes`], whole.
    pub(super) bytes: Vec<u8>,
    /// Checksums written where one was unfinished, or was right for what stood inside of it.
    pub(super) finished: u64,
    /// Checksums written where a wrong one stood.
    pub(super) fixed: u64,
}

/// Writes the checksums among `findings`, which are all that [`Frame::judge`] found, that are `wanted`, and those that were
/// right and would not be any more: from the inside out, each over what is then inside of it.
pub(super) fn finish(frame: &Frame<'_>, findings: &[Finding], wanted: impl Fn(&Finding) -> bool) -> Finished {
    let mut frame = frame.copied();
    let (mut finished, mut fixed) = (0, 0);
    let (mut now, mut is_old) = (findings.to_vec(), false);
    for (index, before) in findings.iter().enumerate().rev() {
        // That of an IPv4 header covers nothing inside.
        if is_old && before.layer != Layer::Ipv4 {
            frame.judge(&mut now);
            is_old = false;
        }
        // The headers are the same, and so are the places of their checksums.
        let Some(found) = now.get(index).filter(|found| found.at == before.at) else { continue };
        let is_spoiled = before.verdict == Verdict::Good && found.verdict == Verdict::Bad;
        if found.field == found.expected || !(wanted(before) || is_spoiled) {
            continue;
        }
        write_u16(frame.bytes.to_mut(), found.at, found.expected);
        is_old = true;
        match before.verdict {
            Verdict::Bad => fixed += 1,
            _ => finished += 1,
        }
    }
    let mut bytes = frame.bytes.into_owned();
    if frame.is_unsized
        && let Some(ip) = frame.layout.headers().iter().find(|header| header.kind == Kind::Ipv4)
    {
        // The length was filled in, and is part of the sum.
        write_u16(&mut bytes, ip.start() + ipv4::CHECKSUM, 0);
        let sum = Field::complete(Sum::of(&bytes[ip.start()..ip.end()]));
        write_u16(&mut bytes, ip.start() + ipv4::CHECKSUM, sum.value());
    }
    Finished { bytes, finished, fixed }
}

/// Gives a segment of a train that had a wrong checksum one that is wrong by as much: cutting it must not make it right.
fn spoil(segment: &mut [u8], bad: &Finding) {
    let Some(right) = read_u16(segment, bad.at) else { return };
    let mut sum = Sum::ZERO;
    sum.add_u16(right);
    sum.add_u16(bad.field);
    sum.add_u16(!bad.expected);
    write_u16(segment, bad.at, sum.fold());
}
