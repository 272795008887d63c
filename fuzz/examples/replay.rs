//! Runs a target on every file of some folders, once: `replay TARGET FOLDER...`. What it reaches is counted by
//! `tools/trust.d/06-coverage`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, folders)) = words.split_first() else {
        eprintln!("usage: replay TARGET FOLDER...");
        return ExitCode::FAILURE;
    };
    let Some((_, target)) = segue_fuzz::TARGETS.iter().find(|(target, _)| target == name) else {
        eprintln!("replay: no target {name}");
        return ExitCode::FAILURE;
    };
    for folder in folders.iter().map(Path::new).filter(|folder| folder.is_dir()) {
        for entry in folder.read_dir().expect("a readable folder") {
            target(&std::fs::read(entry.expect("a readable folder").path()).expect("a readable file"));
        }
    }
    ExitCode::SUCCESS
}
