//! A service with many tunnels between two hosts, and faults of its threads and processes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Host, LinkForm, Peer, Process, reach};
use serde_json::Value;

use crate::capture::Directory;
use crate::routed::ip;
#[cfg(target_arch = "x86_64")]
use crate::spoil::{ROUND_OF_TUNNEL, Spoiled, spoil};
use crate::traffic::{Place, inside};
use crate::{Ground, sys};

/// Longest wait for any expected event.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Limit of the addresses of each process of host A, bytes: it gets no more memory before it has taken much of the
/// machine's, and needs far less.
const ADDRESSES: u64 = 16 << 30;
/// Time within which packets pass through an instance that is well.
const SOON: Duration = Duration::from_millis(100);
/// Time for which a new process may say that it is well before packets pass: five times what it may take.
const WELL_SOON: Duration = Duration::from_secs(5);

/// Two hosts with a service each. Tunnel `net` of either is an instance of its own.
#[derive(Debug)]
pub struct Service {
    /// The hosts of the services.
    pub ground: Ground,
    /// The service at host A, whose instances take requests for faults.
    pub near: Process,
    /// Process of the service at host B.
    pub far: Process,
    /// The control sockets at host A.
    directory: Directory,
}

/// A fault of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fault in a thread, or in the supervisor: `panic`, `loop`, `hang`, `memory`.
    Thread(&'static str, &'static str),
    /// The process that moves packets receives this signal.
    Worker(i32),
    /// Signal to the supervisor of the instance.
    Supervisor(i32),
    /// Signal, which ends it, to the first of the processes that open devices or accept connections for the instance.
    Helper(i32),
    /// Endless loop in that process.
    HelperLoop,
    /// Panic or endless loop of the thread that moves a tunnel's packets, in the code of its rounds, of which the
    /// program is not asked.
    #[cfg(target_arch = "x86_64")]
    Round(Spoiled),
}

impl Fault {
    /// Returns the faults of a process that opens devices or accepts connections. A loop is left out where none can be
    /// made, which is noted under `name`.
    pub fn of_helpers(name: &str) -> Vec<Fault> {
        let mut faults = vec![Fault::Helper(libc::SIGKILL), Fault::Helper(libc::SIGABRT)];
        if cfg!(target_arch = "x86_64") {
            faults.push(Fault::HelperLoop);
        } else {
            crate::skip(name, "the registers of this architecture are not known to the test");
        }
        faults
    }

    /// Returns whether a new process replaces the instance's process.
    pub fn ends(self) -> bool {
        !matches!(self, Fault::Worker(libc::SIGSTOP) | Fault::Supervisor(libc::SIGSTOP))
    }
}

/// Returns the configuration table of tunnel `net` at one end.
pub fn tunnel(end: Peer, net: u8, more: &str) -> String {
    let (local, remote) = (end.address(0, Family::V4), end.other().address(0, Family::V4));
    format!(
        "[[tunnel]]\ndev = \"sg{net}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\nencap = \"gue\"\nport = {port}\n\
         encap-dport = {port}\naddr = \"{address}\"\n{more}\n",
        port = 6080 + u16::from(net),
        address = end.prefix(net, Family::V4),
    )
}

impl Service {
    /// Starts tunnels 1 to `count` between both hosts, with `more` in the file of host A and `env` in its environment.
    /// `None` where the test cannot run, which is noted under `name`.
    #[track_caller]
    pub fn start(name: &str, count: u8, more: &str, env: &[(&str, &str)]) -> Option<Service> {
        Service::prepared(name, count, more, env, |_| ()).map(|(service, ())| service)
    }

    /// Starts the services like [`Service::start`], after calling `prepare` with the hosts.
    #[track_caller]
    pub fn prepared<T>(
        name: &str,
        count: u8,
        more: &str,
        env: &[(&str, &str)],
        prepare: impl FnOnce(&Ground) -> T,
    ) -> Option<(Service, T)> {
        Service::with_keys(name, (count, ""), more, env, prepare)
    }

    /// Starts the services like [`Service::prepared`], with `keys` in the table of each tunnel at host A.
    #[track_caller]
    pub fn with_keys<T>(
        name: &str,
        (count, keys): (u8, &str),
        more: &str,
        env: &[(&str, &str)],
        prepare: impl FnOnce(&Ground) -> T,
    ) -> Option<(Service, T)> {
        let ground = Ground::new(name, LinkForm::Veth, &[])?;
        let prepared = prepare(&ground);
        let directory = Directory::new();
        let start = |end: Peer, keys: &str, more: &str| {
            let host = if matches!(end, Peer::A) { &ground.a } else { &ground.b };
            let text: String = (1..=count).map(|net| tunnel(end, net, keys)).collect();
            let folder = directory.file(host.name());
            fs::DirBuilder::new().mode(0o755).create(&folder).unwrap();
            let file = folder.join("segue.toml");
            fs::write(&file, text + more).unwrap();
            let env = if matches!(end, Peer::A) { env } else { &[] };
            launch(&ground, host, &file, env)
        };
        let (far, near) = (start(Peer::B, "", ""), start(Peer::A, keys, more));
        Some((Service { near, far, directory, ground }, prepared))
    }

    /// Starts the service at host A again, whose process has ended.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.near = launch(&self.ground, &self.ground.a, &self.file(), &[]);
    }

    /// Returns the file of the service at host A.
    pub fn file(&self) -> PathBuf {
        self.directory.file(self.ground.a.name()).join("segue.toml")
    }

    /// Sends a request to the instance `name` at host A; `None` where no process answers.
    pub fn request_of(&self, name: &str, request: &str) -> Option<Value> {
        self.request_at(Peer::A, name, request)
    }

    /// Sends a request to the instance `name` at one end; `None` if no process answers.
    pub fn request_at(&self, end: Peer, name: &str, request: &str) -> Option<Value> {
        self.request_by(end, &format!("{name}.sock"), request)
    }

    /// Returns whether the service at host A answers.
    pub fn answers(&self) -> bool {
        self.request_by(Peer::A, "segue.service", r#"{"get":"service"}"#).is_some()
    }

    /// Sends a request to the socket of this name at one end.
    fn request_by(&self, end: Peer, socket: &str, request: &str) -> Option<Value> {
        let host = if matches!(end, Peer::A) { &self.ground.a } else { &self.ground.b };
        let path = self.directory.file(host.name()).join(socket);
        let mut stream = UnixStream::connect(path).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(3))).ok()?;
        stream.write_all(format!("{request}\n").as_bytes()).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// Returns the state of the instance `name`; `None` where no process answers.
    pub fn stat(&self, name: &str) -> Option<Value> {
        Some(self.request_of(name, r#"{"get":"stat"}"#)?["instance"].take())
    }

    /// Returns the id of the process that moves the packets of `name`; `None` if there is none.
    pub fn pid(&self, name: &str) -> Option<u32> {
        u32::try_from(self.stat(name)?["pid"].as_u64()?).ok().filter(|pid| *pid != 0)
    }

    /// Returns the process id like [`Service::pid`], and waits until the instance answers.
    pub fn patient_pid(&self, name: &str) -> Option<u32> {
        let begin = Instant::now();
        loop {
            let pid = self.pid(name);
            if pid.is_some() || begin.elapsed() > PATIENCE {
                return pid;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the value that `done` finds within [`PATIENCE`].
    ///
    /// # Panics
    ///
    /// With `what` and the last lines of the service at host A where it finds none.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = done() {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {}", tail(&self.near));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the process ids of tunnels 1 to `count`, by name.
    pub fn pids(&self, count: u8) -> BTreeMap<String, Option<u32>> {
        (1..=count).map(|net| format!("sg{net}")).map(|name| (name.clone(), self.pid(&name))).collect()
    }

    /// Returns whether datagrams pass through tunnel `net` in both directions within `longest`.
    pub fn passes(&self, net: u8, longest: Duration) -> bool {
        let [a, b] = [Peer::A, Peer::B].map(|end| end.address(net, Family::V4));
        reach((&self.ground.a, a), (&self.ground.b, b), longest).is_ok()
    }

    /// Returns the events that the service at host A has reported.
    pub fn events(&self) -> Vec<Value> {
        self.events_after(0)
    }

    /// Returns the events that the service at host A has reported behind the first `len` bytes of its output.
    pub fn events_after(&self, len: usize) -> Vec<Value> {
        self.near.stdout_after(len).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns how many errors of the service at host A have these words.
    pub fn errors_with(&self, words: &str) -> usize {
        let has = |event: &Value| event["error"]["message"].as_str().is_some_and(|text| text.contains(words));
        self.events().iter().filter(|event| has(event)).count()
    }

    /// Causes a fault of tunnel `net`, and returns the time until packets pass again.
    ///
    /// # Panics
    /// Where that takes longer than [`PATIENCE`], or where the instance says that it is well though it moves nothing.
    #[track_caller]
    pub fn fault(&self, net: u8, fault: Fault) -> Duration {
        self.fault_of(&format!("sg{net}"), fault, &|longest| self.passes(net, longest))
    }

    /// Causes a fault of the instance `name`. `passes` returns whether packets pass through it within a time. Otherwise
    /// the same as [`Service::fault`].
    #[track_caller]
    pub fn fault_of(&self, name: &str, fault: Fault, passes: &dyn Fn(Duration) -> bool) -> Duration {
        let pid = self.pid(name).unwrap_or_else(|| panic!("{name} does not answer: {}", tail(&self.near)));
        let stopped = match fault {
            Fault::Worker(libc::SIGSTOP) => Some(pid),
            Fault::Supervisor(libc::SIGSTOP) => Some(parent(pid)),
            _ => None,
        };
        let begin = Instant::now();
        match fault {
            Fault::Thread(thread, kind) => {
                let request = format!(r#"{{"fault":{{"thread":"{thread}","kind":"{kind}"}}}}"#);
                // A fault of the thread that answers comes before its answer.
                let answer = self.request_of(name, &request).unwrap_or_default();
                assert!(answer.get("error").is_none(), "{answer}");
                if thread == "routes" {
                    // It meets its fault with the next change.
                    ip(&self.ground.a, "route replace blackhole 198.51.100.0/24");
                }
            }
            Fault::Worker(signal) => sys::signal(pid, signal).unwrap(),
            Fault::Supervisor(signal) => sys::signal(parent(pid), signal).unwrap(),
            Fault::Helper(signal) => {
                let helper = helpers(pid)[0];
                sys::signal(helper, signal).unwrap();
                while !has_ended(helper) {
                    assert!(begin.elapsed() < PATIENCE, "{fault:?} {name}: it does not end");
                    thread::sleep(Duration::from_millis(1));
                }
            }
            Fault::HelperLoop => sys::make_loop(helpers(pid)[0]).unwrap(),
            #[cfg(target_arch = "x86_64")]
            Fault::Round(how) => spoil(pid, ROUND_OF_TUNNEL, how).unwrap(),
        }
        // The packet loop meets its fault with the next packet.
        passes(Duration::from_millis(1));
        let is_over = || match stopped {
            Some(stopped) => goes_on(stopped) && passes(SOON),
            None => self.pid(name).is_some_and(|now| now != pid),
        };
        while !is_over() {
            assert!(begin.elapsed() < PATIENCE, "{fault:?} {name}: {}", tail(&self.near));
            let dead = || match fault {
                // A process that is continued may answer before the first packet passes.
                Fault::Worker(libc::SIGSTOP) => is_stopped(pid),
                // Packets may pass until the instance is started again.
                Fault::Helper(_) => true,
                // They pass until it is found.
                Fault::HelperLoop => false,
                _ => !passes(SOON),
            };
            if dead()
                && let Some(stat) = self.stat(name)
                && dead()
            {
                // What answers is the service, until there is another process, or the process that had the fault: one
                // that ends may have answered just before.
                let from = stat["pid"].as_u64().unwrap_or(0);
                let of_old = from == u64::from(pid) && (!fault.ends() || self.pid(name) == Some(pid));
                let is_well = stat["health"] == Value::Array(Vec::new());
                assert!(!is_well || from != 0 && !of_old, "{fault:?} {name}: dead and well: {stat}");
            }
            thread::sleep(Duration::from_millis(5));
        }
        let mut well_since = None;
        while !passes(SOON) {
            assert!(begin.elapsed() < PATIENCE, "{fault:?} {name}: {}", tail(&self.near));
            // The new process may answer before its first packet passes; what it says then is not said for long.
            let is_well =
                self.stat(name).is_some_and(|stat| stat["pid"] != 0 && stat["health"] == Value::Array(Vec::new()));
            well_since = if is_well { well_since.or_else(|| Some(Instant::now())) } else { None };
            let is_short = well_since.is_none_or(|since: Instant| since.elapsed() < WELL_SOON);
            assert!(is_short, "{fault:?} {name}: well, and no packet passes: {}", tail(&self.near));
        }
        let took = begin.elapsed();
        if let Some(stopped) = stopped {
            let now = self.patient_pid(name).map(|now| (now, parent(now)));
            let is_same = now.is_some_and(|(now, supervisor)| now == pid && [now, supervisor].contains(&stopped));
            assert!(is_same, "{fault:?} {name}: not the same processes: {}", tail(&self.near));
        }
        took
    }
}

/// Starts the service of a file, in whose folder its control sockets are, and returns once it is ready.
#[track_caller]
fn launch(ground: &Ground, host: &Host, file: &Path, env: &[(&str, &str)]) -> Process {
    let limit = format!("--as={ADDRESSES}");
    let mut command = host.command("prlimit");
    command.args([OsStr::new(&limit), ground.program.as_os_str()]).args(["run", "-j", "-c"]).arg(file);
    command.env("SEGUE_RUNTIME_DIR", file.parent().expect("a folder")).env("SEGUE_FAULTS", "1");
    command.envs(env.iter().copied());
    let mut service = Process::spawn(command, b"").unwrap();
    if let Err(error) = service.wait_for_line("\"event\":\"ready\"", 2 * PATIENCE) {
        panic!("{error}: {}", tail(&service));
    }
    service
}

/// A gateway or a router of the service at host A, between host B and a host of its own.
#[derive(Debug)]
pub struct Forwarder {
    /// Name of the forwarding instance.
    pub name: &'static str,
    /// The host on the far side of the instance.
    pub far: Host,
    /// The addresses of host B and of the host on the far side of the instance.
    pub addresses: [IpAddr; 2],
}

impl Forwarder {
    /// The tables of both for the file of the service.
    pub const TABLES: &'static str = "[[gateway]]\nin = \"br-b\"\nout = \"br-c\"\nname = \"bridge\"\n\
                              [[gateway]]\nin = \"rt-b\"\nout = \"rt-c\"\nname = \"router\"\nroute = true\n";

    /// The tables of another gateway and another router.
    pub const MORE_TABLES: &'static str = "[[gateway]]\nin = \"br2-b\"\nout = \"br2-c\"\nname = \"bridge2\"\n\
                                           [[gateway]]\nin = \"rt2-b\"\nout = \"rt2-c\"\nname = \"router2\"\n\
                                           route = true\n";

    /// The table of a router with NAT.
    pub const NAT_TABLE: &'static str = "[[gateway]]\nin = \"nat-b\"\nout = \"nat-c\"\nname = \"nat\"\n\
                                         route = true\nnat = \"198.19.208.9\"\n";

    /// Creates the interfaces of [`Forwarder::TABLES`] and the hosts connected to them: for a gateway, whose ends are
    /// in one network, and for a router.
    #[track_caller]
    pub fn both(ground: &Ground) -> [Forwarder; 2] {
        [Forwarder::bridge(ground, "bridge", "br", 201), Forwarder::router(ground, "router", "rt", [202, 203])]
    }

    /// Creates the interfaces and hosts of [`Forwarder::MORE_TABLES`].
    #[track_caller]
    pub fn more(ground: &Ground) -> [Forwarder; 2] {
        [Forwarder::bridge(ground, "bridge2", "br2", 204), Forwarder::router(ground, "router2", "rt2", [205, 206])]
    }

    /// Creates the interfaces and hosts of [`Forwarder::NAT_TABLE`].
    #[track_caller]
    pub fn nat(ground: &Ground) -> Forwarder {
        Forwarder::router(ground, "nat", "nat", [207, 208])
    }

    #[track_caller]
    fn bridge(ground: &Ground, name: &'static str, prefix: &str, net: u8) -> Forwarder {
        Forwarder::between(ground, name, prefix, [(net, 2), (net, 3)])
    }

    #[track_caller]
    fn router(ground: &Ground, name: &'static str, prefix: &str, [near, far]: [u8; 2]) -> Forwarder {
        let forwarder = Forwarder::between(ground, name, prefix, [(near, 2), (far, 2)]);
        for (end, net) in [("b", near), ("c", far)] {
            ip(&ground.a, &format!("address add 198.19.{net}.1/24 dev {prefix}-{end}"));
        }
        ip(&ground.b, &format!("route add 198.19.{far}.0/24 via 198.19.{near}.1"));
        ip(&forwarder.far, &format!("route add default via 198.19.{far}.1"));
        forwarder
    }

    /// Connects host B and a new host to host A, each with an address of a network.
    #[track_caller]
    fn between(ground: &Ground, name: &'static str, prefix: &str, ends: [(u8, u8); 2]) -> Forwarder {
        let far = Host::new("far").expect("a host, since two could be made a moment ago");
        let addresses = ends.map(|(net, number)| IpAddr::from([198, 19, net, number]));
        for ((host, end), address) in [(&ground.b, "b"), (&far, "c")].into_iter().zip(addresses) {
            let device = format!("{prefix}-{end}");
            let place = host.net_path();
            ip(&ground.a, &format!("link add {device} type veth peer name {device} netns {place}"));
            for host in [&ground.a, host] {
                host.run("ethtool", &["-K", &device, "tso", "off", "gso", "off", "tx", "off"]).unwrap();
                ip(host, &format!("link set {device} up"));
            }
            ip(host, &format!("address add {address}/24 dev {device}"));
        }
        Forwarder { name, far, addresses }
    }

    /// Returns the ends of what passes through the instance.
    pub fn ends<'a>(&'a self, ground: &'a Ground) -> [Place<'a>; 2] {
        let [near, far] = self.addresses;
        [Place { host: &ground.b, address: near }, Place { host: &self.far, address: far }]
    }

    /// Returns whether datagrams pass through the instance in both directions within `longest`.
    pub fn passes(&self, service: &Service, longest: Duration) -> bool {
        let [near, far] = self.addresses;
        reach((&service.ground.b, near), (&self.far, far), longest).is_ok()
    }
}

/// Flows of datagrams between two hosts, so many that the probability that one of two workers gets none of them is 1 in
/// 2^31.
#[derive(Debug)]
pub struct Flows(Vec<[UdpSocket; 2]>);

impl Flows {
    /// Opens the sockets of the flows, whose ports stay the same.
    #[track_caller]
    pub fn between(ends: [Place<'_>; 2]) -> Flows {
        let open = |place: Place<'_>| {
            let socket = inside(place.host, || UdpSocket::bind((place.address, 0))).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        Flows((0..32).map(|_| ends.map(open)).collect())
    }

    /// Returns whether a datagram of each flow passes in both directions within `longest`.
    pub fn pass(&self, longest: Duration) -> bool {
        static ATTEMPTS: AtomicU64 = AtomicU64::new(0);
        let number = ATTEMPTS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let begin = Instant::now();
        let mut missing: Vec<&[UdpSocket; 2]> = self.0.iter().collect();
        while !missing.is_empty() && begin.elapsed() < longest {
            for [near, far] in &missing {
                // While an interface is away, nothing can be sent.
                let _ = far.local_addr().and_then(|to| near.send_to(&number, to));
            }
            thread::sleep(Duration::from_millis(5));
            missing.retain(|flow| !is_answered(flow, number));
        }
        missing.is_empty()
    }
}

/// Answers what came at the far end of a flow, and returns whether this number came back.
fn is_answered([near, far]: &[UdpSocket; 2], number: [u8; 8]) -> bool {
    let mut bytes = [0; 16];
    while let Ok((len, from)) = far.recv_from(&mut bytes) {
        let _ = far.send_to(&bytes[..len], from);
    }
    std::iter::from_fn(|| near.recv_from(&mut bytes).ok().map(|(len, _)| bytes[..len] == number)).any(|is_it| is_it)
}

/// Returns whether a process is stopped by a signal, or about to be.
pub fn is_stopped(pid: u32) -> bool {
    let is_pending = |status: &str| {
        let set = u64::from_str_radix(field(status, "ShdPnd"), 16).expect("a set of signals");
        set >> (libc::SIGSTOP - 1) & 1 == 1
    };
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| field(&status, "State") == "T" || is_pending(&status))
}

/// Returns whether a process that got SIGSTOP has been continued.
pub fn goes_on(pid: u32) -> bool {
    // The kernel tells the state before the pending signals, of which one may stop the process in between.
    !is_stopped(pid) && !is_stopped(pid)
}

/// Returns whether a process has ended with all of its threads, whether or not its parent has waited for it. Its
/// sockets are open until the last of its threads has ended.
pub fn has_ended(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(true, |status| field(&status, "State") == "Z" && field(&status, "Threads") == "1")
}

/// Returns the processes that open devices or accept connections for the process `pid`: the other children of its
/// supervisor.
pub fn helpers(pid: u32) -> Vec<u32> {
    children(parent(pid)).into_iter().filter(|child| *child != pid).collect()
}

/// Returns the children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_ascii_whitespace().map(|child| child.parse().unwrap()).collect()
}

/// Lets a process take `more` bytes of addresses beside those that it has, or, where that is `None`, as many as there
/// are: it gets no more memory from then on.
#[track_caller]
pub fn limit_memory(pid: u32, more: Option<u64>) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let number = |name| field(&status, name).parse::<u32>().expect("a number");
    let limit = more.map_or(ADDRESSES, |more| 1024 * u64::from(number("VmSize")) + more);
    let mut command = Command::new("prlimit");
    command.args(["--pid", &pid.to_string(), &format!("--as={limit}:{ADDRESSES}")]);
    // Not every root may set the limits of other users' processes.
    let done = command.uid(number("Uid")).gid(number("Gid")).status();
    assert!(done.unwrap().success(), "prlimit {pid} {limit}");
}

/// Returns the last lines that a service has printed, for messages.
pub fn tail(service: &Process) -> String {
    let last = |text: &str| -> String {
        let lines: Vec<&str> = text.lines().collect();
        let cut = |line: &&str| line.chars().take(300).collect::<String>() + "\n";
        lines[lines.len().saturating_sub(5)..].iter().map(cut).collect()
    };
    format!("{}{}", last(&service.stdout()), last(&service.stderr()))
}

/// Returns the parent of a process.
pub fn parent(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    field(&status, "PPid").parse().unwrap()
}

/// Returns the first word of a field of `/proc/PID/status`.
#[track_caller]
pub fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()).unwrap_or_else(|| panic!("no {name} in {status}"))
}
