//! Tests of handovers whose old process lies: it moves packets from outside, and may have been taken over. What it
//! sends over its line to the service harms no other instance, and not the service.

#[path = "../../segue-cli/tests/common/numbered.rs"]
mod numbered;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use numbered::Numbered;
use segue_lab::{Family, LinkForm, Peer, Process, reach};
use segue_tests::capture::Directory;
use segue_tests::faults::{children, has_ended};
use segue_tests::line::{Line, Message};
use segue_tests::{Ground, skip, sys, test_name, until};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(90);
/// Datagrams through the instance that does not lie, which are awaited for each lie.
const SOME: u64 = 200;
/// Words of the service about an answer that it does not take.
const REFUSED: &str = "sg1 does not hand over its ports";

/// Returns the configuration of one end: `sg1` and `sg2` share a port, so that they are one instance, `sg1`; `sg3` is
/// another one. `more` is in the table of `sg2`.
fn file(end: Peer, more: &str) -> String {
    let [local, remote] = [end, end.other()].map(|end| end.address(0, Family::V4));
    let tunnel = |net: u8, port: u16, more: &str| {
        format!(
            "[[tunnel]]\ndev = \"sg{net}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\nencap = \"gue\"\nkey = {net}\n\
             port = {port}\nencap-dport = {port}\naddr = \"{}\"\n{more}\n",
            end.prefix(net, Family::V4)
        )
    };
    tunnel(1, 6080, "") + &tunnel(2, 6080, more) + &tunnel(3, 6083, "")
}

/// Two hosts with a service each, with a stream through the tunnel `sg3`.
struct Scene {
    ground: Ground,
    directory: Directory,
    near: Process,
    far: Process,
    stream: Option<Numbered>,
}

impl Scene {
    /// Starts the services; `None` where a test cannot run here.
    fn start(name: &str) -> Option<Scene> {
        let ground = Ground::new(name, LinkForm::Veth, &["ping"])?;
        let directory = Directory::new();
        // A program of its own, which another one may replace.
        let program = directory.file("segue");
        fs::copy(&ground.program, &program).expect("the program");
        let begin = |end: Peer| {
            let (host, name) = if end == Peer::A { (&ground.a, "near.toml") } else { (&ground.b, "far.toml") };
            fs::write(directory.file(name), file(end, "")).expect("a file");
            let mut command = host.command(&program);
            command.args(["run", "-j", "-c"]).arg(directory.file(name));
            let mut service = Process::spawn(command, b"").expect("segue starts");
            service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
            service
        };
        let (near, far) = (begin(Peer::A), begin(Peer::B));
        let at = |end: Peer| SocketAddr::new(end.address(3, Family::V4), 5002);
        let stream = Numbered::start((&ground.a, at(Peer::A)), (&ground.b, at(Peer::B)), 600);
        Some(Scene { ground, directory, near, far, stream: Some(stream) })
    }

    fn segue(&self, line: &str) -> (Option<i32>, String, String) {
        let mut command = self.ground.a.command(self.program());
        let output = command.args(line.split_whitespace()).output().expect("segue runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn program(&self) -> PathBuf {
        self.directory.file("segue")
    }

    /// Returns the process of an instance; `None` where it has none.
    fn running(&self, name: &str) -> Option<u32> {
        let (_, text, _) = self.segue("stat -j");
        let found: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let mut instances = found["instances"].as_array().expect("a list").iter();
        let pid = instances.find(|one| one["name"] == name).and_then(|one| one["pid"].as_u64());
        pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0)
    }

    /// Returns the process of an instance, which must run.
    #[track_caller]
    fn pid(&self, name: &str) -> u32 {
        self.running(name).unwrap_or_else(|| panic!("{name} does not run"))
    }

    /// Takes the line of the instance `name`; `None` where this user may not, which is noted under `test`.
    fn line(&self, test: &str, name: &str) -> Option<Line> {
        match Line::take(self.near.id(), self.pid(name)) {
            Ok(line) => Some(line),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                skip(test, &format!("pidfd_getfd: {error}"));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the number of descriptors that the service has open.
    fn open(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.near.id())).map_or(0, Iterator::count)
    }

    fn events(&self) -> Vec<Value> {
        self.near.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for the end of a reload after `seen` events, and returns the events up to that.
    #[track_caller]
    fn outcome(&self, seen: usize) -> Vec<Value> {
        until("the reload does not end", || {
            let is_end =
                |event: &Value| ["reloaded", "reload_refused"].contains(&event["event"].as_str().unwrap_or(""));
            let mut events = self.events().split_off(seen);
            let end = events.iter().position(is_end)?;
            events.truncate(end + 1);
            Some(events)
        })
    }

    /// Stops the process of an instance; `None` where this user may not, which is noted under `test`.
    fn hold(&self, test: &str, name: &str) -> Option<sys::Held> {
        match sys::Held::new(self.pid(name)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                skip(test, "ptrace is not allowed here");
                None
            }
            held => Some(held.expect("a process")),
        }
    }

    /// Waits until a process is ready to take the place of another one, after `seen` events.
    #[track_caller]
    fn await_successor(&self, seen: usize) {
        let is_ready = |event: &Value| event["event"] == "successor";
        until("no successor", || self.events().split_off(seen).iter().any(is_ready).then_some(()));
    }

    /// Requests a reload of a file in which `sg2` has another hop limit, `ttl`, so that `sg1` is handed over. Returns
    /// the number of events before.
    fn request(&self, ttl: u8) -> usize {
        fs::write(self.directory.file("near.toml"), file(Peer::A, &format!("ttl = {ttl}"))).expect("a file");
        let seen = self.events().len();
        sys::signal(self.near.id(), libc::SIGHUP).expect("a signal");
        seen
    }

    /// Requests a reload like [`Scene::request`], has the line's worker give `answer`, and returns the events until the
    /// end of the reload.
    #[track_caller]
    fn reload(&self, ttl: u8, line: &Line, answer: &[Message]) -> Vec<Value> {
        let seen = self.offer(ttl, line, answer);
        self.outcome(seen)
    }

    /// Requests a reload like [`Scene::request`], and has the line's worker give `answer`. Returns the number of events
    /// before.
    #[track_caller]
    fn offer(&self, ttl: u8, line: &Line, answer: &[Message]) -> usize {
        let seen = self.request(ttl);
        line.request().expect("a request");
        say(line, answer);
        seen
    }

    /// Waits until some more datagrams have passed through `sg3`, all of which arrive in order.
    #[track_caller]
    fn pass(&mut self) {
        self.stream.iter_mut().for_each(|stream| stream.pass(SOME));
    }

    /// Returns whether packets pass through the tunnel `sg1`.
    fn reaches(&self) -> bool {
        let [a, b] = [Peer::A, Peer::B].map(|end| end.address(1, Family::V4));
        reach((&self.ground.a, a), (&self.ground.b, b), PATIENCE).is_ok()
    }

    /// Waits until the service has no more descriptors open than `before`.
    #[track_caller]
    fn leaks_nothing(&self, what: &str, before: usize) {
        // Some of its own may be open for a moment.
        let begin = Instant::now();
        while self.open() > before {
            assert!(begin.elapsed() < PATIENCE, "{what}: {before} descriptors were open, and now {}", self.open());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends both services and the stream, no datagram of which is lost.
    #[track_caller]
    fn finish(mut self) {
        self.stream.take().map(Numbered::finish);
        for service in [&mut self.near, &mut self.far] {
            service.terminate();
            assert_eq!(service.wait(PATIENCE).expect("it ends").code(), Some(0), "{}", service.last_words());
        }
        until("an interface is left", || (!self.ground.a.has_device("sg1")).then_some(()));
    }
}

/// Sends the messages as the worker of a line.
#[track_caller]
fn say(line: &Line, answer: &[Message]) {
    answer.iter().for_each(|message| assert!(line.say(message).expect("a message"), "the line has no room"));
}

/// Checks that these events of a reload end with its refusal, which one error with these words explains.
#[track_caller]
fn assert_refused(what: &str, events: &[Value], words: &str) {
    assert_eq!(events.last().map(|event| &event["event"]), Some(&"reload_refused".into()), "{what}: {events:?}");
    let errors: Vec<&Value> = events.iter().filter_map(|event| event.get("error")).collect();
    let has = |error: &Value| error["message"].as_str().is_some_and(|text| text.contains(words));
    assert!(matches!(errors[..], [error] if has(error)), "{what}: {errors:?}");
}

/// Checks that these events of a reload end with the handover of `sg1`.
#[track_caller]
fn assert_handed_over(what: &str, events: &[Value]) {
    let done = events.last().expect("an end");
    assert_eq!((&done["event"], &done["handed_over"]), (&"reloaded".into(), &["sg1"].into()), "{what}: {events:?}");
}

/// Replaces the file at `path` by one with the given content, like a package manager.
fn replace(path: &Path, content: &[u8]) {
    let beside = path.with_extension("new");
    fs::write(&beside, content).expect("a file");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).expect("its mode");
    fs::rename(&beside, path).expect("a file in its place");
}

fn null() -> Arc<OwnedFd> {
    Arc::new(File::open("/dev/null").expect("a file").into())
}

/// An answer of a worker, and words of the error that the service reports of it.
type Lie = (&'static str, Vec<Message>, &'static str);

/// Returns lies in the form of the answer, of which the service tells by itself.
fn malformed(honest: &[Message]) -> Vec<Lie> {
    let null = null();
    let changed = |kind: u8, change: fn(&mut Message, &Arc<OwnedFd>)| {
        let mut answer = honest.to_vec();
        answer.iter_mut().filter(|message| message.is(kind)).for_each(|message| change(message, &null));
        answer
    };
    let bytes = |bytes: &[u8]| vec![Message { bytes: bytes.to_vec(), fds: Vec::new() }];
    let peers = || Message::record(b'p', "", &[Arc::clone(&null)]);
    vec![
        ("bytes that are no record", bytes(b"entirely something else!"), REFUSED),
        ("a part of a record", bytes(b"i"), REFUSED),
        ("a record that is too long", changed(b'i', |message, _| message.bytes.push(0)), REFUSED),
        ("a record without its descriptor", changed(b'i', |message, _| message.fds.clear()), REFUSED),
        ("a record with two", changed(b'r', |message, null| message.fds.push(Arc::clone(null))), REFUSED),
        ("a record that is for workers", vec![Message::record(b'!', "", &[])], REFUSED),
        ("two tables of peers", [vec![peers(), peers()], honest.to_vec()].concat(), REFUSED),
    ]
}

/// Returns lies in the descriptors, of which the successor tells; `others` is the answer of the instance `sg3`.
fn untrue(scene: &Scene, honest: &[Message], others: &[Message]) -> Vec<Lie> {
    const WHAT: &str = "sg1: cannot take over";
    let is_it =
        |message: &Message, kind: u8, name: &str| message.is(kind) && message.bytes[5..].starts_with(name.as_bytes());
    let of = |answer: &[Message], kind: u8, name: &str| {
        Arc::clone(&answer.iter().find(|message| is_it(message, kind, name)).expect("a port").fds[0])
    };
    let instead = |kind: u8, name: &str, fd: &Arc<OwnedFd>| {
        let mut answer = honest.to_vec();
        let those = answer.iter_mut().filter(|message| is_it(message, kind, name));
        those.for_each(|message| message.fds = vec![Arc::clone(fd)]);
        answer
    };
    let without = |kind: u8| honest.iter().filter(|message| !message.is(kind)).cloned().collect::<Vec<_>>();
    let listener = scene.ground.a.enter(|| TcpListener::bind((Peer::A.address(0, Family::V4), 6080)));
    let tcp = Arc::new(OwnedFd::from(listener.expect("the host").expect("a socket")));
    let null = null();
    vec![
        ("a file for an interface", instead(b'i', "sg1", &null), WHAT),
        ("the interface of another tunnel", instead(b'i', "sg1", &of(honest, b'i', "sg2")), WHAT),
        ("the interface of another instance", instead(b'i', "sg1", &of(others, b'i', "sg3")), WHAT),
        ("no interface", without(b'i'), "sg1: cannot create sg1"),
        ("a file for a receiving socket", instead(b'r', "", &null), WHAT),
        ("a TCP socket for a receiving one", instead(b'r', "", &tcp), WHAT),
        ("the receiving socket of another instance", instead(b'r', "", &of(others, b'r', "")), WHAT),
        ("a TCP socket for a sending one", instead(b's', "", &tcp), WHAT),
        ("no receiving socket", without(b'r'), "sg1: cannot listen on UDP"),
        ("no sending socket", without(b's'), "sg1: cannot listen on UDP"),
    ]
}

#[test]
fn a_worker_that_lies_in_a_reload_harms_its_own_instance_only_and_is_named() {
    let Some(mut scene) = Scene::start(test_name!()) else { return };
    let Some(line) = scene.line(test_name!(), "sg1") else { return };
    let Some(other) = scene.line(test_name!(), "sg3") else { return };
    let (honest, others) = (line.ports().expect("ports"), other.ports().expect("ports"));
    line.silence().expect("the worker reads");
    let before = (scene.pid("sg1"), scene.pid("sg3"));
    let open = scene.open();
    for (what, answer, words) in [malformed(&honest), untrue(&scene, &honest, &others)].concat() {
        let events = scene.reload(9, &line, &answer);
        assert_refused(what, &events, words);
        scene.pass();
        assert_eq!((scene.pid("sg1"), scene.pid("sg3")), before, "{what}");
        assert!(scene.reaches(), "{what}");
        scene.leaks_nothing(what, open);
    }
    // The truth is taken, also with more than was asked for: names of others, a table, and an interface twice.
    let mut more = others.iter().filter(|message| message.is(b'i')).cloned().collect::<Vec<_>>();
    more.push(Message::record(b'p', "", &[null()]));
    more.extend(honest.iter().filter(|message| message.is(b'i')).cloned());
    more.extend(honest);
    // What it has left behind is undone: an interface without a carrier sends nothing.
    scene.ground.a.run("ip", &["link", "set", "sg1", "carrier", "off"]).expect("an interface");
    let seen = scene.request(9);
    line.request().expect("a request");
    say(&line, &more);
    // sg2 is made anew, which needs its end.
    drop(more);
    assert_handed_over("the truth", &scene.outcome(seen));
    assert_ne!(scene.pid("sg1"), before.0);
    assert_eq!(scene.pid("sg3"), before.1);
    scene.pass();
    assert!(scene.reaches());
    scene.leaks_nothing("the truth", open);
    drop((line, other, others));
    scene.finish();
}

/// A deed of a worker upon its ports, with its name.
type Deed = (&'static str, fn(&Scene, &[Message]));

#[test]
fn a_worker_that_changes_its_ports_after_it_has_handed_them_over_leaves_no_dead_tunnel() {
    let Some(mut scene) = Scene::start(test_name!()) else { return };
    let connect = |_: &Scene, honest: &[Message]| {
        let to = SocketAddr::new(Peer::B.address(0, Family::V4), 9);
        for message in honest.iter().filter(|message| message.is(b'r')) {
            let socket = UdpSocket::from(message.fds[0].try_clone().expect("a descriptor"));
            socket.connect(to).expect("a route");
        }
    };
    let darken = |scene: &Scene, _: &[Message]| {
        scene.ground.a.run("ip", &["link", "set", "sg1", "carrier", "off"]).expect("an interface");
    };
    let wait = |_: &Scene, honest: &[Message]| {
        for message in honest.iter().filter(|message| message.is(b'i')) {
            let interface = UnixStream::from(message.fds[0].try_clone().expect("a descriptor"));
            interface.set_nonblocking(false).expect("a flag");
        }
    };
    let deeds: [Deed; 3] = [("a connected socket", connect), ("no carrier", darken), ("reads that wait", wait)];
    for ((what, deed), ttl) in deeds.into_iter().zip(9..) {
        let Some(line) = scene.line(test_name!(), "sg1") else { return };
        let honest = line.ports().expect("ports");
        line.silence().expect("the worker reads");
        let (open, before) = (scene.open(), scene.pid("sg3"));
        // It does not end before the deed.
        let Some(held) = scene.hold(test_name!(), "sg1") else { return };
        let seen = scene.offer(ttl, &line, &honest);
        scene.await_successor(seen);
        deed(&scene, &honest);
        // What is made anew needs the end of the ports.
        drop(honest);
        drop(held);
        let events = scene.outcome(seen);
        let done = events.last().expect("an end");
        assert_eq!((&done["event"], &done["restarted"]), (&"reloaded".into(), &["sg1"].into()), "{what}: {events:?}");
        let mut errors = events.iter().filter_map(|event| event["error"]["message"].as_str());
        assert!(errors.any(|text| text.contains("sg1: the process before has changed")), "{what}: {events:?}");
        assert_eq!(scene.pid("sg3"), before, "{what}");
        assert!(scene.reaches(), "{what}");
        scene.pass();
        drop(line);
        scene.leaks_nothing(what, open);
    }
    scene.finish();
}

#[test]
fn a_tunnel_that_is_made_anew_for_what_its_worker_has_changed_keeps_its_peers() {
    let Some(scene) = Scene::start(test_name!()) else { return };
    let request = |is_weak: bool| {
        let table = "[[tunnel]]\ndev = \"sg4\"\npeers = \"none\"\nlocal = \"198.18.0.1\"\nlisten = \"vxlan\"\n";
        let text = format!("{}{table}weak-sandbox = {is_weak}\n", file(Peer::A, ""));
        fs::write(scene.directory.file("near.toml"), text).expect("a file");
        let seen = scene.events().len();
        sys::signal(scene.near.id(), libc::SIGHUP).expect("a signal");
        seen
    };
    let events = scene.outcome(request(false));
    assert_eq!(events.last().expect("an end")["event"], "reloaded", "{events:?}");
    let added = scene.segue("peer add sg4 198.19.9.0/24 remote 198.18.0.2 encap vxlan vni 9 mac 02:00:00:00:00:09");
    assert_eq!(added.0, Some(0), "{added:?}");
    let Some(line) = scene.line(test_name!(), "sg4") else { return };
    let honest = line.ports().expect("ports");
    line.silence().expect("the worker reads");
    let Some(held) = scene.hold(test_name!(), "sg4") else { return };
    let seen = request(true);
    line.request().expect("a request");
    say(&line, &honest);
    drop(honest);
    scene.await_successor(seen);
    scene.ground.a.run("ip", &["link", "set", "sg4", "carrier", "off"]).expect("an interface");
    drop(held);
    let events = scene.outcome(seen);
    assert_eq!(events.last().expect("an end")["restarted"], Value::from(vec!["sg4"]), "{events:?}");
    let listed = scene.segue("peer list sg4 -j");
    let peers: Value = serde_json::from_str(&listed.1).unwrap_or_else(|error| panic!("{error}: {listed:?}"));
    assert_eq!(peers["peers"].as_array().map(Vec::len), Some(1), "{peers}");
    drop(line);
    scene.finish();
}

#[test]
fn a_successor_that_ends_before_it_begins_is_replaced_at_once() {
    // A successor has so long to begin.
    const LATE: Duration = Duration::from_secs(30);
    let Some(mut scene) = Scene::start(test_name!()) else { return };
    let Some(line) = scene.line(test_name!(), "sg1") else { return };
    let honest = line.ports().expect("ports");
    line.silence().expect("the worker reads");
    let (open, others) = (scene.open(), children(scene.near.id()));
    let Some(held) = scene.hold(test_name!(), "sg1") else { return };
    let seen = scene.offer(9, &line, &honest);
    drop(honest);
    scene.await_successor(seen);
    let successor = children(scene.near.id()).into_iter().find(|child| !others.contains(child)).expect("a process");
    sys::signal(successor, libc::SIGKILL).expect("a signal");
    // The service has waited for its end.
    until("it has ended", || (!children(scene.near.id()).contains(&successor)).then_some(()));
    let begin = Instant::now();
    drop(held);
    assert!(scene.reaches(), "{}", scene.near.last_words());
    assert!(begin.elapsed() < LATE / 2, "{:?} until packets pass", begin.elapsed());
    println!("packets pass {} ms after the end of the one before", begin.elapsed().as_millis());
    assert_refused("a successor that ended", &scene.outcome(seen), "sg1 has ended");
    scene.pass();
    drop(line);
    scene.leaks_nothing("a successor that ended", open);
    scene.finish();
}

#[test]
fn a_worker_that_does_not_end_in_a_handover_has_ended_before_its_successor_begins() {
    let Some(mut scene) = Scene::start(test_name!()) else { return };
    let Some(line) = scene.line(test_name!(), "sg1") else { return };
    let honest = line.ports().expect("ports");
    line.silence().expect("the worker reads");
    let worker = scene.pid("sg1");
    let Some(held) = scene.hold(test_name!(), "sg1") else { return };
    let seen = scene.offer(9, &line, &honest);
    drop((honest, line));
    let is_up = |event: &Value| event["event"] == "up" && event["instance_name"] == "sg1";
    until("the successor does not begin", || scene.events().split_off(seen).iter().any(is_up).then_some(()));
    // The one that was held has ten seconds more where it is not ended before.
    let begin = Instant::now();
    while !has_ended(worker) {
        assert!(begin.elapsed() < Duration::from_secs(5), "it goes on beside its successor");
        thread::sleep(Duration::from_millis(5));
    }
    assert_handed_over("a worker that hangs", &scene.outcome(seen));
    assert!(scene.reaches());
    drop(held);
    scene.pass();
    scene.finish();
}

#[test]
fn a_worker_whose_answer_does_not_end_holds_up_no_other_instance_and_no_signal_is_lost() {
    let Some(mut scene) = Scene::start(test_name!()) else { return };
    let Some(line) = scene.line(test_name!(), "sg1") else { return };
    let honest = line.ports().expect("ports");
    line.silence().expect("the worker reads");
    let before = (scene.pid("sg1"), scene.pid("sg3"));
    let open = scene.open();

    // A record, and then nothing. Meanwhile a reload is requested again, which succeeds.
    let seen = scene.request(9);
    line.request().expect("a request");
    say(&line, &honest[..1]);
    scene.pass();
    assert_eq!((scene.pid("sg1"), scene.pid("sg3")), before);
    sys::signal(scene.near.id(), libc::SIGHUP).expect("a signal");
    let events = scene.outcome(seen);
    assert_refused("silence", &events, REFUSED);
    line.request().expect("another request");
    say(&line, &honest);
    // sg2 is made anew, which needs its end.
    drop(honest);
    assert_handed_over("after silence", &scene.outcome(seen + events.len()));
    assert_eq!(scene.pid("sg3"), before.1);
    scene.leaks_nothing("silence", open);

    // Records without end, from before the request.
    let line = scene.line(test_name!(), "sg1").expect("a line");
    line.silence().expect("the worker reads");
    let pid = scene.pid("sg1");
    let (is_over, socket) = (AtomicBool::new(false), Message::record(b'r', "", &[null()]));
    let events = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if !line.say(&socket).expect("a message") {
                    thread::sleep(Duration::from_micros(100));
                }
            }
        });
        let _end = EndOf(&is_over);
        let seen = scene.request(10);
        line.request().expect("a request");
        scene.pass();
        scene.outcome(seen)
    });
    assert_refused("no end", &events, REFUSED);
    assert_eq!((scene.pid("sg1"), scene.pid("sg3")), (pid, before.1));
    scene.leaks_nothing("no end", open);

    // The end of the line in the middle; only another process has a line again.
    let seen = scene.request(10);
    line.request().expect("a request");
    say(&line, &[socket]);
    line.cut().expect("the line ends");
    assert_refused("the end of the line", &scene.outcome(seen), REFUSED);
    assert_refused("no line", &scene.outcome(scene.request(10)), REFUSED);
    assert_eq!((scene.pid("sg1"), scene.pid("sg3")), (pid, before.1));
    scene.pass();
    sys::signal(pid, libc::SIGKILL).expect("a signal");
    until("sg1 is not started again", || (scene.running("sg1").is_some_and(|now| now != pid)).then_some(()));
    assert_handed_over("a new process", &scene.outcome(scene.request(10)));
    assert!(scene.reaches());
    scene.leaks_nothing("a new process", open);

    // A stop while the service waits for an answer.
    let line = scene.line(test_name!(), "sg1").expect("a line");
    line.silence().expect("the worker reads");
    scene.request(11);
    line.request().expect("a request");
    scene.finish();
}

#[test]
fn a_worker_that_lies_in_an_upgrade_keeps_its_own_instance_from_it_only() {
    let Some(mut scene) = Scene::start(test_name!()) else { return };
    let Some(line) = scene.line(test_name!(), "sg1") else { return };
    let honest = line.ports().expect("ports");
    line.silence().expect("the worker reads");
    let pid = scene.pid("sg1");
    let mut program = fs::read(scene.program()).expect("the program");
    let mut open = None;
    let null = null();
    let swapped = |kind: u8| {
        let mut answer = honest.clone();
        answer.iter_mut().filter(|message| message.is(kind)).for_each(|message| message.fds = vec![Arc::clone(&null)]);
        answer
    };
    let no_record = Message { bytes: b"entirely something else!".to_vec(), fds: Vec::new() };
    for (what, answer, words) in [
        ("no record", vec![no_record], REFUSED),
        ("silence", honest[..1].to_vec(), REFUSED),
        ("a file for an interface", swapped(b'i'), "sg1: cannot take over"),
        ("a file for a socket", swapped(b'r'), "sg1: cannot take over"),
        ("the truth", honest.clone(), ""),
    ] {
        program.push(0);
        replace(&scene.program(), &program);
        let (seen, other) = (scene.events().len(), scene.pid("sg3"));
        let done = thread::scope(|scope| {
            scope.spawn(|| {
                line.request().expect("a request");
                say(&line, &answer);
            });
            let (_, stdout, stderr) = scene.segue("reload --upgrade near -j");
            // Another line has the error for what failed.
            let done = stdout.lines().next().and_then(|line| serde_json::from_str::<Value>(line).ok());
            let done = done.unwrap_or_else(|| panic!("{stdout}{stderr}"));
            done["services"][0].clone()
        });
        let lists: [&Value; 2] = ["handed_over", "failed"].map(|key| &done[key]);
        let errors = scene.events().split_off(seen);
        let errors: Vec<&str> = errors.iter().filter_map(|event| event["error"]["message"].as_str()).collect();
        if words.is_empty() {
            assert_eq!(lists, [&Value::from(["sg1", "sg3"].to_vec()), &Value::from(Vec::<&str>::new())], "{done}");
            assert!(errors.is_empty() && scene.pid("sg1") != pid, "{what}: {errors:?}");
        } else {
            assert_eq!(lists, [&Value::from(["sg3"].to_vec()), &Value::from(["sg1"].to_vec())], "{what}: {done}");
            assert!(matches!(errors[..], [error] if error.contains(words)), "{what}: {errors:?}");
            assert_eq!(scene.pid("sg1"), pid, "{what}");
        }
        assert_ne!(scene.pid("sg3"), other, "{what}: it is of the new program");
        scene.pass();
        assert!(scene.reaches(), "{what}");
        // The first program has what it was started with, which another one does not get.
        match open {
            Some(open) => scene.leaks_nothing(what, open),
            None => open = Some(scene.open()),
        }
    }
    drop((line, honest));
    scene.finish();
}

/// Sets its flag when it is dropped, also by a panic.
struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
