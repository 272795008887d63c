//! Reload: running instances are brought in line with the configuration, and those that do not change lose no packet.
//!
//! An instance whose words are the same is left alone. Tunnels that share a port are one instance: where some of them
//! are the same, a new process takes over their interfaces and the port's sockets ([`crate::handover`]), first with
//! those alone, then with the others beside them, so that an interface that changed is gone before it is made again.

use std::time::{Duration, Instant};

use segue_control::client;
use segue_control::error::{Error, Kind, together};
use segue_control::event::{LogEntry, LogEvent};
use segue_control::peers::Table;
use segue_control::protocol::{AbsentInstance, Reloaded, ServiceResponse, UnansweredName};
use segue_host::names::{CachedAddress, Lookups, Names};
use serde_json::json;

use super::child::{Instance, STOP_EACH, State};
use super::knobs::{Assignments, turn};
use super::lookup::LateAnswers;
use super::requests::Change;
use super::service::{Service, end};
use super::spec::InstanceSpec;
use super::tables;

/// Longest wait for the end of an instance that no longer answers, beyond [`STOP_EACH`]: one with a deleted interface
/// needs half a second.
const PARTING: Duration = Duration::from_secs(2);

/// Number of knobs that are set by one request, which is then far shorter than a request may be.
const TOGETHER: usize = 64;

/// Longest wait of a reload for the resolver: the other tunnels should not wait for one silent name.
const LOOKUP: Duration = Duration::from_secs(1);
/// Longest wait for a name without an address whose tunnel replaces a running one: longer than the 5 seconds after
/// which resolvers ask the next server.
const LONG_LOOKUP: Duration = Duration::from_secs(6);

/// An instance whose tunnels continue, in part, in another instance.
#[derive(Debug)]
struct Handover {
    /// The name of the running instance.
    of: String,
    spec: InstanceSpec,
    /// The interfaces that continue in the successor.
    shared: Vec<String>,
}

/// The difference between the configuration and the running instances.
#[derive(Debug, Default)]
struct Difference {
    /// Instances that continue unchanged.
    kept: Vec<InstanceSpec>,
    /// The knobs to set at instances that continue, by name.
    assignments_of: Vec<(String, Assignments)>,
    handovers: Vec<Handover>,
    fresh: Vec<InstanceSpec>,
    /// Tunnels whose names have no address, so that they cannot be started now.
    absent: Vec<InstanceSpec>,
    outcome: Reloaded,
}

impl Service {
    /// Loads the configuration again, and applies it as a whole or not at all. Answers of the resolver that come later
    /// are applied later.
    pub(super) fn reload(&mut self) {
        self.notify.reloading();
        self.requests.begin(Change::Reload);
        let followed = self.follow();
        self.tell_reload(&followed);
    }

    /// Takes the answers of the resolver that arrived after a start, a reload or an upgrade: absent tunnels get theirs,
    /// and others whose names now have other addresses are started again with those. No file is read for that, neither
    /// the configuration nor one with peers, since it may have changed.
    pub(super) fn apply_late_answers(&mut self) {
        let Some(late) = self.late.take() else { return };
        let (answers, left) = late.poll();
        self.late = left;
        let Some((names, answered)) = answers else { return };
        self.give_answers(&names, &answered);
        let names = names.or(self.cached_addresses());
        let specs = self.instances.iter().map(|instance| &instance.spec);
        let moved: Vec<Option<InstanceSpec>> = specs.clone().map(|spec| self.moved(spec, &names)).collect();
        if moved.iter().any(Option::is_some) {
            let specs = specs.zip(moved).map(|(spec, moved)| moved.unwrap_or_else(|| spec.clone())).collect();
            self.notify.reloading();
            // Knobs that could not be set wait for a reload that reads the file.
            let is_unset = |instance: &&mut Instance| !instance.unset.is_empty();
            let take = |instance: &mut Instance| (instance.spec.name.clone(), std::mem::take(&mut instance.unset));
            let unset: Vec<_> = self.instances.iter_mut().filter(is_unset).map(take).collect();
            let followed = self.apply(specs, &names, false);
            for (name, unset) in unset {
                let instance = self.instances.iter_mut().find(|instance| instance.spec.name == name);
                instance.into_iter().for_each(|instance| instance.unset.extend(unset.clone()));
            }
            self.tell_reload(&followed);
        }
    }

    /// Returns the specification of an instance with the addresses that its names have now; `None` if they are the
    /// same.
    fn moved(&self, spec: &InstanceSpec, names: &Names) -> Option<InstanceSpec> {
        if spec.cached_addresses().is_empty() {
            return None;
        }
        let made = self.configuration.spec(spec.kind, &spec.name, &spec.words(), &spec.knobs(), names).ok()?;
        if made.unresolved.is_some() || made.remotes() == spec.remotes() {
            return None;
        }
        // The words are the same, and have the same places in the file.
        let mut tokens = made.tokens;
        for (token, before) in tokens.iter_mut().zip(&spec.tokens) {
            token.span.clone_from(&before.span);
        }
        let (assignments, header) = (spec.assignments.clone(), spec.header.clone());
        Some(InstanceSpec { tokens, assignments, header, ..made })
    }

    /// Returns the addresses of the names of all tunnels that have one.
    fn cached_addresses(&self) -> Vec<CachedAddress> {
        self.instances.iter().flat_map(|instance| instance.spec.cached_addresses()).collect()
    }

    /// Reports the outcome of a reload, also to the clients that wait for it.
    fn tell_reload(&mut self, followed: &Result<Reloaded, Error>) {
        let text = match followed {
            Ok(done) => {
                let mut event = json!(done);
                event["event"] = json!("reloaded");
                self.say(&LogEntry::new(LogEvent::Reloaded, done.text()), event);
                String::new()
            }
            Err(error) => {
                self.complain(error);
                let text = "the reload was refused: running instances are unchanged";
                let line = LogEntry::new(LogEvent::ReloadRefused, text);
                self.say(&line, json!({ "event": "reload_refused", "reason": error.message }));
                self.out.text_of(error)
            }
        };
        let response = followed.as_ref().map(|done| ServiceResponse::Reloaded(Box::new(done.clone())));
        self.requests.answer(response, &text);
        self.reported = self.status();
        self.notify.ready(&self.reported);
    }

    /// Loads the configuration, resolves its names, and applies it. Where that fails, the answers that are awaited for
    /// what runs are still awaited.
    fn follow(&mut self) -> Result<Reloaded, Error> {
        self.configuration.load()?;
        let mut lookups = Lookups::begin(self.configuration.hosts());
        lookups.wait(LOOKUP);
        let mut names = lookups.names().clone().or(self.cached_addresses());
        let mut specs = self.configuration.specs(&names)?;
        let would_end = |spec: &InstanceSpec| spec.unresolved.is_some() && self.runs_any_of(spec);
        if !lookups.is_over() && specs.iter().any(would_end) {
            lookups.wait(LONG_LOOKUP.saturating_sub(LOOKUP));
            names = lookups.names().clone().or(self.cached_addresses());
            specs = self.configuration.specs(&names)?;
        }
        let outcome = self.apply(specs, &names, true)?;
        self.late = LateAnswers::of(lookups);
        Ok(outcome)
    }

    /// Returns whether a tunnel of this specification runs, possibly with other keywords.
    fn runs_any_of(&self, spec: &InstanceSpec) -> bool {
        let devs = spec.devs();
        self.instances.iter().any(|old| old.runs() && old.spec.devs().iter().any(|dev| devs.contains(dev)))
    }

    /// Changes the running instances to match these specifications, whose names have the addresses of `names`.
    /// Everything that can be checked is checked before the first change; a change that fails later is reverted. Where
    /// `loads_peers` is true, tunnels with a peer table that are not started anew load the files of their peers again.
    fn apply(&mut self, specs: Vec<InstanceSpec>, names: &Names, loads_peers: bool) -> Result<Reloaded, Error> {
        self.stand_down(&specs);
        // An instance that is not up yet would not receive a request.
        self.settle();
        let Difference { kept, assignments_of, handovers, fresh, absent, mut outcome } = self.difference(specs)?;
        let pipes = tables::check(&fresh, &mut self.notify)?;
        let stays = |instance: &Instance| {
            let name = &instance.spec.name;
            kept.iter().any(|spec| spec.name == *name) || handovers.iter().any(|handover| handover.of == *name)
        };
        // Changes begin here. Instances that are to go end first: their names and ports may be needed again.
        let specs = self.instances.iter().filter(|instance| !stays(instance)).map(|instance| &instance.spec);
        let ending: Vec<&InstanceSpec> = specs.collect();
        let successors = tables::successors(&fresh, &ending, &pipes);
        let (mut tables, lost) = tables::present(&ending, &mut self.notify);
        lost.iter().for_each(|error| self.complain(error));
        let (stay, go): (Vec<Instance>, Vec<Instance>) = self.instances.drain(..).partition(stays);
        self.instances = stay;
        let mut gone = Vec::new();
        for instance in go {
            if instance.runs() {
                gone.push(Instance::new(instance.spec.clone()));
                end(instance, &*self.out, &mut self.notify);
            } else {
                gone.push(instance);
            }
        }
        let mut undo: Vec<Handover> = Vec::new();
        for Handover { of, spec, shared } in &handovers {
            let before = self.instances.iter().find(|instance| instance.spec.name == *of);
            let back = before.map(|before| (before.spec.clone(), spec.name.clone()));
            undo.extend(back.map(|(spec, of)| Handover { of, spec, shared: shared.clone() }));
        }
        let done = self.hand_over(&handovers).and_then(|anew| {
            self.start_all(fresh.into_iter().map(Instance::new).collect())?;
            Ok(anew)
        });
        match done {
            Ok(anew) => {
                outcome.handed_over.retain(|name| !anew.contains(name));
                outcome.restarted.extend(anew);
            }
            Err(error) => {
                self.revert(&undo, gone, tables);
                return Err(error);
            }
        }
        tables.retain(|(name, _)| successors.iter().any(|successor| successor.name == *name));
        let restored = tables::restore(tables, &mut self.notify);
        let mut wrong: Vec<Error> = restored.into_iter().map(|(_, error)| error).collect();
        let with_table = kept.iter().chain(&successors).chain(handovers.iter().map(|handover| &handover.spec));
        // What has no process reads its file at its next start.
        let runs = |spec: &&InstanceSpec| self.instances.iter().any(|one| one.spec.name == spec.name && one.runs());
        wrong.extend(tables::load(with_table.filter(|spec| loads_peers && runs(spec)), &mut self.notify));
        wrong.iter().for_each(|error| self.complain(error));
        outcome.failed = self.set_all(&assignments_of);
        outcome.knobs.retain(|name| !outcome.failed.contains(name));
        for spec in kept {
            if let Some(instance) = self.instances.iter_mut().find(|instance| instance.spec.name == spec.name) {
                let before = std::mem::replace(&mut instance.spec, spec);
                let failed =
                    assignments_of.iter().find(|(name, _)| outcome.failed.contains(name) && *name == before.name);
                match failed {
                    Some((_, assignments)) => {
                        instance.spec.assignments = before.assignments;
                        instance.unset.extend(assignments.iter().map(|(name, _)| name.clone()));
                    }
                    None => instance.unset.clear(),
                }
                let reason = instance.spec.unresolved.as_ref().map(|unresolved| (*unresolved.error).clone());
                reason.iter().for_each(|reason| instance.explain(reason));
            }
        }
        for spec in absent {
            let Some(error) = spec.unresolved.as_ref().map(|unresolved| (*unresolved.error).clone()) else { continue };
            let mut instance = Instance::new(spec);
            instance.is_awaited = false;
            instance.refuse(&error);
            self.tell_end(&instance, &error);
            self.instances.push(instance);
        }
        outcome.file = self.configuration.name();
        let waits = |instance: &Instance| {
            let reason = instance.absence()?.sentence();
            Some(AbsentInstance { name: instance.spec.name.clone(), reason })
        };
        outcome.absent = self.instances.iter().filter(|instance| !instance.is_up()).filter_map(waits).collect();
        outcome.unanswered = self.unanswered(names);
        Ok(outcome)
    }

    /// Reverts what a reload has done before it failed: hands `undo` over again, and starts the instances that are
    /// `gone`, whose tunnels get the `tables` that they had.
    fn revert(&mut self, undo: &[Handover], mut gone: Vec<Instance>, tables: Vec<(String, Table)>) {
        if let Err(lost) = self.hand_over(undo) {
            self.complain(&lost.why("the previous configuration could not be restored completely"));
        }
        // A file of peers may be missing or wrong by now, have other peers, or be a pipe that is empty.
        for instance in &mut gone {
            instance.gets_table = tables.iter().any(|(name, _)| *name == instance.spec.name);
        }
        self.put_back(gone);
        self.give_back(tables);
    }

    /// Gives tunnels that were started without their file of peers the `tables` that they had, or that of their file.
    pub(super) fn give_back(&mut self, tables: Vec<(String, Table)>) {
        let lost = tables::restore(tables, &mut self.notify);
        // What is refused for a later table has that one.
        let is_empty =
            |spec: &&InstanceSpec| lost.iter().any(|(name, error)| *name == spec.name && error.kind != Kind::Conflict);
        let specs = self.instances.iter().map(|instance| &instance.spec).filter(is_empty);
        let wrong = tables::load(specs, &mut self.notify);
        lost.iter().map(|(_, error)| error).chain(&wrong).for_each(|error| self.complain(error));
    }

    /// Closes the control sockets of instances without a process, which have names that others may need. One that stays
    /// keeps its own as far as there are descriptors beside those of all `specs`: it is down in HEALTH also while the
    /// service is too busy to say so.
    fn stand_down(&mut self, specs: &[InstanceSpec]) {
        let mut room = self.room_beside(specs.len());
        for instance in &mut self.instances {
            if room > 0 && instance.has_placeholder() && specs.iter().any(|spec| instance.continues_as(spec)) {
                room -= 1;
            } else {
                instance.stand_down();
            }
        }
    }

    /// Sets the knobs of instances that continue, and returns the names of those where that fails. An instance that
    /// ends instead starts again with the configuration.
    fn set_all(&mut self, assignments_of: &[(String, Assignments)]) -> Vec<String> {
        let mut failed = Vec::new();
        for (name, assignments) in assignments_of {
            let set = assignments.chunks(TOGETHER).try_for_each(|some| {
                self.notify.keep_alive();
                client::set(name, some).map(drop)
            });
            if let Err(error) = set {
                self.complain(&error);
                if !self.ends(name, false) {
                    failed.push(name.clone());
                }
            }
        }
        failed
    }

    /// Returns the names whose tunnels keep an address from an earlier lookup because the answer has none.
    fn unanswered(&self, names: &Names) -> Vec<UnansweredName> {
        let mut found: Vec<UnansweredName> = Vec::new();
        for CachedAddress { host, address, .. } in self.cached_addresses() {
            if let Some(reason) = names.why_cached(&host, address) {
                found.push(UnansweredName { name: host, address: address.to_string(), reason });
            }
        }
        found.sort_by(|a, b| (&a.name, &a.address).cmp(&(&b.name, &b.address)));
        found.dedup();
        found
    }

    /// Compares the running instances with the configuration, and checks the new parts of the configuration.
    fn difference(&mut self, specs: Vec<InstanceSpec>) -> Result<Difference, Error> {
        let mut difference = Difference::default();
        let mut errors = Vec::new();
        let mut silent = Vec::new();
        let mut left: Vec<&Instance> = self.instances.iter().collect();
        for spec in specs {
            // An instance that does not answer is waited for.
            self.notify.keep_alive();
            let Difference { kept, assignments_of, handovers, fresh, absent, outcome } = &mut difference;
            if let Some(at) = left.iter().position(|old| old.continues_as(&spec)) {
                let old = left.remove(at);
                // An instance without a process is restarted with the configuration.
                if !old.runs() {
                    let is_set = old.spec.knobs() != spec.knobs();
                    if is_set { &mut outcome.knobs } else { &mut outcome.unchanged }.push(spec.name.clone());
                    kept.push(spec);
                    continue;
                }
                let turned = if old.is_up() { turn(old, &spec, &*self.configuration) } else { Ok(Vec::new()) };
                match turned {
                    Ok(assignments) if assignments.is_empty() => outcome.unchanged.push(spec.name.clone()),
                    Ok(assignments) => {
                        outcome.knobs.push(spec.name.clone());
                        assignments_of.push((spec.name.clone(), assignments));
                    }
                    Err(error) if error.source.is_none() => silent.push((spec.name.clone(), error)),
                    Err(error) => errors.push(error),
                }
                kept.push(spec);
                continue;
            }
            if let Some(unresolved) = &spec.unresolved {
                // What runs is not ended because its name has no address now.
                match self.runs_any_of(&spec) {
                    true => errors.push((*unresolved.error).clone()),
                    false => absent.push(spec),
                }
                continue;
            }
            let ups = left.iter().enumerate().filter(|(_, old)| old.is_up());
            let mut shares = ups.map(|(at, old)| (at, spec.shared(&old.spec))).filter(|(_, shared)| !shared.is_empty());
            if let Some((at, shared)) = shares.next() {
                let old = left.remove(at);
                outcome.handed_over.push(spec.name.clone());
                old.spec.note_differences(&spec, &shared, &mut outcome.tunnels);
                handovers.push(Handover { of: old.spec.name.clone(), spec, shared });
                continue;
            }
            let is_known = self.instances.iter().any(|old| old.spec.name == spec.name);
            if is_known { &mut outcome.restarted } else { &mut outcome.started }.push(spec.name.clone());
            fresh.push(spec);
        }
        let Difference { kept, handovers, fresh, absent, outcome, .. } = &mut difference;
        let new: Vec<&InstanceSpec> = handovers.iter().map(|handover| &handover.spec).chain(&*fresh).collect();
        // An absent tunnel may run in another instance now, or be absent with other words.
        let has = |old: &Instance| new.iter().copied().chain(&*absent).any(|spec| spec.devs().contains(&old.spec.name));
        let ended = left.iter().filter(|old| old.runs() || !has(old));
        outcome.stopped = ended.map(|old| old.spec.name.clone()).collect();
        outcome.stopped.retain(|name| !outcome.restarted.contains(name) && !outcome.handed_over.contains(name));
        outcome.stopped.retain(|name| !outcome.tunnels.added.contains(name));
        // An instance that is about to end is restarted with the configuration.
        for (name, error) in silent {
            if self.ends(&name, false) {
                outcome.knobs.push(name);
            } else {
                errors.push(error);
            }
        }
        errors.extend(self.configuration.check(&new, kept, &mut self.netlink).err());
        together(errors).map_or(Ok(difference), Err)
    }

    /// Hands every instance over to its successor: first only with the shared tunnels, then with all of them. A tunnel
    /// that moves between instances has left the one before it joins the other. Where only the order of the tunnels
    /// differs, the successor has their knobs. Returns the names of those that had nothing to take over and started
    /// anew.
    fn hand_over(&mut self, handovers: &[Handover]) -> Result<Vec<String>, Error> {
        let mut anew = Vec::new();
        for handover in handovers {
            let Handover { spec, shared, .. } = handover;
            let name = self.holder(handover)?;
            if self.has(&name, spec) {
                continue;
            }
            let members = self.instances.iter().find(|instance| instance.spec.name == name).map(|i| i.spec.members());
            let alone = if spec.members() == shared.len() { Some(spec.clone()) } else { spec.only(shared) };
            if let Some(alone) = alone.filter(|_| members.is_some_and(|members| members > shared.len()))
                && !self.succeed(&name, &alone, shared)?
            {
                anew.push(spec.name.clone());
            }
        }
        for handover in handovers {
            let Handover { spec, shared, .. } = handover;
            let name = self.holder(handover)?;
            if !self.has(&name, spec) && !self.succeed(&name, spec, shared)? && !anew.contains(&spec.name) {
                anew.push(spec.name.clone());
            }
        }
        Ok(anew)
    }

    /// Returns the name of the instance that has the interfaces of a handover. Before, between and after its steps the
    /// instance has other names, which others may have then: a name only decides between several.
    fn holder(&self, Handover { of, spec, shared }: &Handover) -> Result<String, Error> {
        let has_all = |instance: &&Instance| {
            let devs = instance.spec.devs();
            shared.iter().all(|dev| devs.contains(dev))
        };
        let is_other = |instance: &&Instance| ![of, &spec.name].contains(&&instance.spec.name);
        let found = self.instances.iter().filter(has_all).min_by_key(is_other);
        let found = found.map(|instance| instance.spec.name.clone());
        found.ok_or_else(|| Error::new(Kind::NotFound, format!("{of} does not run"), "segue stat"))
    }

    /// Returns whether the instance `name` has the tunnels of `spec`, in equal order and with equal addresses.
    fn has(&self, name: &str, spec: &InstanceSpec) -> bool {
        let is = |old: &InstanceSpec| old.words() == spec.words() && old.remotes() == spec.remotes();
        self.instances.iter().any(|old| old.spec.name == name && is(&old.spec))
    }

    /// Returns whether the instance has ended by itself or does so shortly. One that may be well gets no time for its
    /// interfaces.
    pub(super) fn ends(&mut self, name: &str, may_be_well: bool) -> bool {
        let begin = Instant::now();
        loop {
            let Some(old) = self.instances.iter().find(|old| old.spec.name == name && old.runs()) else { return true };
            let closes = !may_be_well || matches!(old.state(), Some(State::IsDown(_)));
            let members = if closes { u32::try_from(old.spec.members()).unwrap_or(u32::MAX) } else { 0 };
            let left = (begin + PARTING + STOP_EACH * members).saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop {
                return false;
            }
            self.wait(left);
        }
    }
}

#[cfg(test)]
mod tests;
