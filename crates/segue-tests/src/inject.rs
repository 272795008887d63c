//! System calls of a running process that fail with a chosen error instead of being executed: strace(1) is the shim, so
//! that the program under test is the released one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Process;

/// Longest wait for strace to attach or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that runs under strace. Dropping it lets the process continue by itself.
#[derive(Debug)]
pub struct Traced {
    strace: Process,
    log: PathBuf,
}

/// The system calls of a process while it was traced.
#[derive(Debug, Default)]
pub struct Calls {
    /// Numbers of calls by name, including those that were not executed.
    pub made: BTreeMap<String, u64>,
    /// Number of calls that failed by injection.
    pub injected: u64,
}

impl Calls {
    /// Returns the number of all calls.
    pub fn total(&self) -> u64 {
        self.made.values().sum()
    }
}

impl Traced {
    /// Attaches strace to all threads of a process. With `fault`, the calls of these names, with commas between them,
    /// are not made: the rest says with which result they return, in strace's words, such as `error=ENOMEM`. `log` is a
    /// file for what strace writes.
    ///
    /// # Panics
    /// Where strace does not start, or may not trace.
    #[track_caller]
    pub fn attach(pid: u32, fault: Option<(&str, &str)>, log: &Path) -> Traced {
        let mut command = Command::new("strace");
        command.args(["-f", "-e", "signal=none", "-o"]).arg(log).args(["-p", &pid.to_string()]);
        if let Some((calls, result)) = fault {
            command.arg("-e").arg(format!("inject={calls}:{result}"));
        }
        let mut strace = Process::spawn(command, b"").expect("strace starts");
        let begin = Instant::now();
        while !strace.stderr().contains("attached") {
            assert!(strace.ended().is_none() && begin.elapsed() < PATIENCE, "strace: {}", strace.last_words());
            thread::sleep(Duration::from_millis(2));
        }
        Traced { strace, log: log.to_owned() }
    }

    /// Detaches strace, and returns the calls.
    #[track_caller]
    pub fn detach(mut self) -> Calls {
        self.strace.stop(PATIENCE);
        let text = fs::read(&self.log).expect("what strace wrote");
        let mut calls = Calls::default();
        for line in String::from_utf8_lossy(&text).lines() {
            // `PID name(...) = ...`; the end of a call that another thread interrupted begins with `<...`.
            let Some((name, _)) = line.split_once(' ').and_then(|(_, rest)| rest.trim_start().split_once('(')) else {
                continue;
            };
            calls.injected += u64::from(line.ends_with("(INJECTED)"));
            if !name.starts_with('<') {
                *calls.made.entry(name.to_owned()).or_default() += 1;
            }
        }
        calls
    }
}
