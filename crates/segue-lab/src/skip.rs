//! Functions by which a test reports that it cannot run here.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;
use std::path::Path;
use std::thread;

/// Records that the test `name` cannot run on this machine: prints `skipped: REASON` on stderr and appends the line
/// `NAME: REASON` to the file that the environment variable `SEGUE_SKIPS` names, where it is set. The caller then
/// returns.
///
/// # Panics
/// Panics when that file cannot be written to, because a skip that is not counted would look like a success.
pub fn skip(name: &str, reason: &str) {
    let reason = reason.trim().replace('\n', "; ");
    eprintln!("skipped: {reason}");
    if let Some(path) = env::var_os("SEGUE_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("cannot note a skip in {}: {error}", Path::new(&path).display()));
    }
}

/// Records a skip like [`skip`] for the calling test, named after the test program and the current thread, which
/// libtest names after the test. Where all tests run on the main thread (`--test-threads=1`) the place of the call
/// stands for the name.
#[track_caller]
pub fn skip_this_test(reason: &str) {
    let program = env::current_exe().ok();
    let stem = program.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
    let stem = stem.unwrap_or_default();
    // Cargo appends a hash to the name of a test program.
    let program = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _)| name);
    let place = Location::caller();
    let test = match thread::current().name() {
        None | Some("main") => format!("{} line {}", place.file(), place.line()),
        Some(name) => name.to_owned(),
    };
    skip(&format!("{program}::{test}"), reason);
}
