//! Test with a capture of iperf3 between two namespaces, with trains and partial checksums: it is split, and merged and
//! undone.

mod common;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fs, process};

use common::{by, merge, merging, split, undo, verify};
use segue::gro::Profile;
use segue_capture::file::{Format, Item, Reader, link};
use segue_capture::merge::MergeRules;
use segue_capture::split::SegmentSize;

/// Script with two hosts and a link of 1500 bytes without segmentation and checksums, and a capture on the sender's
/// end, which is complete once the last packet, an echo request filled with `segue`, is in its file.
const SCRIPT: &str = "set -eu
mount -t tmpfs none /run
ip link set lo up
ip netns add other
ip link add eth0 type veth peer name eth1 netns other
ip addr add 198.18.0.1/24 dev eth0
ip addr add 2001:db8::1/64 dev eth0 nodad
ip link set eth0 up
ip netns exec other ip addr add 198.18.0.2/24 dev eth1
ip netns exec other ip addr add 2001:db8::2/64 dev eth1 nodad
ip netns exec other ip link set eth1 up
ip netns exec other ip link set lo up
ip netns exec other iperf3 -s >/dev/null 2>&1 &
tcpdump -i eth0 -s 0 -B 16384 -U --time-stamp-precision=nano -w $OUT/live.pcap 2>$OUT/tcpdump.log &
dump=$!
until grep -q listening $OUT/tcpdump.log && ip netns exec other ss -ltn | grep -q 5201; do sleep 0.05; done
iperf3 -c 198.18.0.2 -n 6M >/dev/null
iperf3 -c 2001:db8::2 -n 6M >/dev/null
iperf3 -c 198.18.0.2 -R -n 3M >/dev/null
ping -c 1 -p 7365677565 198.18.0.2 >/dev/null
until grep -q seguesegue $OUT/live.pcap; do sleep 0.05; done
kill -INT $dump
wait $dump
";

fn has(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Returns whether a network namespace can be created here.
fn can_unshare() -> bool {
    let made =
        Command::new("unshare").args(["--net", "--mount", "--pid", "--fork", "true"]).stderr(Stdio::null()).status();
    made.is_ok_and(|status| status.success())
}

/// A temporary directory of this test, deleted when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        let path = env::temp_dir().join(format!("segue-capture-live-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns time and bytes of each frame of a file.
fn frames(file: &[u8]) -> Vec<(Option<u64>, Vec<u8>)> {
    let mut reader = Reader::new(file).unwrap();
    let mut frames = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        if let Item::Packet(record) = item {
            assert_eq!((record.link, record.is_cut()), (link::ETHERNET, false));
            frames.push((record.nanos, record.data().to_vec()));
        }
    }
    frames
}

/// Returns the TCP payload of each connection and direction, by sequence number, from a plain parse of the frames.
fn streams(
    frames: &[(Option<u64>, Vec<u8>)],
) -> std::collections::BTreeMap<Vec<u8>, std::collections::BTreeMap<u32, u8>> {
    let mut streams = std::collections::BTreeMap::<Vec<u8>, std::collections::BTreeMap<u32, u8>>::new();
    for (_, frame) in frames {
        let (tcp, end, key) = match frame[12..14] {
            [8, 0] if frame[23] == 6 => (
                14 + usize::from(frame[14] & 15) * 4,
                14 + usize::from(u16::from_be_bytes([frame[16], frame[17]])),
                26..34,
            ),
            [0x86, 0xdd] if frame[20] == 6 => {
                (54, 54 + usize::from(u16::from_be_bytes([frame[18], frame[19]])), 22..54)
            }
            _ => continue,
        };
        let data = tcp + usize::from(frame[tcp + 12] >> 4) * 4;
        let seq = u32::from_be_bytes(frame[tcp + 4..tcp + 8].try_into().unwrap());
        let stream = streams.entry([&frame[key], &frame[tcp..tcp + 4]].concat()).or_default();
        // Every hundredth byte tells enough and keeps the test small.
        for (at, byte) in frame[data..end].iter().enumerate() {
            let at = seq.wrapping_add(at as u32);
            if at % 97 == 0 {
                stream.insert(at, *byte);
            }
        }
    }
    streams
}

#[test]
fn a_live_offloaded_capture_splits_to_what_a_wire_would_have_had_and_merges_without_loss() {
    let missing: Vec<&str> =
        ["iperf3", "ping", "tcpdump", "tshark"].into_iter().filter(|program| !has(program)).collect();
    if !missing.is_empty() {
        return segue_lab::skip_this_test(&format!("not installed: {}", missing.join(" ")));
    }
    if !can_unshare() {
        return segue_lab::skip_this_test("no network namespace can be made here (run as root)");
    }
    let directory = Directory::new();
    let output = Command::new("unshare")
        .args([
            "--net",
            "--mount",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
            "timeout",
            "-k",
            "1",
            "40",
            "sh",
            "-c",
        ])
        .arg(SCRIPT)
        .env("OUT", &directory.0)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let live = fs::read(directory.0.join("live.pcap")).unwrap();
    let live_frames = frames(&live);
    let is_large = |frame: &&(Option<u64>, Vec<u8>)| frame.1.len() > 9000;
    assert!(live_frames.iter().filter(is_large).count() > 20, "the capture holds no trains");
    let mut wire = Vec::new();
    for size in [SegmentSize::Learned, SegmentSize::Mtu(1500)] {
        (wire, _) = split(&live, Format::Pcap, &by(size)).unwrap();
        let wire_frames = frames(&wire);
        let longest = wire_frames.iter().map(|(_, frame)| frame.len()).max();
        assert_eq!(longest, Some(1514), "{size:?}: the longest frame");
        assert!(streams(&live_frames) == streams(&wire_frames), "{size:?}: other bytes in the streams");
        let path = directory.0.join("wire.pcap");
        fs::write(&path, &wire).unwrap();
        let checks = ["-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"];
        let judge = |filter: &str| {
            let output =
                Command::new("tshark").arg("-n").args(checks).args(["-Y", filter, "-r"]).arg(&path).output().unwrap();
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(judge("tcp.checksum.status==0 || udp.checksum.status==0 || ip.checksum.status==0"), [""; 0]);
        // The other way round: every packet was looked at.
        assert_eq!(judge("tcp && tcp.checksum.status==1").len(), judge("tcp").len());
        assert!(judge("tcp").len() > 6000);
        let (_, report) = verify(&wire, Some(1500));
        assert!(report.is_good() && report.unfinished + report.cut + report.above_mtu == 0, "{report:?}");
    }

    // What a wire had is merged, and the live capture as well, trains and all.
    for (what, input) in [("wire", &wire), ("live", &live)] {
        for profile in [Profile::Strict, Profile::linux()] {
            let rules = MergeRules { profile, ..MergeRules::default() };
            let (merged, report) = merge(input, Format::Pcapng, &merging(rules)).unwrap();
            assert!(what == "live" || report.packets_in > 2 * report.packets_out, "{report:?}");
            assert!(undo(&merged, Format::Pcap).unwrap().0 == *input, "{what} {profile:?}: not the same");
        }
    }
}
