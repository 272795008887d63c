//! Tunnels whose remote is a name. Without an address they are absent instances, whose names are looked up again as
//! other instances are started again.

use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};

use super::child::Instance;
use super::lookup::ANSWER;
use super::service::Service;
use super::spec::InstanceSpec;
use crate::tunnel::group;

/// Most names that are looked up at a time, each in a thread of its own.
const MOST_LOOKUPS: usize = 16;
/// Longest pause before a start within which another tunnel of the same port is waited for.
const SOON: Duration = Duration::from_secs(3);

impl Service {
    /// Looks up the names of absent tunnels that are due, and starts those that have an address now.
    pub(super) fn look_up(&mut self) {
        let now = Instant::now();
        let mut failed = Vec::new();
        let mut found = None;
        let mut lookups = self.instances.iter().filter(|instance| instance.is_looked_up()).count();
        for (at, instance) in self.instances.iter_mut().enumerate() {
            if instance.spec.unresolved.is_none() || instance.again.is_none_or(|due| due > now) {
                continue;
            }
            // One tunnel is taken in at a time, as its table is read again meanwhile.
            if found.is_some() || !instance.is_looked_up() && lookups >= MOST_LOOKUPS {
                instance.again = Some(now + ANSWER);
                continue;
            }
            lookups += usize::from(!instance.is_looked_up());
            match instance.look_up() {
                None => {}
                Some(Ok(())) => found = Some(instance.spec.name.clone()),
                Some(Err(error)) => failed.push((at, error)),
            }
        }
        failed.iter().for_each(|(at, error)| self.tell_end(&self.instances[*at], error));
        let Some(name) = found else { return };
        let Err(error) = self.take_in(&name) else { return };
        let refused = self.instances.iter().position(|instance| instance.spec.name == name && !instance.runs());
        if let Some(at) = refused {
            self.instances[at].refuse(&error);
            self.tell_end(&self.instances[at], &error);
        }
    }

    /// Starts the absent tunnel `name`, whose remote has an address now: in the process that serves its port, if there
    /// is one, else in a process of its own.
    fn take_in(&mut self, name: &str) -> Result<(), Error> {
        let Some(at) = self.instances.iter().position(|instance| instance.spec.name == name) else { return Ok(()) };
        let absent = &self.instances[at].spec;
        let spec = self.configuration.spec(absent.kind, name, &absent.words(), &absent.knobs())?;
        if let Some(unresolved) = &spec.unresolved {
            return Err((*unresolved.error).clone());
        }
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
