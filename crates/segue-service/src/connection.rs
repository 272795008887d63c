//! One connection to a control socket: a request line, and an answer line.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::protocol::{REQUEST_LEN, TABLE_BEGIN, TABLE_LEN};
use segue_host::peer;
use segue_host::sys::Want;

/// Longest time for a request, and again for reading an answer.
pub(crate) const CLIENT_TIME: Duration = Duration::from_secs(2);
/// Number of times in a row that a socket may be ready for nothing.
const FREE: u32 = 4;
/// Pause after each further time, for which other requests wait too.
const PAUSE: Duration = Duration::from_millis(20);

/// A non-blocking connection of one client.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
    /// Number of times in a row that the socket was ready and could neither be read nor written.
    fruitless: u32,
    /// Whether the client may make changes: it is root or the owner.
    pub(crate) may_change: bool,
    /// Time at which the connection is closed, even with an incomplete request or answer.
    pub(crate) until: Instant,
}

/// State of reading a request.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    More,
    Line(Vec<u8>),
    TooLong,
    Closed,
}

impl Connection {
    /// Accepts a connection of root, of the user `owner`, or of a member of the group `readers`; `None` for other
    /// processes.
    ///
    /// # Errors
    /// Where none can be accepted at the moment.
    pub(crate) fn accept(
        listener: &UnixListener,
        owner: u32,
        readers: Option<u32>,
        until: Instant,
    ) -> io::Result<Option<Connection>> {
        let (stream, _) = listener.accept()?;
        let may_change = peer::uid(&stream).is_ok_and(|uid| uid == 0 || uid == owner);
        let may_read = may_change || readers.is_some_and(|group| peer::is_in_group(&stream, group).unwrap_or(false));
        let is_ready = may_read && stream.set_nonblocking(true).is_ok();
        let (request, answer) = (Vec::new(), Vec::new());
        Ok(is_ready.then_some(Connection { stream, request, answer, sent: 0, fruitless: 0, may_change, until }))
    }

    /// Returns a connection whose request the preceding program has read, to answer it.
    pub(crate) fn kept(fd: OwnedFd, until: Instant) -> Connection {
        let (stream, request, answer) = (UnixStream::from(fd), Vec::new(), Vec::new());
        Connection { stream, request, answer, sent: 0, fruitless: 0, may_change: true, until }
    }

    /// Returns the descriptor to wait for.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the event to wait for: input, or room for the answer.
    pub(crate) fn want(&self) -> Want {
        if self.is_answered() { Want::Write } else { Want::Read }
    }

    /// Returns whether there is an answer to write.
    pub(crate) fn is_answered(&self) -> bool {
        !self.answer.is_empty()
    }

    /// Reads the bytes of the request that have arrived.
    pub(crate) fn read(&mut self) -> ReadOutcome {
        let mut bytes = [0; REQUEST_LEN];
        match self.stream.read(&mut bytes) {
            Ok(0) => ReadOutcome::Closed,
            Ok(len) => {
                self.fruitless = 0;
                let before = self.request.len();
                self.request.extend_from_slice(&bytes[..len]);
                // Only those who may change a table may send one, which takes memory.
                let is_table = self.may_change && self.request.starts_with(TABLE_BEGIN);
                let most = if is_table { TABLE_LEN } else { REQUEST_LEN };
                match bytes[..len].iter().position(|&byte| byte == b'\n').map(|at| before + at) {
                    Some(end) if end <= most => {
                        self.request.truncate(end);
                        ReadOutcome::Line(std::mem::take(&mut self.request))
                    }
                    None if self.request.len() <= most => ReadOutcome::More,
                    _ => ReadOutcome::TooLong,
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.pause();
                ReadOutcome::More
            }
            Err(_) => ReadOutcome::Closed,
        }
    }

    /// Pauses if the socket has been ready several times in a row and yet could not be read or written: a loop that is
    /// told so without end would take all of a processor until the client's time is over.
    fn pause(&mut self) {
        self.fruitless = self.fruitless.saturating_add(1);
        if self.fruitless > FREE {
            thread::sleep(PAUSE);
        }
    }

    /// Sets the answer, a line without a line feed. The time to read it begins.
    pub(crate) fn reply(&mut self, line: &str) {
        self.answer = format!("{line}\n").into_bytes();
        self.until = Instant::now() + CLIENT_TIME;
    }

    /// Writes as much of the answer as possible; returns `false` at the end of the connection.
    pub(crate) fn write(&mut self) -> bool {
        match self.stream.write(&self.answer[self.sent..]) {
            Ok(len) => {
                self.fruitless = 0;
                self.sent += len;
                len > 0 && self.sent < self.answer.len()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.pause();
                true
            }
            Err(_) => false,
        }
    }
}

/// Returns the refusal of a request that is too long.
pub(crate) fn too_long() -> Error {
    Error::new(Kind::Usage, "the request is too long", format!("at most {REQUEST_LEN} bytes"))
}

/// Returns the refusal of a change by a client that may only read.
pub(crate) fn only_reading() -> Error {
    Error::new(Kind::NoPermission, "this user may only read", "sudo, with the same command")
        .why("only the owner of the instance and root may change it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_ready_for_nothing_again_and_again_is_left_alone_for_a_while() {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut connection = Connection::kept(near.into(), Instant::now() + CLIENT_TIME);
        let time_of = |connection: &mut Connection, times: u32| {
            let begin = Instant::now();
            (0..times).for_each(|_| assert!(matches!(connection.read(), ReadOutcome::More)));
            begin.elapsed()
        };
        assert!(time_of(&mut connection, FREE + 3) >= 3 * PAUSE);
        assert!(time_of(&mut connection, 2) >= 2 * PAUSE);
        far.write_all(b"{").unwrap();
        assert!(matches!(connection.read(), ReadOutcome::More));
        assert_eq!(connection.fruitless, 0, "a byte came");
    }
}
