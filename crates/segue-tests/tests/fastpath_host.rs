//! Tests of the in-kernel path on a host that changes beside it, or where others see the packets: routes, neighbours,
//! other programs, reverse path filters, traces, reloads; and of the outer headers, whose fields are those of the
//! daemon.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::{Host, LinkForm, Peer, Process};
use segue_tests::capture::{Capture, Directory, frames};
use segue_tests::fastpath::{NET, REQUIRE, assert_off, ground, left, taken};
use segue_tests::routed::ip;
use segue_tests::traffic::{self, Place};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, Tunnel, skip, sys, test_name};
use serde_json::Value;

/// Time for any change that the in-kernel path finds by polling.
const PATIENCE: Duration = Duration::from_secs(60);
const FILE: u64 = 4 << 20;
const AUTO: &[&str] = &["fastpath", "auto"];

/// Length of an Ethernet header.
const LINK: usize = 14;

/// A tunnel with options for its outer headers: mode, encapsulation, outer family, bytes in front of the inner packet,
/// and the words with and without the in-kernel path.
type Choice = (Inside, Carrier, Family, usize, [&'static [&'static str]; 2]);

const CHOICES: &[Choice] = &[
    (
        Inside::Ipip,
        Carrier::Bare,
        V4,
        20,
        [
            &["tos", "inherit", "ttl", "inherit", "fastpath", "require"],
            &["tos", "inherit", "ttl", "inherit", "fastpath", "off"],
        ],
    ),
    (
        Inside::Gre,
        Carrier::Bare,
        V4,
        24,
        [&["tos", "48", "ttl", "7", "fastpath", "require"], &["tos", "48", "ttl", "7", "fastpath", "off"]],
    ),
    (
        Inside::Gre,
        Carrier::Gue,
        V4,
        36,
        [
            &["tos", "inherit", "ttl", "7", "noencap-csum", "fastpath", "require"],
            &["tos", "inherit", "ttl", "7", "noencap-csum", "fastpath", "off"],
        ],
    ),
    (
        Inside::Gre,
        Carrier::Bare,
        V6,
        44,
        [
            &["tos", "inherit", "ttl", "inherit", "fastpath", "require"],
            &["tos", "inherit", "ttl", "inherit", "fastpath", "off"],
        ],
    ),
    (
        Inside::VxlanZero,
        Carrier::Bare,
        V4,
        50,
        [
            &["tos", "inherit", "df", "inherit", "fastpath", "require"],
            &["tos", "inherit", "df", "inherit", "fastpath", "off"],
        ],
    ),
    (
        Inside::VxlanZero,
        Carrier::Bare,
        V4,
        50,
        [&["df", "set", "fastpath", "require"], &["df", "set", "fastpath", "off"]],
    ),
];

/// DSCP and ECN, TTL and DF of the inner packets, in the words of ping.
const INNER: [(&str, &str, &str); 5] =
    [("0x0", "64", "dont"), ("0x2", "9", "do"), ("0x1", "64", "do"), ("0x3", "200", "dont"), ("0xba", "9", "do")];

/// Returns the traffic class, the TTL and DF of the outer headers of ICMP echo requests that A sends, one for each of
/// [`INNER`].
fn outer_fields(ground: &Ground, shape: Shape, overhead: usize) -> Vec<(u8, u8, bool)> {
    let pair = Pair::start(ground, shape, NET);
    let directory = Directory::new();
    let capture = Capture::start(&ground.a, directory.file("a.pcap"));
    let to = Peer::B.address(NET, V4).to_string();
    for (tos, ttl, df) in INNER {
        ground.a.run("ping", &["-c", "1", "-W", "10", "-Q", tos, "-t", ttl, "-M", df, &to]).expect("an answer");
    }
    let file = fs::read(capture.stop()).expect("a capture");
    if shape.extra.contains(&"require") {
        let stat = &pair.stat()[0];
        assert!(taken(stat)[0] >= INNER.len() as u64, "{shape}: {:?}, left {}", taken(stat), left(stat));
    }
    let fields = |frame: &[u8]| {
        let inner = frame.get(LINK + overhead..)?;
        let is_request = inner.first() == Some(&0x45) && inner.get(9) == Some(&1) && inner.get(20) == Some(&8);
        is_request.then(|| match shape.outer {
            V4 => (frame[LINK + 1], frame[LINK + 8], frame[LINK + 6] & 0x40 != 0),
            V6 => (frame[LINK] << 4 | frame[LINK + 1] >> 4, frame[LINK + 7], false),
        })
    };
    frames(&file).expect("whole frames").into_iter().filter_map(fields).collect()
}

#[test]
fn the_outer_headers_of_the_path_are_those_of_the_daemon() {
    let Some(ground) = ground(test_name!(), LinkForm::Nic, &["tcpdump", "ping"]) else { return };
    for (inside, carrier, outer, overhead, words) in CHOICES {
        let [path, daemon] = words
            .map(|extra| outer_fields(&ground, Shape { extra, ..Shape::new(*inside, *carrier, *outer) }, *overhead));
        assert_eq!(path, daemon, "{inside:?} in {carrier:?}, {words:?}");
        assert_eq!(path.len(), INNER.len(), "{path:?}");
        // At least ECN is that of the inner packets.
        assert!(path.iter().collect::<BTreeSet<_>>().len() > 1, "{path:?}");
    }
}

/// Returns a counter of an interface at A.
fn counted(ground: &Ground, device: &str, what: &str) -> u64 {
    let text = ground.a.run("cat", &[&format!("/sys/class/net/{device}/statistics/{what}")]).unwrap();
    text.trim().parse().expect("a count")
}

#[test]
fn another_interface_and_another_neighbour_are_followed() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let pair = Pair::start(&ground, Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V4) }, NET);
    let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
    // Sends files both ways until the path has sent one by this interface, and has received one if `both`.
    let carried = |device: &str, both: bool| {
        let begin = Instant::now();
        loop {
            let before = taken(&pair.stat()[0]);
            let sent = counted(&ground, device, "tx_packets");
            traffic::file(a, b, FILE, 1);
            traffic::file(b, a, FILE, 2);
            let stat = &pair.stat()[0];
            let [by_path, received] = [0, 1].map(|at| taken(stat)[at] - before[at]);
            // A train counts as one packet here.
            let by_link = counted(&ground, device, "tx_packets") - sent;
            if by_path > 2000 && by_link > 60 && (received > 2000 || !both) {
                return;
            }
            let what = format!("{by_path} sent by the path, {received} received, {by_link} sent by {device}");
            assert!(begin.elapsed() < PATIENCE, "{what}, left {}", left(stat));
        }
    };
    carried("eth0", true);

    // Another link, by which each end now reaches the other.
    ip(&ground.a, &format!("link add eth1 type veth peer name eth1 netns {}", ground.b.net_path()));
    let ends = [(&ground.a, Peer::A), (&ground.b, Peer::B)];
    ends.iter().for_each(|(host, _)| ip(host, "link set eth1 up"));
    for (host, end) in ends {
        let [local, remote] = [end, end.other()].map(|end| end.address(0, V4));
        ip(host, &format!("route replace {remote} dev eth1 src {local}"));
    }
    carried("eth1", false);

    // Back again, where B now has another link address, which only the neighbour table tells.
    for (host, end) in ends {
        ip(host, &format!("route del {}", end.other().address(0, V4)));
    }
    ip(&ground.b, "link set eth0 address 02:00:00:00:00:77");
    let remote = Peer::B.address(0, V4);
    ip(&ground.a, &format!("neigh replace {remote} lladdr 02:00:00:00:00:77 dev eth0 nud permanent"));
    carried("eth0", true);
}

/// Returns the state of the path at A once it is on or off, as asked for.
#[track_caller]
fn settled(ground: &Ground, on: bool) -> Value {
    let is_it = |stat: &Stat| stat.json()["fastpath"]["on"] == on;
    let stat = Stat::until(&ground.a, &ground.program, &Shape::device(NET), PATIENCE, is_it);
    assert!(is_it(&stat), "{}", stat.json()["fastpath"]);
    stat.json()["fastpath"].clone()
}

#[test]
fn an_interface_in_another_namespace_is_served_by_the_daemon_until_it_is_back() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let pair = Pair::start(&ground, Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V4) }, NET);
    let other = Host::new("other").expect("a host, since two could be made a moment ago");
    let (device, [near, far]) = (Shape::device(NET), [Peer::A, Peer::B].map(|end| end.address(NET, V4)));
    let raise = |host: &Host| {
        ip(host, &format!("address replace {} dev {device}", Peer::A.prefix(NET, V4)));
        ip(host, &format!("link set {device} up"));
    };
    ip(&ground.a, &format!("link set {device} netns {}", other.net_path()));
    let state = settled(&ground, false);
    assert_eq!(state["why"], format!("{device} is not in this network namespace"));
    raise(&other);
    segue_lab::reach((&other, near), (&ground.b, far), PATIENCE).unwrap();
    ip(&other, &format!("link set {device} netns {}", ground.a.net_path()));
    raise(&ground.a);
    settled(&ground, true);
    let before = taken(&pair.stat()[0]);
    let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
    segue_lab::reach((&ground.a, near), (&ground.b, far), PATIENCE).unwrap();
    traffic::file(a, b, FILE, 1);
    traffic::file(b, a, FILE, 2);
    let stat = &pair.stat()[0];
    let [sent, received] = [0, 1].map(|at| taken(stat)[at] - before[at]);
    // Before Linux 6.6 the kernel removes the filter of an interface that is moved.
    let is_there = ground.a.enter(|| sys::programs_at(&device, sys::Hook::Egress)).unwrap();
    let has_sent = sent > 2000 || !is_there.is_ok_and(|programs| !programs.is_empty());
    assert!(has_sent && received > 2000, "{sent} sent, {received} received by the path, left {}", left(stat));
}

#[test]
fn packets_for_a_local_address_that_this_host_no_longer_has_are_not_taken() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let pair = Pair::start(&ground, Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V4) }, NET);
    let mac = ground.a.run("cat", &["/sys/class/net/eth0/address"]).unwrap();
    let (local, prefix) = (Peer::A.address(0, V4), Peer::A.prefix(0, V4));
    ip(&ground.b, &format!("neigh replace {local} lladdr {} dev eth0 nud permanent", mac.trim()));
    ip(&ground.a, &format!("addr del {prefix} dev eth0"));
    assert_eq!(settled(&ground, false)["why"], format!("this host no longer has {local}"));
    let (before, arrived) = (taken(&pair.stat()[0])[1], counted(&ground, "eth0", "rx_packets"));
    let (sender, begin) = (traffic::socket(pair.place(Peer::B, V4)), Instant::now());
    while counted(&ground, "eth0", "rx_packets") < arrived + 50 {
        sender.send_to(&[7; 100], (Peer::A.address(NET, V4), 9)).unwrap();
        assert!(begin.elapsed() < PATIENCE, "nothing arrives");
    }
    assert_eq!(taken(&pair.stat()[0])[1], before);
    ip(&ground.a, &format!("addr add {prefix} dev eth0"));
    settled(&ground, true);
    let [near, far] = [Peer::A, Peer::B].map(|end| end.address(NET, V4));
    segue_lab::reach((&ground.a, near), (&ground.b, far), PATIENCE).unwrap();
}

#[test]
fn auto_leaves_to_the_daemon_what_a_routing_rule_sends_by_another_interface() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    ip(&ground.a, &format!("link add eth1 type veth peer name eth1 netns {}", ground.b.net_path()));
    for host in [&ground.a, &ground.b] {
        ip(host, "link set eth1 up");
        for link in ["all", "eth0", "eth1"] {
            host.set_sysctl(&format!("ipv4/conf/{link}/rp_filter"), "0").unwrap();
        }
    }
    let [local, remote] = [Peer::A, Peer::B].map(|end| end.address(0, V4));
    ip(&ground.a, &format!("route add {remote} dev eth1 src {local} table 100"));
    ip(&ground.a, "rule add ipproto 47 lookup 100");
    let pair = Pair::start(&ground, Shape { extra: AUTO, ..Shape::new(Inside::Gre, Carrier::Bare, V4) }, NET);
    let before = counted(&ground, "eth1", "tx_packets");
    traffic::file(pair.place(Peer::A, V4), pair.place(Peer::B, V4), FILE, 1);
    // A train counts as one packet here.
    let sent = counted(&ground, "eth1", "tx_packets") - before;
    assert!(sent > 30, "{sent} packets by the interface of the rule");
    assert_off(&ground, "a routing rule tells packets by protocol, port, user or interface");
}

/// Attaches a program of other software to A's link, as long as the process runs. `None` where that cannot be done,
/// which is noted under `name`.
fn other_program(ground: &Ground, name: &str) -> Option<Process> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign_program.py");
    let mut command = ground.a.command("python3");
    command.arg(script).arg(segue_lab::DEVICE);
    let mut other = Process::spawn(command, b"").expect("python3 starts");
    if other.wait_for_line("attached", PATIENCE).is_err() {
        skip(name, &format!("no program at tcx: {}", other.last_words()));
        return None;
    }
    Some(other)
}

#[test]
fn auto_stays_off_where_another_program_sees_the_packets() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &["python3"]) else { return };
    let Some(mut other) = other_program(&ground, test_name!()) else { return };
    let auto = Shape { extra: AUTO, ..Shape::new(Inside::Gre, Carrier::Bare, V4) };
    let pair = Pair::start(&ground, auto, NET);
    assert_off(&ground, "eth0 has the program other");
    assert_eq!(pair.stat()[1].json()["fastpath"]["on"], true);
    drop(pair);
    other.stop(PATIENCE);
    let pair = Pair::start(&ground, auto, NET);
    let stat = &pair.stat()[0];
    let state = &stat.json()["fastpath"];
    assert_eq!(state["on"], true, "{state}");
}

#[test]
fn a_trace_is_written_by_the_daemon_which_then_carries_the_packets() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let words = |end: Peer, extra| Shape { extra, ..Shape::new(Inside::Gre, Carrier::Bare, V4) }.words(end, NET);
    let traced = |extra, name: &str| {
        let mut words = words(Peer::A, extra);
        words.extend(["--trace", directory.file(name).to_str().expect("UTF-8")].map(str::to_owned));
        words
    };
    let mut command = ground.a.command(&ground.program);
    let output = command.arg("tunnel").args(traced(REQUIRE, "required.pcap")).output().expect("segue starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--trace needs the daemon"), "{said}");

    let _near = Tunnel::start(&ground.a, &ground.program, &traced(AUTO, "auto.pcap"));
    let _far = Tunnel::start(&ground.b, &ground.program, &words(Peer::B, REQUIRE));
    let [a, b] =
        [(Peer::A, &ground.a), (Peer::B, &ground.b)].map(|(end, host)| Place { host, address: end.address(NET, V4) });
    segue_lab::reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
    traffic::file(a, b, FILE, 1);
    traffic::file(b, a, FILE, 2);
    let stat = Stat::read(&ground.a, &ground.program, &Shape::device(NET));
    let state = &stat.json()["fastpath"];
    assert_eq!((&state["on"], &state["why"]), (&false.into(), &"--trace needs the daemon".into()));
    let len = fs::metadata(directory.file("auto.pcap")).expect("a trace").len();
    assert!(len > FILE, "{len} bytes of two files");
}

#[test]
fn queues_by_flow_are_those_of_the_daemon_to_which_auto_leaves_the_packets() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let program = ground.program.to_str().expect("UTF-8");
    let set = |value: u8| {
        let queues = format!("net.fq.dev.raw.enable_fq={value}");
        ground.a.run(program, &["set", &Shape::device(NET), &queues]).unwrap();
    };
    // What was asked for by `on` takes the path past the queues.
    for (extra, by_path) in [(AUTO, false), (&["fastpath", "on"], true)] {
        let pair = Pair::start(&ground, Shape { extra, ..Shape::new(Inside::Gre, Carrier::Bare, V4) }, NET);
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
        for (queues, is_on) in [(1, by_path), (0, true)] {
            set(queues);
            let before = taken(&pair.stat()[0]);
            traffic::file(a, b, FILE, 1);
            let stat = &pair.stat()[0];
            let state = &stat.json()["fastpath"];
            assert_eq!(state["on"], is_on, "{extra:?} {queues}: {state}");
            let why = state["why"].as_str().unwrap_or_default();
            assert_eq!(why.starts_with("enable_fq needs the daemon"), !is_on, "{extra:?} {queues}: {why}");
            let sent = taken(stat)[0] - before[0];
            assert_eq!(sent > 2000, is_on, "{extra:?} {queues}: {sent} by the path, left {}", left(stat));
        }
    }
}

/// A flag that is set on drop, so that a thread ends even if a test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_tunnel_with_queues_by_flow_in_its_words_sends_not_even_its_first_packets_by_the_path() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let shape = Shape { extra: AUTO, ..Shape::new(Inside::Gre, Carrier::Bare, V4) };
    let device = Shape::device(NET);
    // The path leaves packets to the daemon as long as the neighbour is unknown.
    let [a, b] = [Peer::A, Peer::B].map(|end| end.address(0, V4));
    segue_lab::reach((&ground.a, a), (&ground.b, b), PATIENCE).unwrap();
    let mut words = shape.words(Peer::A, NET);
    words.extend(["--set", "net.fq.dev.raw.enable_fq=1"].map(str::to_owned));
    let socket = traffic::inside(&ground.a, || UdpSocket::bind("0.0.0.0:0")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            // There is a route from the moment on that the interface is up.
            while !stop.load(Ordering::Relaxed) {
                let _ = socket.send_to(&[1; 100], (Peer::B.address(NET, V4), 9));
                thread::yield_now();
            }
        });
        let _near = Tunnel::start(&ground.a, &ground.program, &words);
        let has_sent = |stat: &Stat| stat.count(&device, "receive", "packets") > 0;
        let stat = Stat::until(&ground.a, &ground.program, &device, PATIENCE, has_sent);
        let state = &stat.json()["fastpath"];
        assert!(has_sent(&stat), "nothing was sent: {}", stat.json());
        assert!(state["why"].as_str().is_some_and(|why| why.starts_with("enable_fq needs the daemon")), "{state}");
        assert_eq!(taken(&stat), [0, 0], "left {}", left(&stat));
    });
}

#[test]
fn doctor_names_filters_also_where_tunnels_in_udp_lack_a_capability() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &["tc", "setpriv"]) else { return };
    ground.a.run("tc", &["qdisc", "add", "dev", segue_lab::DEVICE, "clsact"]).unwrap();
    let mut command = ground.a.command("setpriv");
    // CAP_SYS_ADMIN gives what CAP_PERFMON gives.
    command.args(["--inh-caps=-all", "--bounding-set=-sys_admin,-perfmon"]).arg(&ground.program).args(["doctor", "-j"]);
    let output = command.output().expect("setpriv starts");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let checks = document["checks"].as_array().expect("checks").iter().filter(|check| check["name"] == "fastpath");
    let found: Vec<&str> = checks.map(|check| check["found"].as_str().expect("a text")).collect();
    if !found.contains(&"the in-kernel path is only for tunnels without UDP here") {
        return skip(test_name!(), &format!("the verifier does not ask for CAP_PERFMON here: {found:?}"));
    }
    assert!(found.contains(&"fastpath auto leaves tunnels over eth0 to the daemon"), "{found:?}");
    // It does not say beside this that the kernel can carry tunnels.
    assert!(!found.iter().any(|text| text.starts_with("the kernel can")), "{found:?}");
}

/// Returns the number of packets that A has dropped because their sender is reached by another interface.
fn filtered(ground: &Ground) -> u64 {
    let text = ground.a.run("cat", &["/proc/net/netstat"]).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:")).map(|line| line.split(' '));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let (_, value) = names.zip(values).find(|(name, _)| *name == "IPReversePathFilter").expect("a counter");
    value.parse().expect("a count")
}

#[test]
fn reverse_path_filters_see_outer_packets_of_the_daemon_alone() {
    const COUNT: u64 = 50;
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let on = Shape { extra: &["fastpath", "on"], ..Shape::new(Inside::Ipip, Carrier::Bare, V4) };
    let pair = Pair::start(&ground, on, NET);
    // What A sends to B would leave by another interface, so that a strict filter takes what comes from B for spoofed:
    // ARP too.
    let mac = ground.a.run("cat", &["/sys/class/net/eth0/address"]).unwrap();
    let [local, remote] = [Peer::A, Peer::B].map(|end| end.address(0, V4));
    ip(&ground.b, &format!("neigh replace {local} lladdr {} dev eth0 nud permanent", mac.trim()));
    ip(&ground.a, "link add other type veth peer name other1");
    ["other", "other1"].iter().for_each(|link| ip(&ground.a, &format!("link set {link} up")));
    ip(&ground.a, &format!("route replace {remote} dev other"));
    ground.a.set_sysctl("ipv4/conf/all/rp_filter", "0").unwrap();
    ground.a.set_sysctl("ipv4/conf/eth0/rp_filter", "1").unwrap();

    let receiver = traffic::socket(pair.place(Peer::A, V4));
    let sender = traffic::socket(pair.place(Peer::B, V4));
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let send = || (0..COUNT).for_each(|_| _ = sender.send(&[7; 100]).unwrap());
    let (before, received) = (filtered(&ground), taken(&pair.stat()[0])[1]);
    send();
    let all = |stat: &Stat| taken(stat)[1] >= received + COUNT;
    let stat = Stat::until(&ground.a, &ground.program, &Shape::device(NET), PATIENCE, all);
    assert!(all(&stat), "{received}, then {:?}, left {}", taken(&stat), left(&stat));
    let passed = filtered(&ground) - before;
    assert!(passed < COUNT / 5, "{passed} packets of the path were filtered");

    let program = ground.program.to_str().expect("UTF-8");
    let off = "net.fastpath.dev.raw.enable_fastpath=0";
    ground.a.run(program, &["set", &Shape::device(NET), off]).unwrap();
    let before = filtered(&ground);
    send();
    let begin = Instant::now();
    while filtered(&ground) < before + COUNT {
        assert!(begin.elapsed() < PATIENCE, "{} filtered", filtered(&ground) - before);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the configuration of a tunnel of A that shares the outer addresses with others.
fn keyed(net: u8, fastpath: &str) -> String {
    let [local, remote] = [Peer::A, Peer::B].map(|end| end.address(0, V4));
    let addr = Peer::A.prefix(net, V4);
    format!(
        "[[tunnel]]\ndev = \"sg{net}\"\nmode = \"gre\"\nkey = {net}\nlocal = \"{local}\"\nremote = \"{remote}\"\n\
         addr = [\"{addr}\"]\nfastpath = \"{fastpath}\"\n"
    )
}

/// Starts `segue run` at A with this file.
fn serving(ground: &Ground, file: &Path) -> Process {
    let mut command = ground.a.command(&ground.program);
    command.args(["run", "-j", "-c"]).arg(file);
    let mut service = Process::spawn(command, b"").expect("segue starts");
    service.wait_for_line("\"event\":\"ready\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    service
}

/// Reloads the service at A with another tunnel of the same addresses in its file, so that the instance is handed over
/// to a new process.
fn hand_over(ground: &Ground, service: &mut Process, file: &Path, fastpath: &str) {
    fs::write(file, keyed(NET, fastpath) + &keyed(2, fastpath)).expect("a file");
    ground.a.run("kill", &["-HUP", &service.id().to_string()]).unwrap();
    service.wait_for_line("\"event\":\"reloaded\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn auto_stays_off_after_a_handover_where_another_program_sees_the_packets() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &["python3"]) else { return };
    let Some(_other) = other_program(&ground, test_name!()) else { return };
    let directory = Directory::new();
    let file = directory.file("segue.toml");
    fs::write(&file, keyed(NET, "auto")).expect("a file");
    let mut service = serving(&ground, &file);
    let read = || Stat::read(&ground.a, &ground.program, &Shape::device(NET)).json().clone();
    let before = read();
    hand_over(&ground, &mut service, &file, "auto");
    let after = read();
    assert_ne!(after["pid"], before["pid"], "{}", service.stdout());
    for stat in [before, after] {
        let state = &stat["fastpath"];
        assert_eq!((&state["on"], &state["why"]), (&false.into(), &"eth0 has the program other".into()), "{state}");
    }
}

#[test]
fn a_reload_under_load_keeps_the_path_and_the_connections() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let file = directory.file("segue.toml");
    fs::write(&file, keyed(NET, "require")).expect("a file");
    let mut service = serving(&ground, &file);
    let [local, remote] = [Peer::B, Peer::A].map(|end| end.address(0, V4));
    let words = format!(
        "dev sg1 mode gre key {NET} local {local} remote {remote} addr {} fastpath require",
        Peer::B.prefix(NET, V4)
    );
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let _far = Tunnel::start(&ground.b, &ground.program, &words);
    let [a, b] =
        [(Peer::A, &ground.a), (Peer::B, &ground.b)].map(|(end, host)| Place { host, address: end.address(NET, V4) });
    segue_lab::reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
    let read = || Stat::read(&ground.a, &ground.program, &Shape::device(NET));
    let before = read();
    assert_eq!(before.json()["fastpath"]["on"], true, "{}", before.json()["fastpath"]);

    std::thread::scope(|scope| {
        let sending = scope.spawn(|| (0..4).for_each(|seed| _ = traffic::file(a, b, 4 * FILE, seed)));
        hand_over(&ground, &mut service, &file, "require");
        sending.join().unwrap();
    });
    let after = read();
    assert_ne!(after.json()["pid"], before.json()["pid"], "{}", service.stdout());
    assert_eq!(after.json()["fastpath"]["on"], true, "{}", after.json()["fastpath"]);
    traffic::file(a, b, FILE, 9);
    let sent = taken(&read())[0] - taken(&after)[0];
    assert!(sent > 2000, "{sent} of a file of 4 MB, left {}", left(&read()));
}

/// A user without rights, as that of the unit.
const USER: &str = "61234";

/// Prepares A for programs of that user: devices, the program, and a folder of control sockets.
fn admit_user(ground: &Ground) -> Result<(), segue_lab::LabError> {
    let lines = [
        "mount -t tmpfs -o mode=755 tun /dev/net && mknod -m 666 /dev/net/tun c 10 200",
        &format!(
            "exec 3<'{}' && mount -t tmpfs -o mode=755 mnt /mnt && install -m 755 /proc/self/fd/3 /mnt/segue",
            ground.program.display()
        ),
        &format!("mkdir -p /run/segue && mount -t tmpfs -o mode=755,uid={USER},gid={USER} run /run/segue"),
    ];
    lines.iter().try_for_each(|line| ground.a.run("sh", &["-c", line]).map(drop))
}

/// Starts a tunnel of A with `fastpath auto`, as that user and with the capabilities of the unit and `more`. Returns it
/// and the state of its path.
fn started_as_user(ground: &Ground, net: u8, remote: &str, more: &str) -> (Process, Value) {
    let mut command = ground.a.command("setpriv");
    command.args([&format!("--reuid={USER}"), &format!("--regid={USER}")]).args(["--clear-groups", "--no-new-privs"]);
    let sets = ["inh-caps", "ambient-caps", "bounding-set"];
    command.args(sets.map(|set| format!("--{set}=-all,+net_admin,+net_raw,+bpf,+perfmon{more}")));
    let device = Shape::device(net);
    command.args(["/mnt/segue", "tunnel", "-j", "dev", &device, "mode", "gre", "local", "198.18.0.1"]);
    command.args(["remote", remote, "fastpath", "auto"]).env("SEGUE_RUNTIME_DIR", "/run/segue");
    let mut process = Process::spawn(command, b"").expect("setpriv starts");
    process.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    let state = Stat::read(&ground.a, &ground.program, &device).json()["fastpath"].clone();
    (process, state)
}

#[test]
fn two_instances_with_the_capabilities_of_the_unit_take_the_path_over_one_interface() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &["setpriv"]) else { return };
    if let Err(error) = admit_user(&ground) {
        return skip(test_name!(), &format!("no place for another user: {error}"));
    }
    // The kernel tells a user of the tables of iptables only with this capability, where they are built in.
    let tunnels = [(1, "198.18.0.2"), (2, "198.18.0.3")];
    let tunnels = tunnels.map(|(net, remote)| started_as_user(&ground, net, remote, ",+dac_read_search"));
    for (_, state) in &tunnels {
        assert_eq!(state["on"], true, "{state}");
    }
}

#[test]
fn auto_bypasses_no_tables_of_iptables_whose_names_only_root_may_read() {
    const NAMES: &str = "/proc/net/ip_tables_names";
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &["setpriv", "cat"]) else { return };
    let Ok(names) = ground.a.run("cat", &[NAMES]) else {
        return skip(test_name!(), &format!("no {NAMES}"));
    };
    if let Err(error) = admit_user(&ground) {
        return skip(test_name!(), &format!("no place for another user: {error}"));
    }
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    let module = |name: &str| modules.lines().any(|line| line.starts_with(name));
    let expected = match (module("ip_tables "), module("iptable_")) {
        (true, false) => None,
        (true, true) => Some("iptables module iptable_"),
        (false, _) => Some("CAP_DAC_READ_SEARCH"),
    };
    let (tunnel, state) = started_as_user(&ground, 1, "198.18.0.2", "");
    let why = state["why"].as_str().unwrap_or_default();
    assert_eq!(state["on"], expected.is_none(), "{state}");
    assert!(why.contains(expected.unwrap_or_default()), "{expected:?}: {state}");
    drop(tunnel);
    let (_tunnel, state) = started_as_user(&ground, 2, "198.18.0.2", ",+dac_read_search");
    assert_eq!(state["on"], names.is_empty(), "{names:?} {state}");
}
