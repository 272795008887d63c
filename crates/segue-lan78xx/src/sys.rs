//! Waiting for descriptors, and system calls that the standard library lacks: `epoll`, `timerfd`.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use segue::time::Nanos;
use segue_port::{Interest, PollSet};

/// Waits until one of the descriptors is ready or the timeout expires; returns which ones are ready.
pub(crate) fn wait(interests: &[Interest<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut set = PollSet::default();
    interests.iter().for_each(|interest| set.add(interest));
    match set.wait(timeout) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
        _ => {}
    }
    let mut ready = vec![false; interests.len()];
    set.ready().for_each(|place| ready[place] = true);
    Ok(ready)
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        // At most 68 years: the field has 32 bits on some machines.
        tv_sec: time.as_secs().min(i32::MAX as u64) as _,
        tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
    }
}

fn own(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call that made the descriptor succeeded, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A timer whose descriptor becomes readable when it expires.
#[derive(Debug)]
pub(crate) struct Timer {
    pub(crate) fd: OwnedFd,
    armed: Option<Nanos>,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Timer> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        Ok(Timer { fd: own(fd)?, armed: None })
    }

    /// Arms the timer for `at`, or disarms it. The descriptor is not readable until then.
    pub(crate) fn arm(&mut self, at: Option<Nanos>, now: Nanos) {
        if self.armed == at && at.is_none_or(|at| at > now) {
            return;
        }
        self.armed = at;
        // A time in the past must not be 0, which disarms.
        let at = at.map_or(Duration::ZERO, |at| Duration::from_nanos(at.0.max(1)));
        let zero = timespec(Duration::ZERO);
        let spec = libc::itimerspec { it_interval: zero, it_value: timespec(at) };
        // SAFETY: the descriptor is a timer, `spec` lives through the call, the old value is not asked for. It cannot
        // fail with these arguments.
        unsafe {
            libc::timerfd_settime(self.fd.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &raw const spec, std::ptr::null_mut())
        };
    }
}

/// An epoll set of descriptors, which is readable when one of them is ready.
#[derive(Debug)]
pub(crate) struct Set(pub(crate) OwnedFd);

impl Set {
    pub(crate) fn new() -> io::Result<Set> {
        // SAFETY: no pointers.
        own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Set)
    }

    /// Adds a descriptor, to wait until it is readable, or with `writing` until it is writable.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, writing: bool) -> io::Result<()> {
        let events = if writing { libc::EPOLLOUT } else { libc::EPOLLIN } as u32;
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: both descriptors are open, and the event lives through the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })
    }

    /// Removes a descriptor; one that is not in the set is ignored.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        let (set, nothing) = (self.0.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: both descriptors are open, and removing takes no event.
        unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd.as_raw_fd(), nothing) };
    }
}
