//! Standard error of a process that must not wait for its reader: a pipe that is not read, or a terminal that is
//! stopped, would hold up packets, and a supervisor.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::sys::{Want, poll};

/// Longest wait for room while no text was dropped before: a terminal has none while another process writes to it, or
/// while 256 characters wait in a serial line, and a socket none while a quarter of its buffer is full.
const MOMENT: Duration = Duration::from_millis(250);

/// Whether texts are dropped instead of waiting for room.
static DROPS: AtomicBool = AtomicBool::new(false);
/// Number of texts that were dropped since the last one that was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Makes [`admit`] refuse texts for which there is no room, from now on.
pub fn never_wait() {
    DROPS.store(true, Ordering::Relaxed);
}

/// Returns what is to be written to stderr for `text`, with the number of texts that were dropped before it; `None`
/// where it is dropped, since the reader leaves no room; the first one of several waits for a moment. A text has at most
/// 4096 bytes (PIPE_BUF), for which there is room where a pipe is ready to be written to; the rest of a longer one may
/// wait.
pub fn admit(text: &str) -> Option<Cow<'_, str>> {
    if !DROPS.load(Ordering::Relaxed) {
        return Some(Cow::Borrowed(text));
    }
    admit_at(io::stderr().as_fd(), text, &LOST)
}

fn admit_at<'a>(fd: BorrowedFd<'_>, text: &'a str, lost: &AtomicU64) -> Option<Cow<'a, str>> {
    let longest = if lost.load(Ordering::Relaxed) == 0 { MOMENT } else { Duration::ZERO };
    // A descriptor that cannot be waited for, such as that of a file, has room.
    if poll(&[(fd, Want::Write)], longest).is_ok_and(|ready| ready == [false]) {
        lost.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    Some(match lost.swap(0, Ordering::Relaxed) {
        0 => Cow::Borrowed(text),
        1 => Cow::Owned(format!("warning: 1 message was lost, since stderr was not read\n{text}")),
        lost => Cow::Owned(format!("warning: {lost} messages were lost, since stderr was not read\n{text}")),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn what_finds_no_room_is_dropped_and_counted_with_the_next_text() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let lost = AtomicU64::new(0);
        assert_eq!(admit_at(near.as_fd(), "one", &lost).as_deref(), Some("one"));
        near.set_nonblocking(true).unwrap();
        while matches!((&near).write(&[0; 4096]), Ok(1..)) {}
        assert_eq!(admit_at(near.as_fd(), "two", &lost), None);
        assert_eq!(admit_at(near.as_fd(), "three", &lost), None);
        far.set_nonblocking(true).unwrap();
        while matches!(far.read(&mut [0; 4096]), Ok(1..)) {}
        let text = admit_at(near.as_fd(), "four\n", &lost).unwrap();
        assert_eq!(text, "warning: 2 messages were lost, since stderr was not read\nfour\n");
        assert_eq!(admit_at(near.as_fd(), "five", &lost).as_deref(), Some("five"));
        // A reader that is gone is no reason to drop anything: the write fails.
        drop(far);
        assert!(admit_at(near.as_fd(), "six", &lost).is_some());
    }

    #[test]
    fn what_finds_room_a_moment_later_is_not_dropped() {
        // The reader of a busy machine may take longer than a moment.
        let is_admitted = (0..10).any(|_| {
            let (near, mut far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            while matches!((&near).write(&[0; 4096]), Ok(1..)) {}
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(20));
                    far.set_nonblocking(true).unwrap();
                    while matches!(far.read(&mut [0; 4096]), Ok(1..)) {}
                });
                admit_at(near.as_fd(), "text", &AtomicU64::new(0)).is_some()
            })
        });
        assert!(is_admitted);
    }
}
