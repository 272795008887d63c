//! The asynchronous lookup of host names: the service does not wait for the answers.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use segue_host::names::{Lookups, Names};

use crate::started;

/// Interval at which a lookup is checked for its answers.
pub(super) const ANSWER: Duration = Duration::from_millis(300);
/// Longest time for the answers, which is longer than resolvers try.
const LIMIT: Duration = Duration::from_secs(60);

/// A lookup of names, which may take as long as the resolver needs.
#[derive(Debug)]
pub(super) struct Lookup(JoinHandle<Names>);

impl Lookup {
    /// Starts a lookup of `hosts`; `None` if there are none, or no thread can be started.
    pub(super) fn begin(hosts: Vec<String>) -> Option<Lookup> {
        if hosts.is_empty() {
            return None;
        }
        started::spawn("names", move || Names::look_up(hosts, LIMIT)).ok().map(Lookup)
    }

    /// Returns whether all answers have arrived.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the answers, and returns them.
    pub(super) fn answers(self) -> Names {
        self.0.join().unwrap_or_default()
    }
}

/// The pending lookups of a reload that did not wait for all answers.
#[derive(Debug)]
pub(super) struct LateAnswers {
    lookups: Lookups,
    until: Instant,
}

impl LateAnswers {
    /// Creates a value for the lookups that are still pending; `None` if all answers have arrived.
    pub(super) fn of(lookups: Lookups) -> Option<LateAnswers> {
        let until = Instant::now() + LIMIT;
        (!lookups.is_over()).then_some(LateAnswers { lookups, until })
    }

    /// Returns the answers so far, if there are new ones, and the lookups that are still pending.
    pub(super) fn poll(mut self) -> (Option<Names>, Option<LateAnswers>) {
        let is_new = self.lookups.wait(Duration::ZERO);
        let names = is_new.then(|| self.lookups.names().clone());
        let waits = !self.lookups.is_over() && Instant::now() < self.until;
        (names, waits.then_some(self))
    }
}
