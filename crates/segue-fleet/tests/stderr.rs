//! Tests of the program of the agent, without a tunnel and an etcd: it does not wait for the reader of its stderr, and
//! its state can be read by other users and does not outlive it.

use std::fs::DirBuilder;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use segue_host::sys;
use segue_lab::Host;

/// Longest wait for any expected event.
const PATIENCE: Duration = Duration::from_secs(60);

/// The words of an agent that reaches neither a tunnel, which is the first line of its log, nor an etcd.
const ETCD: &str = "etcd --dev sgf0 --endpoints http://127.0.0.1:1 --public-ip 198.18.0.1 --weak-sandbox";

/// An agent, killed on drop.
struct Agent(Child);

impl Agent {
    /// Ends the agent by a signal.
    fn end(mut self) {
        sys::kill(self.0.id().try_into().unwrap(), libc::SIGTERM).unwrap();
        let status = until("the agent ends", || self.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

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

/// Makes a directory for one test that stands for /run/segue: with any mask only this user writes there.
fn folder(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("segue-fleet-{name}-{}", process::id()));
    DirBuilder::new().mode(0o755).create(&folder).unwrap();
    folder
}

#[test]
fn an_agent_does_not_wait_for_the_reader_of_its_stderr() {
    let folder = folder("stderr");
    let (near, _far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    while matches!((&near).write(&[b'\n'; 4096]), Ok(1..)) {}
    near.set_nonblocking(false).unwrap();
    let agent = Command::new(env!("CARGO_BIN_EXE_segue-fleet"))
        .args(ETCD.split(' '))
        .env("SEGUE_RUNTIME_DIR", &folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(OwnedFd::from(near))
        .spawn();
    let agent = Agent(agent.unwrap());
    let state = folder.join("sgf0.fleet.json");
    until("the agent goes on behind its first line", || {
        fs::read_to_string(&state).ok().filter(|text| text.contains("\"table_error\":\""))
    });
    agent.end();
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn other_users_can_read_the_state_of_agent_and_hooks_whatever_the_mask() {
    let folder = folder("mask");
    let masked = |words: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", "umask 077; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_segue-fleet")]).args(words.split(' '));
        command.env("SEGUE_RUNTIME_DIR", &folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    assert!(masked("hook --dev sgf1 pre").status().unwrap().success());
    let agent = Agent(masked(ETCD).spawn().unwrap());
    let mode = |name: &str| fs::metadata(folder.join(name)).ok().map(|data| data.permissions().mode() & 0o777);
    let state = until("the agent writes its state", || mode("sgf0.fleet.json"));
    let (of_hooks, lock) = (mode("sgf1.fleet.json"), mode("sgf0.fleet.lock"));
    drop(agent);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!((state, of_hooks, lock), (0o644, Some(0o644), Some(0o600)));
}

#[test]
fn no_state_of_an_agent_stays_where_its_directory_is_no_longer_the_one_of_new_files() {
    if let Some(why) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&why);
    }
    let host = Host::new("agent").unwrap();
    let sh = |line: &str| host.run("sh", &["-ec", line]);
    sh("mount -t tmpfs -o mode=755 run /run; mkdir -m 755 /run/segue").unwrap();
    let start = || {
        let mut command = host.command(env!("CARGO_BIN_EXE_segue-fleet"));
        command.args(ETCD.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
        Agent(command.spawn().unwrap())
    };
    let has_state = |folder: &str| sh(&format!("test -e {folder}/sgf0.fleet.json")).is_ok();
    let first = start();
    until("its state is there", || has_state("/run/segue").then_some(()));
    // As by the package, whose service gets the directory.
    if sh("chown 40124 /run/segue").is_err() {
        return segue_lab::skip_this_test("a user namespace has one user");
    }
    first.end();
    assert!(!has_state("/run/segue"), "it is there for ever");
    // That of one that was killed.
    sh("echo '{}' > /run/segue/sgf0.fleet.json").unwrap();
    let second = start();
    until("the new state is there", || has_state("/run/segue-root").then_some(()));
    assert!(!has_state("/run/segue"), "the old one hides it");
    second.end();
    assert!(!has_state("/run/segue-root"));
}
