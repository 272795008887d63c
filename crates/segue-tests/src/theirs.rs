//! Programs of other projects, built by `lab/go-build` from the Go module proxy.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use segue_lab::skip;

/// Returns the path of the program `name`, which is built if it does not exist yet. `None` where this machine cannot
/// make it, which is noted under `test`.
///
/// # Panics
///
/// Where its build fails.
pub fn program(test: &str, name: &str) -> Option<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = env::var_os("CARGO_TARGET_DIR").map_or(top.join("target"), PathBuf::from).join("go");
    let output = Command::new(top.join("lab/go-build")).arg(name).arg(&folder).output().expect("lab/go-build runs");
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Some(folder.join(name).canonicalize().expect("the program is there")),
        Some(2) => {
            skip(test, said.trim());
            None
        }
        _ => panic!("lab/go-build {name}: {said}"),
    }
}
