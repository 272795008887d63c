//! The grace time after a long outage, in which entries that are gone from the registry stay in the table.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::roster::Roster;

/// The grace time, and the keys of the entries that stay until it is over: not more than the roster has entries.
#[derive(Debug, Default)]
pub struct Grace {
    until: Option<Instant>,
    gone: BTreeSet<Vec<u8>>,
}

impl Grace {
    /// Begins a grace time.
    pub fn begin(&mut self, until: Instant) {
        self.until = Some(until);
    }

    /// Removes the entry of a key that is gone, or notes it where a grace time runs. Returns whether the entries must
    /// be listed anew: one that did not fit may fit now.
    pub fn remove(&mut self, roster: &mut Roster, key: &[u8], now: Instant) -> bool {
        match roster.stored(key).filter(|_| self.until.is_some_and(|until| now < until)) {
            Some(stored) => {
                self.gone.insert(stored);
                false
            }
            None => roster.remove(key),
        }
    }

    /// Notes that there is an entry of a key again, before it is put into the roster.
    pub fn put(&mut self, roster: &Roster, key: &[u8]) {
        if let Some(stored) = roster.stored(key) {
            self.gone.remove(&stored);
        }
    }

    /// Forgets which entries are gone, where a new list says it.
    pub fn listed(&mut self) {
        self.gone.clear();
    }

    /// Returns the number of entries that are gone and stay.
    pub fn kept(&self) -> usize {
        self.gone.len()
    }

    /// Ends the grace time where it is over: removes what is gone, and returns whether the entries must be listed anew.
    /// Otherwise returns `None`.
    pub fn end(&mut self, roster: &mut Roster, now: Instant) -> Option<bool> {
        self.until.take_if(|until| *until <= now)?;
        let gone = std::mem::take(&mut self.gone);
        let lists = gone.iter().filter(|key| roster.remove(key)).count();
        Some(lists > 0)
    }
}
