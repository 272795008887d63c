//! Child processes that are always ended and collected.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{LabError, interrupt, sys};

/// Time that the drop of a [`Process`] waits for a child to end after SIGTERM.
const GRACE: Duration = Duration::from_millis(1500);
/// Maximum number of bytes kept of each output stream. iperf3's report of 128 streams over an hour stays below it.
const KEPT_LEN: usize = 64 << 20;
const POLL: Duration = Duration::from_millis(5);

/// A child process that is killed and collected when the value is dropped. Its output is read all the time and kept;
/// dropping it sends SIGTERM, then SIGKILL if it does not end. Once it has ended, processes that it left behind in its
/// process group are killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    line: String,
    stdout: Stream,
    stderr: Stream,
    status: Option<ExitStatus>,
}

#[derive(Debug)]
struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts a command, usually one of [`crate::Host::command`], with `input` on its stdin.
    pub fn spawn(mut command: Command, input: &[u8]) -> Result<Process, LabError> {
        let line = command_line(&command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if !input.is_empty() {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|source| not_started(&command, source))?;
        sys::register_group(child.id());
        let stdout = Stream::read(child.stdout.take());
        let stderr = Stream::read(child.stderr.take());
        if let Some(mut stdin) = child.stdin.take() {
            // A child that ends without reading says why on its stderr.
            let _ = stdin.write_all(input);
        }
        Ok(Process { child, line, stdout, stderr, status: None })
    }

    /// Returns the process id, valid while this value lives.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the command line, for messages.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Returns the exit status if the child has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() && sys::has_ended(self.child.id()) {
            self.collect();
        }
        self.status
    }

    /// Waits until the child exits; an error when that takes longer than `longest` or the user interrupts.
    pub fn wait(&mut self, longest: Duration) -> Result<ExitStatus, LabError> {
        let status = self.until(longest, |process| process.ended())?;
        self.stdout.finish();
        self.stderr.finish();
        Ok(status)
    }

    /// Waits until `text` is in the child's stdout; an error when the child ends first.
    pub fn wait_for_line(&mut self, text: &str, longest: Duration) -> Result<(), LabError> {
        let found = self.until(longest, |process| {
            let ended = process.ended();
            if ended.is_some() {
                process.stdout.finish();
            }
            if process.stdout().contains(text) { Some(true) } else { ended.map(|_| false) }
        })?;
        if found { Ok(()) } else { Err(self.failure("ended early")) }
    }

    /// Returns the child's output on stdout so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Returns the length in bytes of the child's output on stdout so far.
    pub fn stdout_len(&self) -> usize {
        lock(&self.stdout.bytes).len()
    }

    /// Returns the child's output on stdout behind its first `len` bytes.
    pub fn stdout_after(&self, len: usize) -> String {
        String::from_utf8_lossy(lock(&self.stdout.bytes).get(len..).unwrap_or_default()).into_owned()
    }

    /// Returns the child's output on stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Returns stderr, or stdout when that is empty, trimmed, for error messages.
    pub fn last_words(&mut self) -> String {
        if self.ended().is_some() {
            self.stdout.finish();
            self.stderr.finish();
        }
        let stderr = self.stderr();
        if stderr.trim().is_empty() { self.stdout().trim().into() } else { stderr.trim().into() }
    }

    /// Sends SIGTERM, and SIGKILL when the child has not ended after `grace`; returns the exit status.
    pub fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        if self.ended().is_some() {
            return self.status;
        }
        self.terminate();
        let begin = Instant::now();
        while self.ended().is_none() && begin.elapsed() < grace {
            thread::sleep(POLL);
        }
        if self.status.is_none() {
            let _ = self.child.kill();
            self.collect();
        }
        self.stdout.finish();
        self.stderr.finish();
        self.status
    }

    /// Sends SIGTERM without waiting, so that several children can exit at the same time.
    pub fn terminate(&mut self) {
        if self.ended().is_none() {
            sys::terminate(self.child.id());
        }
    }

    /// Kills the rest of the process group before the child is collected and its id becomes free, then collects the
    /// child.
    fn collect(&mut self) {
        sys::kill_group(self.child.id());
        sys::forget_group(self.child.id());
        self.status = self.child.wait().ok();
    }

    pub(crate) fn failure(&mut self, why: &str) -> LabError {
        let status = self.ended().map_or_else(|| why.to_string(), |status| status.to_string());
        LabError::Command { command: self.line.clone(), status, output: self.last_words() }
    }

    fn until<T>(&mut self, longest: Duration, mut done: impl FnMut(&mut Self) -> Option<T>) -> Result<T, LabError> {
        let begin = Instant::now();
        loop {
            if let Some(value) = done(self) {
                return Ok(value);
            }
            interrupt::check()?;
            if begin.elapsed() >= longest {
                return Err(self.failure(&format!("not done after {longest:?}")));
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop(GRACE);
    }
}

impl Stream {
    fn read(pipe: Option<impl Read + Send + 'static>) -> Stream {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = pipe.map(|mut pipe| {
            thread::spawn(move || {
                let mut chunk = vec![0; 16 << 10];
                while let Ok(len @ 1..) = pipe.read(&mut chunk) {
                    let mut bytes = lock(&sink);
                    if bytes.len() < KEPT_LEN {
                        bytes.extend_from_slice(&chunk[..len]);
                    }
                }
            })
        });
        Stream { bytes, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.bytes)).into_owned()
    }

    /// Waits until the reader has read all output of the ended child; not for ever, because a grandchild may hold the
    /// pipe open.
    fn finish(&mut self) {
        // Rounds, not time: on a busy machine the reader gets its turn between them.
        let mut rounds = 0..200;
        while let Some(reader) = self.reader.take_if(|_| rounds.next().is_some()) {
            if reader.is_finished() {
                let _ = reader.join();
                return;
            }
            self.reader = Some(reader);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Locks the captured output; a reader that panicked while holding the lock has left whole bytes.
fn lock(bytes: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns `PATH` with the system directories that a normal user's `PATH` lacks; Debian keeps `ethtool` there.
pub(crate) fn search_path() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push("/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

/// Finds a program in the search path of commands in a host; a name with a slash is used as a path.
pub fn which(program: impl AsRef<Path>) -> Option<PathBuf> {
    let program = program.as_ref();
    let runs =
        |path: &PathBuf| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    if program.components().count() > 1 {
        return Some(program.to_path_buf()).filter(runs);
    }
    env::split_paths(&search_path()).map(|dir| dir.join(program)).find(runs)
}

/// Returns an error that names every missing program of the list with its Debian package.
pub(crate) fn require(programs: &[&str]) -> Result<(), LabError> {
    let missing = |program: &&&str| which(program).is_none();
    let missing: Vec<(String, String)> =
        programs.iter().filter(missing).map(|program| (program.to_string(), package(program).to_string())).collect();
    if missing.is_empty() { Ok(()) } else { Err(LabError::MissingPrograms(missing)) }
}

fn package(program: &str) -> &str {
    match program {
        "ip" | "tc" => "iproute2",
        "ping" => "iputils-ping",
        other => other,
    }
}

/// Runs a command until it exits; returns its stdout, or an error with its stderr.
pub(crate) fn checked_output(command: &mut Command) -> Result<String, LabError> {
    let output = command.output().map_err(|source| not_started(command, source))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    Err(LabError::failed(command, output.status, words))
}

fn not_started(command: &Command, source: io::Error) -> LabError {
    let program = command.get_program().to_string_lossy();
    if source.kind() == io::ErrorKind::NotFound && !program.contains('/') {
        return LabError::MissingPrograms(vec![(program.to_string(), package(&program).to_string())]);
    }
    LabError::system(format!("start {program}"), source)
}

/// Returns the command line as typed in a shell.
pub(crate) fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command.process_group(0);
        sys::prepare_child(&mut command, sys::Place::default());
        command
    }

    fn is_gone(pid: &str) -> bool {
        // A killed process that was not collected yet is gone too.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
    }

    #[test]
    fn what_a_child_started_goes_with_it() {
        for script in ["sleep 60 & echo $!; wait", "sleep 60 & echo $!"] {
            let mut process = Process::spawn(shell(script), b"").unwrap();
            process.wait_for_line("\n", Duration::from_secs(30)).unwrap();
            let grandchild = process.stdout().trim().to_string();
            drop(process);
            let begin = Instant::now();
            while !is_gone(&grandchild) {
                assert!(begin.elapsed() < Duration::from_secs(30), "{grandchild} of `{script}` lives on");
                thread::sleep(POLL);
            }
        }
    }

    #[test]
    fn output_and_status_of_a_child_are_kept() {
        let mut process = Process::spawn(shell("cat; echo bad >&2; exit 3"), b"good\n").unwrap();
        assert_eq!(process.wait(Duration::from_secs(30)).unwrap().code(), Some(3));
        assert_eq!((process.stdout().as_str(), process.last_words().as_str()), ("good\n", "bad"));
    }

    #[test]
    fn a_child_that_ignores_sigterm_is_killed() {
        let mut process = Process::spawn(shell("trap '' TERM; echo ready; while :; do sleep 0.05; done"), b"").unwrap();
        process.wait_for_line("ready", Duration::from_secs(30)).unwrap();
        let path = format!("/proc/{}", process.id());
        assert!(Path::new(&path).exists());
        assert!(!process.stop(Duration::from_millis(100)).unwrap().success());
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let process = thread::spawn(|| Process::spawn(shell("exec sleep 60"), b"").unwrap()).join().unwrap();
        let mut process = process;
        let status = process.wait(Duration::from_secs(30)).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    }

    #[test]
    fn waiting_has_an_end_and_says_so() {
        let mut process = Process::spawn(shell("exec sleep 60"), b"").unwrap();
        let error = process.wait(Duration::from_millis(30)).unwrap_err();
        assert!(error.to_string().contains("not done after 30ms"), "{error}");
    }

    #[test]
    fn a_missing_program_is_found_out_before_anything_starts() {
        let error = require(&["ls", "no-such-program"]).unwrap_err();
        assert_eq!(error.to_string(), "not installed: no-such-program\ntry:  apt install no-such-program");
        assert!(which("sh").is_some());
        assert!(which("/etc/passwd").is_none());
    }
}
