//! Event loop on io_uring.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::IoUring;
use io_uring::types::{SubmitArgs, Timespec};

use crate::sys::watch;
use crate::{Endpoint, Side};

/// Runs an endpoint until `stop` is set. Each descriptor has one request in the ring, which is made anew after it was
/// drained.
pub fn run(mut end: Endpoint, stop: &AtomicBool) -> io::Result<()> {
    let (mut ring, pause) = (IoUring::new(8)?, Timespec::new().nsec(100_000_000));
    let fds = [end.tun.as_fd().as_raw_fd(), end.socket.as_fd().as_raw_fd()];
    (0..fds.len()).try_for_each(|side| watch(&mut ring, fds[side], side))?;
    while !stop.load(Ordering::Relaxed) {
        match ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&pause)) {
            // ETIME: nothing came.
            Err(error) if error.kind() == ErrorKind::Interrupted || error.raw_os_error() == Some(62) => continue,
            submitted => submitted?,
        };
        let ready: Vec<usize> = ring.completion().map(|entry| entry.user_data() as usize).collect();
        for side in ready {
            end.drain([Side::Tun, Side::Socket][side])?;
            watch(&mut ring, fds[side], side)?;
        }
    }
    Ok(())
}
