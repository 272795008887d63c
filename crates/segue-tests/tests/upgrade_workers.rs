//! Tests of two workers under load through live upgrades and reloads: no datagram is lost or overtaken, no connection
//! ends, and both workers carry packets before and afterwards.

#[path = "common/workers.rs"]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{cable, in_parallel, on_one_processor, shares};
use segue_lab::{Family, Host, LinkForm, Peer, Process, reach};
use segue_tests::capture::Directory;
use segue_tests::traffic::{self, Place};
use segue_tests::{Ground, Stat, test_name};
use serde_json::Value;

/// Number of flows of datagrams in each direction, so large that the probability that one of two workers gets none is 1
/// in 2^31.
const FLOWS: usize = 32;
/// Number of datagrams under way at which the sender waits: with the round that it sends next they are far fewer than
/// any socket buffer or queue holds while a process takes over from another one.
const WINDOW: u64 = FLOWS as u64;
/// Length of a datagram in bytes.
const LEN: usize = 200;
/// Number of TCP connections.
const CONNECTIONS: usize = 6;
/// Length in bytes of a block that a connection sends and gets back.
const BLOCK: usize = 4096;
/// Number of datagrams in each direction, and of blocks of each connection, that pass between two steps of a test.
const MORE: (u64, u64) = (20 * FLOWS as u64, 10);
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(100);

/// Numbered datagrams of many flows in one direction.
struct Datagrams {
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    sending: Option<JoinHandle<u64>>,
    /// Ends with the number of datagrams, or with the first one that is not the next of its flow.
    receiving: Option<JoinHandle<Result<u64, String>>>,
}

impl Datagrams {
    fn start(from: Place<'_>, to: Place<'_>) -> Datagrams {
        let receiver = traffic::socket(to);
        receiver.set_read_timeout(Some(TICK)).unwrap();
        let address = receiver.local_addr().unwrap();
        let senders: Vec<_> = (0..FLOWS).map(|_| traffic::socket(from)).collect();
        senders.iter().for_each(|sender| sender.connect(address).unwrap());
        let (stop, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        // Known once the sender has ended.
        let sent = Arc::new(AtomicU64::new(u64::MAX));
        let (ends, count, total) = (Arc::clone(&stop), Arc::clone(&arrived), Arc::clone(&sent));
        let sending = thread::spawn(move || {
            let (mut number, mut all) = (0_u32, 0);
            while !ends.load(Ordering::Relaxed) {
                let bytes: Vec<u8> = number.to_be_bytes().into_iter().chain([0x5a; LEN - 4]).collect();
                senders.iter().for_each(|sender| _ = sender.send(&bytes).unwrap());
                (number, all) = (number + 1, all + FLOWS as u64);
                thread::sleep(Duration::from_millis(1));
                while all - count.load(Ordering::Relaxed) > WINDOW && !ends.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_micros(200));
                }
            }
            total.store(all, Ordering::Relaxed);
            all
        });
        let (ends, count) = (Arc::clone(&stop), Arc::clone(&arrived));
        let receiving = thread::spawn(move || {
            let mut next: BTreeMap<SocketAddr, u32> = BTreeMap::new();
            let (mut bytes, mut came, mut last) = ([0; 2048], 0, Instant::now());
            loop {
                match receiver.recv_from(&mut bytes) {
                    Ok((len, flow)) => {
                        let number = bytes[..len].first_chunk().map(|number| u32::from_be_bytes(*number));
                        let expected = next.entry(flow).or_insert(0);
                        if len != LEN || number != Some(*expected) {
                            ends.store(true, Ordering::Relaxed);
                            return Err(format!(
                                "of {flow} number {number:?} of {len} bytes came where {expected} was next"
                            ));
                        }
                        *expected += 1;
                        (came, last) = (came + 1, Instant::now());
                        count.store(came, Ordering::Relaxed);
                    }
                    // Where none is missing, one that came twice would come soon.
                    Err(_) if came == sent.load(Ordering::Relaxed) => return Ok(came),
                    Err(_) if last.elapsed() > PATIENCE => return Ok(came),
                    Err(_) => {}
                }
            }
        });
        Datagrams { stop, arrived, sending: Some(sending), receiving: Some(receiving) }
    }

    fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Waits until the number of those that have arrived is `goal`.
    #[track_caller]
    fn reach(&mut self, goal: u64) {
        let begin = Instant::now();
        while self.arrived() < goal {
            let ended = self.stop.load(Ordering::Relaxed);
            assert!(!ended, "the datagrams have ended: {:?}", self.receiving.take().map(JoinHandle::join));
            assert!(begin.elapsed() < PATIENCE, "{} of {goal} datagrams came", self.arrived());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the flows, all of whose datagrams must have arrived, each once.
    #[track_caller]
    fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sending.take().unwrap().join().unwrap();
        let arrived = self.receiving.take().unwrap().join().unwrap();
        assert_eq!(arrived, Ok(sent), "datagrams were lost or overtaken");
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// TCP connections that stay open, on each of which block after block goes to the far end and back.
struct Connections {
    stop: Arc<AtomicBool>,
    /// Number of blocks of each connection that came back unchanged.
    echoed: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Connections {
    fn start(from: Place<'_>, to: Place<'_>) -> Connections {
        let listener = traffic::inside(to.host, || TcpListener::bind((to.address, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let mut made = Connections { stop: Arc::new(AtomicBool::new(false)), echoed: Vec::new(), threads: Vec::new() };
        for seed in 0..CONNECTIONS {
            let near = traffic::inside(from.host, || TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
            let (far, _) = listener.accept().unwrap();
            for end in [&near, &far] {
                end.set_read_timeout(Some(PATIENCE)).unwrap();
                end.set_write_timeout(Some(PATIENCE)).unwrap();
            }
            let count = Arc::new(AtomicU64::new(0));
            let (ends, echoed) = (Arc::clone(&made.stop), Arc::clone(&count));
            made.echoed.push(count);
            made.threads.push(thread::spawn(move || echo(far)));
            made.threads.push(thread::spawn(move || send_and_compare(near, seed as u64, &ends, &echoed)));
        }
        made
    }

    fn echoed(&self) -> Vec<u64> {
        self.echoed.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Waits until each connection has echoed `more` blocks beyond those of `before`.
    #[track_caller]
    fn reach(&self, before: &[u64], more: u64) {
        let begin = Instant::now();
        while !self.echoed().iter().zip(before).all(|(now, before)| *now >= before + more) {
            assert!(begin.elapsed() < PATIENCE, "{:?} blocks came back, {before:?} before", self.echoed());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes the connections, none of which may have failed.
    #[track_caller]
    fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().unwrap().unwrap_or_else(|error| panic!("a connection failed: {error}"));
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns what comes on a stream, until its end.
fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut bytes = [0; BLOCK];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            len => stream.write_all(&bytes[..len])?,
        }
    }
}

/// Sends blocks that differ, and compares each with what comes back, until `ends`.
fn send_and_compare(mut stream: TcpStream, seed: u64, ends: &AtomicBool, echoed: &AtomicU64) -> io::Result<()> {
    let mut back = vec![0; BLOCK];
    for number in 0.. {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let block = (seed << 32 | number).to_be_bytes().repeat(BLOCK / 8);
        stream.write_all(&block)?;
        stream.read_exact(&mut back)?;
        if back != block {
            return Err(io::Error::other(format!("block {number} came back changed")));
        }
        echoed.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Datagrams in both directions, and connections, between two hosts.
struct Load {
    datagrams: [Datagrams; 2],
    connections: Connections,
}

impl Load {
    fn start(a: Place<'_>, b: Place<'_>) -> Load {
        let datagrams = [Datagrams::start(a, b), Datagrams::start(b, a)];
        Load { datagrams, connections: Connections::start(a, b) }
    }

    /// Waits until more of everything has passed, of which each of two workers must have received a part from each
    /// port.
    #[track_caller]
    fn pass(&mut self, ports: [&str; 2], stat: impl Fn() -> Stat) {
        let received = || {
            let stat = stat();
            ports.map(|port| shares(&stat, port))
        };
        let before = received();
        let echoed = self.connections.echoed();
        let goals = self.datagrams.each_ref().map(|datagrams| datagrams.arrived() + MORE.0);
        self.datagrams.iter_mut().zip(goals).for_each(|(datagrams, goal)| datagrams.reach(goal));
        self.connections.reach(&echoed, MORE.1);
        let after = received();
        for ((port, before), after) in ports.iter().zip(before).zip(after) {
            let is_shared =
                after.len() == 2 && before.len() == 2 && after.iter().zip(&before).all(|(now, old)| now > old);
            assert!(is_shared, "{port}: {before:?}, then {after:?}");
        }
    }

    #[track_caller]
    fn finish(self) {
        self.datagrams.into_iter().for_each(Datagrams::finish);
        self.connections.finish();
    }
}

/// `segue run` in a host, by a program file of its own that can be replaced.
struct Service<'a> {
    host: &'a Host,
    directory: Directory,
    content: Vec<u8>,
    process: Process,
}

impl<'a> Service<'a> {
    #[track_caller]
    fn start(host: &'a Host, program: &Path, text: &str) -> Service<'a> {
        let (directory, content) = (Directory::new(), fs::read(program).expect("the program"));
        replace(&directory.file("segue"), &content);
        fs::write(directory.file("near.toml"), text).expect("a file");
        let mut command = host.command(directory.file("segue"));
        command.args(["run", "-j", "-c"]).arg(directory.file("near.toml"));
        let mut process = Process::spawn(command, b"").expect("segue starts");
        process.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        Service { host, directory, content, process }
    }

    fn program(&self) -> PathBuf {
        self.directory.file("segue")
    }

    fn stat(&self, name: &str) -> Stat {
        Stat::read(self.host, &self.program(), name)
    }

    fn pid(&self, name: &str) -> u64 {
        self.stat(name).json()["pid"].as_u64().expect("a process id")
    }

    /// Runs `segue` with these words and returns the JSON that it prints.
    #[track_caller]
    fn json(&self, line: &str) -> Value {
        let output = self.host.command(self.program()).args(line.split(' ')).output().expect("segue runs");
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(output.status.success(), "{line}: {stdout}{stderr}{}", self.process.stderr());
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
    }

    /// Changes the file and has the service read it.
    #[track_caller]
    fn reload(&self, text: &str) -> Value {
        fs::write(self.directory.file("near.toml"), text).expect("a file");
        self.json("reload near -j")
    }

    /// Has the service continue with another program, which is the same and a byte longer.
    #[track_caller]
    fn upgrade(&self) -> Value {
        replace(&self.program(), &[&self.content[..], &[0]].concat());
        self.json("reload --upgrade near -j")["services"][0].take()
    }

    #[track_caller]
    fn stop(mut self) {
        let code = self.process.stop(PATIENCE).and_then(|end| end.code());
        assert_eq!(code, Some(0), "{}", self.process.last_words());
    }
}

/// Replaces the file at `path` by one with the given content, like a package manager.
fn replace(path: &Path, content: &[u8]) {
    let beside = path.with_extension("new");
    fs::write(&beside, content).expect("a file");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).expect("its mode");
    fs::rename(&beside, path).expect("a file in its place");
}

/// Checks that the outcome of a reload or an upgrade lists `name` under `key`, and nothing under other keys.
#[track_caller]
fn assert_only(done: &Value, key: &str, name: &str) {
    for other in ["handed_over", "restarted", "kept", "failed", "unchanged", "knobs", "started", "stopped"] {
        let listed: Vec<&str> = done[other].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert_eq!(listed, if other == key { vec![name] } else { vec![] }, "{other} in {done}");
    }
}

#[test]
fn a_gateway_with_two_workers_loses_nothing_by_an_upgrade_and_reloads() {
    let Some(ground) = Ground::apart(test_name!(), &["taskset"]) else { return };
    on_one_processor();
    let middle = Host::new("middle").unwrap();
    cable(&ground.a, &middle, "e1", "198.18.0.1/24");
    cable(&ground.b, &middle, "e2", "198.18.0.2/24");
    let file = |more: &str| format!("[[gateway]]\nin = \"e1\"\nout = \"e2\"\nname = \"gw0\"\n{more}\n");
    let two = |hold_us: u32| file(&format!("workers = 2\nnet.gro.dev.e1.hold_us = {hold_us}"));
    let service = Service::start(&middle, &ground.program, &two(50));
    let [a, b] = [(&ground.a, 1), (&ground.b, 2)]
        .map(|(host, number)| Place { host, address: std::net::Ipv4Addr::new(198, 18, 0, number).into() });
    reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
    let before = service.pid("gw0");
    in_parallel(&service.stat("gw0"));

    let mut load = Load::start(a, b);
    let mut pass = || load.pass(["e1", "e2"], || service.stat("gw0"));
    pass();
    assert_only(&service.reload(&two(50)), "unchanged", "gw0");
    pass();
    assert_only(&service.reload(&two(70)), "knobs", "gw0");
    pass();
    // Its rings belong to its process, which continues beside the new program of the service.
    assert_only(&service.upgrade(), "kept", "gw0");
    pass();
    assert_only(&service.reload(&two(90)), "knobs", "gw0");
    pass();
    assert_eq!(service.pid("gw0"), before, "the process is the same");
    load.finish();

    // Another number of workers is another instance, of the new program.
    assert_only(&service.reload(&file("workers = 1")), "restarted", "gw0");
    assert_ne!(service.pid("gw0"), before);
    reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
    service.stop();
}

#[test]
fn a_tunnel_with_two_workers_hands_over_all_flows_at_an_upgrade_and_a_reload() {
    // A link that keeps the order of packets where a worker moves to another processor under load.
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["taskset"]) else { return };
    on_one_processor();
    let tunnel = |end: Peer, net: u8| {
        let [local, remote] = [end, end.other()].map(|end| end.address(0, Family::V4));
        format!(
            "[[tunnel]]\ndev = \"sg{net}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\nencap = \"gue\"\nkey = {net}\n\
             workers = 2\nfastpath = \"off\"\naddr = \"{}\"\n",
            end.prefix(net, Family::V4)
        )
    };
    let service = Service::start(&ground.a, &ground.program, &tunnel(Peer::A, 1));
    let other = Service::start(&ground.b, &ground.program, &tunnel(Peer::B, 1));
    let [a, b] = [(&ground.a, Peer::A), (&ground.b, Peer::B)]
        .map(|(host, end)| Place { host, address: end.address(1, Family::V4) });
    reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
    let mut process = service.pid("sg1");
    [&service, &other].iter().for_each(|service| in_parallel(&service.stat("sg1")));

    let mut load = Load::start(a, b);
    load.pass(["sg1", "udp"], || service.stat("sg1"));
    for step in ["upgrade", "reload"] {
        let done = match step {
            "upgrade" => service.upgrade(),
            _ => service.reload(&(tunnel(Peer::A, 1) + &tunnel(Peer::A, 2))),
        };
        assert_only(&done, "handed_over", "sg1");
        let successor = service.pid("sg1");
        assert_ne!(successor, process, "{step}: another process");
        process = successor;
        in_parallel(&service.stat("sg1"));
        load.pass(["sg1", "udp"], || service.stat("sg1"));
    }
    load.finish();
    service.stop();
    other.stop();
}
