//! Tests of the Wireshark dissector, by tshark: the inner checksum that a remote checksum option leaves to the
//! receiver is judged as it will be after completion, and a packet that the receiver drops is shown as wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use segue_lab::Family::{V4, V6};
use segue_lab::{Family, LinkForm, Peer, skip, which};
use segue_tests::Carrier::{Fou, Gue, GueRemcsum};
use segue_tests::Inside::{Gre, Ipip, Sit};
use segue_tests::capture::{self, Capture};
use segue_tests::{Ground, Pair, Shape, find_program, test_name, traffic, wire};

const NET: u8 = 1;
/// Length of an Ethernet header.
const ETHERNET: usize = 14;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs tshark with the dissector and these options, and returns the values of `fields` of each packet.
fn shown(file: &Path, options: &[&str], fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new(which("tshark").expect("tshark"));
    let script = repository().join("contrib/wireshark/segue.lua");
    command.args(["-n", "-X", &format!("lua_script:{}", script.display())]);
    for check in ["tcp", "udp", "ip"] {
        command.args(["-o", &format!("{check}.check_checksum:TRUE")]);
    }
    command.args(options.iter().flat_map(|option| ["-o", option]));
    command.arg("-r").arg(file).args(["-T", "fields", "-E", "occurrence=a"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = command.output().expect("tshark starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("Lua"), "tshark: {said}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

const REMOTE: &[&str] = &["frame.protocols", "gue.remcsum.status", "tcp.checksum.status", "_ws.expert.message"];
const GOOD: &str = "1";
const BAD: &str = "0";

/// Sends a file through a tunnel of this shape, and returns the frames that A sent.
fn captured(ground: &Ground, directory: &capture::Directory, shape: Shape, family: Family) -> PathBuf {
    let pair = Pair::start(ground, shape, NET);
    let capture = Capture::start(&ground.a, directory.file("sent.pcap"));
    traffic::file(pair.place(Peer::A, family), pair.place(Peer::B, family), 60_000, 3);
    capture.stop()
}

#[test]
fn inner_tcp_with_a_remote_checksum_is_right_and_a_corrupted_one_is_wrong() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["tshark", "tcpdump"]) else { return };
    let directory = capture::Directory::new();
    for (inside, outer, family) in [(Ipip, V4, V4), (Gre, V6, V6)] {
        let file = captured(&ground, &directory, Shape::new(inside, GueRemcsum, outer), family);
        let port = format!("gue.ports:{}", Shape::port(NET));
        let packets = shown(&file, &[&port], REMOTE);
        let tcp: Vec<_> =
            packets.iter().filter(|packet| packet[0].contains(":gue:") && packet[0].contains(":tcp")).collect();
        assert!(tcp.len() > 30, "{packets:?}");
        for packet in &tcp {
            assert_eq!(
                (packet[1].as_str(), packet[2].as_str()),
                ("completed under a right outer UDP checksum", GOOD),
                "{packet:?}"
            );
            assert!(!packet[3].contains("drops"), "{packet:?}");
        }

        // One bit of the payload of every packet, which the outer checksum covers.
        let spoiled = directory.file("spoiled.pcap");
        spoil(&file, &spoiled, |frame, _| {
            let last = frame.len() - 1;
            frame[last] ^= 1;
        });
        let packets = shown(&spoiled, &[&port], REMOTE);
        let wrong = packets.iter().filter(|packet| packet[0].contains(":gue:") && packet[0].contains(":tcp"));
        assert_eq!(wrong.clone().count(), tcp.len());
        for packet in wrong {
            assert!(packet[1].starts_with("not completed: the outer UDP checksum is wrong"), "{packet:?}");
            assert_eq!(packet[2], BAD, "{packet:?}");
            assert!(packet[3].contains("the receiver drops this packet"), "{packet:?}");
        }

        // A field that does not hold the sum of the pseudo header, under a right outer checksum.
        let outer_len = if outer == V4 { 20 } else { 40 };
        spoil(&file, &spoiled, |frame, at| {
            let payload = at + outer_len + 8;
            let place = usize::from(u16::from_be_bytes([frame[payload + 10], frame[payload + 11]])) + payload + 12;
            let checksum = at + outer_len + 6;
            let read = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
            // RFC 1624: what the field loses, the checksum gains. Both are at even places of their sum.
            let (field, sum) = (read(frame, place), read(frame, checksum));
            let (field, sum) = if field == 0 { (1, minus(sum, 1)) } else { (field - 1, plus(sum, 1)) };
            frame[place..place + 2].copy_from_slice(&field.to_be_bytes());
            frame[checksum..checksum + 2].copy_from_slice(&sum.to_be_bytes());
        });
        let packets = shown(&spoiled, &[&port], REMOTE);
        let wrong = packets.iter().filter(|packet| packet[0].contains(":gue:") && packet[0].contains(":tcp"));
        assert_eq!(wrong.clone().count(), tcp.len());
        for packet in wrong {
            assert_eq!(
                (packet[1].as_str(), packet[2].as_str()),
                ("completed under a right outer UDP checksum", BAD),
                "{packet:?}"
            );
        }
    }
}

fn plus(sum: u16, n: u16) -> u16 {
    let (sum, over) = sum.overflowing_add(n);
    sum + u16::from(over)
}

fn minus(sum: u16, n: u16) -> u16 {
    let (sum, under) = sum.overflowing_sub(n);
    sum - u16::from(under)
}

/// Copies a capture with `change` applied to each UDP packet, given as its frame and the offset of its IP header.
fn spoil(from: &Path, to: &Path, mut change: impl FnMut(&mut [u8], usize)) {
    let mut bytes = fs::read(from).unwrap();
    let lens: Vec<usize> = capture::frames(&bytes).unwrap().iter().map(|frame| frame.len()).collect();
    let mut at = 24;
    for len in lens {
        let frame = &mut bytes[at + 16..at + 16 + len];
        let is_udp = match frame[ETHERNET..].first().map(|first| first >> 4) {
            Some(4) => frame[ETHERNET + 9] == 17,
            Some(6) => frame[ETHERNET + 6] == 17,
            _ => false,
        };
        if is_udp {
            change(frame, ETHERNET);
        }
        at += 16 + len;
    }
    fs::write(to, bytes).unwrap();
}

#[test]
fn gue_without_options_and_fou_are_dissected() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["tshark", "tcpdump"]) else { return };
    let directory = capture::Directory::new();
    let port = Shape::port(NET);
    let cases = [
        (Shape::new(Gre, Gue, V4), format!("gue.ports:{port}"), ":gue:gre:ip:tcp"),
        (Shape::new(Sit, Fou, V4), format!("fou.ports:{port}:sit"), ":fou:ipv6:tcp"),
        (Shape::new(Ipip, Fou, V6), format!("fou.ports:{port}:4"), ":fou:ip:tcp"),
    ];
    for (shape, option, stack) in cases {
        let family = shape.inside.families()[0];
        let file = captured(&ground, &directory, shape, family);
        let packets = shown(&file, &[&option], &["frame.protocols", "tcp.checksum.status", "gue.hlen", "fou.proto"]);
        let tcp: Vec<_> = packets.iter().filter(|packet| packet[0].contains(stack)).collect();
        assert!(tcp.len() > 30 && tcp.iter().all(|packet| packet[1] == GOOD), "{stack}: {packets:?}");
    }
}

#[test]
fn the_notes_of_merge_are_a_field() {
    if which("tshark").is_none() {
        return skip(test_name!(), "not installed: tshark");
    }
    let Some(program) = find_program() else {
        return skip(test_name!(), "the program is not built (cargo build -p segue-cli)");
    };
    let directory = capture::Directory::new();
    let merged = directory.file("merged.pcapng");
    let mut merge = Command::new(program);
    merge.args(["pcap", "merge", "--explain", "-q"]);
    merge.arg(repository().join("captures/gue-gre-remcsum-inner4-tcp.pcap")).arg(&merged);
    let output = merge.output().expect("segue starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let packets = shown(&merged, &[], &["segue.why", "frame.comment"]);
    assert!(packets.iter().all(|packet| !packet[0].is_empty() && packet[0] == packet[1]), "{packets:?}");
    for word in ["alone: ", "train of "] {
        assert!(packets.iter().any(|packet| packet[0].contains(word)), "{word}: {packets:?}");
    }
}

#[test]
fn linux_captures_and_headers_that_a_receiver_refuses_are_shown() {
    if which("tshark").is_none() {
        return skip(test_name!(), "not installed: tshark");
    }
    let packets = shown(&repository().join("captures/gue-gre-remcsum-inner6-tcp.pcap"), &[], REMOTE);
    assert!(packets.len() > 50 && packets.iter().all(|packet| packet[2] == GOOD && packet[1].starts_with("completed")));
    let directory = capture::Directory::new();
    // (GUE datagram, what tshark says of it)
    let cases: [(&[u8], &str); 4] = [
        (&[2, 4, 0, 1, 0x80, 0, 0, 0, 0, 20, 0, 21, 0x45], "The place of the remote checksum is before its start, odd"),
        (&[1, 4, 0, 1, 0x80, 0, 0, 0, 0x45, 0], "The header is shorter than its flags announce"),
        (&[0, 4, 2, 0, 0x45, 0], "A flag that Linux does not know"),
        (&[5, 4, 0, 0, 0x45, 0], "The header is shorter than its flags announce"),
    ];
    for (datagram, expected) in cases {
        let said = &shown(&alone(&directory, datagram), &[], &["_ws.expert.message"])[0][0];
        assert!(said.contains(expected), "{datagram:?}: {said}");
    }
}

/// Writes a capture of one GUE datagram.
fn alone(directory: &capture::Directory, datagram: &[u8]) -> PathBuf {
    let from = ("198.18.0.1".parse().unwrap(), 5000);
    let packet = wire::udp_packet(from, ("198.18.0.2".parse().unwrap(), 6080), datagram, 0, false).packet;
    let len = packet.len() as u32;
    // A pcap file with bare IP packets (LINKTYPE_RAW).
    let mut bytes = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0].to_vec();
    bytes.extend([0; 8]);
    [65_535u32, 101, 0, 0, len, len].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(packet);
    let file = directory.file("one.pcap");
    fs::write(&file, bytes).unwrap();
    file
}

#[test]
fn a_probe_of_segue_is_shown_and_another_control_message_is_data() {
    if which("tshark").is_none() {
        return skip(test_name!(), "not installed: tshark");
    }
    let directory = capture::Directory::new();
    let fields =
        ["frame.protocols", "gue.ctype", "gue.probe.kind", "gue.probe.proto", "gue.probe.key", "gue.probe.nonce"];
    // The format of docs/health.md: an echo request of `mode gre` with key 7.
    let probe = [&[0x20, 0xd1, 0, 0][..], b"SGP\x01", &[2, 47, 1, 0, 0, 0, 0, 7], b"question"].concat();
    let packets = shown(&alone(&directory, &probe), &[], &fields);
    assert_eq!(packets[0][1..], ["209", "2", "47", "7", "7175657374696f6e"], "{packets:?}");
    let packets = shown(&alone(&directory, &probe[..20]), &[], &fields);
    assert!(packets[0][0].ends_with(":gue:data") && packets[0][2].is_empty(), "{packets:?}");
}
