//! Tests of decap on tunnels with known contents.

mod common;

use common::packets::{from_away, source_routed, tunnels, v4, v6};
use common::shapes::{Shape, capture, framed};
use common::{decap, decap_packets, form_of, ports, with_check_sequences};
use segue_capture::decap::DecapConfig;
use segue_capture::file::{Format, Item, Reader, link};
use segue_testkit::Rng;
use segue_testkit::build::{self, Ethernet, Gre, Ip, L4, Tunnel, V4};
use segue_testkit::flow::Sender;

#[test]
fn every_tunnel_comes_off_and_leaves_the_packet_that_was_put_in() {
    let mut rng = Rng::new(6);
    for (name, tunnel) in tunnels() {
        let mut inner = Vec::new();
        for ip in [v4(), v6()] {
            inner.push(Sender::tcp(ip.clone(), 1, 1, vec![1; 12]).send(701, 8).bytes());
            inner.push(Sender::udp(ip.clone(), 2).send(33, 0).bytes());
            let mut ping = Sender::udp(ip.clone(), 2).send(40, 0);
            ping.l4 = L4::Icmp(if ip.protocol() == 4 { 8 } else { 128 }, 0, [0, 1, 0, 2]);
            inner.push(ping.bytes());
        }
        let outer: Vec<Vec<u8>> = inner.iter().map(|packet| tunnel.wrap(packet)).collect();
        for number in [link::ETHERNET, link::RAW, link::COOKED, link::COOKED2] {
            let (out, report) = decap_packets(&outer, number, false);
            let unpadded: Vec<&[u8]> = out.iter().zip(&inner).map(|(o, i)| &o[..i.len().min(o.len())]).collect();
            assert!(unpadded == inner, "{name} over {number}");
            assert_eq!(report.decapsulated, inner.len() as u64, "{name}");
        }
        // A tunnel in a tunnel loses one layer a time.
        let twice: Vec<Vec<u8>> = outer.iter().map(|packet| tunnels()[2].1.wrap(packet)).collect();
        let (out, _) = decap_packets(&twice, link::RAW, false);
        assert!(out == outer, "{name}");
        // Damage outside keeps a packet in its tunnel.
        let mut bad = outer.clone();
        let mut kept = 0;
        for packet in &mut bad {
            if corrupt_outer(&mut rng, packet) {
                kept += 1;
            }
        }
        let (out, report) = decap_packets(&bad, link::RAW, true);
        assert_eq!(out.len() as u64 + report.dropped, bad.len() as u64);
        assert_eq!(report.dropped, kept, "{name} {report:?}");
    }
}

/// Flips a bit that the outer IPv4 header checksum covers; returns `false` for IPv6.
fn corrupt_outer(rng: &mut Rng, packet: &mut [u8]) -> bool {
    if packet[0] >> 4 != 4 {
        return false;
    }
    packet[8] ^= 1 << rng.below(7);
    true
}

#[test]
fn a_remote_checksum_without_a_right_outer_one_is_not_believed() {
    let (_, tunnel) = tunnels().remove(7);
    let inner = Sender::tcp(v4(), 1, 1, vec![]).send(100, 0).bytes();
    let good = tunnel.wrap(&inner);
    let mut damaged = good.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 0x40;
    let mut absent = good.clone();
    absent[26..28].fill(0);
    let (out, report) = decap_packets(&[good, damaged.clone(), absent.clone()], link::RAW, false);
    assert!(out == [inner, damaged, absent]);
    assert_eq!(report.kept.into_iter().collect::<Vec<_>>(), [("outer_csum", 1), ("remcsum_no_outer_csum", 1)]);
}

#[test]
fn a_packet_with_a_frame_check_sequence_stays_in_its_tunnel() {
    let inner = Sender::tcp(v4(), 1, 1, vec![]).send(100, 0).bytes();
    let outer: Vec<Vec<u8>> = tunnels().into_iter().map(|(_, tunnel)| tunnel.wrap(&inner)).collect();
    for file in with_check_sequences(&outer) {
        let (out, report) =
            decap(&file, form_of(&file), &DecapConfig { tunnels: ports(), only_tunnelled: false }).unwrap();
        assert!(out == file, "{report:?}");
        assert_eq!(report.kept["frame_check_sequence"], outer.len() as u64, "{report:?}");
    }
}

#[test]
fn frames_inside_of_gre_come_out_as_frames() {
    let inner = Sender::tcp(v6(), 1, 1, vec![]).send(300, 0).bytes();
    let ethernet = Ethernet { dst: [2, 0, 0, 0, 9, 1], src: [2, 0, 0, 0, 9, 2], tags: vec![] };
    let tunnel =
        Tunnel { ip: Ip::V4(V4::new(9, 1, 2)), udp: None, gre: Some(Gre::default()), ethernet: Some(ethernet.clone()) };
    let mut rng = Rng::new(1);
    let shape = Shape { seed: 0, traffic: "", link: link::ETHERNET, form: "us_be" };
    let frames = [framed(link::ETHERNET, &tunnel.wrap(&inner), &mut rng)];
    let input = capture(&shape, &frames, &mut Rng::new(1));
    let config = DecapConfig { tunnels: ports(), only_tunnelled: false };
    let (file, _) = decap(&input, Format::Pcap, &config).unwrap();
    let mut reader = Reader::new(&file[..]).unwrap();
    let Some(Item::Packet(record)) = reader.next().unwrap() else { panic!("no packet") };
    assert_eq!(record.data(), ethernet.wrap(&inner));
}

#[test]
fn a_remote_checksum_is_finished_for_the_addresses_in_options() {
    let (_, gue) = tunnels().remove(7);
    for (name, whole, away) in [
        ("source route", Sender::tcp(v4(), 3, 1, vec![]).send(300, 0).bytes(), false),
        ("home address", Sender::tcp(v6(), 3, 1, vec![]).send(300, 0).bytes(), true),
    ] {
        let change = |packet: &[u8]| if away { from_away(packet) } else { source_routed(packet, 131, 4) };
        let sent = change(&build::prime(&whole).unwrap());
        let mut outer = gue.wrap(&sent);
        // The outer headers are 40 bytes; what the tunnel wrote inside is of the addresses in the fixed header.
        outer[40..].copy_from_slice(&sent);
        outer[26..28].fill(0);
        let checksum = !segue_testkit::sum::with_pseudo(&outer[12..16], &outer[16..20], 17, &outer[20..]);
        outer[26..28].copy_from_slice(&checksum.to_be_bytes());
        let (out, report) = decap_packets(&[outer], link::RAW, false);
        assert!(out == [change(&whole)], "{name}: {report:?}");
        assert_eq!(report.finished, 1, "{name}: {report:?}");
    }
}
