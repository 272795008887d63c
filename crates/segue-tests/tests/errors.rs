//! Tests of system calls of an instance that fail with any error for a time: that ends no process, costs no more than a
//! little processor time, and packets pass again afterwards.
//!
//! The calls fail by strace's injection, in the running process. Processor time is judged by the number of system
//! calls, which no other work on the machine changes, and by the kernel's account of it, since a loop may make no call.
//! The calls are those that a process makes without faults, so that a new one is tried by itself. `make test` tries a
//! part of the pairs of a call and an error, `SEGUE_FULL=1` all of them.

use std::fs;
use std::iter;
use std::net::{IpAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Peer, reach};
use segue_tests::capture::Directory;
use segue_tests::faults::{Forwarder, PATIENCE, Service, children, parent, tail};
use segue_tests::inject::{Calls, Traced, Workload, counted_as};
use segue_tests::routed::ip;
use segue_tests::traffic::{Place, socket};
use segue_tests::{Carrier, Ground, Inside, Shape, Tunnel, fastpath, sys, test_name, until};
use serde_json::Value;

/// Errors after which a process goes on. An interrupt is by its nature not for long, since the standard library repeats
/// such calls itself; the last one is a call that returns fewer bytes than asked for.
const ERRORS: [&str; 10] = [
    "error=EAGAIN",
    "error=ENOBUFS",
    "error=ENOMEM",
    "error=EMSGSIZE",
    "error=EPERM",
    "error=ENETDOWN",
    "error=EIO",
    "error=ENODEV",
    "error=EINTR:when=1+2",
    "retval=3:when=1..20",
];
/// The system calls of the process that moves a tunnel's packets, by their purpose.
const OF_PACKETS: [&str; 6] =
    ["read,readv", "write,writev", "sendmsg,sendmmsg", "recvmsg,recvmmsg", "ppoll", "accept4,recvfrom,getsockopt"];
/// The system calls of the process that moves a gateway's or a router's packets, which it receives by a ring. The last
/// ones read the kernel's routes for a router.
const OF_FORWARDERS: [&str; 4] = ["sendmsg,sendmmsg", "ppoll", "accept4,getsockopt", "read,recvfrom,sendto"];
/// The calls of its supervisor and of the service. The last ones are those of clients of the service.
const OF_SUPERVISORS: [&str; 4] = ["read", "ppoll,poll", "wait4", "accept4,recvfrom"];
/// System calls of all these instances that may say that a device is gone.
const OF_DEVICES: [&str; 5] = ["read,readv", "write,writev", "sendmsg,sendmmsg", "recvmsg,recvmmsg", "recvfrom,sendto"];
/// Number of datagrams in each direction while a call fails.
const DATAGRAMS: u64 = 40;
/// Largest number of system calls per datagram of a loop that handles each singly: the wait, the read, the read that
/// finds no more, the write, and those of the control thread in between.
const EACH: u64 = 8;
/// Smallest number of system calls that counts as the number of a supervisor or a service without faults in
/// [`A_WHILE`]: a failed call is repeated ten times in that time, each time by a round of some ten calls.
const OF_WAITING: u64 = 100;
/// System calls of an instance's start that fail in the reduced test too.
const OF_STARTS: [(&str, &str); 5] = [
    ("ioctl", "error=EPERM"),
    ("socket,setsockopt", "error=ENOBUFS"),
    ("bind", "error=ENOMEM"),
    ("sendto,recvfrom", "error=EIO"),
    ("bpf", "error=EPERM"),
];
/// System calls of the start of a gateway or a router that fail, the first two in the reduced test too.
const OF_FORWARDERS_STARTS: [(&str, &str); 5] = [
    ("socket,setsockopt", "error=ENOBUFS"),
    ("ioctl", "error=EPERM"),
    ("bind", "error=ENOMEM"),
    ("sendto,recvfrom", "error=EIO"),
    ("openat", "error=EMFILE"),
];
/// Time after which an instance may fail again without a pause.
const A_MINUTE: Duration = Duration::from_secs(62);
/// Longest time for which calls of a start fail: an instance whose starts failed before may wait first.
const OF_START: Duration = Duration::from_secs(60);
/// Number of instances whose starts fail in turn.
const STARTS: u8 = 30;
/// Time for which a process has work that mostly waits.
const A_WHILE: Duration = Duration::from_secs(1);
/// Smallest number of system calls that counts as the number of a process whose packets the kernel carries.
const IN_KERNEL: u64 = 100;

/// Largest number of failed calls for one that is counted in the end: a send is made again several times after some
/// errors, and a few reads are those of other threads.
const MOST_SENDS: u64 = 16;
const MOST_READS: u64 = 2;
/// Returns whether a process goes on after an error of these calls, in an instance whose reads and writes may be short
/// or not.
fn is_apt(error: &str, calls: &str, may_be_short: bool) -> bool {
    let is_of_packets = calls.contains("read,") || calls.contains("write,") || calls.contains("msg");
    match error {
        // The loss of a device or interface ends its instance, as the other test has it.
        "error=ENODEV" => !is_of_packets && !calls.contains("recvfrom"),
        // Only these can be short. Elsewhere the number would be a lie of the kernel's.
        _ if error.starts_with("retval") => {
            may_be_short && (calls.contains("read,") || calls.contains("msg")) || calls.contains("recvfrom")
        }
        _ => true,
    }
}

/// Returns those of some calls that meet an error, and the error: of the ones with which messages of the kernel's links
/// and routes are read, only that can be short, and the kernel says once that it had no room for some of them. What
/// sends several messages returns their number.
fn failing<'a>(error: &'a str, calls: &'a str) -> (&'a str, &'a str) {
    match error {
        "error=ENOBUFS" if calls.contains("recvfrom") => (calls, "error=ENOBUFS:when=1+2"),
        _ if error.starts_with("retval") && calls.contains("recvfrom") => ("recvfrom", error),
        // A byte of a message, or one of several messages. Of two the kernel never says that it sent three.
        _ if error.starts_with("retval") && calls.starts_with("send") => (calls, "retval=1:when=1..20"),
        _ => (calls, error),
    }
}

/// An instance whose calls fail.
struct Subject<'a> {
    service: &'a Service,
    name: &'a str,
    /// The ends of its packets.
    places: [Place<'a>; 2],
    ends: [UdpSocket; 2],
}

/// A process of an instance.
#[derive(Clone, Copy)]
struct Traceable {
    name: &'static str,
    pid: u32,
    calls: &'static [&'static str],
    /// Least number of calls that counts as the normal one.
    least: u64,
    may_be_short: bool,
    /// Number of errors tried with each group of calls in the reduced test.
    tried: usize,
}

/// The failures so far, and the numbers of errors that were met and of processes that were tried.
#[derive(Default)]
struct Found {
    failed: Vec<String>,
    met: usize,
    processes: usize,
}

impl<'a> Subject<'a> {
    fn new(service: &'a Service, name: &'a str, places: [Place<'a>; 2]) -> Subject<'a> {
        Subject { service, name, places, ends: places.map(socket) }
    }

    /// Makes a subject of tunnel `net`.
    fn tunnel(service: &'a Service, name: &'a str, net: u8) -> Subject<'a> {
        let [a, b] = [&service.ground.a, &service.ground.b];
        let places = [(a, Peer::A), (b, Peer::B)];
        Subject::new(service, name, places.map(|(host, end)| Place { host, address: end.address(net, Family::V4) }))
    }

    fn passes(&self) -> bool {
        let [near, far] = self.places;
        reach((near.host, near.address), (far.host, far.address), PATIENCE).is_ok()
    }

    /// Sends datagrams in both directions, with and without permission to fragment them, regardless of their arrival,
    /// and changes a route that a router follows.
    fn disturb(&self) {
        for number in 0..DATAGRAMS {
            for (from, to) in [(0, 1), (1, 0)] {
                let allow = if number % 8 < 4 { sys::allow_fragments } else { sys::forbid_fragments };
                allow(&self.ends[from]).unwrap();
                // A full queue is one of the faults.
                let _ = self.ends[from].send_to(&[7; 300], self.ends[to].local_addr().unwrap());
            }
            if self.name == "router" && number == DATAGRAMS / 2 {
                ip(&self.service.ground.a, "route add 198.51.100.0/24 via 198.19.203.2");
                ip(&self.service.ground.a, "route del 198.51.100.0/24");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the numbers of packets that the instance has dropped at its ports, of reads that it has repeated and of
    /// sends that it has made otherwise, all together, that are counted under these reasons. Waits for its answer.
    fn counted(&self, reasons: &[&str]) -> u64 {
        let stat = until("the instance answers", || self.service.stat(self.name));
        let ports = stat["ports"].as_object().into_iter().flat_map(|ports| ports.values());
        let counts = ports.flat_map(|port| [&port["drops"], &port["fallbacks"]]);
        let counts = counts.filter_map(Value::as_object).flatten().filter(|(name, _)| reasons.contains(&name.as_str()));
        counts.filter_map(|(_, count)| count.as_u64()).sum()
    }

    /// Gives a process its work: sends datagrams and reads the counters of the instance.
    fn work(&self, process: Traceable) {
        self.disturb();
        // The control thread meets its faults with a request, and so does a service.
        let _ = self.service.request_of(self.name, r#"{"get":"stat"}"#);
        if process.name == "service" {
            let _ = self.service.answers();
        }
        if process.least == OF_WAITING {
            thread::sleep(A_WHILE);
        }
    }

    /// Has the calls of a process fail, group by group and error by error: in the reduced test some errors in each
    /// group, other ones in the next.
    #[track_caller]
    fn tries(&self, process: Traceable, found: &mut Found) {
        let service = self.service;
        let worker = service.patient_pid(self.name).unwrap();
        let supervisor = parent(worker);
        let (who, work) = (format!("{} of {}", process.name, self.name), || self.work(process));
        let workload = Workload { who: &who, pid: process.pid, least: process.least, work: &work };
        let normal = workload.normal();
        // The first release had no socket for it.
        let answered = service.answers();
        for (at, calls) in normal.groups(process.calls).iter().enumerate() {
            let errors: Vec<&str> =
                ERRORS.into_iter().filter(|error| is_apt(error, calls, process.may_be_short)).collect();
            let first = (2 * at + found.processes) % errors.len();
            for (number, error) in errors.iter().copied().enumerate() {
                if !is_full() && (number + errors.len() - first) % errors.len() >= process.tried {
                    continue;
                }
                let reasons = counted_as(calls, error);
                let before = self.counted(reasons);
                let (failing, with) = failing(error, calls);
                let outcome = workload.fails(&normal, failing, with);
                found.met += usize::from(outcome.met > 0);
                let passes = self.passes();
                // Another process begins at 0.
                let counted = self.counted(reasons).saturating_sub(before);
                let met = outcome.met_in_all;
                let is_due = !reasons.is_empty() && met >= DATAGRAMS / 2;
                let most = if calls.starts_with("re") { MOST_READS } else { MOST_SENDS };
                let is_counted = !is_due || most * counted >= met;
                let same = service.patient_pid(self.name) == Some(worker) && parent(worker) == supervisor;
                let answers = service.answers() || !answered;
                if outcome.is_costly || !passes || !same || !answers || !is_counted {
                    found.failed.push(format!(
                        "{}; the same process: {same}; packets pass: {passes}; the service answers: {answers}; \
                         {counted} counted as {reasons:?}; {}",
                        outcome.text,
                        tail(&service.near)
                    ));
                }
                assert!(same, "{}", found.failed.join("\n"));
            }
        }
        found.processes += 1;
    }

    /// Has the calls of the process that moves packets fail, of which at least one has to meet its error.
    #[track_caller]
    fn tries_worker(&self, calls: &'static [&'static str], least: u64) {
        assert!(self.passes(), "{}: {}", self.name, tail(&self.service.near));
        let pid = self.service.patient_pid(self.name).unwrap();
        let mut found = Found::default();
        self.tries(Traceable { name: "worker", pid, calls, least, may_be_short: true, tried: 1 }, &mut found);
        assert!(found.failed.is_empty(), "{}", found.failed.join("\n"));
        assert!(found.met > 0, "{}: no error was met", self.name);
    }
}

fn is_full() -> bool {
    segue_testkit::is_set("SEGUE_FULL")
}

#[test]
fn no_error_of_a_system_call_ends_a_process_or_costs_more_than_three_times_the_normal() {
    let made = Service::prepared(test_name!(), 1, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, forwarders)) = &made else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    let mut found = Found::default();
    let tunnel = Subject::tunnel(service, "sg1", 1);
    let forwarders = forwarders.iter().map(|one| Subject::new(service, one.name, one.ends(&service.ground)));
    for subject in [tunnel].into_iter().chain(forwarders) {
        assert!(subject.passes(), "{}: {}", subject.name, tail(&service.near));
        let worker = service.patient_pid(subject.name).unwrap();
        let is_tunnel = subject.name == "sg1";
        let (calls, tried): (&[&str], _) = if is_tunnel { (&OF_PACKETS, 2) } else { (&OF_FORWARDERS, 1) };
        let least = 2 * EACH * DATAGRAMS;
        let mut processes =
            vec![Traceable { name: "worker", pid: worker, calls, least, may_be_short: is_tunnel, tried }];
        if is_tunnel {
            let supervisor = parent(worker);
            for (name, pid) in [("supervisor", supervisor), ("service", parent(supervisor))] {
                let calls = &OF_SUPERVISORS;
                processes.push(Traceable { name, pid, calls, least: OF_WAITING, may_be_short: true, tried: 1 });
            }
        }
        let before = found.met;
        processes.into_iter().for_each(|process| subject.tries(process, &mut found));
        assert!(found.met > before, "{}: no error was met", subject.name);
    }
    let Found { failed, met, .. } = found;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // A supervisor may make none of them in so short a time.
    assert!(met >= if is_full() { 55 } else { 9 }, "only {met} errors were met");
}

/// Tests the paths of packets that differ from those of the other test: programs in the kernel; Ethernet frames, whose
/// outer header forbids fragments where the inner one does; several workers.
#[test]
fn no_error_of_a_system_call_ends_a_tunnel_in_the_kernel_an_overlay_or_one_of_two_workers() {
    let places =
        format!("local = \"{}\"\nremote = \"{}\"\n", Peer::A.address(0, Family::V4), Peer::B.address(0, Family::V4));
    let [in_kernel, overlay, threads] = [7, 8, 9].map(|net| {
        let address = Peer::A.prefix(net, Family::V4);
        format!("[[tunnel]]\ndev = \"sg{net}\"\n{places}addr = \"{address}\"\n")
    });
    let tables = format!(
        "{in_kernel}mode = \"gre\"\nencap = \"gue\"\nencap-dport = 6087\nencap-csum = false\nfastpath = \"on\"\n\
         {overlay}mode = \"vxlan\"\nid = 42\ndstport = 6088\ndf = \"inherit\"\n\
         {threads}mode = \"gre\"\nencap = \"gue\"\nencap-dport = 6089\nworkers = 2\n"
    );
    let far = |ground: &Ground| {
        let shape = |inside, carrier, extra| Shape { extra, ..Shape::new(inside, carrier, Family::V4) };
        let [bare, zero]: [&[&str]; 2] = [&["fastpath", "off"], &["fastpath", "off", "noencap-csum"]];
        [
            (7, shape(Inside::Gre, Carrier::Gue, zero)),
            (8, shape(Inside::Vxlan, Carrier::Bare, bare)),
            (9, shape(Inside::Gre, Carrier::Gue, bare)),
        ]
        .map(|(net, shape)| Tunnel::start(&ground.b, &ground.program, &shape.words(Peer::B, net)))
    };
    let made = Service::prepared(test_name!(), 0, &tables, &[], far);
    let Some((service, _far)) = &made else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    for (net, name) in [(7, "sg7"), (8, "sg8"), (9, "sg9")] {
        if net == 7
            && let Some(why) = fastpath::missing(&service.ground)
        {
            segue_tests::skip(test_name!(), &why);
            continue;
        }
        if net > 7 && !is_full() {
            continue;
        }
        // The programs take most packets.
        let least = if net == 7 { IN_KERNEL } else { 2 * EACH * DATAGRAMS };
        Subject::tunnel(service, name, net).tries_worker(&OF_PACKETS, least);
    }
}

/// Starts a service whose one instance is that of `table`, after calling `prepare` with the hosts, and has calls of the
/// process that moves its packets fail. `ends` returns the ends of its packets, once the instance is up.
#[track_caller]
fn errors_of<T>(
    test: &str,
    (name, table): (&str, &str),
    prepare: impl FnOnce(&Ground) -> T,
    ends: impl FnOnce(&Ground) -> [IpAddr; 2],
) {
    let Some((service, _prepared)) = &Service::prepared(test, 0, table, &[], prepare) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test, "not installed: strace");
    }
    let [near, far] = ends(&service.ground);
    let ends = [(&service.ground.a, near), (&service.ground.b, far)].map(|(host, address)| Place { host, address });
    Subject::new(service, name, ends).tries_worker(&OF_PACKETS, 2 * EACH * DATAGRAMS);
}

#[test]
fn no_error_of_a_system_call_ends_a_tunnel_without_udp_or_costs_more_than_three_times_the_normal() {
    let [near, far] = [Peer::A, Peer::B].map(|end| end.address(0, Family::V6));
    let inside = Peer::A.prefix(10, Family::V4);
    let table = format!(
        "[[tunnel]]\ndev = \"sg10\"\nlocal = \"{near}\"\nremote = \"{far}\"\naddr = \"{inside}\"\nmode = \"ip6tnl\"\n\
         fastpath = \"off\"\n"
    );
    let far = |ground: &Ground| {
        let shape = Shape::new(Inside::Ip6tnl, Carrier::Bare, Family::V6);
        Tunnel::start(&ground.b, &ground.program, &shape.words(Peer::B, 10))
    };
    errors_of(test_name!(), ("sg10", &table), far, |_| [Peer::A, Peer::B].map(|end| end.address(10, Family::V4)));
}

#[test]
fn no_error_of_a_system_call_ends_a_tunnel_with_a_peer_table_or_costs_more_than_three_times_the_normal() {
    let directory = Directory::new();
    let [near, far] = [Peer::A, Peer::B].map(|end| end.address(11, Family::V4));
    let [local, remote] = [Peer::A, Peer::B].map(|end| end.address(0, Family::V4));
    let (peers, port) = (directory.file("peers.json"), Shape::port(11));
    fs::write(&peers, format!(r#"{{"peers":[{{"prefix":"{far}/32","remote":"{remote}","encap":"gue"}}]}}"#)).unwrap();
    let table = format!(
        "[[tunnel]]\ndev = \"sg11\"\nlocal = \"{local}\"\npeers = \"{}\"\naddr = \"{}\"\nlisten = \"gue:{port}\"\n",
        peers.display(),
        Peer::A.prefix(11, Family::V4)
    );
    let start = |ground: &Ground| {
        let shape = Shape::new(Inside::Ipip, Carrier::Gue, Family::V4);
        Tunnel::start(&ground.b, &ground.program, &shape.words(Peer::B, 11))
    };
    errors_of(test_name!(), ("sg11", &table), start, |_| [near, far]);
}

#[test]
fn no_error_of_a_system_call_ends_a_gateway_of_a_tap_or_costs_more_than_three_times_the_normal() {
    let table = "[[gateway]]\nin = \"tp-b\"\nout = \"tap:tap12\"\nname = \"tap\"\n";
    let connect = |ground: &Ground| {
        ip(&ground.a, &format!("link add tp-b type veth peer name tp-b netns {}", ground.b.net_path()));
        [&ground.a, &ground.b].into_iter().for_each(|host| ip(host, "link set tp-b up"));
        ip(&ground.b, "address add 198.19.212.2/24 dev tp-b");
    };
    errors_of(test_name!(), ("tap", table), connect, |ground| {
        ip(&ground.a, "address add 198.19.212.1/24 dev tap12");
        ip(&ground.a, "link set tap12 up");
        [1, 2].map(|host| IpAddr::from([198, 19, 212, host]))
    });
}

/// Numbers of descriptors of a service, and of the supervisor and the process that moves packets of an instance; number
/// of processes of the service; and the interfaces of its host.
type Held = ([usize; 4], Vec<String>);

/// Returns what a service and an instance have open; `None` while that has no process.
fn held(service: &Service, name: &str) -> Option<Held> {
    let worker = service.pid(name)?;
    let supervisor = parent(worker);
    let whole = parent(supervisor);
    let open = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let mut devices = service.ground.a.devices();
    devices.sort();
    Some(([open(whole), open(supervisor), open(worker), children(whole).len()], devices))
}

/// Kills the process that moves the packets of an instance, and lets calls of its service and of all that this starts
/// fail until the start has failed or succeeded. `passes` returns whether packets pass through it within a time.
/// Returns the calls.
#[track_caller]
fn start_fails(
    service: &Service,
    (name, passes): (&str, &dyn Fn(Duration) -> bool),
    most: &Held,
    fault: Option<(&str, &str)>,
) -> Calls {
    let worker = service.patient_pid(name).unwrap();
    let whole = parent(parent(worker));
    let is_up = |event: &Value| event["event"] == "up" && event["instance_name"] == name;
    let is_error = |event: &Value| {
        let words = event["error"]["message"].as_str().unwrap_or_default();
        words.split([' ', ':']).any(|word| word == name)
    };
    let count = |is_it: &dyn Fn(&Value) -> bool| service.events().iter().filter(|event| is_it(event)).count();
    let (errors, ups) = (count(&is_error), count(&is_up));
    let directory = Directory::new();
    let traced = Traced::attach(whole, fault, &directory.file("calls"));
    sys::signal(worker, libc::SIGKILL).unwrap();
    // The end of the process is one error, the failed start another one.
    let begin = Instant::now();
    let is_over = || count(&is_error) > errors + 1 || count(&is_up) > ups;
    while !is_over() && begin.elapsed() < OF_START {
        thread::sleep(Duration::from_millis(50));
    }
    let is_over = is_over();
    let calls = traced.detach();
    let what = || format!("{name} {fault:?}: {calls:?}: {}", tail(&service.near));
    assert!(is_over, "no error was reported: {}", what());
    assert!(passes(PATIENCE) && service.answers(), "{}", what());
    assert_eq!(service.patient_pid(name).map(|now| parent(parent(now))), Some(whole), "{}", what());
    // The process that answered in place of the instance ends a moment later. An instance that does without the
    // programs in the kernel has fewer descriptors.
    let is_no_more = |(now, devices): Held| now.iter().zip(most.0).all(|(now, most)| *now <= most) && devices == most.1;
    let begin = Instant::now();
    while !held(service, name).is_some_and(is_no_more) {
        assert!(begin.elapsed() < PATIENCE, "{:?} of at most {most:?}: {}", held(service, name), what());
        thread::sleep(Duration::from_millis(20));
    }
    calls
}

#[test]
fn an_instance_whose_start_fails_by_any_call_starts_again_and_leaves_nothing_behind() {
    // Another instance each time: one that ends often is started again after a pause.
    // All calls take ten minutes (`make trust ONLY=errors`).
    let is_whole = segue_testkit::is_set("SEGUE_STARTS");
    let count = if is_whole { STARTS } else { 1 + OF_STARTS.len() as u8 };
    let keys = "encap-csum = false\nfastpath = \"on\"\n";
    let Some((service, ())) = Service::with_keys(test_name!(), (count, keys), "", &[], |_| ()) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    assert!((1..=count).all(|net| service.passes(net, PATIENCE)), "{}", tail(&service.near));
    let most = held(&service, "sg1").unwrap();
    let mut nets = (1..=count).cycle();
    let mut start = |fault: Option<(&str, &str)>| {
        let net = nets.next().unwrap();
        let passes = |longest| service.passes(net, longest);
        let found = start_fails(&service, (&format!("sg{net}"), &passes), &most, fault);
        println!("start of an instance {fault:?}: errors met {}", found.injected);
        found
    };
    let normal = start(None);
    for fault in OF_STARTS {
        if fault.0 == "bpf" && !normal.made.contains_key("bpf") {
            segue_tests::skip(test_name!(), "the in-kernel path cannot be loaded");
            continue;
        }
        let found = start(Some(fault));
        assert!(found.injected > 0, "{fault:?}: {found:?}");
    }
    if !is_whole {
        return;
    }
    for calls in normal.can_fail() {
        // An instance whose report that it is up was lost is ended after half a minute, and started again.
        if calls == "write" {
            continue;
        }
        // Where nothing can ever wait or read, nothing is told.
        if !["ppoll", "read"].contains(&calls.as_str()) {
            start(Some((calls, "error=ENOMEM")));
        }
        // One call only, of each process.
        for number in
            iter::successors(Some(1), |number| Some(2 * number)).take_while(|&number| number <= normal.made[calls])
        {
            start(Some((calls, &format!("error=EIO:when={number}"))));
        }
    }
}

#[test]
fn a_gateway_or_router_whose_start_fails_by_any_call_starts_again_and_leaves_nothing_behind() {
    let tables = Forwarder::TABLES.to_owned() + Forwarder::MORE_TABLES;
    let prepare = |ground: &Ground| [Forwarder::both(ground), Forwarder::more(ground)].into_iter().flatten().collect();
    let made: Option<(Service, Vec<Forwarder>)> = Service::prepared(test_name!(), 0, &tables, &[], prepare);
    let Some((service, forwarders)) = &made else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    // Each of them has one start that fails in the reduced test.
    let faults = &OF_FORWARDERS_STARTS[..if is_full() { OF_FORWARDERS_STARTS.len() } else { 2 }];
    for (at, fault) in faults.iter().enumerate() {
        for forwarder in &forwarders[2 * (at % 2)..][..2] {
            let passes = |longest| forwarder.passes(service, longest);
            assert!(passes(PATIENCE), "{}: {}", forwarder.name, tail(&service.near));
            let most = held(service, forwarder.name).unwrap();
            let found = start_fails(service, (forwarder.name, &passes), &most, Some(*fault));
            assert!(found.injected > 0, "{} {fault:?}: {found:?}", forwarder.name);
        }
        if at + 1 < faults.len() && at % 2 == 1 {
            // After three faults in a minute there is a pause before the next start.
            thread::sleep(A_MINUTE);
        }
    }
}

/// Tests that an instance is not taken for one that has ended, and not waited for, where a read of what it says fails.
#[test]
fn a_service_that_cannot_read_what_a_new_instance_says_goes_on() {
    let Some(service) = Service::start(test_name!(), 1, "", &[]) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    let worker = service.patient_pid("sg1").unwrap();
    let directory = Directory::new();
    // The first ones read the end of the old instance and that the new one has started.
    let fault = ("read", "error=EIO:when=4+");
    let whole = parent(parent(worker));
    let traced = Traced::attach(whole, Some(fault), &directory.file("calls"));
    sys::signal(worker, libc::SIGKILL).unwrap();
    let begin = Instant::now();
    while traced.failed(whole) == 0 {
        assert!(begin.elapsed() < PATIENCE, "no read of the service failed: {}", tail(&service.near));
        thread::sleep(Duration::from_millis(20));
    }
    traced.detach();
    assert!(service.passes(1, PATIENCE) && service.answers(), "{}", tail(&service.near));
}

/// Tests that an instance gets the name of its control socket later, where the service, which answered in its place,
/// could not rename the socket at once.
#[test]
fn an_instance_whose_control_socket_could_not_be_renamed_has_its_name_soon() {
    let Some(service) = Service::start(test_name!(), 1, "", &[]) else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    let whole = parent(parent(service.patient_pid("sg1").unwrap()));
    // After some faults there is a pause before the next start, in which the service answers.
    let is_down = || service.stat("sg1").is_some_and(|stat| stat["health"][0]["code"] == "down");
    let kill = || service.pid("sg1").map_or(Ok(()), |pid| sys::signal(pid, libc::SIGKILL));
    let await_faults = |is_over: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_over() {
            assert!(begin.elapsed() < PATIENCE, "{}", tail(&service.near));
            // It may have just ended.
            let _ = kill();
            thread::sleep(Duration::from_millis(20));
        }
    };
    await_faults(&is_down);
    let directory = Directory::new();
    let traced = Traced::attach(whole, Some(("rename", "error=EIO:when=1")), &directory.file("calls"));
    await_faults(&|| traced.failed(whole) > 0);
    traced.detach();
    let worker = service.patient_pid("sg1").expect("an answer by its name");
    assert_eq!(parent(parent(worker)), whole);
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
}

/// Tests that calls that say that their device is gone end at most their own instance, which the service restarts: each
/// of those that move packets, and those with which the kernel's links and routes are followed. After one of its
/// device's own the instance is another process.
#[test]
fn a_call_that_says_that_its_device_is_gone_costs_one_restart_and_no_other_instance() {
    let made = Service::prepared(test_name!(), 2, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, forwarders)) = &made else { return };
    if segue_lab::which("strace").is_none() {
        return segue_tests::skip(test_name!(), "not installed: strace");
    }
    let other = service.patient_pid("sg2");
    let tunnel = Subject::tunnel(service, "sg1", 1);
    let forwarders = forwarders.iter().map(|one| Subject::new(service, one.name, one.ends(&service.ground)));
    for subject in [tunnel].into_iter().chain(forwarders) {
        let mut met = 0;
        for calls in OF_DEVICES {
            assert!(subject.passes(), "{}: {}", subject.name, tail(&service.near));
            let pid = service.patient_pid(subject.name).unwrap();
            let directory = Directory::new();
            let traced = Traced::attach(pid, Some((calls, "error=ENODEV")), &directory.file("calls"));
            subject.disturb();
            let found = traced.detach();
            assert!(subject.passes(), "{} {calls}: {}", subject.name, tail(&service.near));
            let now = service.patient_pid(subject.name);
            println!("{} {calls}: {} errors, restarted: {}", subject.name, found.injected, now != Some(pid));
            // A socket drops the datagram; a forwarder has its frames from a ring, and sends them by its device.
            let of_device = match subject.name {
                "sg1" => calls.starts_with("read,") || calls.starts_with("write,"),
                _ => calls.starts_with("sendmsg,"),
            };
            let may_stay = found.injected == 0 || !of_device;
            assert!(may_stay || now.is_some_and(|now| now != pid), "{} {calls}: {found:?}", subject.name);
            met += usize::from(found.injected > 0 && of_device);
        }
        assert!(met > 0, "{}: no call of its device met the error", subject.name);
    }
    assert_eq!(service.patient_pid("sg2"), other);
}
