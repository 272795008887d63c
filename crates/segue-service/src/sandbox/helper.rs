//! The state of a process that opens devices, or accepts connections, for the one that moves packets.

use std::fs::File;
use std::os::unix::fs::FileExt;

use segue_control::model::Complaint;
use segue_host::sys::Pid;

/// A process that opens devices, or accepts connections, for the one that moves packets. Like that one it is a child of
/// the supervisor, which lets it go on where a signal has stopped it.
#[derive(Debug)]
pub struct Helper {
    pub(super) pid: Pid,
    /// The task of the process, for messages: `process that opens lan0 again`.
    pub(super) task: String,
    /// File in `/proc` with the state of the process, if there is one.
    stat: Option<File>,
}

impl Helper {
    /// Describes the process `pid`, a child of this one, by its task. Opens what it needs; later calls open nothing.
    pub fn new(pid: Pid, task: String) -> Helper {
        Helper { pid, task, stat: File::open(format!("/proc/{pid}/stat")).ok() }
    }

    /// Returns the problem of a process that a signal has stopped.
    pub fn complaint(&self) -> Option<Complaint> {
        let mut bytes = [0; 512];
        let len = self.stat.as_ref()?.read_at(&mut bytes, 0).ok()?;
        (state(bytes.get(..len)?)? == b'T').then(|| Complaint {
            what: "process stopped".to_owned(),
            why: Some(format!("a signal stopped the {}; the supervisor continues it", self.task)),
            code: "process_stopped".to_owned(),
            ..Complaint::default()
        })
    }
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
        let helper = Helper::new(pid, "process that sleeps".to_owned());
        assert_eq!(helper.complaint(), None);
        for (signal, is_stopped) in [(libc::SIGSTOP, true), (libc::SIGCONT, false), (libc::SIGSTOP, true)] {
            kill(pid, signal).unwrap();
            let begin = Instant::now();
            while helper.complaint().is_some() != is_stopped {
                assert!(begin.elapsed() < Duration::from_secs(60), "signal {signal}: {:?}", helper.complaint());
                thread::sleep(Duration::from_millis(1));
            }
        }
        let found = helper.complaint().unwrap();
        assert_eq!(found.code, "process_stopped");
        assert!(found.why.unwrap().contains("process that sleeps"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(helper.complaint(), None, "its end is no stop");
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
