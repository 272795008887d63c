//! The line by which a sender says that its load is about to start.

use std::thread;
use std::time::Duration;

/// Time for reading clocks between being ready and sending.
pub(super) const LEAD: Duration = Duration::from_millis(50);

/// Says that all is ready, and gives the one who measures time to read its clocks.
pub(super) fn ready() {
    println!("ready");
    thread::sleep(LEAD);
}
