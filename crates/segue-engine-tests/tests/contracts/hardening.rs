//! Tests of classes of faults that other GRO, GSO and tunnel code has had: each must break no contract, with streams of
//! hostile frames through GRO of every profile and GSO, and the oracle as judge.
//!
//! Tested elsewhere: stacked VLAN tags (`gro::flush`, `many_vlan_tags_are_passed_on`), cut frames
//! (`every_cut_of_a_frame_is_passed_on`), hash collisions and table bounds
//! (`colliding_flows_hold_no_more_than_the_table`, `order_holds_for_64_and_for_10000_flows`), acknowledgments that a
//! sender has to see (`gro::acks`), misplaced remote checksums, GUE versions and flags (`encap::refusals`), hostile
//! virtio-net headers (`segue-port`, `vnet` and `tunnelled`), any bytes with any offload state into GSO
//! (`any_bytes_with_any_state_are_split_or_refused`).

use segue::encap::Decapsulator;
use segue::gro::{self, Gro, Profile, Stats};
use segue::packet::Start;
use segue_testkit::Rng;
use segue_testkit::build::{Ethernet, Gre, Ip, L4, Packet, Shim, Tcp, Tunnel, Udp, V4, V6};
use segue_testkit::flow::Sender;

use crate::decap::{decapsulators, pull};
use crate::properties::{Arrival, ByFrames, Promise, Setting, broken};
use crate::streams;

/// Checks every contract for the given frames in every profile; returns the result of profile `strict`. Linux loses
/// fields that it does not compare, so its profile is not required to restore what it joined.
fn holds(frames: &[Vec<u8>], start: Start) -> Stats {
    let profiles = [Profile::Strict, Profile::linux(), Profile::Lro];
    let [strict, ..] = profiles.map(|profile| {
        let config = gro::Config { profile, acks: true, ..gro::Config::default() };
        let setting = Setting { start, ports: streams::ports(), ..Setting::new(config) };
        let arrivals: Vec<_> = frames.iter().cloned().map(Arrival::new).collect();
        let mut found = broken(&mut ByFrames::new(config, &setting), &arrivals, &setting);
        let mut gro = Gro::new(config);
        found.extend(broken(&mut gro, &arrivals, &setting));
        let is_linux = matches!(profile, Profile::Linux(_));
        let real = found.iter().find(|violation| !(is_linux && violation.promise == Promise::Transparency));
        assert!(real.is_none(), "{profile:?}: {real:?}");
        gro.stats().clone()
    });
    strict
}

fn v4() -> Ip {
    Ip::V4(V4::new(1, 1, 2))
}

fn v6() -> Ip {
    Ip::V6(V6::new(1, 1, 2))
}

/// Returns `count` segments of one flow that join.
fn segments(ip: Ip, count: usize) -> Vec<Vec<u8>> {
    let mut sender = Sender::tcp(ip, 1, 9, Vec::new());
    (0..count).map(|_| sender.send(100, 0).bytes()).collect()
}

/// Wraps the packets in the given number of tunnel levels.
fn nested(mut packets: Vec<Vec<u8>>, tunnel: &Tunnel, levels: usize) -> Vec<Vec<u8>> {
    for _ in 0..levels {
        packets = packets.iter().map(|packet| tunnel.wrap(packet)).collect();
    }
    packets
}

fn tunnels() -> [Tunnel; 5] {
    let udp = |dst_port| Udp { src_port: 50_000, dst_port, checksum: true };
    let plain = Tunnel { ip: v4(), udp: None, gre: None, ethernet: None };
    [
        plain.clone(),
        Tunnel { ip: v6(), ..plain.clone() },
        Tunnel { gre: Some(Gre::default()), ..plain.clone() },
        Tunnel { gre: Some(Gre::default()), ethernet: Some(Ethernet::default()), ..plain.clone() },
        Tunnel { udp: Some((udp(streams::GUE), Shim::Gue(None))), ..plain },
    ]
}

#[test]
fn a1_tunnels_nested_without_end_neither_recurse_nor_join() {
    for tunnel in tunnels() {
        for levels in [3, 4, 5, 8, 15, 16, 17, 40, 100] {
            let stats = holds(&nested(segments(v4(), 3), &tunnel, levels), Start::Ip);
            assert_eq!((stats.packets, stats.trains), (3, 0), "{levels} levels of {tunnel:?}");
        }
    }
}

#[test]
fn a1_tags_and_ethernet_in_gre_nested_together_neither_recurse_nor_join() {
    for tags in [1, 2, 8, 50, 300] {
        let tags: Vec<(u16, u16)> = (0..tags).map(|n| ([0x8100, 0x88a8][n % 2], n as u16)).collect();
        let ethernet = Ethernet { tags, ..Ethernet::default() };
        let tunnel = Tunnel { ip: v6(), udp: None, gre: Some(Gre::default()), ethernet: Some(ethernet.clone()) };
        let frames: Vec<_> = nested(segments(v4(), 3), &tunnel, 3).iter().map(|packet| ethernet.wrap(packet)).collect();
        assert_eq!(holds(&frames, Start::Ethernet).trains, 0);
    }
}

#[test]
fn a2_one_tunnel_level_joins_and_deeper_ones_pass_untouched() {
    for tunnel in tunnels() {
        assert_eq!(holds(&nested(segments(v6(), 3), &tunnel, 1), Start::Ip).trains, 1, "{tunnel:?}");
        assert_eq!(holds(&nested(segments(v6(), 3), &tunnel, 3), Start::Ip).trains, 0, "{tunnel:?}");
    }
}

#[test]
fn a4_extension_headers_of_any_length_and_number_are_walked_with_a_bound() {
    let ip = |extensions: Vec<(u8, Vec<u8>)>| Ip::V6(V6 { extensions, ..V6::new(1, 1, 2) });
    for count in [1, 2, 7, 8, 9, 30, 120] {
        for kind in [0, 43, 60] {
            // The shortest options: six bytes after type and length.
            let frames = segments(ip(vec![(kind, vec![0; 6]); count]), 3);
            assert_eq!(holds(&frames, Start::Ip).packets, 3);
        }
    }
    for last in [0, 1, 254, 255] {
        for body in [vec![0; 6], vec![1, 255, 0, 0, 0, 0], vec![0xc2, 0, 5, 0, 0, 0], vec![0; 8 * 255 + 6]] {
            let mut frames = segments(ip(vec![(0, body)]), 3);
            // The header's length field in units of eight bytes, right and wrong.
            frames.iter_mut().for_each(|frame| frame[41] = last);
            holds(&frames, Start::Ip);
        }
    }
}

#[test]
fn a5_gue_in_gue_in_fou_stays_bounded_and_is_not_followed() {
    let udp = |dst_port| Udp { src_port: 50_000, dst_port, checksum: true };
    let tunnel = |port, shim| Tunnel { ip: v4(), udp: Some((udp(port), shim)), gre: None, ethernet: None };
    let (gue, fou) = (tunnel(streams::GUE, Shim::Gue(None)), tunnel(streams::FOU[0].0, Shim::Fou));
    for levels in 1..12 {
        let frames = nested(nested(segments(v4(), 3), &gue, levels), &fou, 1);
        assert_eq!(holds(&frames, Start::Ip).trains, 0, "{levels}");
        // A receiver that removes the outermost level must not be misled either.
        for decap in &mut decapsulators() {
            frames.iter().for_each(|frame| assert!(pull(decap, frame).is_ok()));
        }
    }
}

#[test]
fn b1_every_data_offset_of_a_tcp_header_is_held_against_the_segment() {
    for offset in 0..=255_u8 {
        for ip in [v4(), v6()] {
            let at = if matches!(ip, Ip::V4(_)) { 20 } else { 40 } + 12;
            let mut frames = segments(ip, 4);
            frames[1][at] = offset;
            frames[2].truncate(at + 8 + usize::from(offset >> 4));
            holds(&frames, Start::Ip);
        }
    }
}

#[test]
fn b2_lengths_below_the_headers_beyond_the_frame_and_everything_between_are_held_against_the_bytes() {
    let ethernet = Ethernet::default();
    for (ip, field) in [(v4(), 2), (v6(), 4)] {
        for length in (0..200_u16).chain([1_000, 32_767, 32_768, 65_534, 65_535]) {
            let mut frames = segments(ip.clone(), 4);
            frames[1][field..field + 2].copy_from_slice(&length.to_be_bytes());
            holds(&frames, Start::Ip);
            let frames: Vec<_> = frames.iter().map(|packet| ethernet.wrap(packet)).collect();
            holds(&frames, Start::Ethernet);
        }
        // The length of a UDP datagram, which is stated twice.
        let mut sender = Sender::udp(ip.clone(), 1);
        let datagrams: Vec<_> = (0..4).map(|_| sender.send(100, 0).bytes()).collect();
        let at = if matches!(ip, Ip::V4(_)) { 24 } else { 44 };
        for length in (0..130_u16).chain([65_535]) {
            let mut frames = datagrams.clone();
            frames[2][at..at + 2].copy_from_slice(&length.to_be_bytes());
            holds(&frames, Start::Ip);
        }
    }
}

#[test]
fn b3_runts_of_every_length_are_passed_on() {
    let ethernet = Ethernet { tags: vec![(0x8100, 5)], ..Ethernet::default() };
    for ip in [v4(), v6()] {
        for len in 0..130 {
            let mut frames: Vec<_> = segments(ip.clone(), 3).iter().map(|packet| ethernet.wrap(packet)).collect();
            frames[1].truncate(len);
            assert_eq!(holds(&frames, Start::Ethernet).packets, 3);
        }
    }
}

#[test]
fn b5_a_train_never_grows_past_what_its_length_field_can_say() {
    for ip in [v4(), v6()] {
        for size in [1, 7, 1448, 8_948, 32_000, 65_000] {
            let mut sender = Sender::tcp(ip.clone(), 1, 9, Vec::new());
            let frames: Vec<_> =
                (0..140_000_usize.div_ceil(size).min(64)).map(|_| sender.send(size, 0).bytes()).collect();
            holds(&frames, Start::Ip);
        }
    }
}

#[test]
fn b7_empty_packets_are_not_merged_and_cause_no_division_by_zero() {
    let empty = |l4: L4| Packet { ip: v4(), l4, data: Vec::new() }.bytes();
    let udp = Udp { src_port: 1, dst_port: streams::GUE, checksum: true };
    let mut frames = vec![empty(L4::Udp(udp)); 3];
    for (port, _) in streams::FOU {
        frames.extend(vec![empty(L4::Udp(Udp { dst_port: port, ..udp })); 2]);
    }
    for tunnel in tunnels() {
        frames.extend(vec![tunnel.wrap(&[0x45]); 2]);
        frames.extend(vec![tunnel.wrap(&[0x60, 0]); 2]);
    }
    let stats = holds(&frames, Start::Ip);
    assert_eq!(stats.trains, 0);
}

#[test]
fn c1_one_byte_segments_respect_the_segment_limit() {
    let mut sender = Sender::tcp(v4(), 1, 9, Vec::new());
    let frames: Vec<_> = (0..3_000).map(|_| sender.send(1, 0).bytes()).collect();
    assert!(holds(&frames, Start::Ip).trains > 1);
}

#[test]
fn d1_a_wrong_checksum_anywhere_is_neither_merged_nor_repaired() {
    for ip in [v4(), v6()] {
        for bad in 0..5 {
            let mut frames = segments(ip.clone(), 5);
            let last = frames[bad].len() - 1;
            frames[bad][last] ^= 0x10;
            let stats = holds(&frames, Start::Ip);
            let wrong = stats.alone.of(gro::RefusalReason::BadChecksum) + stats.flushes.of(gro::Flush::BadChecksum);
            assert!(stats.segments <= 4 && wrong <= 1, "{stats:?}");
        }
    }
}

#[test]
fn d3_datagrams_with_and_without_a_checksum_never_share_a_train() {
    let with =
        |checksum| Packet { ip: v4(), l4: L4::Udp(Udp { src_port: 1, dst_port: 2, checksum }), data: vec![7; 50] };
    let frames: Vec<_> = (0..12).map(|n| with(n % 3 != 0).bytes()).collect();
    holds(&frames, Start::Ip);
    // Zero over IPv6 is not an absent checksum but a wrong one.
    let mut frames: Vec<_> = {
        let mut sender = Sender::udp(v6(), 1);
        (0..4).map(|_| sender.send(60, 0).bytes()).collect()
    };
    frames[1][46..48].fill(0);
    holds(&frames, Start::Ip);
}

#[test]
fn d4_sums_over_odd_sizes_and_the_largest_packets_come_out_right() {
    for size in [1, 3, 999, 1_447, 21_845, 65_001] {
        let mut sender = Sender::tcp(v4(), 1, 9, Vec::new());
        sender.rng = Rng::new(size as u64);
        let frames: Vec<_> = (0..6).map(|_| sender.send(size, 0).bytes()).collect();
        let stats = holds(&frames, Start::Ip);
        assert_eq!(stats.trains > 0, 2 * size < 65_000, "{size}");
    }
}

#[test]
fn e_contradictory_tunnel_headers_are_refused_by_the_decapsulator() {
    let udp = |dst_port| Udp { src_port: 50_000, dst_port, checksum: true };
    let ports = [streams::GUE, streams::FOU[0].0, streams::FOU[1].0, streams::FOU[2].0];
    let mut rng = Rng::new(6);
    for port in ports {
        let mut tunnels = decapsulators_of(port);
        // Every first word of a GUE or GRE header, repeatedly with other bytes after it.
        for word in 0..=u16::MAX {
            let mut data = word.to_be_bytes().to_vec();
            let len = rng.below(60);
            data.extend(rng.bytes(len));
            let datagram = Packet { ip: v4(), l4: L4::Udp(udp(port)), data }.bytes();
            if word % 16 == 0 || port == streams::GUE {
                for decap in &mut tunnels {
                    pull(decap, &datagram).unwrap_or_else(|what| panic!("{port} {word:#06x}: {what}"));
                }
            }
        }
    }
}

/// Returns the receivers that listen on the given port.
fn decapsulators_of(port: u16) -> Vec<Decapsulator> {
    decapsulators().into_iter().filter(|decap| decap.config().port == port).collect()
}

#[test]
fn f5_floods_of_fragments_and_of_gaps_hold_nothing() {
    let fragment =
        |n: u16| Ip::V4(V4 { id: n, fragment: Some((n % 100 * 8, !n.is_multiple_of(3))), ..V4::new(1, 1, 2) });
    let tcp = Tcp {
        flags: 0x10,
        ..match Sender::tcp(v4(), 1, 9, Vec::new()).next.l4 {
            L4::Tcp(tcp) => tcp,
            _ => unreachable!("a TCP sender"),
        }
    };
    let mut frames = Vec::new();
    for n in 0..600_u16 {
        frames.push(Packet { ip: fragment(n), l4: L4::Tcp(tcp.clone()), data: vec![1; 64] }.bytes());
        let seq = u32::from(n) * 7_919;
        frames.push(Packet { ip: v4(), l4: L4::Tcp(Tcp { seq, ..tcp.clone() }), data: vec![1; 64] }.bytes());
    }
    assert_eq!(holds(&frames, Start::Ip).trains, 0);
}

#[test]
fn f7_packets_that_differ_in_a_significant_field_are_not_merged() {
    // TOS, TTL, identification, flags and options, of one segment in the middle.
    for (at, mask) in [(1, 0xff), (8, 0xff), (6, 0x40), (32, 0xff), (33, 0xc0), (34, 0xff)] {
        for bits in [1_u8, 2, 3, 0x40, 0x80, 0xff] {
            let mut frames = segments(v4(), 4);
            frames[2][at] ^= bits & mask;
            holds(&frames, Start::Ip);
        }
    }
}

#[test]
fn f8_padding_of_any_content_never_reaches_the_stream() {
    let ethernet = Ethernet::default();
    for fill in [0, 0xaa, 0xff] {
        for len in 1..8 {
            let mut sender = Sender::tcp(v4(), 1, 9, Vec::new());
            let padded = |packet: Vec<u8>| {
                let mut frame = ethernet.wrap(&packet);
                frame.resize(60, fill);
                frame
            };
            let frames: Vec<_> = (0..5).map(|_| padded(sender.send(len - 1, 0).bytes())).collect();
            holds(&frames, Start::Ethernet);
        }
    }
}
