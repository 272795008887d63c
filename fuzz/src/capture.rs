use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use segue::gro::Profile;
use segue::packet::Tunnels;
use segue::wire::{Kind, geneve, gue, vxlan};
use segue_capture::decap::{self, DecapConfig};
use segue_capture::file::compression::{Compression, Compressor, Decompressor};
use segue_capture::file::{Format, Item, Reader, Writer};
use segue_capture::merge::{self, MergeConfig};
use segue_capture::split::{self, SegmentSize, SplitConfig};
use segue_capture::survey::{self, SurveyConfig};
use segue_capture::undo;
use segue_capture::verify::{self, CheckedPacket, VerifyConfig};
use segue_capture::{PacketVerdict, Verdict};

use crate::resources::{Output, bounded};

/// Number of bytes that a reader or a transformation may hold for the shortest file: buffers of files, tables of flows,
/// pages.
const FREE: usize = 16 << 20;
/// Number of flows of a capture that are listed.
const SHOWN: usize = 5;

fn tunnels() -> Tunnels {
    let known = Tunnels::NONE.with(gue::PORT, Kind::Gue).with(vxlan::PORT, Kind::Vxlan);
    known.with(geneve::PORT, Kind::Geneve).with_fou(5555, 4)
}

/// A source whose reads are short, and that fails where another one ends.
struct Failing<'a> {
    rest: &'a [u8],
    turn: usize,
    /// Whether signals interrupt reads.
    is_interrupted: bool,
}

impl Read for Failing<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.turn += 1;
        if self.is_interrupted && self.turn.is_multiple_of(3) {
            return Err(ErrorKind::Interrupted.into());
        }
        if self.rest.is_empty() {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let len = out.len().min(self.turn);
        self.rest.read(&mut out[..len])
    }
}

/// Returns the packets of a capture file up to its end or its first fault, and whether that was its end.
fn packets(input: impl Read) -> (Vec<Vec<u8>>, bool) {
    let mut found = Vec::new();
    let Ok(mut reader) = Reader::new(input) else { return (found, false) };
    loop {
        match reader.next() {
            Ok(Some(Item::Packet(record))) => found.push(record.data().to_vec()),
            Ok(Some(Item::Block(_))) => {}
            Ok(None) => return (found, true),
            Err(_) => return (found, false),
        }
    }
}

/// Copies a capture into a file of the other format, up to what that cannot hold: the packets before it are there.
fn converted(data: &[u8]) {
    let Ok(mut reader) = Reader::new(data) else { return };
    let format = if reader.format() == Format::Pcap { Format::Pcapng } else { Format::Pcap };
    let mut copy = Writer::new(Vec::new(), format);
    if let Some((head, raw)) = reader.pcap_header() {
        copy.begin_pcap(head, raw, &[]).expect("memory takes everything");
    }
    let mut expected = Vec::new();
    while let Ok(Some(item)) = reader.next() {
        let written = match &item {
            Item::Block(block) => copy.block(block),
            Item::Packet(record) => copy.record(record),
        };
        match (written, item) {
            (Ok(()), Item::Packet(record)) => expected.push(record.data().to_vec()),
            (Ok(()), Item::Block(_)) => {}
            (Err(error), _) => {
                assert!(format == Format::Pcap && error.to_string().contains("link type"), "{error}");
                break;
            }
        }
    }
    let copy = copy.finish().expect("memory takes everything");
    assert!(packets(&copy[..]).0 == expected, "the packets of another format are others");
}

/// Reads an arbitrary capture file: the reader ends, each record lies within the bytes of its block, blocks follow each
/// other, and a copy by the writer is read as the same records.
pub fn capture(data: &[u8]) {
    bounded(data.len(), FREE, || converted(data));
    // A source that fails takes no packet away, and is no end.
    bounded(data.len(), FREE, || {
        let failing = Failing { rest: data, turn: 0, is_interrupted: true };
        assert!(packets(failing) == (packets(data).0, false), "packets from a source that fails are others");
    });
    bounded(data.len(), FREE, || {
        let Ok(mut reader) = Reader::new(data) else { return };
        let mut copy = Writer::new(Vec::new(), reader.format());
        if let Some((head, raw)) = reader.pcap_header() {
            copy.begin_pcap(&head.clone(), &raw.clone(), &[]).expect("memory takes everything");
        }
        let (mut end, mut packets) = (0, Vec::new());
        let has_fault = loop {
            match reader.next() {
                Err(_) => break true,
                Ok(None) => break false,
                Ok(Some(Item::Block(block))) => copy.block(&block).expect("memory takes everything"),
                Ok(Some(Item::Packet(record))) => {
                    assert!(record.offset >= end && record.data().len() <= record.raw.len());
                    assert!(record.options().len() <= record.raw.len());
                    end = record.offset + record.raw.len() as u64;
                    packets.push((record.interface, record.ticks, record.len, record.data().len()));
                    copy.record(&record).expect("memory takes everything");
                }
            }
        };
        assert!(reader.offset() <= data.len() as u64 && reader.packets() == packets.len() as u64);
        assert!(matches!(reader.next(), Ok(None)), "nothing comes after the end or a fault");
        let copy = copy.finish().expect("memory takes everything");
        if !has_fault {
            assert_eq!(copy, data, "a copy is the file");
        }
        let mut again = Reader::new(&copy[..]).ok();
        for packet in packets {
            let record = loop {
                match again.as_mut().and_then(|reader| reader.next().ok().flatten()) {
                    Some(Item::Packet(record)) => break record,
                    Some(Item::Block(_)) => {}
                    None => panic!("a record is missing from the copy"),
                }
            };
            assert_eq!(packet, (record.interface, record.ticks, record.len, record.data().len()));
        }
    });
}

/// Returns whether a pcap file has a timestamp whose fraction is a second or more, which an undo normalises.
fn has_impossible_time(data: &[u8]) -> bool {
    let (is_little, second) = match data {
        [0xd4, 0xc3, 0xb2, 0xa1, ..] => (true, 1_000_000),
        [0x4d, 0x3c, 0xb2, 0xa1, ..] => (true, 1_000_000_000),
        [0xa1, 0xb2, 0xc3, 0xd4, ..] => (false, 1_000_000),
        [0xa1, 0xb2, 0x3c, 0x4d, ..] => (false, 1_000_000_000),
        _ => return false,
    };
    let Ok(mut reader) = Reader::new(data) else { return false };
    while let Ok(Some(item)) = reader.next() {
        let Item::Packet(record) = item else { continue };
        let fraction = record.raw.get(4..8).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).unwrap_or_default();
        if second <= if is_little { u32::from_le_bytes(fraction) } else { u32::from_be_bytes(fraction) } {
            return true;
        }
    }
    false
}

/// Checks that what is known about a packet agrees.
fn agrees(packet: &CheckedPacket<'_>) {
    let (headers, verdict) = (packet.headers(), packet.verdict);
    assert!(headers.ends_with(packet.inside_outer_ip()));
    assert!(packet.addresses().is_none() || headers.iter().any(|header| header.is_ip()));
    assert!(packet.ip_len().is_some() || headers.is_empty() && packet.findings.is_empty());
    assert_eq!(verdict == PacketVerdict::Malformed, packet.is_malformed() && verdict != PacketVerdict::Cut);
    for finding in packet.findings {
        assert!(finding.at + 2 <= packet.record.data().len(), "{finding:?}");
        assert!(finding.verdict != Verdict::Bad || finding.field != finding.expected, "{finding:?}");
    }
}

/// Runs the transformations on an arbitrary capture file: they end, and a merge that reports that it can be undone is
/// undone byte for byte.
///
/// The bits of the first byte: a limit of length for the verification (0), segments as their connection agreed (1),
/// wrong checksums corrected (2), comments in the merge (3), segments and fragments of an MTU (4), nothing but packets
/// of tunnels (5), the rules of LRO (6).
pub fn transform(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else { return };
    let open = || Reader::new(data).ok();
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let config = SurveyConfig { tunnels: tunnels(), ..SurveyConfig::default() };
        let Ok(found) = survey::survey(&mut reader, &config) else { return };
        let flows = found.largest_flows(SHOWN);
        assert!(flows.len() <= SHOWN && flows.is_sorted_by(|one, next| one.bytes >= next.bytes));
        assert!(flows.iter().all(|flow| !flow.to_string().is_empty()));
    });
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let mut config = VerifyConfig { tunnels: tunnels(), ..VerifyConfig::default() };
        if how & 1 != 0 {
            config.mtu = Some(1500);
        }
        let mut counts = BTreeMap::new();
        let verified = verify::verify(&mut reader, &config, |packet| {
            agrees(packet);
            let is_fault = matches!(packet.verdict.name(), "bad" | "malformed" | "cut" | "unfinished");
            assert!(!is_fault || !packet.faults().is_empty(), "{}", packet.verdict.name());
            *counts.entry(packet.verdict.name()).or_insert(0_u64) += 1;
        });
        let Ok(report) = verified else { return };
        let cut = report.cut - u64::from(report.fault.is_some());
        for (name, count) in [
            ("good", report.good),
            ("bad", report.bad),
            ("unfinished", report.unfinished),
            ("absent", report.absent),
            ("ip_only", report.ip_only),
            ("malformed", report.malformed),
            ("cut", cut),
            ("not_ip", report.not_ip),
        ] {
            assert_eq!(counts.get(name).copied().unwrap_or(0), count, "{name}");
        }
        assert_eq!(report.is_good(), !counts.contains_key("bad") && !counts.contains_key("malformed"));
        assert!(report.to_string().starts_with(&format!("{} good", report.good)));
    });
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let sink = &mut Output::default();
        let mut writer = Writer::new(sink, reader.format());
        let mut config = DecapConfig { tunnels: tunnels(), ..DecapConfig::default() };
        config.only_tunnelled = how & 32 != 0;
        let _ = decap::decap(&mut reader, &mut writer, &config);
        let _ = writer.finish().map(|sink| sink.check(data.len(), FREE));
    });
    // Headers of segments are asked for; a split by 536 bytes makes at most so many, and one by an MTU no more.
    let size = match (how & 16 != 0, how & 2 != 0) {
        (true, _) => SegmentSize::Mtu(1000),
        (false, true) => SegmentSize::Learned,
        (false, false) => SegmentSize::Mss(536),
    };
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let sink = &mut Output::default();
        let mut writer = Writer::new(sink, reader.format());
        let mut config = SplitConfig { tunnels: tunnels(), size, ..SplitConfig::default() };
        config.fix_all = how & 4 != 0;
        let _ = split::split(&mut reader, &mut writer, &config);
        let _ = writer.finish().map(|sink| sink.check(data.len(), FREE));
    });
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let format = reader.format();
        let mut writer = Writer::new(Vec::new(), Format::Pcapng);
        let mut config = MergeConfig { tunnels: tunnels(), explain: how & 8 != 0, ..MergeConfig::default() };
        if how & 64 != 0 {
            config.rules.profile = Profile::Lro;
        }
        let Ok(report) = merge::merge(&mut reader, &mut writer, &config) else { return };
        let Ok(merged) = writer.finish() else { return };
        if !report.can_undo {
            return;
        }
        // Of a file that is cut in its first header nothing is written.
        let Ok(mut reader) = Reader::new(&merged[..]) else { return };
        let mut writer = Writer::new(Vec::new(), format);
        if undo::undo(&mut reader, &mut writer).is_ok() {
            let came = writer.finish().expect("memory takes everything");
            let is_same = data.starts_with(&came) || has_impossible_time(data);
            assert!(is_same, "a merge is undone byte for byte");
        }
    });
}

/// Undoes an arbitrary file as if it were a merge: memory and output stay within a multiple of the file.
pub fn undo_notes(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else { return };
    let sink = &mut Output::default();
    bounded(data.len(), FREE, || {
        let Ok(mut reader) = Reader::new(data) else { return };
        let format = if how & 1 != 0 { Format::Pcap } else { Format::Pcapng };
        let mut writer = Writer::new(sink, format);
        let _ = undo::undo(&mut reader, &mut writer);
        if let Ok(sink) = writer.finish() {
            sink.check(data.len(), FREE);
        }
    });
}

/// Largest number of bytes read from a compressed file, so that an input takes little time.
const MOST: u64 = 4 << 20;
/// Number of bytes of memory for a window of zstd, which the file chooses up to 8 MiB, in addition to those of the
/// shortest file.
const WINDOW: usize = 20 << 20;

/// Number of bytes of the content that are compressed again.
const KEPT: usize = 64 << 10;

/// Decompresses an arbitrary file, and reads its content as a capture: both end, and hold no more than a window. The
/// beginning of the content, compressed again in each form, is read as what it was.
pub fn compressed(data: &[u8]) {
    let mut content = Vec::new();
    bounded(data.len(), FREE + WINDOW, || {
        let Ok(mut file) = Decompressor::new(data, 1000) else { return };
        let mut buffer = [0; 4096];
        let mut given = 0;
        while let Ok(len @ 1..) = file.read(&mut buffer) {
            given += len as u64;
            content.extend_from_slice(&buffer[..len.min(KEPT - content.len())]);
            if given >= MOST {
                break;
            }
        }
    });
    bounded(data.len(), FREE + WINDOW, || {
        let Ok(file) = Decompressor::new(data, 1000) else { return };
        let Ok(mut reader) = Reader::new(file.take(MOST)) else { return };
        while let Ok(Some(_)) = reader.next() {}
    });
    bounded(data.len(), FREE + WINDOW, || {
        let failing = Failing { rest: data, turn: 0, is_interrupted: false };
        let Ok(mut file) = Decompressor::new(failing, 1000) else { return };
        let (mut buffer, mut got) = ([0; 4096], Vec::new());
        while let Ok(len @ 1..) = file.read(&mut buffer) {
            got.extend_from_slice(&buffer[..len]);
            if got.len() >= KEPT {
                break;
            }
        }
        // Of damaged data the one or the other gives more.
        assert!(got.iter().zip(&content).all(|(got, expected)| got == expected), "a source that fails gives others");
    });
    for (compression, name) in
        [(Compression::None, "a.pcap"), (Compression::Gzip, "a.pcap.gz"), (Compression::Zstd, "a.pcap.ZST")]
    {
        assert_eq!(Compression::of_name(Path::new(name)), compression);
        compressed_again(&content, compression);
    }
}

fn compressed_again(content: &[u8], compression: Compression) {
    let mut file = Compressor::new(Vec::new(), compression);
    file.write_all(content).expect("memory takes everything");
    file.flush().expect("memory takes everything");
    let bytes = file.finish().expect("memory takes everything");
    let mut back = Decompressor::new(&bytes[..], 0).expect("memory has everything");
    // A content may look like a compressed file itself.
    if compression == Compression::None && back.compression() != compression {
        return;
    }
    assert_eq!((back.compression(), back.compression().name()), (compression, compression.name()), "{back:?}");
    let mut again = Vec::new();
    back.read_to_end(&mut again).expect("what was compressed can be decompressed");
    assert!(again == content, "{compression:?} gives another content");
}
