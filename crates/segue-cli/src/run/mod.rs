//! `segue run`: the tunnels and gateways of a file as one service.
//!
//! This process reads the file and watches over the others, one for each instance, each with a sandbox of its own; no packet
//! passes through it. On SIGHUP it reads the file again and touches only what differs.

mod child;
mod config;
mod notify;
mod source;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use self::child::{Event, Instance};
use self::config::Unit;
use self::notify::Notify;
use self::source::{Text, together};
use crate::args::Run;
use crate::control::{client, knobs};
use crate::error::{Error, Kind};
use crate::out::{OnClosed, Out, to_stderr};
use crate::signals::{Signals, Wish};
use crate::sys::{self, Want};
use crate::system::Netlink;
use crate::units;

/// The id of the JSON that `segue run -j` prints, one object for each event; those of instances have their own.
const SCHEMA: &str = "segue.run/1";
/// How long an instance may take to come up.
const START: Duration = Duration::from_secs(30);
/// How long it may take to end before it is made to.
const STOP: Duration = Duration::from_secs(10);
/// And so much more for each interface: the kernel takes them away one by one.
const STOP_EACH: Duration = Duration::from_millis(60);
/// The same after the second interrupt.
const STOP_NOW: Duration = Duration::from_secs(2);
/// Largest file that is read, bytes.
const FILE_LEN: u64 = 4 << 20;

/// Runs the command.
pub(crate) fn run(args: &Run, out: &Out) -> Result<(), Error> {
    let Some(path) = args.config.as_deref() else {
        return Err(Error::new(Kind::Missing, "`run` needs a file", "segue run -c segue.toml")
            .why("it says what is to run: segue help run"));
    };
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for routes", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    let text = open(path)?;
    let units = config::read(&text)?;
    let plans = check(&units.iter().collect::<Vec<_>>(), &text, &mut netlink)?;
    if args.check {
        show(&text, &units, &plans, out);
        return Ok(());
    }
    let mut service = Service::new(path, netlink, out)?;
    service.life(units)
}

fn open(path: &Path) -> Result<Text, Error> {
    let file = path.display().to_string();
    let failed = |error: &std::io::Error| {
        Error::system(format!("cannot read {file}"), error, format!("ls -l {file}")).why("it holds what is to run")
    };
    let mut bytes = Vec::new();
    // Whatever it is: some files have no end.
    let read = File::open(path).and_then(|file| file.take(FILE_LEN + 1).read_to_end(&mut bytes));
    if read.map_err(|error| failed(&error))? as u64 > FILE_LEN {
        return Err(Error::new(Kind::Config, format!("{file} is too large"), "segue help run")
            .why(format!("a configuration has at most {FILE_LEN} bytes")));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Text { file, text }),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(&error.into_bytes()).into_owned();
            let text = Text { file, text };
            Err(text.error(&(at..at + 1), "this is not UTF-8", "TOML is written in UTF-8"))
        }
    }
}

/// What would stop these on this host, all of it, or what each would be.
fn check(units: &[&Unit], text: &Text, netlink: &mut Netlink) -> Result<Vec<String>, Error> {
    let (mut plans, mut errors) = (Vec::new(), Vec::new());
    for unit in units {
        match unit.check(text, netlink) {
            Ok(plan) => plans.push(plan),
            Err(error) => errors.push(error),
        }
    }
    together(errors).map_or(Ok(plans), Err)
}

/// `--check`: what would run.
fn show(text: &Text, units: &[Unit], plans: &[String], out: &Out) {
    if out.json {
        let units: Vec<Value> = units
            .iter()
            .map(|unit| {
                let knobs: serde_json::Map<String, Value> =
                    unit.wishes().into_iter().map(|(name, value)| (name, json!(value))).collect();
                json!({ "name": unit.name, "kind": unit.kind.command(), "words": unit.words(), "knobs": knobs })
            })
            .collect();
        return out.value(&json!({ "schema": SCHEMA, "event": "check", "file": text.file, "instances": units }));
    }
    plans.iter().for_each(|plan| out.data(plan));
    out.data(&format!("{}: {}; nothing was changed\n", text.file, count(units.len())));
}

/// How long an instance may take to end.
fn patience(instance: &Instance) -> Duration {
    STOP + STOP_EACH * u32::try_from(instance.unit.members()).unwrap_or(u32::MAX)
}

fn count(n: usize) -> String {
    if n == 1 { "1 instance".to_owned() } else { format!("{n} instances") }
}

/// What a reload came to.
#[derive(Debug, Default)]
struct Outcome {
    unchanged: Vec<String>,
    knobs: Vec<String>,
    restarted: Vec<String>,
    started: Vec<String>,
    stopped: Vec<String>,
}

struct Service<'a> {
    path: &'a Path,
    instances: Vec<Instance>,
    netlink: Netlink,
    signals: Signals,
    notify: Notify,
    out: Out,
    /// What the signals asked for that was not done yet.
    reload: bool,
    stop: bool,
    /// When the service manager is told again that all is well.
    alive: Instant,
}

impl<'a> Service<'a> {
    fn new(path: &'a Path, netlink: Netlink, out: &Out) -> Result<Service<'a>, Error> {
        let signals = Signals::new().map_err(|error| {
            Error::system("cannot read signals", &error, "segue doctor").why("the kernel has no signalfd")
        })?;
        let out = Out { on_closed: OnClosed::Ignore, ..*out };
        let (notify, alive) = (Notify::new(), Instant::now());
        Ok(Service { path, instances: Vec::new(), netlink, signals, notify, out, reload: false, stop: false, alive })
    }

    /// From the start to the end.
    fn life(&mut self, units: Vec<Unit>) -> Result<(), Error> {
        let outcome = self.start_all(units.into_iter().map(Instance::new).collect());
        if let Err(error) = outcome {
            self.stop_all();
            return Err(error);
        }
        self.ready();
        while !self.stop {
            self.wait(self.pause());
            self.restart();
            if std::mem::take(&mut self.reload) && !self.stop {
                self.reload();
            }
        }
        self.notify.stopping();
        self.stop_all();
        Ok(())
    }

    fn ready(&mut self) {
        let status = format!("{} up", count(self.instances.iter().filter(|instance| instance.is_up()).count()));
        self.notify.ready(&status);
        if !self.stop {
            self.say(&status, json!({ "event": "ready", "instances": self.names() }));
        }
    }

    fn names(&self) -> Vec<&str> {
        self.instances.iter().map(|instance| instance.unit.name.as_str()).collect()
    }

    /// A line for people, or an event for programs.
    fn say(&self, text: &str, event: Value) {
        if !self.out.json {
            return self.out.note(text);
        }
        let mut whole = json!({ "schema": SCHEMA, "t": units::rfc3339(SystemTime::now()) });
        if let (Value::Object(to), Value::Object(from)) = (&mut whole, event) {
            to.extend(from);
        }
        self.out.value(&whole);
    }

    /// An error that is not the end.
    fn complain(&self, error: &Error) {
        if self.out.json { self.out.value(&error.json()) } else { to_stderr(&error.text()) }
    }

    /// Starts instances and waits until all of them are up. Where one of them does not come up, the others are ended again.
    fn start_all(&mut self, mut fresh: Vec<Instance>) -> Result<(), Error> {
        let first = self.instances.len();
        for instance in &mut fresh {
            instance.start(&self.out)?;
        }
        self.instances.append(&mut fresh);
        let until = Instant::now() + START;
        while self.instances[first..].iter().any(|instance| !instance.is_up()) && !self.stop {
            let left = until.saturating_duration_since(Instant::now());
            let failed = self.wait(left).into_iter().find(|(at, _)| *at >= first).map(|(_, error)| error);
            let late = || {
                let slow = self.instances[first..].iter().find(|instance| !instance.is_up());
                let name = slow.map_or("", |instance| instance.unit.name.as_str());
                Error::new(Kind::System, format!("{name} does not come up"), "segue doctor")
                    .why(format!("nothing was heard of it for {} s", START.as_secs()))
            };
            if let Some(error) = failed.or_else(|| left.is_zero().then(late)) {
                let out = self.out;
                for mut instance in self.instances.drain(first..) {
                    let name = instance.unit.name.clone();
                    instance.stop(patience(&instance), &mut |value| said(&out, &name, value));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for signals and for what instances say, at most so long. Which of them ended, and why.
    fn wait(&mut self, longest: Duration) -> Vec<(usize, Error)> {
        let longest = self.notify.watchdog.map_or(longest, |often| longest.min(often));
        let mut fds = vec![(self.signals.as_fd(), Want::Read)];
        let mut whose = Vec::new();
        for (at, instance) in self.instances.iter().enumerate() {
            if let Some(fd) = instance.fd() {
                fds.push((fd, Want::Read));
                whose.push(at);
            }
        }
        // A refusal to wait would be a refusal for good; the loop must not turn hot on it.
        let ready = sys::poll(&fds, longest).unwrap_or_else(|_| {
            std::thread::sleep(Duration::from_millis(100));
            Vec::new()
        });
        let mut ended = Vec::new();
        for (&at, _) in whose.iter().zip(ready.iter().skip(1)).filter(|(_, ready)| **ready) {
            let out = self.out;
            for event in self.instances[at].read() {
                match event {
                    Event::Said(value) => said(&out, &self.instances[at].unit.name, value),
                    Event::Ended(error) => ended.push((at, error)),
                }
            }
        }
        if ready.first().is_some_and(|ready| *ready) {
            self.hear();
        }
        if let Some(often) = self.notify.watchdog
            && self.alive.elapsed() >= often
            && self.instances.iter().all(Instance::is_up)
        {
            self.alive = Instant::now();
            self.notify.alive();
        }
        ended
    }

    fn hear(&mut self) {
        while let Ok(Some((wish, number))) = self.signals.next() {
            match wish {
                Wish::Stop => self.stop = true,
                Wish::StopNow => {
                    // The first one has asked them to end; to each of them this is the second, too.
                    self.instances.iter().for_each(|instance| instance.signal(libc::SIGINT));
                    self.instances.iter_mut().for_each(|instance| instance.stop(STOP_NOW, &mut |_| ()));
                    std::process::exit(i32::from(Kind::Interrupted.exit_code()));
                }
                Wish::Hangup => self.reload = true,
                Wish::Counters => self.instances.iter().for_each(|instance| instance.signal(number)),
                Wish::Child => {}
            }
        }
    }

    /// Until something is due.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let due = self.instances.iter().filter_map(|instance| instance.again).min();
        due.map_or(Duration::from_secs(60), |due| due.saturating_duration_since(now) + Duration::from_millis(1))
    }

    /// Starts again what ended by itself, once its pause is over.
    fn restart(&mut self) {
        let now = Instant::now();
        let mut failed = Vec::new();
        for instance in &mut self.instances {
            if !instance.runs() && instance.again.is_some_and(|due| due <= now) {
                failed.extend(instance.start(&self.out).err());
            }
        }
        failed.iter().for_each(|error| self.complain(error));
    }

    fn stop_all(&mut self) {
        self.instances.iter().for_each(|instance| instance.signal(libc::SIGTERM));
        let until = Instant::now() + self.instances.iter().map(patience).max().unwrap_or(STOP);
        while self.instances.iter().any(Instance::runs) && Instant::now() < until {
            self.wait(until.saturating_duration_since(Instant::now()));
        }
        // Whoever did not listen is made to.
        self.instances.iter_mut().for_each(|instance| instance.stop(Duration::ZERO, &mut |_| ()));
        self.instances.clear();
    }

    /// Reads the file again, and does what it says or nothing.
    fn reload(&mut self) {
        self.notify.reloading();
        let outcome = self.follow();
        match outcome {
            Ok(done) => {
                let list = |what: &str, names: &[String]| {
                    if names.is_empty() { String::new() } else { format!(", {what} {}", names.join(" ")) }
                };
                let text = format!(
                    "reloaded {}: {} unchanged{}{}{}{}",
                    self.path.display(),
                    done.unchanged.len(),
                    list("knobs set", &done.knobs),
                    list("restarted", &done.restarted),
                    list("started", &done.started),
                    list("stopped", &done.stopped)
                );
                let event = json!({
                    "event": "reloaded",
                    "unchanged": done.unchanged,
                    "knobs": done.knobs,
                    "restarted": done.restarted,
                    "started": done.started,
                    "stopped": done.stopped,
                });
                self.say(&text, event);
            }
            Err(error) => {
                self.complain(&error);
                let text = "the reload was refused: what runs goes on as it is";
                self.say(text, json!({ "event": "reload_refused", "reason": error.message }));
            }
        }
        let up = count(self.instances.iter().filter(|instance| instance.is_up()).count());
        self.notify.ready(&format!("{up} up"));
    }

    /// Brings what runs in line with the file. Nothing is touched before all that can be checked is checked; what cannot,
    /// and fails, is taken back.
    fn follow(&mut self) -> Result<Outcome, Error> {
        let text = open(self.path)?;
        let units = config::read(&text)?;
        let mut outcome = Outcome::default();
        let (mut kept, mut turns, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
        let mut errors = Vec::new();
        for unit in units {
            let at = self.instances.iter().position(|instance| instance.unit.name == unit.name);
            let old = at.map(|at| &self.instances[at]);
            match (at, old) {
                (Some(at), Some(old)) if old.unit.kind == unit.kind && old.unit.words() == unit.words() => {
                    if old.is_up() {
                        match turn(&old.unit, &unit, &text) {
                            Ok(wishes) if wishes.is_empty() => outcome.unchanged.push(unit.name.clone()),
                            Ok(wishes) => {
                                outcome.knobs.push(unit.name.clone());
                                turns.push((unit.name.clone(), wishes));
                            }
                            Err(error) => errors.push(error),
                        }
                    } else {
                        outcome.unchanged.push(unit.name.clone());
                    }
                    kept.push((at, unit));
                }
                (Some(_), _) => {
                    outcome.restarted.push(unit.name.clone());
                    fresh.push(unit);
                }
                (None, _) => {
                    outcome.started.push(unit.name.clone());
                    fresh.push(unit);
                }
            }
        }
        errors.extend(check(&fresh.iter().collect::<Vec<_>>(), &text, &mut self.netlink).err());
        if let Some(error) = together(errors) {
            return Err(error);
        }
        let names = |units: &[Unit], name: &str| units.iter().any(|unit| unit.name == name);
        let goes = |instance: &Instance| !kept.iter().any(|(_, unit): &(usize, Unit)| unit.name == instance.unit.name);
        outcome.stopped = self
            .instances
            .iter()
            .filter(|i| goes(i) && !names(&fresh, &i.unit.name))
            .map(|i| i.unit.name.clone())
            .collect();

        // From here on something changes. What is to go ends first: its names and ports may be wanted again.
        let out = self.out;
        let mut gone = Vec::new();
        let (stay, go): (Vec<Instance>, Vec<Instance>) = self.instances.drain(..).partition(|instance| !goes(instance));
        self.instances = stay;
        for mut instance in go {
            let name = instance.unit.name.clone();
            instance.stop(patience(&instance), &mut |value| said(&out, &name, value));
            gone.push(instance.unit.clone());
        }
        if let Err(error) = self.start_all(fresh.into_iter().map(Instance::new).collect()) {
            if let Err(lost) = self.start_all(gone.into_iter().map(Instance::new).collect()) {
                self.complain(&lost.why("it was stopped for the new configuration, and does not start again"));
            }
            return Err(error);
        }
        for (_, unit) in kept {
            if let Some(instance) = self.instances.iter_mut().find(|instance| instance.unit.name == unit.name) {
                instance.unit = unit;
            }
        }
        for (name, wishes) in turns {
            // What was checked a moment ago can only fail where the instance has ended meanwhile.
            if let Err(error) = client::set(&name, &wishes) {
                self.complain(&error);
            }
        }
        Ok(outcome)
    }
}

/// The knobs to set at the running instance `old` so that it is as `new`: those of the file, and those that the file no
/// longer has as they were at the start.
fn turn(old: &Unit, new: &Unit, text: &Text) -> Result<Vec<(String, String)>, Error> {
    let (before, wishes) = (old.wishes(), new.wishes());
    if before == wishes {
        return Ok(Vec::new());
    }
    let known = client::knobs(&new.name)?;
    let dropped = before.iter().filter(|(name, _)| !wishes.iter().any(|(kept, _)| kept == name));
    let mut all: Vec<(String, String)> = dropped
        .filter_map(|(name, _)| known.iter().find(|knob| knob.name == *name))
        .map(|knob| (knob.name.clone(), knob.default.to_string()))
        .collect();
    let mut shadow = known;
    for (name, value) in &all {
        // It was like that once.
        let _: Result<(), knobs::Wrong> = knobs::set(&mut shadow, name, value);
    }
    new.check_knobs(text, shadow)?;
    all.extend(wishes);
    Ok(all)
}

/// What an instance said, passed on.
fn said(out: &Out, name: &str, mut value: Value) {
    if out.json {
        value["instance_name"] = json!(name);
        return out.value(&value);
    }
    let notes = value["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    match value["event"].as_str() {
        Some("up") => {
            notes.for_each(|note| out.note(&format!("note: {name}: {note}")));
            out.note(&format!("{name} is up"));
        }
        Some("down") => {
            let after = Duration::from_secs_f64(value["after_s"].as_f64().unwrap_or(0.0).max(0.0));
            out.note(&format!("{name} is down after {}", units::long_duration(after)));
        }
        Some("set") => {
            for change in value["changed"].as_array().into_iter().flatten() {
                let text = |key: &str| change[key].as_str().map_or_else(|| change[key].to_string(), str::to_owned);
                out.note(&format!("{name}: {}: {} -> {}", text("name"), text("before"), text("value")));
            }
        }
        _ => {}
    }
}
