//! System calls of a front end: memory without a name, event counters, messages with descriptors.
#![allow(unsafe_code, reason = "system calls that the standard library does not have")]

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Largest number of descriptors that [`send`] takes.
const MOST_FDS: usize = 32;

/// Creates a file in memory that is not sealed (memfd_create(2)).
pub(super) fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a string that outlives the call.
    let fd = unsafe { libc::memfd_create(c"front-end".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the call above made the descriptor and nothing else owns it.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { File::from_raw_fd(fd) }) }
}

/// Creates an event counter that does not block (eventfd(2)).
pub(super) fn event_counter() -> io::Result<File> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: the call above made the descriptor and nothing else owns it.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { File::from_raw_fd(fd) }) }
}

/// Fills an event counter that is empty, and makes it blocking.
pub(super) fn fill(mut counter: &File) -> io::Result<()> {
    counter.write_all(&(u64::MAX - 1).to_ne_bytes())?;
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(counter.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: no pointers.
    if flags < 0 || unsafe { libc::fcntl(counter.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Creates a pair of connected sockets that preserve message boundaries (SOCK_SEQPACKET).
pub(super) fn message_pair() -> io::Result<(UnixStream, OwnedFd)> {
    let mut fds: [c_int; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for both descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made the descriptors and nothing else owns them.
    Ok(unsafe { (UnixStream::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Sends bytes and descriptors in one message.
pub(super) fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut place = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = [0u64; 2 + MOST_FDS];
    // SAFETY: msghdr is plain old data, for which all zeros is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut place, 1);
    assert!(fds.len() <= MOST_FDS);
    if !fds.is_empty() {
        let len = size_of_val(fds) as libc::c_uint;
        header.msg_control = room.as_mut_ptr().cast();
        // SAFETY: the room has place for as many descriptors, and everything outlives the call.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(len) as _;
            let at = libc::CMSG_FIRSTHDR(&raw const header);
            ((*at).cmsg_level, (*at).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*at).cmsg_len = libc::CMSG_LEN(len) as _;
            for (n, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(at).cast::<c_int>().add(n).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the message and all that it points to outlive the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
