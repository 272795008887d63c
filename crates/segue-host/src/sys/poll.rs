//! Waiting for descriptors and for time.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// An event of a descriptor that [`poll`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The descriptor is readable, or the peer has closed.
    Read,
    /// The descriptor is writable.
    Write,
    /// The peer has hung up.
    Hangup,
}

/// Pause after a wait ended by a signal, before no descriptor is reported ready, so that a caller that waits in a loop
/// does not spin.
pub(super) const POLL_PAUSE: Duration = Duration::from_millis(5);
/// Pause after a poll(2) that failed for a reason other than a signal, such as lack of memory, because the next one may
/// fail as well.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

/// Waits until one of `fds` is ready or `timeout` has passed; returns for each whether it is ready. A wait that fails
/// for a moment ends early.
pub fn poll(fds: &[(BorrowedFd<'_>, Want)], timeout: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|(fd, want)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: match want {
                Want::Read => libc::POLLIN,
                Want::Write => libc::POLLOUT,
                // poll(2) reports POLLHUP without a request.
                Want::Hangup => 0,
            },
            revents: 0,
        })
        .collect();
    let longest = timeout;
    // Longer waits than some years are as good as endless ones.
    let seconds = timeout.as_secs().min(i32::MAX as u64) as libc::time_t;
    let timeout = libc::timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos() as _ };
    // SAFETY: the pointer and the length describe `polled`, which outlives the call, as the timeout does; the signal
    // mask stays as it is.
    let ready =
        unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &raw const timeout, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EFAULT | libc::EINVAL | libc::ENOSYS) => return Err(error),
            // The caller waits again, whatever it was.
            Some(libc::EINTR) => pause(POLL_PAUSE.min(longest)),
            _ => pause(FAILED_PAUSE.min(longest)),
        }
        polled.iter_mut().for_each(|entry| entry.revents = 0);
    }
    Ok(polled.iter().map(|entry| entry.revents != 0).collect())
}

/// Sleeps, or returns early when a signal arrives or a seccomp filter refuses the call; the standard library's function
/// panics then.
pub fn pause(time: Duration) {
    let seconds = time.as_secs().min(i32::MAX as u64) as libc::time_t;
    let time = libc::timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos() as _ };
    // SAFETY: the kernel reads `time`, which outlives the call, and writes no rest.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const time, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn poll_says_which_descriptor_is_ready() {
        use std::io::Write;
        let (left, right) = UnixStream::pair().unwrap();
        (&left).write_all(b"x").unwrap();
        let ready = poll(&[(left.as_fd(), Want::Read), (right.as_fd(), Want::Read)], Duration::from_secs(1)).unwrap();
        assert_eq!(ready, [false, true]);
    }
}
