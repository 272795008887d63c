//! Tunnels whose remote is a name. Without an address they are absent instances, whose names are looked up again as
//! other instances are started again; with another address than before, those that do not answer move to it.

use std::time::Instant;

use segue_control::error::{Error, Kind};
use segue_control::event::{LogEntry, LogEvent};

use super::service::Service;
use super::spec::InstanceSpec;
use crate::tunnel::group;

impl Service {
    /// Looks up the names of absent tunnels that are due, and starts those that have an address now.
    pub(super) fn look_up(&mut self) {
        let now = Instant::now();
        let mut failed = Vec::new();
        let mut found = Vec::new();
        for (at, instance) in self.instances.iter_mut().enumerate() {
            if instance.spec.unresolved.is_some() && instance.again.is_some_and(|due| due <= now) {
                match instance.look_up() {
                    None => {}
                    Some(Ok(())) => found.push(instance.spec.name.clone()),
                    Some(Err(error)) => failed.push((at, error)),
                }
            }
        }
        failed.iter().for_each(|(at, error)| self.tell_end(&self.instances[*at], error));
        for name in found {
            let Err(error) = self.take_in(&name) else { continue };
            let refused = self.instances.iter().position(|instance| instance.spec.name == name && !instance.runs());
            if let Some(at) = refused {
                self.instances[at].refuse(&error);
                self.tell_end(&self.instances[at], &error);
            }
        }
    }

    /// Moves tunnels to the present addresses of their remotes' names, where the former ones do not answer.
    pub(super) fn follow_names(&mut self) {
        let up = self.instances.iter().filter(|instance| instance.is_up()).map(|instance| &instance.spec);
        for name in self.moves.step(up) {
            let old = self.instances.iter().map(|instance| &instance.spec).find(|spec| spec.name == name);
            let spec = old.map(|old| self.configuration.spec(old.kind, &name, &old.words(), &old.knobs()));
            let Some(Ok(spec)) = spec else { continue };
            if spec.unresolved.is_some() {
                continue;
            }
            if !self.out.is_json() {
                let text = format!("note: {name}: the name of a remote that does not answer has another address");
                self.out.event(&LogEntry::new(LogEvent::Note, text));
            }
            if let Err(error) = self.follow_remotes(&name, spec) {
                self.complain(&error);
            }
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
