//! Ctrl-C: the first one lets the lab clean up and fail with [`crate::LabError::Interrupted`], the second ends the process.

use std::io;
use std::time::Duration;

use crate::{LabError, sys};

/// From here on SIGINT, SIGTERM and SIGHUP are noted for [`pending`]; a second one ends the process at once with status
/// 130. For programs, once, at their start.
pub fn catch() -> io::Result<()> {
    sys::catch_signals()
}

/// Whether a signal has come since [`catch`].
pub fn pending() -> bool {
    sys::signal_seen()
}

/// Blocks until a signal comes, for a lab that is left running.
pub fn wait() {
    while !pending() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn check() -> Result<(), LabError> {
    if pending() { Err(LabError::Interrupted) } else { Ok(()) }
}
