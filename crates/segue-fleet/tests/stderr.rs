//! Test of the agent's log: the agent does not wait for the reader of its stderr.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use segue_host::sys;

/// Longest wait for any expected event.
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent, killed on drop.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `found` returns something; fails after [`PATIENCE`].
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_agent_does_not_wait_for_the_reader_of_its_stderr() {
    let folder = env::temp_dir().join(format!("segue-fleet-stderr-{}", process::id()));
    fs::create_dir(&folder).unwrap();
    let (near, _far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    while matches!((&near).write(&[b'\n'; 4096]), Ok(1..)) {}
    near.set_nonblocking(false).unwrap();
    // There is neither a tunnel, which is the first line of the log, nor an etcd.
    let agent = Command::new(env!("CARGO_BIN_EXE_segue-fleet"))
        .args("etcd --dev sgf0 --endpoints http://127.0.0.1:1 --public-ip 198.18.0.1 --weak-sandbox".split(' '))
        .env("SEGUE_RUNTIME_DIR", &folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(OwnedFd::from(near))
        .spawn();
    let mut agent = Agent(agent.unwrap());
    let state = folder.join("sgf0.fleet.json");
    until("the agent goes on behind its first line", || {
        fs::read_to_string(&state).ok().filter(|text| text.contains("\"table_error\":\""))
    });
    sys::kill(agent.0.id().try_into().unwrap(), libc::SIGTERM).unwrap();
    let status = until("the agent ends", || agent.0.try_wait().unwrap());
    fs::remove_dir_all(&folder).unwrap();
    assert!(status.success(), "{status}");
}
