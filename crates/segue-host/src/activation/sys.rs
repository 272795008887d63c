//! Sockets that the service manager passes in the environment.
#![allow(unsafe_code, reason = "a descriptor that the environment names is taken over")]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// The first descriptor that is passed (SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;

/// Descriptors with an owner, so that none gets a second one.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Returns whether a descriptor was taken over, and so has an owner.
pub(crate) fn is_taken(fd: RawFd) -> bool {
    TAKEN.lock().is_ok_and(|taken| taken.contains(&fd))
}

/// Records that a descriptor is taken over; returns `false` if it already was.
pub(crate) fn take(fd: RawFd) -> bool {
    TAKEN.lock().is_ok_and(|mut taken| {
        let is_free = !taken.contains(&fd);
        if is_free {
            taken.push(fd);
        }
        is_free
    })
}

/// Takes over the descriptor with this name, the first one of several.
pub(super) fn passed(name: &str) -> Option<OwnedFd> {
    let variable = |name: &str| std::env::var(name).ok();
    let pid = variable("LISTEN_PID")?.parse::<u32>().ok()?;
    let count = variable("LISTEN_FDS")?.parse::<RawFd>().ok()?;
    if pid != std::process::id() {
        return None;
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let at = names.split(':').position(|known| known == name)?;
    let fd = FIRST + RawFd::try_from(at).ok().filter(|at| *at < count)?;
    let mut taken = TAKEN.lock().ok()?;
    if taken.contains(&fd) {
        return None;
    }
    // SAFETY: fcntl takes plain numbers. The service manager passes the descriptor to this process, nothing else of the
    // program uses it, and TAKEN makes sure that it is taken over once.
    unsafe {
        if libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) != 0 {
            return None;
        }
        taken.push(fd);
        Some(OwnedFd::from_raw_fd(fd))
    }
}
