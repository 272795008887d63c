//! Tests of the order of datagrams where the in-kernel path moves single packets and the daemon the trains of the same
//! flow.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use segue_lab::Family::{V4, V6};
use segue_lab::{LinkForm, Peer, reach};
use segue_tests::fastpath::{NET, REQUIRE, REQUIRE_OVERLAY, REQUIRE_ZERO, ground, left, taken};
use segue_tests::traffic::{self, Place};
use segue_tests::{Carrier, Inside, Pair, Shape, Stat, Tunnel, sys, test_name};

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
                // The last one, after a second without any, took the in-kernel path.
                let rounds = u64::from(ROUNDS);
                assert_eq!([of("datagram_train"), of("behind_train")], [rounds; 2], "{shape}: {}", left(&sent));
                assert!(taken(&sent)[0] > taken(&before[0])[0], "{shape}: {}", sent.json());
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
    }
}
