//! The process that talks to the front ends of a guest. The process that moves packets can open nothing and accepts no
//! other process; this one sees no packet. It accepts a front end, or asks another process to connect to it, checks the
//! descriptors of memory that come with its messages, and passes both on over a connection that it hands over.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use segue_control::error::Error;
use segue_host::sys::{Forked, Want, fork, keep_only};
use segue_port::vhost::relay::Relay;

use super::partner::{FAILED_PAUSE, Partner};
use crate::handover::sys;
use crate::report::to_stderr;
use crate::sandbox::{AccessRights, Helper, NewUser, Rounds, confine};

/// Minimum time between two front ends: a refused one reconnects at once.
const PAUSE: Duration = Duration::from_millis(20);
/// Time between two attempts to connect to a front end that listens.
const RETRY: Duration = Duration::from_millis(500);
/// Longest wait for any event; its value does not affect the behaviour.
const LONG: Duration = Duration::from_secs(3600);

/// Arguments of the process that relays the connections of front ends.
pub(super) struct Keeper<'a> {
    pub(super) name: &'a str,
    pub(super) path: &'a Path,
    pub(super) fronts: FrontendSource,
}

/// Source of the connections of front ends.
pub(super) enum FrontendSource {
    /// The socket at which they connect.
    Listener(UnixListener),
    /// A connection to the process that connects to a front end that listens.
    Dialer(UnixStream),
}

impl AsFd for FrontendSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            FrontendSource::Listener(listener) => listener.as_fd(),
            FrontendSource::Dialer(dialer) => dialer.as_fd(),
        }
    }
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
        let user = NewUser::choose(&format!("{} front end", self.name))?;
        // Every other descriptor is closed there.
        sys::send(&near, &[0], Some(self.fronts.as_fd())).map_err(failed)?;
        let listens = matches!(self.fronts, FrontendSource::Listener(_));
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
                    let (_, fd) = sys::receive(&far, &mut [0]).map_err(text)?;
                    let fd = fd.ok_or("no socket came along")?;
                    let fronts =
                        if listens { FrontendSource::Listener(fd.into()) } else { FrontendSource::Dialer(fd.into()) };
                    confine(&AccessRights { accepts: true, ..AccessRights::default() }, is_weak)?;
                    far.write_all(&[1]).map_err(text)?;
                    let port = Partner { socket: &far, rounds: &rounds };
                    FrontendServer { port, fronts: &fronts }.serve().map_err(text)
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
    /// The process that moves packets.
    port: Partner<'a>,
    fronts: &'a FrontendSource,
}

impl FrontendServer<'_> {
    /// Serves one front end after the other, until the packet process has ended.
    fn serve(&self) -> io::Result<()> {
        if let Some(listener) = self.listener() {
            listener.set_nonblocking(true)?;
        }
        while let Some(front) = self.next()? {
            let Some((near, inner)) = self.port.repeated(UnixStream::pair)? else { return Ok(()) };
            if self.port.repeated(|| sys::send(self.port.socket, &[1], Some(inner.as_fd())))?.is_none() {
                return Ok(());
            }
            drop(inner);
            let is_there = match Relay::new(front, near) {
                Ok(relay) => self.pass(relay)?,
                // The front end finds its connection closed, and connects again.
                Err(_) => true,
            };
            if !is_there || self.port.has_ended(PAUSE)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the socket at which front ends connect; `None` where they listen.
    fn listener(&self) -> Option<&UnixListener> {
        match self.fronts {
            FrontendSource::Listener(listener) => Some(listener),
            FrontendSource::Dialer(_) => None,
        }
    }

    /// Returns the next front end; `None` if the packet process has ended.
    fn next(&self) -> io::Result<Option<UnixStream>> {
        loop {
            let (found, pause) = match self.fronts {
                FrontendSource::Listener(listener) => {
                    let ready = self.port.wait(&[(listener.as_fd(), Want::Read), self.port.hangup()], LONG)?;
                    if ready[1] {
                        return Ok(None);
                    }
                    // The process has no request open, or has ended; without descriptors it is tried again.
                    (listener.accept().ok().map(|(front, _)| front), PAUSE)
                }
                FrontendSource::Dialer(dialer) => (self.dialed(dialer)?, RETRY),
            };
            if found.is_some() || self.port.has_ended(pause)? {
                return Ok(found);
            }
        }
    }

    /// Returns a connection to the front end from the process that connects to it; `None` where there is none now.
    fn dialed(&self, dialer: &UnixStream) -> io::Result<Option<UnixStream>> {
        if self.port.repeated(|| sys::send(dialer, &[1], None))?.is_none()
            || self.port.wait(&[(dialer.as_fd(), Want::Read), self.port.hangup()], LONG)?[1]
        {
            return Ok(None);
        }
        let answer = self.port.repeated(|| match sys::receive(dialer, &mut [0]) {
            // There was no descriptor left for it.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok((0, None)),
            answer => answer,
        })?;
        Ok(answer.and_then(|(_, front)| front).map(UnixStream::from))
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
                if self.port.has_ended(FAILED_PAUSE)? {
                    return Ok(false);
                }
                continue;
            }
            let mut wants = vec![self.port.hangup()];
            wants.extend(relay.sockets().map(|socket| (socket.as_fd(), Want::Read)));
            wants.extend(self.listener().map(|listener| (listener.as_fd(), Want::Read)));
            let ready = self.port.wait(&wants, relay.timeout().unwrap_or(LONG))?;
            if ready[0] {
                return Ok(false);
            }
            was_ready = ready[1] || ready[2];
            if let (Some(listener), Some(true)) = (self.listener(), ready.get(3)) {
                // The one that left just before another one came must not keep it out.
                if !relay.pass() {
                    break;
                }
                was_ready = false;
                // One guest has one port: another front end is told so at once.
                if listener.accept().is_err() && self.port.has_ended(FAILED_PAUSE)? {
                    return Ok(false);
                }
            }
        }
        let remains = relay.end();
        while let Some((port, longest)) = remains.wait() {
            let ready = self.port.wait(&[self.port.hangup(), (port.as_fd(), Want::Hangup)], longest)?;
            if ready.contains(&true) {
                // What the port had not read yet is closed just after its hangup.
                return Ok(!ready[0] && !self.port.has_ended(PAUSE)?);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;
    use std::{fs, thread};

    use segue_host::sys::connect_path;

    use super::super::dialer;
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
        let (asking, asked) = sys::pair().unwrap();
        let rounds = Rounds::new().unwrap();
        let dialing = thread::spawn({
            let (path, rounds) = (path.clone(), rounds.clone());
            move || dialer::serve(&Partner { socket: &asked, rounds: &rounds }, &path)
        });
        let serving = thread::spawn(move || {
            let (port, fronts) = (Partner { socket: &far, rounds: &rounds }, FrontendSource::Dialer(asking));
            FrontendServer { port, fronts: &fronts }.serve()
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
        dialing.join().unwrap().expect("it ends with the process that asks it");
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
            let rounds = rounds.clone();
            move || {
                let (port, fronts) = (Partner { socket: &far, rounds: &rounds }, FrontendSource::Listener(listener));
                FrontendServer { port, fronts: &fronts }.serve()
            }
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
