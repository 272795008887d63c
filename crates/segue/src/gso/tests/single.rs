//! Tests of single packets: frames that owe a checksum, checksums of several levels, and bytes behind a packet.

use super::*;
use crate::gso::check::pseudo;
use crate::gso::owing::push_owing;
use crate::packet::{Frame, remote};

/// Tests that a frame that is not parsed leaves with the bytes, the state and the cost of its packet.
#[test]
fn a_frame_that_owes_its_checksum_leaves_as_its_packet_does() {
    for is_v6 in [false, true] {
        let ip = if is_v6 { Ip::V6(build::V6::new(1, 1, 2)) } else { Ip::V4(V4::new(1, 1, 2)) };
        let udp = L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true });
        let datagram = build::Packet { ip, l4: udp, data: vec![7; 101] }.bytes();
        let plain = bytes_of(&train(is_v6, 1000, 101));
        let with_options = bytes_of(&train_with(is_v6, 1000, 101, 12));
        let frames = [plain, with_options, build::prime(&datagram).unwrap()];
        // The same with a word of payload that makes the checksum zero.
        let zero = frames.clone().map(|mut bytes| {
            let at = ip_len(is_v6) + 40;
            write_u16(&mut bytes, at, 0);
            let sum = Sum::of(&bytes[ip_len(is_v6)..]).fold();
            write_u16(&mut bytes, at, !sum);
            bytes
        });
        for bytes in frames.into_iter().chain(zero) {
            for (csum, summed) in [(true, 0), (false, 2 * 101)] {
                let limits = Limits { csum, ..Limits::NONE };
                let frame = Frame { bytes: Frag::all(bytes.clone()), start: Start::Ip, csum: Csum::Partial };
                let mut packet = within(&[], bytes.clone());
                packet.offload.unit = Unit::Whole(Csum::Partial);
                let (mut arena, mut expected) = (Arena::new(), Arena::new());
                for _ in 0..2 {
                    assert!(push_owing(&frame, &limits, &mut arena).is_some());
                    assert_eq!(split(&packet, &limits, &mut expected), Ok(1));
                }
                assert_eq!(arena.segments().len(), 2);
                for (found, segment) in arena.segments().iter().zip(expected.segments()) {
                    let head = arena.head(found);
                    let whole = [head, &bytes[head.len()..]].concat();
                    assert_eq!(whole, [expected.head(segment), &bytes[packet.head.len()..]].concat(), "{limits:?}");
                    assert_eq!(head.len() + found.payload_len(), bytes.len());
                    assert_eq!((found.csum, found.gso), (segment.csum, None));
                }
                assert_eq!([arena.take_checksummed(), expected.take_checksummed()], [summed; 2], "{limits:?}");
            }
        }
    }
}

#[test]
fn segments_know_the_length_of_their_own_payload() {
    let (packet, mut arena) = (train(false, 1000, 2500), Arena::new());
    assert_eq!(split(&packet, &CSUM, &mut arena), Ok(3));
    let lens: Vec<usize> = arena.segments().iter().map(Segment::payload_len).collect();
    assert_eq!(lens, [1000, 1000, 500]);
}

/// Tests that a datagram without a checksum is a good one over IPv4 alone (RFC 8200, section 8.1).
#[test]
fn a_datagram_without_a_checksum_is_bad_over_ipv6() {
    for (ip, without) in [(Ip::V4(V4::new(1, 1, 2)), Csum::Absent), (Ip::V6(build::V6::new(1, 1, 2)), Csum::Bad)] {
        for (checksum, right, wrong) in [(true, Csum::Verified, Csum::Bad), (false, without, without)] {
            let l4 = L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum });
            let mut bytes = build::Packet { ip: ip.clone(), l4, data: vec![7; 9] }.bytes();
            assert_eq!(verify(&within(&[], bytes.clone())), right, "{ip:?}");
            *bytes.last_mut().unwrap() ^= 1;
            assert_eq!(verify(&within(&[], bytes)), wrong, "{ip:?}");
        }
    }
}

/// Tests that of several checksums only the outermost UDP checksum is left to a port that computes it.
#[test]
fn the_outermost_udp_checksum_alone_is_left_to_the_port() {
    const OWED: Layer = Layer { udp: LayerCsum::Owed, ..Layer::NONE };
    let gue = || over_udp(Shim::Gue(None), true);
    let gre = Tunnel { gre: Some(Gre { checksum: true, ..Gre::default() }), ..gue() };
    let udp = L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true });
    let datagram = build::Packet { ip: Ip::V4(V4::new(1, 1, 2)), l4: udp, data: vec![7; 101] }.bytes();
    for (tunnels, layers) in
        [(vec![gue(), gue()], vec![OWED, OWED]), (vec![gre], vec![Layer { gre: LayerCsum::Owed, ..OWED }])]
    {
        let mut packet = within(&tunnels, datagram.clone());
        packet.offload = Offload::plain(Unit::Whole(Csum::Unknown));
        assert!(layers.iter().rev().all(|layer| packet.offload.push_outer(*layer)));
        let (ip, udp) = (packet.layout.headers()[0], packet.layout.headers()[1]);
        let sum = pseudo(packet.head.bytes(), &ip, Kind::Udp, packet.len() - udp.start()).unwrap();
        for outer_csum in [false, true] {
            // The checksums of the builder are right.
            let mut expected = packet.head.clone();
            if outer_csum {
                write_u16(expected.bytes_mut(), udp.start() + 6, Field::primed(sum).value());
            }
            let mut arena = Arena::new();
            assert_eq!(split(&packet, &Limits { outer_csum, ..Limits::NONE }, &mut arena), Ok(1));
            assert_eq!(arena.head(&arena.segments()[0]), expected.bytes(), "{outer_csum} {layers:?}");
        }
    }
}

/// Tests that bytes behind a datagram (RFC 9868) or an inner packet count for the outer checksum alone, and each
/// byte is summed once.
#[test]
fn what_is_behind_a_datagram_or_an_inner_packet_counts_outside_alone() {
    // The inner packet, the length that its transport checksum covers, and the number of bytes behind it.
    for (mut inner, covered, behind) in [
        (trailed(false, false), 12, 0),
        (bytes_of(&train(false, 1000, 7)), 27, 3),
        (bytes_of(&train(true, 1000, 7)), 27, 3),
    ] {
        fill_checksum(&mut inner, Start::Ip).unwrap();
        inner.resize(inner.len() + behind, 0xee);
        let mut packet = within(&[over_udp(Shim::Gue(None), true)], inner);
        // The checksums of the builder are right.
        let expected = packet.head.clone();
        let (ip, transport) = (*packet.layout.inner_ip().unwrap(), *packet.layout.transport().unwrap());
        let sum = pseudo(packet.head.bytes(), &ip, transport.kind, covered).unwrap();
        let field = transport.start() + remote::field_offset(transport.kind).unwrap();
        write_u16(packet.head.bytes_mut(), field, Field::primed(sum).value());
        packet.offload = Offload::plain(Unit::Whole(Csum::Partial));
        assert!(packet.offload.push_outer(Layer { udp: LayerCsum::Owed, ..Layer::NONE }));
        let mut arena = Arena::new();
        assert_eq!(split(&packet, &Limits::NONE, &mut arena), Ok(1));
        assert_eq!(arena.head(&arena.segments()[0]), expected.bytes(), "{ip:?}");
        assert_eq!(arena.take_checksummed(), packet.payload.len() as u64, "{ip:?}");
    }
}

#[test]
fn a_train_behind_link_headers_passes_uncut() {
    for (is_v6, ethertype) in [(false, [0x08, 0x00]), (true, [0x86, 0xdd])] {
        for tag in [&[][..], &[0x81, 0, 0, 5]] {
            let plain = train(is_v6, 1000, 3000);
            let frame = [&[2; 12][..], tag, &ethertype, &bytes_of(&plain)].concat();
            let mut packet = Packet::default();
            packet.load(Frag::all(frame), Start::Ethernet, &Tunnels::NONE);
            packet.offload.unit = plain.offload.unit;
            assert_eq!(gso_of(&packet, &PORT), Some(gso(GsoKind::Tcp, 1000)), "{is_v6} {tag:x?}");
        }
    }
}
