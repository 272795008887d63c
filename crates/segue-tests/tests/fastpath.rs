//! Tests of tunnels whose packets take the in-kernel path (`fastpath`), past the daemon: every carried form, against
//! itself and against the daemon, and the state left behind.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::{Host, LinkForm, Peer, Process};
use segue_tests::capture::Directory;
use segue_tests::fastpath::{
    NET, REQUIRE, REQUIRE_OVERLAY, REQUIRE_ZERO, assert_off, errors, ground, left, removes_marks, taken,
};
use segue_tests::kernel_log::KernelLog;
use segue_tests::routed::ip;
use segue_tests::traffic::{self, Place};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, Tunnel, skip, sys, test_name};

/// Time for any change that the in-kernel path finds by polling.
const PATIENCE: Duration = Duration::from_secs(60);
const FILE: u64 = 4 << 20;

const REQUIRE_KEY: &[&str] = &["key", "3735928559", "fastpath", "require"];
const OFF: &[&str] = &["fastpath", "off"];
const OFF_KEY: &[&str] = &["key", "3735928559", "fastpath", "off"];
const OFF_ZERO: &[&str] = &["noencap-csum", "fastpath", "off"];
const OFF_OVERLAY: &[&str] = &["noudpcsum", "udp6zerocsumtx", "udp6zerocsumrx", "fastpath", "off"];

/// Returns every form of a tunnel that the in-kernel path carries, with both outer families.
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
        let others = [(Inside::Gre, REQUIRE_KEY), (Inside::VxlanZero, REQUIRE), (Inside::Geneve, REQUIRE_OVERLAY)];
        for (inside, extra) in others {
            all.push(Shape { extra, ..Shape::new(inside, Carrier::Bare, outer) });
        }
    }
    all
}

#[test]
fn every_form_carries_everything_through_the_kernel_on_a_link_like_a_card() {
    let Some(ground) = ground(test_name!(), LinkForm::Nic, &["ping"]) else { return };
    let mut log = KernelLog::mark(test_name!());
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
        log.iter_mut().for_each(|log| log.assert_silent(&shape.to_string()));
    }
}

#[test]
fn the_kernels_path_and_the_daemon_understand_each_other() {
    let mut log = KernelLog::mark(test_name!());
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        for Shape { inside, carrier, outer, extra } in shapes() {
            let [path, daemon] = match carrier {
                _ if extra == REQUIRE_KEY => [REQUIRE_KEY, OFF_KEY],
                _ if inside == Inside::Geneve => [REQUIRE_OVERLAY, OFF_OVERLAY],
                Carrier::Bare => [REQUIRE, OFF],
                _ => [REQUIRE_ZERO, OFF_ZERO],
            };
            let shape = |extra| Shape { extra, ..Shape::new(inside, carrier, outer) };
            let at_a = Tunnel::start(&ground.a, &ground.program, &shape(path).words(Peer::A, NET));
            let at_b = Tunnel::start(&ground.b, &ground.program, &shape(daemon).words(Peer::B, NET));
            for family in inside.families() {
                let [a, b] = [(Peer::A, &ground.a), (Peer::B, &ground.b)]
                    .map(|(end, host)| Place { host, address: end.address(NET, *family) });
                traffic::file(a, b, FILE / 4, 1);
                traffic::file(b, a, FILE / 4, 2);
            }
            let stat = Stat::read(&ground.a, &ground.program, &Shape::device(NET));
            let [sent, received] = taken(&stat);
            let what = format!("{form:?} {inside:?} in {carrier:?}: {sent}, {received}, left {}", left(&stat));
            // What the daemon sends in trains of datagrams is left to the daemon here.
            assert!(sent > 700 && received > 40, "{what}");
            drop((at_a, at_b));
            log.iter_mut().for_each(|log| log.assert_silent(&what));
        }
    }
}

#[test]
fn a_receiver_takes_every_form_of_its_encapsulation() {
    let Some(ground) = ground(test_name!(), LinkForm::Nic, &[]) else { return };
    const FORMS: &[&[&str]] = &[&[], &["noencap-csum"], REQUIRE_ZERO, &["encap-remcsum"]];
    let mut net = NET;
    for carrier in [Carrier::Gue, Carrier::Fou] {
        // FOU has no header for the option.
        let forms = if carrier == Carrier::Gue { FORMS } else { &FORMS[..3] };
        for (at, form) in forms.iter().enumerate() {
            for other in &forms[at + 1..] {
                net += 1;
                let shape = |extra| Shape { extra, ..Shape::new(Inside::Gre, carrier, V4) };
                let _ends = [(&ground.a, shape(form), Peer::A), (&ground.b, shape(other), Peer::B)]
                    .map(|(host, shape, end)| Tunnel::start(host, &ground.program, &shape.words(end, net)));
                for family in Family::ALL {
                    let [a, b] = [(Peer::A, &ground.a), (Peer::B, &ground.b)]
                        .map(|(end, host)| Place { host, address: end.address(net, *family) });
                    traffic::file(a, b, FILE / 16, u64::from(net));
                    traffic::file(b, a, FILE / 16, u64::from(net) + 100);
                }
                for host in [&ground.a, &ground.b] {
                    let mut drops = Stat::read(host, &ground.program, &Shape::device(net)).drops_but_overflow();
                    // From before the other end was there.
                    drops.remove("unreachable");
                    assert!(drops.is_empty(), "{form:?} and {other:?}: {drops:?}");
                }
            }
        }
    }
}

/// Creates a link from B to a third host whose ends segment and checksum in software, and gives both ends the given
/// addresses. With a bridge B's end is its only port, and has none itself.
fn link_to(ground: &Ground, third: &Host, net: u8, bridge: Option<&str>) {
    let (near, far) = (format!("far{net}"), format!("eth{net}"));
    ip(&ground.b, &format!("link add {near} type veth peer name {far} netns {}", third.net_path()));
    if let Some(bridge) = bridge {
        ip(&ground.b, &format!("link add {bridge} type bridge"));
        ip(&ground.b, &format!("link set {near} master {bridge}"));
        ip(&ground.b, &format!("link set {near} up"));
    }
    for (host, port, device, last) in [(&ground.b, &near, bridge.unwrap_or(&near), 1), (third, &far, &far, 2)] {
        host.run("ethtool", &["-K", port, "tso", "off", "gso", "off", "tx", "off"]).unwrap();
        ip(host, &format!("addr add 198.18.{net}.{last}/24 dev {device}"));
        ip(host, &format!("addr add 2001:db8:{net}::{last}/64 dev {device} nodad"));
        ip(host, &format!("link set {device} up"));
    }
}

#[test]
fn what_was_received_by_the_path_is_forwarded_unchanged() {
    let mut log = KernelLog::mark(test_name!());
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        let Ok(third) = Host::new("c") else { return skip(test_name!(), "no third host could be made") };
        // B forwards between the tunnel and two links that cut and sum in software, one of them attached to a bridge.
        link_to(&ground, &third, 9, None);
        link_to(&ground, &third, 11, Some("br0"));
        // A second tunnel, of the kernel: marks of the first one would make it cut trains wrongly.
        let second = |local: u8| {
            let ends = format!("local 198.18.9.{local} remote 198.18.9.{}", 3 - local);
            format!("link add vx0 type vxlan id 9 {ends} dstport 4789 udpcsum")
        };
        let has_vxlan = ground.b.run("ip", &second(1).split(' ').collect::<Vec<_>>()).is_ok();
        if has_vxlan {
            ip(&third, &second(2));
            for (host, last) in [(&ground.b, 1), (&third, 2)] {
                ip(host, &format!("addr add 198.18.10.{last}/24 dev vx0"));
                ip(host, "link set vx0 up");
            }
        } else {
            skip(test_name!(), "no second tunnel: this kernel has no VXLAN");
        }
        // Another one, by the same path as the first.
        let other = |host: &Host, last: u8| {
            let ends = format!("local 198.18.9.{last} remote 198.18.9.{}", 3 - last);
            let words = format!("dev other0 mode gre {ends} addr 198.19.9.{last}/24 fastpath require");
            Tunnel::start(host, &ground.program, &words.split(' ').map(str::to_owned).collect::<Vec<_>>())
        };
        let _other = [other(&ground.b, 1), other(&third, 2)];
        ground.b.set_sysctl("ipv4/ip_forward", "1").unwrap();
        ground.b.set_sysctl("ipv6/conf/all/forwarding", "1").unwrap();
        let shapes = [
            (Inside::Gre, Carrier::Bare, REQUIRE),
            (Inside::Gre, Carrier::Gue, REQUIRE_ZERO),
            (Inside::VxlanZero, Carrier::Bare, REQUIRE),
        ];
        for (inside, carrier, extra) in shapes {
            let pair = Pair::start(&ground, Shape { extra, ..Shape::new(inside, carrier, V4) }, NET);
            for (net, family) in [9, 11].iter().flat_map(|net| Family::ALL.iter().map(move |family| (net, *family))) {
                let (near, gateway) = (Peer::A.address(NET, family), Peer::B.address(NET, family));
                let (prefix, far, back) = match family {
                    V4 => (format!("198.18.{net}.0/24"), format!("198.18.{net}.2"), format!("198.18.{net}.1")),
                    V6 => (format!("2001:db8:{net}::/64"), format!("2001:db8:{net}::2"), format!("2001:db8:{net}::1")),
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
            if has_vxlan {
                ip(&ground.a, &format!("route replace 198.18.10.0/24 via {}", Peer::B.address(NET, V4)));
                ip(&third, &format!("route replace {} via 198.18.10.1", Peer::A.address(NET, V4)));
                let from = Place { host: &ground.a, address: Peer::A.address(NET, V4) };
                let to = Place { host: &third, address: "198.18.10.2".parse().unwrap() };
                traffic::file(from, to, FILE, 6);
                traffic::file(to, from, FILE, 7);
                traffic::datagrams(from, to, &[1, 100, 1300], 8);
            }
            ip(&ground.a, &format!("route replace 198.19.9.0/24 via {}", Peer::B.address(NET, V4)));
            ip(&third, &format!("route replace {} via 198.19.9.1", Peer::A.address(NET, V4)));
            let from = Place { host: &ground.a, address: Peer::A.address(NET, V4) };
            let to = Place { host: &third, address: "198.19.9.2".parse().unwrap() };
            segue_lab::reach((from.host, from.address), (to.host, to.address), PATIENCE).unwrap();
            let carried = || Stat::read(&ground.b, &ground.program, "other0").count("other0", "fastpath", "sent");
            let before = carried();
            traffic::file(from, to, FILE, 9);
            traffic::file(to, from, FILE, 10);
            traffic::datagrams(from, to, &[1, 100, 1300], 11);
            assert!(carried() > before + 700, "{before}, then {} of the second tunnel", carried());
            let snmp = third.run("cat", &["/proc/net/snmp"]).unwrap();
            assert_eq!(errors(&snmp), 0, "{snmp}");
            // What came from the third host.
            let [sent, _] = taken(&pair.stat()[1]);
            assert!(sent > 700, "{form:?} {inside:?} in {carrier:?}: {sent}, left {}", left(&pair.stat()[1]));
            // TCP over IPv4 survives the marks that a kernel before 7.0 leaves on an aggregate, so that bytes alone do
            // not show that the path left it to the daemon. What is in UDP arrives as aggregates only where trains pass
            // whole.
            let has_udp = carrier != Carrier::Bare || inside.brings_udp();
            if !removes_marks() && (form == LinkForm::Veth || !has_udp) {
                let stat = Stat::read(&ground.b, &ground.program, &Shape::device(NET));
                let forwarded = left(&stat)["forwarded"].as_u64();
                assert!(forwarded > Some(0), "{form:?} {inside:?} in {carrier:?}: left {}", left(&stat));
            }
            pair.assert_nothing_dropped();
            log.iter_mut().for_each(|log| log.assert_silent("forwarded"));
        }
    }
}

#[test]
fn the_path_is_switched_under_load_without_losing_a_connection() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let few = [
        Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V6) },
        Shape { extra: REQUIRE_ZERO, ..Shape::new(Inside::Sit, Carrier::Gue, V4) },
        Shape { extra: REQUIRE, ..Shape::new(Inside::VxlanZero, Carrier::Bare, V4) },
        Shape { extra: REQUIRE_OVERLAY, ..Shape::new(Inside::Geneve, Carrier::Bare, V6) },
    ];
    few.into_iter().for_each(|shape| switch_under_load(&ground, shape, FILE));
    switch_under_load(&ground, Shape { extra: REQUIRE, ..Shape::new(Inside::Ipip, Carrier::Bare, V4) }, 4 * FILE);
}

#[test]
fn full_size_every_form_is_switched_under_load_without_losing_a_connection() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    shapes().into_iter().for_each(|shape| switch_under_load(&ground, shape, 4 * FILE));
}

/// Switches the in-kernel path off and on while files are transferred, and leaves it on.
fn switch_under_load(ground: &Ground, shape: Shape, size: u64) {
    let mut log = KernelLog::mark(test_name!());
    let pair = Pair::start(ground, shape, NET);
    let family = shape.inside.families()[0];
    let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, family));
    let port = if shape.carrier == Carrier::Bare && !shape.inside.brings_udp() { "raw" } else { "udp" };
    let set = |on: u8| {
        let assignment = format!("net.fastpath.dev.{port}.enable_fastpath={on}");
        let program = ground.program.to_str().unwrap();
        ground.a.run(program, &["set", &Shape::device(NET), &assignment]).unwrap();
    };
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for seed in 0..4 {
                traffic::file(a, b, size, seed);
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
    log.iter_mut().for_each(|log| log.assert_silent(&shape.to_string()));
}

#[test]
fn a_smaller_path_is_followed_and_the_daemon_tells_the_senders() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    for (inside, carrier, extra) in [(Inside::Ipip, Carrier::Bare, REQUIRE), (Inside::Gre, Carrier::Gue, REQUIRE_ZERO)]
    {
        let pair = Pair::start(&ground, Shape { extra, ..Shape::new(inside, carrier, V4) }, NET);
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
        traffic::file(a, b, FILE, 1);
        // The route gets a smaller MTU, while the interface keeps its own.
        ip(&ground.a, &format!("route replace {} dev eth0 mtu 1300", Peer::B.address(0, V4)));
        let begin = Instant::now();
        let too_big = |stat: &Stat| stat.json()["ports"][Shape::device(NET)]["left"]["too_big"].as_u64();
        while too_big(&pair.stat()[0]).is_none() {
            assert!(begin.elapsed() < PATIENCE, "{}", pair.drops());
            traffic::file(a, b, FILE / 4, 2);
        }
        // The connections have learned the smaller size, and their packets take the path again.
        let before = taken(&pair.stat()[0]);
        traffic::file(a, b, FILE, 3);
        assert!(taken(&pair.stat()[0])[0] > before[0] + 700);
        assert!(pair.stat()[0].dropped("path_mtu") > 0, "{}", pair.drops());
        ip(&ground.a, &format!("route del {}", Peer::B.address(0, V4)));
    }
}

/// Sends as fast as possible over a TCP connection, until it breaks, stalls or `stop` is set.
fn load(from: Place<'_>, to: Place<'_>, stop: &AtomicBool) {
    const WAIT: Duration = Duration::from_millis(200);
    let listener = traffic::inside(to.host, || TcpListener::bind((to.address, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let mut sender = traffic::inside(from.host, || TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    sender.set_write_timeout(Some(WAIT)).unwrap();
    receiver.set_read_timeout(Some(WAIT)).unwrap();
    let goes_on = |outcome: io::Result<usize>| match outcome {
        Ok(len) => len > 0,
        Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = vec![0; 1 << 16];
            while !stop.load(Ordering::Relaxed) && goes_on(receiver.read(&mut bytes)) {}
        });
        let bytes = vec![0; 1 << 16];
        while !stop.load(Ordering::Relaxed) && goes_on(sender.write(&bytes)) {}
    });
}

/// A flag that is set on drop, so that threads end even if a test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends both ways through a tunnel and kills the process at A once the in-kernel path has carried 10,000 packets in
/// each direction. Returns when `gone` holds and the interface has gone, or after [`PATIENCE`].
fn kill_under_load(ground: &Ground, [a, b]: [Place<'_>; 2], gone: impl Fn() -> bool) {
    let device = Shape::device(NET);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for (from, to) in [(a, b), (b, a)] {
            let stop = &stop;
            scope.spawn(move || load(from, to, stop));
        }
        let carries = |stat: &Stat| taken(stat).iter().all(|count| *count > 10_000);
        let stat = Stat::until(&ground.a, &ground.program, &device, PATIENCE, carries);
        let killed = ground.a.run("kill", &["-9", &stat.json()["pid"].to_string()]);
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE && (!gone() || ground.a.has_device(&device)) {
            thread::sleep(Duration::from_millis(10));
        }
        // The load ends before anything is judged, so that a failure is not waited for.
        stop.store(true, Ordering::Relaxed);
        assert!(carries(&stat), "too little load: {:?}", taken(&stat));
        killed.unwrap();
    });
    assert!(!ground.a.has_device(&device), "{:?}", ground.a.devices());
}

#[test]
fn a_daemon_killed_under_load_leaves_nothing_and_a_new_one_starts_at_once() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &["tc"]) else { return };
    let mut log = KernelLog::mark(test_name!());
    let shape = Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V4) };
    let device = Shape::device(NET);
    let far = Tunnel::start(&ground.b, &ground.program, &shape.words(Peer::B, NET));
    let [a, b] =
        [(Peer::A, &ground.a), (Peer::B, &ground.b)].map(|(end, host)| Place { host, address: end.address(NET, V4) });
    let before = ground.a.run("tc", &["qdisc", "show", "dev", "eth0"]).unwrap();
    for _ in 0..2 {
        let near = Tunnel::start(&ground.a, &ground.program, &shape.words(Peer::A, NET));
        let is_on = |stat: &Stat| stat.json()["fastpath"]["on"] == true;
        assert!(is_on(&Stat::until(&ground.a, &ground.program, &device, PATIENCE, is_on)));
        let programs = |interface: &str, hook| ground.a.enter(|| sys::programs_at(interface, hook)).unwrap();
        let ours: Vec<_> = match (programs("eth0", sys::Hook::Ingress), programs(&device, sys::Hook::Egress)) {
            (Ok(ingress), Ok(egress)) => ingress.into_iter().chain(egress).collect(),
            (Err(error), _) | (_, Err(error)) => {
                return skip(test_name!(), &format!("programs cannot be listed: {error}"));
            }
        };
        let names: Vec<&str> = ours.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["segue_ingress", "segue_egress"]);
        let gone = || ours.iter().all(|ours| matches!(sys::program(ours.id), Ok(None)));
        kill_under_load(&ground, [a, b], gone);
        assert!(gone(), "{:?}", ours.iter().map(|ours| sys::program(ours.id)).collect::<Vec<_>>());
        assert_eq!(programs("eth0", sys::Hook::Ingress).unwrap(), []);
        assert_eq!(ground.a.run("tc", &["qdisc", "show", "dev", "eth0"]).unwrap(), before);
        drop(near);
    }
    let near = Tunnel::start(&ground.a, &ground.program, &shape.words(Peer::A, NET));
    traffic::file(a, b, FILE, 1);
    drop((near, far));
    log.iter_mut().for_each(|log| log.assert_silent("a daemon killed under load"));
}

#[test]
fn the_filter_of_a_killed_daemon_passes_everything_on_and_the_next_start_removes_it() {
    let Some(mut ground) = ground(test_name!(), LinkForm::Veth, &["tc", "ping"]) else { return };
    let seccomp = Command::new("/usr/bin/python3").args(["-c", "import seccomp"]).output();
    if !seccomp.is_ok_and(|output| output.status.success()) {
        return skip(test_name!(), "not installed: python3-seccomp");
    }
    let mut log = KernelLog::mark(test_name!());
    // To this program the kernel is one without tcx links, on which filters (cls_bpf) are added.
    let (directory, program) = (Directory::new(), ground.program.clone());
    ground.program = directory.file("segue");
    let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/without_tcx.py");
    let line = format!("#!/bin/sh\nexec /usr/bin/python3 '{}' '{}' \"$@\"\n", wrapper.display(), program.display());
    fs::write(&ground.program, line).unwrap();
    fs::set_permissions(&ground.program, fs::Permissions::from_mode(0o755)).unwrap();

    let shape = Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V4) };
    let far = Tunnel::start(&ground.b, &program, &shape.words(Peer::B, NET));
    let [a, b] =
        [(Peer::A, &ground.a), (Peer::B, &ground.b)].map(|(end, host)| Place { host, address: end.address(NET, V4) });
    // The numbers of the programs of segue's filters at the underlay.
    let filters = || {
        let text = ground.a.run("tc", &["filter", "show", "dev", "eth0", "ingress"]).unwrap();
        let ours = text.lines().filter(|line| line.contains(" segue_ingress "));
        let number =
            |line: &str| line.split_once(" id ").and_then(|(_, rest)| rest.split(' ').next().map(str::to_owned));
        ours.map(|line| number(line).unwrap_or_else(|| panic!("no number: {line}"))).collect::<Vec<_>>()
    };
    let is_on = || {
        let on = |stat: &Stat| stat.json()["fastpath"]["on"] == true;
        assert!(on(&Stat::until(&ground.a, &ground.program, &Shape::device(NET), PATIENCE, on)));
    };
    let mut before = Vec::new();
    for _ in 0..2 {
        let near = Tunnel::start(&ground.a, &ground.program, &shape.words(Peer::A, NET));
        is_on();
        let started = filters();
        assert!(started.len() == 1 && started != before, "before {before:?}, now {started:?}");
        kill_under_load(&ground, [a, b], || true);
        drop(near);
        before = filters();
        assert_eq!(before, started, "the filter stays");
        let outer = Peer::A.address(0, V4).to_string();
        ground.b.run("ping", &["-c", "3", "-i", "0.2", &outer]).expect("everything else passes");
    }
    let near = Tunnel::start(&ground.a, &ground.program, &shape.words(Peer::A, NET));
    is_on();
    assert!(filters().len() == 1 && filters() != before, "before {before:?}, now {:?}", filters());
    traffic::file(a, b, FILE, 1);
    drop((near, far));
    log.iter_mut().for_each(|log| log.assert_silent("a filter that was left"));
}

/// Runs `nft` with these lines at A.
fn nft(ground: &Ground, lines: &str) -> String {
    ground.a.run("nft", &[lines]).unwrap()
}

/// Returns the packet counts of the rules of a chain in the table `seen`, in order.
fn counted(ground: &Ground, chain: &str) -> Vec<u64> {
    let text = nft(ground, &format!("list chain inet seen {chain}"));
    let after = text.split("counter packets ").skip(1);
    after.map(|rest| rest.split(' ').next().and_then(|count| count.parse().ok()).expect("a count")).collect()
}

/// Returns the number of packets that the queueing discipline of an interface at A has sent.
fn queued(ground: &Ground, device: &str) -> u64 {
    let text = ground.a.run("tc", &["-s", "qdisc", "show", "dev", device, "root"]).unwrap();
    let sent = text.split_once(" bytes ").and_then(|(_, rest)| rest.split(' ').next());
    sent.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count in {text}"))
}

#[test]
fn what_packets_pass_by_is_what_the_documentation_lists_and_auto_stays_off_there() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &["tc", "nft", "tcpdump"]) else { return };
    let device = Shape::device(NET);
    let shape = |extra| Shape { extra, ..Shape::new(Inside::Ipip, Carrier::Bare, V4) };
    let auto = shape(&["fastpath", "auto"]);
    let is_on = |stat: &Stat| stat.json()["fastpath"]["on"] == true;
    let why = |stat: &Stat| stat.json()["fastpath"]["why"].as_str().unwrap_or_default().to_owned();

    // A chain with rules that is added later switches the path off; one that is there keeps it off from the start.
    let pair = Pair::start(&ground, auto, NET);
    assert!(is_on(&pair.stat()[0]), "{}", why(&pair.stat()[0]));
    for (chain, interface) in [("sending", "oifname"), ("receiving", "iifname")] {
        let hook = if chain == "sending" { "output" } else { "input" };
        nft(
            &ground,
            &format!(
                "add table inet seen; add chain inet seen {chain} {{ type filter hook {hook} priority 0; }}; \
                 add rule inet seen {chain} ip protocol 4 counter; \
                 add rule inet seen {chain} {interface} \"{device}\" counter"
            ),
        );
    }
    let stat = Stat::until(&ground.a, &ground.program, &device, PATIENCE, |stat| !is_on(stat));
    assert!(!is_on(&stat) && why(&stat).starts_with("netfilter rules were added"), "{}", why(&stat));
    drop(pair);
    let pair = Pair::start(&ground, auto, NET);
    let [a, b] = pair.stat();
    let seen = why(&a);
    assert!(seen.starts_with("nftables chain seen ") && seen.ends_with(" sees the outer packets"), "{seen}");
    assert_off(&ground, &seen);
    assert!(!is_on(&a) && is_on(&b), "{} {}", why(&a), why(&b));
    drop(pair);

    // With `on` the inner packets are seen, the outer ones are not; nor are sent ones by what belongs to the interface.
    let pair = Pair::start(&ground, shape(&["fastpath", "on"]), NET);
    for device in [device.as_str(), segue_lab::DEVICE] {
        ground.a.run("tc", &["qdisc", "replace", "dev", device, "root", "pfifo"]).unwrap();
    }
    let watch = |device: &str| {
        let mut command = ground.a.command("tcpdump");
        command.args(["-i", device, "-n", "-l", "-s", "128", "-B", "16384", "--immediate-mode", "-Q", "out", "ip"]);
        let process = Process::spawn(command, b"").expect("tcpdump starts");
        let begin = Instant::now();
        while !process.stderr().contains("listening on") {
            assert!(begin.elapsed() < PATIENCE, "{}", process.stderr());
            thread::sleep(Duration::from_millis(5));
        }
        process
    };
    let mut captures = [watch(&device), watch(segue_lab::DEVICE)];
    let [place_a, place_b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
    nft(&ground, "reset counters table inet seen");
    let before = taken(&pair.stat()[0]);
    let of_interface = || {
        ["tx", "rx"].map(|direction| {
            let path = format!("/sys/class/net/{device}/statistics/{direction}_packets");
            ground.a.run("cat", &[&path]).unwrap().trim().parse::<u64>().expect("a count")
        })
    };
    let counted_before = of_interface();
    traffic::file(place_a, place_b, FILE, 1);
    traffic::file(place_b, place_a, FILE, 2);
    let stat = &pair.stat()[0];
    for (now, before) in taken(stat).into_iter().zip(before) {
        assert!(now > before + 2000, "{:?} left {}", taken(stat), left(stat));
    }
    // A train counts as one packet here, and a file has 64 trains at least.
    for chain in ["sending", "receiving"] {
        let [outer, inner] = counted(&ground, chain)[..] else { panic!("two counters in {chain}") };
        // The few outer ones are those of the daemon.
        assert!(outer < 20 && inner > 60, "{chain}: {outer} outer, {inner} inner");
    }
    let [inside, outside] = [device.as_str(), segue_lab::DEVICE].map(|device| queued(&ground, device));
    // The kernel's own IPv6 packets go to the daemon, which this tunnel does not carry.
    assert!(inside < 20 && outside > 60, "queueing disciplines: {inside} inside, {outside} outside");
    for (now, before) in of_interface().into_iter().zip(counted_before) {
        assert!(now - before < 20, "the interface has counted {}", now - before);
    }
    let begin = Instant::now();
    while captures[1].stdout().lines().count() < 60 {
        assert!(begin.elapsed() < PATIENCE, "{}", captures[1].last_words());
        thread::sleep(Duration::from_millis(5));
    }
    // A packet that the path leaves to the daemon, such as one without a neighbour, is there.
    let others = captures[0].stdout().lines().count();
    assert!(others < 20, "{others} packets of the path are in a capture of the tunnel's interface");
    captures.iter_mut().for_each(|capture| _ = capture.stop(PATIENCE));
}

#[test]
fn auto_stays_off_where_a_filter_would_miss_the_packets_and_says_so() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &["tc"]) else { return };
    ground.a.run("tc", &["qdisc", "add", "dev", "eth0", "clsact"]).unwrap();
    let auto = Shape { extra: &["fastpath", "auto"], ..Shape::new(Inside::Ipip, Carrier::Bare, V4) };
    let pair = Pair::start(&ground, auto, NET);
    assert_off(&ground, "eth0 has filters (clsact)");
    assert_eq!(pair.stat()[1].json()["fastpath"]["on"], true);
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
        (Inside::Vxlan, Carrier::Bare, "noudpcsum sends none"),
        (Inside::VxlanRemcsum, Carrier::Bare, "remote checksum offload"),
    ] {
        let shape = Shape { extra: REQUIRE, ..Shape::new(inside, carrier, V4) };
        let mut command = ground.a.command(&ground.program);
        let output = command.arg("tunnel").args(shape.words(Peer::A, NET)).output().expect("segue starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{said}");
        assert!(!ground.a.has_device(&Shape::device(NET)));
    }
}
