//! Buffered input with a count of the bytes consumed.

use std::fmt;
use std::io::{self, ErrorKind, Read};

/// Size of the buffer, and thus of a read, in bytes.
const CHUNK: usize = 256 << 10;

/// A fault in the data of an input, wrapped in the error of the read that found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault(pub(super) &'static str);

impl Fault {
    /// Returns the description of the fault that an error wraps, if it wraps one.
    pub(super) fn of(error: &io::Error) -> Option<&'static str> {
        error.get_ref()?.downcast_ref::<Fault>().map(|fault| fault.0)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> io::Error {
        io::Error::new(ErrorKind::InvalidData, fault)
    }
}

/// Buffered input whose buffer grows to the number of contiguous bytes that a caller asks for.
#[derive(Debug)]
pub(super) struct Source<R> {
    input: R,
    buf: Vec<u8>,
    start: usize,
    end: usize,
    offset: u64,
    ended: bool,
    fault: Option<&'static str>,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Source<R> {
        Source { input, buf: vec![0; CHUNK], start: 0, end: 0, offset: 0, ended: false, fault: None }
    }

    /// Reads until `len` bytes or the whole rest of the input are available, and returns how many are.
    pub(super) fn fill(&mut self, len: usize) -> io::Result<usize> {
        while self.end - self.start < len && !self.ended {
            if self.buf.len() - self.start < len {
                self.buf.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
                // Grows in steps, so that a stated length costs no memory before its bytes arrive.
                if self.buf.len() == self.end {
                    self.buf.resize((self.buf.len() * 2).min(len.max(CHUNK)).max(self.end + 1), 0);
                }
            }
            match self.input.read(&mut self.buf[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.fault = Some(Fault::of(&error).ok_or(error)?);
                    self.ended = true;
                }
            }
        }
        Ok(self.end - self.start)
    }

    /// Returns the fault in the data at which reading stopped, if any.
    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault
    }

    /// Returns the bytes available in the buffer.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// Returns the offset of [`Source::bytes`] in the input.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Moves past `len` of the available bytes.
    pub(super) fn consume(&mut self, len: usize) {
        let len = len.min(self.end - self.start);
        self.start += len;
        self.offset += len as u64;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            // The memory of one large record is released.
            if self.buf.len() > CHUNK {
                self.buf = vec![0; CHUNK];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader whose reads return one byte more each time.
    struct Dribble(Vec<u8>, usize);

    impl Read for Dribble {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.1 += 1;
            let n = self.1.min(out.len()).min(self.0.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0.drain(..n);
            Ok(n)
        }
    }

    #[test]
    fn any_length_becomes_available_however_the_bytes_come() {
        let all: Vec<u8> = (0..700_000_u32).map(|n| (n % 251) as u8).collect();
        let mut source = Source::new(Dribble(all.clone(), 400));
        let mut at = 0;
        for len in [1, 16, 300_000, 5, 262_144, 0, 99_999, 100_000] {
            let have = source.fill(len).unwrap();
            let take = len.min(have);
            assert_eq!(source.offset(), at as u64);
            assert_eq!(source.bytes()[..take], all[at..at + take]);
            source.consume(take);
            at += take;
        }
        assert_eq!((at, source.fill(1).unwrap()), (all.len(), 0));
    }
}
