//! Helpers that pass captures in memory through the library.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod packets;
pub(crate) mod shapes;

use segue::packet::Tunnels;
use segue::wire::{Kind, geneve, gue, protocol, vxlan};
use segue_capture::PacketVerdict;
use segue_capture::decap::{DecapConfig, DecapReport};
use segue_capture::file::{Format, Item, Order, Reader, Writer, link, options};
use segue_capture::merge::{MergeConfig, MergeReport, MergeRules};
use segue_capture::split::{SegmentSize, SplitConfig, SplitReport};
use segue_capture::survey::{Survey, SurveyConfig};
use segue_capture::undo::UndoReport;
use segue_capture::verify::{VerifyConfig, VerifyReport};
use segue_capture::{CaptureError, decap, merge, split, survey, undo, verify};
use segue_testkit::Rng;

use shapes::{Shape, capture, framed};

/// UDP ports of FOU in the tests, in addition to the usual ports of the other tunnels.
const FOU: [(u16, u8); 4] =
    [(5555, protocol::IPV4), (5556, protocol::IPV6), (5557, protocol::GRE), (5558, protocol::ETHERNET)];

/// Returns the usual port of every tunnel, and those of FOU.
pub(crate) fn ports() -> Tunnels {
    FOU.iter()
        .fold(Tunnels::NONE, |ports, (port, protocol)| ports.with_fou(*port, *protocol))
        .with(gue::PORT, Kind::Gue)
        .with(vxlan::PORT, Kind::Vxlan)
        .with(8472, Kind::Vxlan)
        .with(geneve::PORT, Kind::Geneve)
}

/// Returns the configuration of a split by `size` that keeps wrong checksums.
pub(crate) fn by(size: SegmentSize) -> SplitConfig {
    SplitConfig { tunnels: ports(), size, fix_all: false }
}

/// Returns the configuration of a split by learned sizes; with `fix_all` wrong checksums are corrected.
pub(crate) fn learned(fix_all: bool) -> SplitConfig {
    SplitConfig { fix_all, ..by(SegmentSize::Learned) }
}

/// Returns the configuration of a merge with `rules`.
pub(crate) fn merging(rules: MergeRules) -> MergeConfig {
    MergeConfig { rules, tunnels: ports(), explain: false }
}

/// Builds a pcap file of link type `number` with these IP packets, none of them truncated.
pub(crate) fn file_of(packets: &[Vec<u8>], number: u16) -> Vec<u8> {
    let mut rng = Rng::new(1);
    let shape = Shape { seed: 0, traffic: "", link: number, form: "ns_le" };
    let frames: Vec<Vec<u8>> = packets.iter().map(|packet| framed(number, packet, &mut rng)).collect();
    loop {
        let file = capture(&shape, &frames, &mut rng);
        let mut reader = Reader::new(&file[..]).unwrap();
        let mut is_whole = true;
        while let Some(item) = reader.next().unwrap() {
            is_whole &= matches!(item, Item::Packet(record) if !record.is_cut());
        }
        if is_whole {
            return file;
        }
    }
}

/// Builds a pcap file of Ethernet with these IP packets, and the same in pcapng; each has a frame check sequence.
pub(crate) fn with_check_sequences(packets: &[Vec<u8>]) -> [Vec<u8>; 2] {
    let packets: Vec<Vec<u8>> = packets.iter().map(|packet| [&packet[..], &[0xcc; 4]].concat()).collect();
    let mut file = file_of(&packets, link::ETHERNET);
    // Two words of 16 bits, and the bit that says so.
    file[20..24].copy_from_slice(&(u32::from(link::ETHERNET) | 0x2400_0000).to_le_bytes());
    let (other, _) = decap(&file, Format::Pcapng, &DecapConfig::default()).unwrap();
    [file, other]
}

/// Returns the packets of a file without their link headers.
pub(crate) fn packets_of(file: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = Reader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        if let Item::Packet(record) = item {
            let data = record.data();
            let prefix = match record.link {
                link::ETHERNET if data[12] == 0x81 => 18,
                link::ETHERNET => 14,
                link::COOKED => 16,
                link::COOKED2 => 20,
                _ => 0,
            };
            packets.push(data[prefix..].to_vec());
        }
    }
    packets
}

/// The fields of a packet in a file: time in nanoseconds, bytes, comments.
pub(crate) type Commented = (Option<u64>, Vec<u8>, Vec<String>);

/// Returns the packets of a file with their comments.
pub(crate) fn commented(file: &[u8]) -> Vec<Commented> {
    let mut reader = Reader::new(file).unwrap();
    let (mut all, mut order) = (Vec::new(), Order::NATIVE);
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Packet(record) => {
                let comments = options::list(record.options(), order)
                    .filter(|(code, _)| *code == options::COMMENT)
                    .map(|(_, text)| String::from_utf8(text.to_vec()).unwrap())
                    .collect();
                all.push((record.nanos, record.data().to_vec(), comments));
            }
            Item::Block(block) => order = block.order,
        }
    }
    all
}

/// Returns the most memory that this process has had, in bytes.
pub(crate) fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status of this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("kilobytes") * 1024
}

/// Builds a pcapng block of type `kind` around `body`, whose length is a multiple of four.
pub(crate) fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let put = |value: u32| if order == Order::Big { value.to_be_bytes() } else { value.to_le_bytes() };
    let len = put(12 + body.len() as u32);
    [&put(kind)[..], &len, body, &len].concat()
}

/// Returns options with `len` bytes of comments that consist of `text`, without the end option.
pub(crate) fn comments(len: usize, text: u8) -> Vec<u8> {
    let mut list = Vec::with_capacity(len + len / 1000);
    let mut left = len;
    while left > 0 {
        let now = left.min(65_000);
        options::push(&mut list, Order::NATIVE, options::COMMENT, &vec![text; now]);
        left -= now;
    }
    list
}

/// Returns the format of a file.
pub(crate) fn form_of(file: &[u8]) -> Format {
    Reader::new(file).unwrap().format()
}

pub(crate) fn merge(file: &[u8], form: Format, config: &MergeConfig) -> Result<(Vec<u8>, MergeReport), CaptureError> {
    let (mut reader, mut writer) = (Reader::new(file).unwrap(), Writer::new(Vec::new(), form));
    let report = merge::merge(&mut reader, &mut writer, config)?;
    Ok((writer.finish().unwrap(), report))
}

pub(crate) fn undo(file: &[u8], form: Format) -> Result<(Vec<u8>, UndoReport), CaptureError> {
    let (mut reader, mut writer) = (Reader::new(file).unwrap(), Writer::new(Vec::new(), form));
    let report = undo::undo(&mut reader, &mut writer)?;
    Ok((writer.finish().unwrap(), report))
}

pub(crate) fn split(file: &[u8], form: Format, config: &SplitConfig) -> Result<(Vec<u8>, SplitReport), CaptureError> {
    let (mut reader, mut writer) = (Reader::new(file).unwrap(), Writer::new(Vec::new(), form));
    let report = split::split(&mut reader, &mut writer, config)?;
    Ok((writer.finish().unwrap(), report))
}

pub(crate) fn decap(file: &[u8], form: Format, config: &DecapConfig) -> Result<(Vec<u8>, DecapReport), CaptureError> {
    let (mut reader, mut writer) = (Reader::new(file).unwrap(), Writer::new(Vec::new(), form));
    let report = decap::decap(&mut reader, &mut writer, config)?;
    Ok((writer.finish().unwrap(), report))
}

/// Returns the verdict on each packet of a capture, and the totals.
pub(crate) fn verify(file: &[u8], mtu: Option<usize>) -> (Vec<PacketVerdict>, VerifyReport) {
    let (mut reader, mut verdicts) = (Reader::new(file).unwrap(), Vec::new());
    let config = VerifyConfig { tunnels: ports(), mtu };
    let report = verify::verify(&mut reader, &config, |packet| verdicts.push(packet.verdict)).unwrap();
    (verdicts, report)
}

pub(crate) fn survey(file: &[u8], rules: MergeRules) -> Survey {
    let config = SurveyConfig { tunnels: ports(), rules };
    survey::survey(&mut Reader::new(file).unwrap(), &config).unwrap()
}

/// Splits packets of a link type and returns the resulting packets without their link headers.
pub(crate) fn split_packets(packets: &[Vec<u8>], number: u16, config: &SplitConfig) -> (Vec<Vec<u8>>, SplitReport) {
    let (file, report) = split(&file_of(packets, number), Format::Pcap, config).unwrap();
    (packets_of(&file), report)
}

/// Decapsulates packets of a link type and returns the resulting packets without their link headers.
pub(crate) fn decap_packets(packets: &[Vec<u8>], number: u16, only_tunnelled: bool) -> (Vec<Vec<u8>>, DecapReport) {
    let config = DecapConfig { tunnels: ports(), only_tunnelled };
    let (file, report) = decap(&file_of(packets, number), Format::Pcap, &config).unwrap();
    (packets_of(&file), report)
}

/// Merges packets of a link type and returns the resulting packets without their link headers.
pub(crate) fn merge_packets(packets: &[Vec<u8>], number: u16, rules: MergeRules) -> (Vec<Vec<u8>>, MergeReport) {
    let (file, report) = merge(&file_of(packets, number), Format::Pcap, &merging(rules)).unwrap();
    (packets_of(&file), report)
}
