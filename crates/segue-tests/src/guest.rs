//! Locates the guest that runs another kernel.

use std::env;
use std::path::{Path, PathBuf};

/// Returns the directory of the guest that `lab/vm-build` built, and the script that boots it.
///
/// # Errors
/// Returns the reason for a test to skip: what is missing.
pub fn find() -> Result<(PathBuf, PathBuf), String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cache = env::var_os("SEGUE_VM_CACHE").map_or_else(|| top.join("target/vm"), PathBuf::from);
    let run = top.join("lab/vm-run");
    for file in ["vmlinux", "initrd.cpio"] {
        if !cache.join(file).exists() {
            return Err(format!("no guest in {} (lab/vm-build)", cache.display()));
        }
    }
    Ok((cache.canonicalize().map_err(|error| error.to_string())?, run))
}
