//! Requests of io_uring, whose crate requires the user to keep the memory of an entry alive until it completes.
#![allow(unsafe_code, reason = "the submission queue takes entries by an unsafe call only")]

use std::io;
use std::os::fd::RawFd;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

/// Asks the ring to report when a descriptor is readable; the completion has `side` as its user data.
pub(crate) fn watch(ring: &mut IoUring, fd: RawFd, side: usize) -> io::Result<()> {
    const READABLE: u32 = 1;
    let entry = opcode::PollAdd::new(Fd(fd), READABLE).build().user_data(side as u64);
    // SAFETY: the entry points to nothing.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)
}
