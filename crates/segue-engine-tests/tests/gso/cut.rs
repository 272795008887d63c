//! Tests that cutting early gives the same packets as splitting for the port.

use proptest::prelude::*;
use segue::gso::{Arena, Limits, Refusal, cut};
use segue::packet::{Csum, Layer, LayerCsum, Pool, Remote, Unit};
use segue_testkit::build::{Gre, Remcsum, Shim};

use crate::case::*;
use crate::properties::any_case;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_train_cut_first_and_finished_later_leaves_as_if_it_had_been_split_for_the_port(case in any_case()) {
        let train = case.train();
        let (mut arena, mut pool, mut early) = (Arena::new(), Pool::new(64), Vec::new());
        let count = cut(&train, &mut arena, &mut pool, |packet, _| early.push(packet)).unwrap();
        prop_assert_eq!(count, early.len());
        prop_assert!(case.tunnels.iter().any(|t| t.gre.is_some()) || arena.take_checksummed() == 0, "payload was summed");
        let (late, _) = split_both(&train, &Limits::NONE).unwrap();
        for (packet, ranges) in early.iter().zip(case.ranges()) {
            prop_assert_eq!((packet.offload.unit, packet.len()), (Unit::Whole(Csum::Partial), packet.layout.end()));
            prop_assert_eq!(packet.payload.len(), ranges.len());
        }
        let finished: Vec<_> =
            early.iter().flat_map(|packet| split_both(packet, &Limits::NONE).unwrap().0).map(|out| out.bytes).collect();
        let late: Vec<_> = late.into_iter().map(|out| out.bytes).collect();
        prop_assert!(finished == late);
    }
}

#[test]
fn what_is_no_train_is_refused_and_nothing_is_handed_on() {
    let case = Case::new(inner(v4(0, 1), true, 100), 50);
    let mut packet = case.train();
    packet.offload.unit = Unit::Whole(Csum::Partial);
    let refused = cut(&packet, &mut Arena::new(), &mut Pool::new(1), |_, _| panic!("handed on"));
    assert_eq!(refused, Err(Refusal::Train));
}

/// Tests that of the outer checksums only the outermost UDP checksum, and one that the far end completes, stay owed.
#[test]
fn the_outer_checksums_of_the_packets_of_a_train_are_done_but_for_the_outermost() {
    use LayerCsum::{Absent, Done, Owed};
    let gre = |checksum| Some(Gre { checksum, key: None, seq: None });
    let udp = |net, shim, gre, checksum| over_udp(v4(net, 1), shim, gre, checksum, true);
    let layer = |udp, gre, remote| Layer { udp, gre, remote };
    for (tunnels, expected) in [
        (vec![udp(0, Shim::Fou, gre(false), false)], vec![layer(Absent, Absent, None)]),
        (vec![udp(0, Shim::Fou, gre(true), true)], vec![layer(Owed, Done, None)]),
        (vec![udp(0, Shim::Gue(Some(Remcsum::Gre)), gre(true), true)], vec![layer(Owed, Owed, Some(Remote::Gre))]),
        (
            vec![udp(0, Shim::Gue(None), None, true), udp(2, Shim::Fou, gre(true), true)],
            vec![layer(Owed, Absent, None), layer(Done, Done, None)],
        ),
    ] {
        let train = Case { tunnels, ..Case::new(inner(v4(1, 1), true, 500), 100) }.train();
        let (mut pool, mut states) = (Pool::new(8), Vec::new());
        cut(&train, &mut Arena::new(), &mut pool, |packet, _| states.push(packet.offload.layers().to_vec())).unwrap();
        assert_eq!(states, vec![expected; 5]);
    }
}
