//! The process that connects to a front end that listens. The front end's socket may be for the starting user alone, so
//! that this process keeps that user. It reads nothing of the front end's: the keeper does, which has a user of its own
//! and can make no socket that connects.

use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use segue_control::error::Error;
use segue_host::sys::{Forked, connect_path, fork, keep_only};

use super::partner::Partner;
use crate::handover::sys;
use crate::report::to_stderr;
use crate::sandbox::{AccessRights, Helper, Rounds, confine};

/// Arguments of the process that connects to a front end.
pub(super) struct Dialer<'a> {
    pub(super) name: &'a str,
    pub(super) path: &'a Path,
}

impl Dialer<'_> {
    /// Starts the process, and returns the connection over which the keeper asks it. This process must have one thread.
    pub(super) fn start(self, is_weak: bool) -> Result<(UnixStream, Helper), Error> {
        let failed = |error: io::Error| {
            Error::system("cannot start the process that connects to a guest's front end", &error, "segue doctor")
                .why("a socket pair or a process could not be made, or it could not be confined")
        };
        let rounds = Rounds::new().map_err(failed)?;
        let (near, far) = sys::pair().map_err(failed)?;
        match fork().map_err(failed)? {
            Forked::Parent(pid) => {
                drop(far);
                (&near).read_exact(&mut [0]).map_err(failed)?;
                let task = format!("process that connects to the front end of {}", self.name);
                Ok((near, Helper::new(pid, task, true, rounds)))
            }
            Forked::Child => {
                drop(near);
                let text = |error: io::Error| error.to_string();
                let served = keep_only(far).map_err(text).and_then(|mut far| {
                    confine(&AccessRights { families: &[libc::AF_UNIX], ..AccessRights::default() }, is_weak)?;
                    far.write_all(&[1]).map_err(text)?;
                    serve(&Partner { socket: &far, rounds: &rounds }, self.path).map_err(text)
                });
                match &served {
                    Ok(()) => rounds.finish(),
                    Err(why) => {
                        let path = self.path.display();
                        to_stderr(&format!("note: the front end of {path} is connected to no more: {why}\n"));
                    }
                }
                std::process::exit(i32::from(served.is_err()))
            }
        }
    }
}

/// Connects to the front end at `path` at each request of the keeper, until that has ended. The answer has the
/// connection, or none where no front end takes it now, or `path` leads to another one's socket.
pub(super) fn serve(keeper: &Partner<'_>, path: &Path) -> io::Result<()> {
    let mut is_told = false;
    loop {
        keeper.rounds.count();
        let asked = keeper.repeated(|| {
            let mut socket = keeper.socket;
            socket.read(&mut [0])
        })?;
        // There is nothing to read where it has ended.
        if asked.unwrap_or_default() == 0 {
            return Ok(());
        }
        // Without a wait for room in its queue.
        let front = match connect_path(path) {
            Ok(front) if listens_at(&front, path) => Some(front),
            Ok(_) => {
                if !mem::replace(&mut is_told, true) {
                    to_stderr(&format!("note: {} leads to a socket of another name, and is left\n", path.display()));
                }
                None
            }
            Err(_) => None,
        };
        let fd = front.as_ref().map(AsFd::as_fd);
        if keeper.repeated(|| sys::send(keeper.socket, &[1], fd))?.is_none() {
            return Ok(());
        }
    }
}

/// Returns whether the socket at the other end was made with the file name of `path`: the front end may put a link to
/// any socket of this user's in the place of its own. The folder may be called otherwise in a container.
fn listens_at(front: &UnixStream, path: &Path) -> bool {
    front.peer_addr().is_ok_and(|name| name.as_pathname().and_then(Path::file_name) == path.file_name())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::time::Duration;
    use std::{fs, thread};

    use segue_host::sys::{Want, poll};

    use super::*;

    /// Serves the requests that `makes` makes, and returns the number of rounds.
    fn served(path: &Path, makes: impl FnOnce(&dyn Fn() -> Option<OwnedFd>)) -> u64 {
        const PATIENCE: Duration = Duration::from_secs(60);
        let (near, far) = sys::pair().unwrap();
        let rounds = Rounds::new().unwrap();
        let serving = thread::spawn({
            let (path, rounds) = (path.to_owned(), rounds.clone());
            move || serve(&Partner { socket: &far, rounds: &rounds }, &path)
        });
        makes(&|| {
            sys::send(&near, &[1], None).unwrap();
            assert_eq!(poll(&[(near.as_fd(), Want::Read)], PATIENCE).unwrap(), [true], "no answer");
            sys::receive(&near, &mut [0]).unwrap().1
        });
        drop(near);
        serving.join().unwrap().unwrap();
        rounds.number()
    }

    #[test]
    fn each_request_is_answered_by_a_connection_or_by_none() {
        let path = std::env::temp_dir().join(format!("segue-dialer-{}", std::process::id()));
        let rounds = served(&path, |request| {
            assert!(request().is_none(), "nothing listens");
            let listener = UnixListener::bind(&path).unwrap();
            let front = request().expect("a connection");
            let (mut accepted, _) = listener.accept().unwrap();
            accepted.write_all(b"x").unwrap();
            let mut byte = [0];
            UnixStream::from(front).read_exact(&mut byte).unwrap();
            assert_eq!(&byte, b"x");
        });
        assert!(rounds >= 2, "one for each request");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_link_to_a_socket_of_another_name_is_no_front_end() {
        let folder = std::env::temp_dir().join(format!("segue-dialer-links-{}", std::process::id()));
        fs::create_dir_all(folder.join("inside")).unwrap();
        let path = folder.join("front.sock");
        served(&path, |request| {
            let _other = UnixListener::bind(folder.join("private")).unwrap();
            symlink("private", &path).unwrap();
            assert!(request().is_none(), "the socket of another process of this user");
            fs::remove_file(&path).unwrap();
            let _front = UnixListener::bind(folder.join("inside/front.sock")).unwrap();
            symlink("inside/front.sock", &path).unwrap();
            assert!(request().is_some(), "the folder has another name");
        });
        fs::remove_dir_all(&folder).unwrap();
    }
}
