//! Tests of VXLAN with several remotes: segue at hosts A and B, the kernel's own VXLAN at C, on one link. The remote of
//! each station is learned.

use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Host, LinkForm};
use segue_tests::{Ground, Stat, Tunnel, capture, test_name, traffic};

const DEVICE: &str = "vx1";
const PATIENCE: Duration = Duration::from_secs(60);

fn run(host: &Host, program: &str, line: &str) -> String {
    host.run(program, &line.split_whitespace().collect::<Vec<_>>()).unwrap()
}

/// Returns the address of host 1, 2 or 3 on the link (net 0) or inside (net 1).
fn address(family: Family, net: u8, host: u8) -> String {
    match family {
        Family::V4 => format!("198.{}.0.{host}", 18 + net),
        Family::V6 => format!("2001:db8:{net}::{host}"),
    }
}

fn prefix(family: Family, net: u8, host: u8) -> String {
    let len = if family == Family::V4 { 24 } else { 64 };
    format!("{}/{len}", address(family, net, host))
}

/// Joins the hosts by a bridge in `middle`.
fn joined(hosts: &[&Host], middle: &Host) {
    run(middle, "ip", "link add br0 type bridge");
    run(middle, "ip", "link set br0 up");
    for (number, host) in (1..).zip(hosts) {
        run(host, "ip", &format!("link add eth0 type veth peer name p{number} netns {}", middle.net_path()));
        run(middle, "ip", &format!("link set p{number} master br0 up"));
        for family in Family::ALL {
            let nodad = if *family == Family::V6 { "nodad" } else { "" };
            run(host, "ip", &format!("addr add {} dev eth0 {nodad}", prefix(*family, 0, number)));
        }
        run(host, "ip", "link set eth0 up");
    }
}

/// Starts `segue` at host `number`; it floods frames to unknown destinations to both other hosts.
fn segue(ground: &Ground, host: &Host, outer: Family, number: u8, trace: Option<&PathBuf>) -> Tunnel {
    let [first, second] = [1, 2, 3].into_iter().filter(|other| *other != number).collect::<Vec<u8>>()[..] else {
        unreachable!("three less one");
    };
    let mut line = format!(
        "dev {DEVICE} mode vxlan id 42 dstport 4789 local {} remote {} fdb 0:0:0:0:0:0,{}",
        address(outer, 0, number),
        address(outer, 0, first),
        address(outer, 0, second)
    );
    Family::ALL.iter().for_each(|family| line += &format!(" addr {}", prefix(*family, 1, number)));
    if let Some(path) = trace {
        line += &format!(" --trace {}", path.display());
    }
    Tunnel::start(host, &ground.program, &line.split_whitespace().map(String::from).collect::<Vec<_>>())
}

/// Creates the kernel's VXLAN device at host 3.
fn kernel(host: &Host, outer: Family) {
    let line =
        format!("link add {DEVICE} type vxlan id 42 dstport 4789 dev eth0 local {} udpcsum", address(outer, 0, 3));
    run(host, "ip", &line);
    for other in [1, 2] {
        let to = address(outer, 0, other);
        run(host, "bridge", &format!("fdb append 00:00:00:00:00:00 dev {DEVICE} dst {to}"));
    }
    for family in Family::ALL {
        let nodad = if *family == Family::V6 { "nodad" } else { "" };
        run(host, "ip", &format!("addr add {} dev {DEVICE} {nodad}", prefix(*family, 1, 3)));
    }
    run(host, "ip", &format!("link set {DEVICE} up"));
}

/// Returns the number of frames that the kernel's device has received.
fn received(host: &Host) -> u64 {
    let devices = run(host, "cat", "/proc/net/dev");
    let line = devices.lines().find_map(|line| line.trim().strip_prefix("vx1:")).expect("the device");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn counter(stat: &Stat, key: &str) -> u64 {
    stat.json()["ports"]["udp"]["numbers"][key]
        .as_u64()
        .unwrap_or_else(|| panic!("no {key} in {}", stat.json()["ports"]["udp"]))
}

fn three_ends(name: &str, outer: Family) {
    let Some(ground) = Ground::apart(name, &["ping", "bridge", "tshark"]) else { return };
    let [middle, c] = ["middle", "c"].map(|name| Host::new(name).unwrap());
    joined(&[&ground.a, &ground.b, &c], &middle);
    let directory = capture::Directory::new();
    let trace = directory.file("a.pcap");
    let mut at_a = segue(&ground, &ground.a, outer, 1, Some(&trace));
    let at_b = segue(&ground, &ground.b, outer, 2, None);
    kernel(&c, outer);
    let hosts = [&ground.a, &ground.b, &c];
    for family in Family::ALL {
        let at = |n: usize| (hosts[n], address(*family, 1, n as u8 + 1).parse().unwrap());
        for (from, to) in [(0, 1), (0, 2), (1, 2)] {
            segue_lab::reach(at(from), at(to), PATIENCE).unwrap();
            let [from, to] = [at(from), at(to)].map(|(host, address)| traffic::Place { host, address });
            traffic::everything(from, to, traffic::SHORT, 5);
        }
    }

    // What is known goes to one: of a file for B hardly a frame comes to C.
    let before = received(&c);
    let [a, b] = [0, 1].map(|n: u8| {
        let address = address(Family::V4, 1, n + 1).parse().unwrap();
        traffic::Place { host: hosts[usize::from(n)], address }
    });
    traffic::file(a, b, traffic::SHORT, 6);
    let strays = received(&c) - before;
    assert!(strays < 100, "{strays} frames of about {} for B came to C", traffic::SHORT / 1450);
    let stat = Stat::read(&ground.a, &ground.program, DEVICE);
    assert!(counter(&stat, "fdb_learned") >= 2, "{}", stat.json());
    assert_eq!(counter(&stat, "fdb_moved"), 0);
    assert!(stat.drops_but_overflow().is_empty(), "{:?}", stat.drops());

    // B's address moves to C, and A hears of it by C's first frame.
    let mac = run(&ground.b, "cat", &format!("/sys/class/net/{DEVICE}/address"));
    drop(at_b);
    for line in [format!("link set {DEVICE} down"), format!("link set {DEVICE} address {}", mac.trim())] {
        run(&c, "ip", &line);
    }
    run(&c, "ip", &format!("addr add {} dev {DEVICE}", prefix(Family::V4, 1, 2)));
    run(&c, "ip", &format!("link set {DEVICE} up"));
    let from = address(Family::V4, 1, 2);
    run(&c, "ping", &format!("-c 1 -W 3 -I {from} {}", address(Family::V4, 1, 1)));
    traffic::pings(a, traffic::Place { host: &c, ..b }, &[56, 1400]);
    let stat = Stat::read(&ground.a, &ground.program, DEVICE);
    assert!(counter(&stat, "fdb_moved") >= 1, "{}", stat.json()["ports"]["udp"]);

    // The trace shows the remote of each frame.
    at_a.process.stop(PATIENCE).expect("it ends");
    let field = if outer == Family::V4 { "ip.dst" } else { "ipv6.dst" };
    let read = [
        "-r",
        trace.to_str().unwrap(),
        "-d",
        "udp.port==4789,vxlan",
        "-Y",
        "vxlan && tcp",
        "-T",
        "fields",
        "-e",
        field,
    ];
    let text = ground.a.run("tshark", &read).unwrap();
    for to in [1, 2, 3] {
        let to: IpAddr = address(outer, 0, to).parse().unwrap();
        let is_to = |line: &&str| line.split(',').next().is_some_and(|address| address.parse() == Ok(to));
        let count = text.lines().filter(is_to).count();
        assert!(count > 100, "{count} segments to {to} in the trace");
    }
}

#[test]
fn three_vxlan_endpoints_over_ipv4_learn_the_remote_of_each_station() {
    three_ends(test_name!(), Family::V4);
}

#[test]
fn three_vxlan_endpoints_over_ipv6_learn_the_remote_of_each_station() {
    three_ends(test_name!(), Family::V6);
}

/// Returns the Ethernet address of an interface.
fn mac(host: &Host) -> [u8; 6] {
    let text = run(host, "ip", &format!("-o link show dev {DEVICE}"));
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether").skip(1);
    let bytes: Vec<u8> = words.next().unwrap().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

#[test]
fn a_frame_of_the_interface_itself_does_not_come_back_to_it() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let line = format!("dev {DEVICE} mode vxlan id 42 dstport 4789 local 198.18.0.1 remote 198.18.0.2");
    let _tunnel = Tunnel::start(&ground.a, &ground.program, &line.split(' ').map(String::from).collect::<Vec<_>>());
    let socket = traffic::inside(&ground.b, || UdpSocket::bind("198.18.0.2:4789")).unwrap();
    // A broadcast of an experimental protocol.
    let send = |source: [u8; 6]| {
        let frame = [&[8, 0, 0, 0, 0, 0, 42, 0], &[0xff; 6][..], &source, &[0x88, 0xb5], &[0; 46]].concat();
        socket.send_to(&frame, "198.18.0.1:4789").unwrap();
    };
    let until = |delivered: u64, refused: u64| {
        let done = |stat: &Stat| {
            (stat.count(DEVICE, "transmit", "packets"), stat.dropped("inner_source")) == (delivered, refused)
        };
        let stat = Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, done);
        assert!(done(&stat), "not {delivered} and {refused}: {}", stat.json());
    };
    let own = mac(&ground.a);
    send([2, 0, 0, 0, 0, 9]);
    until(1, 0);
    send(own);
    until(1, 1);
    send([0; 6]);
    until(1, 2);

    run(&ground.a, "ip", &format!("link set {DEVICE} address 02:00:00:00:00:01"));
    // The tunnel reads the address once a second, and no counter says when: frames before that are delivered.
    let counts = |stat: &Stat| (stat.count(DEVICE, "transmit", "packets"), stat.dropped("inner_source"));
    let begin = Instant::now();
    let mut delivered = 1;
    loop {
        send([2, 0, 0, 0, 0, 1]);
        let is_counted = |stat: &Stat| counts(stat) != (delivered, 2);
        let stat = Stat::until(&ground.a, &ground.program, DEVICE, PATIENCE, is_counted);
        if counts(&stat) == (delivered, 3) {
            break;
        }
        delivered += 1;
        assert!(counts(&stat) == (delivered, 2) && begin.elapsed() < PATIENCE, "{}", stat.json());
        thread::sleep(Duration::from_millis(100));
    }
    send(own);
    until(delivered + 1, 3);
}
