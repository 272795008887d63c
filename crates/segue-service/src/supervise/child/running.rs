//! The first process of an instance, and its progress by what it says.

use std::io;
use std::process::{ChildStdout, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use segue_control::error::Error;
use segue_host::{process, sys};

use crate::handover::Line;
use crate::supervise::handle::Handle;
use crate::supervise::spec::{InstanceSpec, Kind as InstanceKind};
use crate::supervise::watch::Watch;

/// Period in which the output of a process is limited.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// Time for the other processes of an instance to end by themselves after the first one, and for the first one after
/// the end of its output.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// Interval at which the end of a process is looked for.
const END_PAUSE: Duration = Duration::from_millis(2);

/// The first process of an instance, as its output shows it.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) child: Handle,
    pub(super) stdout: ChildStdout,
    /// Incomplete last line of the process's output.
    pub(super) text: Vec<u8>,
    /// Start of the present [`PERIOD`], and the lines and bytes that were read in it.
    pub(super) read: (Instant, [usize; 2]),
    /// The line to its standard input.
    pub(super) line: Line,
    pub(super) state: State,
    pub(super) began: Instant,
    /// The failure that the process reported.
    pub(super) failure: Option<Error>,
    /// Whether it was killed because of a line, and what it says no longer counts.
    pub(super) is_wrong: bool,
    /// Time at which the process ended while another process of the instance still had its output open.
    pub(super) died: Option<Instant>,
    /// Time at which the process first said that it is down: it is about to end.
    pub(super) down: Option<Instant>,
    pub(super) watch: Watch,
}

/// The progress of a process, by its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::supervise) enum State {
    Starts,
    /// The process is ready to replace another one.
    IsReady,
    IsUp,
    /// The process has stopped moving packets; the next GRE sequence numbers are listed by interface.
    IsDown(Vec<(String, u32)>),
}

impl Process {
    pub(super) fn new(child: Handle, stdout: ChildStdout, line: Line) -> Process {
        let (now, state) = (Instant::now(), State::Starts);
        Process {
            child,
            stdout,
            text: Vec::new(),
            read: (now, [0; 2]),
            line,
            state,
            began: now,
            failure: None,
            is_wrong: false,
            died: None,
            down: None,
            watch: Watch::new(),
        }
    }

    /// Counts what was read, in lines and bytes.
    pub(super) fn note_read(&mut self, more: [usize; 2]) {
        let (since, read) = &mut self.read;
        if since.elapsed() >= PERIOD {
            (*since, *read) = (Instant::now(), [0; 2]);
        }
        read.iter_mut().zip(more).for_each(|(read, more)| *read += more);
    }

    /// Returns whether the process is a supervisor that has nothing to do but to wait.
    pub(super) fn is_watched(&self, spec: &InstanceSpec) -> bool {
        let is_supervisor = spec.kind != InstanceKind::Metrics;
        is_supervisor && self.died.is_none() && matches!(self.state, State::IsUp | State::IsDown(_))
    }

    /// Returns the status of a process that has closed its output. One that goes on without is killed: nothing would
    /// be heard of it any more.
    pub(super) fn reap(&mut self) -> io::Result<ExitStatus> {
        let until = Instant::now() + GRACE;
        while !self.child.has_ended() && Instant::now() < until {
            thread::sleep(END_PAUSE);
        }
        if !self.child.has_ended() {
            self.kill();
        }
        self.child.wait()
    }

    /// Waits for the other processes of the instance, once [`Process::reap`] has waited for the first one. Those that
    /// go on without its output are killed, as nothing would end them any more.
    pub(super) fn reap_others(&self) {
        let group = self.child.id();
        if !process::wait_for_group(group, GRACE) {
            // The number is that of no other group as long as one of them is there.
            let _ = process::kill_group(group, libc::SIGKILL);
            process::wait_for_group(group, GRACE);
        }
    }

    /// Kills all processes of the instance: they are a group.
    pub(super) fn kill(&mut self) {
        let _ = process::kill_group(self.child.id(), libc::SIGKILL);
        if !self.child.has_ended() {
            let _ = sys::kill(self.child.id(), libc::SIGKILL);
        }
    }
}
