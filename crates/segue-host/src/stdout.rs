//! Standard output of a process that must not wait for its reader: events, of which none begins before the one in front
//! of it is written whole.

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::stderr::MOMENT;
use crate::sys::{self, Want, poll};

/// Largest number of bytes that are written at a time where a write may wait (PIPE_BUF): a pipe or socket that is ready
/// to be written to has room for them.
const PIECE: usize = 4096;
/// Longest time in which one text waits for room, where its reader leaves some again and again.
const LONGEST: Duration = Duration::from_secs(1);

/// The output, once it is decided whether it waits for its reader; `None` where it does.
static STREAM: OnceLock<Option<Mutex<Stream>>> = OnceLock::new();

/// Makes this process wait for the reader of its stdout for good: a supervisor misses no event.
pub fn always_wait() {
    // The first decision stays.
    let _ = STREAM.set(None);
}

/// Makes [`write()`] drop texts for which there is no room, from now on, unless [`always_wait`] was called before.
/// `form` returns the text about them, from their number.
pub fn never_wait(form: impl Fn(u64) -> String + Send + 'static) {
    let _ = STREAM.get_or_init(|| {
        let is_free = sys::write_without_waiting(io::stdout().as_fd()).unwrap_or(false);
        let piece = if is_free { usize::MAX } else { PIECE };
        Some(Mutex::new(Stream { piece, rest: Vec::new(), lost: 0, form: Box::new(form) }))
    });
}

/// Writes `text` to stdout, behind a text with the number of those that were dropped before it; `None` where this
/// process waits for the reader. The first text that finds no room waits for a moment, or for a second while the reader
/// goes on; what of it is not written then, or is refused, is kept, and goes first. Texts that find it still there are
/// dropped. The end of the process drops it too.
pub fn write(text: &str) -> Option<io::Result<()>> {
    let stream = STREAM.get()?.as_ref()?;
    Some(stream.lock().unwrap_or_else(PoisonError::into_inner).write(io::stdout().as_fd(), text))
}

/// Writes what [`write()`] has kept, and the number of the texts that were dropped, as far as there is room now.
/// Returns whether some of it waits for room still. What is refused is tried again at the next call.
pub fn flush() -> bool {
    let Some(stream) = STREAM.get().and_then(Option::as_ref) else { return false };
    match stream.try_lock() {
        Ok(stream) => stream,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Another thread waits for room.
        Err(TryLockError::WouldBlock) => return true,
    }
    .flush_now(io::stdout().as_fd())
    .is_ok_and(|is_empty| !is_empty)
}

/// An output whose reader may leave no room.
struct Stream {
    /// Largest number of bytes that are written at a time.
    piece: usize,
    /// The rest of a text for which there was no room.
    rest: Vec<u8>,
    /// Number of texts that were dropped since the last one that was written.
    lost: u64,
    form: Box<dyn Fn(u64) -> String + Send>,
}

impl Stream {
    fn write(&mut self, fd: BorrowedFd<'_>, text: &str) -> io::Result<()> {
        let until = Instant::now() + LONGEST;
        let flushed = self.flush(fd, (MOMENT, until));
        if let Ok(true) = flushed {
            return self.put(fd, text.as_bytes(), (MOMENT, until));
        }
        self.lost += 1;
        flushed.map(drop)
    }

    /// Writes what is left, as far as there is room now. Returns whether nothing is.
    fn flush_now(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        self.flush(fd, (Duration::ZERO, Instant::now()))
    }

    /// Writes the rest of a text, and then the number of those that were dropped, for which it waits as
    /// [`put`](Self::put) does. Returns whether nothing is left.
    fn flush(&mut self, fd: BorrowedFd<'_>, (longest, until): (Duration, Instant)) -> io::Result<bool> {
        let rest = mem::take(&mut self.rest);
        self.put(fd, &rest, (Duration::ZERO, until))?;
        if self.rest.is_empty() && self.lost > 0 {
            let told = (self.form)(mem::take(&mut self.lost));
            self.put(fd, told.as_bytes(), (longest, until))?;
        }
        Ok(self.rest.is_empty())
    }

    /// Writes `bytes` while there is room within `longest`, and within a moment once the reader has left some, but
    /// waits for none after `until`; keeps what is left.
    fn put(
        &mut self,
        fd: BorrowedFd<'_>,
        mut bytes: &[u8],
        (mut longest, until): (Duration, Instant),
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let pause = longest.min(until.saturating_duration_since(Instant::now()));
            // A descriptor that cannot be waited for, such as that of a file, has room.
            if poll(&[(fd, Want::Write)], pause).is_ok_and(|ready| ready == [false]) {
                break;
            }
            match sys::write(fd, &bytes[..bytes.len().min(self.piece)]) {
                Ok(0) => break,
                Ok(len) => bytes = &bytes[len..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A terminal may have room for a character, but not for the two of a line feed.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.rest = bytes.to_vec();
                    return Err(error);
                }
            }
            longest = MOMENT;
        }
        self.rest = bytes.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read};
    use std::thread;

    use super::*;

    fn stream(piece: usize) -> Stream {
        Stream { piece, rest: Vec::new(), lost: 0, form: Box::new(|lost| format!("{lost} lost\n")) }
    }

    /// Fills a pipe with blanks.
    fn fill(fd: BorrowedFd<'_>) {
        while poll(&[(fd, Want::Write)], Duration::ZERO).unwrap() == [true] {
            sys::write(fd, &[b' '; PIECE]).unwrap();
        }
    }

    /// Reads what is in a pipe, without the blanks at its beginning.
    fn read(reader: &mut PipeReader) -> String {
        let mut text = Vec::new();
        while poll(&[(reader.as_fd(), Want::Read)], Duration::ZERO).unwrap() == [true] {
            let mut bytes = [0; PIECE];
            let len = reader.read(&mut bytes).unwrap();
            text.extend_from_slice(&bytes[..len]);
        }
        String::from_utf8(text).unwrap().trim_start_matches(' ').to_owned()
    }

    #[test]
    fn what_finds_no_room_is_lost_and_counted_once_there_is_some() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut stream = stream(PIECE);
        stream.write(writer.as_fd(), "one\n").unwrap();
        assert_eq!(read(&mut reader), "one\n");
        fill(writer.as_fd());
        for text in ["two\n", "three\n", "four\n"] {
            stream.write(writer.as_fd(), text).unwrap();
        }
        let flush = |stream: &mut Stream| stream.flush_now(writer.as_fd()).unwrap();
        assert!(!flush(&mut stream), "there is no room");
        assert_eq!(read(&mut reader), "");
        assert!(flush(&mut stream));
        assert_eq!(read(&mut reader), "two\n2 lost\n", "without another text");
        fill(writer.as_fd());
        for text in ["five\n", "six\n"] {
            stream.write(writer.as_fd(), text).unwrap();
        }
        assert_eq!(read(&mut reader), "");
        stream.write(writer.as_fd(), "seven\n").unwrap();
        assert_eq!(read(&mut reader), "five\n1 lost\nseven\n");
        drop(reader);
        for text in ["eight\n", "nine\n"] {
            let error = stream.write(writer.as_fd(), text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
        assert_eq!((&stream.rest[..], stream.lost), (&b"eight\n"[..], 1), "kept, and counted");
    }

    #[test]
    fn the_rest_of_a_long_text_is_written_before_any_other() {
        for is_free in [false, true] {
            let (mut reader, writer) = io::pipe().unwrap();
            if is_free {
                assert!(sys::write_without_waiting(writer.as_fd()).unwrap());
            }
            let mut stream = stream(if is_free { usize::MAX } else { PIECE });
            // More than a pipe holds, and less than two of them, unless its pages are large.
            let long = "x".repeat(100_000) + "\n";
            let mut text = String::new();
            stream.write(writer.as_fd(), &long).unwrap();
            stream.write(writer.as_fd(), "late\n").unwrap();
            let is_cut = !stream.rest.is_empty();
            for _ in 0..200 {
                text += &read(&mut reader);
                if stream.rest.is_empty() {
                    break;
                }
                let rest = mem::take(&mut stream.rest);
                stream.put(writer.as_fd(), &rest, (Duration::ZERO, Instant::now() + LONGEST)).unwrap();
            }
            stream.write(writer.as_fd(), "next\n").unwrap();
            text += &read(&mut reader);
            let between = if is_cut { "1 lost\n" } else { "late\n" };
            assert!(text == long + between + "next\n", "{is_free}, {is_cut}: {} bytes", text.len());
        }
    }

    #[test]
    fn what_is_left_is_written_without_a_wait_for_its_reader() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut stream = stream(PIECE);
        fill(writer.as_fd());
        // What is read within a second.
        stream.write(writer.as_fd(), &"x".repeat(4 << 20)).unwrap();
        let mut part = [0; 16 * PIECE];
        let _ = reader.read(&mut part).unwrap();
        let reads = thread::spawn(move || {
            while reader.read(&mut part).unwrap() > 0 {
                thread::sleep(Duration::from_millis(5));
            }
        });
        assert!(!stream.flush_now(writer.as_fd()).unwrap());
        drop(writer);
        reads.join().unwrap();
    }

    #[test]
    fn a_reader_that_is_slow_does_not_hold_up_a_long_text() {
        let (mut reader, writer) = io::pipe().unwrap();
        let reads = thread::spawn(move || {
            while reader.read(&mut [0; PIECE]).unwrap() > 0 {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let mut stream = stream(PIECE);
        // More than is read, and than a pipe holds.
        stream.write(writer.as_fd(), &"x".repeat(4 << 20)).unwrap();
        assert!(!stream.rest.is_empty());
        drop(writer);
        reads.join().unwrap();
    }
}
