//! Tests of tunnels over a link that drops, duplicates, reorders and corrupts frames: files arrive unchanged, and no
//! corrupted datagram is ever delivered.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use segue_lab::Family::{V4, V6};
use segue_lab::{Counts, Faults, Peer, Relay};
use segue_tests::Carrier::{Gue, GueRemcsum};
use segue_tests::Inside::{Gre, Ipip};
use segue_tests::{Ground, Pair, Random, Shape, test_name, traffic};

/// Number of datagrams of one run under damage.
const COUNT: u64 = 6000;

fn total(relay: &Relay) -> Counts {
    let [from_a, from_b] = relay.counts();
    from_a.plus(from_b)
}

fn survives(name: &str, shape: Shape) {
    let Some(ground) = Ground::apart(name, &["ping"]) else { return };
    let relay = Relay::between(&ground.a, &ground.b).expect("a relay");
    let pair = Pair::start(&ground, shape, 1);

    relay.set_faults(Faults { drop: 10, duplicate: 10, reorder: 20, seed: 4, ..Faults::default() });
    for family in shape.inside.families() {
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
        // Enough packets for each kind of fault.
        traffic::file(a, b, traffic::long().max(16 << 20), 5);
        traffic::file(b, a, traffic::SHORT, 6);
    }
    let disturbed = total(&relay);
    for count in [disturbed.dropped, disturbed.duplicated, disturbed.reordered] {
        assert!(count >= 20, "the wire was too good: {disturbed:?}");
    }
    assert_eq!(disturbed.damaged, 0);
    pair.assert_nothing_dropped();

    relay.set_faults(Faults { drop: 2, duplicate: 2, reorder: 5, damage: 10, seed: 7, ..Faults::default() });
    for family in shape.inside.families() {
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
        traffic::file(a, b, traffic::SHORT, 8);
    }
    assert!(total(&relay).damaged >= 20, "the wire was too good: {:?}", total(&relay));
    for family in shape.inside.families() {
        only_the_undamaged_arrives(&relay, &pair, *family);
    }

    relay.set_faults(Faults::default());
    for family in shape.inside.families() {
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
        traffic::pings(a, b, traffic::PING_SIZES);
    }
    relay.stop().expect("the relay passed frames to its end");
}

/// Sends self-describing datagrams over a link that corrupts a tenth of them, and checks that only intact ones arrive.
fn only_the_undamaged_arrives(relay: &Relay, pair: &Pair<'_>, family: segue_lab::Family) {
    let [from, to] = [Peer::A, Peer::B].map(|end| pair.place(end, family));
    let [near, far] = [from, to].map(traffic::socket);
    near.connect(far.local_addr().unwrap()).unwrap();
    let before = relay.counts()[0];
    relay.set_faults(Faults { damage: 100, seed: 9, ..Faults::default() });
    let arrived = thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            far.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
            let (mut buffer, mut arrived) = (vec![0; 1 << 16], HashMap::new());
            while let Ok((len, peer)) = far.recv_from(&mut buffer) {
                assert_eq!(peer, near.local_addr().unwrap(), "a datagram from somebody else");
                let number = u64::from_be_bytes(buffer[..8].try_into().expect("a datagram of 8 bytes or more"));
                assert!(buffer[..len] == content(number), "datagram {number} was delivered with other content");
                *arrived.entry(number).or_insert(0) += 1;
            }
            arrived
        });
        for number in 0..COUNT {
            near.send(&content(number)).expect("a datagram is sent");
            // What overflows a socket would be no fault of the relay.
            if number % 16 == 15 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        receiving.join().expect("every datagram was right")
    });
    let after = relay.counts()[0];
    let damaged = after.damaged - before.damaged;
    assert!(damaged > COUNT / 20, "the wire was too good: {damaged} damaged");
    assert!(arrived.values().all(|count| *count == 1), "a datagram arrived twice on a wire that does not duplicate");
    // A datagram's only frame was damaged, or its frame was whole. The hosts send frames of their own too (a late
    // segment of the file, listeners of a group), which may be among the damaged.
    let strangers = (after.received - before.received).saturating_sub(COUNT);
    let (got, undamaged) = (arrived.len() as u64, COUNT - damaged);
    assert!(
        got <= undamaged + strangers.min(damaged) && got >= undamaged - COUNT / 20,
        "{got} of {COUNT} arrived, {damaged} frames were damaged, {strangers} were not datagrams; {}",
        pair.drops()
    );
}

/// Returns the content of a datagram: 8 to 1200 bytes, which fit one frame with the tunnel's headers.
fn content(number: u64) -> Vec<u8> {
    let mut random = Random::new(number ^ 0x5eed);
    let len = random.below(1193) as usize;
    [number.to_be_bytes().to_vec(), random.bytes(len)].concat()
}

#[test]
fn gre_in_gue_with_remcsum_over_ipv4_survives_a_bad_wire() {
    survives(test_name!(), Shape::new(Gre, GueRemcsum, V4));
}

#[test]
fn gre_in_gue_with_remcsum_over_ipv6_survives_a_bad_wire() {
    survives(test_name!(), Shape::new(Gre, GueRemcsum, V6));
}

#[test]
fn ipip_in_gue_over_ipv4_survives_a_bad_wire() {
    survives(test_name!(), Shape::new(Ipip, Gue, V4));
}

#[test]
fn ipip_in_gue_over_ipv6_survives_a_bad_wire() {
    survives(test_name!(), Shape::new(Ipip, Gue, V6));
}
