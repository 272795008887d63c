//! Tests of the client of etcd against members of the test's own, which answer what no good etcd does: another history,
//! revisions at the end of their range, lists without an end, documents of another program.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use segue_fleet::config::Config;
use segue_fleet::etcd::{Etcd, Login, Position};
use segue_fleet::event::Event;
use segue_fleet::follow;
use segue_fleet::network::Network;
use segue_fleet::roster::{Policy, Roster};
use segue_lab::{Host, unavailable};
use serde_json::{Value, json};

const DIRECTORY: &str = "/coreos.com/network/subnets";
/// Longest wait for any expected event.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs a test in a network namespace of its own, or notes it as skipped.
fn in_host(test: &str, work: impl FnOnce() + Send) {
    match unavailable() {
        Some(why) => segue_lab::skip(test, &why),
        None => Host::new("member").unwrap().enter(work).expect("a thread in the host"),
    }
}

/// Starts a member on a loopback port and returns its address. `answer` gets the path and the request, with the token
/// in its field `token`, and returns a document, a text that is none, or a number of MiB of white space; a watch stays
/// open after a first message without changes. A document with a field `error` has a status that says so.
fn member(answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            thread::spawn(move || serve(stream, &*answer));
        }
    });
    format!("http://{address}")
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&str, &Value) -> Value) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut head, mut len, mut token) = (String::new(), 0, String::new());
    loop {
        let begin = head.len();
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
        let line = head[begin..].trim().to_ascii_lowercase();
        if let Some(text) = line.strip_prefix("content-length:") {
            len = text.trim().parse().unwrap();
        }
        if let Some(text) = line.strip_prefix("authorization:") {
            text.trim().clone_into(&mut token);
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).unwrap();
    let path = head.split(' ').nth(1).unwrap();
    let mut request: Value = serde_json::from_slice(&body).unwrap();
    request["token"] = token.into();
    let answer = answer(path, &request);
    let text = answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
    let is_open = path == "/v3/watch" && text.contains("created") && !text.contains("events");
    let is_open = is_open && !text.contains("canceled");
    let status = if answer["error"].is_null() { "200 OK" } else { "400 Bad Request" };
    // The body ends with the connection.
    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\nConnection: close\r\n\r\n").as_bytes());
    for _ in 0..answer.as_u64().unwrap_or(0) {
        let _ = stream.write_all(&[b' '; 1 << 20]);
    }
    let _ = stream.write_all(format!("{text}\n").as_bytes());
    if is_open {
        // Until the client ends it.
        let _ = reader.read(&mut [0]);
    }
}

fn header(revision: i64, cluster: &str) -> Value {
    json!({ "revision": revision.to_string(), "cluster_id": cluster })
}

fn created(revision: i64, cluster: &str) -> Value {
    json!({ "result": { "header": header(revision, cluster), "created": true } })
}

fn policy(limit: usize) -> Policy {
    Policy {
        config: Config::parse(br#"{"Network":"198.19.0.0/16","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#).unwrap(),
        directory: DIRECTORY.to_owned(),
        address: [198, 18, 0, 1].into(),
        local: None,
        subnet: Network::parse("198.19.1.0/24").unwrap(),
        mac: None,
        limit,
    }
}

fn client(members: &[&str]) -> Etcd {
    client_of(members, None)
}

fn client_of(members: &[&str], login: Option<Login>) -> Etcd {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    Etcd::new(agent, members.iter().map(|&member| member.to_owned()).collect(), login)
}

/// Follows a member and returns the events.
fn follow(member: &str) -> Receiver<Event> {
    follow_with(client(&[member]))
}

fn follow_with(client: Etcd) -> Receiver<Event> {
    let (events, inbox) = mpsc::sync_channel(16);
    thread::spawn(move || follow::run(client, &policy(10), PATIENCE, &events, &AtomicBool::new(false)));
    inbox
}

/// Returns the revision of the next event, which must be a list.
#[track_caller]
fn listed(events: &Receiver<Event>) -> i64 {
    match events.recv_timeout(PATIENCE).unwrap() {
        Event::Listed(_, revision) => revision,
        event => panic!("no list: {event:?}"),
    }
}

#[test]
fn a_member_with_another_history_is_listed_anew() {
    in_host("a_member_with_another_history_is_listed_anew", || {
        // The end of the history at the second list, and the cluster of it: an earlier end, and a later one of another
        // cluster, whose id does not fit into 63 bits.
        for (revision, cluster) in [(50, "17"), (200, "14841639068965178418")] {
            let (lists, begins) = (AtomicUsize::new(0), Arc::new(Mutex::new(Vec::new())));
            let seen = Arc::clone(&begins);
            let url = member(move |path, request| {
                if path == "/v3/watch" {
                    let begin = request["create_request"]["start_revision"].as_str().unwrap().to_owned();
                    begins.lock().unwrap().push(begin);
                    return created(revision, cluster);
                }
                match lists.fetch_add(1, Ordering::SeqCst) {
                    0 => json!({ "header": header(100, "17") }),
                    _ => json!({ "header": header(revision, cluster) }),
                }
            });
            let events = follow(&url);
            // No watch is reported as begun before the list.
            assert_eq!((listed(&events), listed(&events)), (100, revision));
            let event = events.recv_timeout(PATIENCE).unwrap();
            assert!(matches!(&event, Event::Changed(batch, _) if batch.changes.is_empty()), "{event:?}");
            assert_eq!(*seen.lock().unwrap(), ["101".to_owned(), (revision + 1).to_string()]);
        }
    });
}

#[test]
fn a_list_that_is_due_waits_for_the_end_of_the_watch() {
    in_host("a_list_that_is_due_waits_for_the_end_of_the_watch", || {
        let list_again = Arc::new(AtomicBool::new(false));
        let due = Arc::clone(&list_again);
        let key = STANDARD.encode(format!("{DIRECTORY}/198.19.9.0-24"));
        // One key comes and goes, where there are more keys than places.
        let url = member(move |path, _| {
            if path != "/v3/watch" {
                return json!({ "header": header(7, "17") });
            }
            due.store(true, Ordering::SeqCst);
            let change = |revision: i64| {
                let event = json!({ "type": "DELETE", "kv": { "key": key, "mod_revision": revision.to_string() } });
                json!({ "result": { "header": header(revision, "17"), "events": [event] } })
            };
            [created(100, "17"), change(8), change(9)].map(|message| message.to_string()).join("\n").into()
        });
        let (events, inbox) = mpsc::sync_channel(16);
        let client = client(&[&url]);
        thread::spawn(move || follow::run(client, &policy(10), PATIENCE, &events, &list_again));
        for _ in 0..2 {
            assert_eq!(listed(&inbox), 7);
            for expected in [0, 8, 9] {
                let event = inbox.recv_timeout(PATIENCE).unwrap();
                assert!(matches!(&event, Event::Changed(batch, _) if batch.revision == expected), "{event:?}");
            }
        }
    });
}

#[test]
fn revisions_at_the_end_of_their_range_end_no_thread() {
    in_host("revisions_at_the_end_of_their_range", || {
        let lists = AtomicUsize::new(0);
        let key = STANDARD.encode(format!("{DIRECTORY}/198.19.9.0-24"));
        let url = member(move |path, _| {
            if path == "/v3/watch" {
                let mut message = created(7, "17");
                message["result"]["events"] =
                    json!([{ "type": "DELETE", "kv": { "key": key, "mod_revision": i64::MAX.to_string() } }]);
                return message;
            }
            match lists.fetch_add(1, Ordering::SeqCst) {
                0 => json!({ "header": header(i64::MAX, "17") }),
                _ => json!({ "header": header(7, "17") }),
            }
        });
        let events = follow(&url);
        assert_eq!((listed(&events), listed(&events)), (i64::MAX, 7));
        // No watch can follow on its last revision.
        let event = events.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(&event, Event::Changed(batch, _) if batch.revision == i64::MAX), "{event:?}");
        assert_eq!(listed(&events), 7);
    });
}

#[test]
fn a_member_whose_list_has_no_end_is_left_for_the_next_one() {
    in_host("a_member_whose_list_has_no_end", || {
        let key = |name: &str| json!({ "key": STANDARD.encode(format!("{DIRECTORY}/{name}")), "value": "" });
        let good = member(|_, _| json!({ "header": header(7, "17") }));
        // The same page again and again, keys that go back within a page, and pages without a key.
        for page in [json!([key("a"), key("b")]), json!([key("b"), key("a")]), json!([])] {
            let bad = member(move |_, _| json!({ "header": header(7, "17"), "more": true, "kvs": page }));
            // A client begins with a member at random.
            let clients = std::iter::repeat_with(|| client(&[&bad, &good]));
            let mut etcd = clients.into_iter().find(|etcd| etcd.endpoint() == bad).unwrap();
            let (done, outcome) = mpsc::channel();
            thread::spawn(move || {
                let first = etcd.list(DIRECTORY, |_| {}).map_err(|error| error.to_string());
                done.send((first, etcd.list(DIRECTORY, |_| {}).map(|listed| listed.revision))).unwrap();
            });
            let (first, second) = outcome.recv_timeout(PATIENCE).unwrap();
            assert!(first.is_err_and(|error| error.contains(&bad) && error.contains("not in order")));
            assert_eq!(second.unwrap(), 7);
        }
    });
}

#[test]
fn a_watch_that_is_cancelled_for_its_token_begins_again_with_another_one() {
    in_host("a_watch_that_is_cancelled_for_its_token", || {
        let old = "etcdserver: revision of auth store is old";
        for (reason, is_listed) in [
            ("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token", true),
            ("permission denied", true),
            // Also where the list is refused for it, whose status is that of a wrong argument.
            (old, true),
            (old, false),
        ] {
            let logins = AtomicUsize::new(0);
            let url = member(move |path, request| {
                let is_old = request["token"] == "token-1";
                match path {
                    "/v3/auth/authenticate" => {
                        let number = logins.fetch_add(1, Ordering::SeqCst) + 1;
                        json!({ "header": header(7, "17"), "token": format!("token-{number}") })
                    }
                    "/v3/watch" if is_old => {
                        let mut message = created(7, "17");
                        message["result"]["canceled"] = true.into();
                        message["result"]["cancel_reason"] = reason.into();
                        message
                    }
                    "/v3/watch" => created(7, "17"),
                    _ if is_old && !is_listed => json!({ "error": old, "message": old, "code": 3 }),
                    _ => json!({ "header": header(7, "17") }),
                }
            });
            let login = Login { name: "agent".to_owned(), password: "secret".to_owned() };
            let events = follow_with(client_of(&[&url], Some(login)));
            assert_eq!(listed(&events), 7);
            let mut event = events.recv_timeout(PATIENCE).unwrap();
            if is_listed {
                assert!(matches!(&event, Event::Stale(why) if why.contains(reason)), "{reason}: {event:?}");
                event = events.recv_timeout(PATIENCE).unwrap();
            }
            assert!(matches!(&event, Event::Changed(batch, _) if batch.changes.is_empty()), "{reason}: {event:?}");
        }
    });
}

/// Answers as a member without keys does.
fn without_keys(path: &str, _: &Value) -> Value {
    match path {
        "/v3/watch" => created(7, "17"),
        "/v3/lease/grant" => json!({ "header": header(7, "17"), "ID": "5", "TTL": "60" }),
        "/v3/lease/keepalive" => json!({ "result": { "header": header(7, "17"), "ID": "5", "TTL": "60" } }),
        _ => json!({ "header": header(7, "17") }),
    }
}

/// Makes each call that a host depends on up to twice, and returns the names of those that failed.
fn failures(mut etcd: impl FnMut() -> Etcd) -> Vec<&'static str> {
    let from = Position { revision: 7, cluster: "17".to_owned() };
    let watch = |etcd: &mut Etcd| {
        let mut began = false;
        let outcome = etcd.watch(DIRECTORY, &from, PATIENCE, |_| {
            began = true;
            false
        });
        outcome.is_ok() && began
    };
    let mut twice = |name, call: &dyn Fn(&mut Etcd) -> bool| {
        let mut etcd = etcd();
        (!call(&mut etcd) && !call(&mut etcd)).then_some(name)
    };
    let ttl = Duration::from_secs(60);
    let failed = [
        twice("get", &|etcd| etcd.get("/n/config").is_ok()),
        twice("list", &|etcd| etcd.list(DIRECTORY, |_| {}).is_ok()),
        twice("grant", &|etcd| etcd.grant(ttl).is_ok()),
        twice("keep_alive", &|etcd| etcd.keep_alive(5).is_ok_and(|is_alive| is_alive)),
        twice("watch", &watch),
    ];
    failed.into_iter().flatten().collect()
}

#[test]
fn a_member_whose_answer_is_not_etcds_is_left_for_the_next_one() {
    in_host("a_member_whose_answer_is_not_etcds", || {
        let good = member(without_keys);
        let small_values = json!({ "kvs": vec![json!({}); 10_000] });
        let not_etcds = [json!("<html>"), json!({ "header": 7 }), json!({}), small_values, json!(17)];
        // Those that refuse with a status that says so, and with status 200.
        let refusals = [("no route", 0), ("permission denied", 7), ("compacted", 11), ("invalid auth token", 16)]
            .map(|(text, code)| json!({ "error": text, "message": text, "code": code }));
        let with_success = refusals.clone().map(|refusal| json!(refusal.to_string()));
        for document in not_etcds.into_iter().chain(refusals).chain(with_success) {
            let begin: String = document.to_string().chars().take(20).collect();
            let bad = member(move |_, _| document.clone());
            for first in [&bad, &good] {
                // A client begins with a member at random.
                let clients = || std::iter::repeat_with(|| client(&[&bad, &good]));
                let failed = failures(|| clients().find(|etcd| etcd.endpoint() == first).unwrap());
                assert_eq!(failed, [""; 0], "{begin} of {bad}, first {first}");
            }
        }
        let bad = member(|_, _| json!({ "kvs": vec![json!({}); 10_000] }));
        let error = client(&[&bad]).get("/n/config").unwrap_err().to_string();
        assert!(error.contains("not etcd's") && error.contains("too much memory"), "{error}");
    });
}

#[test]
fn a_member_whose_login_gives_no_token_is_left_for_the_next_one() {
    in_host("a_member_whose_login_gives_no_token", || {
        let login = Login { name: "agent".to_owned(), password: "secret".to_owned() };
        let good = member(|path, request| match path {
            "/v3/auth/authenticate" => json!({ "header": header(7, "17"), "token": "good.7" }),
            _ if request["token"] == "good.7" => without_keys(path, request),
            _ => json!({ "error": "etcdserver: invalid auth token", "code": 16 }),
        });
        for token in ["a\n", "\u{7f}"] {
            let bad = member(move |path, request| match path {
                "/v3/auth/authenticate" => json!({ "header": header(7, "17"), "token": token }),
                _ => without_keys(path, request),
            });
            let clients = || std::iter::repeat_with(|| client_of(&[&bad, &good], Some(login.clone())));
            let failed = failures(|| clients().find(|etcd| etcd.endpoint() == bad).unwrap());
            assert_eq!(failed, [""; 0], "{token:?}");
        }
    });
}

#[test]
fn a_list_that_is_called_compacted_is_a_failure_to_reach_the_registry() {
    in_host("a_list_that_is_called_compacted", || {
        let lists = AtomicUsize::new(0);
        let url = member(move |path, _| match path {
            "/v3/watch" => created(7, "17"),
            _ if lists.fetch_add(1, Ordering::SeqCst) < 2 => json!({ "error": "compacted", "code": 11 }),
            _ => json!({ "header": header(7, "17") }),
        });
        let events = follow(&url);
        for _ in 0..2 {
            let event = events.recv_timeout(PATIENCE).unwrap();
            assert!(matches!(&event, Event::Stale(why) if why.contains("compacted")), "{event:?}");
        }
        assert_eq!(listed(&events), 7);
    });
}

/// Returns the most memory that this process has had, bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn a_long_list_takes_the_memory_of_what_is_kept() {
    const PAGES: usize = 60;
    const PAGE: usize = 1000;
    const LIMIT: usize = 100;
    // They have 240 MiB in all.
    const MOST: usize = 120 << 20;
    const NAME: &str = "a_long_list_takes_the_memory_of_what_is_kept";
    /// Set in the process that runs this test alone: other tests have answers of many MiB.
    const ALONE: &str = "SEGUE_MEMBER_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let program = std::env::current_exe().unwrap();
        let alone = Command::new(program).args(["--exact", NAME, "--nocapture"]).env(ALONE, "1").status();
        assert!(alone.unwrap().success());
        return;
    }
    in_host(NAME, || {
        let value = STANDARD.encode(vec![b'x'; 4096]);
        let pages = AtomicUsize::new(0);
        let url = member(move |_, _| {
            let page = pages.fetch_add(1, Ordering::SeqCst);
            let kv = |n: usize| {
                let key = STANDARD.encode(format!("{DIRECTORY}/wrong-{page:05}-{n:05}"));
                json!({ "key": key, "value": value, "mod_revision": "1" })
            };
            let kvs: Vec<Value> = (0..PAGE).map(kv).collect();
            json!({ "header": header(7, "17"), "more": page + 1 < PAGES, "kvs": kvs })
        });
        let mut roster = Roster::new(policy(LIMIT));
        client(&[&url]).list(DIRECTORY, |record| roster.put(&record)).unwrap();
        let judged = roster.judged();
        assert_eq!((judged.refused.len(), judged.left_out), (LIMIT, PAGES * PAGE - LIMIT));
        let keys: BTreeSet<&String> = judged.refused.iter().map(|(key, _)| key).collect();
        assert_eq!(keys.len(), LIMIT);
        assert!(peak() < MOST, "{} MiB", peak() >> 20);
    });
}
