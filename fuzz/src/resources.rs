//! The limits of a target: memory, output and processor time by the length of its input.

use std::fs;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::sys;

/// Number of bytes of memory or output for each byte of input.
const FACTOR: usize = 20;
/// Processor time for each byte of input, with sanitizers and checks on.
const TIME: Duration = Duration::from_micros(50);
/// Largest CPU time of an empty input.
const LEAST_TIME: Duration = Duration::from_secs(2);

/// Runs `work` on an input of `len` bytes.
///
/// # Panics
/// Where it holds more than `free` bytes and [`FACTOR`] times the input at once, or takes more processor time than
/// the input may.
pub(crate) fn bounded<T>(len: usize, free: usize, work: impl FnOnce() -> T) -> T {
    let mut result = None;
    bounded_with(len, free, || {
        result = Some(work());
        0
    });
    result.expect("the work has been done")
}

/// Runs `work` on an input of `len` bytes, like [`bounded`]. The work returns the number of bytes of the headers of
/// segments that it was asked to make, which count as input.
///
/// # Panics
/// As of [`bounded`].
pub(crate) fn bounded_with(len: usize, free: usize, work: impl FnOnce() -> usize) {
    let (begin, before, used) = (Instant::now(), sys::reset(), cpu_time());
    let headers = work();
    let held = usize::try_from(sys::peak() - before).unwrap_or(0);
    let most = free + FACTOR * (len + headers);
    assert!(held <= most, "{held} bytes of memory for {len} bytes of input and {headers} of headers: at most {most}");
    let longest = LEAST_TIME + TIME * u32::try_from(len).unwrap_or(u32::MAX);
    // The clock alone would blame a target for what else the machine does.
    if begin.elapsed() > longest
        && let (Some(used), Some(now)) = (used, cpu_time())
    {
        assert!(now - used <= longest, "{:?} of processor time for {len} bytes of input", now - used);
    }
}

/// Runs `work`, and returns its peak memory in bytes and the number of its allocations.
pub(crate) fn counted(work: impl FnOnce()) -> (usize, usize) {
    let (before, count) = (sys::reset(), sys::allocations());
    work();
    (usize::try_from(sys::peak() - before).unwrap_or(0), sys::allocations() - count)
}

/// Returns the processor time of this thread, if the kernel provides it (`/proc/thread-self/schedstat`).
fn cpu_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

/// An output that is only counted.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) len: usize,
}

impl Output {
    /// Checks that the output of an input of `len` bytes is not longer than `free` bytes and [`FACTOR`] times the
    /// input.
    #[track_caller]
    pub(crate) fn check(&self, len: usize, free: usize) {
        let most = free + FACTOR * len;
        assert!(self.len <= most, "{} bytes of output for {len} bytes of input: at most {most}", self.len);
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.len += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
