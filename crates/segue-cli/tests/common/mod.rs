//! Helpers that run the built program.
#![allow(dead_code, reason = "each test file uses a part")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// Path of the program under test.
pub(crate) const SEGUE: &str = env!("CARGO_BIN_EXE_segue");

/// Result of one run of the program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }

    /// Parses stdout, which must be one JSON value.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Returns exit status, stdout and stderr of a run as text, with invalid UTF-8 replaced.
pub(crate) fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Makes a command with a defined environment: no colour settings, and its own directory for control sockets.
pub(crate) fn command(program: &str, place: &Place) -> Command {
    let mut command = Command::new(program);
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    command.env("TERM", "xterm").env("SEGUE_RUNTIME_DIR", place.path()).env("SEGUE", SEGUE).stdin(Stdio::null());
    command
}

/// Runs segue with the words of `line`.
pub(crate) fn segue(line: &str) -> Ran {
    let place = Place::new();
    Ran::of(command(SEGUE, &place).args(line.split_whitespace()).output().expect("segue runs"))
}

/// Runs segue with `env` set.
pub(crate) fn segue_with(line: &str, env: &[(&str, &str)]) -> Ran {
    let place = Place::new();
    Ran::of(
        command(SEGUE, &place).args(line.split_whitespace()).envs(env.iter().copied()).output().expect("segue runs"),
    )
}

/// Runs a shell script, in which `$SEGUE` is the program.
pub(crate) fn shell(script: &str) -> Ran {
    let place = Place::new();
    Ran::of(command("sh", &place).args(["-c", script]).output().expect("sh runs"))
}

/// Start of every script in a namespace: the usual mask, and a link to 198.18.0.2 and 2001:db8::2 with an MTU of 1500
/// bytes, up and with its link-local addresses, both of which follow a moment after the commands.
const LINK: &str = "set -u
umask 022
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
ip link set lo up
ip link add eth0 type veth peer name peer0
ip addr add 198.18.0.1/24 dev eth0
ip addr add 2001:db8::1/64 dev eth0 nodad
ip link set eth0 up
ip link set peer0 up
for n in $(seq 500); do
  [ $(ip -o link show up | grep -c 'state UP') = 2 ] && [ $(ip -o -6 addr show scope link | grep -c fe80) = 2 ] && break
  sleep 0.02
done
";

/// Runs a shell script in a network and mount namespace of its own with a link; `None` where none can be made.
#[track_caller]
pub(crate) fn in_namespace(script: &str) -> Option<Ran> {
    in_namespace_at(script, &Place::new())
}

/// Runs a script as [`in_namespace`] does, with this directory for sockets.
#[track_caller]
pub(crate) fn in_namespace_at(script: &str, place: &Place) -> Option<Ran> {
    if let Some(reason) = cannot_unshare() {
        segue_lab::skip_this_test(reason);
        return None;
    }
    // A process namespace of its own: pgrep finds nothing else, and nothing outlives the script. The time limit is for
    // a tunnel that does not end.
    let mut made = command("unshare", place);
    made.args(["--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]);
    made.args(["timeout", "-k", "1", "40", "sh", "-c"]);
    made.arg(format!("{LINK}{script}"));
    let ran = Ran::of(made.output().expect("unshare runs"));
    assert_ne!(ran.code, Some(124), "the script took too long: {ran:?}");
    Some(ran)
}

/// Returns whether network namespaces and TUN devices can be made.
pub(crate) fn can_unshare() -> bool {
    cannot_unshare().is_none()
}

/// Returns why a script cannot run in namespaces of its own with TUN devices, or `None` where it can.
pub(crate) fn cannot_unshare() -> Option<&'static str> {
    let made =
        Command::new("unshare").args(["--net", "--mount", "--pid", "--fork", "true"]).stderr(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        return Some("no network namespace can be made here (run as root)");
    }
    (!Path::new("/dev/net/tun").exists()).then_some("there is no /dev/net/tun")
}

/// A directory of one test, removed on drop.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("segue-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        // With any mask: the program takes no directory for its sockets that others change.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
        Place(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
