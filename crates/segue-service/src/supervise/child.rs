//! One supervised instance: a child process that reports events on its standard output.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::protocol::Failure;
use segue_host::sys;
use serde::Deserialize;
use serde_json::Value;

use super::spec::InstanceSpec;
use crate::handover::{Line, Ports, Record};

/// Longest event line that is kept, bytes: room for as many tunnels as one port has at most.
const LINE_LEN: usize = 32 << 20;
/// The first and the longest pause before an instance that ended by itself is restarted.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Largest number of sockets of an instance, which pass through this process in a handover.
const SOCKETS: usize = 1024;
/// Uptime after which the pauses between restarts begin anew with the shortest one.
const WELL: Duration = Duration::from_secs(60);

/// A supervised instance, with its process while one runs.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) spec: InstanceSpec,
    process: Option<Process>,
    /// The time of the next restart.
    pub(super) again: Option<Instant>,
    pause: Duration,
    /// Whether the instance is one side of a handover, so that its start and its end are not reported.
    pub(super) is_quiet: bool,
    /// Whether a caller waits for the instance and reports a failed start; otherwise a failed start is reported like
    /// the end of an instance that was up.
    pub(super) is_awaited: bool,
    /// Whether another instance is about to replace this one, also where this one ends before that.
    pub(super) is_replaced: bool,
}

#[derive(Debug)]
struct Process {
    child: Child,
    stdout: ChildStdout,
    /// Output of the process up to the end of its line.
    text: Vec<u8>,
    /// The line to its standard input.
    line: Line,
    state: State,
    began: Instant,
    /// The failure that the process reported.
    failure: Option<Error>,
}

/// The progress of a process, by its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Starts,
    /// The process can take the place of another one.
    IsReady,
    IsUp,
    /// The process moves no packets any more; with the next GRE sequence number by interface.
    IsDown(Vec<(String, u32)>),
}

/// An event of an instance.
#[derive(Debug)]
pub(super) enum Event {
    /// An event line of the process: up, down, knobs changed.
    Said(Value),
    /// The process has ended without a request.
    Ended(Error),
}

impl Instance {
    /// Creates an instance without a process.
    pub(super) fn new(spec: InstanceSpec) -> Instance {
        let (is_quiet, is_awaited, is_replaced) = (false, true, false);
        Instance { spec, process: None, again: None, pause: PAUSES[0], is_quiet, is_awaited, is_replaced }
    }

    /// Starts the process; after a failure the next attempt is due after a pause.
    pub(super) fn start(&mut self, options: &[String]) -> Result<(), Error> {
        let assignments = self.spec.knobs();
        self.spawn(&assignments, None, options)
    }

    /// Starts the process as the successor of another one, with that one's ports and with `assignments` for its
    /// knobs.
    pub(super) fn start_as_successor(
        &mut self,
        ports: &Ports,
        assignments: &[(String, String)],
        options: &[String],
    ) -> Result<(), Error> {
        self.is_quiet = true;
        self.spawn(assignments, Some(ports), options)
    }

    fn spawn(
        &mut self,
        assignments: &[(String, String)],
        ports: Option<&Ports>,
        options: &[String],
    ) -> Result<(), Error> {
        self.again = None;
        let made = self.make(assignments, ports, options);
        if made.is_err() {
            self.put_off();
        }
        made
    }

    /// Schedules a restart after a pause, the next time after a longer one.
    fn put_off(&mut self) {
        self.again = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSES[1]);
    }

    fn make(
        &mut self,
        assignments: &[(String, String)],
        ports: Option<&Ports>,
        options: &[String],
    ) -> Result<(), Error> {
        let failed = |error: &io::Error| {
            Error::system(format!("cannot start {}", self.spec.name), error, "segue doctor").why("no process was made")
        };
        let mut command = Command::new(program());
        command.arg(self.spec.kind.command()).args(["-j", "--supervised", &std::process::id().to_string()]);
        command.args(options);
        if ports.is_some() {
            command.arg("--successor");
        }
        for (name, value) in assignments {
            command.arg(format!("--set={name}={value}"));
        }
        command.args(self.spec.words());
        let (line, stdin) = Line::pair().map_err(|error| failed(&error))?;
        // Signals from the terminal come to this process, which passes on those that are meant for all.
        command.process_group(0).stdin(Stdio::from(stdin)).stdout(Stdio::piped());
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            command.env_remove(name);
        }
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        // This process's copy of the far end closes, so that the end of the instance closes the line.
        drop(command);
        let Some(stdout) = child.stdout.take() else {
            return Err(Error::new(Kind::Internal, "a process without standard output", "segue --version -v -j"));
        };
        let (began, state) = (Instant::now(), State::Starts);
        // An instance that fails to take them reports why it ends.
        let _ = ports.map_or(Ok(()), |ports| ports.give(&line));
        self.process = Some(Process { child, stdout, text: Vec::new(), line, state, began, failure: None });
        Ok(())
    }

    /// Returns the ports of the instance, which keeps its own copies.
    pub(super) fn ports(&self) -> Result<Ports, Error> {
        // Their descriptors pass through this process. Where it may not have as many, receiving them fails.
        let _ = sys::raise_open_file_limit(self.spec.members() as u64 + 256);
        // Sockets: one, or one for each source port and each protocol.
        let most = self.spec.members() + SOCKETS;
        let asked =
            |process: &Process| process.line.say(&Record::Ask, None).and_then(|()| Ports::take(&process.line, most));
        let ports = self.process.as_ref().map_or(Err(io::ErrorKind::NotConnected.into()), asked);
        ports.map_err(|error| {
            Error::system(format!("{} does not hand over its ports", self.spec.name), &error, "segue doctor")
                .why("they are wanted for the one that is to take its place")
        })
    }

    /// Tells a successor that is ready to begin, with the next sequence numbers.
    pub(super) fn go(&self, sequences: &[(String, u32)]) {
        let say = |record: &Record| self.process.as_ref().map(|process| process.line.say(record, None));
        // A process that does not receive it has ended, which its standard output shows.
        sequences.iter().for_each(|(name, next)| drop(say(&Record::Sequence(name.clone(), *next))));
        drop(say(&Record::Go));
    }

    /// Returns whether the instance is up, so that packets can pass.
    pub(super) fn is_up(&self) -> bool {
        self.state() == Some(&State::IsUp)
    }

    /// Returns the progress of the process, if there is one.
    pub(super) fn state(&self) -> Option<&State> {
        self.process.as_ref().map(|process| &process.state)
    }

    /// Returns whether the instance has a process.
    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Returns the descriptor that becomes readable on an event or on the end of the process.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|process| process.stdout.as_fd())
    }

    /// Sends a signal to the process.
    pub(super) fn signal(&self, number: i32) {
        if let Some(process) = &self.process {
            let _ = sys::kill(process.child.id() as sys::Pid, number);
        }
    }

    /// Reads events; [`Instance::fd`] must be readable.
    pub(super) fn read(&mut self) -> Vec<Event> {
        let Some(process) = &mut self.process else { return Vec::new() };
        let mut events = Vec::new();
        let mut bytes = [0; 65_536];
        let len = match process.stdout.read(&mut bytes) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return events,
            Err(_) => 0,
        };
        process.text.extend_from_slice(&bytes[..len]);
        while let Some(end) = process.text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = process.text.drain(..=end).collect();
            let Ok(value) = serde_json::from_slice::<Value>(&line) else { continue };
            if let Some(error) = value.get("error") {
                let reported = Failure::deserialize(error).unwrap_or_default();
                process.failure = Some(failure(&self.spec.name, reported));
                continue;
            }
            match value["event"].as_str() {
                Some("successor") => process.state = State::IsReady,
                Some("up") => process.state = State::IsUp,
                Some("down") => process.state = State::IsDown(sequences(&value)),
                _ => {}
            }
            events.push(Event::Said(value));
        }
        if process.text.len() > LINE_LEN {
            process.text.clear();
        }
        // The standard output is closed by all its users: the process has ended, or is about to.
        if len == 0 {
            events.push(Event::Ended(self.ended()));
        }
        events
    }

    fn ended(&mut self) -> Error {
        let name = self.spec.name.clone();
        let Some(mut process) = self.process.take() else {
            return Error::new(Kind::System, format!("{name} has ended"), "segue run");
        };
        let status = process.child.wait();
        if process.began.elapsed() > WELL {
            self.pause = PAUSES[0];
        }
        self.put_off();
        process.failure.take().unwrap_or_else(|| {
            let how = status.map_or("in an unknown way".to_owned(), |status: ExitStatus| status.to_string());
            Error::new(Kind::System, format!("{name} has ended ({how})"), "its own messages stand above")
                .why("its process ended though nobody asked for it")
        })
    }

    /// Requests the end of the instance and waits for it; kills the process after `patience`.
    pub(super) fn stop(&mut self, patience: Duration, each: &mut dyn FnMut(Value)) {
        self.again = None;
        self.signal(libc::SIGTERM);
        let until = Instant::now() + patience;
        while let Some(process) = &self.process {
            let left = until.saturating_duration_since(Instant::now());
            let fds = [(process.stdout.as_fd(), sys::Want::Read)];
            let is_ready = sys::poll(&fds, left.min(Duration::from_millis(500))).is_ok_and(|ready| ready[0]);
            if is_ready {
                for event in self.read() {
                    match event {
                        Event::Said(value) => each(value),
                        Event::Ended(_) => {}
                    }
                }
            } else if left.is_zero() {
                self.signal(libc::SIGKILL);
                if let Some(mut process) = self.process.take() {
                    let _ = process.child.wait();
                }
            }
        }
        self.again = None;
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

/// Returns the sequence numbers of a down event.
fn sequences(value: &Value) -> Vec<(String, u32)> {
    let numbers = value["sequences"].as_object().into_iter().flatten();
    numbers.filter_map(|(name, next)| Some((name.clone(), u32::try_from(next.as_u64()?).ok()?))).collect()
}

/// Returns the path of this program, also after its file was replaced by a newer one.
fn program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        _ => PathBuf::from("/proc/self/exe"),
    }
}

/// Returns the failure that an instance reported.
fn failure(name: &str, failure: Failure) -> Error {
    let Failure { message, why, hint, os_error, .. } = failure;
    let message = if message.is_empty() { "failed".to_owned() } else { message };
    // An instance names itself in some of its messages.
    let message = if message.starts_with(&format!("{name} ")) { message } else { format!("{name}: {message}") };
    Error { why, os_error, ..Error::new(Kind::System, message, hint) }
}
