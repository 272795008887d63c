//! Capture files of earlier starts of an instance.

use std::ffi::OsStr;
use std::path::Path;
use std::{fs, io};

/// Number of capture files of earlier starts that a service keeps of each instance.
const KEPT_TRACES: u32 = 9;

/// Renames the capture files of earlier starts, so that what was traced until a fault is there after the restart:
/// `sg0.pcap` becomes `sg0.1.pcap`, that becomes `sg0.2.pcap`, and so on. Nine are kept.
///
/// # Errors
/// The kernel's, where a file cannot be renamed.
pub fn keep(path: &Path) -> io::Result<()> {
    if !is_full(path) {
        return Ok(());
    }
    // The file itself, where the name is that of a link.
    let path = fs::canonicalize(path)?;
    let numbered = |number: u32| {
        let mut name = path.file_stem().unwrap_or_default().to_owned();
        name.push(format!(".{number}"));
        path.extension().into_iter().for_each(|extension| name.extend([OsStr::new("."), extension]));
        path.with_file_name(name)
    };
    for number in (1..KEPT_TRACES).rev() {
        match fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(&path, numbered(1))
}

/// Returns whether a file has content that must not be lost.
pub fn is_full(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() > 0)
}
