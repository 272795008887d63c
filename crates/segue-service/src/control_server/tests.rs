use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc;

use segue_control::protocol::REQUEST_LEN;
use serde_json::{Value, json};

use super::*;

/// Knob control whose only knob refuses every value.
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
        let bound = Bound::in_directory(&self.0, "sg0", "--name NAME", lock::PATIENCE).unwrap();
        let path = bound.file().path.clone();
        let server =
            bound.serve(Vec::new(), || Instance { name: "sg0".into(), pid: 7, ..Instance::default() }, None).unwrap();
        (server, path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn request(path: &Path, request: &[u8]) -> Value {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(request).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

#[test]
fn a_service_does_not_wait_long_for_the_lock_for_an_instance_that_does_not_run() {
    let directory = Directory::new("lock");
    let held = Lock::take(&directory.0).unwrap();
    let begin = Instant::now();
    let error = Bound::in_directory(&directory.0, "sg0", "--name NAME", SHORT_LOCK).unwrap_err();
    assert!(begin.elapsed() < lock::PATIENCE / 2, "{error:?}");
    drop(held);
    Bound::in_directory(&directory.0, "sg0", "--name NAME", SHORT_LOCK).unwrap();
}

#[test]
fn an_instance_that_ends_late_leaves_the_socket_of_the_next_one() {
    let directory = Directory::new("late");
    let (late, path) = directory.serve();
    // The next instance of the name does the same with a stale socket.
    fs::remove_file(&path).unwrap();
    let (next, same) = directory.serve();
    assert_eq!(path, same);
    late.stop();
    assert_eq!(request(&path, b"{\"get\":\"stat\"}\n")["instance"]["pid"], 7);
    next.stop();
    assert!(!path.exists());
}

#[test]
fn one_request_gets_one_answer_and_garbage_an_error() {
    let directory = Directory::new("answers");
    let (server, path) = directory.serve();
    assert_eq!(request(&path, b"{\"get\":\"stat\"}\n")["instance"]["pid"], 7);
    for garbage in [&b"\n"[..], b"{\n", b"[]\n", b"{\"get\":\"else\"}\n", b"\xff\xfe\n"] {
        assert_eq!(request(&path, garbage)["error"]["kind"], "usage", "{garbage:?}");
    }
    assert_eq!(request(&path, b"{\"get\":\"knobs\"}\n")["knobs"], json!([]));
    assert_eq!(request(&path, b"{\"set\":[[\"a\",\"1\"]]}\n")["error"]["message"], "no a");
    assert_eq!(request(&path, b"{\"set\":[[\"a\"]]}\n")["error"]["kind"], "usage");
    let long = vec![b'x'; REQUEST_LEN + 1];
    assert_eq!(request(&path, &long)["error"]["message"], "the request is too long");
    assert_eq!(request(&path, b"{\"get\":\"peers\"}\n")["peers"], Value::Null);
    let mut table = b"{\"peers\":{\"sync\":{\"peers\":[]}}}".to_vec();
    table.resize(20 * REQUEST_LEN, b' ');
    table.push(b'\n');
    assert_eq!(request(&path, &table)["error"]["message"], "this instance has no peer table", "longer than others");
    server.stop();
    assert!(!path.exists());
}

#[test]
fn a_problem_began_at_the_look_that_found_it_first() {
    let mut began = BTreeMap::new();
    let mut look = |second: u64, found: &[&str]| {
        let problem = |name: &&str| Complaint { what: format!("{name} is down"), ..Complaint::default() };
        let mut health: Vec<Complaint> = found.iter().map(problem).collect();
        complete(&mut health, &mut began, SystemTime::UNIX_EPOCH + Duration::from_secs(second));
        health.into_iter().filter_map(|problem| problem.since).collect::<Vec<_>>()
    };
    let times: Vec<String> =
        (0..5).map(|second| units::rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(second))).collect();
    let at = |second: usize| times[second].clone();
    assert_eq!(look(1, &["e0"]), [at(1)]);
    assert_eq!(look(2, &["e1", "e0"]), [at(2), at(1)]);
    assert_eq!(look(3, &["e1"]), [at(2)]);
    assert_eq!(look(4, &["e1", "e0"]), [at(2), at(4)], "one that ended begins anew");
    let mut counted = |second: u64, what: &str| {
        let mut health = [Complaint { what: what.to_owned(), ..Complaint::default() }];
        complete(&mut health, &mut began, SystemTime::UNIX_EPOCH + Duration::from_secs(second));
        health[0].since.take().unwrap()
    };
    assert_eq!([(1, "5 routes"), (2, "16 routes")].map(|(second, what)| counted(second, what)), [at(1), at(1)]);
    let mut known = [Complaint { since: Some(at(0)), fix: Some("mend it".to_owned()), ..Complaint::default() }];
    complete(&mut known, &mut began, SystemTime::now());
    assert_eq!(
        (known[0].since.as_ref(), known[0].fix.as_deref()),
        (times.first(), Some("mend it")),
        "it says it itself"
    );
}

#[test]
fn every_problem_that_is_answered_says_when_it_began_and_what_to_do() {
    let directory = Directory::new("problems");
    let bound = Bound::in_directory(&directory.0, "sg0", "--name NAME", lock::PATIENCE).unwrap();
    let path = bound.file().path.clone();
    let problem = Complaint { what: "no packet moves".into(), code: "stuck".into(), ..Complaint::default() };
    let state = move || Instance { health: vec![problem.clone()], ..Instance::default() };
    let server = bound.serve(Vec::new(), state, None).unwrap();
    let answered = || request(&path, b"{\"get\":\"stat\"}\n")["instance"]["health"][0].clone();
    let first = answered();
    assert!(first["since"].is_string() && first["fix"] == "segue help stuck", "{first}");
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(answered(), first, "it is the same problem");
    server.stop();
}

#[test]
fn silent_clients_hold_up_neither_others_nor_the_end() {
    let directory = Directory::new("silent");
    let (server, path) = directory.serve();
    let silent: Vec<UnixStream> = (0..CLIENTS + 8).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let start = Instant::now();
    assert_eq!(request(&path, b"{\"get\":\"stat\"}\n")["instance"]["name"], "sg0");
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
    let refused = Bound::in_directory(&directory.0, "sg0", "--name NAME", lock::PATIENCE).unwrap_err();
    assert_eq!((refused.kind, refused.message.as_str()), (Kind::InUse, "sg0 is already running"));
    server.stop();
    for left in [&path, &next(&path)] {
        drop(UnixListener::bind(left).unwrap());
        assert!(left.exists(), "a listener leaves its file behind");
    }
    Bound::in_directory(&directory.0, "sg0", "--name NAME", lock::PATIENCE).unwrap();
    assert!(!next(&path).exists(), "it would replace the live one");
}

#[test]
fn an_instance_whose_queue_is_full_has_its_name() {
    let directory = Directory::new("full");
    let path = path_in(&directory.0, "sg0");
    let _listener = UnixListener::bind(&path).unwrap();
    // Connections whose client is gone stay in the queue.
    while sys::connect_path(&path).is_ok() {}
    let (answers, answer) = mpsc::channel();
    let folder = directory.0.clone();
    thread::spawn(move || {
        let is_of_parent = is_of_parent(&path);
        answers
            .send((is_of_parent, Bound::in_directory(&folder, "sg0", "--name NAME", lock::PATIENCE).unwrap_err().kind))
    });
    assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok((false, Kind::InUse)));
}

#[test]
fn only_the_owner_may_open_the_socket() {
    let directory = Directory::new("mode");
    let bound = Bound::in_directory(&directory.0, "sg0", "--name NAME", lock::PATIENCE).unwrap();
    let mode = fs::metadata(&bound.file().path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_flood_of_connections_to_a_claim_socket_is_limited_and_delays_no_client() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    let directory = Directory::new("claim");
    let name = format!("segue-claim-{}", std::process::id());
    let claim = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    claim.set_nonblocking(true).unwrap();
    let connects = || sys::connect_abstract(name.as_bytes()).is_ok();
    while connects() {}
    let bound = Bound::in_directory(&directory.0, "sg0", "--name NAME", lock::PATIENCE).unwrap();
    let path = bound.file().path.clone();
    let server = bound.serve(vec![claim], Instance::default, None).unwrap();
    let start = Instant::now();
    let mut visitors = 0;
    while start.elapsed() < Duration::from_millis(500) {
        visitors += usize::from(connects());
    }
    // One more batch may fall into the interval at each end.
    let most = VISITORS * (start.elapsed().as_millis() / CLAIM_PAUSE.as_millis() + 2) as usize;
    assert!((1..=most).contains(&visitors), "{visitors} of {most}");
    assert!(request(&path, b"{\"get\":\"stat\"}\n")["instance"].is_object());
    server.stop();
}
