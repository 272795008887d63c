//! The process that talks to the front ends of a guest. The process that moves packets can open nothing and accepts no
//! other process; this one sees no packet. It accepts a front end, or connects to it, checks the descriptors of memory
//! that come with its messages, and passes both on over a connection that it hands over.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use segue_control::error::Error;
use segue_host::sys::{Forked, Want, connect_path, fork, keep_only, poll};
use segue_port::vhost::relay::Relay;

use crate::handover::sys::{self, is_passing};
use crate::report::to_stderr;
use crate::sandbox::{AccessRights, Helper, NewUser, Rounds, confine};

/// Minimum time between two front ends: a refused one reconnects at once.
const PAUSE: Duration = Duration::from_millis(20);
/// Time between two attempts to connect to a front end that listens.
const RETRY: Duration = Duration::from_millis(500);
/// Pause after an error that may be over at the next attempt.
const FAILED_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for any event; its value does not affect the behaviour.
const LONG: Duration = Duration::from_secs(3600);

/// Arguments of the process that relays the connections of front ends.
pub(super) struct Keeper<'a> {
    pub(super) name: &'a str,
    pub(super) path: &'a Path,
    /// Listening socket; `None` if the front end listens.
    pub(super) listener: Option<UnixListener>,
}

impl Keeper<'_> {
    /// Starts the process, and returns the socket over which it hands over connections. This process must have one
    /// thread.
    pub(super) fn start(self, is_weak: bool) -> Result<(OwnedFd, Helper), Error> {
        let failed = |error: io::Error| {
            Error::system("cannot start the process that talks to a guest's front end", &error, "segue doctor")
                .why("a socket pair or a process could not be made, or it could not be confined")
        };
        let rounds = Rounds::new().map_err(failed)?;
        let (near, far) = sys::pair().map_err(failed)?;
        // A front end's own socket may be for this user alone.
        let user = match &self.listener {
            Some(_) => NewUser::choose(&format!("{} front end", self.name))?,
            None => NewUser::default(),
        };
        // Every other descriptor is closed there.
        sys::send(&near, &[0], self.listener.as_ref().map(AsFd::as_fd)).map_err(failed)?;
        match fork().map_err(failed)? {
            Forked::Parent(pid) => {
                drop(far);
                // Until the other process has its user, another instance could choose the same one.
                (&near).read_exact(&mut [0]).map_err(failed)?;
                drop(user);
                let task = format!("process that talks to the front end of {}", self.name);
                Ok((near.into(), Helper::new(pid, task, true, rounds)))
            }
            Forked::Child => {
                drop(near);
                let served = user.switch().and_then(|()| {
                    let text = |error: io::Error| error.to_string();
                    let mut far = keep_only(far).map_err(text)?;
                    let (_, listener) = sys::receive(&far, &mut [0]).map_err(text)?;
                    let path = self.path.to_owned();
                    // A front end that listens is connected to; the other one comes.
                    let families: &[i32] = if listener.is_none() { &[libc::AF_UNIX] } else { &[] };
                    confine(&AccessRights { accepts: true, families, ..AccessRights::default() }, is_weak)?;
                    far.write_all(&[1]).map_err(text)?;
                    let listener = listener.map(UnixListener::from);
                    let (supply, listener) = (&far, listener.as_ref());
                    FrontendServer { supply, listener, path: &path, rounds: &rounds }.serve().map_err(text)
                });
                match &served {
                    // The port takes no front end any more, and says why.
                    Ok(()) => rounds.finish(),
                    Err(why) => {
                        let path = self.path.display();
                        to_stderr(&format!("note: the front end of {path} is served no more: {why}\n"));
                    }
                }
                std::process::exit(i32::from(served.is_err()))
            }
        }
    }
}

/// Server of the front ends of a port, one after the other.
struct FrontendServer<'a> {
    /// Connection to the process that moves packets.
    supply: &'a UnixStream,
    /// Listening socket; `None` if the front end listens.
    listener: Option<&'a UnixListener>,
    /// Path of the front end's socket.
    path: &'a Path,
    rounds: &'a Rounds,
}

impl FrontendServer<'_> {
    /// Serves one front end after the other, until the packet process has ended.
    fn serve(&self) -> io::Result<()> {
        if let Some(listener) = self.listener {
            listener.set_nonblocking(true)?;
        }
        while let Some(front) = self.next()? {
            let Some((near, inner)) = self.repeated(UnixStream::pair)? else { return Ok(()) };
            if self.repeated(|| sys::send(self.supply, &[1], Some(inner.as_fd())))?.is_none() {
                return Ok(());
            }
            drop(inner);
            let is_there = match Relay::new(front, near) {
                Ok(relay) => self.pass(relay)?,
                // The front end finds its connection closed, and connects again.
                Err(_) => true,
            };
            if !is_there || self.has_ended(PAUSE)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes a call, and repeats it after a pause if its error is transient. Returns `None` where the process that
    /// moves packets has ended.
    fn repeated<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<Option<T>> {
        loop {
            match call() {
                Ok(done) => return Ok(Some(done)),
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    return Ok(None);
                }
                Err(error) if !is_passing(&error) => return Err(error),
                Err(_) if self.has_ended(FAILED_PAUSE)? => return Ok(None),
                Err(_) => {}
            }
        }
    }

    /// Returns the next front end; `None` if the packet process has ended.
    fn next(&self) -> io::Result<Option<UnixStream>> {
        loop {
            let found = match self.listener {
                Some(listener) => {
                    let ready = self.wait(&[(listener.as_fd(), Want::Read), self.hangup()], LONG)?;
                    if ready[1] {
                        return Ok(None);
                    }
                    listener.accept().map(|(front, _)| front)
                }
                // Without a wait for room in its queue.
                None => connect_path(self.path),
            };
            match found {
                Ok(front) => return Ok(Some(front)),
                Err(_) if self.listener.is_none() && self.has_ended(RETRY)? => return Ok(None),
                // The process has no request open, or has ended; without descriptors it is tried again.
                Err(_) if self.listener.is_some() && self.has_ended(PAUSE)? => return Ok(None),
                Err(_) => {}
            }
        }
    }

    /// Passes messages on until one side is gone, and waits until the port has let the guest's memory go. Returns
    /// whether the process that moves packets is there still.
    fn pass(&self, mut relay: Relay) -> io::Result<bool> {
        let mut was_ready = false;
        while relay.pass() {
            // A wait for the sockets would be none: what could not be passed on came from them, and more may follow it,
            // or they are ready and have nothing.
            if relay.is_held_up() || was_ready && !relay.has_moved() {
                was_ready = false;
                if self.has_ended(FAILED_PAUSE)? {
                    return Ok(false);
                }
                continue;
            }
            let mut wants = vec![self.hangup()];
            wants.extend(relay.sockets().map(|socket| (socket.as_fd(), Want::Read)));
            wants.extend(self.listener.map(|listener| (listener.as_fd(), Want::Read)));
            let ready = self.wait(&wants, relay.timeout().unwrap_or(LONG))?;
            if ready[0] {
                return Ok(false);
            }
            was_ready = ready[1] || ready[2];
            if let (Some(listener), Some(true)) = (self.listener, ready.get(3)) {
                // The one that left just before another one came must not keep it out.
                if !relay.pass() {
                    break;
                }
                was_ready = false;
                // One guest has one port: another front end is told so at once.
                if listener.accept().is_err() && self.has_ended(FAILED_PAUSE)? {
                    return Ok(false);
                }
            }
        }
        let remains = relay.end();
        while let Some((port, longest)) = remains.wait() {
            let ready = self.wait(&[self.hangup(), (port.as_fd(), Want::Hangup)], longest)?;
            if ready.contains(&true) {
                // What the port had not read yet is closed just after its hangup.
                return Ok(!ready[0] && !self.has_ended(PAUSE)?);
            }
        }
        Ok(true)
    }

    /// Waits for a given time, or until the packet process has ended; returns whether it has.
    fn has_ended(&self, wait: Duration) -> io::Result<bool> {
        Ok(self.wait(&[self.hangup()], wait)? == [true])
    }

    /// Returns the end of the process that moves packets, as an event to wait for.
    fn hangup(&self) -> (BorrowedFd<'_>, Want) {
        (self.supply.as_fd(), Want::Hangup)
    }

    /// Waits, as [`poll`] does, and counts a round: whatever repeats something waits in between.
    fn wait(&self, wants: &[(BorrowedFd<'_>, Want)], longest: Duration) -> io::Result<Vec<bool>> {
        self.rounds.count();
        poll(wants, longest)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;
    use std::{fs, thread};

    use super::*;

    /// Longest wait for anything in these tests.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_front_end_that_accepts_nothing_is_asked_until_the_packet_process_ends() {
        let path = std::env::temp_dir().join(format!("segue-keeper-full-{}", std::process::id()));
        let _listener = UnixListener::bind(&path).unwrap();
        // Connections whose client is gone stay in the queue.
        while connect_path(&path).is_ok() {}
        let (near, far) = sys::pair().unwrap();
        let rounds = Rounds::new().unwrap();
        let serving = thread::spawn({
            let (path, rounds) = (path.clone(), rounds.clone());
            move || FrontendServer { supply: &far, listener: None, path: &path, rounds: &rounds }.serve()
        });
        thread::sleep(20 * FAILED_PAUSE);
        assert!(!serving.is_finished(), "{:?}", serving.join());
        drop(near);
        let begin = Instant::now();
        while !serving.is_finished() {
            assert!(begin.elapsed() < PATIENCE, "it waits for room in the queue");
            thread::sleep(FAILED_PAUSE);
        }
        serving.join().unwrap().unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_front_end_is_handed_over_once_the_connection_takes_it() {
        let folder = std::env::temp_dir().join(format!("segue-keeper-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("front.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (near, far) = sys::pair().unwrap();
        // The port reads nothing, and a full connection says so at once (EAGAIN), as a kernel without memory does.
        far.set_nonblocking(true).unwrap();
        while sys::send(&far, &[0], None).is_ok() {}
        let rounds = Rounds::new().unwrap();
        let serving = thread::spawn({
            let (path, rounds) = (path.clone(), rounds.clone());
            move || FrontendServer { supply: &far, listener: Some(&listener), path: &path, rounds: &rounds }.serve()
        });
        let mut front = UnixStream::connect(&path).unwrap();
        thread::sleep(20 * FAILED_PAUSE);
        assert!(!serving.is_finished(), "{:?}", serving.join());
        let begin = Instant::now();
        let handed = loop {
            assert!(begin.elapsed() < PATIENCE, "no connection was handed over");
            match sys::receive(&near, &mut [0]) {
                Ok((1, Some(fd))) => break fd,
                Ok((1, None)) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(FAILED_PAUSE),
                ended => panic!("{ended:?}"),
            }
        };
        // A message without a payload: its number, the version, its length.
        let message = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        front.write_all(&message).unwrap();
        let mut handed = UnixStream::from(handed);
        handed.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut passed = [0; 12];
        handed.read_exact(&mut passed).unwrap();
        assert_eq!(passed, message);
        drop(near);
        serving.join().unwrap().unwrap();
        assert!(rounds.number() > 2, "a wait for a front end, one for messages, and one that ends");
        fs::remove_dir_all(&folder).unwrap();
    }
}
