//! Helpers that start `segue lan78xx` on a host and wait for its events.

use std::io::PipeWriter;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Host, Process};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
pub(crate) fn until(what: &str, process: &mut Process, done: impl Fn(&Process) -> bool) {
    let begin = Instant::now();
    while !done(process) {
        let ended = process.ended().is_some();
        assert!(!ended && begin.elapsed() < PATIENCE, "no {what}: {}", process.last_words());
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn start(host: &Host, program: &Path, words: &[&str]) -> (Process, PipeWriter) {
    let (stdin, commands) = std::io::pipe().unwrap();
    let mut command = host.command(program);
    command.arg("lan78xx").args(words).stdin(stdin);
    (Process::spawn(command, b"").unwrap(), commands)
}

pub(crate) fn carrier(host: &Host, device: &str) -> bool {
    host.run("ip", &["-o", "link", "show", "dev", device]).is_ok_and(|line| line.contains("LOWER_UP"))
}
