//! Network and mount namespaces of a process.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::check;

/// Moves this process into new namespaces (`flags` of unshare(2)).
pub fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Runs `work` in the network namespace of the file `namespace`, and returns to the former one. Only the calling thread
/// changes its namespace; sockets and devices that `work` opens stay in the other one.
pub fn in_net_namespace<T>(namespace: &File, work: impl FnOnce() -> T) -> io::Result<T> {
    let home = File::open("/proc/thread-self/ns/net")?;
    // SAFETY: plain numbers.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
    let done = work();
    // SAFETY: plain numbers.
    check(unsafe { libc::setns(home.as_raw_fd(), libc::CLONE_NEWNET) })?;
    Ok(done)
}
