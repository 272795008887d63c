//! The process that talks to the front ends of one guest. The process that moves packets can open nothing and accepts
//! no other process; this one sees no packet. It accepts a front end, or connects to it, checks the descriptors of
//! memory that come with its messages, and passes both on over a connection that it hands over.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use segue_control::error::Error;
use segue_host::sys::{Forked, Want, fork, poll};
use segue_port::vhost::relay::Relay;

use crate::handover::sys;
use crate::report::to_stderr;
use crate::sandbox::{AccessRights, NewUser, confine};

/// Time from one front end to the next, at least: a front end that is refused comes back at once.
const PAUSE: Duration = Duration::from_millis(20);
/// Time between two attempts to connect to a front end that listens.
const RETRY: Duration = Duration::from_millis(500);
/// Longest wait for any event; no behaviour depends on its value.
const LONG: Duration = Duration::from_secs(3600);

/// Arguments of the process that relays the connections of front ends.
pub(super) struct Keeper<'a> {
    pub(super) name: &'a str,
    pub(super) path: &'a Path,
    /// The listening socket; `None` where the front end listens.
    pub(super) listener: Option<UnixListener>,
}

impl Keeper<'_> {
    /// Starts the process, and returns the socket over which it hands over connections. This process must have one
    /// thread.
    pub(super) fn start(self, is_weak: bool) -> Result<OwnedFd, Error> {
        let failed = |error: io::Error| {
            Error::system("cannot start the process that talks to a guest's front end", &error, "segue doctor")
                .why("a socket pair or a process could not be made, or it could not be confined")
        };
        let (near, far) = sys::pair().map_err(failed)?;
        // A front end's own socket may be for this user alone.
        let user = match &self.listener {
            Some(_) => NewUser::choose(&format!("{} front end", self.name))?,
            None => NewUser::default(),
        };
        // Every other descriptor is closed there.
        sys::send(&near, &[0], self.listener.as_ref().map(AsFd::as_fd)).map_err(failed)?;
        match fork().map_err(failed)? {
            Forked::Parent(_) => {
                drop(far);
                // Until the other process has its user, another instance could choose the same one.
                (&near).read_exact(&mut [0]).map_err(failed)?;
                drop(user);
                Ok(near.into())
            }
            Forked::Child => {
                drop(near);
                let served = user.switch().and_then(|()| {
                    let text = |error: io::Error| error.to_string();
                    let mut far = sys::keep_only(far).map_err(text)?;
                    let (_, listener) = sys::receive(&far, &mut [0]).map_err(text)?;
                    let path = self.path.to_owned();
                    confine(&AccessRights { accepts: true, ..AccessRights::default() }, is_weak)?;
                    far.write_all(&[1]).map_err(text)?;
                    serve(&far, listener.map(UnixListener::from).as_ref(), &path).map_err(text)
                });
                if let Err(why) = &served {
                    to_stderr(&format!("note: the front end of {} is served no more: {why}\n", self.path.display()));
                }
                std::process::exit(i32::from(served.is_err()))
            }
        }
    }
}

/// Serves one front end after the other, until the process that moves packets has ended.
fn serve(supply: &UnixStream, listener: Option<&UnixListener>, path: &Path) -> io::Result<()> {
    if let Some(listener) = listener {
        listener.set_nonblocking(true)?;
    }
    while let Some(front) = next(supply, listener, path)? {
        let (near, inner) = UnixStream::pair()?;
        match sys::send(supply, &[1], Some(inner.as_fd())) {
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                return Ok(());
            }
            sent => sent?,
        }
        drop(inner);
        if !pass(Relay::new(front, near)?, supply, listener)? || has_ended(supply, PAUSE)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the next front end; `None` where the process that moves packets has ended.
fn next(supply: &UnixStream, listener: Option<&UnixListener>, path: &Path) -> io::Result<Option<UnixStream>> {
    loop {
        let found = match listener {
            Some(listener) => {
                let ready = poll(&[(listener.as_fd(), Want::Read), (supply.as_fd(), Want::Hangup)], LONG)?;
                if ready[1] {
                    return Ok(None);
                }
                listener.accept().map(|(front, _)| front)
            }
            None => UnixStream::connect(path),
        };
        match found {
            Ok(front) => return Ok(Some(front)),
            Err(_) if listener.is_none() && has_ended(supply, RETRY)? => return Ok(None),
            // The process has no request open, or has ended; without descriptors it is tried again.
            Err(_) if listener.is_some() && has_ended(supply, PAUSE)? => return Ok(None),
            Err(_) => {}
        }
    }
}

/// Passes messages on until one side is gone. Returns whether the process that moves packets is there still.
fn pass(mut relay: Relay, supply: &UnixStream, listener: Option<&UnixListener>) -> io::Result<bool> {
    while relay.pass() {
        let mut wait = vec![(supply.as_fd(), Want::Hangup)];
        wait.extend(relay.sockets().map(|socket| (socket.as_fd(), Want::Read)));
        wait.extend(listener.map(|listener| (listener.as_fd(), Want::Read)));
        let ready = poll(&wait, relay.timeout().unwrap_or(LONG))?;
        if ready[0] {
            return Ok(false);
        }
        // One guest has one port: another front end is told so at once.
        if let (Some(listener), Some(true)) = (listener, ready.get(3)) {
            let _ = listener.accept();
        }
    }
    Ok(true)
}

/// Waits for this time, or until the process that moves packets has ended; returns whether it has.
fn has_ended(supply: &UnixStream, wait: Duration) -> io::Result<bool> {
    Ok(poll(&[(supply.as_fd(), Want::Hangup)], wait)? == [true])
}
