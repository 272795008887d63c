//! The client of the control socket: it finds the sockets of this user, sends one request and reads the answer.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use segue_host::sys::{self, Pid};
use segue_host::{peer, process};

use crate::error::{Error, Kind, printable};
use crate::exchange::{talk, talk_to_all};
use crate::knobs::{Change, Knob};
use crate::mapping::Mapping;
use crate::model::{Instance, PeerTable, Side};
use crate::peers::{self, Changes, Listed, Table};
use crate::place::{self, READERS};
use crate::protocol::{REQUEST_LEN, Request, Response, TABLE_LEN, Topic};
use crate::suggest::nearest;

/// Longest wait for the whole answer of an instance.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(3);

/// Longest wait for the whole answer to a request about a peer table, which takes time to build.
const TABLE_TIME: Duration = Duration::from_secs(30);

/// The reason why a socket took no connection, and the hint for a process that hangs.
pub(crate) const FULL: &str = "too many connections wait at its control socket";
const HANGS: &str = "see what the process does; kill it when it hangs";

/// The result of a query of all instances.
#[derive(Debug, Default)]
pub struct Found {
    /// The instances that answered, sorted by name.
    pub instances: Vec<Instance>,
    /// The failures of instances that are alive and did not answer.
    pub failed: Vec<Error>,
}

/// Requests the state of every instance that this user can see, of all at the same time. A socket without a listener is
/// no failure.
pub fn all() -> Found {
    let mut found = Found::default();
    let sockets = sockets();
    let paths: Vec<&Path> = sockets.iter().map(|(_, path)| path.as_path()).collect();
    let answers = talk_to_all(&paths, &Request::Get(Topic::Stat).line(), ANSWER_TIME);
    for ((name, path), answer) in sockets.iter().zip(answers) {
        match answer.and_then(|answer| Ok(instance(Response::parse(&answer)?)?)) {
            Ok(instance) => found.instances.push(instance),
            Err(error) if is_dead(&error) => {}
            Err(error) => found.failed.push(failure(name, path, &error)),
        }
    }
    found.instances.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Returns the control socket of the instance `name`, where one listens, even if its queue is full.
pub fn running(name: &str) -> Option<PathBuf> {
    let paths = sockets().into_iter().filter(|(known, _)| known == name).map(|(_, path)| path);
    let listens = |path: &PathBuf| sys::connect_path(path).map_or_else(|error| is_full(&error), |_| true);
    paths.into_iter().find(listens)
}

/// Returns the state of the instance `name`.
pub fn one(name: &str) -> Result<Instance, Error> {
    request(name, &Request::Get(Topic::Stat), instance)
}

/// Returns the knobs of the instance `name`.
pub fn knobs(name: &str) -> Result<Vec<Knob>, Error> {
    request(name, &Request::Get(Topic::Knobs), |answer| match answer {
        Response::Knobs(knobs) => Ok(knobs),
        _ => Err(unexpected()),
    })
}

/// Returns the mappings of the NAT of the instance `name`; `None` where it has no NAT.
pub fn mappings(name: &str) -> Result<Option<Vec<Mapping>>, Error> {
    request(name, &Request::Get(Topic::Nat), |answer| match answer {
        Response::Mappings(mappings) => Ok(mappings),
        _ => Err(unexpected()),
    })
}

/// Returns the peer table of the tunnel `name`, with counters.
pub fn peers(name: &str) -> Result<Listed, Error> {
    match request_within(name, &Request::Get(Topic::Peers), TABLE_TIME, Ok)? {
        Response::Peers(Some(listed)) => Ok(*listed),
        Response::Peers(None) => Err(no_table(name)),
        // An instance of an earlier version does not know the request.
        _ => Err(no_table(name).why("its version of segue may have no peer tables")),
    }
}

/// Returns the short form of the peer table of the tunnel `name`, and the id of the process that has it.
pub fn peer_table(name: &str) -> Result<(u32, PeerTable), Error> {
    let instance = one(name)?;
    instance.peers.map(|table| (instance.pid, *table)).ok_or_else(|| no_table(name))
}

/// Replaces the peer table of the tunnel `name`. Peers that are refused cost no other: the answer names them.
///
/// # Errors
/// [`Kind::Conflict`] for a stale generation, [`Kind::BadValue`] for an entry that the tunnel cannot have; the message
/// names both. Nothing has changed then.
pub fn peer_sync(name: &str, table: &Table) -> Result<Changes, Error> {
    peer_change(name, peers::Change::Sync(table.clone()))
}

/// Changes the peer table of the tunnel `name`; single entries are changed all together or not at all.
///
/// # Errors
/// As for [`peer_sync`].
pub fn peer_change(name: &str, change: peers::Change) -> Result<Changes, Error> {
    let wanted = Request::Peers(change);
    if wanted.line().len() >= TABLE_LEN {
        return Err(Error::new(Kind::Usage, "this table is too long", "segue peer list NAME -j")
            .why(format!("a table has at most {} peers and {TABLE_LEN} bytes", peers::MOST)));
    }
    match request_within(name, &wanted, TABLE_TIME, Ok)? {
        Response::Synced(changes) => Ok(changes),
        Response::Error(refused) => Err(refused.into_error()),
        _ => Err(Error::new(
            Kind::System,
            format!("{} did not say what it changed", printable(name)),
            "segue --version on both sides",
        )
        .why("its answer is not one that this version understands")),
    }
}

fn no_table(name: &str) -> Error {
    Error::new(
        Kind::Conflict,
        format!("{} has no peer table", printable(name)),
        "segue tunnel dev NAME peers FILE local ADDR ...",
    )
    .why("it was not started with the word `peers`")
}

/// Ends the instance `name` as SIGTERM does, and waits until its process has ended, at most `longest`. One that
/// `segue run` would start again is left alone.
pub fn stop(name: &str, longest: Duration) -> Result<(), Error> {
    let instance = one(name)?;
    if instance.is_managed {
        return Err(Error::new(
            Kind::Conflict,
            format!("{} belongs to `segue run`, which would start it again", printable(&instance.name)),
            "take it out of the file, then: segue reload\nor stop all of them: systemctl stop segue",
        )
        .why("its supervisor is a service"));
    }
    if instance.name != name {
        return Err(Error::new(
            Kind::Conflict,
            format!("{} shares its port with {}: they end together", printable(name), printable(&instance.name)),
            format!("segue stop {}", printable(&instance.name)),
        )
        .why("one process has all tunnels of a port"));
    }
    let failed = |error: io::Error| {
        Error::system(
            format!("cannot stop {}", printable(name)),
            &error,
            format!("sudo segue stop {}", printable(name)),
        )
        .why("only its owner and root may")
    };
    let find = |path: PathBuf| supervisor(&path).map_err(|error| failure(name, &path, &error));
    let found = running(name).map(find).transpose()?;
    let Some((pid, ends)) = found.flatten() else {
        return Err(Error::new(
            Kind::System,
            format!("cannot find the process of {}", printable(name)),
            "segue stat -d",
        )
        .why("it runs in another process namespace"));
    };
    sys::kill(pid, libc::SIGTERM).map_err(failed)?;
    let begin = Instant::now();
    loop {
        let left = longest.saturating_sub(begin.elapsed());
        let ended = sys::poll(&[(ends.as_fd(), sys::Want::Read)], left).is_ok_and(|ready| ready.first() == Some(&true));
        if ended {
            return Ok(());
        }
        if left.is_zero() {
            return Err(Error::new(
                Kind::System,
                format!("{} has not ended after {} s", printable(name), longest.as_secs()),
                format!("kill -KILL {}", instance.pid),
            )
            .why("it got SIGTERM"));
        }
    }
}

/// Returns the process that supervises the instance with the control socket `path`, and a descriptor that is readable
/// once that process has ended; `None` where it cannot be seen from this process namespace. It is the parent of the
/// process that answers. The process that listens may be another one: a service manager passes its sockets on.
fn supervisor(path: &Path) -> io::Result<Option<(Pid, OwnedFd)>> {
    let stream = sys::connect_path(path)?;
    let request = format!("{}\n", Request::Get(Topic::Knobs).line());
    let answers = peer::answering_pid(&stream, request.as_bytes(), ANSWER_TIME)?;
    if answers <= 0 {
        return Ok(None);
    }
    let (program, parent) = program_and_parent(answers)?;
    let ends = process::watch_end(parent)?;
    // If the supervisor has ended in the meantime, its child has another parent: one with another program.
    if program_and_parent(answers)?.1 != parent || program_and_parent(parent)?.0 != program {
        return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
    }
    Ok(Some((parent, ends)))
}

/// Returns the name of a process's program, and the id of its parent (proc_pid_stat(5)).
fn program_and_parent(pid: Pid) -> io::Result<(String, Pid)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    // A process that has ended has no file.
    let stat = stat.map_err(|_| io::Error::from_raw_os_error(libc::ECONNRESET))?;
    // The name is in brackets and may contain some; the state is behind it.
    let fields = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
    let read = fields.and_then(|(name, rest)| Some((name.to_owned(), rest.split_whitespace().nth(1)?.parse().ok()?)));
    read.ok_or(io::ErrorKind::InvalidData.into())
}

/// Sets knobs of the instance `name`, all of them or none, and returns the changes in the order in which they were
/// made.
pub fn set(name: &str, assignments: &[(String, String)]) -> Result<Vec<Change>, Error> {
    let wanted = Request::Set(assignments.to_vec());
    if wanted.line().len() >= REQUEST_LEN {
        return Err(Error::new(Kind::Usage, "this is too much at once", "segue set NAME KNOB VALUE")
            .why(format!("a request has at most {REQUEST_LEN} bytes")));
    }
    match request(name, &wanted, Ok)? {
        Response::Changed(changed) => Ok(changed),
        // The caller has checked the assignments, so that a refusal means that something has changed in between.
        Response::Error(refused) if refused.kind == Kind::NoPermission.name() => {
            Err(Error::new(Kind::NoPermission, refused.message, refused.hint).why(refused.why.unwrap_or_default()))
        }
        Response::Error(refused) => {
            Err(Error::new(Kind::Conflict, refused.message, refused.hint).why(refused.why.unwrap_or_default()))
        }
        _ => Err(Error::new(
            Kind::System,
            format!("{} did not say what it changed", printable(name)),
            "segue --version on both sides",
        )
        .why("its answer is not one that this version understands")),
    }
}

/// Sends a request to the instance `name`, or to the one that has an interface of this name.
fn request<T>(
    name: &str,
    wanted: &Request,
    read: impl Fn(Response) -> Result<T, serde_json::Error>,
) -> Result<T, Error> {
    request_within(name, wanted, ANSWER_TIME, read)
}

/// Sends a request as [`request`] does; a socket takes at most `longest`.
fn request_within<T>(
    name: &str,
    wanted: &Request,
    longest: Duration,
    read: impl Fn(Response) -> Result<T, serde_json::Error>,
) -> Result<T, Error> {
    let (sockets, line) = (sockets(), wanted.line());
    let mut dead = false;
    let mut query = |name: &str| -> Option<Result<T, Error>> {
        for (_, path) in sockets.iter().filter(|(known, _)| known == name) {
            match talk(path, &line, longest).and_then(|answer| Ok(read(Response::parse(&answer)?)?)) {
                Ok(answer) => return Some(Ok(answer)),
                Err(error) if is_dead(&error) => dead = true,
                Err(error) => return Some(Err(failure(name, path, &error))),
            }
        }
        None
    };
    if let Some(outcome) = query(name).or_else(|| owner(name).and_then(|owner| query(&owner))) {
        return outcome;
    }
    let why =
        if dead { "its control socket is left from a run that has ended" } else { "no control socket has this name" };
    let near = nearest(name, sockets.iter().map(|(known, _)| known.as_str()).filter(|known| *known != name));
    let hint = near.map_or("segue stat                                      lists what runs".to_owned(), |near| {
        format!("segue stat {near}")
    });
    Err(Error::new(Kind::NotFound, format!("no running instance is called `{}`", printable(name)), hint).why(why))
}

/// Returns the name of the instance that has the interface `name`, where tunnels share a port.
fn owner(name: &str) -> Option<String> {
    let has = |instance: &Instance| instance.ports.get(name).is_some_and(|port| port.side == Side::Inside);
    all().instances.into_iter().find(has).map(|instance| instance.name)
}

/// Returns the name and the path of every control socket in the directories of this user.
fn sockets() -> Vec<(String, PathBuf)> {
    let mut sockets: Vec<(String, PathBuf)> = place::to_search()
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flat_map(|entries| entries.flatten())
        .filter_map(|entry| {
            let path = entry.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".sock")?.to_owned();
            Some((name, path))
        })
        .collect();
    sockets.sort();
    sockets
}

/// Extracts the state of the instance from an answer.
fn instance(answer: Response) -> Result<Instance, serde_json::Error> {
    match answer {
        Response::Instance(instance) => Ok(*instance),
        _ => Err(unexpected()),
    }
}

/// Returns the failure for an answer that belongs to another request.
fn unexpected() -> serde_json::Error {
    serde::de::Error::custom("the answer is to another question")
}

/// Returns whether an error means that no process listens at the socket.
fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT | libc::ENOTSOCK))
}

/// Returns whether an error means that the queue of the socket has no room for another connection.
pub(crate) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Explains why the instance `name` did not answer at `path`.
fn failure(name: &str, path: &Path, error: &io::Error) -> Error {
    let made = Error::system(format!("cannot ask {}", printable(name)), error, "segue stat");
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => made
            .kind(Kind::NoPermission)
            .why(format!("only its owner, root and the group of {READERS} may use {}", path.display()))
            .hint(format!("sudo segue stat {}", printable(name))),
        _ if error.kind() == io::ErrorKind::TimedOut => {
            made.why(format!("it did not answer within {} s", ANSWER_TIME.as_secs())).hint(HANGS)
        }
        _ if is_full(error) => made.why(FULL).hint(HANGS),
        Some(libc::ECONNRESET | libc::EPIPE) => made
            .why("it ended before it answered, or another process is taking its place (segue run)")
            .hint("the same once more\nsegue stat"),
        _ => made.why("its answer is not one that this version understands").hint("segue --version on both sides"),
    }
}
