//! 200,000 damaged frames through merge and split, as captures: nothing panics, a merge is undone exactly, memory stays where
//! it is. With `SEGUE_SOAK=1` it is 10 million, from a seed that the clock gives and that is printed.

mod common;
#[path = "common/shapes.rs"]
mod shapes;

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use common::{Place, SEGUE};
use segue_capture::file::link;
use segue_testkit::Rng;
use shapes::{Shape, capture, framed, packets};

/// Frames of one file.
const FRAMES: usize = 50_000;

fn run(place: &Place, what: &str, line: &str) -> serde_json::Value {
    let args = line.split_whitespace();
    let output = common::command(SEGUE, place).arg("pcap").args(args).current_dir(place.path()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{what}: {line}: {stdout} {stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// Leaves most alone, and damages the rest where it hurts.
fn damage(rng: &mut Rng, frame: &mut Vec<u8>) {
    for _ in 0..[0, 0, 1, 1, 3][rng.below(5)] {
        if frame.is_empty() {
            return;
        }
        let at = rng.below(frame.len().min(100));
        match rng.below(6) {
            0 => frame[at] ^= 1 << rng.below(8),
            1 => frame[at] = rng.next_u64() as u8,
            2 => frame.truncate(at),
            3 => {
                let more = rng.below(20);
                frame.extend(rng.bytes(more));
            }
            4 => {
                let len = rng.below(8);
                frame.splice(at..at, rng.bytes(len));
            }
            _ => frame[at] = [0, 0x0f, 0x45, 0x60, 0x80, 0xff][rng.below(6)],
        }
    }
}

#[test]
fn damaged_frames_go_through_merge_and_split_and_come_back_as_they_were() {
    let soak = segue_testkit::is_set("SEGUE_SOAK");
    let (seed, count) = if soak {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        println!("seed {seed}");
        (seed, 10_000_000)
    } else {
        (0x5e67_7565, 200_000)
    };
    let mut rng = Rng::new(seed);
    let traffic = ["mixed", "faults", "tiny", "udp", "gue", "gre", "ipip", "unfinished"];
    let (mut trains, mut swallowed) = (0, 0);
    for round in 0..count / FRAMES {
        let place = Place::new();
        let link = [link::ETHERNET, link::RAW, link::COOKED][round % 3];
        let mut frames = Vec::with_capacity(FRAMES);
        while frames.len() < FRAMES {
            for packet in packets(traffic[rng.below(traffic.len())], &mut rng).into_iter().take(400) {
                let mut frame = framed(link, &packet, &mut rng);
                damage(&mut rng, &mut frame);
                frames.push(frame);
            }
        }
        frames.truncate(FRAMES);
        let shape = Shape { seed, traffic: "", link, form: "ng" };
        let what = format!("seed {seed}, round {round}");
        fs::write(place.path().join("in.pcapng"), capture(&shape, &frames, &mut rng)).unwrap();
        let file = fs::read(place.path().join("in.pcapng")).unwrap();
        for profile in ["strict", "linux", "lro"] {
            let merged = run(&place, &what, &format!("merge in.pcapng m.pcapng -f -j --profile {profile}"));
            trains += merged["trains"].as_u64().unwrap();
            swallowed += merged["swallowed"].as_u64().unwrap();
            if merged["undo"] == true {
                run(&place, &what, "split --undo m.pcapng u.pcapng -f -j");
                assert!(fs::read(place.path().join("u.pcapng")).unwrap() == file, "{what}: {profile}");
            }
            let split = run(&place, &what, "split m.pcapng s.pcapng -f -j --mss 536");
            assert!(split["packets_out"].as_u64() >= split["packets_in"].as_u64(), "{what}: {split}");
        }
        run(&place, &what, "split in.pcapng s.pcapng -f -j --fix-checksums all");
    }
    assert!(trains > count as u64 / 200, "{trains} trains, {swallowed} swallowed");
}
