//! Tunnels whose remote is a name. Without an address they are absent instances, whose names are looked up again as
//! other instances are started again. What runs has addresses: its process looks up no name.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_host::names::Names;

use super::child::Instance;
use super::lookup::{ANSWER, LateAnswers, Lookup};
use super::service::Service;
use super::spec::InstanceSpec;
use crate::tunnel::group;

/// Largest number of concurrent name lookups; it applies separately to absent and to restarted tunnels.
const MOST_LOOKUPS: usize = 16;
/// Longest pause before a start within which another tunnel of the same port is awaited; one with a longer pause joins
/// that which starts meanwhile.
const SOON: Duration = Duration::from_secs(3);

impl Instance {
    /// Returns the name of the remote of an absent tunnel.
    fn host(&self) -> Option<&String> {
        self.spec.unresolved.as_ref().map(|unresolved| &unresolved.host)
    }

    /// Returns whether the resolver is asked and has not answered.
    fn is_looked_up(&self) -> bool {
        self.lookup.as_ref().is_some_and(|lookup| !lookup.is_over())
    }

    /// Looks up the remote's name, or checks for the answer; `None` until there is one.
    fn look_up(&mut self) -> Option<Names> {
        let host = self.host()?.clone();
        self.lookup = self.lookup.take().or_else(|| Lookup::begin(vec![host]));
        if self.is_looked_up() {
            self.again = Some(Instant::now() + ANSWER);
            return None;
        }
        self.again = None;
        Some(self.lookup.take().map(Lookup::answers).unwrap_or_default())
    }
}

impl Service {
    /// Looks up the names of absent tunnels that are due, and starts those that have an address now.
    pub(super) fn look_up(&mut self) {
        let now = Instant::now();
        let mut failed = Vec::new();
        let mut found = None;
        let is_absent = |instance: &&Instance| instance.spec.unresolved.is_some() && instance.is_looked_up();
        let mut lookups = self.instances.iter().filter(is_absent).count();
        for (at, instance) in self.instances.iter_mut().enumerate() {
            if instance.spec.unresolved.is_none() || instance.again.is_none_or(|due| due > now) {
                continue;
            }
            let is_new = instance.lookup.is_none();
            // The lookups of the start and of a reload ask for the name already.
            let is_awaited = |late: &LateAnswers| instance.host().is_some_and(|host| late.unanswered().contains(host));
            let is_put_off = lookups >= MOST_LOOKUPS || self.late.as_ref().is_some_and(is_awaited);
            // One tunnel is taken in at a time, as its table is read again meanwhile.
            if found.is_some() || is_new && is_put_off {
                instance.again = Some(now + ANSWER);
                continue;
            }
            lookups += usize::from(is_new);
            let Some(names) = instance.look_up() else { continue };
            let absent = &instance.spec;
            let (words, knobs) = (absent.words(), absent.knobs());
            let spec = self.configuration.spec(absent.kind, &absent.name, &words, &knobs, &names);
            match spec.and_then(|spec| spec.unresolved.clone().map_or(Ok(spec), |unresolved| Err(*unresolved.error))) {
                Ok(spec) => found = Some(spec),
                Err(error) => {
                    instance.refuse(&error);
                    failed.push((at, error));
                }
            }
        }
        failed.iter().for_each(|(at, error)| self.tell_end(&self.instances[*at], error));
        let joins = |one: &&Instance| one.is_due(now) && self.has_port_elsewhere(&one.spec);
        let Some(spec) = found.or_else(|| self.instances.iter().find(joins).map(|one| one.spec.clone())) else {
            return;
        };
        let name = spec.name.clone();
        let Err(error) = self.take_in(spec) else { return };
        let refused = self.instances.iter().position(|instance| instance.spec.name == name && !instance.runs());
        if let Some(at) = refused {
            self.instances[at].refuse(&error);
            self.tell_end(&self.instances[at], &error);
        }
    }

    /// Gives absent tunnels the answers that arrived after a start or a reload: those for the names `answered`.
    pub(super) fn give_answers(&mut self, names: &Names, answered: &BTreeSet<String>) {
        for instance in self.instances.iter_mut().filter(|instance| !instance.runs()) {
            let Some(host) = instance.host().filter(|host| answered.contains(*host)) else { continue };
            let answer = names.only(host);
            (instance.lookup, instance.again) = (Some(Lookup::Over(answer)), Some(Instant::now()));
        }
    }

    /// Returns the names for which an answer is awaited, or has arrived and is not used yet.
    pub(super) fn awaited_names(&self) -> BTreeSet<String> {
        let mut names = self.late.as_ref().map(|late| late.unanswered().clone()).unwrap_or_default();
        for instance in self.instances.iter().filter(|instance| instance.lookup.is_some()) {
            names.extend(instance.host().cloned());
            names.extend(instance.spec.cached_addresses().into_iter().map(|cached| cached.host));
        }
        names
    }

    /// Looks names up during the pause before a restart, and gives the instance their addresses at the pause's end. A
    /// name without one keeps its address, so that no tunnel stays down for it.
    pub(super) fn renew_addresses(&mut self) {
        let now = Instant::now();
        let is_paused = |instance: &&Instance| instance.spec.unresolved.is_none() && instance.is_looked_up();
        let mut lookups = self.instances.iter().filter(is_paused).count();
        for instance in &mut self.instances {
            let Some(due) = instance.again.filter(|_| !instance.runs()) else { continue };
            let before = &instance.spec;
            if before.unresolved.is_some() {
                continue;
            }
            if due > now {
                if instance.lookup.is_none() && lookups < MOST_LOOKUPS {
                    let hosts = before.cached_addresses().into_iter().map(|cached| cached.host).collect();
                    instance.lookup = Lookup::begin(hosts);
                    lookups += usize::from(instance.lookup.is_some());
                }
                continue;
            }
            let Some(lookup) = instance.lookup.take_if(|lookup| lookup.is_over()) else { continue };
            let names = lookup.answers().or(before.cached_addresses());
            let (words, knobs) = (before.words(), before.knobs());
            let spec = self.configuration.spec(before.kind, &before.name, &words, &knobs, &names);
            // With new addresses tunnels of one port may exclude each other, and all of them would stay down.
            let fits = |spec: &InstanceSpec| spec.unresolved.is_none() && group::clash(spec.plans()).is_none();
            if let Some(spec) = spec.ok().filter(fits) {
                instance.spec = spec;
            }
        }
    }

    /// Returns whether another instance that is up has the port of `spec`: that of an absent tunnel that was started
    /// while this one was in a long pause.
    pub(super) fn has_port_elsewhere(&self, spec: &InstanceSpec) -> bool {
        let has = |other: &Instance| other.is_up() && other.spec.name != spec.name && other.spec.has_socket_of(spec);
        self.instances.iter().any(has)
    }

    /// Starts tunnels that have no process, such as an absent one whose remote now has an address: in the process that
    /// serves their port, if there is one, else in a separate process.
    fn take_in(&mut self, spec: InstanceSpec) -> Result<(), Error> {
        let name = spec.name.clone();
        let Some(at) = self.instances.iter().position(|instance| instance.spec.name == name) else { return Ok(()) };
        let hosts = |other: &InstanceSpec| other.name != name && other.has_socket_of(&spec);
        // One that starts, or is about to, has the port in a moment.
        let now = Instant::now();
        let starts = |other: &Instance| {
            let is_soon = other.runs() || other.again.is_some_and(|due| due <= now + SOON);
            other.spec.unresolved.is_none() && !other.is_up() && is_soon
        };
        if self.instances.iter().any(|other| hosts(&other.spec) && starts(other)) {
            self.instances[at].again = Some(now + ANSWER);
            return Ok(());
        }
        let Some(host) = self.instances.iter().find(|other| other.is_up() && hosts(&other.spec)) else {
            let instance = &mut self.instances[at];
            instance.spec = spec;
            // It is started as any other one now.
            instance.again = Some(Instant::now());
            return Ok(());
        };
        let (of, shared) = (host.spec.name.clone(), host.spec.shared(&host.spec));
        let mut joined = host.spec.clone();
        let clashes = [joined.plans(), spec.plans()].concat();
        let is_alone = shared.len() < joined.members() || spec.plans().iter().any(|plan| plan.trace.is_some());
        let why = group::clash(&clashes).map(|clash| clash.message);
        if let Some(why) = why.or_else(|| is_alone.then(|| "a trace or a guest belongs to one process".to_owned())) {
            let message = format!("{name} cannot join {of}, which has its port");
            return Err(Error::new(Kind::Conflict, message, "segue reload").why(why));
        }
        joined.append(spec);
        self.succeed(&of, &joined, &shared)?;
        let left = self.instances.iter().position(|instance| instance.spec.name == name && !instance.runs());
        if let Some(at) = left {
            self.instances.remove(at);
        }
        Ok(())
    }
}
