//! The case of wireguard-go, a widely used tunnel in user space. It encrypts; segue does not.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::lane::wait_for_device;
use crate::process::search_path;
use crate::{Family, Ground, Host, LabError, Lane, Peer, Prepared, Process, interrupt, sys, which};

/// Go module of the program. Versions from 2023 on use TUN and UDP offloads.
const MODULE: &str = "golang.zx2c4.com/wireguard";
const VERSION: &str = "v0.0.0-20250521234502-f333402bd9cb";
/// Path of the program `go` in a default Go installation.
const GO: &str = "/usr/local/go/bin/go";
const BUILD: Duration = Duration::from_secs(180);
const PATIENCE: Duration = Duration::from_secs(5);
const PORT: u16 = 51_820;
/// Private keys of the two ends, each one byte repeated 32 times that X25519's clamping leaves unchanged.
const SECRETS: [u8; 2] = [0x40, 0x48];
/// Public keys of [`SECRETS`].
const PUBLICS: [&str; 2] = [
    "d7b5e81d336e578b13b8d706e82d061e3038c96bce66cdcf50d566b96ddbba10",
    "9177b23278cbf0f3d17c36f2acc9b55e9c85f87b220a5386ec370d663e20e337",
];

/// Sets up both ends, and builds the program if Go is installed; otherwise returns the reason why not.
pub(crate) fn prepare(ground: &Ground<'_>) -> Result<Prepared, LabError> {
    let mut lane = Lane { patience: Duration::from_secs(15), ..Lane::plain(ground.net) };
    for (at, end) in [Peer::A, Peer::B].into_iter().enumerate() {
        // Its control socket is in a directory that hosts share, under the device's name.
        let device = format!("wg{:x}{at}", std::process::id());
        let outer = match ground.options.outer {
            Family::V4 => format!("{}:{PORT}", ground.outer(end.other())),
            Family::V6 => format!("[{}]:{PORT}", ground.outer(end.other())),
        };
        let process = match start(ground.host(end), &device, &settings(at, &outer))? {
            Ok(process) => process,
            Err(why) => return Ok(Prepared::Skipped(why)),
        };
        ground.configure(end, &device)?;
        lane.processes.push(process);
    }
    Ok(Prepared::Ready(lane))
}

/// Starts wireguard-go on a new device in `host`, and sends it settings in the protocol of its control socket, which
/// lies under the device's name in a directory that hosts share. Returns why not where there is no such program and
/// none can be built.
pub fn start(host: &Host, device: &str, settings: &str) -> Result<Result<Process, String>, LabError> {
    let program = match program()? {
        Ok(program) => program,
        Err(why) => return Ok(Err(why)),
    };
    let mut command = host.command(&program);
    command.args(["-f", device]).env("LOG_LEVEL", "error");
    let mut process = Process::spawn(command, b"")?;
    wait_for_device(host, device, &mut process)?;
    configure(device, &mut process, settings)?;
    Ok(Ok(process))
}

/// Returns the settings of one end, in the protocol of its control socket.
fn settings(at: usize, outer: &str) -> String {
    let secret = format!("{:02x}", SECRETS[at]).repeat(32);
    format!(
        "set=1\nprivate_key={secret}\nlisten_port={PORT}\npublic_key={}\nendpoint={outer}\n\
         allowed_ip=0.0.0.0/0\nallowed_ip=::/0\n\n",
        PUBLICS[1 - at]
    )
}

fn configure(device: &str, process: &mut Process, settings: &str) -> Result<(), LabError> {
    let path = format!("/var/run/wireguard/{device}.sock");
    let begin = Instant::now();
    let mut stream = loop {
        interrupt::check()?;
        match UnixStream::connect(&path) {
            Ok(stream) => break stream,
            Err(_) if process.ended().is_none() && begin.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return Err(process.failure(&format!("no control socket {path}"))),
        }
    };
    let mut answer = [0; 64];
    let told = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.write_all(settings.as_bytes()))
        .and_then(|()| stream.read(&mut answer));
    let len = told.map_err(|source| LabError::system(format!("configure {device} by {path}"), source))?;
    let answer = String::from_utf8_lossy(&answer[..len]).trim().to_string();
    if answer == "errno=0" { Ok(()) } else { Err(process.failure(&format!("it refused its settings: {answer}"))) }
}

/// Returns the path of the program, built at first use and kept in the user's cache, or the reason why it cannot be
/// built.
fn program() -> Result<Result<PathBuf, String>, LabError> {
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let Some(cache) = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home) else {
        return Ok(Err("there is no HOME to build it in".into()));
    };
    let dir = cache.join("segue").join(format!("wireguard-go-{VERSION}"));
    // `go install` calls it by the last part of the module's name, and moves it there when it is whole.
    let program = dir.join("wireguard");
    if program.exists() {
        return Ok(Ok(program));
    }
    let Some(go) = which("go").or_else(|| which(GO)) else {
        return Ok(Err("there is no go to build it with (apt install golang-go, or https://go.dev/dl)".into()));
    };
    if let Err(error) = fs::create_dir_all(&dir) {
        return Ok(Err(format!("{} cannot be made: {error}", dir.display())));
    }
    let mut command = Command::new(go);
    command.args(["install", &format!("{MODULE}@{VERSION}")]);
    command.env("GOBIN", &dir).env("PATH", search_path()).env("GOFLAGS", "").stdin(Stdio::null());
    sys::prepare_child(&mut command, sys::Place::default());
    let mut build = Process::spawn(command, b"")?;
    if build.wait(BUILD)?.success() {
        return Ok(Ok(program));
    }
    let words = build.last_words();
    Ok(Err(format!("go install failed: {}", words.lines().last().unwrap_or("it said nothing"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_knows_its_own_secret_and_the_other_ones_key() {
        let [a, b] = [settings(0, "198.18.0.2:51820"), settings(1, "198.18.0.1:51820")];
        assert!(a.contains(&format!("private_key={}\n", "40".repeat(32))) && a.contains(PUBLICS[1]), "{a}");
        assert!(b.contains(&format!("private_key={}\n", "48".repeat(32))) && b.contains(PUBLICS[0]), "{b}");
        assert!(a.ends_with("\n\n") && PUBLICS.iter().all(|key| key.len() == 64));
    }
}
