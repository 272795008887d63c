//! The line by which a sender reports that its load is about to start.

use std::thread;
use std::time::Duration;

/// Pause between the line `ready` and the first byte, in which the measuring process reads its CPU clocks.
pub(super) const LEAD: Duration = Duration::from_millis(50);

/// Prints `ready`, and waits for [`LEAD`] so that the measuring process can read its clocks.
pub(super) fn ready() {
    println!("ready");
    thread::sleep(LEAD);
}
