//! Tests of packets and trains that segmentation refuses, and the reasons.

use segue::gso::{Arena, Frames, Limits, MAX_SEGS, Refusal, finish, split, split_linear};
use segue::packet::{
    Csum, Frag, Gso, GsoKind, Layer, LayerCsum, Layout, Offload, Packet, Remote, Start, Stop, TrainCsum, Tunnels, Unit,
};
use segue::wire::tcp;
use segue_testkit::build::{self, Gre, Ip, L4, Shim};

use crate::case::*;
use crate::single::wire;

fn refusal(change: impl FnOnce(&mut Packet<Vec<u8>>)) -> Refusal {
    let mut train = Case::new(inner(v4(1, 1), true, 3000), 1000).train();
    train.head.bytes_mut()[20 + tcp::FLAGS] = tcp::ACK;
    change(&mut train);
    // Nothing that was in the arena is lost, and nothing is added.
    let (mut arena, mut frames) = (Arena::new(), Frames::new());
    let good = Case::new(inner(v6(1), true, 3000), 1000).train();
    split(&good, &Limits::NONE, &mut arena).unwrap();
    split_linear(&good, &Limits::NONE, &mut frames).unwrap();
    let before: Vec<_> = arena.segments().iter().map(|s| arena.head(s).to_vec()).collect();
    let reason = split(&train, &Limits::NONE, &mut arena).unwrap_err();
    assert_eq!(split_linear(&train, &Limits::NONE, &mut frames), Err(reason));
    let after: Vec<_> = arena.segments().iter().map(|s| arena.head(s).to_vec()).collect();
    assert_eq!((before, frames.frames().len()), (after, 3));
    assert_eq!(split(&good, &Limits::NONE, &mut arena), Ok(3));
    assert_eq!(arena.head(&arena.segments()[3]), arena.head(&arena.segments()[0]));
    assert_eq!(arena.segments()[3].head.start, arena.segments()[2].head.end, "no bytes are left of the attempt");
    reason
}

fn set_gso(packet: &mut Packet<Vec<u8>>, kind: GsoKind, size: u16) {
    let gso = Gso { kind, size, fixed_ids: 0 };
    packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
}

#[test]
fn a_train_of_empty_segments_is_refused() {
    assert_eq!(refusal(|p| set_gso(p, GsoKind::Tcp, 0)), Refusal::Size);
}

#[test]
fn a_train_of_the_other_transport_is_refused() {
    assert_eq!(refusal(|p| set_gso(p, GsoKind::Udp, 1000)), Refusal::Kind);
}

#[test]
fn syn_and_rst_in_a_train_are_refused() {
    for flag in [tcp::SYN, tcp::RST] {
        assert_eq!(refusal(|p| p.head.bytes_mut()[20 + tcp::FLAGS] |= flag), Refusal::SynRst);
    }
}

#[test]
fn a_train_of_too_many_segments_is_refused() {
    let long = |p: &mut Packet<Vec<u8>>, len| {
        p.payload.clear();
        p.payload.push(Frag::all(vec![0; len]));
        set_gso(p, GsoKind::Tcp, 8);
    };
    assert_eq!(refusal(|p| long(p, 8 * MAX_SEGS + 1)), Refusal::Segments);
    let mut most = Case::new(inner(v4(1, 1), true, 100), 8).train();
    long(&mut most, 8 * MAX_SEGS);
    assert_eq!(split(&most, &Limits::NONE, &mut Arena::new()), Ok(MAX_SEGS));
}

#[test]
fn a_segment_that_no_length_field_can_say_is_refused() {
    let long = |size| {
        move |p: &mut Packet<Vec<u8>>| {
            p.payload.clear();
            p.payload.push(Frag::all(vec![0; 150_000]));
            set_gso(p, GsoKind::Tcp, size);
        }
    };
    assert_eq!(refusal(long(65_535 - 52 + 1)), Refusal::Length);
    let mut fits = Case::new(inner(v4(1, 1), true, 100), 8).train();
    long(65_535 - 52)(&mut fits);
    let out = split_both(&fits, &Limits::NONE).unwrap().0;
    assert_eq!(out.iter().map(|o| o.bytes.len()).collect::<Vec<_>>(), [65_535, 65_535, 52 + 150_000 - 2 * 65_483]);
}

#[test]
fn a_train_without_a_transport_header_or_in_a_fragment_is_refused() {
    let icmp = build::Packet { ip: v4(1, 1), l4: L4::Icmp(8, 0, [0; 4]), data: vec![0; 50] };
    let mut fragment = inner(v4(1, 1), true, 50);
    if let Ip::V4(ip) = &mut fragment.ip {
        ip.fragment = Some((0, true));
    }
    for (bytes, reason) in [(icmp.bytes(), Refusal::Transport), (fragment.bytes(), Refusal::Fragment)] {
        let load_it = |p: &mut Packet<Vec<u8>>| p.load(Frag::all(bytes.clone()), Start::Ip, &Tunnels::NONE);
        assert_eq!(
            refusal(|p| {
                load_it(p);
                set_gso(p, GsoKind::Tcp, 10);
            }),
            reason
        );
        assert_eq!(
            refusal(|p| {
                load_it(p);
                p.offload.unit = Unit::Whole(Csum::Partial);
            }),
            reason
        );
    }
}

#[test]
fn checksum_states_that_do_not_fit_the_headers_are_refused() {
    // A level that does not exist.
    assert_eq!(refusal(|p| assert!(p.offload.push_outer(Layer::NONE))), Refusal::Levels);
    for unit in [Unit::Whole(Csum::Unknown), Unit::Whole(Csum::Partial)] {
        let owed = Layer { udp: LayerCsum::Owed, ..Layer::NONE };
        assert_eq!(
            refusal(|p| {
                p.offload = Offload::plain(unit);
                assert!(p.offload.push_outer(owed));
            }),
            Refusal::Levels
        );
    }
    // A level without the field for the checksum that it owes.
    for layer in [Layer { gre: LayerCsum::Owed, ..Layer::NONE }, Layer { remote: Some(Remote::Gre), ..Layer::NONE }] {
        assert_eq!(
            refusal(|p| {
                let case = Case::new(inner(v4(1, 1), true, 3000), 1000);
                *p = case.within(over_udp(v4(0, 1), Shim::Fou, Some(Gre::default()), false, true)).train();
                p.offload.layers_mut()[0] = layer;
            }),
            Refusal::Levels
        );
    }
}

#[test]
fn a_layout_that_does_not_fit_the_head_is_refused() {
    assert_eq!(refusal(|p| p.head.pull_front(1)), Refusal::Layout);
    assert_eq!(refusal(|p| p.layout = Layout::empty(Stop::Transport)), Refusal::Transport);
}

#[test]
fn a_routing_header_that_has_not_arrived_is_refused() {
    let mut packet = inner(v6(1), true, 3000);
    if let Ip::V6(ip) = &mut packet.ip {
        ip.extensions = vec![(0, vec![1, 4, 0, 0, 0, 0]), (43, vec![4, 0, 0, 0, 0, 0])];
    }
    check_case(&Case::new(packet.clone(), 1000), &Limits::NONE);
    if let Ip::V6(ip) = &mut packet.ip {
        ip.extensions[1].1[1] = 1;
    }
    assert_eq!(refusal(|p| *p = Case::new(packet, 1000).train()), Refusal::Routing);
}

#[test]
fn a_source_route_that_has_not_arrived_is_refused_and_so_is_a_home_address() {
    let mut packet = inner(v4(1, 1), true, 3000);
    let route = |pointer| vec![1, 137, 11, pointer, 198, 18, 0, 9, 198, 18, 0, 7];
    for (pointer, arrived) in [(12, true), (8, false), (4, false)] {
        if let Ip::V4(ip) = &mut packet.ip {
            ip.options = route(pointer);
        }
        let case = Case::new(packet.clone(), 1000);
        if arrived {
            check_case(&case, &Limits::NONE);
        } else {
            assert_eq!(refusal(|p| *p = case.train()), Refusal::Routing);
        }
    }
    let mut packet = inner(v6(1), true, 3000);
    for (kind, is_home) in [(0x1e, false), (0xc9, true)] {
        if let Ip::V6(ip) = &mut packet.ip {
            ip.extensions = vec![(60, [&[1, 2, 0, 0, kind, 16][..], &[7; 16]].concat())];
        }
        let case = Case::new(packet.clone(), 1000);
        if is_home {
            assert_eq!(refusal(|p| *p = case.train()), Refusal::Routing);
        } else {
            check_case(&case, &Limits::NONE);
        }
    }
}

#[test]
fn an_outer_checksum_under_a_source_route_is_not_written() {
    let inside = inner(v4(1, 1), true, 300).bytes();
    let udp = build::Udp { src_port: 50_001, dst_port: 6080, checksum: true };
    for (pointer, arrived) in [(8, true), (4, false)] {
        let mut ip = build::V4::new(9, 1, 2);
        ip.options = vec![131, 7, pointer, 198, 18, 0, 9, 0];
        let tunnel = build::Tunnel { ip: Ip::V4(ip), udp: Some((udp, Shim::Gue(None))), gre: None, ethernet: None };
        let whole = tunnel.wrap(&inside);
        let mut packet = crate::single::primed(&whole, &[tunnel]);
        let before = wire(&packet);
        let finished = finish(&mut packet).map(drop);
        assert_eq!(finished, if arrived { Ok(()) } else { Err(Refusal::Routing) });
        assert!(wire(&packet) == if arrived { whole } else { before });
    }
}

#[test]
fn only_single_packets_are_finished() {
    let mut train = Case::new(inner(v4(1, 1), true, 3000), 1000).train();
    let before = wire(&train);
    assert_eq!(finish(&mut train), Err(Refusal::Train));
    assert_eq!(wire(&train), before);
}
