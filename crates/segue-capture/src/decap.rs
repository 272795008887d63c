//! `segue pcap decap`: one layer of tunnel off.

use std::collections::BTreeMap;
use std::io;

use segue::packet::{Header, Kind, Packet, Remote};
use segue::wire::{ethernet, ethertype, ipv4, ipv6, read_u16};
use segue_capture::file::undo_notes::filtered;
use segue_capture::file::{Block, BlockKind, Form, Item, Order, Outgoing, Record, link, options, undo_notes};
use segue_control::error::Error;
use serde_json::json;

use super::args::Decap;
use super::files::{End, Job, Sink};
use super::frame::{Finding, Frame, Layer, USUAL_MTU, Verdict};
use super::split;
use crate::out::Out;

/// Runs it.
pub(super) fn run(args: &Decap, out: &Out) -> Result<(), Error> {
    let (job, mut reader) = Job::open_to(&args.input, &args.output, "decap", out)?;
    let mut sink = job.create(&args.output, reader.format(), out)?;
    let mut work = Work {
        tunnels: args.ports.tunnels(),
        only: args.only_tunnelled,
        order: reader.order(),
        findings: Vec::new(),
        decapsulated: 0,
        finished: 0,
        dropped: 0,
        passed: 0,
        kept: BTreeMap::new(),
    };
    let mut end = End::default();
    if let Some((head, raw)) = reader.pcap_head() {
        let mut head = *head;
        head.link = head.link & !0xffff | u32::from(widened(head.link as u16));
        sink.begin_pcap(&head, raw, &split::user_application()).map_err(|error| job.write_failed(&error))?;
    }
    loop {
        match reader.next() {
            Ok(None) => break,
            Ok(Some(Item::Packet(record))) => {
                work.record(&record, &mut sink).map_err(|error| job.write_failed(&error))?;
            }
            Ok(Some(Item::Block(block))) => {
                work.order = block.order;
                work.block(&block, &mut sink).map_err(|error| job.write_failed(&error))?;
            }
            Err(error) => job.fault(&error, &mut end)?,
        }
    }
    let summary = json!({
        "schema": "segue.pcap.decap/1",
        "packets_in": reader.packets(),
        "packets_out": sink.packets(),
        "decapsulated": work.decapsulated,
        "checksums_finished": work.finished,
        "passed": work.passed,
        "dropped": work.dropped,
        "left_in_their_tunnel": work.kept,
        "cut": end.fault.as_ref().map(|(what, _)| what),
    });
    let units = sink.packets();
    job.finish(sink)?;
    job.erase();
    if out.json {
        return super::show_json(out, summary, &job, &end);
    }
    out.note(&format!(
        "{} packets -> {units} packets ({} taken out of their tunnel, {} remote checksums finished, {} passed, {} left out)",
        reader.packets(),
        work.decapsulated,
        work.finished,
        work.passed,
        work.dropped,
    ));
    for (reason, n) in &work.kept {
        out.note(&format!("  {} left in their tunnel: {}", super::packets(*n), reason.replace('_', " ")));
    }
    job.verdict(&end, out)
}

/// Link types that hold one version of IP only become the one that holds both: a tunnel may carry the other.
fn widened(number: u16) -> u16 {
    if matches!(number, link::IPV4 | link::IPV6) { link::RAW } else { number }
}

struct Work {
    tunnels: segue::packet::Tunnels,
    only: bool,
    order: Order,
    findings: Vec<Finding>,
    decapsulated: u64,
    finished: u64,
    dropped: u64,
    passed: u64,
    /// Tunnel packets that were not opened, and why.
    kept: BTreeMap<&'static str, u64>,
}

/// What is inside of a tunnel.
struct Inside {
    /// Its bytes, from the network header, or from an Ethernet header where one stands there.
    bytes: Vec<u8>,
    is_ethernet: bool,
    finished: bool,
}

impl Work {
    fn block(&mut self, block: &Block<'_>, sink: &mut Sink) -> io::Result<()> {
        let Some(interface) = block.interface.filter(|interface| widened(interface.link) != interface.link) else {
            return sink.block(block);
        };
        // Only the link type changes, which stands in front of everything else.
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

    fn record(&mut self, record: &Record<'_>, sink: &mut Sink) -> io::Result<()> {
        let data = record.data();
        let frame = Frame::open(record.link, data, &self.tunnels, USUAL_MTU);
        let tunnel = frame.as_ref().and_then(|frame| Some((frame, carried(frame)?)));
        let result = match tunnel {
            None => None,
            Some(_) if record.is_cut() => Some(Err("cut")),
            Some((frame, first)) => Some(self.open(frame, first)),
        };
        let inside = match result {
            Some(Ok(inside)) => inside,
            Some(Err(why)) => {
                *self.kept.entry(why).or_default() += 1;
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
                // Without a place for the inner link header, what it carries is what is left.
                let kind = read_u16(bytes, ethernet::TYPE).unwrap_or(0);
                if !matches!(kind, ethertype::IPV4 | ethertype::IPV6) {
                    *self.kept.entry("inner_ethernet").or_default() += 1;
                    return self.leave(record, sink);
                }
                bytes = &bytes[ethernet::LEN..];
            }
        }
        if !(inside.is_ethernet && is_ethernet(record.link)) {
            let version = bytes.first().map_or(0, |byte| byte >> 4);
            let kind = if version == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
            if matches!(record.link, link::NULL | link::LOOP) {
                // The families of systems differ; the outer packet's says only its own.
                let is_same = data.get(prefix_len).is_some_and(|outer| outer >> 4 == version);
                if !is_same {
                    *self.kept.entry("loopback_family").or_default() += 1;
                    return self.leave(record, sink);
                }
            }
            link::set_protocol(record.link, &mut prefix, kind);
        }
        self.decapsulated += 1;
        self.finished += u64::from(inside.finished);
        let keep = |code| code != options::EPB_HASH && code != undo_notes::OPTION;
        sink.packet(&Outgoing {
            interface: record.interface,
            ticks: if record.form == Form::Simple { None } else { record.ticks },
            len: (prefix.len() + bytes.len()) as u32,
            data: &[&prefix, bytes],
            options: &filtered(record.options(), self.order, keep),
        })
    }

    fn leave(&mut self, record: &Record<'_>, sink: &mut Sink) -> io::Result<()> {
        if self.only {
            self.dropped += 1;
            return Ok(());
        }
        self.passed += 1;
        sink.record(record)
    }

    /// What is inside, from the header at index `first` on.
    fn open(&mut self, frame: &Frame<'_>, first: usize) -> Result<Inside, &'static str> {
        frame.judge(&mut self.findings);
        // Nothing is taken out of a packet that is damaged outside; a field that was still to be filled in is not damage.
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
        let has_option =
            (0..first).any(|index| segue::packet::remote::option(&packet.head, &frame.layout, index).is_some());
        if has_option {
            // Without a right outer checksum nothing protects the packet.
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
        let mut inside = Inside { bytes: bytes.to_vec(), is_ethernet, finished: false };
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
            inside.bytes = split::finish(&inner, &findings, wanted).bytes;
            inside.finished = true;
        }
        Ok(inside)
    }
}

fn is_ethernet(number: u16) -> bool {
    number == link::ETHERNET
}

/// The index of the first header inside of the outermost tunnel, where there is one.
fn carried(frame: &Frame<'_>) -> Option<usize> {
    let headers = frame.layout.headers();
    let outer = headers.iter().position(Header::is_ip)?;
    let first = headers.iter().skip(outer + 1).position(|header| header.is_ip() || header.kind == Kind::Ethernet)?;
    Some(outer + 1 + first)
}

/// Where the packet inside ends, by its own length.
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
