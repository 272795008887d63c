//! A loop on io_uring.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

use crate::{Endpoint, Side};

/// Runs an end until `stop` is set. Each descriptor has one request in the ring, which is made anew after it was
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

/// Asks the ring to tell when a descriptor is readable.
#[allow(unsafe_code, reason = "the crate leaves it to its user that what an entry points to lives long enough")]
fn watch(ring: &mut IoUring, fd: RawFd, side: usize) -> io::Result<()> {
    const READABLE: u32 = 1;
    let entry = opcode::PollAdd::new(Fd(fd), READABLE).build().user_data(side as u64);
    // SAFETY: the entry points to nothing.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)
}
