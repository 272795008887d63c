//! Tests of trains over 64 KiB, for ports that take them.

use segue::gro::{MAX_TRAIN_BYTES, Profile};
use segue::packet::{Start, Tunnels, Unit};
use segue::wire::{parse, read_u16};
use segue_testkit::build::{Shim, Tcp};
use segue_testkit::flow::Sender;
use segue_testkit::sum;

use crate::bench::{Stream, tcp4, tcp6, tunnel, v4, v6, wrap};

fn data(sender: &mut Sender, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| sender.send(1448, 0).bytes()).collect()
}

#[test]
fn a_tcp_train_may_be_longer_than_its_length_field_can_say() {
    for (mut sender, length_at) in [(tcp4(), 2), (tcp6(), 4)] {
        for profile in [Profile::Strict, Profile::linux(), Profile::Lro] {
            let packets = data(&mut sender, 300);
            let stream = Stream::new(packets.clone()).profile(profile).config(|config| config.max_bytes = usize::MAX);
            // Every packet is restored, which `joins` checks.
            let outcome = stream.joins();
            let train = &outcome.trains[0];
            assert!(train.len() > 400_000 && train.len() <= MAX_TRAIN_BYTES);
            let head = train.head.bytes();
            assert_eq!(read_u16(head, length_at), Some(0));
            let whole = [head, &train.payload.pieces(0..usize::MAX).collect::<Vec<_>>().concat()].concat();
            let layout = parse(&whole, Start::Ip, &Tunnels::NONE);
            assert!(layout.is_exact() && layout.end() == whole.len() && layout.transport().is_some());
            if length_at == 2 {
                assert_eq!(sum::fold(&head[..20]), 0xffff, "the header checksum is right");
            }
        }
    }
}

#[test]
fn the_length_stands_there_while_it_fits() {
    let mut sender = tcp4();
    let stream = Stream::new(data(&mut sender, 45)).config(|config| config.max_bytes = MAX_TRAIN_BYTES);
    assert_eq!(read_u16(stream.joins().trains[0].head.bytes(), 2), Some((40 + 45 * 1448) as u16));
}

#[test]
fn the_longest_train_is_eight_times_an_ip_packet() {
    let outcome = Stream::new(data(&mut tcp6(), 400)).config(|config| config.max_bytes = usize::MAX).run();
    assert!(outcome.trains.len() == 2 && outcome.trains[0].len() <= MAX_TRAIN_BYTES);
    assert!(outcome.trains[0].len() + 1448 > MAX_TRAIN_BYTES);
}

#[test]
fn trains_of_the_usual_limit_are_no_longer_than_an_ip_packet() {
    for mut sender in [Sender::tcp(v4(), 1, 1, Vec::new()), Sender::tcp(v6(), 1, 1, Tcp::timestamps(1, 2))] {
        let outcome = Stream::new(data(&mut sender, 90)).run();
        assert!(outcome.trains.iter().all(|train| train.len() <= 65_535));
        assert_eq!(outcome.sizes, [45, 45]);
    }
}

#[test]
fn datagrams_tunnels_and_extension_headers_stay_under_64_kib() {
    let most = |stream: Stream| {
        let outcome = stream.config(|c| (c.max_bytes, c.max_udp_packets) = (usize::MAX, 1000)).run();
        assert!(outcome.trains[0].len() > 60_000 && matches!(outcome.trains[0].offload.unit, Unit::Train { .. }));
        assert!(outcome.trains.iter().all(|train| train.len() <= 65_535));
    };
    let mut udp = Sender::udp(v4(), 1);
    most(Stream::new(data(&mut udp, 90)));
    let around = tunnel(v4(), Shim::Gue(None), None, &v4());
    most(Stream::new(wrap(&around, data(&mut tcp4(), 90))));
    let mut ip = v6();
    if let segue_testkit::build::Ip::V6(ip) = &mut ip {
        ip.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
    }
    most(Stream::new(data(&mut Sender::tcp(ip, 1, 1, Vec::new()), 90)));
}

#[test]
fn a_length_of_zero_in_a_short_packet_is_malformed() {
    for (mut sender, at) in [(tcp4(), 2), (tcp6(), 4)] {
        let mut packet = sender.send(1448, 0).bytes();
        packet[at..at + 2].fill(0);
        assert!(parse(&packet, Start::Ip, &Tunnels::NONE).transport().is_none());
        // The same if no TCP follows, however long it is.
        packet.resize(70_000, 0);
        packet[if at == 2 { 9 } else { 6 }] = 17;
        assert!(parse(&packet, Start::Ip, &Tunnels::NONE).transport().is_none());
    }
}
