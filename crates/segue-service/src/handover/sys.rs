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

/// Creates a pair of connected sockets that keep the borders of messages.
pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let mut fds: [c_int; 2] = [-1; 2];
    // SAFETY: the array has room for both descriptors.
    let made =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above returned them, and nothing else owns them. Reading, writing and time limits are the same
    // for all types of connected local sockets.
    Ok(unsafe { (UnixStream::from_raw_fd(fds[0]), UnixStream::from_raw_fd(fds[1])) })
}

/// Receives a message of [`send`] without waiting: its length and its descriptor, if it has one.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] where it is longer than `bytes`, or has several descriptors, all of which are closed.
pub fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut room = Room::default();
    let mut message = header(&mut place, &mut room);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message and all that it points to outlive the call, and the lengths are theirs.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let mut fds = descriptors(&message);
    let is_cut = message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0;
    // Dropping them closes them.
    if is_cut || fds.len() > 1 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((len, fds.pop()))
}

/// Returns whether an error of the connection is transient, like lack of kernel memory: the process at the other end
/// has not ended, and has not sent an invalid message.
pub fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, NotConnected, WriteZero};
    !matches!(error.kind(), BrokenPipe | ConnectionReset | InvalidData | NotConnected | WriteZero)
}

/// Extracts every descriptor from a received message. The room has place for more than one of them, because of its
/// alignment, and the kernel fills it.
fn descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel has filled as much of the room as the header says, with whole control messages; CMSG_* stay
    // inside of that. The data of SCM_RIGHTS is descriptors, each of them new in this process and owned by nothing
    // else, and each is read once.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let len = ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(at).cast::<c_int>();
                for n in 0..len / size_of::<c_int>() {
                    fds.push(OwnedFd::from_raw_fd(first.add(n).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    fds
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

    /// Sends bytes with multiple descriptors in one message, as no process of segue does.
    fn send_several(socket: &UnixStream, bytes: &[u8], fds: &[c_int]) {
        let mut place = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut room = [0u64; 32];
        let len = size_of_val(fds) as libc::c_uint;
        // SAFETY: the room has place for all of them, and everything outlives the call.
        unsafe {
            let mut message: libc::msghdr = mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut place, 1);
            message.msg_control = room.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(len) as _;
            let at = libc::CMSG_FIRSTHDR(&raw const message);
            (*at).cmsg_level = libc::SOL_SOCKET;
            (*at).cmsg_type = libc::SCM_RIGHTS;
            (*at).cmsg_len = libc::CMSG_LEN(len) as _;
            for (n, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(at).cast::<c_int>().add(n).write_unaligned(*fd);
            }
            assert!(libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) >= 0);
        }
    }

    #[test]
    fn a_message_with_several_descriptors_is_refused_and_leaves_none_open() {
        let (near, far) = pair().unwrap();
        for count in [2, 3, 4, 5, 20] {
            let (mut reader, writer) = io::pipe().unwrap();
            send_several(&near, b"many", &vec![writer.as_raw_fd(); count]);
            drop(writer);
            let error = receive(&far, &mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{count}");
            // The pipe ends only where no copy of its other end is left open.
            assert_eq!(reader.read(&mut [0]).unwrap(), 0, "{count}");
        }
        let (mut reader, writer) = io::pipe().unwrap();
        send(&near, b"longer than its place", Some(writer.as_fd())).unwrap();
        drop(writer);
        assert_eq!(receive(&far, &mut [0; 8]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        send(&near, b"next", None).unwrap();
        assert!(matches!(receive(&far, &mut [0; 8]), Ok((4, None))), "the border of a message is kept");
    }
}
