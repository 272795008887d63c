//! The peer table of a tunnel as held by its control thread, which checks changes, builds the worker's table from them,
//! and keeps them for a successor.

mod kept;
mod rules;

use std::collections::{BTreeMap, HashSet, VecDeque, btree_map};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use segue::hash;
use segue_control::error::{Error, Kind};
use segue_control::model::{self, Complaint};
use segue_control::peers::{
    self, Change, Changes, Key, Listed, ListedPeer, MOST, MOST_NAMED, Mac, Peer, PeerCounters as Shown, RefusedPeer,
};
use segue_datapath::overlay::{ListenerConfig, PeerConfig, PeerCounters, Removed, Table, TableSender};

use crate::fastpath::Fastpath;

pub use self::kept::Kept;
pub use self::rules::Rules;

/// Largest number of removed prefixes, and of removed remotes, kept to give drops their reason.
const MOST_REMOVED: usize = 4096;

/// A peer with its counters, which changes of other entries do not reset.
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
    /// Prefixes that were removed, the oldest first.
    prefixes: VecDeque<(IpAddr, u8)>,
    /// Remotes that were removed, the oldest first.
    remotes: VecDeque<IpAddr>,
    /// Number of refused table changes.
    refused: u64,
    /// The peers of the last whole table that were refused, except those that were added or replaced since.
    refused_peers: Vec<RefusedPeer>,
    /// Reason why the file of the table was refused, if nothing has changed since.
    file_refused: Option<String>,
}

impl State {
    /// Returns the refused peers that are named.
    fn refused_named(&self) -> Vec<RefusedPeer> {
        self.refused_peers.iter().take(MOST_NAMED).cloned().collect()
    }
}

/// The keeper of a tunnel's peer table.
#[derive(Debug)]
pub struct Keeper {
    rules: Rules,
    sender: TableSender,
    key: hash::Key,
    kept: Option<Kept>,
    /// In-kernel path with the same table.
    path: OnceLock<Fastpath>,
    state: Mutex<State>,
}

impl Keeper {
    /// Creates the keeper of an empty table, the worker's first one.
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

    /// Passes the table to the in-kernel path, now and after each change.
    pub fn feed(&self, path: &Fastpath) {
        let state = self.state();
        if self.path.set(path.clone()).is_ok() {
            path.set_peers(&self.configs(&state));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the peer table by the rules. The worker uses the new one from its next packet on. Of a whole table each
    /// peer is judged by itself: one that is refused costs no other. Other changes are made as a whole or not at all.
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
        match change {
            Change::Keep(why) => {
                state.file_refused = Some(why);
                let unchanged = state.entries.len() as u64;
                Ok(Changes { generation: state.generation, unchanged, ..Changes::default() })
            }
            Change::Sync(table) => {
                let generation = table.generation;
                let (wanted, refused) = self.sort_out(table)?;
                let changes = self.apply(state, generation, wanted)?;
                state.refused_peers = refused;
                let refused = state.refused_peers.len() as u64;
                Ok(Changes { refused, refused_peers: state.refused_named(), ..changes })
            }
            Change::Add(peers) => {
                let keys = keys(&peers);
                let added = self.entries(peers)?;
                if let Some(key) = added.keys().find(|key| state.entries.contains_key(key)) {
                    return Err(Error::new(Kind::Conflict, format!("{key} is in the table"), "segue peer replace ...")
                        .why("a prefix has one peer"));
                }
                self.supply(state, &keys, added)
            }
            Change::Replace(peers) => {
                let keys = keys(&peers);
                let entries = self.entries(peers)?;
                self.supply(state, &keys, entries)
            }
            Change::Del(keys) => {
                let mut left = plain(state);
                for key in keys {
                    let before = left.len();
                    match key {
                        // All that unknown addresses go to.
                        Key::Match(Mac::ZERO) => left.retain(|key, _| !matches!(key, Key::Flood(_))),
                        key => drop(left.remove(&key)),
                    }
                    if left.len() == before {
                        return Err(Error::new(
                            Kind::NotFound,
                            format!("{key} is not in the table"),
                            "segue peer list NAME",
                        )
                        .why("no peer has exactly this prefix or Ethernet address"));
                    }
                }
                self.apply(state, None, left)
            }
        }
    }

    /// Adds or replaces single entries, which come in the place of refused ones with the same keys.
    fn supply(
        &self,
        state: &mut State,
        keys: &HashSet<String>,
        entries: BTreeMap<Key, Peer>,
    ) -> Result<Changes, Error> {
        let changes = self.apply(state, None, merged(state, entries))?;
        state.refused_peers.retain(|refused| !keys.contains(&refused.key));
        Ok(changes)
    }

    /// Checks the peers of a table one by one, and accepts only the first of several with the same key. Returns the
    /// others with the rule that each breaks, in the order of the document.
    fn sort_out(&self, table: peers::Table) -> Result<(BTreeMap<Key, Peer>, Vec<RefusedPeer>), Error> {
        let count = table.peers.len() + table.unread.len();
        if count > MOST {
            let message = format!("{count} peers are too many");
            return Err(Error::new(Kind::BadValue, message, format!("at most {MOST} in one table")));
        }
        let numbers: Vec<u64> = table.numbers().take(table.peers.len()).collect();
        let (mut entries, mut refused) = (BTreeMap::new(), table.unread);
        for (peer, number) in table.peers.into_iter().zip(numbers) {
            let name = peer.key();
            let why = match self.rules.resolve(peer) {
                Err(why) => why,
                Ok((key, peer)) => match entries.entry(key) {
                    btree_map::Entry::Vacant(place) => {
                        place.insert(peer);
                        continue;
                    }
                    btree_map::Entry::Occupied(_) => "its prefix or `match` is given twice".to_owned(),
                },
            };
            refused.push(RefusedPeer { number, key: name, why });
        }
        refused.sort_by_key(|refused| refused.number);
        Ok((entries, refused))
    }

    /// Checks peers one by one, none of which may be wrong.
    fn entries(&self, peers: Vec<Peer>) -> Result<BTreeMap<Key, Peer>, Error> {
        let (entries, refused) = self.sort_out(peers::Table { peers, ..peers::Table::default() })?;
        match refused.into_iter().next() {
            None => Ok(entries),
            Some(RefusedPeer { number, key, why }) => {
                let message = format!("peer {number} ({key}) is refused");
                Err(Error::new(Kind::BadValue, message, "segue peer --help").why(why))
            }
        }
    }

    /// Applies `wanted` as the current table, with the number `generation` or the next one.
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

    /// Returns the next state, with the table `wanted`. Peers that stay keep their counters.
    fn next(&self, state: &State, generation: u64, wanted: BTreeMap<Key, Peer>) -> State {
        let mut next = State {
            generation,
            changed: generation,
            prefixes: state.prefixes.clone(),
            remotes: state.remotes.clone(),
            // Those that are refused stay so when single peers change.
            refused_peers: state.refused_peers.clone(),
            refused: state.refused,
            ..State::default()
        };
        for (key, peer) in wanted {
            let counters = state.entries.get(&key).map(|entry| Arc::clone(&entry.counters)).unwrap_or_default();
            next.entries.insert(key, Entry { peer, counters });
        }
        let present: HashSet<IpAddr> = next.entries.values().map(|entry| entry.peer.remote).collect();
        for (_, entry) in state.entries.iter().filter(|(key, _)| !next.entries.contains_key(key)) {
            let inside = self.rules.config(&entry.peer, Arc::default()).and_then(|config| config.inside.prefix());
            next.prefixes.extend(inside);
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
        let refused_peers = state.refused_named();
        Listed { generation: state.generation, peers: state.entries.values().map(listed).collect(), refused_peers }
    }

    /// Returns the summary of the table for `segue stat`.
    pub fn summary(&self) -> model::PeerTable {
        let state = self.state();
        model::PeerTable {
            generation: state.generation,
            peers: state.entries.len() as u64,
            refused: state.refused,
            // The worker takes a new table when it has a packet, and over the in-kernel path it may never have one.
            in_force: match self.path.get() {
                Some(path) if path.is_on() => state.changed,
                _ => self.sender.in_force(),
            },
            refused_peers: state.refused_peers.len() as u64,
            refused_named: state.refused_named(),
            file_refused: state.file_refused.clone(),
            ..self.rules.summary()
        }
    }

    /// Returns the problem of the table, if it has one.
    pub fn complaint(&self) -> Option<Complaint> {
        let state = self.state();
        let complaint = Complaint { code: "peers_refused".to_owned(), ..Complaint::default() };
        if let Some(why) = state.file_refused.clone() {
            return Some(Complaint {
                what: "the file with the peers was refused, and the table of before stays".to_owned(),
                why: Some(why),
                fix: Some("correct the file, then: segue reload".to_owned()),
                ..complaint
            });
        }
        let first = state.refused_peers.first()?;
        let count = state.refused_peers.len();
        let which =
            if count == 1 { "a peer of the table is".to_owned() } else { format!("{count} peers of the table are") };
        Some(Complaint {
            what: format!("{which} refused, and the others are in force"),
            why: Some(first.to_string()),
            fix: Some("segue stat -j names them: peers.refused_named".to_owned()),
            ..complaint
        })
    }

    /// Returns a duplicate of the descriptor of the kept table, for a successor; `None` where none is kept.
    ///
    /// # Errors
    /// Where the process may have no more files.
    pub fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        self.kept.as_ref().map(Kept::try_clone).transpose()
    }

    /// Takes over the table that another process kept in the meantime, unless it is older than the current one. Returns
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

/// Returns the keys of these peers as they are given.
fn keys(peers: &[Peer]) -> HashSet<String> {
    peers.iter().map(Peer::key).collect()
}

/// Returns the peers of the present table.
fn plain(state: &State) -> BTreeMap<Key, Peer> {
    state.entries.iter().map(|(key, entry)| (*key, entry.peer.clone())).collect()
}

/// Returns the peers of the present table, with those of `changed` added or replaced.
fn merged(state: &State, changed: BTreeMap<Key, Peer>) -> BTreeMap<Key, Peer> {
    let mut all = plain(state);
    all.extend(changed);
    all
}

fn table(state: &State) -> peers::Table {
    let peers = state.entries.values().map(|entry| entry.peer.clone()).collect();
    peers::Table { generation: Some(state.generation), peers, unread: state.refused_named() }
}

#[cfg(test)]
mod tests;
