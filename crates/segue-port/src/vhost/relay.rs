//! The other half of [`Source::Supplied`](super::Source): a process that talks to front ends for a port that is
//! confined.
//!
//! It puts the messages of a front end together, checks the descriptors that come with them, and passes both on;
//! replies go the other way as they are.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::message::{Assembler, Message, PATIENCE};
use super::reasons::Stop;

/// Largest number of messages that one call passes on.
const MOST_MESSAGES: usize = 64;
/// Bytes of replies that are read at a time.
const REPLIES: usize = 4096;

/// A connected front end and the connection of a port.
#[derive(Debug)]
pub struct Relay {
    front: UnixStream,
    port: UnixStream,
    assembler: Assembler,
    /// Time at which the first byte of an incomplete message arrived.
    begun: Option<Instant>,
}

impl Relay {
    /// Returns a relay between a front end and the port's connection, neither of which blocks from now on.
    ///
    /// # Errors
    /// Where a socket cannot be made non-blocking.
    pub fn new(front: UnixStream, port: UnixStream) -> io::Result<Relay> {
        front.set_nonblocking(true)?;
        port.set_nonblocking(true)?;
        Ok(Relay { front, port, assembler: Assembler::default(), begun: None })
    }

    /// Returns the sockets to wait for until one is readable.
    pub fn sockets(&self) -> [&UnixStream; 2] {
        [&self.front, &self.port]
    }

    /// Returns the longest time to wait for the sockets.
    pub fn timeout(&self) -> Option<Duration> {
        self.begun.map(|since| PATIENCE.saturating_sub(since.elapsed()))
    }

    /// Passes on all messages and replies that wait. Returns whether both sides are still connected; both connections
    /// are to be closed where not. Never waits.
    pub fn pass(&mut self) -> bool {
        match self.pass_messages().and_then(|()| self.pass_replies()) {
            Ok(()) => true,
            Err(Stop::Ended) => false,
            Err(reason) => {
                let _ = Message::refusal(reason).send(self.port.as_fd());
                false
            }
        }
    }

    fn pass_messages(&mut self) -> Result<(), Stop> {
        for _ in 0..MOST_MESSAGES {
            let Some(message) = self.assembler.read(self.front.as_fd())? else { break };
            message.check()?;
            // The port reads until nothing is left, and a front end sends few messages in a row.
            message.send(self.port.as_fd()).map_err(|error| match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Stop::Ended,
                _ => Stop::Socket,
            })?;
        }
        if self.assembler.is_empty() {
            self.begun = None;
        } else if self.begun.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
            return Err(Stop::MessageIncomplete);
        }
        Ok(())
    }

    fn pass_replies(&mut self) -> Result<(), Stop> {
        let mut bytes = [0; REPLIES];
        loop {
            match self.port.read(&mut bytes) {
                Ok(0) => return Err(Stop::Ended),
                Ok(len) => match self.front.write(&bytes[..len]) {
                    Ok(written) if written == len => {}
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(Stop::Ended),
                    _ => return Err(Stop::ReplyBlocked),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Stop::Ended),
            }
        }
    }
}
