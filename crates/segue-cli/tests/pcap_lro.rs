//! `merge --profile lro`, `merge --explain`, and the JSON of all commands: pure ACKs, reasons, keys.

mod common;
#[path = "common/shapes.rs"]
mod shapes;

use std::collections::BTreeSet;
use std::fs;

use common::{Place, SEGUE};
use segue_capture::file::{Item, Order, Reader, link, options};
use segue_testkit::Rng;
use segue_testkit::build::{Ip, L4, V4};
use segue_testkit::flow::{Sender, acknowledging};
use serde_json::Value;
use shapes::{Shape, capture, file, framed, shapes};

/// Exit status, stdout and stderr.
fn pcap(place: &Place, line: &str) -> (Option<i32>, String, String) {
    let args = line.split_whitespace();
    let output = common::command(SEGUE, place).arg("pcap").args(args).current_dir(place.path()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn json(place: &Place, line: &str) -> Value {
    let (code, stdout, stderr) = pcap(place, line);
    assert_eq!(code, Some(0), "{line}: {stdout} {stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{line}: {error}: {stdout}"))
}

/// A packet of a file: time, bytes, comments.
type Packet = (Option<u64>, Vec<u8>, Vec<String>);

fn packets(file: &[u8]) -> Vec<Packet> {
    let mut reader = Reader::new(file).unwrap();
    let mut all = Vec::new();
    let mut order = Order::NATIVE;
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

/// A capture on Ethernet, 100 microseconds at most between two frames.
fn write(place: &Place, name: &str, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(5);
    let frames: Vec<Vec<u8>> = packets.iter().map(|packet| framed(link::ETHERNET, packet, &mut rng)).collect();
    let shape = Shape { seed: 0, traffic: "", link: link::ETHERNET, form: "ng" };
    fs::write(place.path().join(name), capture(&shape, &frames, &mut rng)).unwrap();
    frames
}

/// A pure acknowledgment of `number` with this window.
fn ack(sender: &mut Sender, number: u32, window: u16) -> Vec<u8> {
    if let L4::Tcp(tcp) = &mut sender.next.l4 {
        (tcp.ack, tcp.window) = (number, window);
    }
    sender.send(0, 0).bytes()
}

#[test]
fn pure_acks_collapse_to_the_newest_at_its_own_place_and_what_a_sender_must_see_stays() {
    let place = Place::new();
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 1, 7, vec![]);
    let mut other = Sender::tcp(Ip::V4(V4::new(1, 3, 4)), 2, 7, vec![]);
    let mut sent = Vec::new();
    // The first of a flow stays, the next five become one, and with another flow's data between them.
    (1..=6).for_each(|n| sent.push(ack(&mut sender, n * 2896, 500)));
    sent.insert(4, other.send(100, 8).bytes());
    // Three duplicates and a window update.
    (0..3).for_each(|_| sent.push(ack(&mut sender, 6 * 2896, 500)));
    sent.push(ack(&mut sender, 6 * 2896, 700));
    // And on it goes: the first after them stays.
    (7..=9).for_each(|n| sent.push(ack(&mut sender, n * 2896, 700)));
    let frames = write(&place, "in.pcapng", &sent);
    let summary = json(&place, "merge in.pcapng out.pcapng --profile lro -j --hold-us 60000000 --explain");
    assert_eq!(summary["swallowed"], 4 + 1, "{summary}");
    assert_eq!((summary["profile"].as_str(), summary["undo"].as_bool()), (Some("lro"), Some(false)));
    let before = packets(&fs::read(place.path().join("in.pcapng")).unwrap());
    let after = packets(&fs::read(place.path().join("out.pcapng")).unwrap());
    let kept = [0, 4, 6, 7, 8, 9, 10, 11, 13];
    assert_eq!(after.len(), kept.len(), "{summary}");
    for (index, (nanos, bytes, comments)) in kept.into_iter().zip(&after) {
        assert!(*bytes == frames[index] && *nanos == before[index].0, "packet {index}");
        let [comment] = &comments[..] else { panic!("{comments:?}") };
        match index {
            6 => assert_eq!(comment, "segue: stands for 5 ACKs, ended: order"),
            13 => assert_eq!(comment, "segue: stands for 2 ACKs, ended: poll end"),
            0 | 11 => assert_eq!(comment, "segue: alone: ack first"),
            4 => assert_eq!(comment, "segue: alone: psh"),
            7..=9 => assert_eq!(comment, "segue: alone: ack duplicate"),
            _ => assert_eq!(comment, "segue: alone: ack window"),
        }
    }
    let (code, _, stderr) = pcap(&place, "split --undo out.pcapng back.pcapng");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("out.pcapng cannot be undone") && stderr.contains("packet 3"), "{stderr}");
    assert!(!place.path().join("back.pcapng").exists());
    let (_, _, stderr) = pcap(&place, "merge in.pcapng out.pcapng --profile lro -f");
    assert!(stderr.contains("swallowed: 5 packets gave way to a newer ACK"), "{stderr}");
    // The other profiles swallow none, and theirs can be undone.
    for profile in ["strict", "linux"] {
        let summary = json(&place, &format!("merge in.pcapng out.pcapng --profile {profile} -j -f"));
        assert_eq!((summary["swallowed"].as_u64(), summary["undo"].as_bool()), (Some(0), Some(true)));
        assert_eq!(pcap(&place, "split --undo out.pcapng back.pcapng -f").0, Some(0));
    }
}

#[test]
fn with_profile_lro_every_packet_is_accounted_for_and_nothing_is_wrong() {
    let place = Place::new();
    let (mut swallowed, mut trains) = (0, 0);
    let mut rng = Rng::new(11);
    for shape in shapes(84) {
        let mut frames: Vec<Vec<u8>> = shapes::packets(shape.traffic, &mut rng);
        // With the other direction of connections among them.
        let acks: Vec<Vec<u8>> = acknowledging(&mut rng, 6, 300).into_iter().map(|sent| sent.bytes).collect();
        for (n, ack) in acks.into_iter().enumerate() {
            frames.insert((n * 3).min(frames.len()), ack);
        }
        let frames: Vec<Vec<u8>> = frames.iter().map(|packet| framed(shape.link, packet, &mut rng)).collect();
        fs::write(place.path().join("in"), capture(&shape, &frames, &mut rng)).unwrap();
        let summary = json(&place, "merge in out.pcapng -f -j --profile lro --hold-us 100000");
        let n = |key: &str| summary[key].as_u64().unwrap();
        let gone = n("segments") - n("trains") + n("swallowed");
        assert_eq!(n("packets_in") - n("packets_out"), gone, "{shape:?} {summary}");
        let after = packets(&fs::read(place.path().join("out.pcapng")).unwrap());
        assert_eq!(after.len() as u64, n("packets_out"), "{shape:?}");
        swallowed += n("swallowed");
        trains += n("trains");
        // Without acknowledgments, or with all of them seen, it can be undone.
        if n("swallowed") == 0 {
            assert_eq!(pcap(&place, "split --undo out.pcapng back -f").0, Some(0), "{shape:?}");
        }
    }
    assert!(swallowed > 1000 && trains > 500, "{swallowed} swallowed, {trains} trains");
}

#[test]
fn explained_merges_have_a_reason_on_each_packet_and_are_undone_all_the_same() {
    let place = Place::new();
    let mut seen = BTreeSet::new();
    for shape in shapes(42) {
        fs::write(place.path().join("in"), file(&shape)).unwrap();
        for profile in ["strict", "linux:6.12", "linux:7.0"] {
            let merge = format!("merge in out.pcapng -f -j --explain --profile {profile} --hold-us 100000");
            let summary = json(&place, &merge);
            assert_eq!(summary["profile"], profile);
            for (_, _, comments) in packets(&fs::read(place.path().join("out.pcapng")).unwrap()) {
                let ours: Vec<&String> = comments.iter().filter(|text| text.starts_with("segue: ")).collect();
                let [ours] = &ours[..] else { panic!("{shape:?}: {comments:?}") };
                let (_, reason) = ours.rsplit_once(": ").unwrap();
                assert!(!reason.is_empty(), "{shape:?}: {ours}");
                seen.insert(reason.to_owned());
            }
            let form = if shape.form.starts_with("ng") { "pcapng" } else { "pcap" };
            let (code, _, stderr) = pcap(&place, &format!("split --undo out.pcapng back -f -F {form}"));
            assert_eq!(code, Some(0), "{shape:?}: {stderr}");
            let same = fs::read(place.path().join("back")).unwrap() == fs::read(place.path().join("in")).unwrap();
            assert!(same, "{shape:?}");
        }
    }
    for reason in ["psh", "full", "no payload", "cut", "poll end", "padding", "mismatch, sequence", "mismatch, ack"] {
        assert!(seen.contains(reason), "{reason} in {seen:?}");
    }
    let (code, _, stderr) = pcap(&place, "merge in out.pcap --explain");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("pcap has no place for comments"), "{stderr}");
}

#[test]
fn the_schema_of_pcap_has_every_key_and_every_key_that_it_demands_is_there() {
    let place = Place::new();
    write(&place, "in.pcapng", &shapes::packets("faults", &mut Rng::new(1)));
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
    check("Merge", &json(&place, "merge in.pcapng m.pcapng -j"));
    check("Split", &json(&place, "split in.pcapng s.pcapng -j"));
    check("Split", &json(&place, "split --undo m.pcapng u.pcapng -j"));
    check("Decap", &json(&place, "decap in.pcapng d.pcapng -j"));
    for profile in ["strict", "linux", "lro"] {
        let stat = json(&place, &format!("stat in.pcapng -j --profile {profile}"));
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
