//! Replays the committed corpus of the fuzz targets, so that faults that the fuzzer found stay fixed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use segue_fuzz::TARGETS;

fn entries(folder: &str) -> Vec<std::path::PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz")).join(folder);
    let mut found: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    found.sort();
    found
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

#[test]
fn every_target_holds_on_all_cuts_of_its_seeds() {
    for (name, target) in TARGETS {
        for input in entries(&format!("corpus/{name}")) {
            let bytes = fs::read(&input).expect("a readable input");
            for len in 0..bytes.len().min(200) {
                eprintln!("{} cut to {len}", input.display());
                target(&bytes[..len]);
            }
        }
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
