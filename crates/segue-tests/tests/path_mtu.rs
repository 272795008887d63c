//! A way that is narrower than it looks: host A, a router whose link onwards takes 1400 bytes, host B. What A's tunnel sends
//! does not fit; its senders hear of it and go on.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Family::{self, V4, V6};
use segue_lab::Host;
use segue_tests::{Ground, Random, Stat, Tunnel, skip, sys, test_name, traffic};

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

/// A and B with a router between them.
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

/// Sends a file from A to B inside the tunnel; how long it took until the first byte of it had come and until all had.
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
    let begin = Instant::now();
    stream.write_all(&bytes).unwrap();
    drop(stream);
    let got = reader.join().unwrap().unwrap();
    let took = begin.elapsed();
    assert!(got == bytes, "{} bytes of {FILE_LEN} arrive, or others", got.len());
    took
}

/// With `shares`, another tunnel has the same port.
fn recovers(name: &str, outside: Family, words: &str, shares: bool) {
    let Some(ground) = Ground::apart(name, &["ping"]) else { return };
    let Ok(router) = Host::new("r") else { return skip(name, "no third host could be made") };
    joined(&ground, &router);
    let mut tunnels = Vec::new();
    for (host, near, far, end) in [(&ground.a, 1, 2, 1), (&ground.b, 2, 1, 2)] {
        let (local, remote) = (outer(outside, near, 2), outer(outside, far, 2));
        let addresses = format!("addr {}/24 addr {}/64", inner(V4, end), inner(V6, end));
        let line = format!("dev sg1 local {local} remote {remote} {words} {addresses}");
        let also = format!(" also dev sg2 local {local} remote {remote} {words} key 2");
        let line = line + if shares { &also } else { "" };
        tunnels.push(Tunnel::start(host, &ground.program, &line.split(' ').map(String::from).collect::<Vec<_>>()));
    }
    for family in Family::ALL {
        let (a, b) = (inner(*family, 1), inner(*family, 2));
        segue_lab::reach((&ground.a, a), (&ground.b, b), Duration::from_secs(5)).unwrap();
        let took = sent(&ground, *family);
        println!("IPv{family} inside, {words}: TCP recovered and sent {FILE_LEN} bytes in {took:?}");
        let place = traffic::Place { host: &ground.a, address: a };
        let socket = traffic::socket(place);
        sys::forbid_fragments(&socket).unwrap();
        let small = vec![1; 1200];
        socket.send_to(&small, (b, 9)).unwrap();
        let refused = (0..20).any(|_| {
            thread::sleep(Duration::from_millis(20));
            let error = socket.send_to(&vec![1; 1400], (b, 9)).err();
            error.is_some_and(|error| error.raw_os_error() == Some(libc::EMSGSIZE))
        });
        assert!(refused, "a sender of datagrams hears EMSGSIZE");
    }
    let drops = Stat::read(&ground.a, &ground.program, "sg1").drops();
    assert!(drops.get("path_mtu").is_some_and(|count| *count > 0), "{drops:?}");
}

#[test]
fn senders_in_gre_in_gue_over_ipv4_learn_the_path_mtu() {
    recovers(test_name!(), V4, "mode gre encap gue", false);
}

#[test]
fn senders_in_gre_in_gue_over_ipv6_learn_the_path_mtu() {
    recovers(test_name!(), V6, "mode gre encap gue", false);
}

#[test]
fn senders_in_a_tunnel_with_one_socket_both_ways_learn_the_path_mtu() {
    recovers(test_name!(), V4, "mode gre encap gue encap-sport 6080", false);
}

#[test]
fn senders_in_a_tunnel_that_shares_its_port_learn_the_path_mtu() {
    recovers(test_name!(), V6, "mode gre encap gue", true);
}

#[test]
fn senders_in_bare_gre_learn_the_path_mtu() {
    recovers(test_name!(), V4, "mode gre", false);
}

#[test]
fn senders_in_vxlan_learn_the_path_mtu() {
    recovers(test_name!(), V4, "mode vxlan id 1 dstport 4789 df set", false);
}
