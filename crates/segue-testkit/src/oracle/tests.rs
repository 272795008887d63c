//! Tests of the oracle: it accepts the builders' packets, and rejects all damaged ones.

use super::*;
use crate::Rng;
use crate::build::{Ethernet, Gre, Ip, L4, Packet, Remcsum, Shim, Tcp, Tunnel, Udp, V4, V6, prime};

fn ports() -> Ports {
    let fou = vec![(5555, 4), (5556, 41), (5557, 47), (5558, 143)];
    Ports { gue: vec![6080], fou, vxlan: vec![4789], geneve: vec![6081] }
}

fn tcp(ip: Ip, len: usize) -> Packet {
    let tcp = Tcp {
        src_port: 1000,
        dst_port: 80,
        seq: 77,
        ack: 1,
        flags: 0x10,
        window: 500,
        urgent: 0,
        options: Tcp::timestamps(1, 2),
    };
    Packet { ip, l4: L4::Tcp(tcp), data: Rng::new(len as u64).bytes(len) }
}

fn forms() -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    for inner in [Ip::V4(V4::new(1, 1, 2)), Ip::V6(V6::new(1, 1, 2))] {
        let udp = L4::Udp(Udp { src_port: 1, dst_port: 2, checksum: true });
        let icmp = L4::Icmp(128, 0, [1, 2, 3, 4]);
        for packet in [
            tcp(inner.clone(), 101),
            Packet { ip: inner.clone(), l4: udp, data: vec![9; 33] },
            Packet { ip: inner.clone(), l4: icmp, data: vec![7; 12] },
        ] {
            let packet = packet.bytes();
            forms.push(packet.clone());
            for outer in [Ip::V4(V4::new(0, 1, 2)), Ip::V6(V6::new(0, 1, 2))] {
                let gre = Gre { checksum: true, key: Some(5), seq: Some(9) };
                for (gre, fou) in [(None, if packet[0] >> 4 == 4 { 5555 } else { 5556 }), (Some(gre), 5557)] {
                    for shim in [Shim::Fou, Shim::Gue(None), Shim::Gue(Some(Remcsum::Transport))] {
                        let dst_port = if shim == Shim::Fou { fou } else { 6080 };
                        let udp = Udp { src_port: 50000, dst_port, checksum: true };
                        let ip = outer.clone();
                        forms.push(Tunnel { ip, udp: Some((udp, shim)), gre, ethernet: None }.wrap(&packet));
                    }
                }
                for (shim, dst_port) in [
                    (Shim::Fou, 5558),
                    (Shim::Gue(Some(Remcsum::Transport)), 6080),
                    (Shim::Vxlan(5, false), 4789),
                    (Shim::Vxlan(0xff_ffff, true), 4789),
                    (Shim::Geneve(5, 0), 6081),
                    (Shim::Geneve(5, 3), 6081),
                ] {
                    let udp = Udp { src_port: 50000, dst_port, checksum: true };
                    let ethernet = Some(Ethernet { tags: vec![(0x8100, 5)], ..Ethernet::default() });
                    let ip = outer.clone();
                    forms.push(Tunnel { ip, udp: Some((udp, shim)), gre: None, ethernet }.wrap(&packet));
                }
            }
        }
    }
    forms
}

#[test]
fn everything_that_the_builders_make_is_accepted() {
    for bytes in forms() {
        let report = verify(&bytes, Start::Ip, &ports()).unwrap();
        assert!(report.transport.is_some());
    }
}

#[test]
fn of_a_geneve_header_only_control_and_version_make_the_packet_inside_unreadable() {
    let packet = tcp(Ip::V4(V4::new(1, 1, 2)), 9).bytes();
    let udp = Udp { src_port: 50000, dst_port: 6081, checksum: false };
    let ethernet = Some(Ethernet::default());
    let ip = Ip::V4(V4::new(0, 1, 2));
    let frame = Tunnel { ip, udp: Some((udp, Shim::Geneve(5, 3))), gre: None, ethernet }.wrap(&packet);
    for (at, bits, is_read) in [(29, 0x40, true), (29, 0x3f, true), (29, 0x80, false), (28, 0x40, false)] {
        let mut frame = frame.clone();
        frame[at] |= bits;
        assert_eq!(verify(&frame, Start::Ip, &ports()).is_ok(), is_read, "byte {at}, bits {bits:02x}");
    }
}

#[test]
fn every_flipped_bit_under_a_checksum_is_found() {
    for bytes in forms() {
        // Past the outer IP header everything is covered: by the outer UDP checksum, or by the transport's.
        let from = if bytes[0] >> 4 == 4 { 0 } else { 40 };
        let mut rng = Rng::new(bytes.len() as u64);
        for at in from..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << rng.below(8);
            let result = verify(&bad, Start::Ip, &ports());
            // A flipped port turns a tunnel into a datagram, whose checksum is wrong all the same.
            assert!(result.is_err(), "byte {at} of {bytes:02x?}: {result:?}");
        }
    }
}

#[test]
fn primed_checksums_count_only_where_they_are_owed() {
    let good = tcp(Ip::V4(V4::new(1, 1, 2)), 9).bytes();
    let primed = prime(&good).unwrap();
    let owed = Owed { inner: true, outer: false };
    assert!(verify(&primed, Start::Ip, &ports()).unwrap_err().contains("primed"));
    assert_eq!(verify_owed(&primed, Start::Ip, &ports(), owed).unwrap().transport.unwrap().csum, Csum::Owed);
    assert!(verify_owed(&good, Start::Ip, &ports(), owed).is_err());
}

#[test]
fn padding_is_for_ethernet_only() {
    let packet = tcp(Ip::V4(V4::new(1, 1, 2)), 0).bytes();
    let padded = [&packet[..], &[1, 2, 3]].concat();
    assert!(verify(&padded, Start::Ip, &ports()).is_err());
    let frame = Ethernet { tags: vec![(0x88a8, 1), (0x8100, 2)], ..Ethernet::default() }.wrap(&packet);
    let report = verify(&[&frame[..], &[1, 2, 3]].concat(), Start::Ethernet, &ports()).unwrap();
    assert_eq!((report.padding, report.levels.len()), (3, 1));
}

#[test]
fn nothing_makes_it_panic() {
    let mut rng = Rng::new(1);
    let forms = forms();
    for round in 0..4000 {
        let mut bytes = forms[rng.below(forms.len())].clone();
        for _ in 0..=rng.below(4) {
            let at = rng.below(bytes.len());
            bytes[at] = rng.next_u64() as u8;
        }
        bytes.truncate(rng.below(bytes.len() + 1));
        let start = if round % 2 == 0 { Start::Ip } else { Start::Ethernet };
        let _ = verify_owed(&bytes, start, &ports(), Owed { inner: round % 3 == 0, outer: round % 5 == 0 });
    }
}

#[test]
fn a_gue_header_that_is_longer_than_its_datagram_is_a_fault_of_the_frame() {
    let mut count = 0;
    for mut bytes in forms() {
        // Behind the outer IP header and UDP.
        let at = if bytes[0] >> 4 == 4 { 28 } else { 48 };
        let is_gue = bytes.get(at - 6..at - 4) == Some(&6080u16.to_be_bytes());
        if is_gue && bytes[at + 3] == 1 && bytes.len() < at + 4 * 32 {
            bytes[at] |= 31;
            let why = verify_owed(&bytes, Start::Ip, &ports(), Owed { inner: true, outer: false }).unwrap_err();
            assert_eq!(why, "GUE header past the end");
            count += 1;
        }
    }
    assert!(count > 0);
}
