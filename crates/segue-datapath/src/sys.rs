//! The system calls of the loop: `epoll`, the pause of a stalled worker, and its processor time.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use segue::time::Nanos;

/// An epoll set that finds the readable descriptors among many with one call.
pub(crate) struct Ready {
    epoll: OwnedFd,
    events: [libc::epoll_event; Ready::MOST],
}

impl Ready {
    /// Largest number of descriptors found by one call; the kernel reports further ones at the next call.
    pub(crate) const MOST: usize = 64;

    /// Creates a set of the given descriptors, which must stay open while it lives.
    pub(crate) fn new<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<Ready> {
        // SAFETY: takes no pointers; a descriptor that it returns has no other owner.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let ready = Ready { epoll, events: [libc::epoll_event { events: 0, u64: 0 }; Ready::MOST] };
        for (number, fd) in fds.enumerate() {
            ready.add(number, fd)?;
        }
        Ok(ready)
    }

    /// Adds a descriptor under the given number.
    pub(crate) fn add(&self, number: usize, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, number, fd)
    }

    /// Removes a descriptor; one that was never added is ignored.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = self.control(libc::EPOLL_CTL_DEL, 0, fd);
    }

    fn control(&self, call: libc::c_int, number: usize, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
        // SAFETY: `event` is a valid epoll_event for the length of the call.
        let result = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), call, fd.as_raw_fd(), &raw mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Polls for readable descriptors without waiting. Returns how many were found, and whether there may be more.
    pub(crate) fn poll(&mut self) -> io::Result<(usize, bool)> {
        let most = Ready::MOST as libc::c_int;
        let (fd, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: the array has room for `most` events, and the signal mask stays as it is.
        let found = unsafe { libc::epoll_pwait(fd, events, most, 0, std::ptr::null()) };
        match usize::try_from(found) {
            Ok(found) => Ok((found, found == Ready::MOST)),
            Err(_) => match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EFAULT | libc::EINVAL)) => Err(error),
                // A signal, or a lack of memory.
                _ => Ok((0, true)),
            },
        }
    }

    /// Returns the number of the `at`th readable descriptor.
    pub(crate) fn at(&self, at: usize) -> usize {
        self.events.get(at).map_or(usize::MAX, |event| event.u64 as usize)
    }

    /// Returns the descriptor of the set, which is readable when one of its descriptors is.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Sleeps, or returns at once when a signal arrives; unlike the standard library's function, it always makes the system
/// call that the filter of a packet-moving process allows, with every C library.
pub(crate) fn pause(time: Duration) {
    let seconds = time.as_secs().min(i32::MAX as u64) as _;
    let time = libc::timespec { tv_sec: seconds, tv_nsec: libc::c_long::from(time.subsec_nanos() as i32) };
    // SAFETY: the kernel reads `time`, which outlives the call, and writes no rest.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const time, std::ptr::null_mut()) };
}

/// Returns the processor time that this thread has used. It is a system call, other than [`segue_port::now`].
pub(crate) fn thread_time() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for a timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
