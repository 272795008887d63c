//! Tests of data packets in profile `lro`: some that join only there, and some that must not join although old
//! receivers joined them.

use segue::gro::{Flush, Mismatch, Profile, RefusalReason};
use segue::packet::Unit;
use segue::wire::{read_u16, read_u32};
use segue_testkit::build::{Ip, L4, Tcp, V4};
use segue_testkit::flow::{Ids, Sender};
use segue_testkit::oracle::{Ports, Start, verify};

use crate::bench::{Outcome, Stream, every, run, tcp4, tcp6, then, udp4, v4};

/// Returns data packets to which `change` is applied one after the other.
fn changing(mut sender: Sender, changes: &[fn(&mut Tcp)]) -> Stream {
    let packets = changes.iter().map(|change| {
        if let L4::Tcp(tcp) = &mut sender.next.l4 {
            change(tcp);
        }
        sender.send(100, 0).bytes()
    });
    Stream::new(packets.collect::<Vec<_>>()).profile(Profile::Lro)
}

/// Asserts that all packets become one train with correct segments and the original payload.
fn one(stream: &Stream) -> Outcome {
    let (outcome, left) = stream.run_unchecked();
    assert_eq!(
        (outcome.trains.len(), outcome.stats.segments as usize),
        (1, stream.packets.len()),
        "{:?}",
        outcome.stats
    );
    for segment in &left {
        verify(segment, Start::Ip, &Ports::default()).unwrap();
    }
    let head = outcome.trains[0].head.len();
    let payload = |packets: &[Vec<u8>]| packets.iter().flat_map(|packet| packet[head..].to_vec()).collect::<Vec<_>>();
    let came: Vec<_> = stream.packets.iter().map(|(bytes, _)| bytes.clone()).collect();
    assert_eq!(payload(&left), payload(&came));
    outcome
}

#[test]
fn everything_that_is_restored_joins() {
    for mut sender in every() {
        Stream::new(run(&mut sender, 4)).profile(Profile::Lro).joins();
    }
}

#[test]
fn the_newest_acknowledgment_and_window_stand_in_the_header() {
    for (sender, at) in [(tcp4(), 20), (tcp6(), 40)] {
        let steps: [fn(&mut Tcp); 3] = [
            |_| {},
            |tcp| (tcp.ack, tcp.window) = (tcp.ack + 5, 900),
            |tcp| (tcp.ack, tcp.window) = (tcp.ack + 7, 300),
        ];
        let outcome = one(&changing(sender, &steps));
        let head = outcome.trains[0].head.bytes();
        assert_eq!((read_u32(head, at + 4), read_u32(head, at + 8)), (Some(1000), Some(0x0102_0304 + 12)));
        assert_eq!(read_u16(head, at + 14), Some(300));
    }
}

#[test]
fn the_first_timestamp_and_the_newest_echo_stand_in_the_header() {
    let steps: [fn(&mut Tcp); 3] = [
        |_| {},
        |tcp| tcp.options = Tcp::timestamps(1, 0x8000_0001),
        |tcp| tcp.options = Tcp::timestamps(9, 0x8000_0009),
    ];
    let sender = Sender::tcp(v4(), 1, 1, Tcp::timestamps(u32::MAX, 0x7fff_ffff));
    let outcome = one(&changing(sender, &steps));
    let head = outcome.trains[0].head.bytes();
    assert_eq!((read_u32(head, 44), read_u32(head, 48)), (Some(u32::MAX), Some(0x8000_0009)));
}

#[test]
fn an_acknowledgment_number_that_goes_back_starts_anew() {
    let stream = changing(tcp4(), &[|_| {}, |tcp| tcp.ack -= 1]);
    assert_eq!(stream.gives(&[1, 1]).stats.mismatches.of(Mismatch::AckNumber), 1);
}

#[test]
fn timestamps_that_go_back_start_anew() {
    let stamps = |value, echo| Tcp::timestamps(value, echo);
    // The third is older than the second, though not than the first.
    let steps: [(u32, u32); 6] = [(9, 9), (8, 9), (9, 8), (10, 0), (12, 12), (11, 12)];
    let pairs = [(0, 1), (0, 2), (0, 3)];
    for (first, second) in pairs {
        let mut sender = Sender::tcp(v4(), 1, 1, stamps(steps[first].0, steps[first].1));
        let one = sender.send(100, 0).bytes();
        if let L4::Tcp(tcp) = &mut sender.next.l4 {
            tcp.options = stamps(steps[second].0, steps[second].1);
        }
        let stream = Stream::new([one, sender.send(100, 0).bytes()]).profile(Profile::Lro);
        assert_eq!(stream.gives(&[1, 1]).stats.mismatches.of(Mismatch::Options), 1, "{:?}", steps[second]);
    }
    let mut sender = Sender::tcp(v4(), 1, 1, stamps(9, 9));
    let packets = [0, 4, 5].map(|at: usize| {
        if let L4::Tcp(tcp) = &mut sender.next.l4 {
            tcp.options = stamps(steps[at].0, steps[at].1);
        }
        sender.send(100, 0).bytes()
    });
    assert_eq!(Stream::new(packets).profile(Profile::Lro).run_unchecked().0.sizes, [2, 1]);
}

#[test]
fn other_options_have_to_be_equal() {
    let sack = |byte| [&[1, 1, 5, 10][..], &[byte; 8]].concat();
    let mut sender = Sender::tcp(v4(), 1, 1, sack(1));
    let first = sender.send(100, 0).bytes();
    if let L4::Tcp(tcp) = &mut sender.next.l4 {
        tcp.options = sack(2);
    }
    let stream = Stream::new([first, sender.send(100, 0).bytes()]).profile(Profile::Lro);
    assert_eq!(stream.gives(&[1, 1]).stats.mismatches.of(Mismatch::Options), 1);
}

#[test]
fn segments_of_any_size_join_and_the_largest_is_the_size() {
    let mut sender = tcp4();
    let packets = [100, 7, 1448, 3, 1448, 900].map(|len| sender.send(len, 0).bytes());
    let outcome = one(&Stream::new(packets).profile(Profile::Lro));
    let Unit::Train { gso, .. } = outcome.trains[0].offload.unit else { panic!("a train") };
    assert_eq!((gso.size, outcome.trains[0].payload.len()), (1448, 100 + 7 + 1448 + 3 + 1448 + 900));
}

#[test]
fn a_larger_segment_that_has_no_room_starts_anew() {
    let mut sender = tcp4();
    let packets = [100, 100, 101, 100].map(|len| sender.send(len, 0).bytes());
    let stream = Stream::new(packets).profile(Profile::Lro).config(|config| config.max_bytes = 340);
    let outcome = stream.run_unchecked().0;
    assert_eq!((outcome.sizes, outcome.stats.mismatches.of(Mismatch::Larger)), (vec![2, 2], 1));
}

#[test]
fn datagrams_keep_their_bounds() {
    let mut sender = udp4();
    let packets = [100, 100, 101, 100, 50, 100].map(|len| sender.send(len, 0).bytes());
    Stream::new(packets).profile(Profile::Lro).gives(&[2, 2, 1, 1]);
}

#[test]
fn identifications_of_any_kind_join() {
    let mut sender = tcp4();
    sender.ids = Ids::Random;
    one(&Stream::new(run(&mut sender, 5)).profile(Profile::Lro));
}

#[test]
fn a_mark_of_congestion_is_never_lost() {
    // All sixteen pairs of ECN: only equal ones join.
    for first in 0..4 {
        for second in 0..4 {
            let mut sender = Sender::tcp(Ip::V4(V4 { tos: 0x20 | first, ..V4::new(1, 1, 2) }), 1, 1, Vec::new());
            let one = sender.send(100, 0).bytes();
            if let Ip::V4(ip) = &mut sender.next.ip {
                ip.tos = 0x20 | second;
            }
            let two = sender.send(100, 0).bytes();
            for profile in [Profile::Strict, Profile::linux(), Profile::Lro] {
                let outcome = Stream::new([one.clone(), two.clone()]).profile(profile).run_unchecked().0;
                assert_eq!(outcome.sizes.len(), if first == second { 1 } else { 2 }, "{first} {second} {profile:?}");
            }
        }
    }
}

#[test]
fn a_lower_ttl_starts_anew() {
    // Otherwise a packet from far away could hide inside a train with one that a receiver believes to come from a
    // neighbour (RFC 5082).
    let stream = then(tcp4(), |packet| {
        if let Ip::V4(ip) = &mut packet.ip {
            ip.ttl = 1;
        }
    });
    assert_eq!(stream.profile(Profile::Lro).gives(&[1, 1]).stats.mismatches.of(Mismatch::Ttl), 1);
}

#[test]
fn cwr_ece_and_accurate_ecn_are_never_lost() {
    for (flags, sizes) in
        [([0, 0x80], vec![1, 1]), ([0x80, 0], vec![2]), ([0, 0x40], vec![1, 1]), ([0x40, 0], vec![1, 1])]
    {
        let mut sender = tcp4();
        let packets = flags.map(|flags| sender.send(100, flags).bytes());
        Stream::new(packets).profile(Profile::Lro).gives(&sizes);
    }
    let mut packets = run(&mut tcp4(), 2);
    packets[1][32] |= 1;
    crate::refused::tcp_checksum(&mut packets[1]);
    Stream::new(packets).profile(Profile::Lro).gives(&[1, 1]);
}

#[test]
fn psh_and_fin_close_as_ever() {
    for (flag, why) in [(0x08, Flush::Push), (0x01, Flush::Fin)] {
        let mut sender = tcp4();
        let outcome = one(&Stream::new([0, 0, flag].map(|f| sender.send(100, f).bytes())).profile(Profile::Lro));
        assert_eq!((outcome.stats.flushes.of(why), outcome.trains[0].head.bytes()[33]), (1, 0x10 | flag));
    }
}

#[test]
fn wrong_checksums_stay_out() {
    for bad in 0..4 {
        let mut packets = run(&mut tcp4(), 4);
        packets[bad][90] ^= 1;
        let (outcome, left) = Stream::new(packets.clone()).profile(Profile::Lro).run_unchecked();
        let wrong = outcome.stats.alone.of(RefusalReason::BadChecksum) + outcome.stats.flushes.of(Flush::BadChecksum);
        assert_eq!((wrong, left.contains(&packets[bad])), (1, true));
    }
}
