//! One instance: a process of its own, which says on its standard output what happens to it.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::config::Unit;
use crate::error::{Error, Kind};
use crate::out::Out;
use crate::sys;

/// Longest event line that is kept, bytes: room for as many tunnels as one port has at most.
const LINE_LEN: usize = 32 << 20;
/// The first pause before an instance that ended by itself is started again, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// One that ran for so long is well: the next pause is the first again.
const WELL: Duration = Duration::from_secs(60);

/// An instance and the process in which it runs, if it does.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) unit: Unit,
    process: Option<Process>,
    /// When it is started again.
    pub(super) again: Option<Instant>,
    pause: Duration,
}

#[derive(Debug)]
struct Process {
    child: Child,
    stdout: ChildStdout,
    line: Vec<u8>,
    is_up: bool,
    began: Instant,
    /// Why it could not go on, in its own words.
    failure: Option<Error>,
}

/// What an instance had to say.
#[derive(Debug)]
pub(super) enum Event {
    /// A line of its own: up, down, a setting changed.
    Said(Value),
    /// Its process has ended, though nobody asked for it.
    Ended(Error),
}

impl Instance {
    /// One that does not run yet.
    pub(super) fn new(unit: Unit) -> Instance {
        Instance { unit, process: None, again: None, pause: PAUSES[0] }
    }

    /// Starts its process.
    pub(super) fn start(&mut self, out: &Out) -> Result<(), Error> {
        self.again = None;
        let mut command = Command::new(program());
        command.arg(self.unit.kind.command()).args(["-j", "--supervised", &std::process::id().to_string()]);
        if out.verbose {
            command.arg("-v");
        }
        if out.quiet {
            command.arg("-q");
        }
        for (name, value) in self.unit.wishes() {
            command.arg(format!("--set={name}={value}"));
        }
        command.args(self.unit.words());
        // Signals from the terminal come to this process, which passes on what is meant for all.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            command.env_remove(name);
        }
        let mut child = command.spawn().map_err(|error| {
            Error::system(format!("cannot start {}", self.unit.name), &error, "segue doctor").why("no process was made")
        })?;
        let Some(stdout) = child.stdout.take() else {
            return Err(Error::new(Kind::Internal, "a process without standard output", "segue --version -v -j"));
        };
        let began = Instant::now();
        self.process = Some(Process { child, stdout, line: Vec::new(), is_up: false, began, failure: None });
        Ok(())
    }

    /// Whether packets can pass.
    pub(super) fn is_up(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_up)
    }

    /// Whether it has a process.
    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// What becomes readable when it says something or ends.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|process| process.stdout.as_fd())
    }

    /// Sends a signal.
    pub(super) fn signal(&self, number: i32) {
        if let Some(process) = &self.process {
            let _ = sys::kill(process.child.id() as sys::Pid, number);
        }
    }

    /// Reads what it says; [`Instance::fd`] must be readable.
    pub(super) fn read(&mut self) -> Vec<Event> {
        let Some(process) = &mut self.process else { return Vec::new() };
        let mut events = Vec::new();
        let mut bytes = [0; 65_536];
        let len = match process.stdout.read(&mut bytes) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return events,
            Err(_) => 0,
        };
        process.line.extend_from_slice(&bytes[..len]);
        while let Some(end) = process.line.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = process.line.drain(..=end).collect();
            let Ok(value) = serde_json::from_slice::<Value>(&line) else { continue };
            if let Some(error) = value.get("error") {
                process.failure = Some(failure(&self.unit.name, error));
                continue;
            }
            process.is_up |= value["event"] == "up";
            events.push(Event::Said(value));
        }
        if process.line.len() > LINE_LEN {
            process.line.clear();
        }
        // All of it has closed its standard output: the process has ended, or is about to.
        if len == 0 {
            events.push(Event::Ended(self.ended()));
        }
        events
    }

    fn ended(&mut self) -> Error {
        let name = &self.unit.name;
        let Some(mut process) = self.process.take() else {
            return Error::new(Kind::System, format!("{name} has ended"), "segue run");
        };
        let status = process.child.wait();
        if process.began.elapsed() > WELL {
            self.pause = PAUSES[0];
        }
        self.again = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSES[1]);
        process.failure.take().unwrap_or_else(|| {
            let how = status.map_or("in an unknown way".to_owned(), |status: ExitStatus| status.to_string());
            Error::new(Kind::System, format!("{name} has ended ({how})"), "its own messages stand above")
                .why("its process ended though nobody asked for it")
        })
    }

    /// Asks for its end and waits for it; after `patience`, or when `now` says so, without asking.
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

/// This program, also after its file was replaced by a newer one.
fn program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        _ => PathBuf::from("/proc/self/exe"),
    }
}

/// The failure that an instance reported.
fn failure(name: &str, error: &Value) -> Error {
    let text = |key: &str| error[key].as_str().map(str::to_owned);
    let message = text("message").unwrap_or_else(|| "failed".to_owned());
    let mut made = Error::new(Kind::System, format!("{name}: {message}"), text("hint").unwrap_or_default());
    made.why = text("why");
    made.os_error = error["os_error"].as_i64().and_then(|number| i32::try_from(number).ok());
    made
}
