//! Waiting for the descriptors of several ports.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

mod sys;

/// Events of a descriptor that a loop waits for.
#[derive(Clone, Copy, Debug)]
pub struct Interest<'a> {
    /// The descriptor of a port, of its interface's state, or another one.
    pub fd: BorrowedFd<'a>,
    /// Whether the descriptor wakes the loop when it is readable. Off while the egress port is blocked, so that a slow
    /// port holds back its source and no queue builds up here.
    pub read: bool,
    /// Whether the descriptor wakes the loop when it is writable.
    pub write: bool,
}

impl<'a> Interest<'a> {
    /// Returns the interest in reading.
    pub fn read(fd: BorrowedFd<'a>) -> Interest<'a> {
        Interest { fd, read: true, write: false }
    }
}

/// Descriptors to wait for, kept between rounds so that nothing is allocated.
#[derive(Debug, Default)]
pub struct PollSet {
    fds: Vec<libc::pollfd>,
    /// Index of each descriptor among all that were added, those without an event included.
    places: Vec<usize>,
    added: usize,
}

impl PollSet {
    /// Removes all descriptors.
    pub fn clear(&mut self) {
        self.fds.clear();
        self.places.clear();
        self.added = 0;
    }

    /// Adds a descriptor, which must stay open until the wait ends. One without an event has a place in the order
    /// and wakes nothing, also not by an error.
    pub fn add(&mut self, interest: &Interest<'_>) {
        let read = if interest.read { libc::POLLIN } else { 0 };
        let write = if interest.write { libc::POLLOUT } else { 0 };
        if read | write != 0 {
            self.fds.push(libc::pollfd { fd: interest.fd.as_raw_fd(), events: read | write, revents: 0 });
            self.places.push(self.added);
        }
        self.added += 1;
    }

    /// Waits until a descriptor is ready or has an error, or the timeout expires; returns the number of such
    /// descriptors.
    ///
    /// # Errors
    /// Those of ppoll(2), interruption by a signal included; none is ready then.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let found = sys::ppoll(&mut self.fds, timeout);
        if found.is_err() {
            self.fds.iter_mut().for_each(|fd| fd.revents = 0);
        }
        found
    }

    /// Returns the indexes of the ready descriptors, counted from 0 in the order in which they were added.
    pub fn ready(&self) -> impl Iterator<Item = usize> + '_ {
        self.fds.iter().zip(&self.places).filter(|(fd, _)| fd.revents != 0).map(|(_, place)| *place)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn ready_descriptors_have_their_places_and_those_without_an_event_wake_nothing() {
        let (left, right) = UnixStream::pair().unwrap();
        let (gone, other) = UnixStream::pair().unwrap();
        drop(other);
        (&left).write_all(b"x").unwrap();
        let mut set = PollSet::default();
        set.add(&Interest::read(left.as_fd()));
        set.add(&Interest { fd: gone.as_fd(), read: false, write: false });
        assert_eq!((set.wait(Some(Duration::ZERO)).unwrap(), set.ready().count()), (0, 0));
        set.add(&Interest::read(right.as_fd()));
        set.add(&Interest { fd: left.as_fd(), read: false, write: true });
        assert_eq!(set.wait(None).unwrap(), 2);
        assert_eq!(set.ready().collect::<Vec<_>>(), [2, 3]);
        set.clear();
        assert_eq!(set.wait(Some(Duration::ZERO)).unwrap(), 0);
    }
}
