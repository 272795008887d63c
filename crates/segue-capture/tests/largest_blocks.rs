//! Tests of merge on records and blocks so large that the output would need blocks of more than 16 MiB, which readers
//! refuse, and with them all that follows.

mod common;

use std::io;

use common::{block, commented, comments, form_of, merge, merging, undo};
use segue_capture::CaptureError;
use segue_capture::file::{
    Format, MAX_RECORD, Order, Outgoing, PcapHeader, Reader, Writer, interface_block, link, section_block,
};
use segue_capture::merge::{MergeConfig, MergeReport, MergeRules};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow::Sender;

/// Header of the files: raw IP, the snap length that a merge raises.
const HEAD: PcapHeader = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 65_535, link: link::RAW as u32 };
const MIB: usize = 1 << 20;

/// Builds a pcapng file of one interface: these comments in its section header and its interface description, and
/// segments of one connection, each with as many bytes of comments as `packets` says.
fn capture(section: usize, interface: usize, packets: &[usize]) -> Vec<u8> {
    let mut writer = Writer::new(section_block(Order::NATIVE, &comments(section, b's')), Format::Pcapng);
    let described = interface_block(Order::NATIVE, &HEAD.interface());
    // The block has options, the last of which ends them.
    let body = [&described[8..described.len() - 8], &comments(interface, b'i')[..]].concat();
    writer.get_mut().extend(block(Order::NATIVE, 1, &body));
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 3, 1, vec![]);
    for (number, len) in packets.iter().enumerate() {
        let data = sender.send(1000, 0).bytes();
        let list = comments(*len, b'a' + number as u8);
        let ticks = Some(number as u64);
        let packet = Outgoing { interface: 0, ticks, len: data.len() as u32, data: &[&data], options: &list };
        writer.packet(&packet).unwrap();
    }
    writer.finish().unwrap()
}

/// Builds a pcap file of one packet of `len` bytes, and one behind it.
fn pcap(len: usize) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Format::Pcap);
    writer.begin_pcap(&HEAD, &HEAD.bytes(), &[]).unwrap();
    for len in [len, 60] {
        let data = vec![7; len];
        let packet = Outgoing { interface: 0, ticks: Some(1), len: len as u32, data: &[&data], options: &[] };
        writer.packet(&packet).unwrap();
    }
    writer.finish().unwrap()
}

/// Returns the number of packets of a file, which must be readable to its end.
fn read(file: &[u8]) -> u64 {
    let mut reader = Reader::new(file).unwrap();
    while reader.next().unwrap_or_else(|error| panic!("{error}")).is_some() {}
    reader.packets()
}

/// Merges into pcapng. What is written can be read to its end and undone; `None` if the merge refuses.
#[track_caller]
fn merged(input: &[u8], config: &MergeConfig) -> Option<(Vec<u8>, MergeReport)> {
    match merge(input, Format::Pcapng, config) {
        Ok((merged, report)) => {
            assert_eq!(read(&merged), report.packets_out);
            assert!(report.can_undo && undo(&merged, form_of(input)).unwrap().0 == input, "{report:?}");
            Some((merged, report))
        }
        Err(CaptureError::Write(error)) => {
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("a block of more than 16 MiB"), "{error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn usual() -> MergeConfig {
    merging(MergeRules::default())
}

#[test]
fn segments_whose_options_do_not_fit_one_block_are_not_joined() {
    for (packets, joined) in [([4 * MIB; 3], true), ([6 * MIB; 3], false)] {
        let (_, report) = merged(&capture(0, 0, &packets), &usual()).expect("a merge");
        assert_eq!((report.packets_out, report.unwritten), if joined { (1, 0) } else { (3, 1) }, "{report:?}");
    }
}

#[test]
fn a_comment_of_a_merge_is_left_out_where_it_does_not_fit() {
    let config = MergeConfig { explain: true, ..usual() };
    for packets in [[9 * MIB, 0], [0, 9 * MIB]] {
        let input = capture(0, 0, &packets);
        let config = MergeConfig { rules: MergeRules { max_packets: 1, ..config.rules }, ..config.clone() };
        let (merged, _) = merged(&input, &config).expect("a merge");
        let explained = commented(&merged).into_iter().filter(|(_, _, texts)| texts.last().unwrap().contains("segue"));
        assert_eq!(explained.count(), 1, "the small one");
    }
}

#[test]
fn a_merge_refuses_what_has_no_room_for_its_note() {
    // The note of a section header or interface description holds that block once more.
    for (section, interface, is_refused) in [(7, 7, false), (9, 0, true), (0, 9, true)] {
        let input = capture(section * MIB, interface * MIB, &[0, 0]);
        assert_eq!(merged(&input, &usual()).is_none(), is_refused, "{section} and {interface} MiB");
        // pcap has no notes.
        assert_eq!(read(&merge(&input, Format::Pcap, &usual()).unwrap().0), 1);
    }
    // A second merge notes the options of the first, its note among them.
    for (packets, is_refused) in [([4 * MIB; 2], false), ([6 * MIB; 2], true)] {
        let (once, report) = merged(&capture(0, 0, &packets), &usual()).expect("a merge");
        assert_eq!(report.packets_out, 1);
        assert_eq!(merged(&once, &usual()).is_none(), is_refused, "{packets:?}");
    }
}

#[test]
fn the_largest_packet_of_pcap_is_refused_in_pcapng_and_one_that_fits_is_kept() {
    // An enhanced packet block has 32 bytes beside its packet.
    for (len, is_refused) in [(MAX_RECORD - 32, false), (MAX_RECORD - 31, true), (MAX_RECORD, true)] {
        let input = pcap(len);
        assert_eq!(read(&input), 2);
        assert_eq!(merged(&input, &usual()).is_none(), is_refused, "{len} bytes");
        let explained = MergeConfig { explain: true, ..usual() };
        assert_eq!(merged(&input, &explained).is_none(), is_refused, "{len} bytes");
        assert!(merge(&input, Format::Pcap, &usual()).unwrap().0[24..] == input[24..], "{len} bytes");
    }
    let mut writer = Writer::new(Vec::new(), Format::Pcap);
    writer.begin_pcap(&HEAD, &HEAD.bytes(), &[]).unwrap();
    let data = vec![7; MAX_RECORD + 1];
    let packet = Outgoing { interface: 0, ticks: Some(1), len: 1, data: &[&data], options: &[] };
    assert_eq!(writer.packet(&packet).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}
