//! Tests of the leases of etcd of an agent that etcd refuses, or does not answer: its attempts do not leave one lease
//! each, and no lease keeps two subnets alive. Nor do two agents that have one address.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use segue_fleet::args::{Cli, Command};
use segue_fleet::connect;
use segue_fleet::datapath::LocalEndpoint;
use segue_fleet::event::Event;
use segue_fleet::keeper::{self, Terms};
use serde_json::{Value, json};

/// Longest wait for any expected event.
const PATIENCE: Duration = Duration::from_secs(60);
/// A time to live with short waits between attempts: they are at most a quarter of it.
const SHORT: Duration = Duration::from_millis(400);
/// `{"Network":"198.19.0.0/16"}` of the key `/coreos.com/network/config`.
const CONFIG: &str = r#"{"header":{"cluster_id":"1","revision":"1"},"kvs":[{"key":"L2NvcmVvcy5jb20vbmV0d29yay9jb25maWc=","value":"eyJOZXR3b3JrIjoiMTk4LjE5LjAuMC8xNiJ9","mod_revision":"1","create_revision":"1"}]}"#;
/// The key of the configuration in base64, as etcd has it.
const CONFIG_KEY: &str = "L2NvcmVvcy5jb20vbmV0d29yay9jb25maWc=";

/// Reads one request, and returns its path and its document.
fn request(client: &TcpStream) -> Option<(String, String)> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let (mut line, mut len) = (String::new(), 0);
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().to_ascii_lowercase().strip_prefix("content-length:") {
            Some(text) => len = text.trim().parse().ok()?,
            None if line.trim_end().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some((path, String::from_utf8_lossy(&body).into_owned()))
}

fn reply(mut client: TcpStream, status: &str, text: &str) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
    let _ = client.write_all(format!("{head}{text}").as_bytes());
}

/// Answers one request like an etcd whose user may read but not write, and reports its path.
fn answer(client: TcpStream, number: usize, paths: &mpsc::Sender<String>) -> Option<()> {
    let (path, body) = request(&client)?;
    let is_config = body.contains(CONFIG_KEY);
    let (status, text) = match path.as_str() {
        "/v3/kv/range" if is_config => ("200 OK", CONFIG.to_owned()),
        "/v3/kv/range" => ("200 OK", r#"{"header":{"cluster_id":"1","revision":"1"}}"#.to_owned()),
        "/v3/lease/grant" => ("200 OK", format!(r#"{{"ID":"{number}","TTL":"60"}}"#)),
        "/v3/lease/keepalive" => ("200 OK", r#"{"result":{"ID":"1","TTL":"60"}}"#.to_owned()),
        "/v3/lease/revoke" => ("200 OK", "{}".to_owned()),
        _ => ("403 Forbidden", r#"{"code":7,"message":"etcdserver: permission denied"}"#.to_owned()),
    };
    let _ = paths.send(path);
    reply(client, status, &text);
    Some(())
}

/// Starts a keeper of this cluster, which ends with the receiver of its events, or the sender of checks.
fn keep(url: &str, ttl: Duration) -> (Receiver<Event>, Sender<()>, thread::JoinHandle<()>) {
    let words = ["segue-fleet", "etcd", "--endpoints", url, "--public-ip", "198.18.0.1", "--ttl", "60s"];
    let Command::Etcd(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
    let terms = Terms {
        prefix: args.prefix.clone(),
        address: [198, 18, 0, 1].into(),
        name: "t1".to_owned(),
        end: LocalEndpoint { listen: vec!["fou:8285".to_owned()], ..LocalEndpoint::default() },
        offer: None,
        ttl,
        before: None,
    };
    let client = connect::etcd(&args).unwrap();
    let (events, inbox) = mpsc::sync_channel(1);
    let (check, checks) = mpsc::channel();
    let keeper = thread::spawn(move || keeper::run(client, &terms, &events, &checks));
    (inbox, check, keeper)
}

#[test]
fn an_agent_that_may_not_write_leaves_one_lease_of_etcd_however_often_it_tries() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, paths) = mpsc::channel();
    thread::spawn(move || {
        for (client, number) in listener.incoming().map_while(Result::ok).zip(1..) {
            answer(client, number, &sender);
        }
    });
    let (inbox, _check, keeper) = keep(&url, SHORT);
    for _ in 0..10 {
        match inbox.recv_timeout(PATIENCE).unwrap() {
            Event::Stale(why) => assert!(why.contains("permission denied"), "{why}"),
            _ => panic!("not a refused attempt"),
        }
    }
    drop(inbox);
    keeper.join().unwrap();
    let paths: Vec<String> = paths.try_iter().collect();
    let count = |path: &str| paths.iter().filter(|asked| *asked == path).count();
    assert!(count("/v3/kv/txn") >= 10, "{paths:?}");
    assert!(count("/v3/lease/grant") <= count("/v3/lease/revoke") + 1, "{paths:?}");
}

/// An etcd that leaves the first put without an answer, and executes it later.
#[derive(Default)]
struct Registry {
    /// The lease and the value of each key, in base64 as they came.
    keys: BTreeMap<String, (String, String)>,
    first: Option<Value>,
    puts: usize,
    grants: usize,
    renewals: u32,
    revoked: BTreeSet<String>,
    /// Whether another host gets the first subnet meanwhile; the first put then stays to be executed.
    is_taken: bool,
    /// Whether there is no room for puts.
    is_full: bool,
}

impl Registry {
    /// Returns the answer to a request, or `None` for none.
    fn answer(&mut self, path: &str, request: &Value) -> Option<Value> {
        let header = json!({ "cluster_id": "1", "revision": "1" });
        let id = request["ID"].as_str().unwrap_or_default();
        Some(match path {
            "/v3/kv/range" if request["key"] == CONFIG_KEY => serde_json::from_str(CONFIG).unwrap(),
            "/v3/kv/range" => json!({ "header": header, "kvs": self.list(request) }),
            "/v3/kv/txn" if self.is_full => json!({ "error": "etcdserver: mvcc: database space exceeded", "code": 8 }),
            "/v3/kv/txn" => {
                self.puts += 1;
                if self.puts == 1 {
                    self.first = Some(request.clone());
                    return None;
                }
                json!({ "header": header, "succeeded": self.put(request) })
            }
            "/v3/lease/grant" => {
                self.grants += 1;
                json!({ "header": header, "ID": self.grants.to_string(), "TTL": "60" })
            }
            "/v3/lease/keepalive" => {
                self.renewals += 1;
                let ttl = if self.revoked.contains(id) { "0" } else { "60" };
                json!({ "result": { "header": header, "ID": id, "TTL": ttl } })
            }
            "/v3/lease/revoke" => {
                self.revoked.insert(id.to_owned());
                self.keys.retain(|_, (lease, _)| lease != id);
                json!({ "header": header })
            }
            _ => panic!("{path}"),
        })
    }

    /// Returns the key or all keys, as is asked, and executes the first put after that.
    fn list(&mut self, request: &Value) -> Value {
        if let (true, Some(first)) = (self.is_taken, &self.first) {
            let other = "eyJQdWJsaWNJUCI6IjE5OC4xOC4wLjIifQ==";
            self.keys.insert(key(first), ("other".to_owned(), other.to_owned()));
        }
        let entry = |(key, (lease, value)): (&String, &(String, String))| json!({ "key": key, "value": value, "lease": lease, "mod_revision": "1", "create_revision": "1" });
        let is_asked = |key: &str| request["range_end"].is_string() || request["key"] == key;
        let listed = self.keys.iter().filter(|(key, _)| is_asked(key)).map(entry).collect();
        if let Some(first) = self.first.take_if(|_| !self.is_taken) {
            self.put(&first);
        }
        listed
    }

    fn put(&mut self, request: &Value) -> bool {
        let put = &request["success"][0]["requestPut"];
        let [lease, value] = ["lease", "value"].map(|field| put[field].as_str().unwrap().to_owned());
        let is_new = request["compare"][0]["target"] == "VERSION";
        let is_right = is_new != self.keys.contains_key(&key(request)) && !self.revoked.contains(&lease);
        if is_right {
            self.keys.insert(key(request), (lease, value));
        }
        is_right
    }
}

/// Returns the key of a put.
fn key(request: &Value) -> String {
    request["success"][0]["requestPut"]["key"].as_str().unwrap().to_owned()
}

/// Serves a registry on a loopback port, and returns it with its address.
fn serve(registry: Registry) -> (Arc<Mutex<Registry>>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let registry = Arc::new(Mutex::new(registry));
    let shared = Arc::clone(&registry);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Some((path, body)) = request(&client) else { continue };
            let answer = shared.lock().unwrap().answer(&path, &serde_json::from_str(&body).unwrap());
            if let Some(answer) = answer {
                reply(client, "200 OK", &answer.to_string());
            }
        }
    });
    (registry, url)
}

#[test]
fn a_put_that_is_executed_after_its_time_leaves_no_lease_with_two_subnets() {
    for is_taken in [false, true] {
        let (registry, url) = serve(Registry { is_taken, ..Registry::default() });
        let (inbox, _check, keeper) = keep(&url, SHORT);
        loop {
            match inbox.recv_timeout(PATIENCE).unwrap() {
                Event::Stale(_) => {}
                Event::Acquired(_) => break,
                event => panic!("no lease: {event:?}"),
            }
        }
        drop(inbox);
        keeper.join().unwrap();
        let mut registry = registry.lock().unwrap();
        registry.keys.retain(|_, (lease, _)| lease != "other");
        if let Some(first) = registry.first.take() {
            registry.put(&first);
        }
        let leases: Vec<&String> = registry.keys.values().map(|(lease, _)| lease).collect();
        let expected = if is_taken { "2" } else { "1" };
        assert_eq!(leases, [expected], "taken: {is_taken}");
        assert!(registry.grants <= registry.revoked.len() + 1);
    }
}

#[test]
fn of_two_agents_with_one_address_one_ends_and_they_leave_no_leases() {
    // No put is left without an answer.
    let (registry, url) = serve(Registry { puts: 1, ..Registry::default() });
    let begin = Instant::now();
    let agents: Vec<_> = (0..2)
        .map(|_| {
            let agent = keep(&url, PATIENCE);
            assert!(matches!(agent.0.recv_timeout(PATIENCE).unwrap(), Event::Acquired(_)));
            agent
        })
        .collect();
    let mut ended: Vec<String> = Vec::new();
    let mut last = None;
    // A second more shows that the other one stays.
    while last.is_none_or(|last: Instant| last.elapsed() < Duration::from_secs(1)) {
        assert!(begin.elapsed() < PATIENCE, "none has ended");
        for (inbox, check, _) in &agents {
            // The registry reports what either of them writes.
            let _ = check.send(());
            match inbox.try_recv() {
                Ok(Event::Fatal(error)) => {
                    ended.push(error.message);
                    last = Some(Instant::now());
                }
                Ok(Event::Renewed { .. }) | Err(_) => {}
                Ok(event) => panic!("{event:?}"),
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ended, ["another agent has the address 198.18.0.1"]);
    let registry = registry.lock().unwrap();
    assert!(registry.puts <= 1 + 2 + 3, "{} puts", registry.puts - 1);
    assert!(registry.grants <= registry.revoked.len() + 2, "{} of {}", registry.revoked.len(), registry.grants);
    let half_seconds = u32::try_from(begin.elapsed().as_millis() / 500).unwrap();
    assert!(registry.renewals <= 2 * (half_seconds + 1), "{} in {half_seconds} half seconds", registry.renewals);
}

#[test]
fn an_administrator_who_writes_a_lease_time_and_again_is_no_other_agent() {
    // No put is left without an answer.
    let (registry, url) = serve(Registry { puts: 1, ..Registry::default() });
    let (inbox, check, _keeper) = keep(&url, PATIENCE);
    assert!(matches!(inbox.recv_timeout(PATIENCE).unwrap(), Event::Acquired(_)));
    for _ in 0..3 {
        let value = {
            let mut registry = registry.lock().unwrap();
            let (lease, value) = registry.keys.values_mut().next().unwrap();
            // {"PublicIP":"198.18.0.1"}
            let own = std::mem::replace(value, "eyJQdWJsaWNJUCI6IjE5OC4xOC4wLjEifQ==".to_owned());
            "0".clone_into(lease);
            own
        };
        let begin = Instant::now();
        while registry.lock().unwrap().keys.values().all(|(_, now)| *now != value) {
            assert!(begin.elapsed() < PATIENCE, "it is not written again");
            check.send(()).unwrap();
            if let Ok(event) = inbox.recv_timeout(Duration::from_millis(20)) {
                assert!(matches!(event, Event::Renewed { .. }), "{event:?}");
            }
        }
    }
    // It is a reservation, until it is removed.
    until((&inbox, &check), "a reservation", &|event| matches!(event, Event::Renewed { expires: false }));
    registry.lock().unwrap().keys.clear();
    until((&inbox, &check), "a lease", &|event| matches!(event, Event::Renewed { expires: true }));
}

/// Asks a keeper to look at its lease until an event is the expected one.
#[track_caller]
fn until((inbox, check): (&Receiver<Event>, &Sender<()>), what: &str, is_it: &dyn Fn(&Event) -> bool) {
    let begin = Instant::now();
    loop {
        check.send(()).unwrap();
        let event = inbox.recv_timeout(PATIENCE).unwrap();
        if is_it(&event) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: {event:?}");
    }
}

#[test]
fn a_lease_that_is_gone_and_cannot_be_made_again_is_reported_as_gone() {
    // No put is left without an answer.
    let (registry, url) = serve(Registry { puts: 1, ..Registry::default() });
    let (inbox, check, _keeper) = keep(&url, PATIENCE);
    assert!(matches!(inbox.recv_timeout(PATIENCE).unwrap(), Event::Acquired(_)));
    let until = |what, is_it: &dyn Fn(&Event) -> bool| until((&inbox, &check), what, is_it);
    registry.lock().unwrap().is_full = true;
    until("it needs no put", &|event| matches!(event, Event::Renewed { .. }));
    // What an administrator has put in its place names this host: {"PublicIP":"198.18.0.1"}
    let value = "eyJQdWJsaWNJUCI6IjE5OC4xOC4wLjEifQ==";
    registry.lock().unwrap().keys.values_mut().for_each(|entry| *entry = ("0".to_owned(), value.to_owned()));
    until("it is not as it was", &|event| matches!(event, Event::NotRenewed { is_gone: false, .. }));
    registry.lock().unwrap().keys.clear();
    until("it is gone", &|event| matches!(event, Event::NotRenewed { is_gone: true, .. }));
    registry.lock().unwrap().is_full = false;
    until("it is made again", &|event| matches!(event, Event::Renewed { .. }));
    assert_eq!(registry.lock().unwrap().keys.len(), 1);
}

#[test]
fn a_lease_is_renewed_while_the_agent_takes_no_event() {
    // No put is left without an answer.
    let (registry, url) = serve(Registry { puts: 1, ..Registry::default() });
    let (inbox, _check, _keeper) = keep(&url, SHORT);
    assert!(matches!(inbox.recv_timeout(PATIENCE).unwrap(), Event::Acquired(_)));
    let begin = Instant::now();
    while registry.lock().unwrap().renewals < 5 {
        assert!(begin.elapsed() < PATIENCE, "it waits");
        thread::sleep(Duration::from_millis(10));
    }
    // What was said first, and what came last.
    for _ in 0..2 {
        assert!(matches!(inbox.recv_timeout(PATIENCE).unwrap(), Event::Renewed { .. }));
    }
}

#[test]
fn a_lease_with_an_ipv6_part_is_lost_to_one_of_another_host_without() {
    // `/coreos.com/network/subnets/` and 198.19.7.0-24 or 198.19.7.0-24&2001:db8:7::-64
    let usual = "L2NvcmVvcy5jb20vbmV0d29yay9zdWJuZXRzLzE5OC4xOS43LjAtMjQ=";
    let dual = "L2NvcmVvcy5jb20vbmV0d29yay9zdWJuZXRzLzE5OC4xOS43LjAtMjQmMjAwMTpkYjg6Nzo6LTY0";
    // {"PublicIP":"198.18.0.1"} and {"PublicIP":"198.18.0.2"}
    let entry = |value: &str| ("77".to_owned(), value.to_owned());
    let [own, other] = ["eyJQdWJsaWNJUCI6IjE5OC4xOC4wLjEifQ==", "eyJQdWJsaWNJUCI6IjE5OC4xOC4wLjIifQ=="].map(entry);
    // No put is left without an answer.
    let keys = BTreeMap::from([(dual.to_owned(), own.clone())]);
    let (registry, url) = serve(Registry { puts: 1, keys, ..Registry::default() });
    let subnet = |inbox: &Receiver<Event>| match inbox.recv_timeout(PATIENCE).unwrap() {
        Event::Acquired(acquired) => acquired.subnet.to_string(),
        event => panic!("no lease: {event:?}"),
    };
    let (inbox, check, keeper) = keep(&url, PATIENCE);
    assert_eq!(subnet(&inbox), "198.19.7.0/24");
    let put = |entry| registry.lock().unwrap().keys.insert(usual.to_owned(), entry);
    // One of this host costs nothing.
    put(own);
    until((&inbox, &check), "it is renewed", &|event| matches!(event, Event::Renewed { .. }));
    put(other);
    until((&inbox, &check), "it is lost", &|event| match event {
        Event::Fatal(error) => error.message.contains("198.19.7.0-24 of 198.18.0.1 belongs to another host"),
        _ => false,
    });
    keeper.join().unwrap();
    let (inbox, ..) = keep(&url, PATIENCE);
    assert_ne!(subnet(&inbox), "198.19.7.0/24", "two hosts write one lease");
}
