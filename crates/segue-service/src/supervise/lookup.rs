//! The lookup of a host name beside the service, which does not wait for the answer.

use std::net::ToSocketAddrs;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::started;

/// Interval at which a lookup is checked for its answer.
pub(super) const ANSWER: Duration = Duration::from_millis(300);

/// A lookup of a name, which may take as long as the resolver waits.
#[derive(Debug)]
pub(super) struct Lookup(JoinHandle<bool>);

impl Lookup {
    /// Begins to look `host` up; `None` where no thread can be started.
    pub(super) fn begin(host: &str) -> Option<Lookup> {
        let host = host.to_owned();
        let has_address = move || (host.as_str(), 0).to_socket_addrs().is_ok_and(|mut found| found.next().is_some());
        started::spawn("name", has_address).ok().map(Lookup)
    }

    /// Returns whether there is an answer.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the answer, and returns whether the name has an address.
    pub(super) fn has_address(self) -> bool {
        self.0.join().unwrap_or(false)
    }
}
