//! The asynchronous lookup of host names: the service does not wait for the answers.

use std::collections::BTreeSet;
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
pub(super) enum Lookup {
    /// A thread waits for the resolver.
    Pending(JoinHandle<Names>),
    /// The answers have arrived.
    Over(Names),
}

impl Lookup {
    /// Starts a lookup of `hosts`; `None` if there are none, or no thread can be started.
    pub(super) fn begin(hosts: Vec<String>) -> Option<Lookup> {
        if hosts.is_empty() {
            return None;
        }
        started::spawn("names", move || Names::look_up(hosts, LIMIT)).ok().map(Lookup::Pending)
    }

    /// Returns whether all answers have arrived.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Lookup::Pending(thread) => thread.is_finished(),
            Lookup::Over(_) => true,
        }
    }

    /// Waits for the answers, and returns them.
    pub(super) fn answers(self) -> Names {
        match self {
            Lookup::Pending(thread) => thread.join().unwrap_or_default(),
            Lookup::Over(names) => names,
        }
    }
}

/// The pending lookups of a start or a reload that did not wait for all answers.
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

    /// Starts lookups of `hosts`; `None` if there are none.
    pub(super) fn begin(hosts: BTreeSet<String>) -> Option<LateAnswers> {
        if hosts.is_empty() { None } else { LateAnswers::of(Lookups::begin(hosts)) }
    }

    /// Returns the names without an answer so far.
    pub(super) fn unanswered(&self) -> &BTreeSet<String> {
        self.lookups.unanswered()
    }

    /// Returns the answers so far and the names that have one since the last poll, if there are any, and the lookups
    /// that are still pending.
    pub(super) fn poll(mut self) -> (Option<(Names, BTreeSet<String>)>, Option<LateAnswers>) {
        let before = self.unanswered().clone();
        let is_new = self.lookups.wait(Duration::ZERO);
        let answers = is_new.then(|| {
            let answered = before.difference(self.unanswered()).cloned().collect();
            (self.lookups.names().clone(), answered)
        });
        let waits = !self.lookups.is_over() && Instant::now() < self.until;
        (answers, waits.then_some(self))
    }
}
