//! Descriptors of other processes, and messages with descriptors.
#![allow(unsafe_code, reason = "pidfd_getfd and messages with descriptors exist only as libc calls")]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Largest number of descriptors of a message here.
const MOST: usize = 4;
/// Largest number of bytes of a message that are received.
const LONGEST: usize = 48;

/// Returns a duplicate of a descriptor of another process (pidfd_getfd(2)).
pub fn descriptor_of(pid: u32, number: libc::c_int) -> io::Result<OwnedFd> {
    let own = |raw: libc::c_long| {
        // SAFETY: the kernel has just made the descriptor, which has no other owner.
        check(raw as isize).map(|raw| unsafe { OwnedFd::from_raw_fd(raw as libc::c_int) })
    };
    // SAFETY: neither call takes pointers.
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: as above.
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Room for the control message with [`MOST`] descriptors, aligned for a `cmsghdr`.
type Room = [u64; 4];

fn header(bytes: &mut libc::iovec, room: &mut Room) -> libc::msghdr {
    // SAFETY: zeros are a value of this structure of numbers and pointers.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (bytes, 1);
    (header.msg_control, header.msg_controllen) = (room.as_mut_ptr().cast(), mem::size_of::<Room>() as _);
    header
}

/// Sends bytes with descriptors.
pub(super) fn send(end: &OwnedFd, bytes: &[u8], fds: &[Arc<OwnedFd>], flags: libc::c_int) -> io::Result<()> {
    assert!(fds.len() <= MOST, "room for {MOST} descriptors");
    let mut place = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = Room::default();
    let mut message = header(&mut place, &mut room);
    if fds.is_empty() {
        message.msg_controllen = 0;
    } else {
        let len = (fds.len() * mem::size_of::<libc::c_int>()) as libc::c_uint;
        // SAFETY: the room is large enough for MOST descriptors, and `message` points to it.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(len) as _;
            let at = libc::CMSG_FIRSTHDR(&raw const message);
            (*at).cmsg_level = libc::SOL_SOCKET;
            (*at).cmsg_type = libc::SCM_RIGHTS;
            (*at).cmsg_len = libc::CMSG_LEN(len) as _;
            for (n, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(at).cast::<libc::c_int>().add(n).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the message and all that it points to outlive the call, which only reads them.
    let sent = unsafe { libc::sendmsg(end.as_raw_fd(), &raw const message, flags | libc::MSG_NOSIGNAL) };
    check(sent).map(drop)
}

/// Receives the bytes of a message, and its descriptors, without waiting.
pub(super) fn receive(end: &OwnedFd, flags: libc::c_int) -> io::Result<(Vec<u8>, Vec<Arc<OwnedFd>>)> {
    let mut bytes = vec![0; LONGEST];
    let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut room = Room::default();
    let mut message = header(&mut place, &mut room);
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message and all that it points to outlive the call, and the lengths are theirs.
    let len = check(unsafe { libc::recvmsg(end.as_raw_fd(), &raw mut message, flags) })?;
    bytes.truncate(len);
    let mut fds = Vec::new();
    // SAFETY: the kernel has filled as much of the room as the header says. The data of SCM_RIGHTS is descriptors, each
    // new in this process and owned by nothing else.
    unsafe {
        let at = libc::CMSG_FIRSTHDR(&raw const message);
        if !at.is_null() && (*at).cmsg_type == libc::SCM_RIGHTS {
            let len = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            for n in 0..len / mem::size_of::<libc::c_int>() {
                let raw = libc::CMSG_DATA(at).cast::<libc::c_int>().add(n).read_unaligned();
                fds.push(Arc::new(OwnedFd::from_raw_fd(raw)));
            }
        }
    }
    Ok((bytes, fds))
}
