//! The system call behind [`super::PollSet`].
#![allow(unsafe_code, reason = "a system call without a safe wrapper in std")]

use std::io;
use std::time::Duration;

/// Waits for the events of `fds`, or until the timeout expires (ppoll(2)); returns the number of descriptors with
/// events.
pub(super) fn ppoll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let spec = timeout.map(|t| libc::timespec {
        // At most 68 years: the field has 32 bits on some machines.
        tv_sec: t.as_secs().min(i32::MAX as u64) as _,
        tv_nsec: libc::c_long::from(t.subsec_nanos() as i32),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice holds as many pollfd values as are announced and outlives the call; `spec` is null or points to
    // a timespec on this stack frame; no signal mask is passed.
    let found = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, spec, std::ptr::null()) };
    usize::try_from(found).map_err(|_| io::Error::last_os_error())
}
