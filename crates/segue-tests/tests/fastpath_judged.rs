//! Tests of packets that must not be delivered: the path through the kernel drops them, or leaves them to the daemon,
//! and they are counted for the reasons that they have without the path.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use segue_lab::Family::V4;
use segue_lab::{LinkForm, Peer};
use segue_tests::fastpath::{NET, REQUIRE, REQUIRE_ZERO, ground};
use segue_tests::flood::Flood;
use segue_tests::kernel_log::{KernelLog, is_complaint};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, sys, test_name, traffic, wire};

/// Time for the counters of packets that were sent.
const PATIENCE: Duration = Duration::from_secs(60);
const FILE: u64 = 4 << 20;
/// Times that each datagram is sent, one right behind the other.
const TIMES: usize = 8;
const OFF: &[&str] = &["fastpath", "off"];
const OFF_ZERO: &[&str] = &["noencap-csum", "fastpath", "off"];

/// Returns datagrams for a tunnel of GRE without options in GUE, none of which may be delivered.
fn malformed() -> Vec<Vec<u8>> {
    let inner = |from: &str| {
        let (from, to) = ((from.parse().unwrap(), 4000), ("198.19.1.2".parse().unwrap(), 9));
        wire::udp_packet(from, to, b"no more than this", 0, false).packet
    };
    let packet = inner("198.19.1.1");
    let gre = |flags: u16, kind: u16, rest: &[u8]| [&flags.to_be_bytes()[..], &kind.to_be_bytes(), rest].concat();
    let whole = gre(0, 0x0800, &packet);
    let gue = |first: [u8; 4], words: &[u32]| wire::gue(first, words, &whole);
    let around = |inner: &[u8]| wire::gue([0, 47, 0, 0], &[], inner);
    let mut all = vec![gue([0, 47, 0, 0], &[])[..3].to_vec(), vec![5, 47, 0, 0]];
    all.extend([0x80, 0xc0, 0x50, 0x20].map(|first| gue([first, 47, 0, 0], &[])));
    all.extend([0x4000_u16, 0x0100, 0x0002].map(|flags| {
        let [high, low] = flags.to_be_bytes();
        gue([0, 47, high, low], &[])
    }));
    all.extend([gue([1, 47, 0, 1], &[1]), gue([0, 47, 0, 1], &[])]);
    all.extend([0, 1, 4, 17, 41, 59, 255].map(|protocol| gue([0, protocol, 0, 0], &[])));
    all.extend([0x4000, 0x0800, 0x0001, 0x0007].map(|flags| around(&gre(flags, 0x0800, &packet))));
    all.extend([0x2000, 0x8000].map(|flags| around(&gre(flags, 0x0800, &[&[0; 4], &packet[..]].concat()))));
    all.extend([0x0806, 0x6558, 0x8847].map(|kind| around(&gre(0, kind, &packet))));
    all.push(around(&gre(0, 0x86dd, &packet)));
    all.extend([0, 1, 19, 21].map(|len| around(&gre(0, 0x0800, &packet[..len]))));
    all.extend([0x40, 0x44, 0x75].map(|first| around(&gre(0, 0x0800, &[&[first], &packet[1..]].concat()))));
    all.extend(
        ["127.0.0.1", "224.0.0.1", "239.1.2.3", "255.255.255.255"].map(|from| around(&gre(0, 0x0800, &inner(from)))),
    );
    all
}

/// Returns a datagram of VXLAN 42 with a packet of UDP in a frame.
fn good_frame() -> Vec<u8> {
    let (from, to) = (("198.19.1.1".parse().unwrap(), 4000), ("198.19.1.2".parse().unwrap(), 9));
    let packet = wire::udp_packet(from, to, b"no more than this", 0, false).packet;
    [&[8, 0, 0, 0, 0, 0, 42, 0, 0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 8, 0][..], &packet].concat()
}

/// Returns datagrams for VXLAN 42 without options, none of which may be delivered.
fn malformed_frames() -> Vec<Vec<u8>> {
    let changed = |at: usize, byte: u8| {
        let mut bytes = good_frame();
        bytes[at] = byte;
        bytes
    };
    let mut all: Vec<Vec<u8>> = [3, 7, 8, 12, 21].iter().map(|len| good_frame()[..*len].to_vec()).collect();
    // Flags and reserved bits, remote checksum offload among them; another network; a group as the sender.
    let changes = [(0, 0), (0, 0x88), (0, 0x0c), (1, 1), (1, 0x20), (2, 4), (3, 1), (7, 1), (7, 0x80)];
    all.extend(changes.map(|(at, byte)| changed(at, byte)));
    all.extend([(4, 1), (6, 43), (14, 1)].map(|(at, byte)| changed(at, byte)));
    let mut nobody = good_frame();
    nobody[14..20].fill(0);
    all.push(nobody);
    all
}

#[test]
fn malformed_and_spoofed_packets_end_under_the_reasons_of_the_daemon() {
    let Some(ground) = ground(test_name!(), LinkForm::Nic, &[]) else { return };
    ground.a.run("ip", &["addr", "add", "198.18.0.77/24", "dev", segue_lab::DEVICE]).unwrap();
    let good = wire::gue(
        [0, 47, 0, 0],
        &[],
        &[
            &[0, 0, 8, 0],
            &wire::udp_packet(
                ("198.19.1.1".parse().unwrap(), 4000),
                ("198.19.1.2".parse().unwrap(), 9),
                b"no more than this",
                0,
                false,
            )
            .packet[..],
        ]
        .concat(),
    );
    judged_alike(&ground, Inside::Gre, Carrier::Gue, [OFF_ZERO, REQUIRE_ZERO], &malformed(), &good, 12);
    let frames = malformed_frames();
    judged_alike(&ground, Inside::VxlanZero, Carrier::Bare, [OFF, REQUIRE], &frames, &good_frame(), 8);
}

/// Sends B datagrams of which none may be delivered, `good` with a congestion mark that it must not have, and `good`
/// from another host, each several times; checks that the daemon and the path drop them all, for the same reasons, of
/// which there are `least`, and that the path wakes the daemon for few of them.
#[track_caller]
fn judged_alike(
    ground: &Ground,
    inside: Inside,
    carrier: Carrier,
    words: [&'static [&'static str]; 2],
    all: &[Vec<u8>],
    good: &[u8],
    least: usize,
) {
    let mut log = KernelLog::mark(test_name!());
    let judged = words.map(|extra| {
        let pair = Pair::start(ground, Shape { extra, ..Shape::new(inside, carrier, V4) }, NET);
        let speak = |from: IpAddr| {
            let socket = traffic::inside(&ground.a, || UdpSocket::bind((from, 0))).unwrap();
            socket.connect((Peer::B.address(0, V4), Shape::port(NET))).unwrap();
            // The kernel's UDP judges those with one.
            sys::send_without_checksum(&socket).unwrap();
            socket
        };
        let peer = speak(Peer::A.address(0, V4));
        let send = |socket: &UdpSocket, bytes: &[u8]| {
            for _ in 0..TIMES {
                socket.send(bytes).unwrap();
            }
        };
        all.iter().for_each(|bytes| send(&peer, bytes));
        let marked = speak(Peer::A.address(0, V4));
        sys::set_tos(&marked, 3).unwrap();
        send(&marked, good);
        send(&speak("198.18.0.77".parse().unwrap()), good);
        let want = (TIMES * (all.len() + 2)) as u64;
        let total = |stat: &Stat| stat.drops().values().sum::<u64>();
        let device = Shape::device(NET);
        let stat = Stat::until(&ground.b, &ground.program, &device, PATIENCE, |stat| total(stat) >= want);
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
        traffic::file(a, b, FILE / 4, 1);
        (stat.drops(), want, left_of(&stat))
    });
    log.iter_mut().for_each(|log| log.assert_silent("malformed packets"));
    assert_eq!(judged[0].0, judged[1].0, "the daemon, and the kernel's path");
    // A part of them is the daemon's to judge.
    let [by_daemon, by_path] = [judged[0].2, judged[1].2];
    assert!(by_daemon == 0 && by_path > 0 && by_path < judged[1].1 * 3 / 4, "{by_path} of {} were left", judged[1].1);
    assert_eq!(judged[0].0.values().sum::<u64>(), judged[0].1, "{:?}", judged[0].0);
    assert!(judged[0].0.len() >= least, "{:?}", judged[0].0);
}

/// Returns how many packets the path has left to the daemon, for whatever reason.
fn left_of(stat: &Stat) -> u64 {
    let ports = stat.json()["ports"].as_object().into_iter().flatten();
    let left = ports.filter_map(|(_, port)| port["left"].as_object());
    left.flat_map(|left| left.values()).filter_map(serde_json::Value::as_u64).sum()
}

#[test]
fn a_flood_beside_a_tunnel_leaves_the_kernels_log_silent() {
    let station = |host: &segue_lab::Host| -> Vec<u8> {
        let text = host.run("cat", &["/sys/class/net/eth0/address"]).unwrap();
        text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    };
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        let mut log = KernelLog::mark(test_name!());
        let shape = Shape { extra: REQUIRE, ..Shape::new(Inside::VxlanZero, Carrier::Bare, V4) };
        let pair = Pair::start(&ground, shape, NET);
        let link = [station(&ground.b), station(&ground.a), vec![8, 0]].concat();
        let around = |from: &str, bytes: &[u8]| {
            let to = (Peer::B.address(0, V4), Shape::port(NET));
            let mut packet = wire::udp_packet((from.parse().unwrap(), 50_000), to, bytes, 0, false).packet;
            packet[26..28].fill(0);
            [&link[..], &packet].concat()
        };
        let mut all: Vec<Vec<u8>> = malformed_frames().iter().map(|bytes| around("198.18.0.1", bytes)).collect();
        all.push(around("198.18.0.77", &good_frame()));
        let flood = Flood::start(&ground.a, segue_lab::DEVICE, 100_000, move |random| {
            all[random.word() as usize % all.len()].clone()
        });
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
        traffic::file(a, b, FILE, 1);
        traffic::file(b, a, FILE, 2);
        let device = Shape::device(NET);
        let total = |stat: &Stat| stat.drops().values().sum::<u64>();
        let stat = Stat::until(&ground.b, &ground.program, &device, PATIENCE, |stat| total(stat) > 20_000);
        drop(flood);
        assert!(total(&stat) > 20_000, "{:?}", stat.drops());
        log.iter_mut().for_each(|log| log.assert_silent("a flood"));
    }
}

#[test]
fn complaints_of_the_kernel_are_told_from_its_other_records() {
    for record in [
        "4,1,2,-;WARNING: CPU: 0 PID: 12 at net/core/dev.c:3270 skb_warn_bad_offload+0xb7/0xd0",
        "3,1,2,-;eth0: hw csum failure",
        "4,1,2,-;eth0: bad gso: type: 1, size: 1400",
        "0,1,2,-;BUG: unable to handle page fault for address: 0000",
        "6,1,2,-;UDP: bad checksum. From 198.18.0.1:1 to 198.18.0.2:2 ulen 9",
    ] {
        assert!(is_complaint(record), "{record}");
    }
    assert!(!is_complaint("6,1,2,-;br0: port 1(toc) entered forwarding state"));
}
