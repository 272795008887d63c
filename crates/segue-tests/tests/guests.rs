//! Tests of guests' ports in the built program: front ends of vhost-user without a guest, through
//! `segue gateway` between two of them and between more.

#[path = "common/guests.rs"]
mod common;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Gateway, NAME, Over, PATIENCE, announcement, ethernet, next_of, send, send_plain, sum16, train, train_between,
};
use segue_lab::{Host, LinkForm, Process, which};
use segue_testkit::vhost::{Descriptor, FROM_GUEST, Frontend, GUEST_BASE, NEXT, feature};
use segue_tests::capture::{Capture, Directory};
use segue_tests::{Ground, Stat, sys, test_name, traffic};

/// Longest time until the trains of a guest that is ready pass again: five times the aim, for a machine with other
/// load.
const BACK: Duration = Duration::from_secs(15);

/// Returns a frame with a train of UDP over IPv4 to a port of 198.18.0.2, whose checksum is partial, and its virtio-net
/// header.
fn datagrams(stations: [u8; 2], port: u16, count: usize, size: usize) -> ([u8; 10], Vec<u8>) {
    datagrams_of([[198, 18, 0, 1], [198, 18, 0, 2]], stations, port, count, size)
}

/// Returns a train like [`datagrams`] between other addresses.
fn datagrams_of(
    addresses: [[u8; 4]; 2],
    stations: [u8; 2],
    port: u16,
    count: usize,
    size: usize,
) -> ([u8; 10], Vec<u8>) {
    let payload: Vec<u8> = (0..count * size).map(|at| (at * 7 + at / 251) as u8).collect();
    let len = (28 + payload.len()) as u16;
    let mut ip = [&[0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0][..], &addresses.concat()].concat();
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let sum = !sum16(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let pseudo = sum16(&[&ip[12..20], &[0, 17], &(len - 20).to_be_bytes()].concat());
    let words = [9, port, len - 20, pseudo];
    let udp: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut header = [1, 5, 42, 0, 0, 0, 34, 0, 6, 0];
    header[4..6].copy_from_slice(&(size as u16).to_le_bytes());
    (header, [&ethernet(stations)[..], &ip, &udp, &payload].concat())
}

#[test]
fn trains_cross_between_guests_whole_and_are_cut_for_one_that_takes_none() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let gateway = Gateway::start(&ground, &directory);
    let mut left = gateway.guest("left", feature::USUAL);
    let mut right = gateway.guest("right", feature::USUAL);
    let got = send(&mut left, &mut right, 100, 60_000);
    let sent: Vec<Vec<u8>> = (0..100).map(|n| train(60_000, n).1).collect();
    assert_eq!(got.iter().map(|one| one.1.clone()).collect::<Vec<_>>(), sent);
    // Partial, and a train of TCP over IPv4 in 30 buffers.
    assert!(got.iter().all(|(header, _)| header[..2] == [1, 1] && header[10..] == [30, 0]));
    let stat = gateway.wait_for("right", "merged_packets", 100);
    assert_eq!((stat.count("left", "receive", "trains"), stat.count("right", "gso", "trains_whole")), (100, 100));
    assert_eq!((stat.count("right", "gso", "trains_cut"), stat.checksummed_bytes()), (0, 0));
    assert!(stat.drops().is_empty(), "{:?}", stat.drops());
    // A guest without offloads in the other direction: single packets with whole checksums.
    drop(left);
    gateway.wait_for("left", "guest_connected", 0);
    let mut left = gateway.guest("left", feature::VERSION_1 | feature::PROTOCOL);
    let got = send(&mut right, &mut left, 3, 60_000);
    assert_eq!(got.len(), 3 * 60_000_usize.div_ceil(1448));
    for (header, frame) in &got {
        assert!(frame.len() <= 1514 && header[..2] == [0, 0], "{header:?}");
        let pseudo = [&frame[26..34], &[0, 6], &(frame.len() as u16 - 34).to_be_bytes(), &frame[34..]].concat();
        assert_eq!((sum16(&frame[14..34]), sum16(&pseudo)), (0xffff, 0xffff), "both checksums are right");
    }
    let payload: Vec<u8> = got.iter().flat_map(|(_, frame)| frame[54..].to_vec()).collect();
    assert_eq!(payload, (0..3).flat_map(|n| train(60_000, n).1[54..].to_vec()).collect::<Vec<_>>());
}

#[test]
fn a_guest_that_goes_or_is_hostile_disturbs_no_other_and_may_come_back() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let mut gateway = Gateway::start(&ground, &directory);
    let mut right = gateway.guest("right", feature::USUAL);
    let health = |gateway: &Gateway<'_>| {
        let stat = Stat::read(&gateway.ground.a, gateway.program(), NAME);
        stat.json()["health"].as_array().unwrap().iter().map(|one| one["code"].clone()).collect::<Vec<_>>()
    };
    #[track_caller]
    fn until(mut holds: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < PATIENCE, "another health");
            thread::sleep(Duration::from_millis(10));
        }
    }
    until(|| health(&gateway) == ["guest_gone"]);
    let mut silent = Frontend::connect(&gateway.path("left"), feature::USUAL);
    gateway.wait_for("left", "guest_connected", 1);
    until(|| health(&gateway) == ["driver_not_ready"]);
    // Another one is turned away while the first is there.
    let mut other = Frontend::connect(&gateway.path("left"), feature::USUAL);
    let begin = Instant::now();
    while !other.is_closed() {
        assert!(begin.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!silent.is_closed());
    drop(silent);
    gateway.wait_for("left", "guest_connected", 0);
    // A ring with a loop, and a file of memory that is cut off.
    type Wrong = fn(&mut Frontend);
    let wrongs: [(&str, Wrong); 2] = [
        ("stop_ring_loop", |front| {
            let descriptor = Descriptor { address: GUEST_BASE + 0x50_0000, len: 64, flags: NEXT, next: 0 };
            front.describe(FROM_GUEST, 0, &descriptor);
            front.offer(FROM_GUEST, 0);
        }),
        ("stop_memory_lost", |front| {
            let (header, frame) = train(1000, 0);
            front.send_packet(0, &header, &frame, &[]);
            front.memory.set_len(0).unwrap();
        }),
    ];
    for (number, wrong) in wrongs {
        let mut left = gateway.guest("left", feature::USUAL);
        wrong(&mut left);
        left.kick(FROM_GUEST);
        gateway.wait_for("left", number, 1);
        assert_eq!(gateway.wait_for("right", "guest_ready", 1).count("right", "numbers", "front_ends"), 1);
    }
    let mut left = gateway.guest("left", feature::USUAL);
    assert_eq!(send(&mut left, &mut right, 10, 30_000).len(), 10);
    until(|| health(&gateway).is_empty());
    // The process is killed: both guests go on with the next one, in the same memory.
    let worker = Stat::read(&ground.a, gateway.program(), NAME).json()["pid"].as_u64().unwrap();
    sys::signal(gateway.process.id(), libc::SIGKILL).unwrap();
    gateway.process.wait(PATIENCE).unwrap();
    let begin = Instant::now();
    let is_there = |path: &Path| UnixStream::connect(path).is_ok();
    // One that has ended is there until it is collected, which not every machine does with orphans.
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    };
    while runs() || ["left", "right"].iter().any(|name| is_there(&gateway.path(name))) {
        assert!(begin.elapsed() < PATIENCE, "a process outlives its supervisor");
        thread::sleep(Duration::from_millis(10));
    }
    let memories = [left.memory.try_clone().unwrap(), right.memory.try_clone().unwrap()];
    drop((left, right));
    let begin = Instant::now();
    let gateway = Gateway::start(&ground, &directory);
    let [mut left, mut right] = ["left", "right"].map(|name| {
        let stream = Frontend::connect(&gateway.path(name), feature::USUAL).stream.try_clone().unwrap();
        let memory = memories[usize::from(name == "right")].try_clone().unwrap();
        let mut front = Frontend::with_memory(stream, feature::USUAL, memory);
        front.resume(FROM_GUEST);
        front.resume(0);
        front.start();
        gateway.wait_for(name, "guest_ready", 1);
        front
    });
    right.adopt_buffers(2048);
    assert_eq!(send(&mut left, &mut right, 10, 30_000).len(), 10);
    assert!(begin.elapsed() < BACK, "{:?} until trains cross again", begin.elapsed());
}

/// Tests that a bridge passes trains whole to two guests, and segmented to a link without offloads, to a host whose
/// kernel checks the packets that arrive.
#[test]
fn a_bridge_hands_trains_to_guests_whole_and_cut_to_a_link_without_offloads() {
    let Some(ground) = Ground::apart(test_name!(), &["tcpdump"]) else { return };
    let directory = Directory::new();
    let ip = |host: &Host, line: &str| host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
    ip(&ground.a, &format!("link add e1 type veth peer name eth0 netns {}", ground.b.net_path()));
    ip(&ground.a, "link set e1 addrgenmode none up");
    ip(&ground.b, "link set eth0 address 02:00:00:00:00:03 addrgenmode none up");
    ip(&ground.b, "addr add 198.18.0.2/24 dev eth0");
    ip(&ground.b, "neigh add 198.18.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent");
    ground.a.run("ethtool", &["-K", "e1", "tso", "off", "gso", "off", "tx", "off"]).unwrap();
    let gateway = Gateway::between(&ground, &directory, &["left", "right"], &["e1", "--set", "net.gso.dev.e1.tso=0"]);
    let mut left = gateway.guest("left", feature::USUAL | feature::HOST_USO);
    let mut right = gateway.guest("right", feature::USUAL);
    // The first frame of each is flooded; afterwards their trains go to one port only, whole and not summed.
    send_plain(&mut right, 0, &announcement(2));
    assert_eq!(next_of(&mut left)[0].1, announcement(2));
    let got = send(&mut left, &mut right, 20, 60_000);
    assert_eq!(
        got.iter().map(|one| one.1.clone()).collect::<Vec<_>>(),
        (0..20).map(|n| train(60_000, n).1).collect::<Vec<_>>()
    );
    let stat = gateway.wait_for("right", "merged_packets", 20);
    assert_eq!((stat.count("right", "gso", "trains_whole"), stat.checksummed_bytes()), (20, 0));
    assert_eq!(stat.count("e1", "transmit", "packets"), 1, "the flooded one");
    // The kernel of the other host verifies each datagram of a train, and answers by the link to the guest alone.
    let place = traffic::Place { host: &ground.b, address: "198.18.0.2".parse().unwrap() };
    let socket = traffic::socket_on(place, 4000);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // Its address becomes known by a broadcast.
    traffic::inside(&ground.b, || {
        let any = std::net::UdpSocket::bind("198.18.0.2:0")?;
        any.set_broadcast(true)?;
        any.send_to(b"here", "198.18.0.255:9")
    })
    .unwrap();
    assert!(next_of(&mut left)[0].1.ends_with(b"here") && next_of(&mut right)[0].1.ends_with(b"here"));
    let (header, frame) = datagrams([1, 3], 4000, 40, 1400);
    left.send_packet(1, &header, &frame, &[42]);
    left.kick(FROM_GUEST);
    let mut seen = Vec::new();
    for _ in 0..40 {
        let mut bytes = [0; 2000];
        let (len, from) = socket.recv_from(&mut bytes).expect("a datagram that the kernel has verified");
        assert_eq!((len, from.port()), (1400, 9));
        seen.extend_from_slice(&bytes[..len]);
    }
    assert!(seen == frame[42..]);
    socket.send_to(b"answer", "198.18.0.1:9").unwrap();
    assert!(next_of(&mut left)[0].1.ends_with(b"answer"));
    let stat = gateway.wait_for("e1", "fdb_entries", 1);
    assert_eq!((stat.count("e1", "gso", "trains_cut"), stat.count("e1", "gso", "packets_made")), (1, 40));
    assert_eq!(stat.count("right", "transmit", "packets"), 21, "neither the train nor the answer");
    assert!(stat.drops().is_empty(), "{:?}", stat.drops());
    // A train of TCP is on the link in packets of at most 1,500 bytes after their Ethernet headers.
    let mut command = ground.b.command("tcpdump");
    // In immediate mode the buffer has room for as many frames as it has times the snap length.
    command.args(["-i", "eth0", "-Q", "in", "-s", "2048", "-B", "65536", "-n", "-e", "-q", "-l", "--immediate-mode"]);
    command.args(["-c", "42", "tcp"]);
    let mut seen = Process::spawn(command, b"").unwrap();
    let begin = Instant::now();
    while !seen.stderr().contains("listening on") {
        assert!(seen.ended().is_none() && begin.elapsed() < PATIENCE, "{}", seen.last_words());
        thread::sleep(Duration::from_millis(5));
    }
    let (header, frame) = train_between([1, 3], 60_000, 0);
    left.send_packet(2, &header, &frame, &[54]);
    left.kick(FROM_GUEST);
    seen.wait(PATIENCE).unwrap();
    let len = |line: &str| line.split_once(", length ")?.1.split(':').next()?.parse::<usize>().ok();
    let lens: Vec<usize> = seen.stdout().lines().filter_map(len).collect();
    // 42 headers of 54 bytes, and all of the payload.
    assert_eq!((lens.len(), lens.iter().sum::<usize>(), lens.iter().max()), (42, 42 * 54 + 60_000, Some(&1502)));
}

#[test]
fn of_eight_guests_one_that_takes_nothing_and_one_that_calls_without_end_cost_no_other() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let names = ["g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7"];
    let gateway = Gateway::between(&ground, &directory, &names, &[]);
    let mut guests: Vec<Frontend> = Vec::new();
    for name in &names[..6] {
        guests.push(gateway.guest(name, feature::USUAL));
    }
    // The seventh offers no buffers, and the eighth kicks and has no packets.
    for name in &names[6..] {
        let mut front = Frontend::connect(&gateway.path(name), feature::USUAL);
        front.start();
        gateway.wait_for(name, "guest_ready", 1);
        guests.push(front);
    }
    for station in 0..7 {
        send_plain(&mut guests[usize::from(station)], 0, &announcement(station));
    }
    for guest in &mut guests[..6] {
        let mut received = 0;
        while received < 6 {
            received += next_of(guest).len();
        }
    }
    let mut kicking = guests.pop().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                kicking.kick(FROM_GUEST);
                thread::sleep(Duration::from_micros(20));
            }
        });
        let _over = Over(&is_over);
        for round in 0..20u16 {
            // Each of three sends to one of the other three, and to the one that takes nothing.
            for from in 0..3 {
                let to = from + 3;
                let slots = 1 + 2 * (round % 30);
                let (header, frame) = train_between([from, 6], 60_000, usize::from(round));
                guests[usize::from(from)].send_packet(slots, &header, &frame, &[]);
                let (header, frame) = train_between([from, to], 60_000, usize::from(round));
                guests[usize::from(from)].send_packet(slots + 1, &header, &frame, &[]);
                guests[usize::from(from)].kick(FROM_GUEST);
            }
            for from in 0..3 {
                let got = next_of(&mut guests[usize::from(from) + 3]);
                assert_eq!(got.len(), 1);
                assert!(got[0].1 == train_between([from, from + 3], 60_000, usize::from(round)).1, "round {round}");
            }
        }
    });
    let stat = Stat::read(&ground.a, gateway.program(), NAME);
    for name in &names[..6] {
        assert_eq!(
            stat.count(name, "drops", "bridge_queue") + stat.count(name, "drops", "guest_no_buffers"),
            0,
            "{name}"
        );
    }
    let lost = ["bridge_queue", "guest_no_buffers"].map(|reason| stat.count("g6", "drops", reason));
    assert!(lost.iter().sum::<u64>() > 0, "{}", stat.json());
    assert!(stat.count("g7", "numbers", "pauses") > 0, "{}", stat.json());
    assert_eq!(stat.count("g3", "numbers", "pauses"), 0);
    // What waits for its buffers is dropped after a while, and HEALTH names the ring.
    let is_told = |stat: &Stat| {
        let health = stat.json()["health"].as_array();
        health.is_some_and(|all| all.iter().any(|one| one["code"] == "ring_stalled"))
    };
    let stat = Stat::until(&ground.a, gateway.program(), NAME, PATIENCE, is_told);
    assert!(is_told(&stat), "{}", stat.json());
}

#[test]
fn a_guest_that_is_killed_and_comes_back_under_load_costs_no_other_a_packet() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let gateway = Gateway::between(&ground, &directory, &["g0", "g1", "g2", "g3"], &[]);
    let [mut from, mut to, mut other] = ["g0", "g1", "g3"].map(|name| gateway.guest(name, feature::USUAL));
    for (station, guest) in [(0, &mut from), (1, &mut to), (3, &mut other)] {
        send_plain(guest, 0, &announcement(station));
    }
    for guest in [&mut from, &mut to, &mut other] {
        let mut received = 0;
        while received < 2 {
            received += next_of(guest).len();
        }
    }
    let is_over = AtomicBool::new(false);
    let crossed = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut crossed = 0;
            while !is_over.load(Ordering::Relaxed) {
                let (header, frame) = train_between([0, 1], 60_000, crossed);
                from.send_packet(crossed as u16 % 32, &header, &frame, &[]);
                from.kick(FROM_GUEST);
                let mut got = next_of(&mut to);
                // What the one that comes and goes says to all.
                got.retain(|(_, frame)| frame[0] != 0xff);
                while got.is_empty() {
                    got = next_of(&mut to);
                    got.retain(|(_, frame)| frame[0] != 0xff);
                }
                assert!(got.len() == 1 && got[0].1 == frame, "train {crossed}");
                crossed += 1;
            }
            crossed
        });
        let _over = Over(&is_over);
        for _ in 0..5 {
            let mut killed = gateway.guest("g2", feature::USUAL);
            send_plain(&mut killed, 0, &announcement(2));
            for slot in 1..6 {
                let (header, frame) = train_between([2, 3], 60_000, usize::from(slot));
                killed.send_packet(slot, &header, &frame, &[]);
            }
            killed.kick(FROM_GUEST);
            // In the middle of it, its process is gone with all descriptors.
            drop(killed);
            gateway.wait_for("g2", "guest_connected", 0);
            other.received();
            other.kick(0);
        }
        let begin = Instant::now();
        let mut back = gateway.guest("g2", feature::USUAL);
        let (header, frame) = train_between([2, 3], 50_000, 9);
        back.send_packet(0, &header, &frame, &[]);
        back.kick(FROM_GUEST);
        let mut got = next_of(&mut other);
        while !got.iter().any(|(_, came)| *came == frame) {
            got = next_of(&mut other);
        }
        assert!(begin.elapsed() < BACK, "{:?} until a train of the same guest crosses", begin.elapsed());
        is_over.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    let stat = gateway.wait_for("g2", "stop_ended", 6);
    assert_eq!(stat.count("g1", "numbers", "front_ends"), 1);
    assert!(crossed > 0 && stat.count("g1", "gso", "trains_whole") == crossed as u64, "{crossed} trains");
    assert_eq!(
        stat.json()["ports"]["g1"]["drops"].as_object().unwrap().values().filter(|count| **count != 0).count(),
        0
    );
}

/// Tests that datagrams of guests behind a NAT reach a host, and the replies reach the guests. Their gateway has a TAP
/// with an address of the host, and a router connects it to a link.
#[test]
fn a_guests_datagrams_reach_a_host_through_nat_and_so_does_the_answer() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let ip = |host: &Host, line: &str| host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
    ip(&ground.a, &format!("link add e1 type veth peer name eth0 netns {}", ground.b.net_path()));
    ip(&ground.a, "addr add 198.18.2.1/24 dev e1");
    ip(&ground.a, "link set e1 up");
    ip(&ground.b, "addr add 198.18.2.2/24 dev eth0");
    ip(&ground.b, "link set eth0 up");
    let guests = Gateway::between(&ground, &directory, &["left", "right"], &["tap:vms"]);
    ip(&ground.a, "link set vms address 02:00:00:00:00:09");
    ip(&ground.a, "addr add 198.18.1.1/24 dev vms");
    ip(&ground.a, "neigh replace 198.18.1.2 lladdr 02:00:00:00:00:01 dev vms nud permanent");
    let mut command = ground.a.command(&ground.program);
    command.args(["gateway", "-j", "vms", "e1", "--route", "--nat", "198.18.2.9", "--name", "nat"]);
    let nat = Gateway::run(&ground, &directory, "nat", command);
    let mut left = guests.guest("left", feature::USUAL | feature::HOST_USO);
    let place = traffic::Place { host: &ground.b, address: "198.18.2.2".parse().unwrap() };
    let socket = traffic::socket_on(place, 4000);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (header, frame) = datagrams_of([[198, 18, 1, 2], [198, 18, 2, 2]], [1, 9], 4000, 20, 1400);
    left.send_packet(1, &header, &frame, &[42]);
    left.kick(FROM_GUEST);
    let mut seen = Vec::new();
    let mut sender = None;
    for _ in 0..20 {
        let mut bytes = [0; 2000];
        let (len, from) = socket.recv_from(&mut bytes).expect("a datagram behind the NAT");
        assert_eq!((len, from.ip().to_string().as_str()), (1400, "198.18.2.9"));
        seen.extend_from_slice(&bytes[..len]);
        sender = Some(from);
    }
    assert!(seen == frame[42..]);
    socket.send_to(b"answer", sender.unwrap()).unwrap();
    let mut got = next_of(&mut left);
    // The host's own packets on the TAP come too.
    while !got.iter().any(|(_, frame)| frame.ends_with(b"answer")) {
        got = next_of(&mut left);
    }
    // The train was whole up to the NAT.
    let stat = guests.wait_for("left", "guest_ready", 1);
    assert_eq!((stat.count("left", "receive", "trains"), stat.count("vms", "gso", "trains_whole")), (1, 1));
    let stat = Stat::read(&ground.a, nat.program(), "nat");
    assert_eq!(stat.count("vms", "receive", "trains"), 1, "{}", stat.json());
}

/// Tests that trains pass whole between a guest, as the inner interface of a tunnel, and the kernel's VXLAN at the
/// remote end; tshark checks the packets on the link.
#[test]
fn a_guests_trains_enter_a_tunnel_whole_and_those_of_the_kernel_reach_it_joined() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["tcpdump", "tshark"]) else { return };
    let directory = Directory::new();
    let ip = |host: &Host, line: &str| host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
    let ends = "local 198.18.0.2 remote 198.18.0.1";
    ip(&ground.b, &format!("link add vx0 type vxlan id 42 dstport 4789 dev eth0 {ends} udpcsum"));
    ip(&ground.b, "link set vx0 address 02:00:00:00:00:03 mtu 1450 addrgenmode none up");
    ip(&ground.b, "addr add 198.19.0.2/24 dev vx0");
    ip(&ground.b, "neigh add 198.19.0.1 lladdr 02:00:00:00:00:01 dev vx0 nud permanent");
    let mut command = ground.a.command(&ground.program);
    let dev = format!("vhost:{},name=vm1", directory.file("vm1.sock").display());
    let words = "mode vxlan id 42 dstport 4789 local 198.18.0.1 remote 198.18.0.2";
    command.args(["tunnel", "-j", "dev", &dev]).args(words.split(' '));
    let tunnel = Gateway::run(&ground, &directory, "vm1", command);
    let stat = tunnel.wait_for("vm1", "guest_ready", 0);
    let health = stat.json()["health"].as_array().unwrap();
    assert!(health.iter().any(|one| one["code"] == "guest_gone"), "{health:?}");
    let mut guest = tunnel.guest("vm1", feature::USUAL | feature::HOST_USO);
    let place = traffic::Place { host: &ground.b, address: "198.19.0.2".parse().unwrap() };
    let socket = traffic::socket_on(place, 4000);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let capture = Capture::start(&ground.a, directory.file("link.pcap"));
    let (header, frame) = datagrams_of([[198, 19, 0, 1], [198, 19, 0, 2]], [1, 3], 4000, 40, 1300);
    guest.send_packet(1, &header, &frame, &[42]);
    guest.kick(FROM_GUEST);
    let mut seen = Vec::new();
    for _ in 0..40 {
        let mut bytes = [0; 2000];
        let (len, from) = socket.recv_from(&mut bytes).expect("a datagram of the guest");
        assert_eq!((len, from.to_string().as_str()), (1300, "198.19.0.1:9"));
        seen.extend_from_slice(&bytes[..len]);
    }
    assert!(seen == frame[42..]);
    // Outer and inner checksum of each datagram.
    let mut tshark = Command::new(which("tshark").unwrap());
    tshark.args([
        "-n",
        "-o",
        "udp.check_checksum:TRUE",
        "-T",
        "fields",
        "-e",
        "udp.checksum.status",
        "-Y",
        "vxlan",
        "-r",
    ]);
    let output = tshark.arg(capture.stop()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(), ["1,1"; 40]);
    let stat = tunnel.wait_for("vm1", "guest_ready", 1);
    assert_eq!((stat.count("vm1", "receive", "trains"), stat.count("vm1", "receive", "segments")), (1, 40));
    assert_eq!(stat.json()["ports"]["vm1"]["stages"]["encap"]["trains"], 1, "{}", stat.json());
    // The kernel's datagrams of one train leave its host one by one, and come to the guest in fewer pieces.
    sys::set_udp_segment(&socket, 1300).unwrap();
    socket.send_to(&frame[42..], "198.19.0.1:9").unwrap();
    let (mut came, mut units) = (Vec::new(), 0);
    while came.len() < 40 * 1300 {
        // The host's own packets come too.
        for (_, frame) in next_of(&mut guest).iter().filter(|(_, frame)| frame[23] == 17 && frame[36..38] == [0, 9]) {
            units += 1;
            came.extend_from_slice(&frame[42..]);
        }
    }
    assert_eq!(came.len(), 40 * 1300);
    assert!(came == frame[42..] && units < 40, "{units} units");
}
