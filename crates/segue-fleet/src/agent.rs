//! The loop of `segue fleet etcd`: it handles the reports of other threads, and keeps the tunnel's peer table equal to
//! the registry's peers.
//!
//! While the registry is out of reach, nothing changes in the tunnel. After an outage that was long against the time to
//! live of the leases, peers may only seem to be gone: what then vanishes stays for half a minute more, in which its
//! host can make its lease again.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::fleet::{self, Engine, FleetState, LastEvent, SCHEMA, now};
use segue_control::peers::{self, Peer, RefusedPeer, Table};

use crate::datapath::{self, Datapath, TunnelState};
use crate::etcd::{Batch, Change, Etcd};
use crate::event::{Acquired, Event};
use crate::follow;
use crate::grace::Grace;
use crate::keeper::{self, Terms};
use crate::lease;
use crate::refusal::Refusal;
use crate::refusal_log::RefusalLog;
use crate::roster::{Judged, Policy, Roster};
use crate::subnet_env::{SubnetEnv, Written};

/// Time for which peers that vanished during a long outage stay in the table.
const GRACE: Duration = Duration::from_secs(30);
/// Interval at which the generation of the tunnel's table is checked.
const TICK: Duration = Duration::from_secs(1);
/// Longest time for which changes of the registry are collected into one change of the table.
const GATHER: Duration = Duration::from_millis(100);
/// Largest number of changed entries that are sent one by one instead of as a whole table.
const FEW: usize = 64;
/// Largest number of refused keys in the state file.
const NAMED: usize = 20;

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Content of this host's lease.
    pub terms: Terms,
    /// The file `subnet.env` to write.
    pub subnet_file: PathBuf,
    /// Largest number of peers.
    pub limit: usize,
}

/// Output of the agent besides the tunnel's table: log lines and the state file.
pub trait Announce {
    /// Writes a line to the log.
    fn note(&mut self, text: &str);
    /// Publishes the agent's state.
    fn state(&mut self, state: &FleetState);
    /// Returns the tunnel's MTU.
    fn mtu(&self, name: &str) -> u32;
}

/// A fleet agent: the registry's entries, this host's lease, and the tunnel that gets the peers.
pub struct Agent<'a> {
    settings: Settings,
    datapath: &'a mut dyn Datapath,
    announce: &'a mut dyn Announce,
    state: FleetState,
    roster: Option<Roster>,
    acquired: Option<Acquired>,
    /// The file `subnet.env` as it was written last.
    written: Option<Written>,
    /// Peer table that the tunnel is to have.
    peers: Vec<Peer>,
    /// Whether the tunnel has `peers` as its table.
    is_synced: bool,
    /// Number of peers that the tunnel refuses, and the first ones.
    refused: (u64, Vec<RefusedPeer>),
    /// Log lines for refused leases, and for peers that the tunnel refuses.
    logs: [RefusalLog; 2],
    /// Process id of the process with the tunnel's table.
    process: u32,
    is_dirty: bool,
    outage: Option<Instant>,
    grace: Grace,
    list_again: Arc<AtomicBool>,
    /// Asks for a look at the lease; one that is due is enough.
    check: SyncSender<()>,
    /// When the clock was last compared with time that passed, and what it said.
    clock: (Instant, u64),
}

/// Runs the agent until a signal ends it, or it cannot continue.
pub fn run(
    settings: Settings,
    etcd: &Etcd,
    datapath: &mut dyn Datapath,
    announce: &mut dyn Announce,
    (events, inbox): (SyncSender<Event>, Receiver<Event>),
) -> Result<(), Error> {
    let (check, checks) = std::sync::mpsc::sync_channel(1);
    let mut agent = Agent::new(settings, etcd.endpoint(), datapath, announce, check);
    agent.publish();
    let done = agent.live(etcd, &events, &inbox, checks);
    if let Err(error) = &done {
        agent.state.error = Some(error.sentence());
        agent.publish();
    }
    done
}

/// Starts a thread that reports events. A panic of the thread is reported as an error that ends the agent, which would
/// say for ever that it is connected otherwise.
fn start(events: SyncSender<Event>, work: impl FnOnce(&SyncSender<Event>) + Send + 'static) {
    std::thread::spawn(move || {
        if panic::catch_unwind(AssertUnwindSafe(|| work(&events))).is_err() {
            let error = Error::new(Kind::Internal, "segue has a fault", "report it with: segue --version -v -j");
            let _ = events.send(Event::Fatal(error.why("a thread of the agent has ended with a panic")));
        }
    });
}

impl<'a> Agent<'a> {
    /// Returns an agent without a lease, whose keeper looks at its lease for a message on `check`.
    fn new(
        settings: Settings,
        endpoint: &str,
        datapath: &'a mut dyn Datapath,
        announce: &'a mut dyn Announce,
        check: SyncSender<()>,
    ) -> Agent<'a> {
        let state = FleetState {
            schema: SCHEMA.to_owned(),
            name: settings.terms.name.clone(),
            pid: std::process::id(),
            pid_namespace: fleet::pid_namespace(),
            started: fleet::started(),
            engine: "etcd".to_owned(),
            endpoint: endpoint.to_owned(),
            since: now(),
            address: settings.terms.address.to_string(),
            ttl: settings.terms.ttl.as_secs(),
            ..FleetState::default()
        };
        Agent {
            settings,
            datapath,
            announce,
            state,
            roster: None,
            acquired: None,
            written: None,
            peers: Vec::new(),
            is_synced: false,
            refused: (0, Vec::new()),
            logs: ["refused", "the tunnel refuses"].map(RefusalLog::new),
            process: 0,
            is_dirty: false,
            outage: None,
            grace: Grace::default(),
            list_again: Arc::default(),
            check,
            clock: (Instant::now(), now()),
        }
    }
}

impl Agent<'_> {
    /// Acquires the lease and follows the registry; `checks` asks the keeper to look at the lease.
    fn live(
        &mut self,
        etcd: &Etcd,
        events: &SyncSender<Event>,
        inbox: &Receiver<Event>,
        checks: Receiver<()>,
    ) -> Result<(), Error> {
        let Some(seen) = self.wait_for_tunnel(inbox)? else { return Ok(()) };
        self.settings.terms.end = seen.end;
        (self.process, self.state.generation) = (seen.process, seen.generation);
        let (client, terms) = (etcd.clone(), self.settings.terms.clone());
        start(events.clone(), move |to| keeper::run(client, &terms, to, &checks));
        self.handle_all(etcd, events, inbox)
    }

    /// Waits for the tunnel, whose addresses the lease needs. `None` where the user has ended the agent.
    fn wait_for_tunnel(&mut self, inbox: &Receiver<Event>) -> Result<Option<TunnelState>, Error> {
        loop {
            match self.datapath.state() {
                Ok(seen) => {
                    self.table_taken();
                    return Ok(Some(seen));
                }
                Err(error) => self.tunnel_failed(&error),
            }
            self.show_life();
            match inbox.recv_timeout(TICK) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Ok(Event::Fatal(error)) => return Err(error),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn handle_all(&mut self, etcd: &Etcd, events: &SyncSender<Event>, inbox: &Receiver<Event>) -> Result<(), Error> {
        let mut next_tick = Instant::now() + TICK;
        let mut dirty_since: Option<Instant> = None;
        loop {
            // Changes that come together go into one table.
            let patience =
                if self.is_dirty { Duration::from_millis(5) } else { next_tick - Instant::now().min(next_tick) };
            match inbox.recv_timeout(patience) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(event) => {
                    if let Some(acquired) = self.handle(event)? {
                        self.start_following(etcd, &acquired, events);
                    }
                    if self.is_dirty && dirty_since.get_or_insert_with(Instant::now).elapsed() < GATHER {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.is_dirty {
                self.judge();
                dirty_since = None;
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                self.tick()?;
            }
        }
    }

    fn start_following(&mut self, etcd: &Etcd, acquired: &Acquired, events: &SyncSender<Event>) {
        let policy = Policy {
            config: acquired.config.clone(),
            directory: format!("{}/subnets", self.settings.terms.prefix),
            address: self.settings.terms.address,
            local: self.settings.terms.end.local,
            subnet: acquired.subnet,
            mac: self.settings.terms.end.mac,
            limit: self.settings.limit,
        };
        self.roster = Some(Roster::new(policy.clone()));
        let (client, again) = (etcd.clone(), Arc::clone(&self.list_again));
        let longest_wait = self.settings.terms.ttl / 4;
        start(events.clone(), move |to| follow::run(client, &policy, longest_wait, to, &again));
    }

    /// Handles a report of another thread. Returns the lease where this host has just acquired one.
    fn handle(&mut self, event: Event) -> Result<Option<Acquired>, Error> {
        match event {
            Event::Acquired(acquired) => {
                self.acquired(&acquired);
                return Ok(Some(*acquired));
            }
            Event::Renewed { expires } => {
                self.state.ttl = if expires { self.settings.terms.ttl.as_secs() } else { 0 };
                (self.state.renewed, self.state.lease_gone) = (Some(now()), None);
                // One that is stale has the failure to reach etcd.
                if self.state.state == Engine::Connected {
                    self.state.error = None;
                }
                self.publish();
            }
            Event::NotRenewed { why, is_gone } => self.not_renewed(&why, is_gone),
            Event::Listed(listed, revision) => {
                self.reached(None);
                // Changes of this host's own lease may have been missed, too.
                let _ = self.check.try_send(());
                // After a restore of a backup it can be lower than before.
                self.state.revision = revision;
                self.grace.listed();
                let gone = self.roster.as_mut().map(|roster| roster.adopt(*listed));
                gone.into_iter().flatten().for_each(|key| self.gone(&key));
                self.is_dirty = true;
            }
            Event::Changed(batch, endpoint) => {
                self.reached(Some(endpoint));
                self.changed(batch);
            }
            Event::Stale(why) => self.stale(&why),
            Event::Fatal(error) => return Err(error),
            Event::Stop => {}
        }
        Ok(None)
    }

    fn acquired(&mut self, acquired: &Acquired) {
        let Acquired { config, subnet, is_reservation, endpoint } = acquired;
        self.state.network = config.network.to_string();
        self.state.subnet = subnet.to_string();
        config.backend.name().clone_into(&mut self.state.backend);
        self.state.endpoint.clone_from(endpoint);
        self.state.renewed = Some(now());
        self.state.notes.clone_from(&config.notes);
        if *is_reservation {
            self.state.ttl = 0;
        }
        self.announce.note(&format!("{subnet} of {} is this host's, {}", config.network, config.backend.name()));
        for note in &config.notes {
            self.announce.note(&format!("note: {note}"));
        }
        self.acquired = Some(acquired.clone());
        self.write_subnet_file();
    }

    fn write_subnet_file(&mut self) {
        let Some(Acquired { config, subnet, .. }) = &self.acquired else { return };
        let mtu = self.announce.mtu(&self.settings.terms.name);
        let file = SubnetEnv { network: config.network, subnet: *subnet, mtu };
        let path = &self.settings.subnet_file;
        let done = file.keep(path, &mut self.written);
        let failure = done.err().map(|error| format!("cannot write {}: {error}", path.display()));
        if self.state.file_error != failure {
            if let Some(failure) = &failure {
                self.announce.note(failure);
            }
            self.state.file_error = failure;
            self.publish();
        }
    }

    fn changed(&mut self, batch: Batch) {
        let directory = format!("{}/subnets", self.settings.terms.prefix);
        let named = |key: &[u8]| match lease::subnet_of(key, &directory) {
            Ok(subnet) => subnet.to_string(),
            Err(refusal) => refusal.name().to_owned(),
        };
        for change in batch.changes {
            let Some(roster) = &mut self.roster else { return };
            let (word, key) = match &change {
                Change::Put(record) => ("put", &record.key),
                Change::Delete(key) => ("delete", key),
            };
            self.state.last_event = Some(LastEvent { at: now(), what: format!("{word} {}", named(key)) });
            if roster.is_own(key) {
                // The keeper sees whether it is still this host's.
                let _ = self.check.try_send(());
            }
            match change {
                Change::Put(record) => {
                    self.grace.put(roster, &record.key);
                    roster.put(&record);
                }
                Change::Delete(key) => self.gone(&key),
            }
            self.is_dirty = true;
        }
        self.state.revision = self.state.revision.max(batch.revision);
    }

    /// Removes an entry, after the grace time if one runs.
    fn gone(&mut self, key: &[u8]) {
        let Some(roster) = &mut self.roster else { return };
        if self.grace.remove(roster, key, Instant::now()) {
            self.list_again.store(true, Ordering::Relaxed);
        }
    }

    fn reached(&mut self, endpoint: Option<String>) {
        if let Some(endpoint) = endpoint {
            self.state.endpoint = endpoint;
        }
        if self.state.state == Engine::Connected {
            return;
        }
        let was = self.outage.take().map(|since| since.elapsed());
        if was.is_some_and(|was| was >= self.settings.terms.ttl / 2) {
            self.grace.begin(Instant::now() + GRACE);
        }
        if self.state.state == Engine::Stale {
            self.announce.note("etcd is reached again");
        }
        (self.state.state, self.state.since, self.state.error) = (Engine::Connected, now(), None);
        // Its own lease first: others may have seen it end.
        let _ = self.check.try_send(());
        self.publish();
    }

    fn not_renewed(&mut self, why: &str, is_gone: bool) {
        let error = format!("the lease is not renewed: {why}");
        self.announce.note(&error);
        self.state.lease_gone = is_gone.then(|| self.state.lease_gone.unwrap_or_else(now));
        if self.state.state == Engine::Connected {
            self.state.error = Some(error);
        }
        self.publish();
    }

    fn stale(&mut self, why: &str) {
        let is_new = self.state.error.as_deref() != Some(why);
        if self.state.state == Engine::Connected {
            (self.state.state, self.state.since) = (Engine::Stale, now());
            self.outage = Some(Instant::now());
            self.announce.note(&format!("etcd is not reached: {why}; the table stays as it is"));
        } else if is_new && self.state.state == Engine::Starting {
            self.announce.note(&format!("waiting for etcd: {why}"));
        }
        if is_new {
            self.state.error = Some(why.to_owned());
            self.publish();
        }
    }

    /// Computes the table from the entries and sets it in the tunnel.
    fn judge(&mut self) {
        self.is_dirty = false;
        let (Some(roster), Some(acquired)) = (&self.roster, &self.acquired) else { return };
        let Judged { leases, refused, left_out } = roster.judged();
        let ours = self.settings.terms.offer;
        let backend = acquired.config.backend;
        let peers: Vec<Peer> = leases.iter().map(|lease| datapath::peer(lease, backend, ours)).collect();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (_, refusal) in &refused {
            *counts.entry(refusal.name().to_owned()).or_default() += 1;
        }
        if left_out > 0 {
            *counts.entry("too_many".to_owned()).or_default() += left_out;
        }
        let named = refused.iter().map(|(key, refusal)| (key.as_str(), refusal.sentence()));
        for line in self.logs[0].lines(Instant::now(), named, left_out) {
            self.announce.note(&line);
        }
        self.state.refused = counts;
        self.state.refused_keys =
            refused.into_iter().take(NAMED).map(|(key, refusal)| (key, refusal.name().to_owned())).collect();
        if peers != self.peers || !self.is_synced {
            let before = std::mem::replace(&mut self.peers, peers);
            // Where the tunnel refuses peers, only a whole table shows which.
            if !(self.is_synced && self.refused.0 == 0 && self.change(&before)) {
                self.sync();
            }
        }
        self.count();
        self.publish();
    }

    /// Counts the peers, and the refused ones among them.
    fn count(&mut self) {
        let (count, named) = &self.refused;
        let reason = Refusal::Tunnel.name();
        let count = usize::try_from(*count).unwrap_or(usize::MAX);
        self.state.peers = self.peers.len().saturating_sub(count);
        self.state.refused.remove(reason);
        self.state.refused_keys.retain(|(_, other)| other != reason);
        if count > 0 {
            self.state.refused.insert(reason.to_owned(), count);
        }
        let room = NAMED.saturating_sub(self.state.refused_keys.len());
        let keys = named.iter().take(room).map(|refused| (refused.key.clone(), reason.to_owned()));
        self.state.refused_keys.extend(keys);
    }

    /// Sends the entries that differ from `before` to the tunnel one by one, if they are few: a whole table of 10,000
    /// takes long. Returns whether the tunnel has the table afterwards.
    fn change(&mut self, before: &[Peer]) -> bool {
        let (changed, gone) = datapath::difference(before, &self.peers);
        if changed.len() + gone.len() > FEW {
            return false;
        }
        let changes =
            [(changed.is_empty(), peers::Change::Replace(changed)), (gone.is_empty(), peers::Change::Del(gone))];
        for (_, change) in changes.into_iter().filter(|(is_empty, _)| !is_empty) {
            // Another number: the table was not the one that this agent had set.
            match self.datapath.change(change) {
                Ok(generation) if generation == self.state.generation + 1 => self.state.generation = generation,
                Ok(generation) => {
                    self.state.generation = generation;
                    return false;
                }
                Err(_) => return false,
            }
        }
        true
    }

    fn sync(&mut self) {
        // Calls for single entries that took long can have been before this one, which can take as long.
        self.show_life();
        let generation = self.state.generation + 1;
        match self.datapath.sync(&Table { generation: Some(generation), peers: self.peers.clone(), ..Table::default() })
        {
            Ok(refused) => {
                self.is_synced = true;
                self.state.generation = generation;
                self.table_taken();
                let (count, named) = &refused;
                let unnamed = usize::try_from(*count).unwrap_or(usize::MAX).saturating_sub(named.len());
                let named = named.iter().map(|one| (one.key.as_str(), one.why.as_str()));
                for line in self.logs[1].lines(Instant::now(), named, unnamed) {
                    self.announce.note(&line);
                }
                self.refused = refused;
                self.count();
            }
            Err(error) => {
                self.is_synced = false;
                self.tunnel_failed(&error);
            }
        }
    }

    fn table_taken(&mut self) {
        (self.state.table_error, self.state.table_failed) = (None, None);
    }

    fn tunnel_failed(&mut self, error: &Error) {
        let text = error.sentence();
        self.state.table_failed.get_or_insert_with(now);
        if self.state.table_error.as_ref() != Some(&text) {
            self.announce.note(&format!("the tunnel does not take the table: {text}"));
            self.state.table_error = Some(text);
            self.publish();
        }
    }

    /// Follows steps of the clock; `clock` is what it says. The machine may have stood still for longer than its lease
    /// lasts: that time does not count for the next renewal.
    fn follow_clock(&mut self, clock: u64) {
        let (then, said) = std::mem::replace(&mut self.clock, (Instant::now(), clock));
        if date_anew(&mut self.state, said + then.elapsed().as_secs(), clock) {
            let _ = self.check.try_send(());
            self.publish();
        }
    }

    /// Checks that the tunnel still has the table and that `subnet.env` is there, and ends the grace time when it is
    /// over.
    fn tick(&mut self) -> Result<(), Error> {
        self.follow_clock(now());
        self.show_life();
        let over = self.roster.as_mut().and_then(|roster| self.grace.end(roster, Instant::now()));
        if let Some(lists_again) = over {
            if lists_again {
                self.list_again.store(true, Ordering::Relaxed);
            }
            self.is_dirty = true;
        }
        for log in &mut self.logs {
            if let Some(line) = log.sum(Instant::now()) {
                self.announce.note(&line);
            }
        }
        if self.roster.is_none() || self.state.revision == 0 {
            return Ok(());
        }
        match self.datapath.state() {
            Ok(seen) if seen.end != self.settings.terms.end => return Err(other_end(&self.settings.terms.name)),
            // A tunnel that was started again has no table; another controller's table is replaced.
            Ok(seen) if (seen.process, seen.generation) != (self.process, self.state.generation) || !self.is_synced => {
                (self.process, self.state.generation) = (seen.process, seen.generation);
                self.sync();
                self.publish();
            }
            Ok(_) if self.state.table_error.is_some() => {
                self.table_taken();
                self.publish();
            }
            Ok(_) => {}
            Err(error) => {
                self.is_synced = false;
                self.tunnel_failed(&error);
                return Ok(());
            }
        }
        // The tunnel is there, and its MTU is known. The file may be missing, or was not writable before.
        self.write_subnet_file();
        Ok(())
    }

    /// Publishes the state where that was not done for a while, by which HEALTH knows that the agent goes on.
    fn show_life(&mut self) {
        if now().abs_diff(self.state.seen) >= fleet::ALIVE {
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.state.seen = now();
        self.announce.state(&self.state);
    }
}

/// Moves the times of a state by a step of the clock, which says `clock` where `expected` was due, so that no age of
/// them is that of the step. Returns whether there was one: a host without a clock of its own has one at each start.
fn date_anew(state: &mut FleetState, expected: u64, clock: u64) -> bool {
    /// Difference that is no step, seconds: both are rounded.
    const ROUNDED: u64 = 2;
    if clock.abs_diff(expected) <= ROUNDED {
        return false;
    }
    let FleetState { since, renewed, lease_gone, table_failed, .. } = state;
    let times = [Some(since), renewed.as_mut(), lease_gone.as_mut(), table_failed.as_mut()];
    for time in times.into_iter().flatten() {
        *time = (*time + clock).saturating_sub(expected);
    }
    true
}

/// Returns the error for a tunnel that was restarted with another local endpoint: the lease describes the old one.
fn other_end(name: &str) -> Error {
    Error::new(Kind::Conflict, format!("the tunnel {name} was started with other words"), "start the agent again")
        .why("its outer address, its MAC address or what it listens for is not what the lease says")
}

#[cfg(test)]
mod lease_tests;
#[cfg(test)]
mod tests;
