//! The lookup of host names beside the service, which does not wait for the answers.

use std::thread::JoinHandle;
use std::time::Duration;

use segue_host::names::Names;

use crate::started;

/// Interval at which a lookup is checked for its answers.
pub(super) const ANSWER: Duration = Duration::from_millis(300);
/// Longest time for the answers, which is longer than resolvers try.
const LIMIT: Duration = Duration::from_secs(60);

/// A lookup of names, which may take as long as the resolver waits.
#[derive(Debug)]
pub(super) struct Lookup(JoinHandle<Names>);

impl Lookup {
    /// Begins to look `hosts` up; `None` where there are none, or no thread can be started.
    pub(super) fn begin(hosts: Vec<String>) -> Option<Lookup> {
        if hosts.is_empty() {
            return None;
        }
        started::spawn("names", move || Names::look_up(hosts, LIMIT)).ok().map(Lookup)
    }

    /// Returns whether there are answers.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the answers, and returns them.
    pub(super) fn answers(self) -> Names {
        self.0.join().unwrap_or_default()
    }
}
