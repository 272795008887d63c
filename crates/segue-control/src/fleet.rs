//! State of a fleet agent, which keeps a tunnel's peers equal to a registry: a file beside the tunnel's control socket,
//! which the agent writes and `segue stat` reads.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use segue_host::sys;
use serde::{Deserialize, Serialize};

use crate::{json, place};

/// Longest time between two writes of an agent's state, seconds.
pub const ALIVE: u64 = 15;
/// Time without a write after which an agent does not go on, seconds: a call of its tunnel takes up to half of it.
const SILENCE: u64 = 90;
/// Name of the schema of the agent's document.
pub const SCHEMA: &str = "segue.fleet/1";
/// The kind of the registry in the state of flanneld's hooks.
pub const HOOK: &str = "hook";
/// The suffix of the file name, after the name of the tunnel.
pub const ENDING: &str = ".fleet.json";
/// Longest file that is read, bytes.
const FILE_LEN: u64 = 1 << 20;

/// State of the agent's connection to the registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The agent has no lease yet.
    #[default]
    Starting,
    /// The agent follows the changes of the registry.
    Connected,
    /// The agent does not reach the registry: the table is the last known one.
    Stale,
}

impl Engine {
    /// Returns the state's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Starting => "starting",
            Engine::Connected => "connected",
            Engine::Stale => "stale",
        }
    }
}

/// The last change of the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastEvent {
    /// The time at which the agent received the change, seconds since 1970.
    pub at: u64,
    /// Description of the change, such as `put 198.19.59.0/24`.
    pub what: String,
}

/// The state of an agent. Times are seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FleetState {
    /// The schema id, always [`SCHEMA`].
    pub schema: String,
    /// The interface of the tunnel.
    pub name: String,
    /// The process of the agent.
    pub pid: u32,
    /// The process namespace of the agent, in which it has this number: the inode number of `/proc/self/ns/pid`; 0
    /// where it is not known.
    pub pid_namespace: u64,
    /// The time at which the process started, by which it is told from a later one with its number: ticks of the
    /// kernel's clock since the start of the machine; 0 where it is not known.
    pub started: u64,
    /// The time at which the agent wrote this, as it does at least every 15 seconds; 0 where it does not say it.
    pub seen: u64,
    /// The kind of the registry: `etcd` or `hook`.
    pub engine: String,
    /// The member of the registry that answered last.
    pub endpoint: String,
    /// The state of the connection to the registry.
    pub state: Engine,
    /// The time since which the connection is in this state.
    pub since: u64,
    /// The last failure to reach the registry or to renew the lease, while there is one.
    pub error: Option<String>,
    /// The revision of the registry that the table has.
    pub revision: i64,
    /// The network of the fleet.
    pub network: String,
    /// The subnet of this host.
    pub subnet: String,
    /// The address at which other hosts reach this one.
    pub address: String,
    /// Name of the backend: `vxlan` or `udp`.
    pub backend: String,
    /// The time to live of this host's lease, seconds; 0 for a reservation.
    pub ttl: u64,
    /// The time at which this host's lease was renewed.
    pub renewed: Option<u64>,
    /// The time since which the registry has no lease of this host and takes none, while that lasts.
    pub lease_gone: Option<u64>,
    /// Number of peers in the tunnel's table.
    pub peers: usize,
    /// Generation of the tunnel's table as set by the agent.
    pub generation: u64,
    /// The last failure of the tunnel to take the table, while there is one.
    pub table_error: Option<String>,
    /// The time since which the tunnel has not taken the table, while it does not.
    pub table_failed: Option<u64>,
    /// The last failure to write the file `subnet.env`, while there is one.
    pub file_error: Option<String>,
    /// The last change of the registry.
    pub last_event: Option<LastEvent>,
    /// The number of refused entries by reason.
    pub refused: BTreeMap<String, usize>,
    /// Some of the refused entries: key and reason.
    pub refused_keys: Vec<(String, String)>,
    /// Parts of the fleet's configuration that the agent does not support.
    pub notes: Vec<String>,
}

impl FleetState {
    /// Returns the age of this host's lease.
    pub fn lease_age(&self) -> Option<Duration> {
        self.renewed.map(|renewed| Duration::from_secs(now().saturating_sub(renewed)))
    }

    /// Returns whether the agent's process has ended, also where its parent has not waited for it, or another process
    /// has its number. The hooks of flanneld have none, and that of an agent in another process namespace, such as a
    /// container's, is not seen from here.
    pub fn is_dead(&self) -> bool {
        if self.pid == 0 || self.is_elsewhere() {
            return false;
        }
        if let Some((state, started)) = process(self.pid) {
            return matches!(state, 'Z' | 'X') || self.started != 0 && self.started != started;
        }
        // /proc can hide the processes of other users.
        let is_there = |pid| match sys::kill(pid, 0) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        !sys::Pid::try_from(self.pid).is_ok_and(is_there)
    }

    /// Returns whether a signal has stopped the agent's process; an agent in another process namespace is not seen from
    /// here.
    pub fn is_stopped(&self) -> bool {
        !self.is_elsewhere() && process(self.pid).is_some_and(|(state, _)| state == 'T')
    }

    /// Returns whether the agent has written nothing for so long that it does not go on, wherever its process is; `now`
    /// is the number of seconds since 1970. An agent follows a step of the clock within a second.
    pub fn is_silent(&self, now: u64) -> bool {
        self.seen != 0 && now.saturating_sub(self.seen) > SILENCE
    }

    /// Returns whether the agent's process is in another process namespace than this one.
    fn is_elsewhere(&self) -> bool {
        let here = pid_namespace();
        self.pid_namespace != 0 && here != 0 && self.pid_namespace != here
    }
}

/// Returns the inode number of this process's process namespace, or 0 where it is not known.
pub fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Returns the time at which this process started, as in [`FleetState::started`], or 0 where it is not known.
pub fn started() -> u64 {
    process(std::process::id()).map_or(0, |(_, started)| started)
}

/// Returns the state of a process and the time at which it started, where /proc shows it.
fn process(pid: u32) -> Option<(char, u64)> {
    let (_, state, started) = process_at(&pid.to_string())?;
    // A process namespace can have the /proc of another one, in which numbers are those of other processes.
    let (own, ..) = process_at("self")?;
    (own == std::process::id()).then_some((state, started))
}

/// Returns number, state and time of the start of the process with this name in /proc (proc_pid_stat(5)).
fn process_at(name: &str) -> Option<(u32, char, u64)> {
    let bytes = fs::read(format!("/proc/{name}/stat")).ok()?;
    // The name of the program, in brackets, can have any bytes.
    let line = String::from_utf8_lossy(&bytes);
    let (begin, end) = line.rsplit_once(')')?;
    let pid = begin.split(' ').next()?.parse().ok()?;
    let mut fields = end.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is the third field, and this the 22nd.
    Some((pid, state, fields.nth(18)?.parse().ok()?))
}

/// Returns the number of seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the path of a file of the agent of the tunnel `name`, in the directory of new instances.
pub fn path_for_new(name: &str, ending: &str) -> io::Result<PathBuf> {
    Ok(place::for_new()?.join(format!("{name}{ending}")))
}

/// Opens the lock file `path` of an agent. Only its owner can open it: no other user can hold the lock.
pub fn lock_file(path: &Path) -> io::Result<fs::File> {
    fs::File::options().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Writes the state of the fleet agent to its file, atomically.
pub fn write(state: &FleetState) -> io::Result<()> {
    let path = path_for_new(&state.name, ENDING)?;
    let text = serde_json::to_string(state).map_err(io::Error::other)? + "\n";
    replace(&path, text.as_bytes())
}

/// Replaces a file by one with these bytes, which readers see whole or not at all.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    segue_host::file::replace(path, bytes, None)
}

/// Removes the files of the tunnel `name` with this ending from all directories of this user but `kept`. What an agent
/// has left where new files no longer go, as after the package was installed, would be shown for ever.
pub fn remove(name: &str, ending: &str, kept: Option<&Path>) {
    for folder in place::to_search().into_iter().filter(|folder| Some(folder.as_path()) != kept) {
        let _ = fs::remove_file(folder.join(format!("{name}{ending}")));
    }
}

/// Returns the state of the agent of the tunnel `name`, where there is one that this user can read.
pub fn read(name: &str) -> Option<FleetState> {
    let read = |path: PathBuf| -> Option<FleetState> {
        let mut bytes = Vec::new();
        // The directory may belong to another user: what is there may be a pipe without a writer.
        let file = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        io::Read::read_to_end(&mut io::Read::take(file, FILE_LEN), &mut bytes).ok()?;
        json::read(&bytes).ok()
    };
    if name.contains('/') {
        return None;
    }
    let folders = place::to_search().into_iter().chain(place::of_roots_agents());
    folders.into_iter().find_map(|folder| read(folder.join(format!("{name}{ENDING}"))))
}
