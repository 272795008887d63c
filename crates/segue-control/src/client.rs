//! The client of the control socket: it finds the sockets of this user, sends one request and reads the answer.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use segue_host::sys::{self, Pid};
use segue_host::{peer, process};

use crate::error::{Error, Kind, printable, printable_line};
use crate::exchange::{query_all, talk};
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
    /// The instances that answered, sorted by name. Of several with one name the first is the one that this user has
    /// in the preferred directory.
    pub instances: Vec<Instance>,
    /// The names of instances that are alive and did not answer, with the failures.
    pub failed: Vec<(String, Error)>,
}

/// Requests the state of every instance that this user can see, of all at the same time. A socket without a listener is
/// no failure.
pub fn all() -> Found {
    let (mut found, mut closing) = (Found::default(), Vec::new());
    let sockets = sockets();
    let paths: Vec<&Path> = sockets.iter().map(|(_, path)| path.as_path()).collect();
    let answers = query_all(&paths, &Request::Get(Topic::Stat).line(), ANSWER_TIME);
    for ((name, path), answer) in sockets.iter().zip(answers) {
        match answer.and_then(|answer| Ok(instance(Response::parse(&answer)?)?)) {
            Ok(instance) => found.instances.push(instance),
            Err(error) if is_dead(&error) => {}
            Err(error) => {
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::InvalidData
                ) {
                    closing.push(name);
                }
                found.failed.push((name.clone(), failure(name, path, &error)));
            }
        }
    }
    // A guest's port closes what is no front end; what does not answer at all is an instance.
    let is_closing = |name: &String| closing.contains(&name);
    found.failed.retain(|(name, _)| !is_closing(name) || !found.instances.iter().any(|one| is_guest(one, name)));
    found.instances.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Returns whether the instance has a virtual machine at the port `name`: its socket may be in the same directory, has
/// the name of the port, and is no control socket. The front end's own socket has no mark ([`place::NOT_FOR_CONTROL`]).
fn is_guest(instance: &Instance, name: &str) -> bool {
    instance.ports.get(name).is_some_and(|port| port.numbers.contains_key("guest_connected"))
}

/// Returns the control socket of the instance `name`, where one listens, even if its queue is full.
pub fn running(name: &str) -> Option<PathBuf> {
    sockets().into_iter().find(|(known, path)| known == name && listens(path)).map(|(_, path)| path)
}

/// Returns whether a process listens at the socket `path`, even if its queue is full.
fn listens(path: &Path) -> bool {
    sys::connect_path(path).map_or_else(|error| is_full(&error), |_| true)
}

/// Returns the state of the instance `name`.
pub fn one(name: &str) -> Result<Instance, Error> {
    request(name, &Request::Get(Topic::Stat), instance)
}

/// Returns the knobs of the instance `name`.
pub fn knobs(name: &str) -> Result<Vec<Knob>, Error> {
    request(name, &Request::Get(Topic::Knobs), |answer| match answer {
        Response::Knobs(knobs) => Ok(knobs.into_iter().map(Knob::printable).collect()),
        _ => Err(unexpected()),
    })
}

/// Returns the mappings of the NAT of the instance `name`; `None` where it has no NAT.
pub fn mappings(name: &str) -> Result<Option<Vec<Mapping>>, Error> {
    request(name, &Request::Get(Topic::Nat), |answer| match answer {
        Response::Mappings(mappings) => Ok(mappings.map(|all| all.into_iter().map(Mapping::printable).collect())),
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
        .why("it runs in another process namespace, or its parent is of another user than its socket"));
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
                format!("kill -KILL {pid}"),
            )
            .why("it got SIGTERM"));
        }
    }
}

/// Returns the process that supervises the instance with the control socket `path`, and a descriptor that is readable
/// once that process has ended; `None` where it cannot be seen from this process namespace. It is the parent of the
/// process that answers. The process that listens may be another one: a service manager passes its sockets on.
/// `None` also where that process is of another user than the socket: the owner of a socket could have root end any
/// process otherwise.
fn supervisor(path: &Path) -> io::Result<Option<(Pid, OwnedFd)>> {
    let owner = fs::symlink_metadata(path)?.uid();
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
    if owner != 0 && user(parent)? != owner {
        return Ok(None);
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

/// Returns the user of a process, also of one whose files in /proc are root's: the effective one in `status`.
fn user(pid: Pid) -> io::Result<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = ids.and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
    effective.ok_or(io::ErrorKind::InvalidData.into())
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
        Response::Changed(changed) => {
            Ok(changed.into_iter().map(|change| Change { name: printable_line(&change.name), ..change }).collect())
        }
        // The caller has checked the assignments, so that a refusal means that something has changed in between.
        Response::Error(refused) => {
            let error = refused.into_error();
            let is_forbidden = error.kind == Kind::NoPermission;
            Err(if is_forbidden { error } else { error.kind(Kind::Conflict) })
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
    request_at(&sockets(), name, &wanted.line(), longest, read)
}

/// Sends a request line to the instance `name`, or to the one that has an interface of this name. It has one of these
/// sockets, which are sorted as [`sockets`] sorts them.
fn request_at<T>(
    sockets: &[(String, PathBuf)],
    name: &str,
    line: &str,
    longest: Duration,
    read: impl Fn(Response) -> Result<T, serde_json::Error>,
) -> Result<T, Error> {
    let (mut dead, mut denied) = (false, None);
    let mut query = |name: &str| -> Option<Result<T, Error>> {
        let paths: Vec<&Path> =
            sockets.iter().filter(|(known, _)| known == name).map(|(_, path)| path.as_path()).collect();
        if let Err(error) = check_single(name, &paths) {
            return Some(Err(error));
        }
        for path in paths {
            match talk(path, line, longest).and_then(|answer| Ok(read(Response::parse(&answer)?)?)) {
                Ok(answer) => return Some(Ok(answer)),
                Err(error) if is_dead(&error) => dead = true,
                // This user may have an instance of the same name beside that of another user.
                Err(error) if is_denied(&error) => {
                    denied = denied.take().or_else(|| Some(failure(name, path, &error)));
                }
                Err(error) => return Some(Err(failure(name, path, &error))),
            }
        }
        None
    };
    if let Some(outcome) = query(name).or_else(|| owner(name).and_then(|owner| query(&owner))) {
        return outcome;
    }
    if let Some(denied) = denied {
        return Err(denied);
    }
    let why =
        if dead { "its control socket is left from a run that has ended" } else { "no control socket has this name" };
    let near = nearest(name, sockets.iter().map(|(known, _)| known.as_str()).filter(|known| *known != name));
    let hint = near.map_or("segue stat                                      lists what runs".to_owned(), |near| {
        format!("segue stat {near}")
    });
    Err(Error::new(Kind::NotFound, format!("no running instance is called `{}`", printable(name)), hint).why(why))
}

/// Fails where several instances that this user may change listen at these sockets, all of the name `name`. An instance
/// of another user is never taken for one of this user.
fn check_single(name: &str, paths: &[&Path]) -> Result<(), Error> {
    if paths.len() < 2 {
        return Ok(());
    }
    let found: Vec<&Path> = paths.iter().copied().filter(|path| place::may_change(path) && listens(path)).collect();
    if found.len() < 2 {
        return Ok(());
    }
    let files: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
    let directories = found.iter().filter_map(|path| path.parent());
    let choices: Vec<String> =
        directories.map(|directory| format!("{}={} segue ...", place::VARIABLE, directory.display())).collect();
    let message = format!("{} instances are called `{}`", found.len(), printable(name));
    Err(Error::new(Kind::Conflict, message, choices.join("\n"))
        .why(format!("processes listen at {}", files.join(" and "))))
}

/// Returns the name of the instance that has the interface `name`, where tunnels share a port.
fn owner(name: &str) -> Option<String> {
    let has = |instance: &Instance| instance.ports.get(name).is_some_and(|port| port.side == Side::Inside);
    all().instances.into_iter().find(has).map(|instance| instance.name)
}

/// Returns the name and the path of every control socket in the directories of this user, sorted by name. Of one name
/// those come first that this user may change, in the order of the directories.
fn sockets() -> Vec<(String, PathBuf)> {
    sockets_in(&place::of_instances())
}

/// Returns the control sockets of these directories as [`sockets`] does.
fn sockets_in(directories: &[PathBuf]) -> Vec<(String, PathBuf)> {
    let mut sockets: Vec<(String, PathBuf)> = directories
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flat_map(|entries| entries.flatten())
        .filter_map(|entry| {
            let path = entry.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".sock")?.to_owned();
            let is_for_control = entry.metadata().ok()?.mode() & place::NOT_FOR_CONTROL == 0;
            is_for_control.then_some((name, path))
        })
        .collect();
    let is_others = |path: &Path| !place::may_change(path);
    sockets.sort_by(|(a, at), (b, other)| a.cmp(b).then_with(|| is_others(at).cmp(&is_others(other))));
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
pub(crate) fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT | libc::ENOTSOCK))
}

/// Returns whether an error means that this user may not ask at the socket.
fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// Returns whether an error means that the queue of the socket has no room for another connection.
pub(crate) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Explains why the instance `name` did not answer at `path`.
pub(crate) fn failure(name: &str, path: &Path, error: &io::Error) -> Error {
    let made = Error::system(format!("cannot ask {}", printable(name)), error, "segue stat");
    match error.raw_os_error() {
        _ if is_denied(error) => made
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    const NAME: &str = "of-two-directories";

    /// Two directories for sockets, removed on drop.
    struct Two([PathBuf; 2]);

    impl Two {
        fn new(name: &str) -> Two {
            let directory = std::env::temp_dir().join(format!("segue-client-{name}-{}", std::process::id()));
            // The preferred one is the last by its name.
            let two = ["second", "first"].map(|name| directory.join(name));
            two.iter().for_each(|path| fs::create_dir_all(path).unwrap());
            Two(two)
        }

        /// Opens a socket in one of the directories, whose instance has the process id `pid`, and returns the requests
        /// that it gets.
        fn serve(&self, directory: usize, pid: u32) -> Arc<Mutex<Vec<String>>> {
            let listener = UnixListener::bind(self.path(directory)).unwrap();
            let requests = Arc::new(Mutex::new(Vec::new()));
            let (seen, state) = (Arc::clone(&requests), Instance { pid, ..Instance::default() });
            thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let mut line = String::new();
                    if BufReader::new(&stream).read_line(&mut line).is_ok_and(|len| len > 0) {
                        seen.lock().unwrap().push(line);
                        let _ = stream.write_all(Response::Instance(Box::new(state.clone())).line().as_bytes());
                    }
                }
            });
            requests
        }

        fn path(&self, directory: usize) -> PathBuf {
            self.0[directory].join(format!("{NAME}.sock"))
        }

        /// Requests the state without the capability to pass by the modes of files.
        fn state(&self) -> Result<Instance, Error> {
            let directories = self.0.to_vec();
            let request = move || {
                sys::drop_capabilities().unwrap();
                request_at(&sockets_in(&directories), NAME, &Request::Get(Topic::Stat).line(), ANSWER_TIME, instance)
            };
            thread::spawn(request).join().unwrap()
        }
    }

    impl Drop for Two {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0[0].parent().unwrap());
        }
    }

    #[test]
    fn an_instance_that_may_not_be_asked_hides_no_other_one_of_its_name() {
        let two = Two::new("denied");
        let _denied = two.serve(0, 1);
        fs::set_permissions(two.path(0), fs::Permissions::from_mode(0o000)).unwrap();
        let error = two.state().unwrap_err();
        assert_eq!(error.kind, Kind::NoPermission, "{error:?}");
        let _own = two.serve(1, 2);
        assert_eq!(two.state().unwrap().pid, 2);
    }

    #[test]
    fn of_two_instances_with_one_name_both_are_named_and_none_is_asked() {
        let two = Two::new("both");
        let first = two.serve(0, 1);
        assert_eq!(two.state().unwrap().pid, 1);
        let second = two.serve(1, 2);
        let error = two.state().unwrap_err();
        let (why, hints) = (error.why.unwrap(), error.hint.lines().count());
        assert_eq!((error.kind, hints), (Kind::Conflict, 2));
        assert!([0, 1].iter().all(|at| why.contains(&two.path(*at).display().to_string())), "{why}");
        assert_eq!([first, second].map(|requests| requests.lock().unwrap().len()), [1, 0]);
    }

    #[test]
    fn of_one_name_the_socket_in_the_preferred_directory_comes_first() {
        let two = Two::new("order");
        let _listeners = [0, 1].map(|at| UnixListener::bind(two.path(at)).unwrap());
        let found: Vec<PathBuf> = sockets_in(&two.0).into_iter().map(|(_, path)| path).collect();
        assert_eq!(found, [two.path(0), two.path(1)]);
    }

    #[test]
    fn a_socket_that_is_not_for_control_is_not_asked() {
        let two = Two::new("guest");
        let _listeners = [0, 1].map(|at| UnixListener::bind(two.path(at)).unwrap());
        fs::set_permissions(two.path(0), fs::Permissions::from_mode(0o600 | place::NOT_FOR_CONTROL)).unwrap();
        let found: Vec<PathBuf> = sockets_in(&two.0).into_iter().map(|(_, path)| path).collect();
        assert_eq!(found, [two.path(1)]);
    }
}
