//! Tests of packets that must not be delivered: the in-kernel path drops them, or leaves them to the daemon, and they
//! are counted for the same reasons as without the path.

#[path = "common/malformed.rs"]
mod malformed;

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use segue_lab::Family::V4;
use segue_lab::{Host, LinkForm, Peer};
use segue_tests::fastpath::{NET, REQUIRE, REQUIRE_ZERO, ground, left_in_all, taken};
use segue_tests::flood::Flood;
use segue_tests::kernel_log::{KernelLog, is_complaint};
use segue_tests::{Carrier, Ground, Inside, Pair, Shape, Stat, sys, test_name, traffic, wire};

/// Longest wait until the counters include all packets that were sent.
const PATIENCE: Duration = Duration::from_secs(60);
const FILE: u64 = 4 << 20;
/// Number of times that each datagram is sent in a row.
const TIMES: usize = 8;
const OFF: &[&str] = &["fastpath", "off"];
const OFF_ZERO: &[&str] = &["noencap-csum", "fastpath", "off"];

/// Returns the Ethernet address of an interface.
#[track_caller]
fn station(host: &Host, device: &str) -> Vec<u8> {
    let text = host.run("cat", &[&format!("/sys/class/net/{device}/address")]).unwrap();
    text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[test]
fn malformed_and_spoofed_packets_end_under_the_reasons_of_the_daemon() {
    let Some(ground) = ground(test_name!(), LinkForm::Nic, &[]) else { return };
    ground.a.run("ip", &["addr", "add", "198.18.0.77/24", "dev", segue_lab::DEVICE]).unwrap();
    let (all, good) = (malformed::all(), malformed::good());
    judged_alike(&ground, Inside::Gre, Carrier::Gue, [OFF_ZERO, REQUIRE_ZERO], &all, &good, 12);
    let (all, good) = (malformed::frames(), malformed::good_frame());
    judged_alike(&ground, Inside::VxlanZero, Carrier::Bare, [OFF, REQUIRE], &all, &good, 8);
}

/// Sends B datagrams none of which may be delivered, `good` with a congestion mark that it must not have, and `good`
/// from another host, each several times; checks that the daemon and the in-kernel path drop them all, for equal
/// reasons, of which there are at least `least`, and that the path rarely wakes the daemon.
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
        let mut all = all.to_vec();
        if inside.brings_udp() {
            // A frame that B has sent itself, and that has come back.
            let mut own = good.to_vec();
            own[14..20].copy_from_slice(&station(&ground.b, &Shape::device(NET)));
            all.push(own);
        }
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
        (stat.drops(), want, left_in_all(&stat))
    });
    log.iter_mut().for_each(|log| log.assert_silent("malformed packets"));
    assert_eq!(judged[0].0, judged[1].0, "the daemon, and the in-kernel path");
    // A part of them is the daemon's to judge.
    let [by_daemon, by_path] = [judged[0].2, judged[1].2];
    assert!(by_daemon == 0 && by_path > 0 && by_path < judged[1].1 * 3 / 4, "{by_path} of {} were left", judged[1].1);
    assert_eq!(judged[0].0.values().sum::<u64>(), judged[0].1, "{:?}", judged[0].0);
    assert!(judged[0].0.len() >= least, "{:?}", judged[0].0);
}

#[test]
fn a_flood_beside_a_tunnel_leaves_the_kernels_log_silent_and_has_the_reasons_of_the_daemon() {
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        let mut log = KernelLog::mark(test_name!());
        let [to, from] = [&ground.b, &ground.a].map(|host| station(host, segue_lab::DEVICE));
        let link = [to, from, vec![8, 0]].concat();
        let around = |from: &str, bytes: &[u8]| {
            let to = (Peer::B.address(0, V4), Shape::port(NET));
            let mut packet = wire::udp_packet((from.parse().unwrap(), 50_000), to, bytes, 0, false).packet;
            packet[26..28].fill(0);
            [&link[..], &packet].concat()
        };
        let mut all: Vec<Vec<u8>> = malformed::frames().iter().map(|bytes| around("198.18.0.1", bytes)).collect();
        all.push(around("198.18.0.77", &malformed::good_frame()));
        let reasons: [BTreeSet<String>; 2] = [OFF, REQUIRE].map(|extra| {
            let pair = Pair::start(&ground, Shape { extra, ..Shape::new(Inside::VxlanZero, Carrier::Bare, V4) }, NET);
            let frames = all.clone();
            let flood = Flood::start(&ground.a, segue_lab::DEVICE, 100_000, move |random| {
                frames[random.word() as usize % frames.len()].clone()
            });
            let device = Shape::device(NET);
            let total = |stat: &Stat| stat.drops().values().sum::<u64>();
            let stat = Stat::until(&ground.b, &ground.program, &device, PATIENCE, |stat| total(stat) > 20_000);
            assert!(total(&stat) > 20_000, "{:?}", stat.drops());
            if extra == REQUIRE {
                assert!(left_in_all(&stat) > 0, "the programs have seen nothing: {}", stat.json());
                let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
                traffic::file(a, b, FILE, 1);
                traffic::file(b, a, FILE, 2);
            }
            drop(flood);
            stat.drops().into_keys().collect()
        });
        assert_eq!(reasons[0], reasons[1], "the daemon, and the in-kernel path");
        log.iter_mut().for_each(|log| log.assert_silent("a flood"));
    }
}

/// Tests that a packet of a VLAN is left to the interface of that VLAN, although the interface below it has the local
/// address, and the tunnel the sender.
#[test]
fn a_packet_of_a_vlan_is_not_taken_at_the_interface_below() {
    let Some(ground) = ground(test_name!(), LinkForm::Veth, &[]) else { return };
    let pair = Pair::start(&ground, Shape { extra: REQUIRE_ZERO, ..Shape::new(Inside::Gre, Carrier::Gue, V4) }, NET);
    let link = [&ground.b, &ground.a].map(|host| station(host, segue_lab::DEVICE)).concat();
    let (from, to) = ((Peer::A.address(0, V4), 50_000), (Peer::B.address(0, V4), Shape::port(NET)));
    let mut packet = wire::udp_packet(from, to, &malformed::good(), 0, false).packet;
    packet[26..28].fill(0);
    let socket = traffic::inside(&ground.a, || sys::packet_socket(segue_lab::DEVICE)).unwrap();
    let before = taken(&pair.stat()[1])[1];
    // Those without a tag are sent last, so that the others have arrived before them.
    for (tag, count) in [(&[0x81, 0, 0, 5][..], 1000), (&[][..], 100)] {
        let frame = [&link[..], tag, &[8, 0], &packet].concat();
        for sent in 1..=count {
            sys::send_frame(&socket, &frame).unwrap();
            // The queue of a receiving processor is short.
            if sent % 20 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    let grown = |stat: &Stat| taken(stat)[1] - before;
    let stat = Stat::until(&ground.b, &ground.program, &Shape::device(NET), PATIENCE, |stat| grown(stat) >= 50);
    assert!((50..500).contains(&grown(&stat)), "{} taken", grown(&stat));
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
