//! Test of merge and split on captures of 40,000 damaged frames: none panics, and a merge is undone exactly. With
//! `SEGUE_FULL=1` it is 200,000, with `SEGUE_SOAK=1` 10 million, from a seed that the clock gives and that is printed.

mod common;

use std::time::{SystemTime, UNIX_EPOCH};

use common::shapes::{Shape, capture, framed, packets};
use common::{by, learned, merge, merging, split, undo};
use segue::gro::Profile;
use segue_capture::file::{Format, link};
use segue_capture::merge::MergeRules;
use segue_capture::split::SegmentSize;
use segue_testkit::Rng;

/// Minimum number of files: one for each link type, and a second one for the first.
const FILES: usize = 4;

/// Damages some of the frames at critical offsets.
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
        (0x5e67_7565, if segue_testkit::is_set("SEGUE_FULL") { 200_000 } else { 40_000 })
    };
    let len = (count / FILES).min(50_000);
    let mut rng = Rng::new(seed);
    let traffic = ["mixed", "faults", "tiny", "udp", "gue", "gre", "ipip", "unfinished"];
    let (mut trains, mut swallowed) = (0, 0);
    for round in 0..count / len {
        let link = [link::ETHERNET, link::RAW, link::COOKED][round % 3];
        let mut frames = Vec::with_capacity(len);
        while frames.len() < len {
            for packet in packets(traffic[rng.below(traffic.len())], &mut rng).into_iter().take(400) {
                let mut frame = framed(link, &packet, &mut rng);
                damage(&mut rng, &mut frame);
                frames.push(frame);
            }
        }
        frames.truncate(len);
        let shape = Shape { seed, traffic: "", link, form: "ng" };
        let what = format!("seed {seed}, round {round}");
        let input = capture(&shape, &frames, &mut rng);
        for profile in [Profile::Strict, Profile::linux(), Profile::Lro] {
            let config = merging(MergeRules { profile, ..MergeRules::default() });
            let (merged, report) = merge(&input, Format::Pcapng, &config).unwrap();
            trains += report.gro.trains;
            swallowed += report.gro.swallowed;
            if report.can_undo {
                assert!(undo(&merged, Format::Pcapng).unwrap().0 == input, "{what}: {profile:?}");
            }
            let (_, report) = split(&merged, Format::Pcapng, &by(SegmentSize::Mss(536))).unwrap();
            assert!(report.packets_out >= report.packets_in, "{what}: {report:?}");
        }
        split(&input, Format::Pcapng, &learned(true)).unwrap();
    }
    assert!(trains > count as u64 / 200, "{trains} trains, {swallowed} swallowed");
}
