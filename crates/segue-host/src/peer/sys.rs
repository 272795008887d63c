//! The options of a local socket that identify its peer.
#![allow(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Largest number of supplementary groups of a process (NGROUPS_MAX).
const GROUPS: usize = 65_536;

/// Returns the ids of the process at the other end.
pub(super) fn credentials(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = mem::size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut cred).cast();
    // SAFETY: `to` and `len` describe `cred`, which outlives the call.
    let done = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(cred) }
}

/// Returns the supplementary groups of the process at the other end.
pub(super) fn groups(stream: &UnixStream) -> io::Result<Vec<libc::gid_t>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let size = mem::size_of::<libc::gid_t>();
        let mut len = (groups.len() * size) as libc::socklen_t;
        let to = groups.as_mut_ptr().cast();
        // SAFETY: `to` and `len` describe the elements of `groups`, which outlive the call.
        let done = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, to, &mut len) };
        let error = io::Error::last_os_error();
        let count = len as usize / size;
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > GROUPS {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}
