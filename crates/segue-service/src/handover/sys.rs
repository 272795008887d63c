//! File descriptors over a socket (unix(7), `SCM_RIGHTS`).
#![allow(unsafe_code, reason = "control messages are structures behind pointers")]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Space for one descriptor, aligned for a `cmsghdr`.
type Room = [u64; 4];
const FD_LEN: libc::c_uint = size_of::<c_int>() as libc::c_uint;

fn header(bytes: &mut libc::iovec, room: &mut Room) -> libc::msghdr {
    // SAFETY: msghdr is plain old data, for which all zeros is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (bytes, 1);
    (header.msg_control, header.msg_controllen) = (room.as_mut_ptr().cast(), size_of::<Room>() as _);
    header
}

/// Sends bytes and a descriptor in one message.
pub fn send(socket: &UnixStream, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut place = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = Room::default();
    let mut message = header(&mut place, &mut room);
    match fd {
        None => message.msg_controllen = 0,
        // SAFETY: the room is large enough for one descriptor, which is what CMSG_SPACE and CMSG_LEN are asked for, and
        // `message` points to it.
        Some(fd) => unsafe {
            message.msg_controllen = libc::CMSG_SPACE(FD_LEN) as _;
            let at = libc::CMSG_FIRSTHDR(&raw const message);
            (*at).cmsg_level = libc::SOL_SOCKET;
            (*at).cmsg_type = libc::SCM_RIGHTS;
            (*at).cmsg_len = libc::CMSG_LEN(FD_LEN) as _;
            libc::CMSG_DATA(at).cast::<c_int>().write_unaligned(fd.as_raw_fd());
        },
    }
    // SAFETY: the message and all that it points to outlive the call, which only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    match usize::try_from(sent) {
        Ok(len) if len == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives a message of [`send`] without waiting.
pub fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut room = Room::default();
    let mut message = header(&mut place, &mut room);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message and all that it points to outlive the call, and the lengths are theirs.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled what the header says, and CMSG_* stay inside of it; a descriptor that the kernel
    // put there is new and has no other owner.
    let fd = unsafe {
        let at = libc::CMSG_FIRSTHDR(&raw const message);
        let is_one = !at.is_null()
            && (*at).cmsg_level == libc::SOL_SOCKET
            && (*at).cmsg_type == libc::SCM_RIGHTS
            && (*at).cmsg_len as usize >= libc::CMSG_LEN(FD_LEN) as usize;
        is_one.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(at).cast::<c_int>().read_unaligned()))
    };
    Ok((len, fd))
}

/// Moves `socket` to the first descriptor behind the standard streams and closes all others.
///
/// For a process that uses none of the others again and that ends without running destructors.
pub(crate) fn keep_only(socket: UnixStream) -> io::Result<UnixStream> {
    const PLACE: c_int = 3;
    // The descriptor is not dropped: it may be at that place already.
    let fd = std::os::fd::IntoRawFd::into_raw_fd(socket);
    // SAFETY: plain numbers; what was at that place is not used again, as the caller promises.
    if fd != PLACE && unsafe { libc::dup2(fd, PLACE) } < 0 {
        return Err(io::Error::last_os_error());
    }
    segue_host::sys::close_from(PLACE + 1);
    // SAFETY: the descriptor was put there just now.
    Ok(unsafe { UnixStream::from_raw_fd(PLACE) })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_the_bytes_it_was_sent_with() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let mut bytes = [0; 8];
        assert_eq!(receive(&right, &mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(&left, b"none", None).unwrap();
        assert!(matches!(receive(&right, &mut bytes), Ok((4, None))));
        send(&left, b"with one", Some(writer.as_fd())).unwrap();
        drop(writer);
        let (len, fd) = receive(&right, &mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"with one");
        std::fs::File::from(fd.unwrap()).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        drop(left);
        assert!(matches!(receive(&right, &mut bytes), Ok((0, None))), "the other end is closed");
    }
}
