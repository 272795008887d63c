//! The service: a process that supervises instances, each a process with a sandbox of its own. No packet passes through
//! the service itself.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use segue_control::error::{Error, Kind};
use segue_control::event::{LogEntry, LogEvent};
use segue_control::knobs::Knob;
use segue_control::protocol::ServiceState;
use segue_control::units;
use segue_host::capability::Capability;
use segue_host::names::{Lookups, Names};
use segue_host::netlink::Netlink;
use segue_host::process;
use segue_host::signals::{SignalAction, Signals};
use segue_host::sys::{self, Want};
use serde_json::{Value, json};

use super::child::{Instance, START, STOP, State, late};
use super::down::Down;
use super::lookup::{ANSWER, LateAnswers};
use super::notify::Notify;
use super::requests::{Change, Requests};
use super::said::Said;
use super::spec::{InstanceSpec, Kind as InstanceKind};
use crate::report::Report;
use crate::sandbox;

/// Schema id of the events that `segue run -j` prints, one object for each; instances have separate schemas.
pub const SCHEMA: &str = "segue.run/1";
/// Longest time in which an instance must end after the second interrupt.
const STOP_NOW: Duration = Duration::from_secs(2);
/// Longest wait at the start for answers of the resolver, if no instance has come up without them.
const LONG_LOOKUP: Duration = Duration::from_secs(30);
/// Largest number of absent instances that the state names: a service manager ignores a message of 4096 bytes or more
/// as a whole (NOTIFY_BUFFER_MAX of systemd), and a name may have 64 bytes.
const NAMED: usize = 20;
/// Numbers of open files: of a service's own and for the start of an instance, of an instance that runs, and of one
/// that is answered for here; and the soft limit that is usual.
const RESERVED_FILES: u64 = 64;
const FILES_OF_INSTANCE: u64 = 2;
const FILES_OF_PLACEHOLDER: u64 = 3;
const LEAST_FILES: u64 = 1024;
/// Time after the last of these answers for the start of an instance.
const LAST_START: Duration = Duration::from_secs(5);
/// Capabilities that a service passes on to its instances where these have none of their own: for interfaces, sockets
/// and programs in the kernel, ports below 1024, TAPs in other namespaces, users of their own, and files, sockets and
/// processes of other users.
const OF_INSTANCES: [Capability; 14] = [
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::Bpf,
    Capability::Perfmon,
    Capability::NetBindService,
    Capability::SysAdmin,
    Capability::SetUid,
    Capability::SetGid,
    Capability::SetPcap,
    Capability::Chown,
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Kill,
    Capability::SysResource,
];

/// The configuration of a service, such as a file.
pub trait Configuration {
    /// Returns the configuration's name for messages.
    fn name(&self) -> String;
    /// Returns the name that is the same in every folder, for clients of the service.
    fn path(&self) -> String {
        self.name()
    }
    /// Loads the current content of the configuration.
    fn load(&mut self) -> Result<(), Error>;
    /// Returns the names of remotes in the content that was loaded last.
    fn hosts(&self) -> Vec<String>;
    /// Returns the instances of the content that was loaded last, or all errors that can be found without a query to
    /// the system. Names of remotes have the addresses of `names`.
    fn specs(&self, names: &Names) -> Result<Vec<InstanceSpec>, Error>;
    /// Checks whether `specs` can run on this host together with `others`, which are running. Returns all errors, and
    /// changes nothing.
    fn check(&self, specs: &[&InstanceSpec], others: &[InstanceSpec], netlink: &mut Netlink) -> Result<(), Error>;
    /// Returns the instance with the given kind, name, words and knobs from the preceding configuration. Names of
    /// remotes have the addresses of `names`.
    fn spec(
        &self,
        kind: InstanceKind,
        name: &str,
        words: &[String],
        knobs: &[(String, String)],
        names: &Names,
    ) -> Result<InstanceSpec, Error>;
    /// Checks whether the knobs of `spec` can be set; `known` are its knobs with their previous values.
    fn check_knobs(&self, spec: &InstanceSpec, known: Vec<Knob>) -> Result<(), Error>;
}

/// Ends an instance, and waits until all of its resources are released.
pub(super) fn end(mut instance: Instance, out: &dyn Report, notify: &mut Notify) {
    let (name, is_quiet) = (instance.spec.name.clone(), instance.is_quiet);
    instance.stop(instance.patience(), notify, &mut |said| forward(out, &name, is_quiet, said));
}

/// Describes how many instances are up, and the first ones of those that are not.
fn line(up: usize, absent: &[&str]) -> String {
    let up = count(up);
    let named = &absent[..absent.len().min(NAMED)];
    match absent.len() - named.len() {
        _ if absent.is_empty() => format!("{up} up"),
        0 => format!("{up} up, not up: {}", named.join(" ")),
        more => format!("{up} up, not up: {} and {more} more", named.join(" ")),
    }
}

/// Formats a number of instances: `1 instance`, `2 instances`.
pub fn count(n: usize) -> String {
    if n == 1 { "1 instance".to_owned() } else { format!("{n} instances") }
}

/// The instances of a configuration, and their supervisor.
pub struct Service {
    pub(super) configuration: Box<dyn Configuration>,
    pub(super) instances: Vec<Instance>,
    down: Down,
    pub(super) netlink: Netlink,
    signals: Signals,
    pub(super) notify: Notify,
    pub(super) out: Arc<dyn Report>,
    /// Additional options of every instance.
    pub(super) options: Vec<String>,
    /// The clients of the service's own control socket.
    pub(super) requests: Requests,
    /// Whether a signal or a client has requested a reload that has not begun.
    pub(super) reload: bool,
    /// The pending lookups of names, while the resolver has not answered all queries of the start, or of the last
    /// reload.
    pub(super) late: Option<LateAnswers>,
    /// Whether a signal has requested the end of the service.
    pub(super) stop: bool,
    /// The path of this program at the start of the service.
    pub(super) program: Option<PathBuf>,
    /// The state that was reported last to the service manager.
    pub(super) reported: String,
    /// Largest number of open files of this process.
    files: u64,
}

impl Service {
    /// Creates a service that follows `configuration` and reports to `out`; each instance also gets `options`.
    pub fn new(
        configuration: Box<dyn Configuration>,
        netlink: Netlink,
        out: Arc<dyn Report>,
        options: Vec<String>,
    ) -> Result<Service, Error> {
        let signals = Signals::new().map_err(|error| {
            Error::system("cannot read signals", &error, "segue doctor").why("the kernel has no signalfd")
        })?;
        let (notify, instances) = (Notify::new(), Vec::new());
        // A soft limit is for programs that use select(2).
        let files = sys::raise_open_file_limit_to_hard().unwrap_or(LEAST_FILES);
        Ok(Service {
            configuration,
            instances,
            down: Down::default(),
            netlink,
            signals,
            notify,
            out,
            options,
            requests: Requests::default(),
            reload: false,
            late: None,
            stop: false,
            program: std::env::current_exe().ok(),
            reported: String::new(),
            files,
        })
    }

    /// Runs the service from start to end. An instance with an error is started later, again and again, as one that
    /// does not come up; one whose name has no answer yet gets that of `lookups`.
    ///
    /// # Errors
    /// Where no instance comes up.
    pub fn life(&mut self, specs: Vec<(InstanceSpec, Option<Error>)>, lookups: Lookups) -> Result<(), Error> {
        // Where this is not possible, an orphan of an instance may be there for a moment longer than that.
        let _ = process::adopt_orphans();
        // The threads that look names up create no files.
        match Requests::open(&self.configuration.name()) {
            Ok(requests) => self.requests = requests,
            // The signal does the same.
            Err(error) => self.complain(&error.hint("kill -HUP instead of segue reload")),
        }
        confine(specs.iter().map(|(spec, _)| spec), false)?;
        self.late = LateAnswers::of(lookups);
        if let Err(error) = self.begin(specs) {
            self.stop_all();
            return Err(error);
        }
        self.ready();
        self.attend();
        Ok(())
    }

    /// Serves signals, clients and the events of the instances until the end of the service.
    pub(super) fn attend(&mut self) {
        while !self.stop {
            self.serve_absent_states();
            // A reload that was asked for during the start is due now.
            let is_due = self.reload || self.requests.wants(Change::Upgrade);
            self.wait(if is_due { Duration::ZERO } else { self.pause() });
            self.restart();
            if !self.stop {
                self.look_up();
            }
            if !self.stop && !self.reload {
                self.apply_late_answers();
            }
            let status = self.status();
            if status != self.reported && !self.stop {
                self.notify.status(&status);
                self.reported = status;
            }
            if std::mem::take(&mut self.reload) && !self.stop {
                self.reload();
            }
            if self.requests.wants(Change::Upgrade) && !self.stop {
                self.upgrade();
            }
        }
        self.notify.stopping();
        self.requests.close();
        self.stop_all();
    }

    /// Serves the control sockets of instances without a process, as many as there are descriptors for.
    fn serve_absent_states(&mut self) {
        let (absent, most) = (self.names(false).len(), self.room_beside(0));
        let mut open = self.instances.iter().filter(|instance| instance.has_placeholder()).count() as u64;
        for instance in &mut self.instances {
            instance.is_one_of(absent);
            let had = instance.has_placeholder();
            instance.serve_absent_state(open < most);
            open += u64::from(!had && instance.has_placeholder());
            // Each may wait for a moment.
            self.notify.keep_alive();
        }
    }

    /// Returns the number of control sockets of instances without a process for which there are descriptors, beside
    /// those of the instances and of `more` of them.
    pub(super) fn room_beside(&self, more: usize) -> u64 {
        let kept = RESERVED_FILES + FILES_OF_INSTANCE * (self.instances.len() + more) as u64;
        self.files.saturating_sub(kept) / FILES_OF_PLACEHOLDER
    }

    /// Starts the instances of the service. One that does not come up is reported and started again later, unless none
    /// does.
    fn begin(&mut self, specs: Vec<(InstanceSpec, Option<Error>)>) -> Result<(), Error> {
        let mut failed: Vec<(String, Error)> = Vec::new();
        for (spec, refused) in specs {
            let mut instance = Instance::new(spec);
            let started = match refused {
                Some(error) => {
                    instance.refuse(&error);
                    Err(error)
                }
                None => instance.start(&self.options),
            };
            failed.extend(started.err().map(|error| (instance.spec.name.clone(), error)));
            self.instances.push(instance);
        }
        let mut was_up = false;
        while self.instances.iter().any(|instance| instance.runs() && !instance.is_up()) && !self.stop {
            let ended = self.wait(START);
            was_up |= !self.is_lost();
            failed.extend(ended.into_iter().map(|(at, error)| (self.instances[at].spec.name.clone(), error)));
        }
        // One that was up is started again.
        if self.late.is_none() && self.is_lost() && !was_up {
            return failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error));
        }
        for instance in &mut self.instances {
            instance.is_awaited = false;
        }
        for (name, error) in &failed {
            if let Some(instance) = self.instances.iter().find(|instance| instance.spec.name == *name) {
                self.tell_end(instance, error);
            }
        }
        self.await_answers();
        match failed.into_iter().next() {
            Some((_, error)) if self.is_lost() && !was_up => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns whether no instance is up, without a request to stop.
    fn is_lost(&self) -> bool {
        !self.stop && !self.instances.iter().any(Instance::is_up)
    }

    /// Waits until an instance is up, as long as answers of the resolver may bring one up.
    fn await_answers(&mut self) {
        let mut until = Instant::now() + LONG_LOOKUP;
        while self.is_lost() && Instant::now() < until {
            let is_pending = self.late.is_some();
            self.wait(self.pause().min(until.saturating_duration_since(Instant::now())));
            if !self.stop {
                self.apply_late_answers();
                self.look_up();
                self.restart();
            }
            if is_pending && self.late.is_none() {
                until = Instant::now() + LAST_START;
            }
        }
        self.settle();
    }

    /// Returns the state in one human-readable line.
    pub(super) fn status(&self) -> String {
        let up = self.instances.iter().filter(|instance| instance.is_up()).count();
        let absent: Vec<&str> =
            self.instances.iter().filter(|i| !i.is_up()).map(|instance| instance.spec.name.as_str()).collect();
        line(up, &absent)
    }

    fn ready(&mut self) {
        let status = self.status();
        self.notify.ready(&status);
        self.reported.clone_from(&status);
        if !self.stop {
            let line = LogEntry::new(LogEvent::Ready, &*status);
            self.say(&line, json!({ "event": "ready", "instances": self.names(true), "absent": self.names(false) }));
        }
    }

    /// Returns the names of the instances that are up, or of those that are not.
    fn names(&self, up: bool) -> Vec<&str> {
        let those = self.instances.iter().filter(|instance| instance.is_up() == up);
        those.map(|instance| instance.spec.name.as_str()).collect()
    }

    /// Returns the state of the service for clients.
    fn state(&self) -> ServiceState {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        ServiceState {
            file: self.configuration.path(),
            pid: std::process::id(),
            instances: owned(self.names(true)),
            absent: owned(self.names(false)),
            hidden: self.down.hidden(&self.instances),
        }
    }

    /// Reports a human-readable line, or an event as JSON.
    pub(super) fn say(&self, line: &LogEntry<'_>, event: Value) {
        if !self.out.is_json() {
            return self.out.event(line);
        }
        let mut whole = json!({ "schema": SCHEMA, "t": units::rfc3339(SystemTime::now()) });
        if let (Value::Object(to), Value::Object(from)) = (&mut whole, event) {
            to.extend(from);
        }
        self.out.value(&whole);
    }

    /// Reports an error that does not end the service.
    pub(super) fn complain(&self, error: &Error) {
        self.out.error(error);
    }

    /// Reports why an instance ended by itself, and when it is restarted. The reason that is known is not reported
    /// again.
    pub(super) fn tell_end(&self, instance: &Instance, error: &Error) {
        if !instance.is_new_fault {
            return;
        }
        self.complain(error);
        self.tell_pause(instance);
    }

    /// Reports when an instance without a process is restarted.
    pub(super) fn tell_pause(&self, instance: &Instance) {
        let name = &instance.spec.name;
        let due = instance.again.filter(|_| !instance.is_replaced);
        let pause = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
        let text = match due {
            Some(_) if pause.is_zero() => format!("{name} starts again at once"),
            Some(_) => format!("{name} starts again in {}", units::long_duration(pause)),
            None => format!("{name} is replaced at once"),
        };
        let line = LogEntry::new(LogEvent::Ended, text).with("instance", &**name);
        self.say(&line, json!({ "event": "ended", "instance_name": name, "again_s": pause.as_secs_f64() }));
    }

    /// Starts instances and waits until all of them are up. Where one does not come up, the others are ended again.
    pub(super) fn start_all(&mut self, mut fresh: Vec<Instance>) -> Result<(), Error> {
        let first = self.instances.len();
        for instance in &mut fresh {
            instance.start(&self.options)?;
        }
        self.instances.append(&mut fresh);
        let until = Instant::now() + START;
        while self.instances[first..].iter().any(|instance| !instance.is_up()) && !self.stop {
            let left = until.saturating_duration_since(Instant::now());
            let failed = self.wait(left).into_iter().find(|(at, _)| *at >= first).map(|(_, error)| error);
            let slow = || {
                let slow = self.instances[first..].iter().find(|instance| !instance.is_up());
                late(slow.map_or("", |instance| instance.spec.name.as_str()))
            };
            if let Some(error) = failed.or_else(|| left.is_zero().then(slow)) {
                let out = Arc::clone(&self.out);
                self.instances.drain(first..).for_each(|instance| end(instance, &*out, &mut self.notify));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for signals and events, at most `longest`. Returns the instances that ended, with the reasons.
    pub(super) fn wait(&mut self, longest: Duration) -> Vec<(usize, Error)> {
        let longest = self.notify.due().map_or(longest, |due| longest.min(due));
        // What found no room on stdout is tried again.
        let longest = if segue_host::stdout::flush() { longest.min(Duration::from_secs(1)) } else { longest };
        let due = self.instances.iter().filter_map(Instance::attention).chain(self.requests.due()).min();
        // One additional millisecond, so that the wait does not end just before it.
        let soon = due.map(|due| due.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let longest = soon.map_or(longest, |soon| longest.min(soon));
        let mut fds = vec![(self.signals.as_fd(), Want::Read)];
        let mut whose = Vec::new();
        for (at, instance) in self.instances.iter().enumerate() {
            if let Some(fd) = instance.fd() {
                fds.push((fd, Want::Read));
                whose.push(at);
            }
        }
        let clients = fds.len();
        fds.extend(self.requests.fds());
        // A failure of poll would repeat at once; the pause keeps the loop from spinning.
        let ready = sys::poll(&fds, longest).unwrap_or_else(|_| {
            std::thread::sleep(Duration::from_millis(100));
            Vec::new()
        });
        let mut ended = Vec::new();
        for (&at, _) in whose.iter().zip(ready.iter().skip(1)).filter(|(_, ready)| **ready) {
            let (out, instance) = (Arc::clone(&self.out), &mut self.instances[at]);
            let was_up = matches!(instance.state(), Some(State::IsUp | State::IsDown(_)));
            let is_told = was_up || !instance.is_awaited;
            let (name, is_quiet) = (instance.spec.name.clone(), instance.is_quiet);
            if let Some(error) = instance.read(&mut |said| forward(&*out, &name, is_quiet, said)) {
                if is_told && !is_quiet && !self.stop {
                    self.tell_end(&self.instances[at], &error);
                }
                // The processes of each may take a moment to end.
                self.notify.keep_alive();
                ended.push((at, error));
            }
        }
        if ready.first().is_some_and(|ready| *ready) {
            self.receive_requests();
        }
        self.down.note(&self.instances, Instant::now());
        let mut requests = std::mem::take(&mut self.requests);
        requests.serve(ready.get(clients..).unwrap_or_default(), || self.state());
        self.requests = requests;
        self.reload |= self.requests.wants(Change::Reload);
        self.instances.iter_mut().for_each(Instance::tend);
        // Processes of an instance that was gone before they were.
        process::collect_orphans(|pid| self.instances.iter().any(|instance| instance.is_process(pid)));
        // The service manager watches this process; this process watches the instances.
        self.notify.keep_alive();
        ended
    }

    fn receive_requests(&mut self) {
        while let Ok(Some((action, number))) = self.signals.receive() {
            match action {
                SignalAction::Stop => self.stop = true,
                SignalAction::StopNow => {
                    // The first signal has asked them to end; for each of them this is the second one, too.
                    self.instances.iter().for_each(|instance| instance.signal(libc::SIGINT));
                    let Service { instances, notify, .. } = self;
                    instances.iter_mut().for_each(|instance| instance.stop(STOP_NOW, notify, &mut |_| ()));
                    std::process::exit(i32::from(Kind::Interrupted.exit_code()));
                }
                SignalAction::Hangup => self.reload = true,
                SignalAction::Counters => self.instances.iter().for_each(|instance| instance.signal(number)),
                SignalAction::Child => {}
            }
        }
    }

    /// Returns the time until the next restart or the next check for late answers is due, or a minute where none is.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let longest = if self.late.is_some() { ANSWER } else { Duration::from_secs(60) };
        let due = self.instances.iter().filter_map(|instance| instance.again).min();
        let pause = due.map(|due| due.saturating_duration_since(now) + Duration::from_millis(1));
        pause.map_or(longest, |pause| pause.min(longest))
    }

    /// Restarts instances that ended by themselves, once their pause is over.
    fn restart(&mut self) {
        self.renew_addresses();
        let now = Instant::now();
        let mut failed = Vec::new();
        for at in 0..self.instances.len() {
            // One whose port another one has by now joins that (`look_up`).
            if self.instances[at].is_due(now) && !self.has_port_elsewhere(&self.instances[at].spec) {
                self.instances[at].is_awaited = false;
                failed.extend(self.instances[at].start(&self.options).err().map(|error| (at, error)));
            }
        }
        failed.iter().for_each(|(at, error)| self.tell_end(&self.instances[*at], error));
    }

    /// Restarts instances that ran before, each independently: one that does not come up is reported, and restarted
    /// after its pause.
    pub(super) fn put_back(&mut self, gone: Vec<Instance>) {
        for mut instance in gone {
            instance.stand_down();
            // An instance that had ended by itself keeps its pause.
            if instance.again.is_none() {
                instance.again = Some(Instant::now());
            }
            self.instances.push(instance);
        }
        self.restart();
        self.settle();
    }

    /// Waits until no instance is starting any more, for [`START`] at most.
    pub(super) fn settle(&mut self) {
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
        let until = Instant::now() + self.instances.iter().map(Instance::patience).max().unwrap_or(STOP);
        while self.instances.iter().any(Instance::runs) && Instant::now() < until {
            self.wait(until.saturating_duration_since(Instant::now()));
        }
        // Instances that did not end are killed.
        let Service { instances, notify, .. } = self;
        instances.iter_mut().for_each(|instance| instance.stop(Duration::ZERO, notify, &mut |_| ()));
        instances.clear();
    }
}

/// Confines a service of the instances `specs`: forbids the system calls that none of its processes needs, and drops
/// capabilities. A lookup of a name of the file that has no answer yet keeps what it has until it ends by itself.
///
/// Where the instances that it starts have all rights again, it keeps those to signal instances of other users, to read
/// its file regardless of the mode, and to exceed the limit of descriptors in a handover. Elsewhere they need what this
/// process has, so that it keeps what an instance may need, and forbids new privileges: no program that it starts has
/// more rights than itself.
///
/// # Errors
/// Where the kernel has no filters of system calls, unless each of the instances may run without them.
pub(super) fn confine<'a>(specs: impl Iterator<Item = &'a InstanceSpec>, is_upgrade: bool) -> Result<(), Error> {
    let failed = |what: &str, error: &io::Error| {
        Error::system(what, error, "segue doctor").why("without that, the service does not start")
    };
    let caps = sys::capabilities().map_err(|error| failed("cannot read capabilities", &error))?;
    let passes_on = !process::starts_with_all_rights() || !Capability::SysAdmin.is_in(caps);
    if passes_on {
        sys::no_new_privs().map_err(|error| failed("cannot forbid new privileges", &error))?;
    }
    if let Err(why) = sandbox::refuse_calls(is_upgrade) {
        let is_weak = specs.map(InstanceSpec::is_weak).reduce(|one, other| one && other);
        if is_weak != Some(true) {
            let hint = "a kernel with seccomp (segue doctor), or to continue without, for each instance of the file:\n\
                        weak-sandbox = true";
            let error = Error::new(Kind::System, "no filter of system calls for the service", hint);
            return Err(error.why(why));
        }
        tracing::warn!(id = "sandbox", "no filter of system calls for the service: {why}");
    }
    let kept = if passes_on {
        process::limit_passed_on_capabilities(&OF_INSTANCES)
    } else {
        process::limit_capabilities(&[Capability::Kill, Capability::DacReadSearch, Capability::SysResource])
    };
    kept.map_err(|error| failed("cannot drop capabilities", &error))
}

/// Forwards an event of an instance to the output of the service.
fn forward(out: &dyn Report, name: &str, is_quiet: bool, said: &Said<'_>) {
    if out.is_json() {
        let added = [("handover", json!(true)), ("instance_name", json!(name))];
        return out.forward(&said.with(if is_quiet { &added } else { &added[1..] }));
    }
    if is_quiet {
        return;
    }
    let line = |event, text| LogEntry::new(event, text).with("instance", name);
    let keys = &said.keys;
    match said.head.event.as_str() {
        "up" => {
            for note in &keys.notes {
                out.event(&line(LogEvent::Note, format!("note: {name}: {note}")));
            }
            out.event(&line(LogEvent::Up, format!("{name} is up")));
        }
        "down" => {
            let after = Duration::try_from_secs_f64(keys.after_s).unwrap_or_default();
            out.event(&line(LogEvent::Down, format!("{name} is down after {}", units::long_duration(after))));
        }
        "set" => {
            for change in &keys.changed {
                let text = format!("{name}: {}: {} -> {}", change.name, change.before, change.value);
                out.event(&line(LogEvent::Set, text));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_many_absent_instances_is_short_enough_for_a_service_manager() {
        assert_eq!(line(1, &[]), "1 instance up");
        assert_eq!(line(2, &["a", "b"]), "2 instances up, not up: a b");
        let name = "x".repeat(64);
        let absent = vec![name.as_str(); 4000];
        assert_eq!(line(0, &absent[..20]).matches(&name).count(), 20);
        let text = line(0, &absent);
        assert!(text.ends_with("and 3980 more") && text.len() < 4096 - "READY=1\nSTATUS=".len(), "{}", text.len());
    }
}
