//! `split --undo` of `merge` gives back the file, byte for byte: generated captures of many shapes, and those of a kernel.

mod common;
#[path = "common/shapes.rs"]
mod shapes;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Place, SEGUE};
use segue_capture::file::{Format, Order, Outgoing, PcapHead, Writer, link, options};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow::Sender;
use shapes::{file, shapes};

const CAPTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures");

fn pcap(args: &[&str], place: &Place) -> (i32, String, String) {
    let output = common::command(SEGUE, place).arg("pcap").args(args).output().expect("segue runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Merges and undoes; returns packets in and out of the merge.
fn round_trip(input: &Path, place: &Place, what: &str, more: &[&str]) -> (u64, u64) {
    let bytes = fs::read(input).unwrap();
    let extension = if bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) { "pcapng" } else { "pcap" };
    let path = |name: &str| place.path().join(name).display().to_string();
    let (merged, undone) = (path("merged.pcapng"), path(&format!("undone.{extension}")));
    let input = input.display().to_string();
    let (code, stdout, stderr) = pcap(&[&["merge", &input, &merged, "-f", "-j"], more].concat(), place);
    assert_eq!(code, 0, "{what}: {stdout} {stderr}");
    let summary: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let (code, _, stderr) = pcap(&["split", "--undo", &merged, &undone, "-f"], place);
    assert_eq!(code, 0, "{what}: {stderr}");
    let back = fs::read(&undone).unwrap();
    if back != bytes {
        let at = back.iter().zip(&bytes).position(|(a, b)| a != b).unwrap_or(back.len().min(bytes.len()));
        panic!("{what}: {} bytes became {}, the first difference at {at}", bytes.len(), back.len());
    }
    (summary["packets_in"].as_u64().unwrap(), summary["packets_out"].as_u64().unwrap())
}

#[test]
fn undoing_a_merge_gives_back_generated_captures_of_91_shapes() {
    let place = Place::new();
    let mut merged = 0;
    for shape in shapes(91) {
        let input = place.path().join("in");
        fs::write(&input, file(&shape)).unwrap();
        for profile in ["strict", "linux"] {
            let mut more = vec!["--profile", profile];
            match shape.seed % 5 {
                1 => more.extend(["--max-packets", "3"]),
                2 => more.extend(["--max-bytes", "9000"]),
                3 => more.extend(["--hold-us", "100000"]),
                _ => {}
            }
            let (before, after) = round_trip(&input, &place, &format!("{shape:?} {more:?}"), &more);
            assert!(after <= before, "{shape:?}");
            if profile == "strict" {
                merged += u64::from(after * 2 < before);
            }
        }
    }
    // The rest is traffic that cannot be merged, and must not be.
    assert!(merged >= 40, "only {merged} of 91 captures shrank to less than half");
}

#[test]
fn undoing_a_merge_gives_back_the_captures_of_a_kernel() {
    let place = Place::new();
    let (mut files, mut saved) = (0, 0);
    for entry in fs::read_dir(CAPTURES).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "pcap" || e == "pcapng") {
            let (before, after) = round_trip(&path, &place, &path.display().to_string(), &["--fou", "5555:gre"]);
            files += 1;
            saved += before - after;
        }
    }
    assert!(files >= 60 && saved > 500, "{files} files, {saved} packets fewer");
}

#[test]
fn a_merge_of_a_merge_is_undone_one_step_at_a_time() {
    let place = Place::new();
    let path = |name: &str| place.path().join(name).display().to_string();
    for shape in shapes(28).into_iter().filter(|shape| shape.form.starts_with("ng") || shape.traffic == "bulk") {
        fs::write(path("0.pcapng"), file(&shape)).unwrap();
        let steps = [
            vec!["merge", "0.pcapng", "1.pcapng", "--max-packets", "4"],
            vec!["merge", "1.pcapng", "2.pcapng"],
            vec!["split", "--undo", "2.pcapng", "1b.pcapng"],
            vec![
                "split",
                "--undo",
                "1b.pcapng",
                "0b.pcapng",
                "-F",
                if shape.form.starts_with("ng") { "pcapng" } else { "pcap" },
            ],
        ];
        for step in &steps {
            let output = common::command(SEGUE, &place)
                .arg("pcap")
                .args(step)
                .args(["-f", "-q"])
                .current_dir(place.path())
                .output()
                .unwrap();
            assert!(output.status.success(), "{shape:?} {step:?} {output:?}");
        }
        for (a, b) in [("1.pcapng", "1b.pcapng"), ("0.pcapng", "0b.pcapng")] {
            assert!(fs::read(path(a)).unwrap() == fs::read(path(b)).unwrap(), "{shape:?}: {a} and {b} differ");
        }
    }
}

#[test]
fn wireshark_and_libpcap_read_merged_files_without_a_word() {
    let place = Place::new();
    let path = |name: &str| place.path().join(name).display().to_string();
    for shape in shapes(21) {
        fs::write(path("in"), file(&shape)).unwrap();
        let (code, stdout, stderr) = pcap(&["merge", &path("in"), &path("m.pcapng"), "-f", "-j"], &place);
        assert_eq!(code, 0, "{shape:?} {stderr}");
        let summary: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        for (program, args) in
            [("capinfos", vec!["-TMr", "-c"]), ("tshark", vec!["-n", "-r"]), ("tcpdump", vec!["-n", "-r"])]
        {
            // libpcap takes one snap length and resolution for all interfaces only, merged or not.
            if program == "tcpdump" && shape.form == "ng_many" {
                continue;
            }
            let Ok(output) = Command::new(program).args(&args).arg(path("m.pcapng")).output() else {
                println!("skipped: {program} is not installed");
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
                assert_eq!(count, summary["packets_out"].to_string(), "{shape:?}");
            }
        }
    }
}

#[test]
fn trains_stand_where_their_first_packet_stood_and_time_never_goes_back() {
    let place = Place::new();
    let path = |name: &str| place.path().join(name).display().to_string();
    let shape = shapes(1).remove(0);
    fs::write(path("in"), file(&shape)).unwrap();
    assert_eq!(pcap(&["merge", &path("in"), &path("m.pcapng")], &place).0, 0);
    let times = |name: &str| {
        let bytes = fs::read(path(name)).unwrap();
        let mut reader = segue_capture::file::Reader::new(&bytes[..]).unwrap();
        let mut times = Vec::new();
        while let Ok(Some(item)) = reader.next() {
            if let segue_capture::file::Item::Packet(record) = item {
                times.push(record.nanos.unwrap());
            }
        }
        times
    };
    let (before, after) = (times("in"), times("m.pcapng"));
    assert!(after.len() < before.len() / 10);
    // As a subsequence: each time of the result is one of the input, in the same order.
    let mut rest = before.iter();
    assert!(after.iter().all(|time| rest.any(|candidate| candidate == time)));
}

#[test]
fn merged_packets_are_right_as_packets() {
    let place = Place::new();
    let path = |name: &str| place.path().join(name).display().to_string();
    for shape in
        shapes(24).iter().filter(|shape| ["bulk", "gue", "gre", "ipip", "udp", "tiny"].contains(&shape.traffic))
    {
        fs::write(path("in"), file(shape)).unwrap();
        assert_eq!(pcap(&["merge", &path("in"), &path("m.pcapng"), "-f"], &place).0, 0);
        let (_, stdout, _) = pcap(&["verify", &path("m.pcapng"), "-j"], &place);
        let last: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        assert_eq!(last["bad"], 0, "{shape:?} {last}");
        assert_eq!(last["unfinished"], 0, "{shape:?} {last}");
        if shape.link != 113 && shape.link != 276 {
            tshark_finds_nothing_wrong(&path("m.pcapng"), &format!("{shape:?}"));
        }
    }
}

fn tshark_finds_nothing_wrong(file: &str, what: &str) {
    let args = ["-n", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"];
    let filter = "tcp.checksum.status==0 || udp.checksum.status==0 || ip.checksum.status==0";
    let Ok(output) = Command::new("tshark").args(args).args(["-Y", filter, "-r", file]).output() else {
        println!("skipped: tshark is not installed");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{what}");
}

#[test]
fn damaged_captures_are_worked_through_and_undone_up_to_the_damage() {
    let place = Place::new();
    let path = |name: &str| place.path().join(name).display().to_string();
    let mut rng = segue_testkit::Rng::new(77);
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
        fs::write(path("in"), &bytes).unwrap();
        for args in [
            vec!["merge", "in", "m.pcapng", "-f", "--allow-cut"],
            vec!["merge", "in", "l.pcapng", "-f", "--allow-cut", "--profile", "linux"],
            vec!["split", "in", "s", "-f", "--allow-cut"],
            vec!["split", "in", "s", "-f", "--allow-cut", "--fix-checksums", "all", "--mss", "100"],
            vec!["decap", "in", "d", "-f", "--allow-cut"],
            vec!["verify", "in", "--allow-cut"],
            vec!["stat", "in", "--allow-cut"],
        ] {
            let output =
                common::command(SEGUE, &place).arg("pcap").args(&args).current_dir(place.path()).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code().unwrap_or(-1);
            assert!(!stderr.contains("has a fault"), "{shape:?} {args:?}: {stderr}");
            assert!(code == 0 || (code == 1 && args[0] == "verify"), "{shape:?} {args:?}: {code} {stderr}");
        }
        // What a reader gets of the damaged file is what it gets of the file that was merged and undone.
        for merged in ["m.pcapng", "l.pcapng"] {
            let undone = if is_ng { "u.pcapng" } else { "u.pcap" };
            let (code, _, stderr) = pcap(&["split", "--undo", &path(merged), &path(undone), "-f"], &place);
            assert_eq!(code, 0, "{shape:?} {stderr}");
            let (before, fault) = all(&bytes);
            let (after, _) = all(&fs::read(path(undone)).unwrap());
            assert!(before == after, "{shape:?}: {} packets became {}", before.len(), after.len());
            whole += u64::from(!fault);
            damaged += u64::from(fault);
        }
    }
    assert!(whole > 5 && damaged > 5, "{whole} whole, {damaged} damaged");
}

/// Interface, time, length and bytes of a packet.
type Seen = (u32, Option<u64>, u32, Vec<u8>);

/// The packets, and whether the file is damaged.
fn all(file: &[u8]) -> (Vec<Seen>, bool) {
    let mut reader = segue_capture::file::Reader::new(file).unwrap();
    let mut packets = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(segue_capture::file::Item::Packet(record))) => {
                packets.push((record.interface, record.nanos, record.len, record.data().to_vec()));
            }
            Ok(Some(_)) => {}
            Ok(None) => return (packets, false),
            Err(_) => return (packets, true),
        }
    }
}

/// A pcapng file of one interface with raw IP.
fn section(snaplen: u32) -> Writer<Vec<u8>> {
    let head = PcapHead { order: Order::NATIVE, nanos: false, snaplen, link: u32::from(link::RAW) };
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
    let place = Place::new();
    let path = place.path().join("in.pcapng");
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
        fs::write(&path, writer.finish().unwrap()).unwrap();
        for more in [&[][..], &["--explain"], &["--max-packets", "2"]] {
            let (before, after) = round_trip(&path, &place, &format!("{simple} {more:?}"), more);
            assert!(before == 12 && after <= 6, "{after} packets");
        }
    }
}

#[test]
fn simple_packet_blocks_that_were_cut_are_read_as_they_were_and_come_back() {
    let place = Place::new();
    let path = place.path().join("in.pcapng");
    let mut writer = section(95);
    for (n, packet) in stream().iter().enumerate() {
        // Those that were cut by what the interface keeps, and whole ones.
        let (short, ticks) = if n % 2 == 0 { (&packet[..95], None) } else { (&packet[..], Some(n as u64)) };
        let packet = Outgoing { interface: 0, ticks, len: packet.len() as u32, data: &[short], options: &[] };
        writer.packet(&packet).unwrap();
    }
    fs::write(&path, writer.finish().unwrap()).unwrap();
    for more in [&[][..], &["--explain"], &["--profile", "linux"]] {
        round_trip(&path, &place, &format!("{more:?}"), more);
        let merged = fs::read(place.path().join("merged.pcapng")).unwrap();
        let (mut at, mut blocks) = (0, 0);
        while at < merged.len() {
            let word = |at: usize| u32::from_ne_bytes(merged[at..at + 4].try_into().unwrap());
            // The interface now keeps all, and so a block without a captured length must hold all.
            assert!(word(at) != 3 || word(at + 8) + 16 <= word(at + 4), "a simple packet block at {at} is cut");
            (at, blocks) = (at + word(at + 4) as usize, blocks + 1);
        }
        assert_eq!(blocks, 14);
        let (seen, is_damaged) = all(&merged);
        assert!(!is_damaged && seen.iter().filter(|(_, _, _, data)| data.len() == 95).count() == 6);
    }
}

#[test]
fn two_merged_files_in_one_become_one_pcap_file_only_where_their_headers_agree() {
    let place = Place::new();
    let path = |name: &str| place.path().join(name).display().to_string();
    let make = |name: &str, snaplen: u32| {
        let head = PcapHead { order: Order::Big, nanos: true, snaplen, link: u32::from(link::RAW) };
        let mut writer = Writer::new(Vec::new(), Format::Pcap);
        writer.begin_pcap(&head, &head.bytes(), &[]).unwrap();
        for (n, packet) in stream().iter().enumerate() {
            let ticks = Some(n as u64);
            let packet = Outgoing { interface: 0, ticks, len: packet.len() as u32, data: &[packet], options: &[] };
            writer.packet(&packet).unwrap();
        }
        let file = writer.finish().unwrap();
        fs::write(path("in.pcap"), &file).unwrap();
        assert_eq!(pcap(&["merge", &path("in.pcap"), &path(name)], &place).0, 0);
        (file, fs::read(path(name)).unwrap())
    };
    let (one, merged) = make("1.pcapng", 65_535);
    let (_, other) = make("2.pcapng", 262_144);
    fs::write(path("same.pcapng"), [&merged[..], &merged].concat()).unwrap();
    let (code, _, stderr) = pcap(&["split", "--undo", &path("same.pcapng"), &path("same.pcap")], &place);
    assert_eq!(code, 0, "{stderr}");
    assert!(fs::read(path("same.pcap")).unwrap() == [&one[..], &one[24..]].concat());
    fs::write(path("both.pcapng"), [&merged[..], &other].concat()).unwrap();
    let (code, _, stderr) = pcap(&["split", "--undo", &path("both.pcapng"), &path("both.pcap")], &place);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("error: cannot write: two pcap files whose headers differ"), "{stderr}");
    assert!(stderr.contains("try:  write pcapng: -F pcapng"), "{stderr}");
    assert!(!Path::new(&path("both.pcap")).exists());
    let (code, _, stderr) = pcap(&["split", "--undo", &path("both.pcapng"), &path("both2.pcapng")], &place);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(all(&fs::read(path("both2.pcapng")).unwrap()).0.len(), 24);
}
