use std::io::Read;

use segue::packet::Tunnels;
use segue::wire::{Kind, geneve, gue, vxlan};
use segue_capture::decap::{self, DecapConfig};
use segue_capture::file::compression::Decompressor;
use segue_capture::file::{Format, Item, Reader, Writer};
use segue_capture::merge::{self, MergeConfig, MergeRules};
use segue_capture::split::{self, SegmentSize, SplitConfig};
use segue_capture::survey::{self, SurveyConfig};
use segue_capture::undo;
use segue_capture::verify::{self, VerifyConfig};

use crate::resources::{Output, bounded};

/// Number of bytes that a reader or a transformation may hold for the shortest file: buffers of files, tables of flows,
/// pages.
const FREE: usize = 12 << 20;

fn tunnels() -> Tunnels {
    Tunnels::NONE.with(gue::PORT, Kind::Gue).with(vxlan::PORT, Kind::Vxlan).with(geneve::PORT, Kind::Geneve)
}

/// Reads an arbitrary capture file: the reader ends, each record lies within the bytes of its block, blocks follow each
/// other, and a copy by the writer is read as the same records.
pub fn capture(data: &[u8]) {
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

/// Runs the transformations on an arbitrary capture file: they end, and a merge that reports that it can be undone is
/// undone byte for byte.
pub fn transform(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else { return };
    let open = || Reader::new(data).ok();
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let config = SurveyConfig { tunnels: tunnels(), ..SurveyConfig::default() };
        let _ = survey::survey(&mut reader, &config);
    });
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let mtu = (how & 1 != 0).then_some(1500);
        let _ = verify::verify(&mut reader, &VerifyConfig { tunnels: tunnels(), mtu }, |_| ());
    });
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let sink = &mut Output::default();
        let mut writer = Writer::new(sink, reader.format());
        let _ = decap::decap(&mut reader, &mut writer, &DecapConfig { tunnels: tunnels(), ..DecapConfig::default() });
        let _ = writer.finish().map(|sink| sink.check(data.len(), FREE));
    });
    // Headers of segments are asked for; a split by 536 bytes makes at most so many.
    let size = if how & 2 != 0 { SegmentSize::Learned } else { SegmentSize::Mss(536) };
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let sink = &mut Output::default();
        let mut writer = Writer::new(sink, reader.format());
        let config = SplitConfig { tunnels: tunnels(), size, fix_all: how & 4 != 0 };
        let _ = split::split(&mut reader, &mut writer, &config);
        let _ = writer.finish().map(|sink| sink.check(data.len(), FREE));
    });
    bounded(data.len(), FREE, || {
        let Some(mut reader) = open() else { return };
        let format = reader.format();
        let mut writer = Writer::new(Vec::new(), Format::Pcapng);
        let config = MergeConfig { rules: MergeRules::default(), tunnels: tunnels(), explain: how & 8 != 0 };
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

/// Decompresses an arbitrary file, and reads its content as a capture: both end, and hold no more than a window.
pub fn compressed(data: &[u8]) {
    bounded(data.len(), FREE + WINDOW, || {
        let Ok(mut file) = Decompressor::new(data, 1000) else { return };
        let mut buffer = [0; 4096];
        let mut given = 0;
        while let Ok(len @ 1..) = file.read(&mut buffer) {
            given += len as u64;
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
}
