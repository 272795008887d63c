//! Tests of a router under faults: ICMP errors about fragments and between inside hosts, forged sources, scans, and
//! unusual entries in the kernel's tables.

use std::net::UdpSocket;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::Host;
use segue_tests::routed::{Echo, Routed, address, ip};
use segue_tests::traffic;
use segue_tests::{Stat, skip, test_name};

const PATIENCE: Duration = Duration::from_secs(60);
const NAT: &[&str] = &["--nat", "198.18.2.9"];

/// Runs a program that may fail; returns its stdout and stderr.
fn says(host: &Host, words: &[&str]) -> String {
    let output = host.command(words[0]).args(&words[1..]).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Repeats a check until it succeeds, or fails the test after [`PATIENCE`].
#[track_caller]
fn soon(what: &str, mut is: impl FnMut() -> Result<(), String>) {
    let begin = Instant::now();
    while let Err(found) = is() {
        assert!(begin.elapsed() < PATIENCE, "{what}: {found}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Sends one ping and checks that its reply or error contains the given words.
fn pings(host: &Host, options: &str, to: &str, words: &str) -> Result<(), String> {
    let fixed = ["ping", "-n", "-c", "1", "-W", "1"];
    let text = says(host, &[&fixed[..], &options.split_whitespace().collect::<Vec<_>>(), &[to]].concat());
    if text.contains(words) { Ok(()) } else { Err(text) }
}

/// Runs a line of scapy, with `send` and `show` defined, and returns its output; `None` if scapy is not installed.
fn scapy(name: &str, host: &Host, line: &str) -> Option<String> {
    if !Path::new("/usr/lib/python3/dist-packages/scapy").exists() {
        skip(name, "not installed: python3-scapy");
        return None;
    }
    let script = format!("from scapy.all import *\nconf.verb = 0\n{line}\n");
    Some(host.run("/usr/bin/python3", &["-c", &script]).unwrap())
}

#[test]
fn senders_of_ipv6_fragments_hear_what_stops_them() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], NAT) else { return };
    let client = &routed.ground.a;
    pings(client, "-s 3000", "2001:db8:2::2", " 0% packet loss").unwrap();
    pings(client, "-s 3000 -t 1", "2001:db8:2::2", "Time exceeded").unwrap();
    ip(&routed.router, "link set out mtu 1400");
    ip(&routed.ground.b, "link set eth0 mtu 1400");
    soon("the sender cuts smaller", || pings(client, "-s 3000", "2001:db8:2::2", " 0% packet loss"));
}

#[test]
fn hosts_inside_hear_of_each_other_through_the_outside_address() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    let (client, server) = (routed.client(V4), routed.server(V4));
    let gone = traffic::socket(client);
    let port = gone.local_addr().unwrap().port();
    let echo = Echo::start(server, 0);
    gone.connect((server.address, echo.port)).unwrap();
    traffic::echoes(&gone, &[9], &mut segue_tests::Random::new(1));
    drop(gone);
    let socket = traffic::socket(client);
    socket.connect((address(V4, 2, 9), port)).unwrap();
    socket.send(b"anybody?").unwrap();
    let error = socket.recv(&mut [0; 9]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    // And of the router, as of any other.
    let script = format!(
        "r = sr1(IP(src='198.18.1.2', dst='198.18.2.9', ttl=1) / UDP(sport=7000, dport={port}), timeout=3)
print(r and (r[ICMP].type, r[IPerror].src, r[IPerror].dst, r[UDPerror].sport, r[UDPerror].dport))"
    );
    let Some(text) = scapy(test_name!(), &routed.ground.a, &script) else { return };
    assert_eq!(text.trim(), format!("(11, '198.18.1.2', '198.18.2.9', 7000, {port})"));
}

#[test]
fn what_the_kernel_has_learned_for_itself_is_no_route() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], NAT) else { return };
    let (client, router) = (&routed.ground.a, &routed.router);
    for (line, family, to) in [
        (
            "send(IP(dst='198.18.2.1') / ICMP(type=3, code=4, nexthopmtu=600) / \
             IP(src='198.18.2.1', dst='198.18.2.2') / ICMP(type=0))",
            "-4",
            "198.18.2.2",
        ),
        (
            "send(IPv6(dst='2001:db8:2::1') / ICMPv6PacketTooBig(mtu=1290) / \
             IPv6(src='2001:db8:2::1', dst='2001:db8:2::2') / ICMPv6EchoRequest())",
            "-6",
            "2001:db8:2::2",
        ),
    ] {
        pings(router, "", to, " 0% packet loss").unwrap();
        if scapy(test_name!(), &routed.ground.b, line).is_none() {
            return;
        }
        soon("the kernel believes it", || {
            let text = says(router, &["ip", family, "route", "get", to]);
            if text.contains(" mtu ") { Ok(()) } else { Err(text) }
        });
    }
    // Whatever else changes has everything read anew.
    routed.add_routes(&["198.19.7.0/24 via 198.18.2.2"]);
    for to in ["198.18.2.2", "2001:db8:2::2"] {
        pings(client, "-M do -s 1400", to, " 0% packet loss").unwrap();
    }
}

#[test]
fn tables_are_asked_in_the_order_of_the_kernel() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], NAT) else { return };
    let (client, router) = (&routed.ground.a, &routed.router);
    ip(&routed.ground.b, "addr add 198.19.7.1/32 dev lo");
    ip(router, "route add 198.19.0.0/16 via 198.18.2.2");
    soon("a route", || pings(client, "", "198.19.7.1", " 0% packet loss"));
    ip(router, "route add throw 198.19.7.0/24");
    soon("thrown, and nothing behind it", || pings(client, "", "198.19.7.1", "Destination Net Unreachable"));
    ip(router, "route add 198.19.7.0/24 via 198.18.2.2 table default");
    soon("thrown to the next table", || pings(client, "", "198.19.7.1", " 0% packet loss"));
    ip(router, "route add prohibit 198.19.0.0/16 table local");
    soon("the first table has a shorter prefix", || pings(client, "", "198.19.7.1", "Packet filtered"));
}

#[test]
fn nexthop_objects_are_followed_where_routes_only_name_them() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], NAT) else { return };
    let (client, router) = (&routed.ground.a, &routed.router);
    if router.set_sysctl("ipv4/nexthop_compat_mode", "0").is_err() {
        return skip(test_name!(), "this kernel has no nexthop objects");
    }
    ip(&routed.ground.b, "addr add 198.19.7.1/32 dev lo");
    ip(&routed.ground.b, "addr add 2001:db8:7::1/128 dev lo nodad");
    for (family, prefix, to, gone, via) in [
        ("-4", "198.19.7.0/24", "198.19.7.1", "198.18.2.77", "198.18.2.2"),
        ("-6", "2001:db8:7::/64", "2001:db8:7::1", "2001:db8:2::77", "2001:db8:2::2"),
    ] {
        ip(router, &format!("{family} nexthop add id 5 via {gone} dev out"));
        ip(router, &format!("{family} route add {prefix} nhid 5"));
        let words = if family == "-4" { "Host Unreachable" } else { "Address unreachable" };
        soon("the router that is not there", || pings(client, "-W 4", to, words));
        ip(router, &format!("{family} nexthop replace id 5 via {via} dev out"));
        soon("another one", || pings(client, "", to, " 0% packet loss"));
        ip(router, &format!("{family} nexthop del id 5"));
    }
}

#[test]
fn errors_come_from_the_address_in_the_network_of_the_sender() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], &[]) else { return };
    for (address, prefix, router) in [("198.18.5.2", 24, "198.18.5.1"), ("2001:db8:5::2", 64, "2001:db8:5::1")] {
        ip(&routed.router, &format!("addr add {router}/{prefix} dev in"));
        ip(&routed.ground.a, &format!("addr add {address}/{prefix} dev eth0"));
        let to = if prefix == 24 { "198.18.2.2" } else { "2001:db8:2::2" };
        let options = format!("-t 1 -I {address}");
        soon("from there", || pings(&routed.ground.a, &options, to, &format!("From {router}")));
    }
}

#[test]
fn forged_sources_are_dropped_by_name_and_each_packet_counts() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    routed.add_routes(&["prohibit 198.19.2.0/24"]);
    let line = "
for source in ['198.18.2.9', '198.18.1.1', '198.18.2.1']:
    send(IP(src=source, dst='198.18.2.2') / UDP(sport=5, dport=6))
send(IPv6(src='2001:db8:2::1', dst='2001:db8:2::2') / UDP(sport=5, dport=6))
mac = getmacbyip('198.18.1.1')
train = [Ether(dst=mac) / IP(src='198.18.1.2', dst='198.19.2.1', id=n, flags='DF')
         / TCP(sport=5, dport=6, flags='A', seq=n * 1000, ack=1) / (b'x' * 1000) for n in range(40)]
socket = conf.L2socket(iface='eth0')
for frame in [bytes(packet) for packet in train]:
    socket.outs.send(frame)";
    if scapy(test_name!(), &routed.ground.a, line).is_none() {
        return;
    }
    let counted = |stat: &Stat| stat.dropped("route_own_source") == 4 && stat.dropped("route_prohibited") == 40;
    let stat = Stat::until(&routed.router, &routed.ground.program, "gw0", PATIENCE, counted);
    assert!(counted(&stat), "{:?}", stat.drops());
}

#[test]
fn the_outside_address_is_announced_when_it_moves() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], NAT) else { return };
    pings(&routed.ground.a, "", "198.18.2.2", " 0% packet loss").unwrap();
    let known = || says(&routed.ground.b, &["ip", "neigh", "show", "198.18.2.9"]);
    assert!(known().contains("lladdr"), "{}", known());
    ip(&routed.router, "link set out address 02:00:00:00:00:77");
    soon("the server knows", || if known().contains("02:00:00:00:00:77") { Ok(()) } else { Err(known()) });
}

#[test]
fn a_scan_does_not_keep_others_from_being_found() {
    let Some(routed) = Routed::new(test_name!(), &[], NAT) else { return };
    let echoes = Family::ALL.iter().map(|family| Echo::start(routed.server(*family), 0)).collect::<Vec<_>>();
    let scanner = traffic::socket(routed.client(V6));
    for host in 0x1000..0x1200 {
        let to = format!("2001:db8:2::{host:x}").parse::<std::net::Ipv6Addr>().unwrap();
        scanner.send_to(b"anybody?", (to, 9)).unwrap();
    }
    for (family, echo) in Family::ALL.iter().zip(&echoes) {
        let socket = traffic::inside(&routed.ground.a, || UdpSocket::bind((address(*family, 1, 2), 0))).unwrap();
        // What waited behind the scan would wait for three seconds, until its neighbours are given up.
        socket.set_read_timeout(Some(Duration::from_millis(2500))).unwrap();
        socket.connect((address(*family, 2, 2), echo.port)).unwrap();
        socket.send(b"there?").unwrap();
        assert!(socket.recv(&mut [0; 9]).is_ok(), "IPv{family}: {:?}", routed.stat().drops());
    }
}

/// Returns the number of resets that a host has sent.
fn resets(host: &Host) -> u64 {
    let text = host.run("cat", &["/proc/net/snmp"]).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split_whitespace());
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.position(|name| name == "OutRsts").unwrap();
    values.nth(at).unwrap().parse().unwrap()
}

/// Tests that the packets of a train, three that exceed the egress MTU and a short last one, are treated like single
/// packets.
#[test]
fn segments_of_an_oversized_train_are_treated_like_single_packets() {
    let Some(routed) = Routed::new(test_name!(), &["ping"], NAT) else { return };
    ip(&routed.router, "link set out mtu 1400");
    assert!(routed.segue(&["set", "gw0", "net.gro.dev.in.hold_us=200000"]).status.success());
    for (to, header, size) in [
        ("198.18.2.2", "IP(src='198.18.1.2', dst='198.18.2.2', id=n, flags='DF')", 1430),
        ("2001:db8:2::2", "IPv6(src='2001:db8:1::2', dst='2001:db8:2::2')", 1410),
    ] {
        soon("a way", || pings(&routed.ground.a, "", to, " 0% packet loss"));
        let (before, reset) = (routed.stat(), resets(&routed.ground.b));
        let line = format!(
            "mac = [word for word in os.popen('ip neigh show dev eth0').read().split() if word.count(':') == 5][0]
train = [Ether(dst=mac) / {header} / TCP(sport=7000, dport=9, flags='A', seq=1 + n * {size}, ack=1) / (b'x' * ({size} if n < 3 else 200))
         for n in range(4)]
socket = conf.L2socket(iface='eth0')
for frame in [bytes(packet) for packet in train]:
    socket.outs.send(frame)"
        );
        if scapy(test_name!(), &routed.ground.a, &line).is_none() {
            return;
        }
        soon("the short one arrives", || match resets(&routed.ground.b) - reset {
            1 => Ok(()),
            other => Err(format!("{other} resets, {}", routed.stat().json())),
        });
        let after = routed.stat();
        assert_eq!(after.dropped("route_too_big") - before.dropped("route_too_big"), 3);
        let trains = |stat: &Stat| stat.json()["ports"]["in"]["stages"]["route"]["trains"].as_u64().unwrap();
        assert_eq!(trains(&after) - trains(&before), 1, "they were joined");
    }
}
