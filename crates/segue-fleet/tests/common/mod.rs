//! A test bed: an etcd, agents with fake tunnels that only keep their table, and a TCP relay that can be interrupted.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use segue_control::error::{Error, Kind};
use segue_control::fleet::FleetState;
use segue_control::peers::{Change, Key, Mac, Peer, RefusedPeer, Table};
use segue_fleet::agent::{self, Announce, Settings};
use segue_fleet::args::{Cli, Command as Word};
use segue_fleet::connect;
use segue_fleet::datapath::{Datapath, LocalEndpoint, TunnelState};
use segue_fleet::event::Event;
use segue_fleet::keeper::Terms;
use segue_lab::{Host, unavailable};

/// Client port of etcd.
pub(crate) const PORT: u16 = 2379;
/// Longest wait for any expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Waits until `holds` returns true; fails after [`PATIENCE`].
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the value of a lease of flannel's VXLAN backend.
pub(crate) fn lease(address: &str, mac: &str) -> String {
    format!(
        r#"{{"PublicIP":"{address}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
    )
}

/// Runs a test with an etcd, in a network namespace of its own: nothing else takes the ports. Where it cannot run, that
/// is noted as a skipped test.
pub(crate) fn with_etcd(test: &str, work: impl FnOnce(Server) + Send) {
    let found = |name: &str| Command::new(name).arg("--help").output().is_ok();
    let why = match unavailable() {
        _ if !found("etcd") || !found("etcdctl") => "not installed: etcd, etcdctl".to_owned(),
        Some(why) => why,
        None => {
            let host = Host::new("etcd").expect("a host, since one could be made a moment ago");
            return host.enter(|| work(Server::start())).expect("a thread in the host");
        }
    };
    segue_lab::skip(test, &why);
}

/// An etcd with one member, on the loopback interface.
pub(crate) struct Server {
    process: Child,
    folder: PathBuf,
}

impl Server {
    fn start() -> Server {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("segue-fleet-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut server = Server { process: Server::launch(&folder), folder };
        server.until_up();
        server
    }

    fn launch(folder: &Path) -> Child {
        let log = fs::File::create(folder.join("log")).unwrap();
        let url = format!("http://127.0.0.1:{PORT}");
        Command::new("etcd")
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--data-dir"])
            .arg(folder.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn until_up(&mut self) {
        until("etcd is up", || {
            assert!(self.process.try_wait().unwrap().is_none(), "etcd does not start: {}", self.log());
            self.try_ctl(&["endpoint", "health"]).is_ok()
        });
    }

    fn backup(&self) -> String {
        self.folder.join("backup").to_str().unwrap().to_owned()
    }

    /// Writes a backup of the server's data.
    pub(crate) fn save(&self) {
        self.ctl(&["snapshot", "save", &self.backup()]);
    }

    /// Ends the server, and starts one with the data of the backup.
    pub(crate) fn restore(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let data = self.folder.join("data");
        fs::remove_dir_all(&data).unwrap();
        self.ctl(&["snapshot", "restore", &self.backup(), "--data-dir", data.to_str().unwrap()]);
        self.process = Server::launch(&self.folder);
        self.until_up();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Returns the URL for etcd's clients.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{PORT}")
    }

    fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.url(), "--command-timeout", "60s"])
            .args(args)
            .output()
            .unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Runs etcdctl and returns the printed text.
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        self.try_ctl(args).unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"))
    }

    /// Sets a key below the registry.
    pub(crate) fn put(&self, key: &str, value: &str) {
        self.ctl(&["put", &format!("/coreos.com/network/{key}"), "--", value]);
    }

    /// Sets a key below the registry to a value of the given length, which no command line can hold.
    pub(crate) fn put_long(&self, key: &str, len: usize) {
        let mut child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([
                "--endpoints",
                &self.url(),
                "--command-timeout",
                "60s",
                "put",
                &format!("/coreos.com/network/{key}"),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&vec![b'x'; len]).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// Returns the value of a key below the registry; empty where there is none.
    pub(crate) fn get(&self, key: &str) -> String {
        self.ctl(&["get", "--print-value-only", &format!("/coreos.com/network/{key}")]).trim_end().to_owned()
    }

    /// Returns the server's current revision.
    pub(crate) fn revision(&self) -> i64 {
        let json = self.ctl(&["get", "x", "-w", "json"]);
        serde_json::from_str::<serde_json::Value>(&json).unwrap()["header"]["revision"].as_i64().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Remote address of peers that the fake tunnel refuses.
pub(crate) const REFUSED: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 99));

/// A fake tunnel that only keeps its table.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Table>>, u8);

impl Datapath for Kept {
    fn state(&mut self) -> Result<TunnelState, Error> {
        let end = LocalEndpoint {
            local: Some(([198, 18, 0, self.1]).into()),
            mac: Some(Mac([2, 0, 0, 0, 0, self.1])),
            listen: vec!["vxlan:8472".to_owned()],
            remcsum: false,
        };
        Ok(TunnelState { process: 1, generation: self.0.lock().unwrap().generation.unwrap_or(0), end })
    }

    fn sync(&mut self, table: &Table) -> Result<(u64, Vec<RefusedPeer>), Error> {
        let mut kept = self.0.lock().unwrap();
        if table.generation < kept.generation {
            return Err(Error::new(Kind::Conflict, "stale generation", "-"));
        }
        kept.generation = table.generation;
        let (taken, refused): (Vec<Peer>, Vec<Peer>) =
            table.peers.iter().cloned().partition(|peer| peer.remote != REFUSED);
        kept.peers = taken;
        let refused = refused.into_iter().zip(1..).map(|(peer, number)| RefusedPeer {
            number,
            key: peer.key(),
            why: "a rule of the tunnel".to_owned(),
        });
        let refused: Vec<RefusedPeer> = refused.collect();
        Ok((refused.len() as u64, refused))
    }

    fn change(&mut self, change: Change) -> Result<u64, Error> {
        let mut kept = self.0.lock().unwrap();
        match change {
            Change::Replace(peers) if peers.iter().any(|peer| peer.remote == REFUSED) => {
                return Err(Error::new(Kind::BadValue, "a peer is refused", "-"));
            }
            Change::Replace(peers) => {
                kept.peers.retain(|old| !peers.iter().any(|new| new.prefix == old.prefix));
                kept.peers.extend(peers);
                kept.peers.sort_by_key(|peer| peer.prefix);
            }
            Change::Del(keys) => kept.peers.retain(|old| !keys.contains(&Key::Prefix(old.prefix.unwrap()))),
            _ => unreachable!("an agent changes entries so"),
        }
        let generation = kept.generation.unwrap_or(0) + 1;
        kept.generation = Some(generation);
        Ok(generation)
    }
}

/// A recorder of the agent's output: the state published last, and the lines of the log.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<FleetState>>, Arc<Mutex<Vec<String>>>);

impl Announce for Told {
    fn note(&mut self, text: &str) {
        println!("fleet: {text}");
        self.1.lock().unwrap().push(text.to_owned());
    }

    fn state(&mut self, state: &FleetState) {
        self.0.lock().unwrap().clone_from(state);
    }

    fn mtu(&self, _: &str) -> u32 {
        1450
    }
}

/// A running agent of the host 198.18.0.N.
pub(crate) struct Agent {
    tunnel: Kept,
    told: Told,
    events: SyncSender<Event>,
    thread: Option<JoinHandle<Result<(), Error>>>,
    folder: PathBuf,
}

impl Agent {
    /// Starts an agent and waits for its lease.
    pub(crate) fn start(endpoints: &str, n: u8) -> Agent {
        let agent = Agent::begin(endpoints, n);
        until("the agent has a lease", || !agent.state().subnet.is_empty());
        agent
    }

    /// Starts an agent of the fleet.
    pub(crate) fn begin(endpoints: &str, n: u8) -> Agent {
        Agent::begin_at(endpoints, n, &format!("198.18.0.{n}"))
    }

    /// Starts an agent of the fleet with another address for its lease.
    pub(crate) fn begin_at(endpoints: &str, n: u8, address: &str) -> Agent {
        let words = ["segue-fleet", "etcd", "--endpoints", endpoints, "--public-ip", address, "--ttl", "60s"];
        let Word::Etcd(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        let client = connect::etcd(&args).unwrap();
        let folder = env::temp_dir().join(format!(
            "segue-agent-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir(&folder).unwrap();
        let terms = Terms {
            prefix: args.prefix.clone(),
            address: address.parse().unwrap(),
            name: format!("t{n}"),
            end: LocalEndpoint::default(),
            offer: None,
            ttl: args.ttl,
            before: None,
        };
        let settings = Settings { terms, subnet_file: folder.join("subnet.env"), limit: args.max_peers };
        let (events, inbox) = mpsc::sync_channel(16);
        let (tunnel, told) = (Kept(Arc::default(), n), Told::default());
        let (mut kept, mut log, sender) = (tunnel.clone(), told.clone(), events.clone());
        let thread = thread::spawn(move || agent::run(settings, &client, &mut kept, &mut log, (sender, inbox)));
        Agent { tunnel, told, events, thread: Some(thread), folder }
    }

    /// Returns the subnet that the agent has leased.
    pub(crate) fn subnet(&self) -> String {
        self.state().subnet
    }

    /// Returns the state that the agent has published last.
    pub(crate) fn state(&self) -> FleetState {
        self.told.0.lock().unwrap().clone()
    }

    /// Returns the lines of the agent's log.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.told.1.lock().unwrap().clone()
    }

    /// Returns the path of the file with the agent's subnet.
    pub(crate) fn subnet_file(&self) -> PathBuf {
        self.folder.join("subnet.env")
    }

    /// Returns the entries of the tunnel's table.
    pub(crate) fn table(&self) -> Vec<String> {
        self.tunnel.0.lock().unwrap().peers.iter().map(|peer| serde_json::to_string(peer).unwrap()).collect()
    }

    /// Empties the table, like a restart of the tunnel.
    pub(crate) fn restart_tunnel(&self) {
        *self.tunnel.0.lock().unwrap() = Default::default();
    }

    /// Sends an event to the agent's loop.
    pub(crate) fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Returns whether the agent has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the agent's end and returns its outcome.
    pub(crate) fn outcome(&mut self) -> Result<(), Error> {
        until("the agent ends", || self.has_ended());
        self.thread.take().expect("an agent ends once").join().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop);
        if let Some(thread) = self.thread.take().filter(|_| !thread::panicking()) {
            let _ = thread.join();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A relay of TCP connections to a loopback port; while interrupted, it closes all existing and new connections.
pub(crate) struct Relay {
    port: u16,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// Starts a relay to the port `to`.
    pub(crate) fn start(to: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay { port: listener.local_addr().unwrap().port(), is_cut: Arc::default(), open: Arc::default() };
        let (is_cut, open) = (Arc::clone(&relay.is_cut), Arc::clone(&relay.open));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut open = open.lock().unwrap();
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || copy(from, to));
                }
                open.extend([client, server]);
            }
        });
        relay
    }

    /// Returns the address of the relay.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Interrupts the relay, or lets new connections through.
    pub(crate) fn cut(&self, cut: bool) {
        let mut open = self.open.lock().unwrap();
        self.is_cut.store(cut, Ordering::SeqCst);
        for stream in open.drain(..).filter(|_| cut) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 1 << 14];
    loop {
        let copied: io::Result<usize> =
            from.read(&mut buffer).and_then(|len| to.write_all(&buffer[..len]).map(|()| len));
        if !matches!(copied, Ok(1..)) {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
}
