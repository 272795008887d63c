//! Tests of joining TCP, and of the headers of TCP trains.

use segue::checksum::Sum;
use segue::gro::Flush;
use segue::packet::{Csum, Gso, GsoKind, TrainCsum, Unit};
use segue::wire::{read_u16, read_u32};
use segue_testkit::build::{L4, Tcp, prime};
use segue_testkit::flow::Sender;
use segue_testkit::sum;

use crate::bench::{Stream, run, tcp4, tcp6, v4, v6};

#[test]
fn data_in_sequence_joins() {
    for mut sender in [tcp4(), tcp6()] {
        let outcome = Stream::new(run(&mut sender, 10)).joins();
        outcome.counts(&[], &[(Flush::PollEnd, 1)], &[]);
        assert_eq!((outcome.stats.trains, outcome.stats.segments, outcome.stats.packets), (1, 10, 10));
    }
}

#[test]
fn the_header_of_a_train_is_that_of_the_whole() {
    let mut sender = tcp4();
    let outcome = Stream::new([sender.send(100, 0).bytes(), sender.send(50, 0x08).bytes()]).joins();
    let train = &outcome.trains[0];
    let head = train.head.bytes();
    assert_eq!(read_u16(head, 2), Some(190), "total length");
    assert_eq!(sum::fold(&head[..20]), 0xffff, "header checksum");
    assert_eq!(read_u32(head, 24), Some(1000), "sequence number of the first");
    assert_eq!(head[33], 0x18, "PSH of the last");
    let primed = sum::fold(&sum::pseudo(&head[12..16], &head[16..20], 6, 170));
    assert_eq!(read_u16(head, 36), Some(primed), "pseudo-header sum of the whole");
    let gso = Gso { kind: GsoKind::Tcp, size: 100, fixed_ids: 0 };
    assert_eq!(train.offload.unit, Unit::Train { csum: TrainCsum::Stale, gso });
    assert_eq!(train.payload.len(), 150);
}

#[test]
fn the_header_of_an_ipv6_train_is_that_of_the_whole() {
    let outcome = Stream::new(run(&mut tcp6(), 3)).joins();
    let head = outcome.trains[0].head.bytes();
    assert_eq!(read_u16(head, 4), Some(320), "payload length");
    let primed = sum::fold(&sum::pseudo(&head[8..24], &head[24..40], 6, 320));
    assert_eq!(read_u16(head, 56), Some(primed));
}

#[test]
fn payload_is_moved_and_never_copied() {
    let packets = run(&mut tcp4(), 3);
    let outcome = Stream::new(packets.clone()).joins();
    let payload = &outcome.trains[0].payload;
    assert_eq!(payload.frags().len(), 3);
    assert!(payload.frags().iter().zip(&packets).all(|(frag, packet)| frag.bytes() == &packet[40..]));
}

#[test]
fn the_sequence_number_wraps() {
    Stream::new(run(&mut Sender::tcp(v4(), 1, u32::MAX - 149, Vec::new()), 4)).joins();
}

#[test]
fn one_byte_segments_join() {
    let mut sender = tcp4();
    Stream::new((0..20).map(|_| sender.send(1, 0).bytes())).joins();
}

#[test]
fn odd_sizes_join() {
    let mut sender = tcp6();
    Stream::new([101, 101, 101, 33].map(|len| sender.send(len, 0).bytes())).joins();
}

#[test]
fn equal_timestamps_join() {
    Stream::new(run(&mut Sender::tcp(v6(), 1, 1, Tcp::timestamps(5, 6)), 4)).joins();
}

#[test]
fn options_of_every_length_join_if_they_are_equal() {
    for words in 0..=10 {
        Stream::new(run(&mut Sender::tcp(v4(), 1, 1, vec![1; words * 4]), 3)).joins();
    }
}

#[test]
fn selective_acknowledgments_join_if_they_are_equal() {
    let sack = [&[1, 1, 5, 10][..], &[7; 8]].concat();
    Stream::new(run(&mut Sender::tcp(v4(), 1, 1, sack), 3)).joins();
}

#[test]
fn psh_and_fin_of_the_last_are_kept_by_the_train() {
    for flags in [0x08, 0x01, 0x09] {
        let mut sender = tcp4();
        let outcome = Stream::new([0, 0, flags].map(|flags| sender.send(100, flags).bytes())).joins();
        assert_eq!(outcome.trains[0].head.bytes()[33], 0x10 | flags);
    }
}

#[test]
fn cwr_on_the_first_segment_joins() {
    let mut sender = tcp4();
    let outcome = Stream::new([0x80, 0, 0].map(|flags| sender.send(100, flags).bytes())).joins();
    assert_eq!(outcome.trains[0].head.bytes()[33], 0x90);
}

#[test]
fn ece_on_every_segment_joins() {
    let mut sender = tcp6();
    Stream::new([0x40, 0x40, 0x40].map(|flags| sender.send(100, flags).bytes())).joins();
}

#[test]
fn an_equal_urgent_pointer_joins() {
    let mut sender = tcp4();
    if let L4::Tcp(tcp) = &mut sender.next.l4 {
        tcp.urgent = 7;
    }
    Stream::new(run(&mut sender, 3)).joins();
}

#[test]
fn two_flows_that_take_turns_are_two_trains() {
    let (mut one, mut two) = (tcp4(), Sender::tcp(v4(), 2, 9, Vec::new()));
    let packets = (0..5).flat_map(|_| [one.send(100, 0).bytes(), two.send(100, 0).bytes()]);
    Stream::new(packets.collect::<Vec<_>>()).gives(&[5, 5]);
}

#[test]
fn an_acknowledgment_between_data_parts_the_train_and_keeps_its_place() {
    let mut sender = tcp4();
    let stream = Stream::new([100, 100, 0, 100, 100].map(|len| sender.send(len, 0).bytes()));
    stream.gives(&[2, 1, 2]);
    let (_, left) = stream.run_unchecked();
    assert!(left.iter().eq(stream.packets.iter().map(|(bytes, _)| bytes)));
}

#[test]
fn a_single_packet_is_not_summed() {
    let outcome = Stream::new(run(&mut tcp4(), 1)).gives(&[1]);
    assert_eq!(outcome.stats.checksummed_bytes, 0);
    assert_eq!(outcome.trains[0].offload.unit, Unit::Whole(Csum::Unknown));
}

#[test]
fn every_byte_of_a_train_is_summed_once() {
    assert_eq!(Stream::new(run(&mut tcp4(), 5)).joins().stats.checksummed_bytes, 500);
}

#[test]
fn a_verified_checksum_is_not_verified_again() {
    let stream = (0..3).fold(Stream::new(run(&mut tcp4(), 3)), |s, i| s.unit(i, Unit::Whole(Csum::Verified)));
    assert_eq!(stream.joins().stats.checksummed_bytes, 0);
}

#[test]
fn a_known_sum_verifies_without_touching_payload() {
    let packets = run(&mut tcp6(), 3);
    let complete = |packet: &[u8]| Unit::Whole(Csum::Complete(Sum::of(packet)));
    let units: Vec<_> = packets.iter().map(|packet| complete(packet)).collect();
    let stream = units.into_iter().enumerate().fold(Stream::new(packets.clone()), |s, (i, unit)| s.unit(i, unit));
    assert_eq!(stream.joins().stats.checksummed_bytes, 0);
    // A sum that does not fit the checksum keeps the packet alone.
    let wrong = stream.unit(1, complete(b"x"));
    assert_eq!(wrong.gives(&[1, 1, 1]).stats.alone.of(segue::gro::RefusalReason::BadChecksum), 1);
}

#[test]
fn pending_checksums_join_and_stay_pending() {
    let primed: Vec<_> = run(&mut tcp4(), 3).iter().map(|packet| prime(packet).unwrap()).collect();
    let stream = (0..3).fold(Stream::new(primed), |s, i| s.unit(i, Unit::Whole(Csum::Partial)));
    let outcome = stream.joins();
    assert!(matches!(outcome.trains[0].offload.unit, Unit::Train { csum: TrainCsum::Partial, .. }));
    assert_eq!(outcome.stats.checksummed_bytes, 0);
}

#[test]
fn what_is_joined_is_what_was_sent() {
    // The bytes themselves, built by code that shares nothing with the engine.
    let mut sender = Sender::tcp(v4(), 1, u32::MAX - 99, Tcp::timestamps(1, 2));
    let stream = Stream::new([700, 700, 700, 3].map(|len| sender.send(len, 0).bytes()));
    stream.joins();
    let (_, left) = stream.run_unchecked();
    assert!(left.iter().eq(stream.packets.iter().map(|(bytes, _)| bytes)));
}
