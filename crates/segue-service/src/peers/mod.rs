//! The peer table of a tunnel as its control thread keeps it: it checks changes, builds the worker's table from them,
//! and keeps them for a successor.

mod kept;
mod rules;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use segue::hash;
use segue_control::error::{Error, Kind};
use segue_control::model::{self, Complaint};
use segue_control::peers::{self, Change, Changes, Key, Listed, ListedPeer, MOST, Peer, PeerCounters as Shown};
use segue_datapath::overlay::{ListenerConfig, PeerConfig, PeerCounters, Removed, Table, TableSender};

use crate::fastpath::Fastpath;

pub use self::kept::Kept;
pub use self::rules::Rules;

/// Largest number of removed prefixes, and of removed remotes, that are remembered for the reason of drops.
const MOST_REMOVED: usize = 4096;

/// A peer with the counters that it keeps while the table changes around it.
#[derive(Clone, Debug)]
struct Entry {
    peer: Peer,
    counters: Arc<PeerCounters>,
}

/// The table in force, and the removed entries of earlier ones.
#[derive(Debug, Default)]
struct State {
    generation: u64,
    /// The number of the last table that changed a peer.
    changed: u64,
    entries: BTreeMap<Key, Entry>,
    /// Prefixes and remotes that were removed, the oldest first.
    prefixes: VecDeque<(IpAddr, u8)>,
    remotes: VecDeque<IpAddr>,
    /// Number of refused changes.
    refused: u64,
    /// Reason why the file of the table was refused, if nothing has changed since.
    file_refused: Option<String>,
}

/// The keeper of a tunnel's peer table.
#[derive(Debug)]
pub struct Keeper {
    rules: Rules,
    sender: TableSender,
    key: hash::Key,
    kept: Option<Kept>,
    /// The path through the kernel, which has the same table.
    path: OnceLock<Fastpath>,
    state: Mutex<State>,
}

impl Keeper {
    /// Creates the keeper of an empty table, which is the first one of the worker.
    ///
    /// # Errors
    /// Where the tunnel itself cannot be.
    pub fn new(
        rules: Rules,
        sender: TableSender,
        key: hash::Key,
        kept: Option<Kept>,
    ) -> Result<(Keeper, Box<Table>), Error> {
        let keeper = Keeper { rules, sender, key, kept, path: OnceLock::new(), state: Mutex::default() };
        let (first, _) = keeper.build(&State::default())?;
        Ok((keeper, first))
    }

    /// Passes the table to the path through the kernel, now and after each change.
    pub fn feed(&self, path: &Fastpath) {
        let state = self.state();
        if self.path.set(path.clone()).is_ok() {
            path.set_peers(&self.configs(&state));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table, as a whole or not at all. The worker uses the new one from its next packet on.
    ///
    /// # Errors
    /// The entry and the rule that it breaks, or a stale generation; nothing has changed then.
    pub fn change(&self, change: Change) -> Result<Changes, Error> {
        let _changing = self.sender.changing();
        let mut state = self.state();
        let outcome = self.try_change(&mut state, change);
        state.refused += u64::from(outcome.is_err());
        if outcome.is_ok() {
            self.keep(&state);
        }
        outcome
    }

    fn try_change(&self, state: &mut State, change: Change) -> Result<Changes, Error> {
        let (generation, wanted) = match change {
            Change::Keep(why) => {
                state.file_refused = Some(why);
                let unchanged = state.entries.len() as u64;
                return Ok(Changes { generation: state.generation, unchanged, ..Changes::default() });
            }
            Change::Sync(table) => {
                let wanted = self.entries(table.peers)?;
                (table.generation, wanted)
            }
            Change::Add(peers) => {
                let added = self.entries(peers)?;
                if let Some(key) = added.keys().find(|key| state.entries.contains_key(key)) {
                    return Err(Error::new(Kind::Conflict, format!("{key} is in the table"), "segue peer replace ...")
                        .why("a prefix has one peer"));
                }
                (None, merged(state, added))
            }
            Change::Replace(peers) => (None, merged(state, self.entries(peers)?)),
            Change::Del(keys) => {
                let mut left = plain(state);
                for key in keys {
                    if left.remove(&key).is_none() {
                        return Err(Error::new(
                            Kind::NotFound,
                            format!("{key} is not in the table"),
                            "segue peer list NAME",
                        )
                        .why("no peer has exactly this prefix"));
                    }
                }
                (None, left)
            }
        };
        self.apply(state, generation, wanted)
    }

    /// Checks peers one by one, and that no two of them have the same key.
    fn entries(&self, peers: Vec<Peer>) -> Result<BTreeMap<Key, Peer>, Error> {
        if peers.len() > MOST {
            let message = format!("{} peers are too many", peers.len());
            return Err(Error::new(Kind::BadValue, message, format!("at most {MOST} in one table")));
        }
        let mut entries = BTreeMap::new();
        for (peer, number) in peers.into_iter().zip(1..) {
            let name = peer.key();
            let wrong = |why: String| {
                Error::new(Kind::BadValue, format!("peer {number} ({name}) is refused"), "segue peer --help").why(why)
            };
            let (key, peer) = self.rules.resolve(peer).map_err(wrong)?;
            if entries.insert(key, peer).is_some() {
                return Err(wrong("its prefix is there twice".to_owned()));
            }
        }
        Ok(entries)
    }

    /// Puts `wanted` into force under the number `generation`, or the next one.
    fn apply(&self, state: &mut State, generation: Option<u64>, wanted: BTreeMap<Key, Peer>) -> Result<Changes, Error> {
        let present = state.generation;
        let mut changes = Changes { generation: present, ..Changes::default() };
        for (key, peer) in &wanted {
            match state.entries.get(key) {
                None => changes.added += 1,
                Some(entry) if entry.peer == *peer => changes.unchanged += 1,
                Some(_) => changes.replaced += 1,
            }
        }
        changes.removed = state.entries.len() as u64 - changes.unchanged - changes.replaced;
        let is_same = changes.added + changes.replaced + changes.removed == 0;
        let stale = |message: String, why: &str| {
            Err(Error::new(Kind::Conflict, message, format!("a generation above {present}")).why(why))
        };
        changes.generation = match generation {
            Some(wanted) if wanted < present => {
                let why = "generations only grow: another controller is ahead, or this one has forgotten its own";
                return stale(format!("stale generation {wanted}: the table has {present}"), why);
            }
            Some(wanted) if wanted == present && !is_same => {
                let why = "a generation belongs to one set of peers";
                return stale(format!("stale generation {wanted}: the table has it with other peers"), why);
            }
            Some(wanted) => wanted,
            None if is_same => present,
            None => present.saturating_add(1),
        };
        if is_same {
            (state.generation, state.file_refused) = (changes.generation, None);
            return Ok(changes);
        }
        let next = self.next(state, changes.generation, wanted);
        let (table, configs) = self.build(&next)?;
        self.sender.replace(table);
        if let Some(path) = self.path.get() {
            path.set_peers(&configs);
        }
        *state = next;
        Ok(changes)
    }

    /// Returns the state with `wanted` in it. Peers that stay keep their counters.
    fn next(&self, state: &State, generation: u64, wanted: BTreeMap<Key, Peer>) -> State {
        let mut next = State {
            generation,
            changed: generation,
            entries: BTreeMap::new(),
            prefixes: state.prefixes.clone(),
            remotes: state.remotes.clone(),
            refused: state.refused,
            file_refused: None,
        };
        for (key, peer) in wanted {
            let counters = state.entries.get(&key).map(|entry| Arc::clone(&entry.counters)).unwrap_or_default();
            next.entries.insert(key, Entry { peer, counters });
        }
        let present: HashSet<IpAddr> = next.entries.values().map(|entry| entry.peer.remote).collect();
        for (key, entry) in state.entries.iter().filter(|(key, _)| !next.entries.contains_key(key)) {
            if let Key::Prefix(prefix) = key {
                next.prefixes.push_back((prefix.address, prefix.len));
            }
            if !present.contains(&entry.peer.remote) && next.remotes.back() != Some(&entry.peer.remote) {
                next.remotes.push_back(entry.peer.remote);
            }
        }
        next.prefixes.drain(..next.prefixes.len().saturating_sub(MOST_REMOVED));
        next.remotes.drain(..next.remotes.len().saturating_sub(MOST_REMOVED));
        next
    }

    /// Returns the peers in the form for both paths.
    fn configs(&self, state: &State) -> Vec<PeerConfig> {
        let config = |entry: &Entry| self.rules.config(&entry.peer, Arc::clone(&entry.counters));
        state.entries.values().filter_map(config).collect()
    }

    /// Builds the worker's table, and returns the peers in it.
    fn build(&self, state: &State) -> Result<(Box<Table>, Vec<PeerConfig>), Error> {
        let configs = self.configs(state);
        let removed = Removed {
            prefixes: state.prefixes.iter().copied().collect(),
            remotes: state.remotes.iter().copied().collect(),
        };
        let listeners: Vec<ListenerConfig> = self.rules.listeners();
        let built = Table::new(state.generation, &listeners, &configs, &removed, self.rules.mac().0, self.key);
        let built = built.map_err(|(index, error)| {
            let key = state.entries.keys().nth(index).map_or("the tunnel".to_owned(), Key::to_string);
            Error::new(Kind::BadValue, format!("{key} is refused"), "segue peer --help").why(error.to_string())
        });
        Ok((Box::new(built?), configs))
    }

    fn keep(&self, state: &State) {
        if let Some(kept) = &self.kept {
            kept.write(&table(state));
        }
    }

    /// Returns the table with its counters.
    pub fn list(&self) -> Listed {
        let state = self.state();
        let listed = |entry: &Entry| {
            let path = self.path.get().zip(entry.peer.prefix).and_then(|(path, prefix)| path.peer_counts(prefix));
            let path = path.unwrap_or_default();
            let both = |[a, b]: [u64; 2], [c, d]: [u64; 2]| [a + c, b + d];
            let [sent_packets, sent_bytes] = both(entry.counters.sent(), path.sent);
            let [received_packets, received_bytes] = both(entry.counters.received(), path.received);
            let counters = Shown { sent_packets, sent_bytes, received_packets, received_bytes };
            ListedPeer { peer: entry.peer.clone(), counters }
        };
        Listed { generation: state.generation, peers: state.entries.values().map(listed).collect() }
    }

    /// Returns the summary of the table for `segue stat`.
    pub fn summary(&self) -> model::PeerTable {
        let state = self.state();
        model::PeerTable {
            generation: state.generation,
            peers: state.entries.len() as u64,
            refused: state.refused,
            // The worker takes a new table when it has a packet, and by the path through the kernel it may never have
            // one.
            in_force: match self.path.get() {
                Some(path) if path.is_on() => state.changed,
                _ => self.sender.in_force(),
            },
            file_refused: state.file_refused.clone(),
            ..self.rules.summary()
        }
    }

    /// Returns the problem of the table, if it has one.
    pub fn complaint(&self) -> Option<Complaint> {
        let why = self.state().file_refused.clone()?;
        Some(Complaint {
            what: "the file with the peers was refused, and the table of before stays".to_owned(),
            why: Some(why),
            code: "peers_refused".to_owned(),
            fix: Some("mend the file, then: segue reload".to_owned()),
            ..Complaint::default()
        })
    }

    /// Returns a duplicate of the descriptor of the kept table, for a successor.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        self.kept.as_ref()?.try_clone().ok()
    }

    /// Takes over the table that another process has kept meanwhile, unless it is older than the present one. Returns
    /// whether there was one.
    pub fn follow(&self) -> bool {
        let found = self.kept.as_ref().and_then(Kept::read);
        let is_kept = found.is_some();
        if let Some(table) = found {
            let mut state = self.state();
            // It is not kept again here: the other process may have kept a later one meanwhile. The tunnel may have
            // other rules than its predecessor; then the present table stays.
            let _ = self.try_change(&mut state, Change::Sync(table));
        }
        is_kept
    }
}

/// Returns the peers of the present table.
fn plain(state: &State) -> BTreeMap<Key, Peer> {
    state.entries.iter().map(|(key, entry)| (*key, entry.peer.clone())).collect()
}

/// Returns the peers of the present table with `changed` in their places.
fn merged(state: &State, changed: BTreeMap<Key, Peer>) -> BTreeMap<Key, Peer> {
    let mut all = plain(state);
    all.extend(changed);
    all
}

fn table(state: &State) -> peers::Table {
    let peers = state.entries.values().map(|entry| entry.peer.clone()).collect();
    peers::Table { generation: Some(state.generation), peers }
}

#[cfg(test)]
mod tests;
