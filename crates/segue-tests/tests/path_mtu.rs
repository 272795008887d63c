//! Tests of a path whose MTU is smaller than that of the first link: host A, a router whose next link has an MTU of
//! 1400 bytes, host B. The packets of A's tunnel do not fit; its senders get ICMP errors and continue.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::{Host, LinkForm, Peer};
use segue_tests::flood::Stations;
use segue_tests::{
    Carrier, Ground, Inside, Pair, Random, Shape, Stat, Tunnel, skip, sys, test_name, traffic, until, wire,
};

const FILE_LEN: usize = 1 << 20;
/// MTU of the router's link to B.
const NARROW: usize = 1400;

fn outer(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        V4 => IpAddr::from([198, 18, net, host]),
        V6 => IpAddr::from([0x2001, 0xdb8, 0xff, u16::from(net), 0, 0, 0, u16::from(host)]),
    }
}

fn inner(family: Family, host: u8) -> IpAddr {
    match family {
        V4 => IpAddr::from([198, 19, 1, host]),
        V6 => IpAddr::from([0x2001, 0xdb8, 1, 0, 0, 0, 0, u16::from(host)]),
    }
}

fn run(host: &Host, line: &str) {
    host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
}

/// Creates A and B with a router between them.
fn joined(ground: &Ground, router: &Host) {
    for (host, net, device) in [(&ground.a, 1, "a0"), (&ground.b, 2, "b0")] {
        run(host, &format!("link add eth0 type veth peer name {device} netns {}", router.net_path()));
        for family in Family::ALL {
            let (len, nodad) = if *family == V4 { (24, "") } else { (64, " nodad") };
            run(host, &format!("addr add {}/{len} dev eth0{nodad}", outer(*family, net, 2)));
            run(router, &format!("addr add {}/{len} dev {device}{nodad}", outer(*family, net, 1)));
        }
        run(host, "link set eth0 up");
        run(router, &format!("link set {device} up"));
        for family in Family::ALL {
            run(host, &format!("-{family} route add default via {}", outer(*family, net, 1)));
        }
    }
    router.set_sysctl("ipv4/ip_forward", "1").unwrap();
    router.set_sysctl("ipv6/conf/all/forwarding", "1").unwrap();
    run(router, &format!("link set b0 mtu {NARROW}"));
}

/// Sends a file from A to B inside the tunnel; returns the time until the first and until the last byte arrived.
fn sent(ground: &Ground, family: Family) -> Duration {
    let listener = traffic::inside(&ground.b, || TcpListener::bind((inner(family, 2), 0))).unwrap();
    let to = listener.local_addr().unwrap();
    let reader = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).map(|_| got)
    });
    let bytes = Random::new(9).bytes(FILE_LEN);
    let mut stream = traffic::inside(&ground.a, || TcpStream::connect(to)).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let begin = Instant::now();
    stream.write_all(&bytes).unwrap();
    drop(stream);
    let got = reader.join().unwrap().unwrap();
    let took = begin.elapsed();
    assert!(got == bytes, "{} bytes of {FILE_LEN} arrive, or others", got.len());
    took
}

/// A case of the test, described by its differences from a single tunnel that starts before any host has learned the
/// MTU of the narrow link.
#[derive(Clone, Copy, Default)]
struct Case {
    /// Whether another tunnel, to an address of the same network, shares the port.
    shares: bool,
    /// Whether the tunnels existed earlier, so that the kernel has cached the path MTU.
    again: bool,
    /// Whether no outer packet may be fragmented, since only packets with DF exceed the path MTU.
    whole: bool,
}

fn tunnels(ground: &Ground, outside: Family, words: &str, shares: bool) -> Vec<Tunnel> {
    let mut tunnels = Vec::new();
    for (host, near, far, end) in [(&ground.a, 1, 2, 1), (&ground.b, 2, 1, 2)] {
        let (local, remote) = (outer(outside, near, 2), outer(outside, far, 2));
        let addresses = format!("addr {}/24 addr {}/64", inner(V4, end), inner(V6, end));
        let line = format!("dev sg1 local {local} remote {remote} {words} {addresses}");
        let also = format!(" also dev sg2 local {local} remote {} {words} key 2", outer(outside, far, 77));
        let line = line + if shares { &also } else { "" };
        tunnels.push(Tunnel::start(host, &ground.program, &line.split(' ').map(String::from).collect::<Vec<_>>()));
    }
    tunnels
}

/// Returns the number of fragments into which a host has split its own packets, of both families.
fn fragments(host: &Host) -> u64 {
    let value = |file: &str, name: &str| {
        let text = host.run("cat", &[file]).unwrap();
        let names = text.lines().find_map(|line| line.split(' ').position(|word| word == name));
        let old = names.and_then(|at| text.lines().nth(1)?.split(' ').nth(at)?.parse().ok());
        old.or_else(|| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())).unwrap()
    };
    let made: [u64; 2] = [value("/proc/net/snmp", "FragCreates"), value("/proc/net/snmp6", "Ip6FragCreates")];
    made.iter().sum()
}

fn recovers(name: &str, outside: Family, words: &str, case: Case) {
    let Some(ground) = Ground::apart(name, &["ping"]) else { return };
    let Ok(router) = Host::new("r") else { return skip(name, "no third host could be made") };
    joined(&ground, &router);
    let mut running = tunnels(&ground, outside, words, case.shares);
    if case.again {
        let (a, b) = (inner(V4, 1), inner(V4, 2));
        segue_lab::reach((&ground.a, a), (&ground.b, b), Duration::from_secs(5)).unwrap();
        sent(&ground, V4);
        drop(running);
        running = tunnels(&ground, outside, words, case.shares);
    }
    for family in Family::ALL {
        let (a, b) = (inner(*family, 1), inner(*family, 2));
        segue_lab::reach((&ground.a, a), (&ground.b, b), Duration::from_secs(5)).unwrap();
        let took = sent(&ground, *family);
        println!("IPv{family} inside, {words}: TCP recovered and sent {FILE_LEN} bytes in {took:?}");
        // A tenth of a second where nothing else runs; TCP alone never would.
        assert!(took < Duration::from_secs(5), "{took:?}");
        if case.whole {
            assert_eq!(fragments(&ground.a), 0, "fragments made");
        }
        let place = traffic::Place { host: &ground.a, address: a };
        let socket = traffic::socket(place);
        sys::forbid_fragments(&socket).unwrap();
        let small = vec![1; 1200];
        socket.send_to(&small, (b, 9)).unwrap();
        // What the first link does not take either, where nothing outside forbids the router to fragment.
        let large = vec![1; if case.whole { 2000 } else { 1400 }];
        let refused = (0..20).any(|_| {
            thread::sleep(Duration::from_millis(20));
            let error = socket.send_to(&large, (b, 9)).err();
            error.is_some_and(|error| error.raw_os_error() == Some(libc::EMSGSIZE))
        });
        assert!(refused, "a sender of datagrams hears EMSGSIZE");
    }
    let drops = Stat::read(&ground.a, &ground.program, "sg1").drops();
    // Those of the second time were told at once what the kernel knew of the first.
    assert!(drops.get("path_mtu").is_some_and(|count| *count > 0), "{drops:?}");
    drop(running);
}

const PLAIN: Case = Case { shares: false, again: false, whole: false };

#[test]
fn senders_in_gre_in_gue_over_ipv4_learn_the_path_mtu() {
    recovers(test_name!(), V4, "mode gre encap gue", PLAIN);
}

#[test]
fn senders_in_gre_in_gue_over_ipv6_learn_the_path_mtu() {
    recovers(test_name!(), V6, "mode gre encap gue", PLAIN);
}

#[test]
fn senders_in_a_tunnel_with_one_socket_both_ways_learn_the_path_mtu() {
    recovers(test_name!(), V4, "mode gre encap gue encap-sport 6080", PLAIN);
}

#[test]
fn senders_in_a_tunnel_that_shares_its_port_learn_the_path_mtu() {
    recovers(test_name!(), V6, "mode gre encap gue", Case { shares: true, ..PLAIN });
}

#[test]
fn senders_in_bare_gre_learn_the_path_mtu() {
    recovers(test_name!(), V4, "mode gre", PLAIN);
}

#[test]
fn senders_in_bare_gre_over_ipv6_learn_the_path_mtu() {
    recovers(test_name!(), V6, "mode ip6gre", PLAIN);
}

#[test]
fn senders_in_bare_gre_over_ipv6_that_shares_its_sockets_learn_the_path_mtu() {
    recovers(test_name!(), V6, "mode ip6gre", Case { shares: true, ..PLAIN });
}

#[test]
fn senders_in_vxlan_learn_the_path_mtu() {
    recovers(test_name!(), V4, "mode vxlan id 1 dstport 4789 df set", PLAIN);
}

#[test]
fn senders_in_geneve_learn_the_path_mtu() {
    recovers(test_name!(), V4, "mode geneve id 1 df set", PLAIN);
}

#[test]
fn senders_in_a_tunnel_with_an_mtu_that_never_fitted_are_told_the_one_that_does() {
    recovers(test_name!(), V4, "mode gre encap gue mtu 4000", Case { whole: true, ..PLAIN });
}

#[test]
fn senders_in_vxlan_with_an_mtu_that_never_fitted_cause_no_fragments() {
    recovers(test_name!(), V4, "mode vxlan id 1 dstport 4789 mtu 9000", Case { whole: true, ..PLAIN });
}

#[test]
fn senders_are_told_the_path_mtu_that_the_kernel_learned_before_the_tunnel_started() {
    recovers(test_name!(), V4, "mode gre encap gue mtu 1464", Case { again: true, ..PLAIN });
}

/// Tests that the sender of a tagged frame is told what the tag leaves. A VLAN over the tunnel's interface sends such
/// frames: it has the tunnel's MTU although its frames are longer. With the identifier 0 a host takes the frame for its
/// own even if it has no VLAN.
#[test]
fn senders_in_tagged_frames_learn_what_the_tag_leaves_of_the_path_mtu() {
    for (words, mtu) in [("mode gretap", 1462_usize), ("mode vxlan id 1 dstport 4789 df set", 1450)] {
        let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
        let mut tunnels = Vec::new();
        for (host, near, far, end) in [(&ground.a, Peer::A, Peer::B, 1), (&ground.b, Peer::B, Peer::A, 2)] {
            let (local, remote) = (near.address(0, V4), far.address(0, V4));
            let addresses = format!("addr {}/24 addr {}/64", inner(V4, end), inner(V6, end));
            let line = format!("dev sg1 local {local} remote {remote} {words} {addresses}");
            tunnels.push(Tunnel::start(host, &ground.program, &line.split(' ').map(String::from).collect::<Vec<_>>()));
        }
        let stations = Stations::between((&ground.a, "sg1"), (&ground.b, "sg1"));
        let frames = traffic::inside(&ground.a, || sys::packet_socket("sg1")).unwrap();
        for (family, header) in [(V4, 20), (V6, 40)] {
            let (a, b) = (inner(family, 1), inner(family, 2));
            segue_lab::reach((&ground.a, a), (&ground.b, b), Duration::from_secs(5)).unwrap();
            let near = traffic::socket(traffic::Place { host: &ground.a, address: a });
            let far = traffic::socket(traffic::Place { host: &ground.b, address: b });
            sys::forbid_fragments(&near).unwrap();
            let ports = [&near, &far].map(|socket| socket.local_addr().unwrap().port());
            let send = |len: usize| {
                let packet =
                    wire::udp_packet((a, ports[0]), (b, ports[1]), &vec![1; len - header - 8], 0, false).packet;
                let kind: [u8; 2] = if family == V4 { [8, 0] } else { [0x86, 0xdd] };
                let frame = [&stations.to[..], &stations.from, &[0x81, 0, 0, 0], &kind, &packet].concat();
                sys::send_frame(&frames, &frame).unwrap();
            };
            let long = vec![1; mtu - 3 - header - 8];
            let is_told = (0..200).any(|_| {
                send(mtu);
                thread::sleep(Duration::from_millis(20));
                let error = near.send_to(&long, (b, ports[1] ^ 1)).err();
                error.is_some_and(|error| error.raw_os_error() == Some(libc::EMSGSIZE))
            });
            assert!(is_told, "IPv{family}, {words}: a sender of {mtu} bytes hears nothing");
            near.send_to(&long[3..], (b, ports[1] ^ 1)).unwrap_or_else(|error| panic!("{words}: {error} for less"));
            send(mtu - 4);
            let (len, from) = far.recv_from(&mut [0; 2000]).unwrap();
            assert_eq!((len, from.port()), (mtu - 4 - header - 8, ports[0]), "IPv{family}, {words}");
        }
        let drops = Stat::read(&ground.a, &ground.program, "sg1").drops();
        assert_eq!(drops.get("too_big"), None, "lost without a word: {drops:?}");
    }
}

/// Returns the number of ICMP errors "destination unreachable" that a host has received.
fn unreachables(host: &Host) -> u64 {
    let text = host.run("cat", &["/proc/net/snmp"]).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Icmp: ")).map(|line| line.split(' '));
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.position(|name| name == "InDestUnreachs").unwrap();
    values.nth(at).unwrap().parse().unwrap()
}

/// Tests that an ICMP error about a datagram from the port that a tunnel listens on, which any host can forge, lowers
/// no path MTU where the tunnel sends from other ports.
#[test]
fn a_forged_error_about_the_port_that_receives_lowers_no_path_mtu() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let pair = Pair::start(&ground, Shape::new(Inside::Gre, Carrier::Gue, V4), 1);
    let ipv4 = |protocol: u8, [from, to]: [u8; 2], data: &[u8]| {
        let len = (20 + data.len()) as u16;
        let header = [&[0x45, 0][..], &len.to_be_bytes(), &[0, 0, 0x40, 0, 64, protocol, 0, 0]].concat();
        [&header[..], &[198, 18, 0, from], &[198, 18, 0, to], data].concat()
    };
    // Fragmentation needed, MTU 552, about a datagram from the tunnel's port to port 1 of B.
    let quoted = ipv4(17, [1, 2], &[&Shape::port(1).to_be_bytes()[..], &[0, 1, 0, 8, 0, 0]].concat());
    let mut error = [&[3, 4, 0, 0, 0, 0, 0x02, 0x28][..], &quoted].concat();
    let field = !wire::sum(&error);
    error[2..4].copy_from_slice(&field.to_be_bytes());
    let (packet, before) = (ipv4(1, [2, 1], &error), unreachables(&ground.a));
    traffic::inside(&ground.b, || sys::send_packet(&packet, Peer::A.address(0, V4))).unwrap();
    until("the error does not come", || (unreachables(&ground.a) > before).then_some(()));
    let route = ground.a.run("ip", &["route", "get", &Peer::B.address(0, V4).to_string()]).unwrap();
    assert!(!route.contains("mtu"), "{route}");
    traffic::datagrams(pair.place(Peer::A, V4), pair.place(Peer::B, V4), &[1200], 1);
}

/// Returns the number of descriptors on which the thread that judges HEALTH waits by ppoll(2), while it does.
fn watched(pid: u64) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let is_it =
        |path: &std::path::Path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "health");
    let thread = threads.map(|thread| thread.path()).find(|path| is_it(path))?;
    // The number of the system call, and its arguments.
    let call = fs::read_to_string(thread.join("syscall")).ok()?;
    let words: Vec<&str> = call.split_ascii_whitespace().collect();
    let is_ppoll = words.first()?.parse() == Ok(libc::SYS_ppoll);
    is_ppoll.then(|| u64::from_str_radix(words.get(2)?.trim_start_matches("0x"), 16).ok()).flatten()
}

/// Tests that no thread sleeps on the sending sockets of a tunnel under load, since the kernel would look for it with
/// each packet, and that one waits for their errors otherwise.
#[test]
fn nothing_waits_for_errors_of_a_socket_that_sends_all_the_time() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let shape = Shape { extra: &["fastpath", "off"], ..Shape::new(Inside::Gre, Carrier::Gue, V4) };
    let pair = Pair::start(&ground, shape, 1);
    let stat = Stat::read(&ground.a, &ground.program, &Shape::device(1));
    let pid = stat.json()["pid"].as_u64().unwrap_or_else(|| panic!("{}", stat.json()));
    let becomes = |is_so: fn(u64) -> bool| {
        let begin = Instant::now();
        loop {
            // Between two waits it is in no call, or in another one.
            if watched(pid).is_some_and(is_so) || begin.elapsed() > Duration::from_secs(60) {
                return begin.elapsed() <= Duration::from_secs(60);
            }
            thread::sleep(Duration::from_millis(5));
        }
    };
    assert!(becomes(|count| count > 2), "without load it waits for all");
    let (socket, to) = (traffic::socket(pair.place(Peer::A, V4)), (Peer::B.address(1, V4), 9));
    let is_over = AtomicBool::new(false);
    let is_alone = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // A full queue, or an answer that nothing listens there.
                let _ = socket.send_to(&[7; 600], to);
            }
        });
        let is_alone = becomes(|count| count == 1);
        is_over.store(true, Ordering::Relaxed);
        is_alone
    });
    assert!(is_alone, "under load it waits for changes of the kernel alone");
    assert!(becomes(|count| count > 2), "after the load it waits for all");
}
