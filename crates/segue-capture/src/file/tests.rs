use std::fs;
use std::io::Cursor;
use std::path::PathBuf;
use std::process::Command;

use super::*;

/// The fields of a packet that tests compare: interface, nanoseconds, length on the wire, bytes.
type Fields = (u32, u64, u32, Vec<u8>);

fn read_all(file: &[u8]) -> (Vec<Fields>, Option<ReadError>) {
    let mut reader = Reader::new(Cursor::new(file)).unwrap();
    let mut seen = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(Item::Packet(record))) => {
                seen.push((record.interface, record.nanos.unwrap_or(0), record.len, record.data().to_vec()));
            }
            Ok(Some(Item::Block(..))) => {}
            Ok(None) => return (seen, None),
            Err(error) => {
                assert!(matches!(reader.next(), Ok(None)), "nothing follows an error");
                return (seen, Some(error));
            }
        }
    }
}

/// Copies a file through reader and writer.
fn copy(file: &[u8], format: Format) -> Vec<u8> {
    let mut reader = Reader::new(Cursor::new(file)).unwrap();
    let mut writer = Writer::new(Vec::new(), format);
    if let Some((head, raw)) = reader.pcap_header() {
        writer.begin_pcap(head, raw, &[]).unwrap();
    }
    loop {
        match reader.next().unwrap() {
            None => return writer.finish().unwrap(),
            Some(Item::Packet(record)) => writer.record(&record).unwrap(),
            Some(Item::Block(block)) => writer.block(&block).unwrap(),
        }
    }
}

fn frame(n: u8) -> Vec<u8> {
    let mut frame = vec![n; 60 + usize::from(n)];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn pcap(order: Order, nanos: bool) -> Vec<u8> {
    let head = PcapHeader { order, nanos, snaplen: 65_535, link: 1 };
    let mut writer = Writer::new(Vec::new(), Format::Pcap);
    writer.begin_pcap(&head, &head.bytes(), &[]).unwrap();
    let per_second: u64 = if nanos { 1_000_000_000 } else { 1_000_000 };
    for n in 0..5 {
        let ticks = Some(1_700_000_000 * per_second + 123_456 + u64::from(n));
        let data = frame(n);
        let len = data.len() as u32 + u32::from(n == 3) * 900;
        let (front, back) = data.split_at(17);
        writer.packet(&Outgoing { interface: 0, ticks, len, data: &[front, back], options: &[] }).unwrap();
    }
    writer.finish().unwrap()
}

/// Returns a file with two sections of different byte order, the first with two interfaces of different resolution, all
/// kinds of packet block, options, and other blocks.
fn pcapng() -> Vec<u8> {
    let mut file = Vec::new();
    for order in [Order::Big, Order::Little] {
        let mut list = Vec::new();
        options::push(&mut list, order, options::SHB_USERAPPL, b"a test");
        file.extend(section_block(order, &list));
        let plain = Interface {
            link: link::ETHERNET,
            fcs_len: 0,
            snaplen: 0,
            resolution: Resolution::MICRO,
            offset_seconds: 0,
            name: Some("eth0".into()),
        };
        let fine = Interface {
            resolution: Resolution::NANO,
            offset_seconds: 1_600_000_000,
            name: None,
            snaplen: 96,
            fcs_len: 4,
            ..plain.clone()
        };
        let binary = Interface { resolution: Resolution::from_option(0x80 | 20), ..plain.clone() };
        for interface in [plain, fine, binary] {
            file.extend(interface_block(order, &interface));
        }
        file.extend(super::write::wrap(order, 0x8000_1234, b"somebody's blockXX.."));
        let mut writer = Writer::new(Vec::new(), Format::Pcapng);
        writer.block(&Block { kind: BlockKind::Section, raw: &[], order, interface: None }).unwrap();
        let mut list = Vec::new();
        options::push(&mut list, order, options::COMMENT, b"a remark");
        options::push(&mut list, order, undo_notes::OPTION, b"of some other program");
        let ticks = [1_700_000_000_000_001, 100_000_000_000_000_007, 1_700_000_000 << 20 | 1 << 19];
        for (interface, ticks) in ticks.into_iter().enumerate() {
            let data = frame(interface as u8);
            writer
                .packet(&Outgoing {
                    interface: interface as u32,
                    ticks: Some(ticks),
                    len: data.len() as u32,
                    data: &[&data],
                    options: if interface == 1 { &list } else { &[] },
                })
                .unwrap();
        }
        let data = frame(9);
        writer
            .packet(&Outgoing { interface: 0, ticks: None, len: data.len() as u32, data: &[&data], options: &[] })
            .unwrap();
        file.extend(writer.finish().unwrap());
        // An obsolete packet block of interface 1.
        let data = frame(4);
        let mut body = Vec::new();
        body.extend(order.put16(1));
        body.extend(order.put16(0xffff));
        for word in [0, 77, data.len() as u32, data.len() as u32] {
            body.extend(order.put32(word));
        }
        body.extend(&data);
        file.extend(super::write::wrap(order, 2, &body));
    }
    file
}

/// A temporary file of this test, deleted when dropped.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str, bytes: &[u8]) -> Temp {
        let path = std::env::temp_dir().join(format!("segue-capture-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Temp(path)
    }
}

impl std::ops::Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the output of a program about a file; `None` if the program is not installed. Its stderr must be silent.
fn run_tool(program: &str, args: &[&str], file: &Temp) -> Option<String> {
    let Ok(output) = Command::new(program).args(args).arg(&file.0).output() else {
        segue_lab::skip_this_test(&format!("{program} is not installed"));
        return None;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = stderr
        .lines()
        .filter(|line| !line.contains("Running as user \"root\"") && !line.starts_with("reading from file"))
        .collect();
    assert!(output.status.success() && complaints.is_empty(), "{program}: {complaints:?}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn tshark(file: &Temp) -> Option<Vec<Fields>> {
    let fields = ["-e", "frame.interface_id", "-e", "frame.time_epoch", "-e", "frame.len", "-e", "frame.cap_len"];
    let args = [&["-n", "-T", "fields"][..], &fields, &["-r"]].concat();
    let text = run_tool("tshark", &args, file)?;
    let seen = text.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        // A packet without a time has an empty field.
        let (seconds, nanos) = fields[1].split_once('.').unwrap_or(("0", "0"));
        let nanos = seconds.parse::<u64>().unwrap() * 1_000_000_000 + format!("{nanos:0<9}").parse::<u64>().unwrap();
        let cap_len: usize = fields[3].parse().unwrap();
        (fields[0].parse().unwrap_or(0), nanos, fields[2].parse().unwrap(), vec![0; cap_len])
    });
    Some(seen.collect())
}

fn same_but_bytes(ours: &[Fields], theirs: &[Fields]) {
    let short = |seen: &[Fields]| -> Vec<_> { seen.iter().map(|s| (s.0, s.1, s.2, s.3.len())).collect() };
    assert_eq!(short(ours), short(theirs));
}

#[test]
fn every_form_of_pcap_reads_back_and_copies_byte_for_byte() {
    for order in [Order::Little, Order::Big] {
        for nanos in [false, true] {
            let file = pcap(order, nanos);
            let (seen, error) = read_all(&file);
            assert!(error.is_none());
            let first = 1_700_000_000_000_000_000 + if nanos { 123_456 } else { 123_456_000 };
            assert_eq!(seen.iter().map(|s| s.1 - first).collect::<Vec<_>>()[..2], [0, if nanos { 1 } else { 1000 }]);
            assert_eq!(seen.iter().map(|s| s.3.clone()).collect::<Vec<_>>(), (0..5).map(frame).collect::<Vec<_>>());
            assert_eq!(seen[3].2, 963);
            assert_eq!(copy(&file, Format::Pcap), file);
            let temp = Temp::new(&format!("{order:?}{nanos}.pcap"), &file);
            if let Some(theirs) = tshark(&temp) {
                same_but_bytes(&seen, &theirs);
            }
            if order == Order::Little && nanos {
                // tcpdump's library has a reader of its own.
                let lines = run_tool("tcpdump", &["-n", "-tt", "-r"], &temp);
                assert!(
                    lines.is_none_or(|lines| lines.lines().filter(|line| line.starts_with("1700000000")).count() == 5)
                );
            }
        }
    }
}

#[test]
fn pcapng_with_all_that_it_may_have_reads_back_and_copies_byte_for_byte() {
    let file = pcapng();
    let (seen, error) = read_all(&file);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen.len(), 10);
    assert_eq!(seen[0].1, 1_700_000_000_000_001_000);
    assert_eq!(seen[1].1, 1_700_000_000_000_000_007);
    assert_eq!(seen[2].1, 1_700_000_000_500_000_000);
    assert_eq!(seen[3], (0, 0, 69, frame(9)));
    assert_eq!((seen[4].0, &seen[4].3), (1, &frame(4)));
    assert_eq!(copy(&file, Format::Pcapng), file);
}

#[test]
fn wireshark_reads_written_files_without_warning_about_the_undo_option() {
    let file = pcapng();
    let (seen, _) = read_all(&file);
    let temp = Temp::new("all.pcapng", &file);
    let Some(theirs) = tshark(&temp) else { return };
    // Interfaces are numbered by section there too; a packet without a time has none at all.
    let timed = |seen: &[Fields]| -> Vec<Fields> {
        seen.iter().enumerate().filter(|(at, _)| at % 5 < 3).map(|(_, s)| s.clone()).collect()
    };
    same_but_bytes(&timed(&seen), &timed(&theirs));
    let text = run_tool("capinfos", &["-TMr", "-c"], &temp).unwrap();
    assert!(text.trim_end().ends_with("\t10"), "{text}");
}

#[test]
fn forms_convert_into_each_other_with_times_lengths_and_bytes_kept() {
    for nanos in [false, true] {
        let file = pcap(Order::Big, nanos);
        let converted = copy(&file, Format::Pcapng);
        assert_eq!(read_all(&converted).0, read_all(&file).0);
        let temp = Temp::new(&format!("converted{nanos}.pcapng"), &converted);
        if let Some(theirs) = tshark(&temp) {
            same_but_bytes(&read_all(&file).0, &theirs);
        }
        assert_eq!(read_all(&copy(&converted, Format::Pcap)).0, read_all(&file).0);
    }
}

#[test]
fn times_of_every_interface_are_kept_in_pcap_whatever_the_first_one_has() {
    let file = pcapng();
    let times = |file: &[u8]| -> Vec<u64> { read_all(file).0.into_iter().map(|seen| seen.1).collect() };
    assert_eq!(times(&copy(&file, Format::Pcap)), times(&file));
}

#[test]
fn a_second_link_type_does_not_go_into_pcap() {
    let mut file = section_block(Order::Little, &[]);
    for link in [link::ETHERNET, link::RAW] {
        let head = PcapHeader { order: Order::Little, nanos: true, snaplen: 0, link: u32::from(link) };
        file.extend(interface_block(Order::Little, &head.interface()));
    }
    let mut reader = Reader::new(Cursor::new(&file)).unwrap();
    let mut writer = Writer::new(Vec::new(), Format::Pcap);
    let mut result = Ok(());
    while let Ok(Some(Item::Block(block))) = reader.next() {
        result = writer.block(&block);
    }
    assert!(result.unwrap_err().to_string().contains("raw IP"));
}

#[test]
fn a_file_cut_anywhere_gives_all_whole_packets_then_the_place() {
    for file in [pcap(Order::Little, true), pcapng()] {
        let (whole, _) = read_all(&file);
        let head_len = if file[0] == 0x0a { 12 } else { 24 };
        let mut cuts = 0;
        for cut in head_len..file.len() {
            let (seen, error) = read_all(&file[..cut]);
            assert_eq!(seen, whole[..seen.len()]);
            match error {
                Some(ReadError::Cut { number, offset, promised, present }) => {
                    assert_eq!(number, seen.len() as u64 + 1);
                    assert_eq!(offset + present, cut as u64);
                    assert!(promised > present);
                    cuts += 1;
                }
                Some(other) => panic!("cut at {cut}: {other}"),
                None => {}
            }
        }
        assert!(cuts > file.len() / 2);
    }
}

#[test]
fn damage_anywhere_never_panics_and_never_invents_packets() {
    for file in [pcap(Order::Big, false), pcapng()] {
        for at in 0..file.len() {
            for value in [0, 0xff, file[at] ^ 0x10] {
                let mut bad = file.clone();
                bad[at] = value;
                let Ok(mut reader) = Reader::new(Cursor::new(&bad)) else { continue };
                let mut bytes = 0;
                while let Ok(Some(item)) = reader.next() {
                    if let Item::Packet(record) = item {
                        bytes += record.data().len();
                    }
                }
                assert!(bytes <= bad.len());
            }
        }
    }
}

#[test]
fn files_that_are_no_captures_are_distinguished() {
    let open = |bytes: &[u8]| Reader::new(Cursor::new(bytes.to_vec())).unwrap_err();
    assert!(matches!(open(b""), ReadError::Empty));
    assert!(matches!(open(&[0x1f, 0x8b, 8, 0, 0]), ReadError::Compressed("gzip")));
    assert!(matches!(open(&[0x28, 0xb5, 0x2f, 0xfd, 0]), ReadError::Compressed("zstd")));
    let unknown = open(b"hello, world, this is a text");
    assert!(matches!(unknown, ReadError::Unknown("neither a pcap nor a pcapng file")));
    assert!(matches!(open(&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0]), ReadError::Cut { number: 1, .. }));
    let huge =
        [&pcap(Order::Little, false)[..24], &[0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0]].concat();
    assert!(matches!(read_all(&huge).1, Some(ReadError::Damaged { number: 1, offset: 24, .. })));
}

#[test]
fn frame_check_sequences_are_announced_in_both_forms() {
    let head = PcapHeader { order: Order::Little, nanos: false, snaplen: 0, link: 1 | 0x0400_0000 | 2 << 28 };
    assert_eq!(head.interface().fcs_len, 4);
    let mut writer = Writer::new(Vec::new(), Format::Pcapng);
    writer.begin_pcap(&head, &head.bytes(), &[]).unwrap();
    let file = writer.finish().unwrap();
    let mut reader = Reader::new(Cursor::new(file)).unwrap();
    while let Ok(Some(_)) = reader.next() {}
    assert_eq!(reader.interfaces()[0].fcs_len, 4);
}

#[test]
fn the_flags_of_a_packet_override_the_frame_check_sequence_of_its_interface() {
    for order in [Order::Little, Order::Big] {
        let mut writer = Writer::new(Vec::new(), Format::Pcapng);
        let section = section_block(order, &[]);
        writer.block(&Block { kind: BlockKind::Section, raw: &section, order, interface: None }).unwrap();
        let interface = PcapHeader { order, nanos: false, snaplen: 0, link: 0x2400_0001 }.interface();
        let raw = interface_block(order, &interface);
        writer.block(&Block { kind: BlockKind::Interface, raw: &raw, order, interface: Some(&interface) }).unwrap();
        // No flags, flags without a length, flags of 2 and of 15 bytes among other bits.
        let flags = [None, Some(0xffff_fe1f), Some(2 << 5), Some(0xffff_ffff)];
        for flags in flags {
            let mut list = Vec::new();
            options::push(&mut list, order, options::COMMENT, b"in front");
            if let Some(flags) = flags {
                options::push(&mut list, order, options::EPB_FLAGS, &order.put32(flags));
            }
            let packet = Outgoing { interface: 0, ticks: Some(7), len: 60, data: &[&[1; 60]], options: &list };
            writer.packet(&packet).unwrap();
        }
        let file = writer.finish().unwrap();
        let mut reader = Reader::new(&file[..]).unwrap();
        let mut lengths = Vec::new();
        while let Some(item) = reader.next().unwrap() {
            if let Item::Packet(record) = item {
                lengths.push(record.fcs_len);
            }
        }
        assert_eq!(lengths, [4, 4, 2, 15], "{order:?}");
    }
}

#[test]
fn pcapng_without_an_interface_becomes_a_pcap_file_without_packets() {
    let file = copy(&section_block(Order::NATIVE, &[]), Format::Pcap);
    assert_eq!(read_all(&file).0, []);
    assert_eq!(Reader::new(&file[..]).unwrap().interfaces()[0].link, link::ETHERNET);
}

/// Tests lengths whose sum with the offset of the data does not fit 32 bits, which tells where addresses have as many.
#[test]
fn a_packet_of_four_gigabytes_is_longer_than_its_block() {
    for order in [Order::Little, Order::Big] {
        let head = PcapHeader { order, nanos: true, snaplen: 0, link: 1 };
        let start = [section_block(order, &[]), interface_block(order, &head.interface())].concat();
        for caplen in [5, 0xffff_ffe3, 0xffff_ffe4, 0xffff_ffff] {
            let body = [0, 0, 0, caplen, caplen, 7].map(|word| order.put32(word));
            let file = [&start[..], &write::wrap(order, 6, body.as_flattened())].concat();
            let (packets, error) = read_all(&file);
            let is_damage = matches!(error, Some(ReadError::Damaged { what: "a packet longer than its block", .. }));
            assert!(packets.is_empty() && is_damage, "{order:?} {caplen}: {error:?}");
        }
    }
}
