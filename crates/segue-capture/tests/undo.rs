//! Tests that undo of a merge restores the file, byte for byte: generated captures of many shapes, and those of a
//! kernel.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use common::shapes::{file, shapes};
use common::{block, by, decap, form_of, learned, merge, merging, ports, split, survey, undo, verify};
use segue::gro::Profile;
use segue_capture::CaptureError;
use segue_capture::decap::DecapConfig;
use segue_capture::file::undo_notes::{self, Member, NoteKind};
use segue_capture::file::{
    Block, BlockKind, DifferentHeader, Format, Item, Order, Outgoing, PcapHeader, ReadError, Reader, Writer,
    interface_block, link, options, section_block,
};
use segue_capture::merge::{MergeConfig, MergeRules};
use segue_capture::split::SegmentSize;
use segue_testkit::Rng;
use segue_testkit::build::{self, Ip, V4};
use segue_testkit::flow::Sender;

const CAPTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures");

/// Merges and undoes; returns the packets before the merge and after the undo, and the merged file.
fn round_trip(bytes: &[u8], what: &str, config: &MergeConfig) -> (u64, u64, Vec<u8>) {
    let (merged, report) = merge(bytes, Format::Pcapng, config).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (back, _) = undo(&merged, form_of(bytes)).unwrap_or_else(|error| panic!("{what}: {error}"));
    if back != bytes {
        let at = back.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(back.len().min(bytes.len()));
        panic!("{what}: {} bytes became {}, the first difference at {at}", bytes.len(), back.len());
    }
    (report.packets_in, report.packets_out, merged)
}

fn with(profile: Profile) -> MergeRules {
    MergeRules { profile, ..MergeRules::default() }
}

#[test]
fn undoing_a_merge_gives_back_generated_captures_of_91_shapes() {
    let mut merged = 0;
    for shape in shapes(91) {
        let input = file(&shape);
        for profile in [Profile::Strict, Profile::linux()] {
            let rules = match shape.seed % 5 {
                1 => MergeRules { max_packets: 3, ..with(profile) },
                2 => MergeRules { max_bytes: 9000, ..with(profile) },
                3 => MergeRules { hold_us: 100_000, ..with(profile) },
                _ => with(profile),
            };
            let (before, after, _) = round_trip(&input, &format!("{shape:?} {rules:?}"), &merging(rules));
            assert!(after <= before, "{shape:?}");
            if profile == Profile::Strict {
                merged += u64::from(after * 2 < before);
            }
        }
    }
    // The rest is traffic that cannot be merged, and must not be.
    assert!(merged >= 40, "only {merged} of 91 captures shrank to less than half");
}

#[test]
fn undoing_a_merge_gives_back_the_captures_of_a_kernel() {
    let config = merging(MergeRules::default());
    let config = MergeConfig { tunnels: config.tunnels.with_fou(5555, 47), ..config };
    let (mut files, mut saved) = (0, 0);
    for entry in fs::read_dir(CAPTURES).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "pcap" || e == "pcapng") {
            let (before, after, _) = round_trip(&fs::read(&path).unwrap(), &path.display().to_string(), &config);
            files += 1;
            saved += before - after;
        }
    }
    assert!(files >= 60 && saved > 500, "{files} files, {saved} packets fewer");
}

#[test]
fn a_merge_of_a_merge_is_undone_one_step_at_a_time() {
    for shape in shapes(28).into_iter().filter(|shape| shape.form.starts_with("ng") || shape.traffic == "bulk") {
        let zero = file(&shape);
        let few = merging(MergeRules { max_packets: 4, ..MergeRules::default() });
        let (one, _) = merge(&zero, Format::Pcapng, &few).unwrap();
        let (two, _) = merge(&one, Format::Pcapng, &merging(MergeRules::default())).unwrap();
        let (one_again, _) = undo(&two, Format::Pcapng).unwrap();
        assert!(one_again == one, "{shape:?}: the first merge is another");
        let (zero_again, _) = undo(&one_again, form_of(&zero)).unwrap();
        assert!(zero_again == zero, "{shape:?}: the input is another");
    }
}

/// A file in the temporary directory that is deleted on drop.
struct Temporary(std::path::PathBuf);

impl Temporary {
    fn new(name: &str, bytes: &[u8]) -> Temporary {
        let path = std::env::temp_dir().join(format!("segue-capture-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Temporary(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn wireshark_and_libpcap_read_merged_files_without_a_warning() {
    let mut missing = BTreeSet::new();
    for shape in shapes(21) {
        let (merged, report) = merge(&file(&shape), Format::Pcapng, &merging(MergeRules::default())).unwrap();
        let merged = Temporary::new("silent.pcapng", &merged);
        for (program, args) in
            [("capinfos", vec!["-TMr", "-c"]), ("tshark", vec!["-n", "-r"]), ("tcpdump", vec!["-n", "-r"])]
        {
            // libpcap takes one snap length and resolution for all interfaces only, merged or not.
            if program == "tcpdump" && shape.form == "ng_many" {
                continue;
            }
            let Ok(output) = Command::new(program).args(&args).arg(&merged.0).output() else {
                if missing.insert(program) {
                    segue_lab::skip_this_test(&format!("{program} is not installed"));
                }
                continue;
            };
            let stderr = String::from_utf8_lossy(&output.stderr);
            let said: Vec<&str> = stderr
                .lines()
                .filter(|l| {
                    !l.contains("Running as") && !l.starts_with("reading from") && !l.contains("interface names")
                })
                .collect();
            assert!(output.status.success() && said.is_empty(), "{shape:?} {program}: {said:?}");
            if program == "capinfos" {
                let text = String::from_utf8_lossy(&output.stdout);
                let count = text.trim_end().rsplit('\t').next().unwrap().to_owned();
                assert_eq!(count, report.packets_out.to_string(), "{shape:?}");
            }
        }
    }
}

#[test]
fn a_train_has_the_place_of_its_first_packet_and_times_never_decrease() {
    let input = file(&shapes(1).remove(0));
    let (merged, _) = merge(&input, Format::Pcapng, &merging(MergeRules::default())).unwrap();
    let times = |file: &[u8]| all(file).0.into_iter().map(|packet| packet.1.unwrap()).collect::<Vec<u64>>();
    let (before, after) = (times(&input), times(&merged));
    assert!(after.len() < before.len() / 10);
    // As a subsequence: each time of the result is one of the input, in the same order.
    let mut rest = before.iter();
    assert!(after.iter().all(|time| rest.any(|candidate| candidate == time)));
}

#[test]
fn merged_packets_are_right_as_packets() {
    let has_tshark = Command::new("tshark").arg("--version").output().is_ok();
    if !has_tshark {
        segue_lab::skip_this_test("tshark is not installed");
    }
    for shape in
        shapes(24).iter().filter(|shape| ["bulk", "gue", "gre", "ipip", "udp", "tiny"].contains(&shape.traffic))
    {
        let (merged, _) = merge(&file(shape), Format::Pcapng, &merging(MergeRules::default())).unwrap();
        let (_, report) = verify(&merged, None);
        assert_eq!((report.bad, report.unfinished), (0, 0), "{shape:?} {report:?}");
        if has_tshark && shape.link != 113 && shape.link != 276 {
            tshark_finds_nothing_wrong(&Temporary::new("right.pcapng", &merged).0, &format!("{shape:?}"));
        }
    }
}

fn tshark_finds_nothing_wrong(file: &Path, what: &str) {
    let args = ["-n", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"];
    let filter = "tcp.checksum.status==0 || udp.checksum.status==0 || ip.checksum.status==0";
    let output = Command::new("tshark").args(args).args(["-Y", filter, "-r"]).arg(file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{what}");
}

#[test]
fn damaged_captures_are_worked_through_and_undone_up_to_the_damage() {
    let mut rng = Rng::new(77);
    let (mut whole, mut damaged) = (0, 0);
    for shape in shapes(42) {
        let mut bytes = file(&shape);
        let is_ng = shape.form.starts_with("ng");
        // Anything but the first header, where damage is another refusal.
        for _ in 0..1 + rng.below(40) {
            let at = if is_ng { 120 } else { 24 };
            let at = at + rng.below(bytes.len() - at);
            bytes[at] = rng.next_u64() as u8;
        }
        if rng.chance(300) {
            bytes.truncate(bytes.len() - rng.below(2000));
        }
        let form = form_of(&bytes);
        let small = segue_capture::split::SplitConfig { fix_all: true, ..by(SegmentSize::Mss(100)) };
        for config in [learned(false), small] {
            split(&bytes, form, &config).unwrap();
        }
        decap(&bytes, form, &DecapConfig { tunnels: ports(), only_tunnelled: false }).unwrap();
        let fault = verify(&bytes, None).1.fault;
        assert_eq!(survey(&bytes, MergeRules::default()).fault.is_some(), fault.is_some());
        // What a reader gets of the damaged file is what it gets of the file that was merged and undone.
        for profile in [Profile::Strict, Profile::linux()] {
            let (merged, report) = merge(&bytes, Format::Pcapng, &merging(with(profile))).unwrap();
            assert_eq!(report.fault.map(|fault| fault.to_string()), fault.as_ref().map(ToString::to_string));
            let (undone, _) = undo(&merged, form).unwrap();
            let (before, fault) = all(&bytes);
            let (after, _) = all(&undone);
            assert!(before == after, "{shape:?}: {} packets became {}", before.len(), after.len());
            whole += u64::from(!fault);
            damaged += u64::from(fault);
        }
    }
    assert!(whole > 5 && damaged > 5, "{whole} whole, {damaged} damaged");
}

/// Interface, time, length and bytes of a packet.
type Fields = (u32, Option<u64>, u32, Vec<u8>);

/// Returns the packets of a file, and whether the file is damaged.
fn all(file: &[u8]) -> (Vec<Fields>, bool) {
    let mut reader = Reader::new(file).unwrap();
    let mut packets = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(Item::Packet(record))) => {
                packets.push((record.interface, record.nanos, record.len, record.data().to_vec()));
            }
            Ok(Some(_)) => {}
            Ok(None) => return (packets, false),
            Err(_) => return (packets, true),
        }
    }
}

/// Builds a pcapng file of one interface with raw IP packets.
fn section(snaplen: u32) -> Writer<Vec<u8>> {
    let head = PcapHeader { order: Order::NATIVE, nanos: false, snaplen, link: u32::from(link::RAW) };
    let mut writer = Writer::new(Vec::new(), Format::Pcapng);
    writer.begin_pcap(&head, &head.bytes(), &[]).unwrap();
    writer
}

fn stream() -> Vec<Vec<u8>> {
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 3, 1, vec![]);
    // Of lengths that need padding.
    (0..12).map(|n| sender.send(if n < 11 { 1001 } else { 602 }, 0).bytes()).collect()
}

#[test]
fn padding_and_options_come_back_as_they_stood_whatever_they_were() {
    let order = Order::NATIVE;
    let mut comment = Vec::new();
    options::push(&mut comment, order, options::COMMENT, b"five!");
    let mut ended = comment.clone();
    options::end(&mut ended, order);
    let mut dirty = comment.clone();
    *dirty.last_mut().unwrap() = 7;
    let behind = [&ended[..], &[1, 2, 3, 4]].concat();
    for simple in [false, true] {
        let mut writer = section(262_144);
        for (n, packet) in stream().iter().enumerate() {
            let pad = vec![if n % 3 == 0 { 0xee } else { 0 }; packet.len().wrapping_neg() % 4];
            let ticks = (!simple).then_some(1_000_000 + n as u64);
            let list: &[u8] = if simple { &[] } else { [&[][..], &comment, &ended, &dirty, &behind][n % 5] };
            let packet = Outgoing { interface: 0, ticks, len: packet.len() as u32, data: &[packet], options: &[] };
            writer.packet_with_tail(&packet, &[&pad, list].concat()).unwrap();
        }
        let input = writer.finish().unwrap();
        let usual = merging(MergeRules::default());
        let explained = MergeConfig { explain: true, ..usual.clone() };
        let short = merging(MergeRules { max_packets: 2, ..MergeRules::default() });
        for config in [usual, explained, short] {
            let (before, after, _) = round_trip(&input, &format!("{simple} {config:?}"), &config);
            assert!(before == 12 && after <= 6, "{after} packets");
        }
    }
}

#[test]
fn simple_packet_blocks_that_were_cut_are_read_as_they_were_and_come_back() {
    let mut writer = section(95);
    for (n, packet) in stream().iter().enumerate() {
        // Those that were cut by what the interface keeps, and whole ones.
        let (short, ticks) = if n % 2 == 0 { (&packet[..95], None) } else { (&packet[..], Some(n as u64)) };
        let packet = Outgoing { interface: 0, ticks, len: packet.len() as u32, data: &[short], options: &[] };
        writer.packet(&packet).unwrap();
    }
    let input = writer.finish().unwrap();
    let usual = merging(MergeRules::default());
    let explained = MergeConfig { explain: true, ..usual.clone() };
    for config in [usual, explained, merging(with(Profile::linux()))] {
        let (_, _, merged) = round_trip(&input, &format!("{config:?}"), &config);
        let (mut at, mut blocks) = (0, 0);
        while at < merged.len() {
            let word = |at: usize| u32::from_ne_bytes(merged[at..at + 4].try_into().unwrap());
            // The interface now keeps all, and so a block without a captured length must hold all.
            assert!(word(at) != 3 || word(at + 8) + 16 <= word(at + 4), "a simple packet block at {at} is cut");
            (at, blocks) = (at + word(at + 4) as usize, blocks + 1);
        }
        assert_eq!(blocks, 14);
        let (packets, is_damaged) = all(&merged);
        assert!(!is_damaged && packets.iter().filter(|(_, _, _, data)| data.len() == 95).count() == 6);
    }
}

#[test]
fn two_merged_files_in_one_become_one_pcap_file_only_where_their_headers_agree() {
    let make = |snaplen: u32, nanos: bool| {
        let head = PcapHeader { order: Order::Big, nanos, snaplen, link: u32::from(link::RAW) };
        let mut writer = Writer::new(Vec::new(), Format::Pcap);
        writer.begin_pcap(&head, &head.bytes(), &[]).unwrap();
        for (n, packet) in stream().iter().enumerate() {
            let ticks = Some(n as u64);
            let packet = Outgoing { interface: 0, ticks, len: packet.len() as u32, data: &[packet], options: &[] };
            writer.packet(&packet).unwrap();
        }
        let file = writer.finish().unwrap();
        let (merged, _) = merge(&file, Format::Pcapng, &merging(MergeRules::default())).unwrap();
        (file, merged)
    };
    let (one, merged) = make(65_535, true);
    let (_, other) = make(262_144, true);
    let (same, _) = undo(&[&merged[..], &merged].concat(), Format::Pcap).unwrap();
    assert!(same == [&one[..], &one[24..]].concat());
    // The last file has nanoseconds, and is not of a merge.
    let (_, coarse) = make(65_535, false);
    let (fine, _) = undo(&merged, Format::Pcapng).unwrap();
    for both in [[&merged[..], &other].concat(), [&coarse[..], &fine].concat()] {
        let Err(CaptureError::Write(error)) = undo(&both, Format::Pcap) else { panic!("two headers in one pcap file") };
        assert!(error.get_ref().is_some_and(|inner| inner.is::<DifferentHeader>()), "{error:?}");
        assert_eq!(all(&undo(&both, Format::Pcapng).unwrap().0).0.len(), 24);
    }
}

/// Builds a file of twelve packets with the note `original` in its section header or its interface description.
fn noted(order: Order, kind: BlockKind, original: &[u8]) -> Vec<u8> {
    let head = PcapHeader { order, nanos: true, snaplen: 0, link: u32::from(link::RAW) };
    let whole = [section_block(order, &[]), interface_block(order, &head.interface())];
    let mut file = Vec::new();
    for (block_kind, number, fields, whole) in
        [(BlockKind::Section, 0x0a0d_0d0a, 16, &whole[0]), (BlockKind::Interface, 1, 8, &whole[1])]
    {
        if block_kind == kind {
            let mut body = whole[8..8 + fields].to_vec();
            undo_notes::push(&mut body, order, NoteKind::Block, kind == BlockKind::Section, original);
            file.extend(block(order, number, &body));
        } else {
            file.extend(whole);
        }
    }
    let mut writer = Writer::new(file, Format::Pcapng);
    // The bytes of the section header are there already: only its byte order is passed on.
    writer.block(&Block { kind: BlockKind::Section, raw: &[], order, interface: None }).unwrap();
    for (n, packet) in stream().iter().enumerate() {
        let ticks = Some(n as u64);
        let packet = Outgoing { interface: 0, ticks, len: packet.len() as u32, data: &[packet], options: &[] };
        writer.packet(&packet).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn a_noted_block_that_is_not_one_whole_block_of_its_kind_is_not_written() {
    for order in [Order::Little, Order::Big] {
        let other = if order == Order::Big { Order::Little } else { Order::Big };
        let interface = |order| {
            let head = PcapHeader { order, nanos: true, snaplen: 96, link: u32::from(link::RAW) };
            interface_block(order, &head.interface())
        };
        let mut list = Vec::new();
        options::push(&mut list, order, options::COMMENT, b"as it was");
        let kinds = [
            (BlockKind::Section, section_block(order, &list), section_block(other, &list), interface(order)),
            (BlockKind::Interface, interface(order), interface(other), section_block(order, &list)),
        ];
        for (kind, right, in_other_order, of_other_kind) in kinds {
            let mut wrong = vec![in_other_order, of_other_kind, right.repeat(2), [&right[..], &[0; 4]].concat()];
            wrong.extend((0..right.len()).map(|len| right[..len].to_vec()));
            for at in (0..8).chain(right.len() - 4..right.len()) {
                let mut damaged = right.clone();
                damaged[at] ^= 4;
                wrong.push(damaged);
            }
            if kind == BlockKind::Section {
                // Its byte order and its major version.
                for at in 8..14 {
                    let mut damaged = right.clone();
                    damaged[at] ^= 4;
                    wrong.push(damaged);
                }
            }
            for (original, unreadable) in [(&right, 0)].into_iter().chain(wrong.iter().map(|original| (original, 1))) {
                let what = format!("{order:?} {kind:?} {original:x?}");
                let (undone, report) = undo(&noted(order, kind, original), Format::Pcapng).expect(&what);
                assert_eq!((report.unreadable, report.packets_out), (unreadable, 12), "{what}");
                let (packets, is_damaged) = all(&undone);
                assert!(!is_damaged && packets.iter().map(|packet| &packet.3).eq(&stream()), "{what}");
                assert_eq!(undone.windows(right.len()).any(|part| part == right), unreadable == 0, "{what}");
            }
        }
    }
}

#[test]
fn what_was_not_merged_or_lost_packets_in_the_merge_is_not_undone() {
    let shape = shapes(5).remove(4);
    assert_eq!(shape.form, "ng");
    let plain = file(&shape);
    let (pcap, _) = split(&plain, Format::Pcap, &learned(false)).unwrap();
    for (what, input) in [("pcapng", &plain), ("pcap", &pcap)] {
        assert!(matches!(undo(input, Format::Pcapng), Err(CaptureError::NothingToUndo)), "{what}");
    }
    // A file that ends in its first packet may have had notes after it.
    let first = plain.len() / 100;
    let (_, report) = undo(&plain[..first], Format::Pcapng).unwrap();
    assert!(matches!(report.fault, Some(ReadError::Cut { .. })), "{report:?}");
}

/// Returns the packets of a file with their offsets, lengths and notes.
fn places(file: &[u8]) -> Vec<(usize, usize, Option<NoteKind>)> {
    let mut reader = Reader::new(file).unwrap();
    let mut found = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        if let Item::Packet(record) = item {
            let note = undo_notes::find(record.options(), Order::NATIVE).map(|(kind, _)| kind);
            found.push((record.offset as usize, record.raw.len(), note));
        }
    }
    found
}

#[test]
fn packets_that_are_gone_from_a_merged_file_are_counted() {
    let ip = Ip::V4(V4::new(1, 1, 2));
    let mut writer = section(262_144);
    let mut data = Sender::tcp(ip.clone(), 3, 1, vec![]);
    for n in 0..7 {
        // A train of four, between whose packets are three others.
        let sent = if n % 2 == 0 { data.send(1000, 0) } else { Sender::udp(ip.clone(), n).send(100, 0) };
        let packet = sent.bytes();
        let (ticks, len) = (Some(u64::from(n)), packet.len() as u32);
        writer.packet(&Outgoing { interface: 0, ticks, len, data: &[&packet], options: &[] }).unwrap();
    }
    let (merged, _) = merge(&writer.finish().unwrap(), Format::Pcapng, &merging(MergeRules::default())).unwrap();
    let (_, report) = undo(&merged, Format::Pcapng).unwrap();
    assert_eq!((report.packets_in, report.packets_out, report.missing), (4, 7, 0));
    for (offset, len, _) in &places(&merged)[1..] {
        let rest = [&merged[..*offset], &merged[offset + len..]].concat();
        let (_, report) = undo(&rest, Format::Pcapng).unwrap();
        assert_eq!((report.packets_out, report.missing, report.unreadable), (6, 1, 0), "{offset}");
    }
}

#[test]
fn a_packet_that_a_split_has_changed_has_no_note_of_a_merge() {
    let mut sender = Sender::udp(Ip::V4(V4::new(1, 1, 2)), 1);
    let mut writer = section(262_144);
    for n in 0..12 {
        let packet = build::prime(&sender.send(1200, 0).bytes()).unwrap();
        let (ticks, len) = (Some(n), packet.len() as u32);
        writer.packet(&Outgoing { interface: 0, ticks, len, data: &[&packet], options: &[] }).unwrap();
    }
    let config = MergeConfig { explain: true, ..merging(MergeRules::default()) };
    let (merged, _) = merge(&writer.finish().unwrap(), Format::Pcapng, &config).unwrap();
    assert!(places(&merged).iter().all(|(_, _, note)| *note == Some(NoteKind::Members)));
    let (out, report) = split(&merged, Format::Pcapng, &learned(false)).unwrap();
    assert_eq!((report.finished, report.unchanged), (report.packets_in, 0), "{report:?}");
    assert!(places(&out).iter().all(|(_, _, note)| note.is_none()));
    let (undone, report) = undo(&out, Format::Pcapng).unwrap();
    assert_eq!((report.trains, report.packets_out), (0, report.packets_in));
    assert_eq!(all(&undone), all(&out));
}

#[test]
fn a_packet_at_the_last_of_all_positions_is_written() {
    let packet = &stream()[0];
    let (position, len) = (u64::MAX, packet.len() as u32);
    let (head, payload, ticks) = (packet[..20].to_vec(), 20..packet.len(), Some(7));
    let member = Member { position, ticks, len, head, payload, trailer: Vec::new(), options: None, tail: None };
    let mut list = Vec::new();
    let note = undo_notes::encode(&packet[..20], 7, &[member]);
    undo_notes::push(&mut list, Order::NATIVE, NoteKind::Members, false, &note);
    let mut writer = section(262_144);
    writer.packet(&Outgoing { interface: 0, ticks, len, data: &[packet], options: &list }).unwrap();
    // The section that follows has positions of its own.
    let file = writer.finish().unwrap().repeat(2);
    let (out, report) = undo(&file, Format::Pcapng).unwrap();
    assert_eq!((report.packets_out, report.missing, report.unreadable), (2, u64::MAX, 0));
    assert!(all(&out).0.iter().all(|(_, _, _, data)| data == packet));
}
