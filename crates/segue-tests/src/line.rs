//! The line between a service and a process that moves packets, which a test takes from outside: it then answers the
//! service as a process that has been taken over may.

use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::until;

mod sys;

pub use sys::descriptor_of;
use sys::send;

/// Length of a record, bytes.
const RECORD: usize = 24;
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
        UnixStream::from(self.worker.try_clone()?).shutdown(Shutdown::Both)
    }
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

fn receive(end: &OwnedFd, flags: libc::c_int) -> io::Result<Message> {
    sys::receive(end, flags).map(|(bytes, fds)| Message { bytes, fds })
}
