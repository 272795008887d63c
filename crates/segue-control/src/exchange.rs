//! The exchange of a request line and an answer line with a socket, or with several at the same time: each has a
//! deadline, however slowly the other end sends.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_host::sys::{self, Want};

use crate::protocol::ANSWER_LEN;

/// Largest number of sockets that are asked at the same time.
const TOGETHER: usize = 64;
/// Pause before another attempt to connect to a socket whose queue is full, which is so for a moment where many ask.
const AGAIN: Duration = Duration::from_millis(20);
/// Pause before a socket is asked again whose process closed: by then a successor listens.
const SUCCESSION: Duration = Duration::from_millis(50);

/// A request to the socket `path`, and the part of the answer that has arrived.
struct Exchange<'a> {
    /// Index of the socket in the caller's list.
    index: usize,
    path: &'a Path,
    /// The connection; `None` as long as the socket's queue is full.
    stream: Option<UnixStream>,
    unsent: &'a [u8],
    answer: Vec<u8>,
    until: Instant,
}

impl Exchange<'_> {
    /// Returns the event that the exchange waits for.
    fn want(&self) -> Want {
        if self.unsent.is_empty() { Want::Read } else { Want::Write }
    }

    /// Connects, sends or reads what is possible without a wait. Returns whether the answer has ended.
    fn step(&mut self) -> io::Result<bool> {
        let Some(stream) = &mut self.stream else {
            self.stream = match sys::connect_path(self.path) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < self.until => None,
                connected => Some(connected?),
            };
            return Ok(false);
        };
        if !self.unsent.is_empty() {
            let sent = stream.write(self.unsent)?;
            self.unsent = self.unsent.get(sent..).unwrap_or_default();
            return Ok(false);
        }
        let room = ANSWER_LEN - self.answer.len();
        (&*stream).take(room as u64).read_to_end(&mut self.answer)?;
        Ok(true)
    }

    /// Advances the exchange, and returns its outcome once it has one.
    fn advance(&mut self, is_ready: bool) -> Option<io::Result<Vec<u8>>> {
        match if is_ready { self.step() } else { Ok(false) } {
            Ok(true) if self.answer.is_empty() => {
                Some(Err(io::Error::from_raw_os_error(silence(self.path, sys::euid()))))
            }
            Ok(true) => Some(Ok(std::mem::take(&mut self.answer))),
            // No connection was possible in all the time.
            Err(error) if self.stream.is_none() => Some(Err(error)),
            Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Some(Err(error))
            }
            _ => (Instant::now() >= self.until).then(|| Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// Sends a request line to the socket `path` and returns the answer line. All of it takes at most `longest`.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] where the answer is not complete by then, [`io::ErrorKind::WouldBlock`] where the queue
/// of the socket was full in all that time.
pub(crate) fn talk(path: &Path, line: &str, longest: Duration) -> io::Result<Vec<u8>> {
    talk_to_all(&[path], line, longest).pop().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
}

/// Sends a request line to each socket, and returns the answer lines in the order of `paths`. A socket takes at most
/// `longest`, and holds up no other one unless many do: [`TOGETHER`] of them are asked at the same time.
///
/// # Errors
/// For each socket as [`talk`] has them.
pub(crate) fn talk_to_all(paths: &[&Path], line: &str, longest: Duration) -> Vec<io::Result<Vec<u8>>> {
    let request = format!("{line}\n");
    let mut outcomes: Vec<io::Result<Vec<u8>>> = paths.iter().map(|_| Ok(Vec::new())).collect();
    let (mut waiting, mut open) = (paths.iter().enumerate(), Vec::new());
    loop {
        while open.len() < TOGETHER
            && let Some((index, path)) = waiting.next()
        {
            let (unsent, until) = (request.as_bytes(), Instant::now() + longest);
            let mut made = Exchange { index, path, stream: None, unsent, answer: Vec::new(), until };
            match made.advance(true) {
                Some(outcome) => outcomes[index] = outcome,
                None => open.push(made),
            }
        }
        let Some(until) = open.iter().map(|exchange| exchange.until).min() else { return outcomes };
        let pause = if open.iter().all(|exchange| exchange.stream.is_some()) { Duration::MAX } else { AGAIN };
        let fds = open.iter().filter_map(|exchange| Some((exchange.stream.as_ref()?.as_fd(), exchange.want())));
        let fds: Vec<_> = fds.collect();
        let left = until.saturating_duration_since(Instant::now()).min(pause);
        let ready = sys::poll(&fds, left).unwrap_or_default();
        drop(fds);
        let mut ready = ready.into_iter();
        open.retain_mut(|exchange| match exchange.advance(exchange.stream.is_none() || ready.next() == Some(true)) {
            Some(outcome) => {
                outcomes[exchange.index] = outcome;
                false
            }
            None => true,
        });
    }
}

/// Sends a request that changes nothing to each socket, as [`talk_to_all`] does, and once more to those whose process
/// closed without an answer: it has ended, or another process has just taken its place.
///
/// # Errors
/// For each socket as [`talk`] has them.
pub(crate) fn query_all(paths: &[&Path], line: &str, longest: Duration) -> Vec<io::Result<Vec<u8>>> {
    let mut outcomes = talk_to_all(paths, line, longest);
    let has_closed = |outcome: &io::Result<Vec<u8>>| {
        let error = outcome.as_ref().err().map(io::Error::kind);
        matches!(error, Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe))
    };
    let (closed, again): (Vec<&mut io::Result<Vec<u8>>>, Vec<&Path>) =
        outcomes.iter_mut().zip(paths).filter(|(outcome, _)| has_closed(outcome)).unzip();
    if again.is_empty() {
        return outcomes;
    }
    thread::sleep(SUCCESSION);
    for (outcome, later) in closed.into_iter().zip(talk_to_all(&again, line, longest)) {
        *outcome = later;
    }
    outcomes
}

/// Returns the error number for an instance that closes without an answer: EACCES where `uid` may not ask, ECONNRESET
/// where the instance ended. Root and the owner of the socket always may ask.
fn silence(path: &Path, uid: u32) -> i32 {
    let is_allowed = uid == 0 || fs::metadata(path).map_or(true, |file| file.uid() == uid);
    if is_allowed { libc::ECONNRESET } else { libc::EACCES }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A directory for sockets, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("segue-exchange-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Folder(path)
        }

        /// Opens a socket whose connections `serve` handles, each on a thread, after it has read the request.
        fn serve(&self, name: &str, serve: fn(UnixStream)) -> PathBuf {
            let path = self.0.join(name);
            let listener = UnixListener::bind(&path).unwrap();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    thread::spawn(move || {
                        let mut line = String::new();
                        BufReader::new(&stream).read_line(&mut line).unwrap();
                        assert_eq!(line, "request\n");
                        serve(stream);
                    });
                }
            });
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Sends a byte at a time for about a minute, unless the client leaves.
    fn trickle(mut stream: UnixStream) {
        for _ in 0..1200 {
            if stream.write_all(b" ").is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn an_answer_that_trickles_ends_at_the_deadline_and_holds_up_no_other() {
        let folder = Folder::new("trickle");
        let slow = folder.serve("slow", trickle);
        let quick = folder.serve("quick", |mut stream| stream.write_all(&[b'x'; 300_000]).unwrap());
        let mute = folder.0.join("mute");
        let _mute = UnixListener::bind(&mute).unwrap();
        let paths = [&*slow, &*mute, &*folder.0.join("none"), &*quick];
        let outcomes = talk_to_all(&paths, "request", Duration::from_secs(10));
        let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().map_err(io::Error::kind)).collect();
        assert_eq!(kinds[..2], [Err(io::ErrorKind::TimedOut); 2]);
        assert_eq!(kinds[2], Err(io::ErrorKind::NotFound));
        assert_eq!(kinds[3].map(Vec::len), Ok(300_000));
    }

    #[test]
    fn more_sockets_than_are_asked_at_a_time_all_answer() {
        let folder = Folder::new("many");
        let path = folder.serve("one", |mut stream| stream.write_all(b"answer").unwrap());
        let outcomes = talk_to_all(&vec![&*path; 3 * TOGETHER + 1], "request", Duration::from_secs(60));
        assert_eq!(outcomes.len(), 3 * TOGETHER + 1);
        assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_ok_and(|answer| answer == b"answer")));
    }

    #[test]
    fn a_socket_whose_process_is_replaced_is_asked_again_and_one_that_always_closes_once() {
        static HAS_CLOSED: AtomicBool = AtomicBool::new(false);
        let folder = Folder::new("replaced");
        let replaced = folder.serve("replaced", |mut stream| {
            if HAS_CLOSED.swap(true, Ordering::Relaxed) {
                stream.write_all(b"successor").unwrap();
            }
        });
        let steady = folder.serve("steady", |mut stream| stream.write_all(b"answer").unwrap());
        let closing = folder.serve("closing", drop);
        let none = folder.0.join("none");
        let outcomes = query_all(&[&*steady, &*closing, &*replaced, &*none], "request", Duration::from_secs(60));
        let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.as_deref().map_err(io::Error::kind)).collect();
        let (reset, none) = (Err(io::ErrorKind::ConnectionReset), Err(io::ErrorKind::NotFound));
        assert_eq!(kinds, [Ok(&b"answer"[..]), reset, Ok(b"successor"), none]);
    }

    #[test]
    fn users_with_access_learn_that_an_instance_ended_and_others_are_refused() {
        let path = std::env::temp_dir().join(format!("segue-silence-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        // Root can give the file to another user.
        let _ = std::os::unix::fs::chown(&path, Some(65_534), None);
        let owner = fs::metadata(&path).unwrap().uid();
        let answers = [0, owner, owner - 1].map(|uid| silence(&path, uid));
        fs::remove_file(&path).unwrap();
        assert_eq!(answers, [libc::ECONNRESET, libc::ECONNRESET, libc::EACCES]);
        assert_eq!(silence(&path, owner), libc::ECONNRESET, "it took its socket away");
    }
}
