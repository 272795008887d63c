//! The server of the control socket. It runs in a thread of its own, so that no client can delay packets.
//!
//! All resources are bounded: clients at a time, bytes of a request, seconds of a connection. A connection carries
//! one request and one answer.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use segue_control::error::{Error, Kind};
use segue_control::knobs::{Change, Knob};
use segue_control::lock::{self, Lock};
use segue_control::mapping::Mapping;
use segue_control::model::{Complaint, Instance};
use segue_control::peers::{self, Changes, Listed};
use segue_control::place::{self, INSTANCE, SERVICE};
use segue_control::protocol::{Fault, Request, Response, Topic};
use segue_control::units;
use segue_host::activation::passed;
use segue_host::peer;
use segue_host::sys::{self, Want};

use crate::connection::{CLIENT_TIME, Connection, ReadOutcome, only_reading, too_long};
use crate::heartbeat::BEAT_INTERVAL;
use crate::reasons;
use crate::socket_file::{Removed, SocketFile, next};
use crate::started;

/// Largest number of clients served at a time; further ones wait in the queue of the socket.
const CLIENTS: usize = 16;
/// Largest number of connections to a gateway's claim sockets accepted and closed at a time.
const VISITORS: usize = 16;
/// Pause after connections to claim sockets, which keeps the cost of a flood of connections negligible.
const CLAIM_PAUSE: Duration = Duration::from_millis(50);
/// Pause after a client that could not be accepted, for lack of descriptors or memory.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for room in the queue of a control socket that may be the parent's.
const FULL_TIME: Duration = Duration::from_secs(3);
/// Longest wait for the lock of the directory, by a service that looks after instances meanwhile.
const SHORT_LOCK: Duration = Duration::from_millis(100);
/// Interval at which the counters are sampled for the recent rates.
const SAMPLE: Duration = Duration::from_secs(1);
/// Interval of samples where there are more than [`MANY`] ports, of which each sample takes milliseconds.
const SPARSE_SAMPLE: Duration = Duration::from_secs(5);
/// Number of ports above which samples are sparse.
const MANY: usize = 100;
/// Age of the oldest sample that is kept.
const SPAN: Duration = Duration::from_secs(10);

/// The name under which the service manager passes a control socket (`FileDescriptorName=`).
const CONTROL: &str = "control";

/// Access to the knobs of an instance from the control socket.
pub trait KnobControl {
    /// Returns all knobs with their current values.
    fn list(&self) -> Vec<Knob>;
    /// Returns the mappings of the NAT; `None` where there is no NAT.
    fn mappings(&self) -> Option<Vec<Mapping>> {
        None
    }
    /// Returns the peer table with its counters; `None` where there is no table.
    fn peers(&self) -> Option<Listed> {
        None
    }
    /// Changes the instance's peer table.
    fn change_peers(&self, _: peers::Change) -> Result<Changes, Error> {
        Err(no_table())
    }
    /// Records that the server makes progress.
    fn beat(&self) {}
    /// Injects a fault, for tests.
    fn fault(&self, _: &Fault) -> Result<(), Error> {
        Err(Error::new(Kind::Usage, "unknown request", r#"{"get":"stat"}"#))
    }
    /// Sets all of the given knobs, or none.
    fn set(&self, assignments: &[(String, String)]) -> Result<Vec<Change>, Error>;
}

/// Returns the error for a change of a peer table in an instance without one.
pub(crate) fn no_table() -> Error {
    Error::new(Kind::Conflict, "this instance has no peer table", "segue tunnel dev NAME peers FILE ...")
        .why("only a tunnel that was started with the word `peers` has one")
}

/// An open control socket that is not served yet.
#[derive(Debug)]
pub struct Bound {
    /// File of the socket, removed on drop. It is dropped before the listener: while that listens, no other socket has
    /// this name.
    file: Removed,
    listener: UnixListener,
    owner: u32,
    /// The group whose members may read.
    readers: Option<u32>,
    /// A socket pair that ends the server when either end closes. It is created early, since the sandbox allows no new
    /// socket.
    stop: (UnixStream, UnixStream),
}

/// Returns the failure for a name in use: the control socket `path` of an instance is in use. `naming` is the usage of
/// the command with another name.
pub(crate) fn already_running(name: &str, path: &Path, naming: &str) -> Error {
    let hint = format!(
        "segue stat {name}                              shows it\n\
         another name: {naming}, segue lan78xx up dev NAME\n\
         in another network namespace: SEGUE_RUNTIME_DIR=DIR segue ..."
    );
    Error::new(Kind::InUse, format!("{name} is already running"), hint)
        .why(format!("a process listens at its control socket {}", path.display()))
        .names_instance()
}

/// Returns the directory for a new socket and creates it where it is missing.
fn directory() -> Result<PathBuf, Error> {
    place::for_new().map_err(|error| {
        let made = Error::system("cannot make a directory for the control socket", &error, "");
        match place::chosen() {
            Some(path) => made
                .why(format!("{} must be a directory that only its owner can write to", path.display()))
                .hint(format!("chmod go-w {}", path.display())),
            None => made
                .why("neither /run/segue, /run/segue-root, $XDG_RUNTIME_DIR/segue nor /tmp/segue-UID can be used")
                .hint(format!("{}=/some/directory segue tunnel ...", place::VARIABLE)),
        }
    })
}

/// Returns whether the parent of this process answers at a socket. A full queue of its listener is waited for.
fn is_of_parent(path: &Path) -> bool {
    let until = Instant::now() + FULL_TIME;
    let waits = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until;
    loop {
        match sys::connect_path(path).and_then(|stream| peer::pid(&stream)) {
            Err(error) if waits(&error) => thread::sleep(ACCEPT_PAUSE),
            answer => return answer.is_ok_and(|pid| pid == sys::parent_pid()),
        }
    }
}

fn path_in(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}{INSTANCE}"))
}

fn refused(path: &Path, error: &io::Error) -> Error {
    if place::has_readers() {
        return Error::system(format!("cannot open the control socket {}", path.display()), error, "getent group")
            .why(format!("{} must name a group that exists, and that this user may give a file to", place::READERS));
    }
    Error::system(format!("cannot open the control socket {}", path.display()), error, "segue doctor")
        .why("the file system refused")
}

/// Renames the successor's socket `name` ([`Bound::next`]) to its final name. The rename is atomic: a client always
/// finds the old instance or the successor.
pub(crate) fn take_name(name: &str) -> Result<(), Error> {
    let path = path_in(&directory()?, name);
    fs::rename(next(&path), &path).map_err(|error| refused(&path, &error))
}

/// Renames like [`take_name`], if there is a successor's socket. Returns whether there is none any more.
pub(crate) fn has_taken_name(name: &str) -> bool {
    let Ok(directory) = directory() else { return false };
    let path = path_in(&directory, name);
    fs::rename(next(&path), &path).map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |()| true)
}

/// Removes the socket of a successor that did not take over.
pub(crate) fn forget_next(name: &str) {
    if let Ok(directory) = directory() {
        let _ = fs::remove_file(next(&path_in(&directory, name)));
    }
}

/// Removes the socket that a successor of the instance with the socket `path` has left, and returns its path. No client
/// connects there, and while an instance starts, it has no successor.
fn clear_next(path: &Path) -> io::Result<PathBuf> {
    let made = next(path);
    match fs::remove_file(&made) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(made),
    }
}

impl Bound {
    /// Opens the socket of the instance `name`, or takes it over from the service manager. A stale socket is replaced;
    /// one that answers is a failure, unless the instance is one of `segue run` (`is_managed`), and it is that parent
    /// that answers for an instance that did not start before: it has the name until it calls `take_name`.
    ///
    /// The process must have one thread, since the file mode mask is changed for a moment.
    pub fn new(name: &str, naming: &str, is_managed: bool) -> Result<Bound, Error> {
        match passed(CONTROL) {
            Some(socket) => Bound::adopt(socket, |file| file.strip_suffix(INSTANCE) == Some(name), name, INSTANCE),
            None if is_managed && is_of_parent(&path_in(&directory()?, name)) => Bound::next(name),
            None => Bound::in_directory(&directory()?, name, naming, lock::PATIENCE),
        }
    }

    /// Opens the socket of an instance without a process, in its service, which looks after others meanwhile and tries
    /// again: another holder of the directory's lock is waited for as long as a start takes at most.
    pub(crate) fn stand_in(name: &str, naming: &str) -> Result<Bound, Error> {
        Bound::in_directory(&directory()?, name, naming, SHORT_LOCK)
    }

    /// Opens the socket of the successor `name` while another instance has that name; `take_name` renames it.
    ///
    /// The process must have one thread, as for [`Bound::new`].
    pub fn next(name: &str) -> Result<Bound, Error> {
        let path = path_in(&directory()?, name);
        clear_next(&path).and_then(|made| Bound::at(&made, path.clone())).map_err(|error| refused(&path, &error))
    }

    /// Opens the socket of a service, under `name`, or `name-2` and so on if another service has that name.
    ///
    /// The process must have one thread, as for [`Bound::new`].
    pub(crate) fn service(name: &str) -> Result<Bound, Error> {
        const MOST: usize = 1000;
        if let Some(socket) = passed(CONTROL) {
            return Bound::adopt(socket, |file| file.ends_with(SERVICE), name, SERVICE);
        }
        let directory = directory()?;
        let mut taken = None;
        for number in 1..=MOST {
            let name = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
            let path = directory.join(format!("{name}{SERVICE}"));
            match Bound::at_path(&directory, path, lock::PATIENCE, |path| already_running(&name, path, "segue stat")) {
                Err(error) if error.kind == Kind::InUse => taken = Some(error),
                other => return other,
            }
        }
        Err(taken.unwrap_or_else(|| Error::new(Kind::InUse, "no name is free", "segue stat")))
    }

    /// Takes over a socket of the service manager, which created the file with its mode; the file is not removed. Its
    /// file must be one where clients look.
    fn adopt(socket: OwnedFd, is_named: impl Fn(&str) -> bool, name: &str, ending: &str) -> Result<Bound, Error> {
        let wanted = directory()?.join(format!("{name}{ending}"));
        let refused = |why: String| {
            let hint = format!("in the socket unit: ListenStream={}", wanted.display());
            Error::new(Kind::System, "the socket that the service manager passes cannot be used", hint).why(why)
        };
        let listener = UnixListener::from(socket);
        let address = listener.local_addr().map_err(|error| refused(format!("it is no local socket: {error}")))?;
        let Some(path) = address.as_pathname().map(Path::to_owned) else {
            return Err(refused("it has no name in the file system".to_owned()));
        };
        let is_found = path.file_name().and_then(|file| file.to_str()).is_some_and(is_named)
            && path.parent().is_some_and(place::is_searched);
        if !is_found {
            return Err(refused(format!("it is {}, where clients do not look for {name}", path.display())));
        }
        let failed = |error: io::Error| refused(error.to_string());
        let stop = UnixStream::pair().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (owner, readers) = (sys::euid(), place::readers().map_err(failed)?);
        Ok(Bound { file: Removed(SocketFile { path, is: None }), listener, owner, readers, stop })
    }

    /// Takes over a socket that the preceding program of this service opened, with the path of its file; `made` says
    /// whether the program created the file, which is removed then.
    pub(crate) fn kept(listener: OwnedFd, path: PathBuf, made: bool) -> io::Result<Bound> {
        let file = SocketFile::kept(path, made)?;
        let (stop, readers, owner) = (UnixStream::pair()?, place::readers()?, sys::euid());
        Ok(Bound { file: Removed(file), listener: UnixListener::from(listener), owner, readers, stop })
    }

    fn in_directory(directory: &Path, name: &str, naming: &str, patience: Duration) -> Result<Bound, Error> {
        let path = path_in(directory, name);
        let bound = Bound::at_path(directory, path.clone(), patience, |path| already_running(name, path, naming))?;
        // A file that is left there would get the name once this instance is up.
        clear_next(&path).map_err(|error| refused(&path, &error))?;
        Ok(bound)
    }

    fn at_path(
        directory: &Path,
        path: PathBuf,
        patience: Duration,
        busy: impl Fn(&Path) -> Error,
    ) -> Result<Bound, Error> {
        let failed = |error: &io::Error| refused(&path, error);
        // Of two instances that start at the same time only one may find the socket stale.
        let _lock = Lock::take_within(directory, patience).map_err(|error| failed(&error))?;
        if fs::symlink_metadata(&path).is_ok() {
            match sys::connect_path(&path) {
                Ok(_) => return Err(busy(&path)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(busy(&path)),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(&path).map_err(|error| failed(&error))?;
                }
                Err(error) => return Err(failed(&error)),
            }
        }
        Bound::at(&path, path.clone()).map_err(|error| failed(&error))
    }

    fn at(made: &Path, path: PathBuf) -> io::Result<Bound> {
        let listener = sys::with_umask(0o177, || UnixListener::bind(made))?;
        let file = Removed(SocketFile::new(made, path)?);
        let stop = UnixStream::pair()?;
        listener.set_nonblocking(true)?;
        let readers = place::readers()?;
        if let Some(group) = readers {
            chown(made, None, Some(group))?;
            fs::set_permissions(made, fs::Permissions::from_mode(0o660))?;
        }
        Ok(Bound { file, listener, owner: sys::euid(), readers, stop })
    }

    /// Accepts a connection of the owner or of root; `None` where it is another user's.
    ///
    /// # Errors
    /// Where none can be accepted at the moment. The next attempt should be made after [`ACCEPT_PAUSE`].
    pub(crate) fn accept(&self, until: Instant) -> io::Result<Option<Connection>> {
        Connection::accept(&self.listener, self.owner, self.readers, until)
    }

    /// Returns the descriptor that is readable when a connection is pending.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Returns the file of the socket.
    pub fn file(&self) -> &SocketFile {
        &self.file.0
    }

    /// Serves the socket until [`Server::stop`]. `snapshot` returns the present counters, and `knobs` changes the
    /// settings. Connections to the `claims`, the claim sockets of a gateway, are accepted and closed.
    pub fn serve(
        self,
        claims: Vec<UnixListener>,
        snapshot: impl Fn() -> Instance + Send + 'static,
        knobs: impl KnobControl + Send + 'static,
    ) -> io::Result<Server> {
        let Bound { listener, file, owner, readers, stop: (stop, stopped) } = self;
        let mut service = Service {
            listener,
            claims,
            next_visit: Instant::now(),
            next_client: Instant::now(),
            _file: file,
            owner,
            readers,
            stopped,
            clients: Vec::new(),
            samples: VecDeque::new(),
            next_sample: Instant::now(),
            began: BTreeMap::new(),
            snapshot: Box::new(snapshot),
            knobs: Box::new(knobs),
        };
        let thread = started::spawn("control", move || service.run())?;
        Ok(Server { thread, stop })
    }
}

/// The handle of a running server.
#[derive(Debug)]
pub struct Server {
    thread: JoinHandle<()>,
    stop: UnixStream,
}

impl Server {
    /// Ends the thread and removes the socket where this process may; otherwise the supervisor removes it.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

struct Service {
    /// The file of the socket, removed on drop; dropped before the listener, as in [`Bound`].
    _file: Removed,
    listener: UnixListener,
    /// The claim sockets of a gateway, whose connections are accepted and closed: only their existence matters.
    claims: Vec<UnixListener>,
    /// The time before which no connection to a claim socket is accepted.
    next_visit: Instant,
    owner: u32,
    readers: Option<u32>,
    stopped: UnixStream,
    clients: Vec<Connection>,
    /// Time until which no client is accepted after a failed accept(2), because the listener stays readable.
    next_client: Instant,
    samples: VecDeque<(Instant, Instance)>,
    next_sample: Instant,
    /// Time at which each problem was first found, as [`complete`] has it.
    began: BTreeMap<(String, String), String>,
    snapshot: Box<dyn Fn() -> Instance + Send>,
    knobs: Box<dyn KnobControl + Send>,
}

impl Service {
    fn run(&mut self) {
        loop {
            self.knobs.beat();
            let now = Instant::now();
            if now >= self.next_sample {
                self.sample(now);
            }
            let is_open = now >= self.next_visit;
            let claims = if is_open { &self.claims[..] } else { &[] };
            let pause = (!is_open && !self.claims.is_empty()).then_some(self.next_visit);
            // Its heartbeat is to be seen between two samples, too.
            let until = pause.into_iter().fold(self.next_sample.min(now + BEAT_INTERVAL), Instant::min);
            let until = self.clients.iter().map(|client| client.until).fold(until, Instant::min);
            let until = if now < self.next_client { until.min(self.next_client) } else { until };
            // One additional millisecond, so that the wait does not end just before the deadline.
            let timeout = until.saturating_duration_since(now) + Duration::from_millis(1);
            let full = self.clients.len() >= CLIENTS || now < self.next_client;
            let mut fds = vec![(self.stopped.as_fd(), Want::Read)];
            fds.extend(self.clients.iter().map(|client| (client.fd(), client.want())));
            let places = fds.len();
            fds.extend(claims.iter().map(|socket| (socket.as_fd(), Want::Read)));
            if !full {
                fds.push((self.listener.as_fd(), Want::Read));
            }
            let Ok(ready) = sys::poll(&fds, timeout) else { return };
            if ready[0] {
                return;
            }
            let count = self.clients.len();
            let accept = !full && ready.last().is_some_and(|ready| *ready);
            let now = Instant::now();
            for (claim, _) in claims.iter().zip(&ready[places..]).filter(|(_, ready)| **ready) {
                (0..VISITORS).take_while(|_| claim.accept().is_ok()).for_each(drop);
                self.next_visit = now + CLAIM_PAUSE;
            }
            let mut kept = Vec::with_capacity(count);
            for (mut client, ready) in std::mem::take(&mut self.clients).into_iter().zip(&ready[1..]) {
                if *ready {
                    // Each answer takes time of its own, most of all while a packet loop is in a long round.
                    self.knobs.beat();
                }
                let goes_on = now < client.until && (!ready || self.step(&mut client));
                if goes_on {
                    kept.push(client);
                }
            }
            self.clients = kept;
            if accept {
                self.accept(now);
            }
        }
    }

    fn sample(&mut self, now: Instant) {
        // All that `recent_since` compares.
        let Instance { ports, cpu_s, .. } = self.instance();
        self.next_sample = now + if ports.len() > MANY { SPARSE_SAMPLE } else { SAMPLE };
        self.samples.push_back((now, Instance { ports, cpu_s, ..Instance::default() }));
        while self.samples.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > SPAN) {
            self.samples.pop_front();
        }
    }

    /// Returns the state of the instance and its problems.
    fn instance(&mut self) -> Instance {
        let mut instance = (self.snapshot)();
        instance.count_drops();
        instance.recent = self.samples.front().and_then(|(at, before)| {
            let seconds = at.elapsed().as_secs_f64();
            // Rates over a few milliseconds mean nothing.
            (seconds >= 0.2).then(|| instance.recent_since(before, seconds))
        });
        instance.judge_drops();
        complete(&mut instance.health, &mut self.began, SystemTime::now());
        instance
    }

    fn accept(&mut self, now: Instant) {
        match Connection::accept(&self.listener, self.owner, self.readers, now + CLIENT_TIME) {
            Ok(client) => self.clients.extend(client),
            Err(_) => self.next_client = now + ACCEPT_PAUSE,
        }
    }

    /// Reads or writes as much as possible; returns `false` at the end of the connection.
    fn step(&mut self, client: &mut Connection) -> bool {
        if !client.is_answered() {
            match client.read() {
                ReadOutcome::More => return true,
                ReadOutcome::Closed => return false,
                ReadOutcome::Line(line) => client.reply(&self.answer(&line, client.may_change).line()),
                ReadOutcome::TooLong => client.reply(&Response::from(too_long()).line()),
            }
        }
        client.write()
    }

    fn answer(&mut self, line: &[u8], may_change: bool) -> Response {
        match Request::parse(line) {
            Err(error) => error.into(),
            Ok(Request::Set(_) | Request::Peers(_) | Request::Fault(_)) if !may_change => only_reading().into(),
            Ok(Request::Set(assignments)) => {
                self.knobs.set(&assignments).map_or_else(Response::from, Response::Changed)
            }
            Ok(Request::Fault(fault)) => {
                self.knobs.fault(&fault).map_or_else(Response::from, |()| Response::Changed(Vec::new()))
            }
            Ok(Request::Peers(change)) => self.knobs.change_peers(change).map_or_else(Response::from, Response::Synced),
            Ok(Request::Get(Topic::Peers)) => Response::Peers(self.knobs.peers().map(Box::new)),
            Ok(Request::Get(Topic::Nat)) => Response::Mappings(self.knobs.mappings()),
            Ok(Request::Get(Topic::Knobs)) => Response::Knobs(self.knobs.list()),
            Ok(Request::Get(Topic::Stat)) => {
                let mut instance = self.instance();
                instance.explain_reasons(reasons::sentence);
                Response::Instance(Box::new(instance))
            }
        }
    }
}

/// Completes the problems of an instance. One that does not say when it began did so at the look that found it first;
/// `began` has the times of the last look's problems, by code and by what is said behind a number in front, which may
/// change while a problem lasts. One without a remedy refers to the help on its code.
fn complete(health: &mut [Complaint], began: &mut BTreeMap<(String, String), String>, now: SystemTime) {
    let now = units::rfc3339(now);
    let mut found = BTreeMap::new();
    for complaint in health {
        let what = complaint.what.trim_start_matches(|at: char| at.is_ascii_digit());
        let key = (complaint.code.clone(), what.to_owned());
        let since = complaint.since.get_or_insert_with(|| began.get(&key).unwrap_or(&now).clone());
        found.insert(key, since.clone());
        complaint.fix.get_or_insert_with(|| format!("segue help {}", complaint.code));
    }
    *began = found;
}

#[cfg(test)]
mod tests;
