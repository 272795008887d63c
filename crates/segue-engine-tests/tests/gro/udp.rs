//! Tests of joining UDP.

use segue::gro::Flush;
use segue::packet::{GsoKind, Unit};
use segue::wire::read_u16;
use segue_testkit::sum;

use crate::bench::{Stream, run, udp4, udp6};

#[test]
fn datagrams_of_equal_size_join() {
    for mut sender in [udp4(), udp6()] {
        Stream::new(run(&mut sender, 9)).joins().counts(&[], &[(Flush::PollEnd, 1)], &[]);
    }
}

#[test]
fn the_header_of_a_train_is_that_of_the_whole() {
    let outcome = Stream::new(run(&mut udp4(), 3)).joins();
    let head = outcome.trains[0].head.bytes();
    assert_eq!((read_u16(head, 2), read_u16(head, 24)), (Some(328), Some(308)));
    let primed = sum::fold(&sum::pseudo(&head[12..16], &head[16..20], 17, 308));
    assert_eq!(read_u16(head, 26), Some(primed));
    let Unit::Train { gso, .. } = outcome.trains[0].offload.unit else { panic!("a train") };
    assert_eq!((gso.kind, gso.size), (GsoKind::Udp, 100));
}

#[test]
fn a_shorter_datagram_is_the_last() {
    let mut sender = udp6();
    Stream::new([100, 100, 30].map(|len| sender.send(len, 0).bytes())).joins();
}

#[test]
fn one_byte_datagrams_join() {
    let mut sender = udp4();
    Stream::new([1, 1, 1].map(|len| sender.send(len, 0).bytes())).joins();
}

#[test]
fn sixty_four_datagrams_are_one_train() {
    Stream::new(run(&mut udp4(), 64)).joins();
}

#[test]
fn a_checksum_of_all_ones_is_restored() {
    // The only valid representation of a computed zero (RFC 768), which splitting writes again.
    let mut packets = run(&mut udp4(), 3);
    for packet in &mut packets {
        packet[26..28].fill(0);
        packet[40..42].fill(0);
        let rest = !sum::with_pseudo(&packet[12..16], &packet[16..20], 17, &packet[20..]);
        packet[40..42].copy_from_slice(&rest.to_be_bytes());
        packet[26..28].fill(0xff);
    }
    let stream = Stream::new(packets.clone());
    stream.joins();
    assert_eq!(stream.run_unchecked().1, packets);
}
