//! Interrupts: the first lets the lab clean up and fail with [`crate::LabError::Interrupted`], the second ends the
//! process.

use std::io;
use std::time::Duration;

use crate::{LabError, sys};

/// Installs handlers that record SIGINT, SIGTERM and SIGHUP for [`pending`]; a second signal ends the process with
/// status 130. SIGHUP stays ignored where it is, as under nohup(1). For programs, once, at their start.
pub fn catch() -> io::Result<()> {
    sys::catch_signals()
}

/// Returns whether a signal has arrived since [`catch`].
pub fn pending() -> bool {
    sys::signal_seen()
}

/// Blocks until a signal arrives, for a lab that is left running.
pub fn wait() {
    while !pending() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn check() -> Result<(), LabError> {
    if pending() { Err(LabError::Interrupted) } else { Ok(()) }
}
