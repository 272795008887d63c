//! Tests of the output of `segue pcap`: the lines of verify and stat, refusals, and the keys of its JSON.

mod common;
#[path = "../../segue-capture/tests/common/packets.rs"]
mod packets;
#[path = "../../segue-capture/tests/common/shapes.rs"]
mod shapes;

use std::collections::BTreeSet;
use std::fs;

use common::{Place, SEGUE};
use packets::{train, tunnels, v4, v6};
use segue_capture::file::{Interface, Order, PcapHeader, interface_block, link, section_block};
use segue_testkit::Rng;
use segue_testkit::build::{self, L4, Udp};
use segue_testkit::flow::{Sender, acknowledging};
use serde_json::{Value, json};
use shapes::{Shape, capture, framed};

/// Returns exit status, stdout and stderr of a run.
fn pcap(place: &Place, line: &str) -> (Option<i32>, String, String) {
    let args = line.split_whitespace();
    let output = common::command(SEGUE, place).arg("pcap").args(args).current_dir(place.path()).output().unwrap();
    common::text(&output)
}

fn json_of(place: &Place, line: &str) -> Value {
    let (code, stdout, stderr) = pcap(place, line);
    assert_eq!(code, Some(0), "{line}: {stdout} {stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{line}: {error}: {stdout}"))
}

/// Writes a capture of a link type.
fn write(place: &Place, name: &str, packets: &[Vec<u8>], number: u16, form: &'static str) {
    let mut rng = Rng::new(1);
    let frames: Vec<Vec<u8>> = packets.iter().map(|packet| framed(number, packet, &mut rng)).collect();
    let shape = Shape { seed: 0, traffic: "", link: number, form };
    fs::write(place.path().join(name), capture(&shape, &frames, &mut Rng::new(1))).unwrap();
}

#[test]
fn verify_has_a_line_for_each_fault_and_an_object_for_each_packet() {
    let place = Place::new();
    let good = Sender::tcp(v4(), 3, 1, vec![]).send(700, 0).bytes();
    let changed = |at: usize| {
        let mut packet = good.clone();
        packet[at] ^= 1;
        packet
    };
    let no_checksum = L4::Udp(Udp { src_port: 5, dst_port: 6, checksum: false });
    let absent = build::Packet { ip: v4(), l4: no_checksum, data: vec![1; 9] }.bytes();
    let (_, gue) = tunnels().remove(7);
    let mut bad_outer = gue.wrap(&good);
    bad_outer[26] ^= 1;
    let unfinished = build::prime(&good).unwrap();
    let mut malformed = absent.clone();
    malformed[24] = 1;
    let long = train(v6(), 3000, 0, vec![]);
    let all = [good.clone(), changed(200), changed(8), absent, unfinished, gue.wrap(&good), bad_outer, long, malformed];
    write(&place, "in.pcap", &all, link::RAW, "us_le");
    let (code, stdout, stderr) = pcap(&place, "verify in.pcap --mtu 1500");
    let starts: Vec<&str> =
        stdout.lines().map(|line| line.split(" checksum").next().unwrap().split([',', ':']).next().unwrap()).collect();
    let expected = [
        "packet 2  TCP",
        "packet 3  IPv4 header",
        "packet 5  TCP",
        "packet 7  outer UDP",
        "packet 8  TCP",
        "packet 8  3060 bytes of IP",
        "packet 9  malformed",
    ];
    assert_eq!((code, &starts[..]), (Some(1), &expected[..]), "{stdout}");
    let totals = "2 good, 3 bad, 2 unfinished, 0 cut, 1 malformed, 1 without a checksum, 1 above the MTU\n";
    assert!(stderr.starts_with(totals), "{stderr}");
    let (_, stdout, stderr) = pcap(&place, "verify in.pcap --mtu 1500 -j");
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let verdicts: Vec<&Value> = lines[..9].iter().map(|line| &line["verdict"]).collect();
    let expected = ["good", "bad", "bad", "absent", "unfinished", "good", "bad", "unfinished", "malformed"];
    assert_eq!((verdicts, stderr.as_str()), (expected.map(Value::from).iter().collect(), ""));
    assert_eq!(lines[9]["layers"]["outer_udp"], json!({ "good": 1, "bad": 1 }));
    let (_, stdout, _) = pcap(&place, "stat in.pcap");
    let checksums = "  checksums   2 good, 2 unfinished, 3 bad, 1 absent\n              1 malformed\n";
    assert!(stdout.contains(checksums), "{stdout}");
    let mut sctp = Sender::tcp(v6(), 3, 1, vec![]).send(30, 0).bytes();
    sctp[6] = 132;
    write(&place, "sctp.pcap", &[sctp], link::RAW, "us_le");
    let (code, _, stderr) = pcap(&place, "verify sctp.pcap");
    let totals = "0 good, 0 bad, 0 unfinished, 0 cut, 1 judged by their IP header only";
    assert!(code == Some(0) && stderr.starts_with(totals), "{stderr}");
}

#[test]
fn a_merge_that_cannot_be_undone_says_so_and_the_undo_refuses() {
    let place = Place::new();
    let acks: Vec<Vec<u8>> = acknowledging(&mut Rng::new(3), 2, 300).into_iter().map(|sent| sent.bytes).collect();
    write(&place, "in.pcapng", &acks, link::ETHERNET, "ng");
    let (code, _, stderr) = pcap(&place, "merge in.pcapng out.pcapng --profile lro --hold-us 60000000");
    assert!(code == Some(0) && stderr.contains("packets replaced by a newer ACK"), "{stderr}");
    assert!(stderr.contains("note: what was swallowed is not in the file; `split --undo` will refuse it"), "{stderr}");
    let (code, _, stderr) = pcap(&place, "split --undo out.pcapng back.pcapng");
    assert!(code == Some(2) && stderr.contains("out.pcapng cannot be undone"), "{stderr}");
    assert!(stderr.contains("stands for acknowledgments that profile lro swallowed"), "{stderr}");
    assert!(!place.path().join("back.pcapng").exists());
    let (code, _, stderr) = pcap(&place, "merge in.pcapng out.pcap --explain");
    assert!(code == Some(2) && stderr.contains("pcap has no place for comments"), "{stderr}");
    assert!(!place.path().join("out.pcap").exists());
}

#[test]
fn two_merged_files_with_other_headers_do_not_become_one_pcap_file() {
    let place = Place::new();
    let packets: Vec<Vec<u8>> = Sender::tcp(v4(), 3, 1, vec![]).run(9000, 1000, 0).iter().map(|p| p.bytes()).collect();
    let merged = ["us_be", "ns_le"].map(|form| {
        write(&place, "in.pcap", &packets, link::RAW, form);
        assert_eq!(pcap(&place, "merge -f in.pcap out.pcapng").0, Some(0));
        fs::read(place.path().join("out.pcapng")).unwrap()
    });
    fs::write(place.path().join("both.pcapng"), merged.concat()).unwrap();
    let (code, _, stderr) = pcap(&place, "split --undo both.pcapng both.pcap");
    let refusal = "error: cannot write: two files whose headers differ";
    assert!(code == Some(2) && stderr.contains(refusal), "{stderr}");
    assert!(stderr.contains("try:  write pcapng: -F pcapng") && !place.path().join("both.pcap").exists(), "{stderr}");
}

#[test]
fn the_schema_of_pcap_has_every_key_and_every_key_that_it_demands_is_there() {
    let place = Place::new();
    write(&place, "in.pcapng", &shapes::packets("faults", &mut Rng::new(1)), link::ETHERNET, "ng");
    let schema = common::segue("schema pcap").json();
    let of = |name: &str| schema["$defs"][name].clone();
    let check = |name: &str, value: &Value| {
        let definition = of(name);
        let known: BTreeSet<&String> = definition["properties"].as_object().unwrap().keys().collect();
        let given: BTreeSet<&String> = value.as_object().unwrap().keys().collect();
        assert!(given.is_subset(&known), "{name}: {given:?} {known:?}");
        for key in definition["required"].as_array().unwrap() {
            assert!(value.get(key.as_str().unwrap()).is_some(), "{name}: {key} is missing");
        }
    };
    check("Merge", &json_of(&place, "merge in.pcapng m.pcapng -j"));
    check("Split", &json_of(&place, "split in.pcapng s.pcapng -j"));
    check("Split", &json_of(&place, "split --undo m.pcapng u.pcapng -j"));
    check("Decap", &json_of(&place, "decap in.pcapng d.pcapng -j"));
    for profile in ["strict", "linux", "lro"] {
        let stat = json_of(&place, &format!("stat in.pcapng -j --profile {profile}"));
        check("Stat", &stat);
        check("WouldMerge", &stat["would_merge"]);
        assert_eq!(stat["would_merge"]["packets_lro"].is_u64(), profile == "lro", "{stat}");
        check("Flow", &stat["flows"][0]);
        check("Interface", &stat["interfaces"][0]);
        check("Size", &stat["sizes"][0]);
    }
    let (_, stdout, _) = pcap(&place, "verify in.pcapng -j");
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, first) = lines.split_last().unwrap();
    check("Verify", last);
    first.iter().for_each(|packet| check("Packet", packet));
    check("Checksum", &first[0]["checksums"][0]);
}

#[test]
fn the_name_of_an_interface_does_not_act_on_the_terminal() {
    let place = Place::new();
    let name = "e\u{1b}[2J\nth";
    let plain = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 0, link: 1 }.interface();
    let interface = Interface { name: Some(name.to_owned()), ..plain };
    let file = [section_block(Order::NATIVE, &[]), interface_block(Order::NATIVE, &interface)].concat();
    fs::write(place.path().join("in.pcapng"), file).unwrap();
    let (code, stdout, stderr) = pcap(&place, "stat in.pcapng");
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.lines().next().unwrap().ends_with(", e?[2J?th (Ethernet)"), "{stdout:?}");
    assert_eq!(json_of(&place, "stat in.pcapng -j")["interfaces"][0]["name"], name);
}
