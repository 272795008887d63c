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

/// Makes the kernel note with whatever is sent to this socket from now on which process sent it (SO_PASSCRED).
pub(super) fn note_senders(stream: &UnixStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = mem::size_of::<libc::c_int>() as libc::socklen_t;
    let from = (&raw const on).cast();
    // SAFETY: `from` and `len` describe `on`, which outlives the call.
    let done = unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, from, len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes the next byte, and returns the ids of the process that sent it; `None` at the end, and without such a note.
pub(super) fn sender(stream: &UnixStream) -> io::Result<Option<libc::ucred>> {
    let mut byte = [0u8];
    let mut place = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // Room for the ids alone, aligned for a `cmsghdr`: the kernel closes descriptors that come behind them.
    let mut room = [0u64; 4];
    // SAFETY: msghdr is plain old data, for which all zeros is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut place, 1);
    (message.msg_control, message.msg_controllen) = (room.as_mut_ptr().cast(), mem::size_of_val(&room) as _);
    // SAFETY: the message and all that it points to outlive the call, and the lengths are theirs.
    let len = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled as much of the room as the header says, with whole control messages; the data of
    // SCM_CREDENTIALS is a ucred.
    unsafe {
        let at = libc::CMSG_FIRSTHDR(&raw const message);
        let is_sender = !at.is_null()
            && (*at).cmsg_level == libc::SOL_SOCKET
            && (*at).cmsg_type == libc::SCM_CREDENTIALS
            && (*at).cmsg_len as usize >= libc::CMSG_LEN(mem::size_of::<libc::ucred>() as libc::c_uint) as usize;
        Ok((len > 0 && is_sender).then(|| libc::CMSG_DATA(at).cast::<libc::ucred>().read_unaligned()))
    }
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
