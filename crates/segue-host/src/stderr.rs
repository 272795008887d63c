//! Standard error of a process that must not wait for its reader: a pipe that is not read, or a terminal that is
//! stopped, would hold up packets, and a supervisor.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sys::{Want, poll};

/// Longest wait for room while no text was dropped before: a terminal has none while another process writes to it, or
/// while 256 characters wait in a serial line, and a socket none while a quarter of its buffer is full.
pub(crate) const MOMENT: Duration = Duration::from_millis(250);

/// A function that returns the line about texts that were dropped, from what it says.
type Form = Box<dyn Fn(&str) -> String + Send + Sync>;

/// The form of that line, once texts are dropped instead of waiting for room.
static FORM: OnceLock<Form> = OnceLock::new();
/// Number of texts that were dropped since the last one that was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Makes [`admit`] refuse texts for which there is no room, from now on. `form` returns the line about them, with its
/// line feed, from what it says.
pub fn never_wait(form: impl Fn(&str) -> String + Send + Sync + 'static) {
    // The first form stays.
    let _ = FORM.set(Box::new(form));
}

/// Returns what is to be written to stderr for `text`, behind a line with the number of texts that were dropped before
/// it; `None` where it is dropped, since the reader leaves no room; the first one of several waits for a moment. A text
/// has at most 4096 bytes (PIPE_BUF), for which there is room where a pipe is ready to be written to; the rest of a
/// longer one may wait.
pub fn admit(text: &str) -> Option<Cow<'_, str>> {
    match FORM.get() {
        Some(form) => admit_at(io::stderr().as_fd(), text, &LOST, form),
        None => Some(Cow::Borrowed(text)),
    }
}

fn admit_at<'a>(
    fd: BorrowedFd<'_>,
    text: &'a str,
    lost: &AtomicU64,
    form: impl Fn(&str) -> String,
) -> Option<Cow<'a, str>> {
    let longest = if lost.load(Ordering::Relaxed) == 0 { MOMENT } else { Duration::ZERO };
    // A descriptor that cannot be waited for, such as that of a file, has room.
    if poll(&[(fd, Want::Write)], longest).is_ok_and(|ready| ready == [false]) {
        lost.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let lost = match lost.swap(0, Ordering::Relaxed) {
        0 => return Some(Cow::Borrowed(text)),
        1 => "1 message was".to_owned(),
        lost => format!("{lost} messages were"),
    };
    Some(Cow::Owned(form(&format!("{lost} lost, since stderr was not read")) + text))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn warning(lost: &str) -> String {
        format!("warning: {lost}\n")
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted_with_the_next_text() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let lost = AtomicU64::new(0);
        assert_eq!(admit_at(near.as_fd(), "one", &lost, warning).as_deref(), Some("one"));
        near.set_nonblocking(true).unwrap();
        while matches!((&near).write(&[0; 4096]), Ok(1..)) {}
        assert_eq!(admit_at(near.as_fd(), "two", &lost, warning), None);
        assert_eq!(admit_at(near.as_fd(), "three", &lost, warning), None);
        far.set_nonblocking(true).unwrap();
        while matches!(far.read(&mut [0; 4096]), Ok(1..)) {}
        let text = admit_at(near.as_fd(), "four\n", &lost, warning).unwrap();
        assert_eq!(text, "warning: 2 messages were lost, since stderr was not read\nfour\n");
        assert_eq!(admit_at(near.as_fd(), "five", &lost, warning).as_deref(), Some("five"));
        // A reader that is gone is no reason to drop anything: the write fails.
        drop(far);
        assert!(admit_at(near.as_fd(), "six", &lost, warning).is_some());
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
                admit_at(near.as_fd(), "text", &AtomicU64::new(0), warning).is_some()
            })
        });
        assert!(is_admitted);
    }
}
