//! A file of any type that a service reads, with limits: some have no end, and a pipe may have no writer.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_host::sys::{self, Want};

/// Longest wait for a file that is a pipe.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which a pipe without a writer is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the bytes of the file `path`; of one with more than `most` bytes some more than that, and not all.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] where a pipe has no end within five seconds.
pub fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let (until, is_regular) = (Instant::now() + PATIENCE, file.metadata()?.is_file());
    let mut bytes = Vec::new();
    while bytes.len() <= most {
        let mut part = [0; 65_536];
        match file.read(&mut part) {
            // A pipe has an end only after a process has written to it.
            Ok(0) if bytes.is_empty() && file.metadata()?.file_type().is_fifo() => thread::sleep(POLL_INTERVAL),
            Ok(0) => break,
            Ok(len) => bytes.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sys::poll(&[(file.as_fd(), Want::Read)], until.saturating_duration_since(Instant::now()))?;
            }
            Err(error) => return Err(error),
        }
        // A slow disk may take any time.
        if !is_regular && Instant::now() >= until {
            let text = format!("nothing was written into it for {} s", PATIENCE.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
    }
    Ok(bytes)
}
