//! The state of a process that opens devices, or accepts connections, for the one that moves packets. One that has
//! ended cannot be started again alone: its supervisor has given up the rights that this takes, so that the instance is
//! started again as a whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use segue_control::model::Complaint;
use segue_host::memory::SharedNumbers;
use segue_host::sys::Pid;

use crate::heartbeat::user_time_of;

/// The number of rounds of a helper, and whether it is done, in memory shared with the other processes.
#[derive(Clone, Debug)]
pub struct Rounds(Arc<SharedNumbers>);

impl Rounds {
    /// Creates the number, which a process that is forked later shares.
    pub fn new() -> io::Result<Rounds> {
        SharedNumbers::new(2).map(|number| Rounds(Arc::new(number)))
    }

    /// Counts one more round: what the process does in one is bounded.
    pub fn count(&self) {
        self.0[0].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number.
    pub(crate) fn number(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Records that the process is about to end since it has nothing more to do, which is no problem.
    pub fn finish(&self) {
        self.0[1].store(1, Ordering::Relaxed);
    }

    fn is_finished(&self) -> bool {
        self.0[1].load(Ordering::Relaxed) != 0
    }
}

/// A process that opens devices, or accepts connections, for the one that moves packets. Like that one it is a child of
/// the supervisor, which lets it go on where a signal has stopped it, ends it where it loops, and ends the instance of
/// a service where it has ended.
#[derive(Debug)]
pub struct Helper {
    pub(super) pid: Pid,
    /// The task of the process, for messages: `process that opens lan0 again`.
    pub(super) task: String,
    /// Whether the process began its task. One that did not was refused something by the system, which a new start does
    /// not change.
    pub(super) has_begun: bool,
    /// File in `/proc` with the state of the process, if there is one.
    stat: Option<File>,
    rounds: Rounds,
}

impl Helper {
    /// Describes the process `pid`, a child of this one, by its task; `has_begun` is whether it reported that it began,
    /// and `rounds` is what it counts. Opens what it needs; later calls open nothing.
    pub fn new(pid: Pid, task: String, has_begun: bool, rounds: Rounds) -> Helper {
        Helper { pid, task, has_begun, stat: stat_of(pid), rounds }
    }

    /// Returns the problem of a process that a signal has stopped, or that has ended although it was not done.
    /// `is_managed` is whether a service starts the instance again.
    pub fn complaint(&self, is_managed: bool) -> Option<Complaint> {
        let mut bytes = [0; 512];
        let state = match self.stat.as_ref()?.read_at(&mut bytes, 0) {
            Ok(len) => state(bytes.get(..len)?)?,
            // Its parent has waited for it.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => b'Z',
            Err(_) => return None,
        };
        let task = &self.task;
        match state {
            b'T' => {
                let why = format!("a signal stopped the {task}; the supervisor continues it");
                Some(complaint("process_stopped", "process stopped", why))
            }
            b'Z' | b'X' if !self.rounds.is_finished() => {
                let is_restarted = is_managed && self.has_begun;
                let then = if is_restarted { "the service starts the instance again" } else { "start segue again" };
                Some(complaint("process_ended", "process ended", format!("the {task} has ended; {then}")))
            }
            _ => None,
        }
    }
}

/// The supervisor's view of a helper.
#[derive(Debug)]
pub(super) struct Watched<'a> {
    pub(super) helper: &'a Helper,
    /// Processor time without a round of a process that was therefore ended.
    pub(super) looped: Option<Duration>,
    stat: Option<File>,
    /// The round at the last look, and the processor time of the process when that round was first seen.
    seen: Option<(u64, Duration)>,
}

impl<'a> Watched<'a> {
    /// Opens what the supervisor needs; later calls open nothing.
    pub(super) fn new(helper: &'a Helper) -> Watched<'a> {
        Watched { helper, looped: None, stat: stat_of(helper.pid), seen: None }
    }

    /// Returns whether the process has just been found to have used processor time of at least `limit` without a round.
    /// Only time outside the kernel counts: a call of it may take long, where a guest's memory is given back for
    /// example, and ends by itself.
    pub(super) fn loops(&mut self, limit: Duration) -> bool {
        let first = self.helper.rounds.number();
        let stat = self.stat.as_ref().filter(|_| self.looped.is_none());
        let Some(now) = stat.and_then(user_time_of) else { return false };
        match self.seen {
            // Time counts that was read twice in the same round.
            Some((same, begin)) if same == first => {
                let used = Some(now.saturating_sub(begin));
                self.looped = used.filter(|used| *used >= limit && self.helper.rounds.number() == first);
            }
            _ => self.seen = Some((first, now)),
        }
        self.looped.is_some()
    }
}

fn stat_of(pid: Pid) -> Option<File> {
    File::open(format!("/proc/{pid}/stat")).ok()
}

/// Returns the problem of a process, with its code.
fn complaint(code: &str, what: &str, why: String) -> Complaint {
    Complaint { what: what.to_owned(), why: Some(why), code: code.to_owned(), ..Complaint::default() }
}

/// Returns the state in a line of `/proc/PID/stat` (proc_pid_stat(5)). The name of the process, in brackets, may hold
/// anything.
fn state(line: &[u8]) -> Option<u8> {
    let behind = line.iter().rposition(|byte| *byte == b')')? + 1;
    line.get(behind..)?.iter().copied().find(|byte| *byte != b' ')
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    use segue_host::sys::kill;

    use super::*;

    #[test]
    fn a_process_is_a_problem_while_a_signal_has_stopped_it() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as Pid;
        let helper = Helper::new(pid, "process that sleeps".to_owned(), true, Rounds::new().unwrap());
        assert_eq!(helper.complaint(true), None);
        for (signal, is_stopped) in [(libc::SIGSTOP, true), (libc::SIGCONT, false), (libc::SIGSTOP, true)] {
            kill(pid, signal).unwrap();
            let begin = Instant::now();
            while helper.complaint(true).is_some() != is_stopped {
                assert!(begin.elapsed() < Duration::from_secs(60), "signal {signal}: {:?}", helper.complaint(true));
                thread::sleep(Duration::from_millis(1));
            }
        }
        let found = helper.complaint(true).unwrap();
        assert_eq!(found.code, "process_stopped");
        assert!(found.why.unwrap().contains("process that sleeps"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(helper.complaint(true).unwrap().code, "process_ended", "its end is no stop");
    }

    #[test]
    fn a_process_that_has_ended_is_a_problem_before_and_after_its_parent_has_waited_for_it() {
        for (has_begun, is_managed, then) in [
            (true, true, "the service starts the instance again"),
            (true, false, "start segue again"),
            (false, true, "start segue again"),
        ] {
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            let (pid, rounds) = (child.id() as Pid, Rounds::new().unwrap());
            let helper = Helper::new(pid, "process that sleeps".to_owned(), has_begun, rounds);
            assert_eq!(helper.complaint(is_managed), None);
            child.kill().unwrap();
            let begin = Instant::now();
            let found = loop {
                if let Some(found) = helper.complaint(is_managed) {
                    break found;
                }
                assert!(begin.elapsed() < Duration::from_secs(60), "its end is not seen");
                thread::sleep(Duration::from_millis(1));
            };
            assert_eq!((found.what.as_str(), found.code.as_str()), ("process ended", "process_ended"));
            assert_eq!(found.why, Some(format!("the process that sleeps has ended; {then}")));
            child.wait().unwrap();
            assert_eq!(helper.complaint(is_managed).map(|found| found.code).as_deref(), Some("process_ended"));
        }
    }

    #[test]
    fn a_process_that_was_done_when_it_ended_is_no_problem() {
        let mut child = Command::new("true").spawn().unwrap();
        let rounds = Rounds::new().unwrap();
        let helper = Helper::new(child.id() as Pid, "process that is done".to_owned(), true, rounds.clone());
        child.wait().unwrap();
        assert_eq!(helper.complaint(true).map(|found| found.code).as_deref(), Some("process_ended"));
        rounds.finish();
        assert_eq!((helper.complaint(true), rounds.number()), (None, 0));
    }

    #[test]
    fn a_process_loops_that_uses_processor_time_without_a_round() {
        const LIMIT: Duration = Duration::from_millis(50);
        const LONG: Duration = Duration::from_secs(60);
        for (script, is_loop) in [("while :; do :; done", true), ("exec sleep 1000", false)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let rounds = Rounds::new().unwrap();
            let helper = Helper::new(child.id() as Pid, "process".to_owned(), true, rounds.clone());
            let mut watched = Watched::new(&helper);
            let time = || user_time_of(helper.stat.as_ref().unwrap()).unwrap();
            let (begin, mut before) = (Instant::now(), time());
            // One that counts rounds may use any time.
            while is_loop && time() < 4 * LIMIT {
                assert!(begin.elapsed() < LONG, "it has no processor");
                rounds.count();
                before = time();
                assert!(!watched.loops(LIMIT));
                thread::sleep(Duration::from_millis(1));
            }
            let (begin, longest) = (Instant::now(), if is_loop { LONG } else { 10 * LIMIT });
            while !watched.loops(LIMIT) && begin.elapsed() < longest {
                thread::sleep(Duration::from_millis(1));
            }
            let most = time() - before;
            assert_eq!(watched.looped.is_some(), is_loop, "{script}");
            assert!(watched.looped.is_none_or(|used| used >= LIMIT && used <= most), "{watched:?} of {most:?}");
            assert!(!watched.loops(LIMIT), "once is enough");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_state_is_read_whatever_the_name_holds() {
        for (line, expected) in [
            ("7 (sleep) T 1 7 7 0 -1", Some(b'T')),
            ("7 (a) T 1) S 1 7 7", Some(b'S')),
            ("7 (a)", None),
            ("7 sleep T", None),
            ("", None),
        ] {
            assert_eq!(state(line.as_bytes()), expected, "{line}");
        }
    }
}
