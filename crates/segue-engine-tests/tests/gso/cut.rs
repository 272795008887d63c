//! Tests that cutting early gives the same packets as splitting for the port.

use proptest::prelude::*;
use segue::gso::{Arena, Limits, Refusal, cut};
use segue::packet::{Csum, Pool, Unit};

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
