//! A capture of iperf3 between two namespaces, where trains and unfinished checksums pass: split, and merged and undone.

mod common;

use std::fs;
use std::process::Command;

use common::{Place, SEGUE, can_unshare};
use segue_capture::file::{Item, Reader, link};

/// Two hosts with a link of 1500 bytes, whose ends segment and check nothing themselves, and a capture on the sender's.
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
tcpdump -i eth0 -s 0 -B 16384 --time-stamp-precision=nano -w $OUT/live.pcap 2>$OUT/tcpdump.log &
dump=$!
for n in 1 2 3 4 5 6 7 8 9 10; do
  if grep -q listening $OUT/tcpdump.log && ip netns exec other ss -ltn | grep -q 5201; then break; fi
  sleep 0.2
done
iperf3 -c 198.18.0.2 -n 6M >/dev/null
iperf3 -c 2001:db8::2 -n 6M >/dev/null
iperf3 -c 198.18.0.2 -R -n 3M >/dev/null
sleep 0.3
kill -INT $dump
wait $dump
";

fn has(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Frames of a file: lengths and IP lengths.
fn frames(path: &str) -> Vec<(Option<u64>, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut frames = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        if let Item::Packet(record) = item {
            assert_eq!((record.link, record.is_cut()), (link::ETHERNET, false));
            frames.push((record.nanos, record.data().to_vec()));
        }
    }
    frames
}

/// The TCP payload of each connection and direction, by sequence number, as a plain reading of the frames gives it.
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
    let missing: Vec<&str> = ["iperf3", "tcpdump", "tshark"].into_iter().filter(|program| !has(program)).collect();
    if !missing.is_empty() || !can_unshare() {
        println!("skipped: no network namespace can be made here, or missing: {}", missing.join(" "));
        return;
    }
    let place = Place::new();
    let path = |name: &str| place.path().join(name).display().to_string();
    let output = common::command("unshare", &place)
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
        .env("OUT", place.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let live = frames(&path("live.pcap"));
    assert!(live.iter().filter(|(_, frame)| frame.len() > 9000).count() > 20, "the capture holds no trains");
    let pcap = |args: &[&str]| {
        let output = common::command(SEGUE, &place).arg("pcap").args(args).output().unwrap();
        assert!(output.status.success(), "{args:?} {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };

    for more in [&[][..], &["--mtu", "1500"]] {
        pcap(&[&["split", &path("live.pcap"), &path("wire.pcap"), "-f", "-j"], more].concat());
        let wire = frames(&path("wire.pcap"));
        let longest = wire.iter().map(|(_, frame)| frame.len()).max();
        assert!(longest.is_some_and(|longest| longest == 1514), "{more:?}: the longest frame has {longest:?} bytes");
        assert!(streams(&live) == streams(&wire), "{more:?}: other bytes in the streams");
        let checks = ["-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"];
        let judge = |filter: &str| {
            let output = Command::new("tshark")
                .arg("-n")
                .args(checks)
                .args(["-Y", filter, "-r", &path("wire.pcap")])
                .output()
                .unwrap();
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(judge("tcp.checksum.status==0 || udp.checksum.status==0 || ip.checksum.status==0"), [""; 0]);
        // The other way round: every packet was looked at.
        assert_eq!(judge("tcp && tcp.checksum.status==1").len(), judge("tcp").len());
        assert!(judge("tcp").len() > 6000);
        assert!(pcap(&["verify", &path("wire.pcap"), "--mtu", "1500"]).is_empty());
    }

    // What a wire had is merged, and the live capture as well, trains and all.
    for input in ["wire.pcap", "live.pcap"] {
        for profile in ["strict", "linux"] {
            let (input, merged, undone) = (path(input), path("merged.pcapng"), path("undone.pcap"));
            let summary = pcap(&["merge", &input, &merged, "-f", "-j", "--profile", profile]);
            let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
            if input.ends_with("wire.pcap") {
                assert!(summary["ratio"].as_f64().unwrap() > 2.0, "{summary}");
            }
            pcap(&["split", "--undo", &merged, &undone, "-f"]);
            assert!(fs::read(&input).unwrap() == fs::read(&undone).unwrap(), "{input} {profile}: not the same");
        }
    }
}
