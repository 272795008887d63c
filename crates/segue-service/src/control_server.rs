//! The instance's side of the control socket: a thread of its own, so that no client can hold up packets.
//!
//! Everything is bounded: clients at a time, bytes of a request, seconds of a conversation. One request, one answer, then
//! the connection closes.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::knobs::{Change, Knob};
use segue_control::mapping::Mapping;
use segue_control::model::Instance;
use segue_control::place;
use segue_control::protocol::{REQUEST_LEN, Request, Response, Topic};
use segue_host::sys::{self, Want};

/// Clients served at a time; more wait in the socket's queue.
const CLIENTS: usize = 16;
/// How long a client may take for all of its conversation.
const CLIENT_TIME: Duration = Duration::from_secs(2);
/// How many visitors of the doorbell are sent away at a time, and the pause: whoever rings without end costs next to nothing.
const VISITORS: usize = 16;
const DOORBELL_PAUSE: Duration = Duration::from_millis(50);
/// How often the counters are sampled for the recent seconds.
const SAMPLE: Duration = Duration::from_secs(1);
/// How many samples are kept.
const SAMPLES: usize = 10;

/// The settings of an instance, from its own side.
pub trait KnobControl {
    /// All of them, as they are.
    fn list(&self) -> Vec<Knob>;
    /// The mappings of its NAT; `None` where it has none.
    fn mappings(&self) -> Option<Vec<Mapping>> {
        None
    }
    /// Changes all of these, or none.
    fn set(&self, assignments: &[(String, String)]) -> Result<Vec<Change>, Error>;
}

/// A socket that is open and has the right mode, before anybody serves it.
#[derive(Debug)]
pub struct Bound {
    /// Before the listener: while that answers, nobody else's socket has this name.
    file: Removed,
    listener: UnixListener,
    owner: u32,
    /// Ends the service when the first of the two closes. Made early: the sandbox lets nobody make sockets.
    stop: (UnixStream, UnixStream),
}

/// The socket's name in the file system.
#[derive(Clone, Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: a later instance of the same name may have put its own there.
    is: (u64, u64),
}

impl SocketFile {
    /// The socket at `made`, which stays there or becomes `path`.
    fn new(made: &Path, path: PathBuf) -> io::Result<SocketFile> {
        Ok(SocketFile { path, is: identity(made)? })
    }

    /// The folder that it is in.
    pub fn folder(&self) -> Option<&Path> {
        self.path.parent()
    }

    /// Takes it away, unless another one's has its name.
    pub fn remove(&self) {
        for path in [self.path.clone(), next(&self.path)] {
            if identity(&path).is_ok_and(|is| is == self.is) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// It goes when the last user of the socket does, as far as this process may.
#[derive(Debug)]
struct Removed(SocketFile);

impl Drop for Removed {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// What the socket of the next instance of a name is called until it takes the place of `path`.
fn next(path: &Path) -> PathBuf {
    path.with_extension("next")
}

/// What to say of a name that is taken: the control socket `path` of an instance answers. `naming` is how another one is given.
pub fn already_running(name: &str, path: &Path, naming: &str) -> Error {
    let hint = format!(
        "segue stat {name}                              shows it\n\
         another name: {naming}, segue lan78xx up dev NAME\n\
         in another network namespace: SEGUE_RUNTIME_DIR=DIR segue ..."
    );
    Error::new(Kind::InUse, format!("{name} is already running"), hint)
        .why(format!("its control socket {} answers", path.display()))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The directory for a new socket.
fn directory() -> Result<PathBuf, Error> {
    place::for_new().map_err(|error| {
        let made = Error::system("cannot make a directory for the control socket", &error, "");
        match place::chosen() {
            Some(path) => made
                .why(format!("{} must be a directory that only its owner can write to", path.display()))
                .hint(format!("chmod go-w {}", path.display())),
            None => made
                .why("neither /run/segue, $XDG_RUNTIME_DIR/segue nor /tmp/segue-UID can be used")
                .hint(format!("{}=/some/directory segue tunnel ...", place::VARIABLE)),
        }
    })
}

fn path_in(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.sock"))
}

fn refused(path: &Path, error: &io::Error) -> Error {
    Error::system(format!("cannot open the control socket {}", path.display()), error, "segue doctor")
        .why("the file system refused")
}

/// Gives the socket of the next instance `name` ([`Bound::next`]) its name, at once: nobody finds none in between.
pub fn take_name(name: &str) -> Result<(), Error> {
    let path = path_in(&directory()?, name);
    fs::rename(next(&path), &path).map_err(|error| refused(&path, &error))
}

/// Takes the socket of a next instance away that did not come to it.
pub fn forget_next(name: &str) {
    if let Ok(directory) = directory() {
        let _ = fs::remove_file(next(&path_in(&directory, name)));
    }
}

impl Bound {
    /// Opens the socket of instance `name`. A socket that nobody serves any more is replaced; a live one refuses.
    ///
    /// Only while the process has one thread (the file mode mask is changed for a moment).
    pub fn new(name: &str, naming: &str) -> Result<Bound, Error> {
        Bound::in_directory(&directory()?, name, naming)
    }

    /// Opens the socket of the next instance `name` while another one has its name, which it gets by [`take_name`].
    ///
    /// As [`Bound::new`].
    pub fn next(name: &str) -> Result<Bound, Error> {
        let path = path_in(&directory()?, name);
        let made = next(&path);
        // Nobody can be asked by this name, so that it is left from one that never got the other.
        let cleared = match fs::remove_file(&made) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        cleared.and_then(|()| Bound::at(&made, path.clone())).map_err(|error| refused(&path, &error))
    }

    fn in_directory(directory: &Path, name: &str, naming: &str) -> Result<Bound, Error> {
        let path = path_in(directory, name);
        let failed = |error: &io::Error| refused(&path, error);
        // Two that start at once must not both find the socket stale; the lock goes with the file's descriptor.
        let lock = File::open(directory).map_err(|error| failed(&error))?;
        sys::lock(&lock).map_err(|error| failed(&error))?;
        if fs::symlink_metadata(&path).is_ok() {
            match UnixStream::connect(&path) {
                Ok(_) => return Err(already_running(name, &path, naming)),
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
        Ok(Bound { file, listener, owner: sys::euid(), stop })
    }

    /// Its name.
    pub fn file(&self) -> &SocketFile {
        &self.file.0
    }

    /// Serves the socket until [`Server::stop`]; `snapshot` gives the counters at that moment, `knobs` changes the settings. Whoever
    /// visits the `doorbell` is taken in and sent away.
    pub fn serve(
        self,
        doorbell: Option<UnixListener>,
        snapshot: impl Fn() -> Instance + Send + 'static,
        knobs: impl KnobControl + Send + 'static,
    ) -> io::Result<Server> {
        let Bound { listener, file, owner, stop: (stop, stopped) } = self;
        let mut service = Service {
            listener,
            doorbell,
            next_visit: Instant::now(),
            _file: file,
            owner,
            stopped,
            clients: Vec::new(),
            samples: VecDeque::new(),
            next_sample: Instant::now(),
            snapshot: Box::new(snapshot),
            knobs: Box::new(knobs),
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || service.run())?;
        Ok(Server { thread, stop })
    }
}

/// A socket that is served.
#[derive(Debug)]
pub struct Server {
    thread: JoinHandle<()>,
    stop: UnixStream,
}

impl Server {
    /// Ends the service and removes the socket where this process may; the supervisor does it otherwise.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

struct Service {
    /// Before the listener, as in [`Bound`].
    _file: Removed,
    listener: UnixListener,
    /// Only there to be found; it never waits.
    doorbell: Option<UnixListener>,
    /// Before this nobody is let in by the doorbell.
    next_visit: Instant,
    owner: u32,
    stopped: UnixStream,
    clients: Vec<Client>,
    samples: VecDeque<(Instant, Instance)>,
    next_sample: Instant,
    snapshot: Box<dyn Fn() -> Instance + Send>,
    knobs: Box<dyn KnobControl + Send>,
}

struct Client {
    stream: UnixStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
    until: Instant,
}

impl Service {
    fn run(&mut self) {
        loop {
            let now = Instant::now();
            if now >= self.next_sample {
                self.sample(now);
            }
            let doorbell = self.doorbell.as_ref().filter(|_| now >= self.next_visit);
            let pause = self.doorbell.as_ref().filter(|_| now < self.next_visit).map(|_| self.next_visit);
            let until = pause.into_iter().fold(self.next_sample, Instant::min);
            let until = self.clients.iter().map(|client| client.until).fold(until, Instant::min);
            // A millisecond more, so that the wait does not end just before the moment.
            let timeout = until.saturating_duration_since(now) + Duration::from_millis(1);
            let full = self.clients.len() >= CLIENTS;
            let mut fds = vec![(self.stopped.as_fd(), Want::Read)];
            fds.extend(self.clients.iter().map(|client| (client.stream.as_fd(), client.want())));
            let places = fds.len();
            fds.extend(doorbell.iter().map(|socket| (socket.as_fd(), Want::Read)));
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
            if let Some(doorbell) = doorbell.filter(|_| ready[places]) {
                (0..VISITORS).take_while(|_| doorbell.accept().is_ok()).for_each(drop);
                self.next_visit = now + DOORBELL_PAUSE;
            }
            let mut kept = Vec::with_capacity(count);
            for (mut client, ready) in std::mem::take(&mut self.clients).into_iter().zip(&ready[1..]) {
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
        self.samples.push_back((now, self.instance()));
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        self.next_sample = now + SAMPLE;
    }

    fn instance(&self) -> Instance {
        let mut instance = (self.snapshot)();
        instance.count_drops();
        instance
    }

    fn accept(&mut self, now: Instant) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        let allowed = sys::peer_uid(&stream).is_ok_and(|uid| uid == 0 || uid == self.owner);
        if allowed && stream.set_nonblocking(true).is_ok() {
            self.clients.push(Client {
                stream,
                request: Vec::new(),
                answer: Vec::new(),
                sent: 0,
                until: now + CLIENT_TIME,
            });
        }
    }

    /// Reads or writes what is possible; false when the conversation is over.
    fn step(&self, client: &mut Client) -> bool {
        if client.answer.is_empty() {
            match client.read() {
                Read1::More => return true,
                Read1::Closed => return false,
                Read1::Line(line) => {
                    client.answer = self.answer(&line).line().into_bytes();
                    client.answer.push(b'\n');
                }
                Read1::TooLong => {
                    let error =
                        Error::new(Kind::Usage, "the request is too long", format!("at most {REQUEST_LEN} bytes"));
                    client.answer = (Response::from(error).line() + "\n").into_bytes();
                }
            }
        }
        client.write()
    }

    fn answer(&self, line: &[u8]) -> Response {
        match Request::parse(line) {
            Err(error) => error.into(),
            Ok(Request::Set(assignments)) => {
                self.knobs.set(&assignments).map_or_else(Response::from, Response::Changed)
            }
            Ok(Request::Get(Topic::Nat)) => Response::Mappings(self.knobs.mappings()),
            Ok(Request::Get(Topic::Knobs)) => Response::Knobs(self.knobs.list()),
            Ok(Request::Get(Topic::Stat)) => {
                let mut instance = self.instance();
                instance.recent = self.samples.front().and_then(|(at, before)| {
                    let seconds = at.elapsed().as_secs_f64();
                    // Rates over a few milliseconds say nothing.
                    (seconds >= 0.2).then(|| instance.recent_since(before, seconds))
                });
                instance.judge_drops();
                Response::Instance(Box::new(instance))
            }
        }
    }
}

enum Read1 {
    More,
    Line(Vec<u8>),
    TooLong,
    Closed,
}

impl Client {
    fn want(&self) -> Want {
        if self.answer.is_empty() { Want::Read } else { Want::Write }
    }

    fn read(&mut self) -> Read1 {
        let mut bytes = [0; REQUEST_LEN];
        match self.stream.read(&mut bytes) {
            Ok(0) => Read1::Closed,
            Ok(len) => {
                self.request.extend_from_slice(&bytes[..len]);
                match self.request.iter().position(|&byte| byte == b'\n') {
                    Some(end) if end <= REQUEST_LEN => Read1::Line(self.request[..end].to_vec()),
                    None if self.request.len() <= REQUEST_LEN => Read1::More,
                    _ => Read1::TooLong,
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Read1::More,
            Err(_) => Read1::Closed,
        }
    }

    fn write(&mut self) -> bool {
        match self.stream.write(&self.answer[self.sent..]) {
            Ok(len) => {
                self.sent += len;
                len > 0 && self.sent < self.answer.len()
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;

    use serde_json::{Value, json};

    use super::*;

    /// One knob that takes nothing.
    struct None;

    impl KnobControl for None {
        fn list(&self) -> Vec<Knob> {
            Vec::new()
        }

        fn set(&self, assignments: &[(String, String)]) -> Result<Vec<Change>, Error> {
            Err(Error::new(Kind::UnknownWord, format!("no {}", assignments[0].0), "none"))
        }
    }

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("segue-server-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        fn serve(&self) -> (Server, PathBuf) {
            let bound = Bound::in_directory(&self.0, "sg0", "--name NAME").unwrap();
            let path = bound.file().path.clone();
            let server = bound
                .serve(Option::None, || Instance { name: "sg0".into(), pid: 7, ..Instance::default() }, None)
                .unwrap();
            (server, path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn ask(path: &Path, request: &[u8]) -> Value {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(request).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    #[test]
    fn an_instance_that_ends_late_leaves_the_socket_of_the_next_one() {
        let directory = Directory::new("late");
        let (late, path) = directory.serve();
        // As the next one of this name does with a socket that nobody answers.
        fs::remove_file(&path).unwrap();
        let (next, same) = directory.serve();
        assert_eq!(path, same);
        late.stop();
        assert_eq!(ask(&path, b"{\"get\":\"stat\"}\n")["instance"]["pid"], 7);
        next.stop();
        assert!(!path.exists());
    }

    #[test]
    fn one_request_gets_one_answer_and_garbage_an_error() {
        let directory = Directory::new("answers");
        let (server, path) = directory.serve();
        assert_eq!(ask(&path, b"{\"get\":\"stat\"}\n")["instance"]["pid"], 7);
        for garbage in [&b"\n"[..], b"{\n", b"[]\n", b"{\"get\":\"else\"}\n", b"\xff\xfe\n"] {
            assert_eq!(ask(&path, garbage)["error"]["kind"], "usage", "{garbage:?}");
        }
        assert_eq!(ask(&path, b"{\"get\":\"knobs\"}\n")["knobs"], json!([]));
        assert_eq!(ask(&path, b"{\"set\":[[\"a\",\"1\"]]}\n")["error"]["message"], "no a");
        assert_eq!(ask(&path, b"{\"set\":[[\"a\"]]}\n")["error"]["kind"], "usage");
        let long = vec![b'x'; REQUEST_LEN + 1];
        assert_eq!(ask(&path, &long)["error"]["message"], "the request is too long");
        server.stop();
        assert!(!path.exists());
    }

    #[test]
    fn silent_clients_hold_up_neither_others_nor_the_end() {
        let directory = Directory::new("silent");
        let (server, path) = directory.serve();
        let silent: Vec<UnixStream> = (0..CLIENTS + 8).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let start = Instant::now();
        assert_eq!(ask(&path, b"{\"get\":\"stat\"}\n")["instance"]["name"], "sg0");
        assert!(start.elapsed() < CLIENT_TIME * 3, "{:?}", start.elapsed());
        let end = Instant::now();
        server.stop();
        assert!(end.elapsed() < Duration::from_secs(1));
        drop(silent);
    }

    #[test]
    fn a_live_socket_refuses_a_second_instance_and_a_dead_one_is_replaced() {
        let directory = Directory::new("stale");
        let (server, path) = directory.serve();
        let refused = Bound::in_directory(&directory.0, "sg0", "--name NAME").unwrap_err();
        assert_eq!((refused.kind, refused.message.as_str()), (Kind::InUse, "sg0 is already running"));
        server.stop();
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a listener leaves its file behind");
        Bound::in_directory(&directory.0, "sg0", "--name NAME").unwrap();
    }

    #[test]
    fn only_the_owner_may_open_the_socket() {
        let directory = Directory::new("mode");
        let bound = Bound::in_directory(&directory.0, "sg0", "--name NAME").unwrap();
        let mode = fs::metadata(&bound.file().path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_doorbell_that_is_rung_without_end_lets_in_few_and_holds_up_nobody() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let directory = Directory::new("doorbell");
        let name = format!("segue-doorbell-{}", std::process::id());
        let doorbell = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        doorbell.set_nonblocking(true).unwrap();
        let ring = || sys::connect_abstract(name.as_bytes()).is_ok();
        while ring() {}
        let bound = Bound::in_directory(&directory.0, "sg0", "--name NAME").unwrap();
        let path = bound.file().path.clone();
        let server = bound.serve(Some(doorbell), Instance::default, None).unwrap();
        let start = Instant::now();
        let mut visitors = 0;
        while start.elapsed() < Duration::from_millis(500) {
            visitors += usize::from(ring());
        }
        // One more handful may fall into the time at each end.
        let most = VISITORS * (start.elapsed().as_millis() / DOORBELL_PAUSE.as_millis() + 2) as usize;
        assert!((1..=most).contains(&visitors), "{visitors} of {most}");
        assert!(ask(&path, b"{\"get\":\"stat\"}\n")["instance"].is_object());
        server.stop();
    }
}
