//! `segue run`: the tunnels and gateways of a file as one service.
//!
//! This process reads the file and watches over the others, one for each instance, each with a sandbox of its own; no packet
//! passes through it. On SIGHUP it reads the file again and touches only what differs.

mod child;
mod config;
mod keys;
mod notify;
mod reload;
mod source;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use segue_control::error::{Error, Kind};
use segue_control::units;
use segue_host::netlink::Netlink;
use segue_host::signals::{Signals, Wish};
use segue_host::sys::{self, Want};
use serde_json::{Value, json};

use self::child::{Event, Instance, State};
use self::config::{Checked, Unit};
use self::notify::Notify;
use self::source::{Text, together};
use crate::args::Run;
use crate::out::{OnClosed, Out, to_stderr};
use crate::render::Rendered;

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

/// How long a file that is a pipe may take, and how often one is looked at into which nobody writes.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

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
    let plans = check(&units.iter().collect::<Vec<_>>(), &[], &text, &mut netlink)?;
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
    let read = read(path, &mut bytes);
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

/// Reads a file, whatever it is: some have no end, and into some nobody writes.
fn read(path: &Path, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let until = Instant::now() + PATIENCE;
    while bytes.len() as u64 <= FILE_LEN {
        let mut part = [0; 65_536];
        match file.read(&mut part) {
            // A pipe has an end only after somebody has written into it.
            Ok(0) if bytes.is_empty() && file.metadata()?.file_type().is_fifo() => std::thread::sleep(LOOK),
            Ok(0) => break,
            Ok(len) => bytes.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sys::poll(&[(file.as_fd(), Want::Read)], until.saturating_duration_since(Instant::now()))?;
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= until {
            let text = format!("nothing was written into it for {} s", PATIENCE.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
    }
    Ok(bytes.len())
}

/// What would stop these on this host beside `others`, which run, all of it, or what each would be.
fn check(units: &[&Unit], others: &[Unit], text: &Text, netlink: &mut Netlink) -> Result<Vec<String>, Error> {
    let (mut plans, mut errors) = (Vec::new(), Vec::new());
    let mut ports: HashMap<u16, Vec<(IpAddr, &Unit)>> = HashMap::new();
    for unit in others {
        if let Some(place) = unit.listens(netlink) {
            ports.entry(place.port()).or_default().push((place.ip(), unit));
        }
    }
    for unit in units {
        let Checked { words, listens } = match unit.check(text, netlink) {
            Ok(checked) => checked,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        plans.push(words);
        let Some(place) = listens else { continue };
        let known = ports.entry(place.port()).or_default();
        // Who has no address of its own has all of them.
        let same = |ip: IpAddr| {
            ip == place.ip() || ip.is_ipv4() == place.is_ipv4() && (ip.is_unspecified() || place.ip().is_unspecified())
        };
        if let Some((_, first)) = known.iter().find(|(ip, _)| same(*ip)) {
            let line = text.line(first.header.start);
            let message = format!("`{}` and `{}` would both listen on {place}, UDP", first.name, unit.name);
            let note = format!("line {line} has the first: the same `local` in each lets them share the port");
            errors.push(text.error(&unit.header, message, note));
        }
        known.push((place.ip(), unit));
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

/// Ends an instance, and waits until all that was its is gone.
fn end(mut instance: Instance, out: &Out) {
    let (name, is_quiet) = (instance.unit.name.clone(), instance.is_quiet);
    instance.stop(patience(&instance), &mut |value| said(out, &name, is_quiet, value));
}

fn count(n: usize) -> String {
    if n == 1 { "1 instance".to_owned() } else { format!("{n} instances") }
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

    /// Says why an instance ended by itself, and when it starts again.
    fn tell_end(&self, instance: &Instance, error: &Error) {
        self.complain(error);
        self.tell_pause(instance);
    }

    /// Says when an instance that does not run starts again.
    fn tell_pause(&self, instance: &Instance) {
        let name = &instance.unit.name;
        let due = instance.again.filter(|_| !instance.is_replaced);
        let pause = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
        let text = match due {
            Some(_) => format!("{name} starts again in {}", units::long_duration(pause)),
            None => format!("{name} is replaced at once"),
        };
        self.say(&text, json!({ "event": "ended", "instance_name": name, "again_s": pause.as_secs_f64() }));
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
                self.instances.drain(first..).for_each(|instance| end(instance, &out));
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
            let was_up = matches!(self.instances[at].state(), Some(State::IsUp | State::IsDown(_)));
            let is_told = was_up || !self.instances[at].is_awaited;
            for event in self.instances[at].read() {
                let instance = &self.instances[at];
                match event {
                    Event::Said(value) => said(&out, &instance.unit.name, instance.is_quiet, value),
                    Event::Ended(error) => {
                        if is_told && !instance.is_quiet && !self.stop {
                            self.tell_end(instance, &error);
                        }
                        ended.push((at, error));
                    }
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
        for (at, instance) in self.instances.iter_mut().enumerate() {
            if !instance.runs() && instance.again.is_some_and(|due| due <= now) {
                instance.is_awaited = false;
                failed.extend(instance.start(&self.out).err().map(|error| (at, error)));
            }
        }
        failed.iter().for_each(|(at, error)| self.tell_end(&self.instances[*at], error));
    }

    /// Starts again what ran before, each by itself: one that does not come up is told, and starts again in its time.
    fn put_back(&mut self, gone: Vec<Instance>) {
        for mut instance in gone {
            // What had ended by itself goes on waiting.
            if instance.again.is_none() {
                instance.again = Some(Instant::now());
            }
            self.instances.push(instance);
        }
        self.restart();
        self.settle();
    }

    /// Waits for those that are about to come up.
    fn settle(&mut self) {
        let until = Instant::now() + START;
        while self.instances.iter().any(|instance| instance.runs() && !instance.is_up()) && !self.stop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.wait(left);
        }
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
}

/// What an instance said, passed on.
fn said(out: &Out, name: &str, is_quiet: bool, mut value: Value) {
    if out.json {
        value["instance_name"] = json!(name);
        if is_quiet {
            value["handover"] = json!(true);
        }
        return out.value(&value);
    }
    if is_quiet {
        return;
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
