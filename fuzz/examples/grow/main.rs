//! Grows the corpus of a target on the stable toolchain: `grow TARGET SECONDS SEED FROM TO`. Inputs of the folder FROM
//! are damaged and joined; one that reaches code that no other has reached is written to the folder TO. In 0 seconds
//! those of FROM are written that are needed for what all reach, the shortest first. It must be built with `-C
//! instrument-coverage`, whose counters it reads.

mod sys;

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use segue_testkit::Rng;
use sys::counters;

/// Beginning of the names of inputs that were grown.
const GROWN: &str = "reaches-";

/// Records the lines that have been reached; returns how many of them are new.
fn note(seen: &mut [bool]) -> usize {
    let new = counters().iter().zip(seen.iter_mut()).filter(|(count, seen)| **count != 0 && !**seen);
    new.map(|(_, seen)| *seen = true).count()
}

/// Mutates an input at a few positions, and inserts pieces of another one.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    const LIKELY: [u8; 20] = [0, 1, 2, 4, 5, 6, 8, 11, 12, 17, 41, 43, 44, 47, 58, 60, 0x45, 0x60, 0x7f, 0xff];
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        let len = rng.below(24).min(bytes.len() - at);
        match rng.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            1 | 2 if at < bytes.len() => bytes[at] = LIKELY[rng.below(LIKELY.len())],
            3 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
            4 => drop(bytes.drain(at..at + len)),
            5 => {
                let piece = bytes[at..at + len].to_vec();
                let to = rng.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            6 | 7 if !other.is_empty() => {
                let from = rng.below(other.len());
                let piece = other[from..(from + 1 + rng.below(120)).min(other.len())].to_vec();
                let end = if rng.chance(500) { (at + piece.len()).min(bytes.len()) } else { at };
                bytes.splice(at..end, piece);
            }
            _ if rng.chance(300) => bytes.truncate(at.max(bytes.len() / 2)),
            _ => {}
        }
    }
}

/// Writes an input that reaches more than others.
fn keep(folder: &str, bytes: &[u8]) {
    let mut hash = DefaultHasher::new();
    bytes.hash(&mut hash);
    let path = Path::new(folder).join(format!("{GROWN}{:08x}", hash.finish() as u32));
    fs::write(path, bytes).expect("a folder that can be written to");
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, seconds, seed, from, to] = &words[..] else {
        eprintln!("usage: grow TARGET SECONDS SEED FROM TO");
        return ExitCode::FAILURE;
    };
    let target = segue_fuzz::TARGETS.iter().find(|(target, _)| target == name);
    let (Some((_, target)), Ok(seconds), Ok(seed)) = (target, seconds.parse(), seed.parse()) else {
        eprintln!("grow: no target {name}, or no number");
        return ExitCode::FAILURE;
    };
    let mut seen = vec![false; counters().len()];
    let mut inputs: Vec<(bool, Vec<u8>)> = Vec::new();
    for entry in Path::new(from).read_dir().expect("a readable folder") {
        let path = entry.expect("a readable folder").path();
        let is_grown = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(GROWN));
        inputs.push((is_grown, fs::read(path).expect("a readable file")));
    }
    // The seeds are there anyway.
    inputs.sort_by_key(|(is_grown, bytes)| (*is_grown, bytes.len()));
    let mut kept = 0;
    for (is_grown, bytes) in &inputs {
        target(bytes);
        if note(&mut seen) > 0 && *is_grown && seconds == 0 {
            keep(to, bytes);
            kept += 1;
        }
    }
    let mut inputs: Vec<Vec<u8>> = inputs.into_iter().map(|(_, bytes)| bytes).collect();
    let (begin, mut rng, mut runs) = (Instant::now(), Rng::new(seed), 0_u64);
    while begin.elapsed() < Duration::from_secs(seconds) {
        let mut bytes = inputs[rng.below(inputs.len())].clone();
        let other = rng.below(inputs.len());
        damage(&mut rng, &mut bytes, &inputs[other]);
        bytes.truncate(1 << 12);
        target(&bytes);
        runs += 1;
        if note(&mut seen) > 0 {
            keep(to, &bytes);
            inputs.push(bytes);
            kept += 1;
        }
    }
    println!("{name}: {runs} runs in {seconds} s, {kept} inputs reach more");
    ExitCode::SUCCESS
}
