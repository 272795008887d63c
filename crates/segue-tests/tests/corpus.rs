//! Replays the committed corpus of the fuzz targets, so that faults that the fuzzer found stay fixed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use segue_fuzz::{READERS, TARGETS};
use segue_testkit::{Rng, is_set};

fn entries(folder: &str) -> Vec<std::path::PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz")).join(folder);
    let mut found: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    found.sort();
    found
}

/// Returns the inputs of a target that were written by hand or found by the fuzzer, without those that were generated
/// to reach more lines (`fuzz/examples/grow.rs`).
fn seeds(name: &str) -> Vec<std::path::PathBuf> {
    let is_grown = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("reaches-"));
    entries(&format!("corpus/{name}")).into_iter().filter(|path| !is_grown(path)).collect()
}

#[test]
fn every_target_holds_on_its_corpus() {
    for (name, target) in TARGETS {
        let inputs = entries(&format!("corpus/{name}"));
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for input in inputs {
            // A panic says what broke; this says on which input.
            eprintln!("{}", input.display());
            target(&fs::read(&input).expect("a readable input"));
        }
    }
}

/// Runs every target on all cuts of some forty of its seeds, and of all seeds with `SEGUE_SOAK=1`.
#[test]
fn every_target_holds_on_all_cuts_of_its_seeds() {
    for (name, target) in TARGETS {
        let inputs = seeds(name);
        let step = if is_set("SEGUE_SOAK") { 1 } else { inputs.len().div_ceil(40).max(1) };
        for input in inputs.into_iter().step_by(step) {
            let bytes = fs::read(&input).expect("a readable input");
            for len in 0..bytes.len().min(200) {
                eprintln!("{} cut to {len}", input.display());
                target(&bytes[..len]);
            }
        }
    }
}

/// Mutates an input at a few positions: bits, bytes that matter to parsers, lengths, pieces of itself or of another
/// one.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        let len = rng.below(12).min(bytes.len() - at);
        match rng.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            1 if at < bytes.len() => bytes[at] = [0, 1, 0x45, 0x60, 0x7f, 0x80, 0xfe, 0xff][rng.below(8)],
            2 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
            3 => drop(bytes.drain(at..at + len)),
            4 => {
                let piece = bytes[at..at + len].to_vec();
                let to = rng.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            5 if !other.is_empty() => {
                let from = rng.below(other.len());
                let piece = other[from..(from + 1 + rng.below(64)).min(other.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            6 if at + 4 <= bytes.len() => {
                bytes[at..at + 4].copy_from_slice(&(rng.next_u64() as u32 >> 16).to_be_bytes())
            }
            _ => bytes.truncate(at.max(bytes.len() / 2)),
        }
    }
}

/// Runs every target on randomly damaged inputs of its corpus: a sample, and 200 times as many with `SEGUE_SOAK=1`,
/// from a printed seed taken from the clock.
#[test]
fn every_target_holds_on_damaged_inputs() {
    let (seed, times) = if is_set("SEGUE_SOAK") {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        (now.map_or(0, |time| time.as_nanos() as u64), 2000)
    } else {
        (0x5e67_7565, 10)
    };
    println!("seed {seed}");
    for (name, target) in TARGETS {
        let inputs: Vec<Vec<u8>> = seeds(name).iter().map(|path| fs::read(path).expect("a readable input")).collect();
        let mut rng = Rng::new(seed);
        for number in 0..inputs.len() * times {
            let mut bytes = inputs[number % inputs.len()].clone();
            let other = rng.below(inputs.len());
            damage(&mut rng, &mut bytes, &inputs[other]);
            let found = std::panic::catch_unwind(|| target(&bytes));
            if found.is_err() {
                let path = std::env::temp_dir().join(format!("segue-fuzz-{name}-{number}"));
                fs::write(&path, &bytes).expect("a temporary file");
                panic!("{name}, seed {seed}, input {number}: {}; run `tools/fuzz-runs found {name}`", path.display());
            }
        }
    }
}

/// Tests that memory, the output beside the headers that are asked for, and the number of allocations grow at most in
/// proportion to the input, with inputs of doubling size. `tools/trust.d/05-linear` counts instructions.
#[test]
fn memory_allocations_and_output_of_each_reader_grow_no_more_than_its_input() {
    for reader in READERS {
        let [small, middle, large] = [200, 400, 800].map(|count| reader.cost(count));
        println!("{}: {small:?} {middle:?} {large:?}", reader.name);
        let most = 20 * (large.len - small.len);
        assert!(large.memory.saturating_sub(small.memory) <= most, "{}: {small:?} {large:?}", reader.name);
        assert!(large.output.saturating_sub(small.output) <= most, "{}: {small:?} {large:?}", reader.name);
        let [first, second] =
            [(small, middle), (middle, large)].map(|(a, b)| b.allocations.saturating_sub(a.allocations));
        assert!(second <= 2 * first + first / 2 + 20, "{}: {first}, then {second} allocations", reader.name);
    }
}

#[test]
fn every_target_has_a_program_and_a_corpus() {
    let named: BTreeSet<String> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
    let stems = |folder| -> BTreeSet<String> {
        entries(folder).iter().map(|p| p.file_stem().expect("a name").to_string_lossy().into_owned()).collect()
    };
    assert_eq!(named, stems("fuzz_targets"));
    assert_eq!(named, stems("corpus"));
}
