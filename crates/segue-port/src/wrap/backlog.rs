//! A writer that never waits: it buffers the bytes that its output does not accept at once.

use std::io::{self, Write};

/// Largest number of buffered bytes; a full backlog accepts no more.
const MOST: usize = 16 << 20;

/// A writer in front of an output that may be full for a while, such as a non-blocking pipe with a slow reader.
#[derive(Debug)]
pub(super) struct Backlog<W> {
    out: W,
    held: Vec<u8>,
    /// Number of bytes of `held` that were written.
    done: usize,
    /// Number of bytes accepted so far.
    taken: u64,
    limit: u64,
    /// Whether a record exceeded the limit; no further record is accepted then.
    is_full: bool,
}

impl<W: Write> Backlog<W> {
    /// Creates a backlog in front of an output.
    pub(super) fn new(out: W) -> Backlog<W> {
        Backlog { out, held: Vec::new(), done: 0, taken: 0, limit: u64::MAX, is_full: false }
    }

    /// Sets the limit of the total bytes written to the output.
    pub(super) fn limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    /// Returns whether a record did not fit into the limit.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the offset at which the next record begins, for [`Backlog::end_record`].
    pub(super) fn begin_record(&self) -> usize {
        self.held.len()
    }

    /// Removes the record that begins at `start` if it exceeds the limit. Nothing may be flushed in between.
    pub(super) fn end_record(&mut self, start: usize) {
        if self.taken > self.limit {
            self.taken -= (self.held.len() - start) as u64;
            self.held.truncate(start);
            self.is_full = true;
        }
    }

    /// Returns whether another record may be kept.
    pub(super) fn has_room(&self) -> bool {
        self.held.len() - self.done < MOST
    }

    /// Returns the output; buffered bytes are lost.
    pub(super) fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Write for Backlog<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        self.taken += bytes.len() as u64;
        Ok(bytes.len())
    }

    /// Writes as much as the output accepts without waiting.
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
    fn a_record_beyond_the_limit_leaves_nothing_behind() {
        let mut backlog = Backlog::new(Narrow { taken: Vec::new(), room: 100 });
        backlog.write_all(b"head").unwrap();
        backlog.limit(8);
        for (record, is_full) in [(&b"abcd"[..], false), (b"efg", true)] {
            let start = backlog.begin_record();
            backlog.write_all(record).unwrap();
            backlog.end_record(start);
            assert_eq!(backlog.is_full(), is_full);
            backlog.flush().unwrap();
        }
        assert_eq!(backlog.into_inner().taken, b"headabcd");
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
