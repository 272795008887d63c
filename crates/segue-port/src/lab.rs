//! For tests: a network namespace of one's own, and the note that a test was skipped.

use std::io::Write;
use std::process::Command;

use crate::sys;

/// Moves this thread into a fresh network namespace whose loopback interface is up. `None`, with the reason printed and
/// appended to the file that `SEGUE_SKIPS` names, where that is not permitted.
pub(crate) fn namespace(test: &str) -> Option<()> {
    if let Err(error) = sys::unshare_network() {
        skip(test, &format!("no network namespace: {error}"));
        return None;
    }
    ip("link set lo up");
    Some(())
}

/// Notes that a test did not run.
pub(crate) fn skip(test: &str, reason: &str) {
    eprintln!("skipped {test}: {reason}");
    if let Some(path) = std::env::var_os("SEGUE_SKIPS")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = writeln!(file, "segue-port {test}: {reason}");
    }
}

/// Runs `ip` with `arguments` in this thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
