//! The state of a process that opens devices, or accepts connections, for the one that moves packets. One that has
//! ended cannot be started again alone: its supervisor has given up the rights that this takes, so that the instance is
//! started again as a whole.

use std::fs::File;
use std::os::unix::fs::FileExt;

use segue_control::model::Complaint;
use segue_host::sys::Pid;

/// A process that opens devices, or accepts connections, for the one that moves packets. Like that one it is a child of
/// the supervisor, which lets it go on where a signal has stopped it, and ends the instance of a service where it has
/// ended.
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
}

impl Helper {
    /// Describes the process `pid`, a child of this one, by its task; `has_begun` is whether it reported that it began.
    /// Opens what it needs; later calls open nothing.
    pub fn new(pid: Pid, task: String, has_begun: bool) -> Helper {
        Helper { pid, task, has_begun, stat: File::open(format!("/proc/{pid}/stat")).ok() }
    }

    /// Returns the problem of a process that a signal has stopped, or that has ended. `is_managed` is whether a service
    /// starts the instance again.
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
            b'Z' | b'X' => {
                let is_restarted = is_managed && self.has_begun;
                let then = if is_restarted { "the service starts the instance again" } else { "start segue again" };
                Some(complaint("process_ended", "process ended", format!("the {task} has ended; {then}")))
            }
            _ => None,
        }
    }
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
        let helper = Helper::new(pid, "process that sleeps".to_owned(), true);
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
            let helper = Helper::new(child.id() as Pid, "process that sleeps".to_owned(), has_begun);
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
