//! System calls that the standard library lacks: `ppoll` and the monotonic clock.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use segue::time::Nanos;

/// What to wait for on a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl<'a> Interest<'a> {
    pub(crate) fn read(fd: BorrowedFd<'a>) -> Interest<'a> {
        Interest { fd, read: true, write: false }
    }
}

/// Waits until one of the descriptors is ready or the time is over; which ones are.
pub(crate) fn wait(interests: &[Interest<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let events =
        |one: &Interest<'_>| (if one.read { libc::POLLIN } else { 0 }) | (if one.write { libc::POLLOUT } else { 0 });
    let mut fds: Vec<libc::pollfd> =
        interests.iter().map(|one| libc::pollfd { fd: one.fd.as_raw_fd(), events: events(one), revents: 0 }).collect();
    let spec = timeout.map(timespec);
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the vector holds as many pollfd values as are announced and outlives the call; `spec` is null or points to a
    // timespec on this stack frame; no signal mask is passed.
    let result = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, spec, std::ptr::null()) };
    if result < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        fds.iter_mut().for_each(|fd| fd.revents = 0);
    }
    Ok(fds.iter().map(|fd| fd.revents != 0).collect())
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
    }
}

/// The monotonic clock.
pub(crate) fn now() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for a timespec; CLOCK_MONOTONIC exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
