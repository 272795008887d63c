//! The other half of [`Source::Supplied`](super::Source): a process that talks to front ends on behalf of a confined
//! port.
//!
//! It puts the messages of a front end together, checks the descriptors that come with them, and passes both on;
//! replies go the other way as they are. It holds each file of memory for longer than the port does, so that the port
//! never spends the time that the kernel takes for the pages of a guest that ends.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::files::MemoryFiles;
use super::message::{Assembler, Message, PATIENCE};
use super::reasons::Stop;

/// Largest number of messages that one call passes on.
const MOST_MESSAGES: usize = 64;
/// Number of bytes of replies that are read at a time.
const REPLIES: usize = 4096;

/// Longest wait for the hangup of a port whose front end is gone, which a process that ends makes as well: many guests
/// may have memory to unmap.
const LONGEST_END: Duration = Duration::from_secs(3600);

/// A connected front end and the connection of a port.
#[derive(Debug)]
pub struct Relay {
    front: UnixStream,
    port: UnixStream,
    assembler: Assembler,
    /// Time at which the first byte of an incomplete message arrived.
    begun: Option<Instant>,
    /// A message and bytes of replies that a socket has not accepted yet, and the time of the first attempt.
    message: Option<Message>,
    replies: Vec<u8>,
    held_up: Option<Instant>,
    /// Whether the last call of [`pass`](Relay::pass) has read anything.
    has_moved: bool,
    files: MemoryFiles,
}

/// The connection of a port whose front end is gone, and the files of memory that the port may still use.
#[derive(Debug)]
pub struct Remains {
    files: MemoryFiles,
    port: UnixStream,
    since: Instant,
}

impl Remains {
    /// Returns the port's connection, and the longest time to wait for its hangup before this value is dropped; `None`
    /// where nothing has to be waited for.
    pub fn wait(&self) -> Option<(&UnixStream, Duration)> {
        let left = LONGEST_END.saturating_sub(self.since.elapsed());
        (!self.files.is_empty() && !left.is_zero()).then_some((&self.port, left))
    }
}

impl Relay {
    /// Creates a relay between a front end and the port's connection, both non-blocking from now on.
    ///
    /// # Errors
    /// Where a socket cannot be made non-blocking.
    pub fn new(front: UnixStream, port: UnixStream) -> io::Result<Relay> {
        front.set_nonblocking(true)?;
        port.set_nonblocking(true)?;
        let (assembler, replies, files) = (Assembler::default(), Vec::new(), MemoryFiles::default());
        Ok(Relay {
            front,
            port,
            assembler,
            begun: None,
            message: None,
            replies,
            held_up: None,
            has_moved: false,
            files,
        })
    }

    /// Closes the front end's connection, and tells the port of its end.
    pub fn end(self) -> Remains {
        // A connection that the port has closed needs no end.
        let _ = self.port.shutdown(Shutdown::Write);
        Remains { files: self.files, port: self.port, since: Instant::now() }
    }

    /// Returns the sockets whose readability to wait for.
    pub fn sockets(&self) -> [&UnixStream; 2] {
        [&self.front, &self.port]
    }

    /// Returns the longest time to wait for the sockets.
    pub fn timeout(&self) -> Option<Duration> {
        let message = self.begun.map(|since| PATIENCE.saturating_sub(since.elapsed()));
        message.into_iter().chain(self.files.left(Instant::now())).min()
    }

    /// Returns whether the last call of [`pass`](Relay::pass) could not forward its input for a moment: the kernel had
    /// no memory, a signal came, or the port had not read yet. The next call tries again, and should be made after a
    /// pause, whether or not the sockets are readable.
    pub fn is_held_up(&self) -> bool {
        self.held_up.is_some()
    }

    /// Returns whether the last call of [`pass`](Relay::pass) has read anything. A socket that is said to be readable,
    /// and then has nothing, may be so again at once: the next call should be made after a pause.
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Forwards all available messages and replies. Returns whether both sides are still connected;
    /// [`end`](Relay::end) is to be called where not. Never waits.
    pub fn pass(&mut self) -> bool {
        self.files.expire(Instant::now());
        let begun = self.held_up.take();
        self.has_moved = false;
        match self.pass_messages(begun).and_then(|()| self.pass_replies(begun)) {
            Ok(()) => true,
            Err(Stop::Ended) => false,
            Err(reason) => {
                let _ = Message::refusal(reason).send(self.port.as_fd());
                false
            }
        }
    }

    /// Records a failed attempt to forward, where `begun` is the time of the first attempt, if there was one.
    fn hold_up(&mut self, begun: Option<Instant>) -> Result<(), Stop> {
        let begun = begun.unwrap_or_else(Instant::now);
        self.held_up = Some(begun);
        if begun.elapsed() < PATIENCE { Ok(()) } else { Err(Stop::Socket) }
    }

    fn pass_messages(&mut self, mut begun: Option<Instant>) -> Result<(), Stop> {
        for _ in 0..MOST_MESSAGES {
            let message = match self.message.take() {
                Some(message) => message,
                None => {
                    let before = self.assembler.begun().len();
                    let read = self.assembler.read(self.front.as_fd())?;
                    self.has_moved |= read.is_some() || self.assembler.begun().len() != before;
                    let Some(message) = read else { break };
                    message.check()?;
                    message
                }
            };
            match message.send(self.port.as_fd()) {
                Ok(()) => {
                    begun = None;
                    if !message.wakes() {
                        self.files.follow(message, Instant::now())?;
                    }
                }
                // Nothing of it was taken.
                Err(error) if is_passing(&error) || error.kind() == io::ErrorKind::WouldBlock => {
                    self.message = Some(message);
                    self.hold_up(begun)?;
                    break;
                }
                Err(error) => {
                    return Err(match error.kind() {
                        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Stop::Ended,
                        _ => Stop::Socket,
                    });
                }
            }
        }
        if self.assembler.is_empty() {
            self.begun = None;
        } else if self.begun.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
            return Err(Stop::MessageIncomplete);
        }
        Ok(())
    }

    fn pass_replies(&mut self, mut begun: Option<Instant>) -> Result<(), Stop> {
        loop {
            if self.replies.is_empty() {
                let mut bytes = [0; REPLIES];
                match self.port.read(&mut bytes) {
                    Ok(0) => return Err(Stop::Ended),
                    Ok(len) => {
                        self.has_moved = true;
                        self.replies.extend_from_slice(&bytes[..len]);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if is_passing(&error) => return self.hold_up(begun),
                    Err(_) => return Err(Stop::Ended),
                }
            }
            match self.front.write(&self.replies) {
                Ok(written) if written == self.replies.len() => {
                    self.replies.clear();
                    begun = None;
                }
                Err(error) if is_passing(&error) => return self.hold_up(begun),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(Stop::Ended),
                _ => return Err(Stop::ReplyBlocked),
            }
        }
    }
}

/// Returns whether a socket's error may be over at the next attempt, regardless of the other end.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOMEM | libc::ENOBUFS))
}
