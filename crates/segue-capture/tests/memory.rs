//! Test of the memory that crafted captures take, which is bounded whatever their interfaces, options and blocks. It is
//! the only one of its program, because it reads the peak of the process's memory.

mod common;

use std::io::{self, Read};

use common::{block, comments, peak, ports};
use segue_capture::file::{Format, Interface, Order, Outgoing, Reader, Resolution, Writer, link, options};
use segue_capture::file::{interface_block, section_block};
use segue_capture::merge::{MergeConfig, merge};
use segue_capture::survey::{SurveyConfig, survey};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow::Sender;

/// Limit of the process's peak memory, in bytes. Each of the files is more than twice as long.
const MOST_MEMORY: u64 = 100_000_000;

/// Returns the block of a file with this number, `None` behind the last one.
type Make = fn(usize) -> Option<Vec<u8>>;

/// A pcapng file whose blocks are made as they are read, so that it takes no memory itself.
struct Blocks {
    make: Make,
    /// Number of blocks made.
    made: usize,
    /// The rest of the last one.
    rest: io::Cursor<Vec<u8>>,
}

impl Blocks {
    /// Begins a file with a section and one interface; `make` returns each further block.
    fn new(make: Make) -> Blocks {
        let interface = Interface {
            link: link::RAW,
            fcs_len: 0,
            snaplen: 0,
            resolution: Resolution::MICRO,
            offset_seconds: 0,
            name: None,
        };
        let first = [section_block(Order::NATIVE, &[]), interface_block(Order::NATIVE, &interface)].concat();
        Blocks { make, made: 0, rest: io::Cursor::new(first) }
    }
}

impl Read for Blocks {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = self.rest.read(to)?;
        if len > 0 || to.is_empty() {
            return Ok(len);
        }
        let Some(next) = (self.make)(self.made) else { return Ok(0) };
        self.made += 1;
        self.rest = io::Cursor::new(next);
        self.rest.read(to)
    }
}

/// Builds an enhanced packet block of the first interface at time 0.
fn packet(data: &[u8], list: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Format::Pcapng);
    let packet = Outgoing { interface: 0, ticks: Some(0), len: data.len() as u32, data: &[data], options: list };
    writer.packet(&packet).unwrap();
    writer.finish().unwrap()
}

/// Returns one segment of the TCP connection with this number.
fn segment(flow: u16) -> Vec<u8> {
    Sender::tcp(Ip::V4(V4::new(1, 1, 2)), flow, 1, vec![]).send(100, 0).bytes()
}

/// Returns the descriptions of 4000 interfaces, each with a name of 65,532 bytes that are no UTF-8: as characters
/// they take three times as much.
fn interfaces(number: usize) -> Option<Vec<u8>> {
    let mut body = [&link::RAW.to_ne_bytes()[..], &[0; 6]].concat();
    options::push(&mut body, Order::NATIVE, options::IF_NAME, &[0xff; 65_532]);
    (number < 4000).then(|| block(Order::NATIVE, 1, &body))
}

/// Returns a segment each of 250 connections at one time, with a megabyte of comments.
fn commented_segments(number: usize) -> Option<Vec<u8>> {
    (number < 250).then(|| packet(&segment(number as u16), &comments(1_000_000, b'x')))
}

/// Returns a segment and 250 blocks of a megabyte behind it, of a type that no program knows.
fn blocks_behind_a_segment(number: usize) -> Option<Vec<u8>> {
    match number {
        0 => Some(packet(&segment(0), &[])),
        1..=250 => Some(block(Order::NATIVE, 0x8000_1234, &[7; 1_000_000])),
        _ => None,
    }
}

#[test]
fn crafted_captures_take_memory_that_does_not_grow_with_them() {
    let files: [(&str, Make, u64); 3] = [
        ("blocks behind a segment", blocks_behind_a_segment, 1),
        ("segments with comments", commented_segments, 250),
        ("long names of interfaces", interfaces, 0),
    ];
    for (name, make, packets) in files {
        for format in [Format::Pcap, Format::Pcapng] {
            let config = MergeConfig { tunnels: ports(), ..MergeConfig::default() };
            let mut writer = Writer::new(io::sink(), format);
            let merged = merge(&mut Reader::new(Blocks::new(make)).unwrap(), &mut writer, &config).unwrap();
            assert!(merged.packets_out == packets && merged.fault.is_none(), "{name}: {merged:?}");
            assert!(peak() < MOST_MEMORY, "{name}: a merge into {} took {} bytes", format.name(), peak());
        }
        let found = survey(&mut Reader::new(Blocks::new(make)).unwrap(), &SurveyConfig::default()).unwrap();
        assert!(found.packets == packets && found.fault.is_none(), "{name}: {found:?}");
        assert!(found.would_leave.iter().all(|(_, left)| *left == packets), "{name}: {found:?}");
        assert!(peak() < MOST_MEMORY, "{name}: a survey took {} bytes", peak());
    }
}
