//! The line between a service and a process that moves packets, which a test takes from outside: it then answers the
//! service as a process that has been taken over may.
#![allow(unsafe_code, reason = "pidfd_getfd and messages with descriptors exist only as libc calls")]

use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::until;

/// Length of a record, bytes.
const RECORD: usize = 24;
/// Largest number of descriptors of a message here.
const MOST: usize = 4;
/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that tell the service's end of a line from those of other lines.
const MARK: &[u8] = b"whose line is this?";

/// A message on a line, with its descriptors.
#[derive(Clone, Debug)]
pub struct Message {
    /// The bytes: a record has 24.
    pub bytes: Vec<u8>,
    /// The descriptors that come along.
    pub fds: Vec<Arc<OwnedFd>>,
}

impl Message {
    /// Makes a record: its kind, a number of 32 bits, which is zero, and the name of an interface.
    pub fn record(kind: u8, name: &str, fds: &[Arc<OwnedFd>]) -> Message {
        let mut bytes = [&[kind, 0, 0, 0, 0], name.as_bytes()].concat();
        bytes.resize(RECORD, 0);
        Message { bytes, fds: fds.to_vec() }
    }

    /// Returns whether the message is a record of this kind.
    pub fn is(&self, kind: u8) -> bool {
        self.bytes.first() == Some(&kind)
    }
}

/// Both ends of a line, which the processes at them have as well.
#[derive(Debug)]
pub struct Line {
    service: OwnedFd,
    worker: OwnedFd,
}

impl Line {
    /// Takes the ends of the line between a service and the process `worker`.
    ///
    /// # Errors
    /// Where this user may not take descriptors of those processes.
    pub fn take(service: u32, worker: u32) -> io::Result<Line> {
        let worker = descriptor_of(worker, 0)?;
        send(&worker, MARK, &[], 0)?;
        for entry in fs::read_dir(format!("/proc/{service}/fd"))? {
            let entry = entry?;
            // One that was closed meanwhile is none of a line.
            let is_socket = fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let (true, Some(number)) = (is_socket, number) else { continue };
            let end = descriptor_of(service, number)?;
            if receive(&end, libc::MSG_PEEK).is_ok_and(|message| message.bytes == MARK) {
                receive(&end, 0)?;
                return Ok(Line { service: end, worker });
            }
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "the service has no end of this line"))
    }

    /// Asks the worker for its ports in the place of the service, which reads nothing meanwhile; returns the answer.
    pub fn ports(&self) -> io::Result<Vec<Message>> {
        send(&self.service, &Message::record(b'?', "", &[]).bytes, &[], 0)?;
        let mut answer = Vec::new();
        while !answer.last().is_some_and(|message: &Message| message.is(b'.')) {
            answer.push(next(&self.service)?);
        }
        Ok(answer)
    }

    /// Makes the worker read the line no more: it has got something that is no record.
    pub fn silence(&self) -> io::Result<()> {
        send(&self.service, b"no record", &[], 0)?;
        until("the worker does not read its line", || {
            let left = receive(&self.worker, libc::MSG_PEEK);
            left.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock).then_some(())
        });
        Ok(())
    }

    /// Waits for the service's request for the ports.
    pub fn request(&self) -> io::Result<()> {
        match next(&self.worker)? {
            message if message.is(b'?') => Ok(()),
            message => Err(io::Error::other(format!("no request: {message:?}"))),
        }
    }

    /// Sends a message as the worker; false where the line has no room for it now.
    pub fn say(&self, message: &Message) -> io::Result<bool> {
        match send(&self.worker, &message.bytes, &message.fds, libc::MSG_DONTWAIT) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends the line, for the worker as well.
    pub fn cut(&self) -> io::Result<()> {
        // SAFETY: shutdown takes no pointers.
        check(unsafe { libc::shutdown(self.worker.as_raw_fd(), libc::SHUT_RDWR) } as isize).map(drop)
    }
}

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

/// Returns the next message, once there is one.
fn next(end: &OwnedFd) -> io::Result<Message> {
    let begin = Instant::now();
    loop {
        match receive(end, 0) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && begin.elapsed() < PATIENCE => {}
            Ok(message) if message.bytes.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            other => return other,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
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

fn send(end: &OwnedFd, bytes: &[u8], fds: &[Arc<OwnedFd>], flags: libc::c_int) -> io::Result<()> {
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

/// Receives a message without waiting.
fn receive(end: &OwnedFd, flags: libc::c_int) -> io::Result<Message> {
    let mut bytes = vec![0; 2 * RECORD];
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
    Ok(Message { bytes, fds })
}
