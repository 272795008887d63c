//! The system call that reads an error queue.
#![allow(unsafe_code, reason = "system calls")]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Receives one message of the error queue without its data. Returns the number of bytes of the address and of the
/// control messages; `None` where the queue is empty.
pub(super) fn receive_error(
    socket: BorrowedFd<'_>,
    name: &mut [u8],
    control: &mut [u64],
) -> io::Result<Option<(usize, usize)>> {
    // SAFETY: a message header is plain old data, for which all zeros is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = name.len() as libc::socklen_t;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of_val(control) as _;
    // SAFETY: the header describes `name` and `control`, which outlive the call, and no data.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if got < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    Ok(Some((header.msg_namelen as usize, header.msg_controllen as usize)))
}
