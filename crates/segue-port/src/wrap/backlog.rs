//! A writer that never waits: it keeps what its output does not take at once.

use std::io::{self, Write};

/// Largest number of bytes that are kept, from which on there is no room for more.
const MOST: usize = 16 << 20;

/// A writer before an output that may be full for a while, such as a pipe with a slow reader in non-blocking mode.
#[derive(Debug)]
pub(super) struct Backlog<W> {
    out: W,
    held: Vec<u8>,
    /// Number of bytes of `held` that were written.
    done: usize,
}

impl<W: Write> Backlog<W> {
    /// Puts a backlog in front of an output.
    pub(super) fn new(out: W) -> Backlog<W> {
        Backlog { out, held: Vec::new(), done: 0 }
    }

    /// Returns whether another record may be kept.
    pub(super) fn has_room(&self) -> bool {
        self.held.len() - self.done < MOST
    }

    /// Returns the output; what it has not taken is lost.
    pub(super) fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Write for Backlog<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Writes as much as the output takes without waiting.
    fn flush(&mut self) -> io::Result<()> {
        while self.done < self.held.len() {
            match self.out.write(&self.held[self.done..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => self.done += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.held.drain(..self.done);
                    self.done = 0;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.held.clear();
        self.done = 0;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output that takes `room` bytes in all, three at a time, and then would block.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(3).min(self.room - self.taken.len());
            self.taken.extend_from_slice(&bytes[..len]);
            if len == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(len) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_the_output_does_not_take_is_kept_in_order() {
        let mut backlog = Backlog::new(Narrow { taken: Vec::new(), room: 7 });
        backlog.write_all(b"0123456789").unwrap();
        backlog.flush().unwrap();
        assert_eq!(backlog.out.taken, b"0123456");
        backlog.write_all(b"abc").unwrap();
        backlog.out.room = 100;
        backlog.flush().unwrap();
        assert_eq!(backlog.into_inner().taken, b"0123456789abc");
    }

    #[test]
    fn there_is_room_up_to_the_limit() {
        let mut backlog = Backlog::new(Narrow { taken: Vec::new(), room: 0 });
        backlog.write_all(&vec![0; MOST - 1]).unwrap();
        backlog.flush().unwrap();
        assert!(backlog.has_room());
        backlog.write_all(b"x").unwrap();
        assert!(!backlog.has_room());
    }
}
