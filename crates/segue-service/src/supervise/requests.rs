//! Requests to a service: a control socket separate from those of its instances, on which a client requests a reload or
//! an upgrade and waits for the outcome.
//!
//! The service serves it between its other events, so that it is answered when all of it is done. All resources are
//! bounded: clients at a time, bytes of a request, and the time for it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use segue_control::error::Error;
use segue_control::protocol::{ServiceRequest, ServiceResponse, ServiceState, ServiceTopic};
use segue_host::process::take_inherited;
use segue_host::sys::Want;
use serde::{Deserialize, Serialize};

use crate::connection::{CLIENT_TIME, Connection, ReadOutcome, only_reading, too_long};
use crate::control_server::{ACCEPT_PAUSE, Bound};

/// Largest number of clients at a time; further ones wait in the queue of the socket.
const CLIENTS: usize = 16;
/// Longest name of a service, bytes: the path of a socket has at most 107.
const NAME_LEN: usize = 48;

/// A change of the service that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The service loads its configuration file again.
    Reload,
    /// The service executes the program file again, which may have been upgraded.
    Upgrade,
}

/// The socket and the waiting clients, with the numbers of their descriptors, during the service's change of program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptRequests {
    /// The listener, the path of its file, and whether this service created the file.
    socket: Option<(RawFd, PathBuf, bool)>,
    clients: Vec<RawFd>,
}

/// The control socket of a service, and its clients.
#[derive(Debug, Default)]
pub(super) struct Requests {
    bound: Option<Bound>,
    clients: Vec<Client>,
    /// Time of the next attempt to accept a client, after a failed one.
    next_client: Option<Instant>,
}

#[derive(Debug)]
struct Client {
    connection: Connection,
    /// Change that the client has requested and whose outcome it awaits.
    waits: Option<Change>,
    /// Whether the requested change is being made.
    is_served: bool,
}

impl Requests {
    /// Opens the socket of the service of a file. The process must have one thread.
    pub(super) fn open(file: &str) -> Result<Requests, Error> {
        Ok(Requests { bound: Some(Bound::service(&service_name(file))?), ..Requests::default() })
    }

    /// Describes the socket and the clients that await an upgrade, with their descriptors.
    pub(super) fn kept(&self) -> (KeptRequests, Vec<BorrowedFd<'_>>) {
        let waiting = self.clients.iter().filter(|client| client.waits == Some(Change::Upgrade));
        let mut fds: Vec<BorrowedFd<'_>> = waiting.map(|client| client.connection.fd()).collect();
        let clients = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let socket = self.bound.as_ref().map(|bound| {
            let (path, made) = bound.file().made();
            (bound.fd().as_raw_fd(), path.to_owned(), made)
        });
        fds.extend(self.bound.as_ref().map(Bound::fd));
        (KeptRequests { socket, clients }, fds)
    }

    /// Returns the socket and the clients of the preceding program, whose upgrade is in progress.
    pub(super) fn of_kept(kept: KeptRequests) -> io::Result<Requests> {
        let bound = kept.socket.map(|(fd, path, made)| {
            take_inherited(fd).ok_or(io::ErrorKind::NotFound.into()).and_then(|fd| Bound::kept(fd, path, made))
        });
        let until = Instant::now() + CLIENT_TIME;
        let client =
            |fd| Client { connection: Connection::kept(fd, until), waits: Some(Change::Upgrade), is_served: true };
        let clients = kept.clients.into_iter().filter_map(take_inherited).map(client).collect();
        Ok(Requests { bound: bound.transpose()?, clients, next_client: None })
    }

    /// Returns the descriptors to wait for: those of the clients, then the socket's.
    pub(super) fn fds(&self) -> Vec<(BorrowedFd<'_>, Want)> {
        let mut fds: Vec<_> =
            self.reading().map(|(_, client)| (client.connection.fd(), client.connection.want())).collect();
        if self.clients.len() < CLIENTS && self.next_client.is_none_or(|next| next <= Instant::now()) {
            fds.extend(self.bound.as_ref().map(|bound| (bound.fd(), Want::Read)));
        }
        fds
    }

    /// Returns the clients whose requests are read: a client that awaits a change sends nothing.
    fn reading(&self) -> impl Iterator<Item = (usize, &Client)> {
        self.clients.iter().enumerate().filter(|(_, client)| client.waits.is_none())
    }

    /// Returns the time at which the next client's time limit ends, or the next client may be accepted.
    pub(super) fn due(&self) -> Option<Instant> {
        self.reading().map(|(_, client)| client.connection.until).chain(self.next_client).min()
    }

    /// Handles the events of the descriptors that are ready, in the order of [`Requests::fds`].
    pub(super) fn serve(&mut self, ready: &[bool], state: impl Fn() -> ServiceState) {
        let now = Instant::now();
        let places: Vec<usize> = self.reading().map(|(at, _)| at).collect();
        let mut gone = Vec::new();
        for (&at, ready) in places.iter().zip(ready) {
            let client = &mut self.clients[at];
            if now >= client.connection.until || *ready && !client.step(&state) {
                gone.push(at);
            }
        }
        gone.into_iter().rev().for_each(|at| drop(self.clients.remove(at)));
        self.next_client = self.next_client.filter(|&next| next > now);
        if ready.len() > places.len()
            && ready.last() == Some(&true)
            && let Some(bound) = &self.bound
        {
            match bound.accept(now + CLIENT_TIME) {
                Ok(connection) => {
                    let client = |connection| Client { connection, waits: None, is_served: false };
                    self.clients.extend(connection.map(client));
                }
                // No descriptor is free, for example: the client waits in the queue of the socket, which is readable.
                Err(_) => self.next_client = Some(now + ACCEPT_PAUSE),
            }
        }
    }

    /// Returns whether a client has requested a change that has not begun.
    pub(super) fn wants(&self, change: Change) -> bool {
        self.clients.iter().any(|client| client.waits == Some(change) && !client.is_served)
    }

    /// Records the start of a change: its outcome is for the clients that have requested it until now.
    pub(super) fn begin(&mut self, change: Change) {
        self.clients.iter_mut().for_each(|client| client.is_served = client.waits == Some(change));
    }

    /// Sends the outcome of the change to the clients that await it; `text` is the human-readable error.
    pub(super) fn answer(&mut self, outcome: Result<ServiceResponse, &Error>, text: &str) {
        let response = outcome.unwrap_or_else(|error| ServiceResponse::refused(error, text));
        for client in self.clients.iter_mut().filter(|client| client.is_served) {
            (client.waits, client.is_served) = (None, false);
            client.connection.until = Instant::now() + CLIENT_TIME;
            client.connection.reply(&response.line());
        }
    }

    /// Closes the socket, and removes its file.
    pub(super) fn close(&mut self) {
        *self = Requests::default();
    }
}

impl Client {
    /// Reads or writes as much as is possible; returns `false` at the end of the connection.
    fn step(&mut self, state: impl Fn() -> ServiceState) -> bool {
        if !self.connection.is_answered() {
            let response = match self.connection.read() {
                ReadOutcome::More => return true,
                ReadOutcome::Closed => return false,
                ReadOutcome::TooLong => ServiceResponse::from(too_long()),
                ReadOutcome::Line(line) => match ServiceRequest::parse(&line) {
                    Ok(ServiceRequest::Reload {} | ServiceRequest::Upgrade {}) if !self.connection.may_change => {
                        only_reading().into()
                    }
                    Ok(ServiceRequest::Reload {}) => {
                        self.waits = Some(Change::Reload);
                        return true;
                    }
                    Ok(ServiceRequest::Upgrade {}) => {
                        self.waits = Some(Change::Upgrade);
                        return true;
                    }
                    Ok(ServiceRequest::Get(ServiceTopic::Service)) => ServiceResponse::Service(Box::new(state())),
                    Err(error) => error.into(),
                },
            };
            self.connection.reply(&response.line());
        }
        self.connection.write()
    }
}

/// Returns the name of the service of a file: that of the file without its suffix, in characters that need no quotes.
fn service_name(file: &str) -> String {
    let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy();
    let kept = stem.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.@".contains(c) { c } else { '_' });
    let name: String = kept.take(NAME_LEN).collect();
    if name.trim_matches('.').is_empty() { "segue".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_the_name_of_its_file() {
        for (file, name) in [
            ("/etc/segue/segue.toml", "segue"),
            ("/etc/segue/blue.net.toml", "blue.net"),
            ("a b\u{1b}/c d.toml", "c_d"),
            ("/dev/stdin", "stdin"),
            ("..", "segue"),
        ] {
            assert_eq!(service_name(file), name, "{file}");
        }
        assert!(service_name(&"x".repeat(300)).len() <= NAME_LEN);
    }
}
