//! Tests of both paths where acknowledgments are swallowed.

use segue_testkit::Rng;

use super::*;
use crate::gro::tunnel_shapes::image;

/// Tests that a first segment takes the fast path also where acknowledgments are swallowed, except with FIN: whether
/// that ends its connection depends on its checksum.
#[test]
fn a_first_segment_is_parsed_only_if_it_may_end_a_connection_whose_acknowledgments_are_known() {
    for (shape, acks) in shapes().flat_map(|shape| [false, true].map(|acks| (shape, acks))) {
        for (flags, is_parsed) in [(0x10, false), (0x18, false), (0x11, acks && shape.is_tcp)] {
            let mut gro = Gro::new(Config { profile: Profile::Lro, acks, ..Config::default() });
            // Every byte of payload has the bit of FIN, which counts for nothing in UDP.
            let bytes = shape.frame(1, Csum::Unknown, |plan| tcp(plan, |tcp| tcp.flags = flags));
            let (parsed, _) = push(&mut gro, shape.start(), Csum::Unknown, slice::from_ref(&bytes));
            assert_eq!(parsed, usize::from(is_parsed), "{shape:?} {acks} {flags:#x}");
        }
    }
}

/// Tests that data, FIN and acknowledgments of a flow in any order, with right and wrong checksums, leave alike on both
/// paths where acknowledgments are swallowed: what ends a connection ends what is known of its acknowledgments.
#[test]
fn the_end_of_a_connection_ends_what_is_known_of_its_acknowledgments_on_both_paths() {
    let shapes: Vec<Shape> = shapes().filter(|shape| shape.is_tcp).collect();
    let mut rng = Rng::new(1);
    for round in 0..4000 {
        let (shape, csum) = (shapes[rng.below(shapes.len())], [Csum::Unknown, Csum::Verified][rng.below(2)]);
        let mut seq = 0;
        let mut frame = |number| {
            let (flags, ack) = ([0x10, 0x10, 0x11, 0x18][rng.below(4)], 1 + rng.below(4) as u32);
            let payload = [0, 0, SIZE][rng.below(3)];
            let mut bytes = shape.frame(number, csum, |plan| {
                plan.len = payload;
                tcp(plan, |tcp| (tcp.flags, tcp.ack, tcp.seq) = (flags, ack, seq));
            });
            seq += payload as u32;
            if rng.chance(200) {
                *bytes.last_mut().unwrap() ^= 1;
            }
            bytes
        };
        let frames: Vec<_> = (0..8).map(&mut frame).collect();
        let config = Config { profile: Profile::Lro, acks: true, ..Config::default() };
        let [fast, slow] = [Gro::new(config), Gro::slow_path_only(config)].map(|mut gro| {
            push(&mut gro, shape.start(), csum, &frames);
            gro.flush();
            let left: Vec<_> = core::iter::from_fn(|| gro.pop()).map(|packet| image(&packet)).collect();
            (left, format!("{:?}", gro.stats()))
        });
        assert_eq!(fast, slow, "{round}: {shape:?} {csum:?}");
    }
}
