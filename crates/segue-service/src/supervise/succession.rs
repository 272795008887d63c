//! Succession: a process takes over the ports of another one, which sends its last packets before, or another one is
//! started in its place.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_host::sys;

use super::child::{Instance, START, State, late};
use super::knobs::carried;
use super::service::{Service, end};
use super::spec::InstanceSpec;
use super::tables;
use crate::closing::Closing;
use crate::control_server::{forget_next, take_name};
use crate::handover::Ports;

/// Longest wait for a successor once the process before it has ended. What it reads first may take four seconds where
/// the kernel lacks memory.
const ALONE: Duration = Duration::from_secs(5);

impl Service {
    /// Returns whether the instance that was to be replaced has ended by itself or does so shortly; otherwise
    /// it continues, as one that `may_be_well` mostly does.
    fn ends_instead(&mut self, at: usize, may_be_well: bool) -> bool {
        let name = self.instances[at].spec.name.clone();
        let ends = self.ends(&name, may_be_well);
        self.instances[at].is_replaced = ends;
        ends
    }

    /// Starts `spec` instead of the instance `at`, which has ended by itself; if that fails, the old one is restarted
    /// after its pause. One that `gets_table` is started without its file of peers.
    fn start_instead(&mut self, at: usize, spec: &InstanceSpec, gets_table: bool) -> Result<(), Error> {
        let (mut ended, mut next) = (self.instances.remove(at), Instance::new(spec.clone()));
        next.gets_table = gets_table;
        let outcome = self.start_all(vec![next]);
        if outcome.is_err() {
            ended.is_replaced = false;
            self.tell_pause(&ended);
            self.instances.push(ended);
        }
        outcome
    }

    /// Ends the instance `at`, and starts `spec` in its place, as [`start_instead`](Self::start_instead) does.
    fn start_anew(&mut self, at: usize, spec: &InstanceSpec, gets_table: bool) -> Result<(), Error> {
        let mut gone = Instance::new(self.instances[at].spec.clone());
        (gone.again, gone.is_awaited) = (Some(Instant::now()), false);
        end(std::mem::replace(&mut self.instances[at], gone), &*self.out, &mut self.notify);
        self.start_instead(at, spec, gets_table)
    }

    /// Requests the end of the instance `at`, and waits until it has sent its last packets. Returns the next sequence
    /// numbers of its interfaces.
    fn send_last(&mut self, at: usize) -> Vec<(String, u32)> {
        self.instances[at].is_quiet = true;
        self.instances[at].signal(libc::SIGTERM);
        let until = Instant::now() + self.instances[at].patience();
        let moves = |old: &Instance| matches!(old.state(), Some(State::Starts | State::IsReady | State::IsUp));
        while moves(&self.instances[at]) && Instant::now() < until {
            self.wait(until.saturating_duration_since(Instant::now()));
        }
        let old = &self.instances[at];
        match old.state() {
            Some(State::IsDown(sequences)) => sequences.clone(),
            None => Vec::new(),
            Some(_) => {
                // Also a worker that would read beside its successor.
                self.instances[at].end_now();
                Vec::new()
            }
        }
    }

    /// Returns what a predecessor has changed of that which it had handed over, and had as well until its end.
    fn changed(&mut self, spec: &InstanceSpec, shared: &[String], handed: &Ports) -> Option<&'static str> {
        if !handed.sockets.are_connected_to(spec.only_peer()) {
            return Some("a socket");
        }
        // A read that waits for packets inside would hold up those from outside.
        let waits = |(_, fd): &(String, OwnedFd)| sys::is_nonblocking(fd.as_fd()).is_ok_and(|returns| !returns);
        if handed.interfaces.iter().any(waits) {
            return Some("an interface");
        }
        let is_dark = |dev: &String| {
            let link = self.netlink.link_named(dev).ok().flatten();
            link.is_some_and(|link| link.up && !link.has_carrier)
        };
        shared.iter().any(is_dark).then_some("an interface")
    }

    /// Replaces the instance `name` by a process for `spec`. The old one continues until the new one is ready, and
    /// keeps running where that fails. Where the old one ends by itself meanwhile, or the new one cannot be told to
    /// begin or has ports that the old one has changed, another one starts without ports, and the result is `false`.
    pub(super) fn succeed(&mut self, name: &str, spec: &InstanceSpec, shared: &[String]) -> Result<bool, Error> {
        let Some(at) = self.instances.iter().position(|instance| instance.spec.name == name) else {
            return Err(Error::new(Kind::NotFound, format!("{name} does not run"), "segue stat"));
        };
        self.notify.keep_alive();
        self.instances[at].is_replaced = true;
        let old = &self.instances[at];
        let asked = carried(old, spec).and_then(|assignments| Ok((assignments, old.ports()?)));
        let (assignments, mut ports) = match asked {
            Ok(asked) => asked,
            Err(error) if !self.ends_instead(at, false) => return Err(error),
            Err(_) => return self.start_instead(at, spec, false).map(|()| false),
        };
        ports.interfaces.retain(|(name, _)| shared.contains(name));
        let mut successor = Instance::new(spec.clone());
        let started = successor.start_as_successor(&ports, &assignments, &self.options);
        if let Err(error) = started {
            self.instances[at].is_replaced = false;
            return Err(error);
        }
        let last = self.instances.len();
        self.instances.push(successor);
        if let Err(error) = self.reach(last, &State::IsReady, Some(at)).and_then(|()| take_name(&spec.name)) {
            close(ports);
            if !self.instances[at].runs() {
                self.instances[last].end_now();
            }
            self.instances.drain(last..).for_each(|successor| end(successor, &*self.out, &mut self.notify));
            forget_next(&spec.name);
            // The instance that was taken over may have been about to end.
            let ends = self.ends_instead(at, true);
            return if ends { self.start_instead(at, spec, false).map(|()| false) } else { Err(error) };
        }
        // Both processes exist; the old one sends its last packets, and then the new one begins.
        let sequences = self.send_last(at);
        if self.instances[last].go(&sequences).is_err() {
            // The old one is down, and the new one would wait for ever: another one needs no ports.
            drop(ports);
            self.instances.drain(last..).for_each(|successor| end(successor, &*self.out, &mut self.notify));
            forget_next(&spec.name);
            return self.start_anew(at, spec, false).map(|()| false);
        }
        let outcome = self.reach(last, &State::IsUp, None);
        let successor = self.instances.pop();
        if let Some(mut successor) = successor {
            (successor.is_quiet, successor.is_awaited) = (false, false);
            end(std::mem::replace(&mut self.instances[at], successor), &*self.out, &mut self.notify);
        }
        if let Err(error) = outcome {
            close(ports);
            return Err(error);
        }
        let Some(what) = self.changed(spec, shared, &ports) else { return Ok(true) };
        drop(ports);
        let text = format!("{}: the process before has changed {what} that it had handed over", spec.name);
        let error = Error::new(Kind::System, text, "segue doctor").why("the tunnels are started anew without it");
        self.complain(&error.names_instance());
        let (tables, lost) = tables::present(&[spec], &mut self.notify);
        lost.iter().for_each(|lost| self.complain(lost));
        self.start_anew(at, spec, !tables.is_empty())?;
        self.give_back(tables);
        Ok(false)
    }

    /// Waits until the instance `at` has reached a state: for a moment only once the instance `before`, which it
    /// succeeds, has ended by itself, since one that takes nothing over starts as fast.
    fn reach(&mut self, at: usize, state: &State, before: Option<usize>) -> Result<(), Error> {
        let mut until = Instant::now() + START;
        loop {
            if before.is_some_and(|before| !self.instances[before].runs()) {
                until = until.min(Instant::now() + ALONE);
            }
            let left = until.saturating_duration_since(Instant::now());
            // It may have ended, or begun, while another one was waited for.
            let is_over = !self.instances[at].runs() || self.instances[at].state() == Some(state);
            let ended = self.wait(if is_over { Duration::ZERO } else { left });
            let failed = ended.into_iter().find(|(which, _)| *which == at).map(|(_, error)| error);
            if let Some(error) = failed {
                return Err(error);
            }
            let instance = &self.instances[at];
            if instance.state() == Some(state) {
                return Ok(());
            }
            let name = &instance.spec.name;
            if !instance.runs() {
                return Err(instance.absence().cloned().unwrap_or_else(|| late(name)));
            }
            if self.stop && *state != State::IsUp {
                return Err(Error::new(Kind::Interrupted, format!("{name} did not start"), "segue run")
                    .why("the service was stopped"));
            }
            if left == Duration::ZERO {
                return Err(late(name));
            }
        }
    }
}

/// Closes ports, in parallel: no other process may have the interfaces any more.
fn close(ports: Ports) {
    let closing = Closing::of(ports.interfaces.len());
    ports.close(closing);
}
