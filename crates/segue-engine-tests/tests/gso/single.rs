//! Tests of single packets: owed checksums are filled in, and no other field is changed.

use segue::gso::{Limits, SegmentCsum, finish};
use segue::packet::{Csum, Kind, LayerCsum, Offload, Packet, Remote, Start, Unit};
use segue::wire::{udp, write_u16};
use segue_testkit::build::{self, Gre, Ip, L4, Shim, Tunnel, V4};
use segue_testkit::oracle::{self, verify};

use crate::case::*;

pub(crate) fn wire(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    bytes.extend(packet.payload.pieces(0..usize::MAX).flatten());
    bytes
}

/// Returns a single packet with a primed transport checksum and all checksums of `tunnels` owed.
pub(crate) fn primed(bytes: &[u8], tunnels: &[Tunnel]) -> Packet<Vec<u8>> {
    let mut packet = load(bytes, Start::Ip);
    packet.offload = Offload::plain(Unit::Whole(Csum::Partial));
    owe(&mut packet, tunnels);
    let ip = packet.layout.inner_ip().unwrap().start();
    prime(&mut packet, &bytes[ip..]);
    packet
}

/// Primes the transport checksum for the inner packet `inner`.
pub(crate) fn prime(packet: &mut Packet<Vec<u8>>, inner: &[u8]) {
    let ip = packet.layout.inner_ip().unwrap().start();
    let (_, field, value) = build::primed(inner).unwrap();
    write_u16(packet.head.bytes_mut(), ip + field, value);
}

fn owe(packet: &mut Packet<Vec<u8>>, tunnels: &[Tunnel]) {
    for tunnel in tunnels.iter().rev() {
        let layer = layer_of(tunnel, LayerCsum::Owed);
        assert!(packet.offload.push_outer(layer));
        if layer.udp == LayerCsum::Owed {
            let at = packet.layout.headers()[1].start();
            write_u16(packet.head.bytes_mut(), at + udp::CHECKSUM, 0);
        }
        let gre = packet.layout.headers().iter().find(|h| h.kind == Kind::Gre).copied();
        if let Some(gre) = gre.filter(|_| layer.gre == LayerCsum::Owed) {
            write_u16(packet.head.bytes_mut(), gre.start() + 4, 0);
        }
    }
}

#[test]
pub(crate) fn a_udp_checksum_that_comes_out_as_zero_is_completed_to_all_ones() {
    let packet = inner(Ip::V4(V4::new(1, 1, 2)), false, 0);
    let expected = build::Packet { data: vec![0x65, 0xfa], ..packet }.bytes();
    let mut packet = primed(&expected, &[]);
    finish(&mut packet).unwrap();
    assert_eq!(wire(&packet), expected);
    assert_eq!(packet.head.bytes()[26..28], [255, 255]);
}

#[test]
pub(crate) fn a_single_packet_is_completed_in_every_tunnel_form() {
    for is_tcp in [true, false] {
        for ip in [v4(1, 3), v6(1)] {
            for len in [1, 100, 333] {
                let plain = inner(ip.clone(), is_tcp, len).bytes();
                for tunnel in every_tunnel(matches!(ip, Ip::V4(_))) {
                    let expected = tunnel.wrap(&plain);
                    let packet = primed(&expected, std::slice::from_ref(&tunnel));
                    for limits in [Limits::NONE, PORT_CSUM, PORT_OUTER, PORT_BOTH] {
                        let (out, _) = split_both(&packet, &limits).unwrap();
                        assert_eq!(complete_as_port(&out[0], &limits, oracle::Start::Ip).0, expected);
                        let remote = packet.offload.layers()[0].remote == Some(Remote::Transport);
                        assert_eq!(out[0].csum == SegmentCsum::Partial, limits.csum && !remote);
                    }
                    let mut finished = packet;
                    finish(&mut finished).unwrap();
                    assert_eq!(wire(&finished), expected);
                    // Nothing is owed except what the far end completes.
                    let remote = finished.offload.layers()[0].remote;
                    assert_eq!(finished.offload.unit == Unit::Whole(Csum::Verified), remote != Some(Remote::Transport));
                    assert_ne!(finished.offload.layers()[0].udp, LayerCsum::Owed);
                    assert_eq!(finished.offload.layers()[0].gre == LayerCsum::Owed, remote == Some(Remote::Gre));
                    assert_eq!(finish(&mut finished), Ok(0));
                    assert_eq!(wire(&finished), expected);
                }
            }
        }
    }
}

#[test]
pub(crate) fn a_verified_packet_gets_outer_checksums_without_touching_its_payload() {
    let plain = inner(v4(1, 3), true, 1001).bytes();
    let gre = Some(Gre { checksum: true, ..Gre::default() });
    let tunnel = over_udp(v6(0), Shim::Gue(None), gre, true, true);
    let expected = tunnel.wrap(&plain);
    for (csum, summed) in [(Csum::Verified, 0), (Csum::Unknown, 1001)] {
        let mut packet = load(&expected, Start::Ip);
        packet.offload = Offload::plain(Unit::Whole(csum));
        owe(&mut packet, std::slice::from_ref(&tunnel));
        let (out, sum) = split_both(&packet, &Limits::NONE).unwrap();
        assert_eq!((&out[0].bytes, sum), (&expected, summed));
        assert_eq!(out[0].csum, SegmentCsum::AsIs, "the mark would be read as that of the outer level");
    }
    let mut packet = load(&plain, Start::Ip);
    packet.offload = Offload::plain(Unit::Whole(Csum::Verified));
    assert_eq!(split_both(&packet, &Limits::NONE).unwrap().0[0].csum, SegmentCsum::Verified);
}

#[test]
pub(crate) fn what_is_no_tcp_or_udp_gets_its_outer_checksums_too() {
    for is_v4 in [true, false] {
        let ip = if is_v4 { v4(1, 3) } else { v6(1) };
        let icmp = build::Packet { ip: ip.clone(), l4: L4::Icmp(8, 0, [1, 2, 3, 4]), data: vec![5; 57] };
        let mut fragment = build::Packet { ip, l4: L4::Raw(17), data: vec![6; 64] };
        match &mut fragment.ip {
            Ip::V4(ip) => ip.fragment = Some((64, true)),
            Ip::V6(ip) => ip.fragment = Some((1, 64, true)),
        }
        for inside in [icmp.bytes(), fragment.bytes()] {
            for tunnel in every_tunnel(is_v4) {
                // Builders and Linux omit the option if there is no checksum to point at.
                if tunnel.ethernet.is_some() || matches!(tunnel.udp, Some((_, Shim::Gue(Some(_))))) {
                    continue;
                }
                let expected = tunnel.wrap(&inside);
                let mut packet = load(&expected, Start::Ip);
                packet.offload = Offload::UNKNOWN;
                owe(&mut packet, std::slice::from_ref(&tunnel));
                assert_eq!(split_both(&packet, &Limits::NONE).unwrap().0[0].bytes, expected);
                finish(&mut packet).unwrap();
                assert_eq!(wire(&packet), expected);
            }
        }
    }
}

#[test]
pub(crate) fn a_wrong_checksum_never_leaves_as_a_right_one() {
    for csum in [Csum::Unknown, Csum::Bad] {
        let mut bytes = inner(v4(1, 3), true, 50).bytes();
        bytes[70] ^= 4;
        let mut packet = load(&bytes, Start::Ip);
        packet.offload = Offload::plain(Unit::Whole(csum));
        for limits in [Limits::NONE, PORT_BOTH] {
            let out = split_both(&packet, &limits).unwrap().0;
            assert_eq!((&out[0].bytes, out[0].csum), (&bytes, SegmentCsum::AsIs));
        }
    }
    // Primed with garbage: completed from it, hence wrong.
    let mut packet = primed(&inner(v4(1, 3), true, 50).bytes(), &[]);
    packet.head.bytes_mut()[36] ^= 1;
    finish(&mut packet).unwrap();
    assert!(verify(&wire(&packet), oracle::Start::Ip, &ports()).is_err());
}

#[test]
pub(crate) fn bytes_behind_the_inner_packet_count_for_the_outer_checksum_only() {
    for is_tcp in [true, false] {
        for (limits, csum) in [(Limits::NONE, Csum::Partial), (PORT_CSUM, Csum::Partial), (PORT_CSUM, Csum::Verified)] {
            for (len, extra) in [(7, 3), (8, 3), (7, 2)] {
                let plain = inner(v4(1, 3), is_tcp, len).bytes();
                let tunnel = over_udp(v4(0, 1), Shim::Gue(None), None, true, true);
                let padded = [&plain[..], &vec![0xee; extra]].concat();
                let expected = tunnel.wrap(&padded);
                let mut packet = load(&expected, Start::Ip);
                assert!(!packet.layout.is_exact());
                packet.offload = Offload::plain(Unit::Whole(csum));
                owe(&mut packet, std::slice::from_ref(&tunnel));
                let field = packet.layout.transport().unwrap().start() + if is_tcp { 16 } else { 6 };
                if csum == Csum::Partial {
                    prime(&mut packet, &plain);
                }
                let mut out = split_both(&packet, &limits).unwrap().0.remove(0);
                if out.csum == SegmentCsum::Partial {
                    out.bytes[field..field + 2].copy_from_slice(&expected[field..field + 2]);
                }
                assert_eq!(out.bytes, expected);
            }
        }
    }
}
