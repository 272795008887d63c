//! Tests of the order of packets where the in-kernel path moves some of a flow and the daemon others.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use segue_lab::Family::{V4, V6};
use segue_lab::{Host, LinkForm, Peer, reach};
use segue_tests::fastpath::{NET, REQUIRE, REQUIRE_OVERLAY, REQUIRE_ZERO, ground, left, removes_marks, taken};
use segue_tests::routed::ip;
use segue_tests::traffic::{self, Place};
use segue_tests::{Carrier, Inside, Pair, Shape, Stat, Tunnel, skip, sys, test_name};

const PATIENCE: Duration = Duration::from_secs(60);
/// Number of trains, each of which is followed by a single datagram of the same flow.
const ROUNDS: u32 = 200;
/// Number of datagrams of a train, and their bytes.
const TRAIN: (u32, u16) = (10, 1200);
/// Pause between two rounds, so that no buffer overflows.
const PAUSE: Duration = Duration::from_millis(1);
/// Time without a packet after which a flow takes the in-kernel path again.
const SILENCE: Duration = Duration::from_secs(1);

/// Sends trains and single datagrams of one flow in turn, and returns how many arrived after a later one. Lost ones are
/// not counted: buffers are finite. Afterwards the flow is silent for a while, and sends one more single datagram.
#[track_caller]
fn overtaken(from: Place<'_>, to: Place<'_>) -> usize {
    let [near, far] = [from, to].map(traffic::socket);
    near.connect(far.local_addr().unwrap()).unwrap();
    let all = ROUNDS * (TRAIN.0 + 1);
    let bytes = |numbers: std::ops::Range<u32>, len: usize| -> Vec<u8> {
        let datagram = |number: u32| [&number.to_be_bytes()[..], &vec![0x5a; len - 4]].concat();
        numbers.flat_map(datagram).collect()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for first in (0..all).step_by(TRAIN.0 as usize + 1) {
                let last = first + TRAIN.0;
                sys::set_udp_segment(&near, TRAIN.1).unwrap();
                near.send(&bytes(first..last, TRAIN.1.into())).unwrap();
                sys::set_udp_segment(&near, 0).unwrap();
                near.send(&bytes(last..last + 1, 500)).unwrap();
                thread::sleep(PAUSE);
            }
            thread::sleep(SILENCE + SILENCE / 4);
            near.send(&bytes(all..all + 1, 500)).unwrap();
        });
        let (mut buffer, mut late, mut next, mut seen) = ([0; 2000], 0, 0, BTreeSet::new());
        while !seen.contains(&all) {
            let len = far.recv(&mut buffer).expect("the last one comes");
            let number = u32::from_be_bytes(*buffer[..len].first_chunk().unwrap());
            late += usize::from(number < next);
            next = next.max(number + 1);
            seen.insert(number);
        }
        assert!(seen.len() > all as usize / 2, "{} of {all} came", seen.len());
        late
    })
}

/// Returns the number of packets that the program of an interface left for a reason.
fn left_for(stat: &Stat, device: &str, reason: &str) -> u64 {
    stat.json()["ports"][device]["left"][reason].as_u64().unwrap_or(0)
}

#[test]
fn single_datagrams_do_not_overtake_the_trains_of_their_flow() {
    let device = Shape::device(NET);
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        for (inside, carrier, extra) in [
            (Inside::Gre, Carrier::Bare, REQUIRE),
            (Inside::Gre, Carrier::Gue, REQUIRE_ZERO),
            (Inside::Geneve, Carrier::Bare, REQUIRE_OVERLAY),
        ] {
            let shape = Shape { extra, ..Shape::new(inside, carrier, V4) };
            let pair = Pair::start(&ground, shape, NET);
            for family in [V4, V6] {
                let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, family));
                reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
                let before = pair.stat();
                assert_eq!(overtaken(a, b), 0, "{form:?}, {shape}, IPv{family}");
                let [sent, _] = pair.stat();
                let of = |reason| left_for(&sent, &device, reason) - left_for(&before[0], &device, reason);
                let rounds = u64::from(ROUNDS);
                // A sender that is held up for a second has one more on the path.
                let [trains, behind] = [of("datagram_train"), of("behind_train")];
                assert!(trains == rounds && (rounds / 2..=rounds).contains(&behind), "{shape}: {}", left(&sent));
                // The last one, after a second without any, took the in-kernel path.
                assert!(taken(&sent)[0] > taken(&before[0])[0], "{shape}: {}", sent.json());
                // So do other flows, also while that one is the daemon's.
                traffic::datagram_train(a, b, TRAIN.1, TRAIN.0 as usize, 7);
                traffic::datagrams(a, b, &[500; 20], 8);
                let [after, _] = pair.stat();
                assert!(taken(&after)[0] >= taken(&sent)[0] + 20, "{shape}: {}", after.json());
            }
        }
    }
}

/// Tests a receiver on the in-kernel path whose sender is a daemon with outer checksums: its datagrams are joined by
/// GRO or arrive as the trains that they were sent in, which the daemon of the receiver cuts.
#[test]
fn single_datagrams_do_not_overtake_joined_ones_of_their_flow() {
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        let ends = [(&ground.a, Peer::A, &[][..]), (&ground.b, Peer::B, REQUIRE_ZERO)];
        let _tunnels = ends.map(|(host, end, extra)| {
            let shape = Shape { extra, ..Shape::new(Inside::Gre, Carrier::Gue, V4) };
            Tunnel::start(host, &ground.program, &shape.words(end, NET))
        });
        let [a, b] = ends.map(|(host, end, _)| Place { host, address: end.address(NET, V4) });
        reach((a.host, a.address), (b.host, b.address), PATIENCE).unwrap();
        assert_eq!(overtaken(a, b), 0, "{form:?}");
        let stat = Stat::read(&ground.b, &ground.program, &Shape::device(NET));
        let joined = left_for(&stat, &Shape::device(NET), "outer_length") + left_for(&stat, "udp", "outer_length");
        assert!(joined >= u64::from(ROUNDS) / 2, "{form:?}: {joined}, {}", stat.json());
        // Without a card that has verified the outer checksums the single ones are the daemon's anyway.
        let behind = left_for(&stat, &Shape::device(NET), "behind_train");
        assert!(behind > 0 || form == LinkForm::Veth, "{form:?}: {}", stat.json());
    }
}

/// Number of bursts of a connection, each of which is followed by a segment of its own.
const BURSTS: u64 = 300;

/// Number of connections of which one has to be without retransmissions.
const ATTEMPTS: usize = 5;

/// Returns how many segments of a connection as in [`bursts`] arrived out of order, of one that lost none: a segment
/// that a queue has lost makes others late.
#[track_caller]
fn out_of_order(from: Place<'_>, to: Place<'_>) -> u64 {
    let resent = || traffic::tcp_counter(from.host, "RetransSegs");
    let mut lossy = Vec::new();
    while lossy.len() < ATTEMPTS {
        let before = resent();
        let late = bursts(from, to);
        match resent() - before {
            0 => return late,
            resent => lossy.push((late, resent)),
        }
    }
    panic!("each connection sent segments again; out of order and sent again: {lossy:?}");
}

/// Sends bursts and small segments of one connection, and returns how many segments arrived out of order.
#[track_caller]
fn bursts(from: Place<'_>, to: Place<'_>) -> u64 {
    let late = || traffic::tcp_counter(to.host, "TCPOFOQueue");
    let listener = traffic::inside(to.host, || TcpListener::bind((to.address, 0))).unwrap();
    let near = traffic::inside(from.host, || TcpStream::connect(listener.local_addr().unwrap())).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.set_nodelay(true).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let before = late();
    thread::scope(|scope| {
        let mut near = near;
        scope.spawn(move || {
            for _ in 0..BURSTS {
                near.write_all(&[1; 8 * 1400]).unwrap();
                near.write_all(&[2; 100]).unwrap();
                thread::sleep(PAUSE);
            }
        });
        let mut all = Vec::new();
        far.read_to_end(&mut all).unwrap();
        assert_eq!(all.len() as u64, BURSTS * (8 * 1400 + 100));
    });
    late() - before
}

/// Tests a host that forwards what it receives on the in-kernel path: aggregates are the daemon's on kernels that
/// cannot free them from the tunnel's marks, and the single segments of their connection do not overtake them.
#[test]
fn single_segments_do_not_overtake_forwarded_aggregates_of_their_connection() {
    for form in [LinkForm::Veth, LinkForm::Nic] {
        let Some(ground) = ground(test_name!(), form, &[]) else { return };
        let Ok(third) = Host::new("c") else { return skip(test_name!(), "no third host could be made") };
        ip(&ground.b, &format!("link add far type veth peer name eth9 netns {}", third.net_path()));
        for (host, device, last) in [(&ground.b, "far", 1), (&third, "eth9", 2)] {
            ip(host, &format!("addr add 198.18.9.{last}/24 dev {device}"));
            ip(host, &format!("link set {device} up"));
        }
        ground.b.set_sysctl("ipv4/ip_forward", "1").unwrap();
        let shape = Shape { extra: REQUIRE, ..Shape::new(Inside::Gre, Carrier::Bare, V4) };
        let pair = Pair::start(&ground, shape, NET);
        let a = pair.place(Peer::A, V4);
        ip(&ground.a, &format!("route add 198.18.9.0/24 via {}", Peer::B.address(NET, V4)));
        ip(&third, &format!("route add {} via 198.18.9.1", a.address));
        let c = Place { host: &third, address: "198.18.9.2".parse().unwrap() };
        reach((a.host, a.address), (c.host, c.address), PATIENCE).unwrap();
        let late = out_of_order(a, c);
        let [_, stat] = pair.stat();
        assert_eq!(late, 0, "{form:?}: of {BURSTS}, left {}", left(&stat));
        if !removes_marks() {
            let [forwarded, behind] =
                ["forwarded", "behind_train"].map(|why| left_for(&stat, &Shape::device(NET), why));
            assert!(forwarded + behind > BURSTS / 2, "{form:?}: left {}", left(&stat));
        }
    }
}
