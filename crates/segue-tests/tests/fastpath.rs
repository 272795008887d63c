//! Tests of tunnels whose packets take the path through the kernel (`fastpath`), past the daemon: every form that it
//! carries, against itself and against the daemon, and what it leaves behind.

use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::{Host, LinkForm, Peer};
use segue_tests::routed::ip;
use segue_tests::traffic::{self, Place};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, Tunnel, skip, sys, test_name};
use serde_json::Value;

const NET: u8 = 1;
/// Time for anything that the path follows by looking.
const PATIENCE: Duration = Duration::from_secs(10);
const FILE: u64 = 4 << 20;

const REQUIRE: &[&str] = &["fastpath", "require"];
const OFF: &[&str] = &["fastpath", "off"];
const REQUIRE_ZERO: &[&str] = &["noencap-csum", "fastpath", "require"];
const OFF_ZERO: &[&str] = &["noencap-csum", "fastpath", "off"];

/// Every form of a tunnel that the path carries, with both outer families.
fn shapes() -> Vec<Shape> {
    let mut all = Vec::new();
    for outer in [V4, V6] {
        for inside in [Inside::Ipip, Inside::Sit, Inside::Gre, Inside::Ip6tnl] {
            for carrier in [Carrier::Bare, Carrier::Gue, Carrier::Fou] {
                let extra = if carrier == Carrier::Bare { REQUIRE } else { REQUIRE_ZERO };
                // ip6tnl is a mode of an IPv6 remote.
                if inside != Inside::Ip6tnl || outer == V6 {
                    all.push(Shape { extra, ..Shape::new(inside, carrier, outer) });
                }
            }
        }
    }
    all
}

/// Returns the hosts of a test, or notes why the path cannot be loaded here.
fn ground(name: &str, form: LinkForm, tools: &[&str]) -> Option<Ground> {
    let ground = Ground::new(name, form, tools)?;
    let program = ground.program.to_str()?;
    // With a missing feature `doctor` fails, and has printed the table.
    let output = ground.a.command(program).args(["doctor", "-j"]).output().expect("segue doctor starts");
    let checks: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut checks = checks["checks"].as_array().into_iter().flatten();
    let check = checks.find(|check| check["name"] == "fastpath").expect("a check of the path");
    if check["found"].as_str().is_some_and(|found| found.contains("cannot be loaded")) {
        skip(name, check["why"].as_str().unwrap_or_default());
        return None;
    }
    Some(ground)
}

/// Returns how many packets of a tunnel took the path: sent and received.
fn taken(stat: &Stat) -> [u64; 2] {
    ["sent", "received"].map(|key| stat.count(&Shape::device(NET), "fastpath", key))
}

/// Returns the packets that the path left to the daemon, for messages and comparison.
fn left(stat: &Stat) -> Value {
    stat.json()["ports"][Shape::device(NET)]["left"].clone()
}

#[test]
fn every_form_carries_everything_through_the_kernel_on_a_link_like_a_card() {
    let Some(ground) = ground(test_name!(), LinkForm::Nic, &["ping"]) else { return };
    for (number, shape) in (0..).zip(shapes()) {
        let pair = Pair::start(&ground, shape, NET);
        for family in shape.inside.families() {
            let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
            traffic::everything(a, b, FILE / 4, number);
        }
        for stat in pair.stat() {
            let [sent, received] = taken(&stat);
            // A file of a megabyte is 700 packets and more.
            assert!(sent > 700 && received > 700, "{shape}: {sent} sent, {received} received, left {}", left(&stat));
        }
        pair.assert_nothing_dropped();
    }
}

#[test]
fn the_kernels_path_and_the_daemon_understand_each_other() {
    let forms = [
        (Inside::Ipip, Carrier::Bare, V4, REQUIRE, OFF),
        (Inside::Gre, Carrier::Gue, V4, REQUIRE_ZERO, OFF_ZERO),
        (Inside::Ip6tnl, Carrier::Fou, V6, REQUIRE_ZERO, OFF_ZERO),
    ];
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        for (inside, carrier, outer, path, daemon) in forms {
            let shape = |extra| Shape { extra, ..Shape::new(inside, carrier, outer) };
            let at_a = Tunnel::start(&ground.a, &ground.program, &shape(path).words(Peer::A, NET));
            let at_b = Tunnel::start(&ground.b, &ground.program, &shape(daemon).words(Peer::B, NET));
            for family in inside.families() {
                let [a, b] = [(Peer::A, &ground.a), (Peer::B, &ground.b)]
                    .map(|(end, host)| Place { host, address: end.address(NET, *family) });
                traffic::file(a, b, FILE, 1);
                traffic::file(b, a, FILE, 2);
            }
            let stat = Stat::read(&ground.a, &ground.program, &Shape::device(NET));
            let [sent, received] = taken(&stat);
            let what = format!("{form:?} {inside:?} in {carrier:?}: {sent}, {received}, left {}", left(&stat));
            // What the daemon sends in trains of datagrams is left to the daemon here.
            assert!(sent > 2000 && received > 100, "{what}");
            drop((at_a, at_b));
        }
    }
}

#[test]
fn what_was_received_by_the_path_is_forwarded_unchanged() {
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        let Ok(third) = Host::new("c") else { return skip(test_name!(), "no third host could be made") };
        // B forwards between the tunnel and a link that cuts and sums in software.
        ip(&ground.b, &format!("link add far type veth peer name eth0 netns {}", third.net_path()));
        for (host, device, last) in [(&ground.b, "far", 1), (&third, "eth0", 2)] {
            host.run("ethtool", &["-K", device, "tso", "off", "gso", "off", "tx", "off"]).unwrap();
            ip(host, &format!("addr add 198.18.9.{last}/24 dev {device}"));
            ip(host, &format!("addr add 2001:db8:9::{last}/64 dev {device} nodad"));
            ip(host, &format!("link set {device} up"));
        }
        ground.b.set_sysctl("ipv4/ip_forward", "1").unwrap();
        ground.b.set_sysctl("ipv6/conf/all/forwarding", "1").unwrap();
        for (inside, carrier, extra) in
            [(Inside::Gre, Carrier::Bare, REQUIRE), (Inside::Gre, Carrier::Gue, REQUIRE_ZERO)]
        {
            let pair = Pair::start(&ground, Shape { extra, ..Shape::new(inside, carrier, V4) }, NET);
            for family in Family::ALL {
                let (near, gateway) = (Peer::A.address(NET, *family), Peer::B.address(NET, *family));
                let (prefix, far, back) = match family {
                    V4 => ("198.18.9.0/24", "198.18.9.2", "198.18.9.1"),
                    _ => ("2001:db8:9::/64", "2001:db8:9::2", "2001:db8:9::1"),
                };
                ip(&ground.a, &format!("route replace {prefix} via {gateway}"));
                let len = if near.is_ipv4() { 32 } else { 128 };
                ip(&third, &format!("route replace {near}/{len} via {back}"));
                let [from, to] =
                    [Place { host: &ground.a, address: near }, Place { host: &third, address: far.parse().unwrap() }];
                traffic::file(from, to, FILE, 3);
                traffic::file(to, from, FILE, 4);
                traffic::datagrams(from, to, &[1, 100, 1400], 5);
            }
            let snmp = third.run("cat", &["/proc/net/snmp"]).unwrap();
            assert_eq!(errors(&snmp), 0, "{snmp}");
            pair.assert_nothing_dropped();
        }
    }
}

/// Returns the number of TCP segments with a wrong checksum (`Tcp: ... InCsumErrors`), the last of the line.
fn errors(snmp: &str) -> u64 {
    let values = snmp.lines().filter(|line| line.starts_with("Tcp:")).nth(1).expect("a line of values");
    values.split(' ').next_back().and_then(|last| last.parse().ok()).expect("a count")
}

#[test]
fn the_path_is_switched_under_load_without_losing_a_connection() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let shape = Shape { extra: REQUIRE, ..Shape::new(Inside::Ipip, Carrier::Bare, V4) };
    let pair = Pair::start(&ground, shape, NET);
    let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
    let set = |on: u8| {
        let assignment = format!("net.fastpath.dev.raw.enable_fastpath={on}");
        let program = ground.program.to_str().unwrap();
        ground.a.run(program, &["set", &Shape::device(NET), &assignment]).unwrap();
    };
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for seed in 0..4 {
                traffic::file(a, b, 4 * FILE, seed);
            }
        });
        let mut on = 1;
        while !sending.is_finished() {
            on ^= 1;
            set(on);
        }
        sending.join().unwrap();
    });
    set(0);
    let before = taken(&pair.stat()[0]);
    traffic::file(a, b, FILE, 9);
    let off = pair.stat();
    assert_eq!(taken(&off[0]), before, "switched off, no packet takes the path");
    assert_eq!(off[0].json()["fastpath"]["on"], false);
    set(1);
    traffic::file(a, b, FILE, 10);
    assert!(taken(&pair.stat()[0])[0] > before[0] + 700);
}

#[test]
fn a_killed_daemon_leaves_no_program_and_a_new_one_starts_at_once() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let shape = Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V4) };
    let [at_a, at_b] = [(Peer::A, &ground.a), (Peer::B, &ground.b)].map(|(end, host)| (host, shape.words(end, NET)));
    let far = Tunnel::start(at_b.0, &ground.program, &at_b.1);
    for _ in 0..2 {
        let near = Tunnel::start(at_a.0, &ground.program, &at_a.1);
        let stat = Stat::read(&ground.a, &ground.program, &Shape::device(NET));
        let programs = || ground.a.enter(|| sys::programs_at("eth0")).unwrap();
        match programs() {
            Ok(names) => assert_eq!(names, ["segue_ingress"]),
            Err(error) => return skip(test_name!(), &format!("programs cannot be listed: {error}")),
        }
        let pid = stat.json()["pid"].to_string();
        ground.a.run("kill", &["-9", &pid]).unwrap();
        let begin = Instant::now();
        while programs().unwrap() != [""; 0] || ground.a.has_device(&Shape::device(NET)) {
            assert!(begin.elapsed() < PATIENCE, "{:?} {:?}", programs(), ground.a.devices());
            thread::sleep(Duration::from_millis(10));
        }
        drop(near);
    }
    drop(far);
}

#[test]
fn auto_stays_off_where_a_filter_would_miss_the_packets_and_says_so() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &["tc"]) else { return };
    ground.a.run("tc", &["qdisc", "add", "dev", "eth0", "clsact"]).unwrap();
    let auto = Shape { extra: &["fastpath", "auto"], ..Shape::new(Inside::Ipip, Carrier::Bare, V4) };
    let pair = Pair::start(&ground, auto, NET);
    let [a, b] = pair.stat();
    assert_eq!((&a.json()["fastpath"]["on"], &b.json()["fastpath"]["on"]), (&Value::Bool(false), &Value::Bool(true)));
    assert_eq!(a.json()["fastpath"]["why"], "eth0 has filters (clsact)");
    drop(pair);
    // Another queueing discipline, added later, switches it off, and on again when it is gone.
    ground.a.run("tc", &["qdisc", "del", "dev", "eth0", "clsact"]).unwrap();
    let pair = Pair::start(&ground, auto, NET);
    assert_eq!(pair.stat()[0].json()["fastpath"]["on"], true);
    let device = Shape::device(NET);
    for (word, on) in [("add", false), ("del", true)] {
        ground.a.run("tc", &["qdisc", word, "dev", &device, "root", "pfifo"]).unwrap();
        let is = |stat: &Stat| stat.json()["fastpath"]["on"] == on;
        let stat = Stat::until(&ground.a, &ground.program, &device, PATIENCE, is);
        assert!(is(&stat), "{word}: {}", stat.json()["fastpath"]);
    }
}

#[test]
fn what_the_path_cannot_carry_is_refused_with_its_reason() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    for (inside, carrier, reason) in [
        (Inside::Gre, Carrier::Gue, "outer UDP checksums"),
        (Inside::GreKeyCsum, Carrier::Bare, "GRE checksums"),
        (Inside::Gretap, Carrier::Bare, "Ethernet frames"),
    ] {
        let shape = Shape { extra: REQUIRE, ..Shape::new(inside, carrier, V4) };
        let mut command = ground.a.command(&ground.program);
        let output = command.arg("tunnel").args(shape.words(Peer::A, NET)).output().expect("segue starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{said}");
        assert!(!ground.a.has_device(&Shape::device(NET)));
    }
}
