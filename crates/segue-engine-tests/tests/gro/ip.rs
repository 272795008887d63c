//! Tests of joining by IP and link headers.

use segue::gro::{Flush, Mismatch};
use segue::packet::Unit;
use segue_testkit::build::{Ethernet, Ip, V4};
use segue_testkit::flow::{Ids, Sender};

use crate::bench::{Stream, every, frames, run, tcp4, v6};

#[test]
fn everything_joins_over_both_versions() {
    for mut sender in every() {
        Stream::new(run(&mut sender, 4)).joins();
    }
}

#[test]
fn equal_fields_of_any_value_join() {
    let mut ip = V4 { tos: 0xb9, id: 7, df: false, ttl: 3, ..V4::new(1, 1, 2) };
    Stream::new(run(&mut Sender::tcp(Ip::V4(ip.clone()), 1, 1, Vec::new()), 3)).joins();
    ip.tos = 0x03;
    Stream::new(run(&mut Sender::udp(Ip::V4(ip), 1), 3)).joins();
    let mut ip = v6();
    if let Ip::V6(ip) = &mut ip {
        (ip.class, ip.label, ip.hop_limit) = (0xb9, 0xf_1234, 2);
    }
    Stream::new(run(&mut Sender::udp(ip, 1), 3)).joins();
}

#[test]
fn counting_identifications_join_and_wrap() {
    let stream = |id| Stream::new(run(&mut Sender::tcp(Ip::V4(V4 { id, ..V4::new(1, 1, 2) }), 1, 1, Vec::new()), 4));
    for id in [0, 0xfffe, 0xffff] {
        assert_eq!(fixed_ids(&stream(id)), 0);
    }
}

#[test]
fn fixed_identifications_join_with_and_without_df() {
    for (id, df) in [(0, true), (77, true), (0, false), (0xffff, false)] {
        let mut sender = Sender::tcp(Ip::V4(V4 { id, df, ..V4::new(1, 1, 2) }), 1, 1, Vec::new());
        sender.ids = Ids::Fixed;
        assert_eq!(fixed_ids(&Stream::new(run(&mut sender, 4))), 1);
    }
}

#[test]
fn the_second_packet_decides_how_identifications_go_on() {
    // 5, 5, 6: constant, then counting. 5, 6, 6: counting, then constant.
    for (ids, sizes) in [([5, 5, 6], [2, 1]), ([5, 6, 6], [2, 1]), ([5, 6, 8], [2, 1])] {
        let mut sender = tcp4();
        let packets = ids.map(|id| {
            if let Ip::V4(ip) = &mut sender.next.ip {
                ip.id = id;
            }
            sender.send(100, 0).bytes()
        });
        let outcome = Stream::new(packets).gives(&sizes);
        outcome.counts(&[], &[(Flush::Mismatch, 1), (Flush::PollEnd, 1)], &[(Mismatch::IpId, 1)]);
    }
}

#[test]
fn equal_extension_headers_join() {
    let mut ip = v6();
    if let Ip::V6(ip) = &mut ip {
        ip.extensions = vec![(0, vec![1, 4, 0, 0, 0, 0]), (60, vec![1, 4, 9, 9, 9, 9])];
    }
    Stream::new(run(&mut Sender::tcp(ip, 1, 1, Vec::new()), 3)).joins();
}

#[test]
fn a_routing_header_that_has_arrived_joins() {
    let mut ip = v6();
    if let Ip::V6(ip) = &mut ip {
        ip.extensions = vec![(43, vec![4, 0, 0, 0, 0, 0])];
    }
    Stream::new(run(&mut Sender::tcp(ip, 1, 1, Vec::new()), 3)).joins();
}

#[test]
fn frames_join_with_no_one_and_two_vlan_tags() {
    for tags in [vec![], vec![(0x8100, 0xa005)], vec![(0x88a8, 3), (0x8100, 0x0fff)]] {
        let link = Ethernet { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], tags };
        for mut sender in every() {
            Stream::new(frames(&link, run(&mut sender, 4))).ethernet().joins();
        }
    }
}

#[test]
fn many_vlan_tags_are_passed_on() {
    for count in 3..300 {
        let link = Ethernet { tags: vec![(0x8100, 5); count], ..Ethernet::default() };
        Stream::new(frames(&link, run(&mut tcp4(), 2))).ethernet().gives(&[1, 1]);
    }
}

#[test]
fn every_cut_of_a_frame_is_passed_on() {
    for sender in every() {
        let whole = sender.clone().send(100, 0).bytes();
        for len in 0..whole.len() {
            let cut = whole[..len].to_vec();
            Stream::new([cut.clone(), whole.clone(), cut]).gives(&[1, 1, 1]);
        }
    }
}

#[test]
fn padding_is_not_payload() {
    let mut sender = tcp4();
    let mut stream = Stream::new(frames(&Ethernet::default(), [100, 100, 1].map(|len| sender.send(len, 0).bytes())));
    stream = stream.ethernet();
    stream.packets[2].0.extend([0xaa; 5]);
    let (outcome, left) = stream.run_unchecked();
    assert_eq!(outcome.sizes, [2, 1]);
    assert!(left.iter().eq(stream.packets.iter().map(|(bytes, _)| bytes)), "padding is given back");
}

/// Asserts that all packets join, and returns the levels with constant identifications.
fn fixed_ids(stream: &Stream) -> u16 {
    let Unit::Train { gso, .. } = stream.joins().trains[0].offload.unit else { panic!("a train") };
    gso.fixed_ids
}
