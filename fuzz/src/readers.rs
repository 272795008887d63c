//! Inputs of any size for each reader of outside data, and the memory and time of reading them.

use std::io::{Read, Write};

use segue::packet::Tunnels;
use segue_capture::file::compression::{Compression, Compressor, Decompressor};
use segue_capture::file::{Format, Reader, Writer};
use segue_capture::merge::{self, MergeConfig, MergeRules};
use segue_capture::split::{self, SegmentSize, SplitConfig};
use segue_capture::survey::{self, SurveyConfig};
use segue_capture::undo;
use segue_capture::verify::{self, VerifyConfig};
use segue_control::peers::Table;
use segue_testkit::build::{Ethernet, Ip, L4, Packet, Tcp, V4};

use crate::resources::{Output, counted};

/// A reader of outside data.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Name of the fuzzed reader.
    pub name: &'static str,
    /// Function that makes an input of about the given number of entries: packets, instances, peers.
    make: fn(usize) -> Vec<u8>,
    /// Reads an input; returns its length without compression.
    read: fn(&[u8]) -> usize,
}

/// The cost of reading an input.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Length in bytes of the input, without compression.
    pub len: usize,
    /// Peak of allocated memory in bytes.
    pub memory: usize,
    /// Number of memory allocations.
    pub allocations: usize,
}

impl Reading {
    /// Makes an input of `count` entries.
    pub fn input(&self, count: usize) -> Vec<u8> {
        (self.make)(count)
    }

    /// Runs the reader on an input. Callgrind counts inside of this function alone (`tools/trust.d/05-linear`).
    #[inline(never)]
    pub fn read(&self, input: &[u8]) -> usize {
        (self.read)(input)
    }

    /// Reads an input of `count` entries, and returns the cost.
    pub fn cost(&self, count: usize) -> Cost {
        let input = self.input(count);
        let mut len = 0;
        let (memory, allocations) = counted(|| len = self.read(&input));
        Cost { len, memory, allocations }
    }
}

/// All readers to fuzz.
pub const READERS: &[Reading] = &[
    Reading { name: "pcap", make: pcap, read: records },
    Reading { name: "pcapng", make: pcapng, read: records },
    Reading { name: "gzip", make: |count| packed(count, Compression::Gzip), read: unpacked },
    Reading { name: "zstd", make: |count| packed(count, Compression::Zstd), read: unpacked },
    Reading { name: "survey", make: pcap, read: surveyed },
    Reading { name: "verify", make: pcap, read: verified },
    Reading { name: "merge", make: pcap, read: merged_again },
    Reading { name: "split", make: merged, read: cut },
    Reading { name: "undo", make: merged, read: undone },
    Reading { name: "many flows", make: flows, read: merged_again },
    Reading { name: "peers", make: peers, read: table },
    Reading { name: "wrong peers", make: wrong_peers, read: table },
];

/// Returns the frame with the given number of a stream, every sixth of which closes its train.
fn frame(number: usize, flow: u16) -> Vec<u8> {
    let (len, flags) = if number % 6 == 5 { (100, 0x18) } else { (300, 0x10) };
    let options = Tcp::timestamps(7, 9);
    let seq = (number as u32).wrapping_mul(300);
    let (src_port, dst_port, window) = (1024 + flow, 80, 500);
    let tcp = Tcp { src_port, dst_port, seq, ack: 1, flags, window, urgent: 0, options };
    let ip = Ip::V4(V4 { id: number as u16, ..V4::new(1, 1, 2) });
    let bytes = Packet { ip, l4: L4::Tcp(tcp), data: vec![number as u8; len] }.bytes();
    Ethernet { tags: Vec::new(), dst: [2; 6], src: [2, 0, 0, 0, 0, 1] }.wrap(&bytes)
}

fn pcap_of(frames: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut file =
        [&0xa1b2_c3d4_u32.to_le_bytes()[..], &[2, 0, 4, 0], &[0; 8], &[0xff, 0xff, 0, 0, 1, 0, 0, 0]].concat();
    for (number, frame) in frames.enumerate() {
        let len = frame.len() as u32;
        for word in [1_700_000_000 + number as u32 / 10_000, number as u32 % 10_000 * 100, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

fn pcap(count: usize) -> Vec<u8> {
    pcap_of((0..count).map(|number| frame(number, 0)))
}

/// Returns a capture in which each packet is of a flow of its own.
fn flows(count: usize) -> Vec<u8> {
    pcap_of((0..count).map(|number| frame(number, number as u16)))
}

fn pcapng(count: usize) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let len = (body.len() + 12) as u32;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
    };
    let mut file = block(0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
    file.extend(block(1, &[1, 0, 0, 0, 0, 0, 0, 0]));
    for number in 0..count {
        let mut frame = frame(number, 0);
        let len = (frame.len() as u32).to_le_bytes();
        frame.resize(frame.len().next_multiple_of(4), 0);
        let time = [0_u32.to_le_bytes(), 0x0005_0000_u32.to_le_bytes(), (number as u32 * 100).to_le_bytes(), len, len];
        file.extend(block(6, &[&time.concat()[..], &frame].concat()));
    }
    file
}

fn packed(count: usize, compression: Compression) -> Vec<u8> {
    let mut compressor = Compressor::new(Vec::new(), compression);
    compressor.write_all(&pcap(count)).expect("memory takes everything");
    compressor.finish().expect("memory takes everything")
}

/// Returns a merge of a stream, with its notes.
fn merged(count: usize) -> Vec<u8> {
    let file = pcap(count);
    let mut reader = Reader::new(&file[..]).expect("a capture");
    let mut writer = Writer::new(Vec::new(), Format::Pcapng);
    merge::merge(&mut reader, &mut writer, &merging()).expect("a capture");
    writer.finish().expect("memory takes everything")
}

fn peers_of(count: usize, last: &str) -> Vec<u8> {
    let peer = |number: usize| {
        let [_, _, a, b] = (number as u32).to_be_bytes();
        format!(r#"{{"prefix":"198.19.{a}.{b}/32","remote":"198.18.{a}.{b}","encap":"gue"}},"#)
    };
    format!(r#"{{"peers":[{}{last}]}}"#, (0..count).map(peer).collect::<String>()).into_bytes()
}

fn peers(count: usize) -> Vec<u8> {
    peers_of(count, r#"{"prefix":"2001:db8::/64","remote":"198.18.255.255"}"#)
}

fn wrong_peers(count: usize) -> Vec<u8> {
    peers_of(count, &format!(r#"{{"prefix":"{}"}}"#, "x".repeat(60 * count)))
}

fn records(data: &[u8]) -> usize {
    let mut reader = Reader::new(data).expect("a capture");
    while reader.next().expect("a whole capture").is_some() {}
    data.len()
}

fn unpacked(data: &[u8]) -> usize {
    let mut len = 0;
    let mut file = Decompressor::new(data, 0).expect("a compressed file");
    let mut buffer = [0; 4096];
    while let Ok(more @ 1..) = file.read(&mut buffer) {
        len += more;
    }
    let file = Decompressor::new(data, 0).expect("a compressed file");
    let mut reader = Reader::new(file).expect("a capture");
    while reader.next().expect("a whole capture").is_some() {}
    len
}

fn surveyed(data: &[u8]) -> usize {
    let mut reader = Reader::new(data).expect("a capture");
    survey::survey(&mut reader, &SurveyConfig::default()).expect("a capture");
    data.len()
}

fn verified(data: &[u8]) -> usize {
    let mut reader = Reader::new(data).expect("a capture");
    let config = VerifyConfig { tunnels: Tunnels::NONE, mtu: Some(1500) };
    verify::verify(&mut reader, &config, |_| ()).expect("a capture");
    data.len()
}

fn merging() -> MergeConfig {
    MergeConfig { rules: MergeRules::default(), tunnels: Tunnels::NONE, explain: false }
}

fn merged_again(data: &[u8]) -> usize {
    let mut reader = Reader::new(data).expect("a capture");
    let mut writer = Writer::new(Output::default(), Format::Pcapng);
    merge::merge(&mut reader, &mut writer, &merging()).expect("a capture");
    writer.finish().expect("a sink");
    data.len()
}

fn cut(data: &[u8]) -> usize {
    let mut reader = Reader::new(data).expect("a capture");
    let mut writer = Writer::new(Output::default(), Format::Pcap);
    let config = SplitConfig { tunnels: Tunnels::NONE, size: SegmentSize::Learned, fix_all: false };
    split::split(&mut reader, &mut writer, &config).expect("a capture");
    writer.finish().expect("a sink");
    data.len()
}

fn undone(data: &[u8]) -> usize {
    let mut reader = Reader::new(data).expect("a capture");
    let mut writer = Writer::new(Output::default(), Format::Pcap);
    undo::undo(&mut reader, &mut writer).expect("a merge");
    writer.finish().expect("a sink");
    data.len()
}

fn table(data: &[u8]) -> usize {
    let _ = Table::read(data, "peers.json");
    data.len()
}
