//! The process of an instance: started by this service, or inherited from its preceding program.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use segue_host::process;
use segue_host::sys::{self, Ended, Pid};
use serde::{Deserialize, Serialize};

/// A handle of a child process.
#[derive(Debug)]
pub(super) enum Handle {
    /// A process that was started by this program.
    Started(Child),
    /// A process that the preceding program of this service started.
    Kept {
        /// Process id of the child.
        pid: u32,
        /// The exit status, once it was read.
        status: Option<ExitStatus>,
    },
}

impl Handle {
    /// Returns the process id, which is that of the group too.
    pub(super) fn id(&self) -> Pid {
        match self {
            Handle::Started(child) => child.id() as Pid,
            Handle::Kept { pid, .. } => *pid as Pid,
        }
    }

    /// Returns whether the process has ended. Until [`Handle::wait`] its number remains that of its group.
    pub(super) fn has_ended(&self) -> bool {
        process::has_ended_child(self.id())
    }

    /// Waits for the end of the process.
    pub(super) fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Handle::Started(child) => child.wait(),
            Handle::Kept { status: Some(status), .. } => Ok(*status),
            Handle::Kept { pid, status } => {
                let ended = sys::wait(*pid as Pid, true)?.ok_or(io::ErrorKind::NotFound)?;
                Ok(*status.insert(status_of(ended)))
            }
        }
    }
}

/// Returns the exit status in the encoding of wait(2).
fn status_of(ended: Ended) -> ExitStatus {
    ExitStatus::from_raw(match ended {
        Ended::Exit(status) => status << 8,
        Ended::Signal(number) => number,
    })
}

/// A process that continues while its supervisor changes its program, with the numbers of its descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptProcess {
    /// Process id of the child.
    pub(super) pid: u32,
    /// The line to the standard input of the process.
    pub(super) line: RawFd,
    /// The standard output of the process.
    pub(super) stdout: RawFd,
    /// Output that was read and lacks a line end so far.
    pub(super) text: Vec<u8>,
    /// Whether the process is up.
    pub(super) is_up: bool,
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_end_of_a_kept_process_is_told_as_that_of_a_started_one() {
        for (script, text) in [("exit 3", "exit status: 3"), ("kill -TERM $$", "signal: 15 (SIGTERM)")] {
            let started = || Command::new("sh").args(["-c", script]).spawn().unwrap();
            for mut handle in [Handle::Started(started()), Handle::Kept { pid: started().id(), status: None }] {
                assert_eq!(handle.wait().unwrap().to_string(), text, "{handle:?}");
                assert!(handle.has_ended());
                assert_eq!(handle.wait().unwrap().to_string(), text, "{handle:?}, once more");
            }
        }
        let mut waits = Command::new("sleep").arg("1000").spawn().unwrap();
        let kept = Handle::Kept { pid: waits.id(), status: None };
        assert!(!kept.has_ended());
        waits.kill().unwrap();
        while !kept.has_ended() {
            std::thread::yield_now();
        }
        // Its end can still be read.
        assert!(!waits.wait().unwrap().success() && kept.has_ended());
    }
}
