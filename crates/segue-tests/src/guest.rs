//! The guest with another kernel.

use std::env;
use std::path::{Path, PathBuf};

/// Where the guest that `lab/vm-build` made is, and the script that boots it; or what is missing.
///
/// # Errors
/// Why there is none, for a test that skips.
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
