//! One supervised instance: a child process that reports events on its standard output.

mod failure;
mod running;

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use segue_control::error::{Error, Kind, printable_line};
use segue_control::place;
use segue_host::{process, sys};

pub(super) use self::failure::{START, late};
use self::failure::{failure, lingering};
pub(super) use self::running::State;
use self::running::{GRACE, PERIOD, Process};
use super::handle::{Handle, KeptProcess};
use super::lookup::Lookup;
use super::notify::Notify;
use super::placeholder::{self, Placeholder};
use super::said::Said;
use super::spec::InstanceSpec;
use super::watch::{Watch, stalled};
use crate::control_server::has_taken_name;
use crate::fault;
use crate::handover::{self, Line, Ports, Record};

/// Longest event line in bytes, for an instance and again for each of its tunnels. The longest is the down event, with
/// all counters.
const LINE_LEN: usize = 64 << 10;
/// Longest time until an instance has ended, after which it is killed.
pub(super) const STOP: Duration = Duration::from_secs(10);
/// Additional time to end per interface: the kernel may remove them one by one.
pub(super) const STOP_EACH: Duration = Duration::from_millis(60);
/// Largest output of an instance that is read within a [`PERIOD`], in lines and in bytes: for an instance, and again
/// for each of its tunnels. What it writes beyond that waits in the pipe, and takes no processor time of the service.
const OUTPUT: [[usize; 2]; 2] = [[1024, LINE_LEN], [16, 8 << 10]];
/// Largest number of reads of what a killed process has left in its pipe, which holds at most 1 MiB (pipe(7)).
const LAST_READS: usize = 16;
/// Interval at which the end of an instance that is silent is looked for, at most.
const STOP_TICK: Duration = Duration::from_millis(500);
/// Longest explanation of a line that is no event, characters.
const WHY_LEN: usize = 200;
/// First and longest pause before the restart of an instance that ends repeatedly.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Longest pause before another attempt to start an instance, if few fail to start: the cause may be gone at any time.
const PAUSE_FEW: Duration = Duration::from_secs(2);
/// The number of failing instances up to which [`PAUSE_FEW`] holds; twice as many wait twice as long. An attempt costs
/// some milliseconds.
const FEW: usize = 16;
/// Uptime after which the pauses between restarts start again at the shortest one.
const WELL: Duration = Duration::from_secs(60);
/// Largest number of faults within a time after which an instance that was up is still restarted at once.
const AT_ONCE: (usize, Duration) = (3, Duration::from_secs(60));
/// Pause after a failed attempt to read what an instance says.
const READ_PAUSE: Duration = Duration::from_millis(50);
/// Largest number of sockets of an instance, which pass through this process in a handover.
const SOCKETS: usize = 1024;
/// The variables of the environment that an instance gets.
const ENVIRONMENT: &[&str] = &[
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "TERM",
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "RUST_BACKTRACE",
    "container",
    "JOURNAL_STREAM",
    "XDG_RUNTIME_DIR",
    place::VARIABLE,
    place::READERS,
    fault::VARIABLE,
    "SEGUE_SIMD",
];

/// A supervised instance, with its process if one runs.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) spec: InstanceSpec,
    process: Option<Process>,
    /// The time of the next restart.
    pub(super) again: Option<Instant>,
    pause: Duration,
    /// The longest pause after a failed start.
    longest: Duration,
    /// The times of its latest faults.
    faults: VecDeque<Instant>,
    /// The lookup of the names of remotes, until its answers are used.
    pub(super) lookup: Option<Lookup>,
    /// The reason for which the instance does not run, and since when.
    absence: Option<(SystemTime, Error)>,
    /// Whether the last fault differs from the preceding one.
    pub(super) is_new_fault: bool,
    /// The server of the control socket while the instance has no process that is up.
    placeholder: Option<Placeholder>,
    /// Whether that socket could not be opened: clients do not find the instance, and hear of it from the service.
    pub(super) is_hidden: bool,
    /// Whether the instance takes part in a handover, so that its start and its end are not reported.
    pub(super) is_quiet: bool,
    /// Whether a caller waits for the instance and reports a failed start; otherwise a failed start is reported like
    /// the end of an instance that was up.
    pub(super) is_awaited: bool,
    /// Whether another instance is about to replace this one, even if this one ends earlier.
    pub(super) is_replaced: bool,
    /// Whether the next start leaves out the file of peers, since the tunnel is given the table that it had.
    pub(super) gets_table: bool,
    /// Knobs that a reload could not set, or of which it is not known whether it did.
    pub(super) unset: BTreeSet<String>,
    /// Whether the control socket of the process does not have the name of the instance yet.
    is_unnamed: bool,
}

impl Instance {
    /// Creates an instance without a process.
    pub(super) fn new(spec: InstanceSpec) -> Instance {
        let (is_quiet, is_awaited, is_replaced, gets_table) = (false, true, false, false);
        Instance {
            spec,
            process: None,
            again: None,
            pause: PAUSES[0],
            longest: PAUSE_FEW,
            faults: VecDeque::new(),
            lookup: None,
            absence: None,
            is_new_fault: true,
            placeholder: None,
            is_hidden: false,
            is_quiet,
            is_awaited,
            is_replaced,
            gets_table,
            unset: BTreeSet::new(),
            is_unnamed: false,
        }
    }

    /// Returns the instance of a process that the preceding program of this service started; `None` if its descriptors
    /// are missing.
    pub(super) fn of_kept(spec: InstanceSpec, kept: KeptProcess) -> Option<Instance> {
        let stdout = ChildStdout::from(process::take_inherited(kept.stdout)?);
        let line = Line::of(process::take_inherited(kept.line)?);
        let state = if kept.is_up { State::IsUp } else { State::Starts };
        let child = Handle::Kept { pid: kept.pid, status: None };
        let process = Process { text: kept.text, state, ..Process::new(child, stdout, line) };
        let mut instance = Instance::new(spec);
        (instance.process, instance.is_awaited) = (Some(process), false);
        Some(instance)
    }

    /// Describes the process, with its descriptors, so that it can be kept over a change of the service's program.
    pub(super) fn kept(&self) -> Option<(KeptProcess, [BorrowedFd<'_>; 2])> {
        let process = self.process.as_ref()?;
        let (line, stdout) = (process.line.as_fd(), process.stdout.as_fd());
        let kept = KeptProcess {
            pid: process.child.id().unsigned_abs(),
            line: line.as_raw_fd(),
            stdout: stdout.as_raw_fd(),
            text: process.text.clone(),
            is_up: process.state == State::IsUp,
        };
        Some((kept, [line, stdout]))
    }

    /// Starts the process; after a failure the next attempt is due after a pause.
    pub(super) fn start(&mut self, options: &[String]) -> Result<(), Error> {
        let assignments = self.spec.knobs();
        self.spawn(&assignments, None, options)
    }

    /// Starts the process as the successor of another one, with that process's ports and with `assignments` for its
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
        // What answers in its place stays until the process is up, except where another process has the name.
        if ports.is_some() {
            self.stand_down();
        }
        let made = self.make(assignments, ports, options);
        if let Err(error) = &made {
            self.put_off(false, error);
        }
        made
    }

    /// Sets the longest pause according to the number of instances that fail to start, to spread their attempts.
    pub(super) fn is_one_of(&mut self, absent: usize) {
        let times = u32::try_from(absent.div_ceil(FEW)).unwrap_or(u32::MAX).max(1);
        self.longest = PAUSE_FEW.saturating_mul(times).min(PAUSES[1]);
    }

    /// Schedules a restart: at once where the instance was up and had few recent faults, otherwise after a pause that
    /// grows with each failure.
    fn put_off(&mut self, was_up: bool, error: &Error) {
        let now = Instant::now();
        let (most, span) = AT_ONCE;
        self.faults.retain(|at| now.duration_since(*at) < span);
        self.faults.push_back(now);
        if was_up && self.faults.len() <= most {
            self.again = Some(now);
        } else {
            let longest = if was_up { PAUSES[1] } else { self.longest };
            self.again = Some(now + self.pause.min(longest));
            self.pause = (self.pause * 2).min(PAUSES[1]);
        }
        self.is_new_fault = self.absence.as_ref().is_none_or(|(_, known)| known.message != error.message);
        self.explain(error);
    }

    /// Records an error that keeps the instance from being started now.
    pub(super) fn refuse(&mut self, error: &Error) {
        self.put_off(false, error);
    }

    /// Records another reason for which the instance does not run; the next attempt is due as before.
    pub(super) fn explain(&mut self, error: &Error) {
        let since = self.absence.take().map_or_else(SystemTime::now, |(since, _)| since);
        self.absence = Some((since, error.clone()));
    }

    /// Returns the reason for which the instance does not run.
    pub(super) fn absence(&self) -> Option<&Error> {
        self.absence.as_ref().map(|(_, error)| error)
    }

    /// Serves the control socket while the instance has no process, so that its name and the reason are listed;
    /// `has_room` says whether descriptors are left for another socket.
    pub(super) fn serve_absent_state(&mut self, has_room: bool) {
        let is_soon = self.again.is_none_or(|again| again.saturating_duration_since(Instant::now()) < GRACE / 4);
        let Some((since, error)) = self.absence.as_ref().filter(|_| !self.runs() && !is_soon) else { return };
        let state = placeholder::state(&self.spec, *since, error);
        match &self.placeholder {
            Some(placeholder) => placeholder.show(state),
            None => {
                self.placeholder = has_room.then(|| Placeholder::open(state)).flatten();
                self.is_hidden = self.placeholder.is_none();
            }
        }
    }

    /// Returns whether the control socket is served here.
    pub(super) fn has_placeholder(&self) -> bool {
        self.placeholder.is_some()
    }

    /// Hands the instance's name over to its running process, and closes the control socket here.
    fn give_name(&mut self) {
        // Without another socket the process has had the name from its start. A failure is tried again.
        self.is_unnamed = !has_taken_name(&self.spec.name);
        self.stand_down();
    }

    /// Closes the control socket, for a process of the instance.
    pub(super) fn stand_down(&mut self) {
        self.is_hidden = false;
        self.placeholder.take().into_iter().for_each(Placeholder::close);
    }

    /// Returns the time until which nothing is read, because the process has said as much as is read within a period.
    fn unread_until(&self) -> Option<Instant> {
        let (since, read) = self.process.as_ref()?.read;
        let until = since + PERIOD;
        let [own, each] = OUTPUT;
        // The tunnels are counted only for one that has said much.
        let is_much = |at: usize| read[at] >= own[at] && read[at] >= own[at] + each[at] * self.spec.members();
        (until > Instant::now() && (is_much(0) || is_much(1))).then_some(until)
    }

    /// Returns the longest time for the end of the instance.
    pub(super) fn patience(&self) -> Duration {
        STOP + STOP_EACH * u32::try_from(self.spec.members()).unwrap_or(u32::MAX)
    }

    /// Returns the time at which this instance needs attention without an event, if there is one.
    pub(super) fn attention(&self) -> Option<Instant> {
        let watch =
            self.process.as_ref().filter(|process| process.is_watched(&self.spec)).map(|process| &process.watch);
        self.due().into_iter().chain(self.unread_until()).chain(watch.map(Watch::due)).min()
    }

    /// Returns the time of the next check of this instance, if its state requires one.
    fn due(&self) -> Option<Instant> {
        let process = self.process.as_ref()?;
        // A successor that was told to begin, and does not, is no instance either.
        let starts = matches!(process.state, State::Starts | State::IsReady) && !self.is_quiet;
        let starts = starts.then(|| process.began + START);
        // One that has said that it is down has to end, whatever it says next.
        let ends = process.down.map(|down| down + self.patience());
        process.died.map(|died| died + GRACE).or_else(|| starts.into_iter().chain(ends).min())
    }

    /// Sends SIGCONT to a stopped process, and kills one that makes no progress, never came up, or is down and does not
    /// end, and the remaining processes of one that ended.
    pub(super) fn tend(&mut self) {
        if self.is_unnamed && !self.is_replaced {
            self.give_name();
        }
        let is_due = self.due().is_some_and(|due| due <= Instant::now());
        let Some(process) = &mut self.process else { return };
        let pid = process.child.id();
        if process::has_stopped_child(pid) {
            let _ = sys::kill(pid, libc::SIGCONT);
        }
        if process.died.is_none() && process.child.has_ended() {
            process.died = Some(Instant::now());
        }
        if process.is_watched(&self.spec)
            && let Some(how) = process.watch.check(pid)
        {
            process.failure.get_or_insert(stalled(&self.spec.name, how));
            process.kill();
        }
        if is_due {
            if process.died.is_none() && process.failure.is_none() {
                let name = &self.spec.name;
                process.failure = Some(if process.down.is_some() { lingering(name) } else { late(name) });
            }
            process.kill();
            process.died = Some(Instant::now());
        }
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
        command.args(self.spec.kind.words()).args(["-j", "--supervised", &std::process::id().to_string()]);
        command.args(options);
        if ports.is_some() {
            command.arg("--successor");
        }
        for (name, value) in assignments {
            command.arg(format!("--set={name}={value}"));
        }
        command.args(match std::mem::take(&mut self.gets_table) {
            true => self.spec.words_without_file(),
            false => self.spec.process_words(),
        });
        let (line, stdin) = Line::pair().map_err(|error| failed(&error))?;
        // Signals from the terminal come to this process, which passes on those that are meant for all.
        command.process_group(0).stdin(Stdio::from(stdin)).stdout(Stdio::piped());
        let kept = ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.env_clear().envs(kept);
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        // This process's copy of the far end closes, so that the end of the instance closes the line.
        drop(command);
        let Some(stdout) = child.stdout.take() else {
            return Err(Error::new(Kind::Internal, "a process without standard output", "segue --version -v -j"));
        };
        // An instance that fails to take them reports why it ends.
        let _ = ports.map_or(Ok(()), |ports| ports.give(&line));
        self.process = Some(Process::new(Handle::Started(child), stdout, line));
        Ok(())
    }

    /// Returns the ports of the instance, which keeps its own copies.
    pub(super) fn ports(&self) -> Result<Ports, Error> {
        // Their descriptors pass through this process. Where it may not have as many, receiving them fails.
        // Sockets: one, or one for each source port and each protocol; all of it for each worker.
        let most = usize::from(self.spec.workers()) * (self.spec.members() + SOCKETS);
        let _ = sys::raise_open_file_limit(most as u64 + 256);
        let asked = |process: &Process| Ports::request(&process.line, most);
        let ports = self.process.as_ref().map_or(Err(io::ErrorKind::NotConnected.into()), asked);
        ports.map_err(|error| {
            Error::system(format!("{} does not hand over its ports", self.spec.name), &error, "segue doctor")
                .why("its successor needs the open sockets and interfaces")
        })
    }

    /// Sends a ready successor the message to begin, with the next sequence numbers.
    ///
    /// # Errors
    /// Where it was not told, and has not ended, which its standard output would show.
    pub(super) fn go(&self, sequences: &[(String, u32)]) -> io::Result<()> {
        let Some(process) = &self.process else { return Ok(()) };
        let say = |record: &Record| match process.line.say_patiently(record) {
            Err(error) if handover::sys::is_passing(&error) => Err(error),
            _ => Ok(()),
        };
        sequences.iter().try_for_each(|(name, next)| say(&Record::Sequence(name.clone(), *next)))?;
        say(&Record::Go)
    }

    /// Returns whether the instance is up, so that packets can pass.
    pub(super) fn is_up(&self) -> bool {
        self.state() == Some(&State::IsUp)
    }

    /// Returns the progress of the process, if there is one.
    pub(super) fn state(&self) -> Option<&State> {
        self.process.as_ref().map(|process| &process.state)
    }

    /// Returns whether the instance continues as that of `spec`, possibly with other knobs.
    pub(super) fn continues_as(&self, spec: &InstanceSpec) -> bool {
        let is_same = self.spec.name == spec.name
            && self.spec.kind == spec.kind
            && self.spec.words() == spec.words()
            && self.spec.remotes() == spec.remotes();
        // An instance that neither comes up nor ends was started with knobs that cannot be changed any more.
        is_same && (!self.runs() || self.is_up() || self.spec.knobs() == spec.knobs())
    }

    /// Returns whether the instance, whose addresses are known, is to be started again at `now`.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.runs() && self.again.is_some_and(|due| due <= now) && self.spec.unresolved.is_none()
    }

    /// Returns whether the instance has a process.
    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Returns whether this is the first process of the instance, which is waited for here.
    pub(super) fn is_process(&self, pid: sys::Pid) -> bool {
        self.process.as_ref().is_some_and(|process| process.child.id() == pid)
    }

    /// Returns the descriptor that becomes readable on an event or on the end of the process; `None` without a process,
    /// and while one that says too much is not read.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        let process = self.process.as_ref().filter(|_| self.unread_until().is_none());
        process.map(|process| process.stdout.as_fd())
    }

    /// Sends a signal to the process.
    pub(super) fn signal(&self, number: i32) {
        if let Some(process) = &self.process {
            let _ = sys::kill(process.child.id(), number);
        }
    }

    /// Kills all processes of the instance, whose end is to be waited for.
    pub(super) fn end_now(&mut self) {
        self.process.iter_mut().for_each(Process::kill);
    }

    /// Reads what the process says, and passes each event to `each`; [`Instance::fd`] must be readable. Returns the
    /// reason once the process has ended.
    pub(super) fn read(&mut self, each: &mut dyn FnMut(&Said<'_>)) -> Option<Error> {
        let process = self.process.as_mut()?;
        let mut bytes = [0; 65_536];
        let len = match process.stdout.read(&mut bytes) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return None,
            // The process may be well, and is not waited for; the next attempt follows at once.
            Err(_) => {
                thread::sleep(READ_PAUSE);
                return None;
            }
        };
        let mut text = std::mem::take(&mut process.text);
        // What was read before has no line end.
        let mut searched = text.len();
        text.extend_from_slice(if process.is_wrong { &[] } else { &bytes[..len] });
        let (mut begin, mut lines, mut wrong) = (0, 0, None);
        while let Some(len) = text[searched..].iter().position(|&byte| byte == b'\n') {
            let line = &text[begin..searched + len];
            begin = searched + len + 1;
            (searched, lines) = (begin, lines + 1);
            match Said::read(line) {
                Ok(Some(said)) => self.hear(said, each),
                // Other text, of a library for example.
                Ok(None) => {}
                Err(error) => {
                    let error: String = error.to_string().chars().take(WHY_LEN).collect();
                    wrong = Some(format!("a line of its output is no event: {}", printable_line(&error)));
                    break;
                }
            }
        }
        text.drain(..begin);
        if wrong.is_none() && text.len() > LINE_LEN.saturating_mul(1 + self.spec.members()) {
            wrong = Some("a line of its output has no end".to_owned());
        }
        if let Some(process) = &mut self.process {
            process.note_read([lines, len]);
            match wrong {
                None => process.text = text,
                // A process that is what it should be has no such line.
                Some(why) => {
                    let what = format!("{} does not answer as an instance does", self.spec.name);
                    let error = Error::new(Kind::Internal, what, "segue --version -v -j").why(why);
                    process.failure.get_or_insert(error);
                    process.is_wrong = true;
                    process.kill();
                }
            }
        }
        // The standard output is closed by all its users: the process has ended, or is about to.
        (len == 0).then(|| self.ended())
    }

    /// Follows an event of the process, and passes it to `each` unless it is a failure.
    fn hear(&mut self, mut said: Said<'_>, each: &mut dyn FnMut(&Said<'_>)) {
        let Some(process) = &mut self.process else { return };
        if let Some(reported) = said.head.error.take() {
            process.failure = Some(failure(&self.spec.name, reported));
            return;
        }
        match said.head.event.as_str() {
            "successor" => process.state = State::IsReady,
            "up" => {
                process.state = State::IsUp;
                (self.absence, self.lookup) = (None, None);
                self.give_name();
            }
            "down" => {
                process.down.get_or_insert_with(Instant::now);
                process.state = State::IsDown(std::mem::take(&mut said.keys.sequences).into_iter().collect());
            }
            _ => {}
        }
        each(&said);
    }

    fn ended(&mut self) -> Error {
        let name = self.spec.name.clone();
        self.is_unnamed = false;
        let Some(mut process) = self.process.take() else {
            return Error::new(Kind::System, format!("{name} has ended"), "segue run");
        };
        let status = process.reap();
        // The last one closes its output before its interfaces.
        process.reap_others();
        if process.began.elapsed() > WELL {
            self.pause = PAUSES[0];
        }
        let was_up = matches!(process.state, State::IsUp | State::IsDown(_));
        let error = process.failure.take().unwrap_or_else(|| {
            let how = status.map_or("in an unknown way".to_owned(), |status: ExitStatus| status.to_string());
            Error::new(Kind::System, format!("{name} has ended ({how})"), "its own messages stand above")
                .why("its process exited unexpectedly")
        });
        self.put_off(was_up, &error);
        error
    }

    /// Requests the end of the instance and waits for it; kills the process after `patience`. Meanwhile the service
    /// manager is told that the service is alive.
    pub(super) fn stop(&mut self, patience: Duration, notify: &mut Notify, each: &mut dyn FnMut(&Said<'_>)) {
        self.again = None;
        self.stand_down();
        self.signal(libc::SIGTERM);
        let until = Instant::now() + patience;
        let tick = notify.watchdog.map_or(STOP_TICK, |often| often.min(STOP_TICK));
        while self.runs() {
            notify.keep_alive();
            let left = until.saturating_duration_since(Instant::now());
            // One that always has something to say has no more time than others.
            if left.is_zero() {
                self.kill(each);
                break;
            }
            let fds: Vec<_> = self.fd().into_iter().map(|fd| (fd, sys::Want::Read)).collect();
            let is_ready = sys::poll(&fds, left.min(tick)).is_ok_and(|ready| ready == [true]);
            if is_ready {
                let _ = self.read(each);
            }
        }
        self.again = None;
    }

    /// Kills the process, and reads what it has said before.
    fn kill(&mut self, each: &mut dyn FnMut(&Said<'_>)) {
        if let Some(process) = &mut self.process {
            process.kill();
        }
        for _ in 0..LAST_READS {
            let Some(process) = &self.process else { return };
            let fds = [(process.stdout.as_fd(), sys::Want::Read)];
            if !sys::poll(&fds, Duration::ZERO).is_ok_and(|ready| ready == [true]) {
                break;
            }
            let _ = self.read(each);
        }
        if let Some(mut process) = self.process.take() {
            let _ = process.child.wait();
            process.reap_others();
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill();
            let _ = process.child.wait();
        }
        self.stand_down();
    }
}

/// Returns the path of this program, even after its file was replaced by a newer one.
fn program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        _ => PathBuf::from("/proc/self/exe"),
    }
}

#[cfg(test)]
mod tests;
