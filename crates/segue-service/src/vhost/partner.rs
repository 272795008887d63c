//! The process that another one serves, over a connection, until it ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use segue_host::sys::{Want, poll};

use crate::handover::sys::is_passing;
use crate::sandbox::Rounds;

/// Pause after an error that may be over at the next attempt.
pub(super) const FAILED_PAUSE: Duration = Duration::from_millis(10);

/// The process that this one serves.
pub(super) struct Partner<'a> {
    /// Connection to the process, which hangs up at its end.
    pub(super) socket: &'a UnixStream,
    /// The rounds of this process.
    pub(super) rounds: &'a Rounds,
}

impl Partner<'_> {
    /// Makes a call, and repeats it after a pause if its error is transient. Returns `None` where the partner has
    /// ended.
    pub(super) fn repeated<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<Option<T>> {
        loop {
            match call() {
                Ok(done) => return Ok(Some(done)),
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    return Ok(None);
                }
                Err(error) if !is_passing(&error) => return Err(error),
                Err(_) if self.has_ended(FAILED_PAUSE)? => return Ok(None),
                Err(_) => {}
            }
        }
    }

    /// Waits for a given time, or until the partner has ended; returns whether it has.
    pub(super) fn has_ended(&self, wait: Duration) -> io::Result<bool> {
        Ok(self.wait(&[self.hangup()], wait)? == [true])
    }

    /// Returns the end of the partner, as an event to wait for.
    pub(super) fn hangup(&self) -> (BorrowedFd<'_>, Want) {
        (self.socket.as_fd(), Want::Hangup)
    }

    /// Waits, as [`poll`] does, and counts a round: whatever repeats something waits in between.
    pub(super) fn wait(&self, wants: &[(BorrowedFd<'_>, Want)], longest: Duration) -> io::Result<Vec<bool>> {
        self.rounds.count();
        poll(wants, longest)
    }
}
