//! Tests of trains inside a UDP tunnel for a port that takes them whole.

use segue::gso::Limits;
use segue::packet::{Frag, Layer, LayerCsum, Packet, Start, TrainCsum, Unit};
use segue::virtio::{
    self, Form, GSO_ECN, GSO_TCPV4, GSO_UDP_L4, GSO_UDP_TUNNEL_IPV4, GSO_UDP_TUNNEL_IPV6, Loaded, NEEDS_CSUM,
    UDP_TUNNEL_CSUM, VirtioNet,
};
use segue_testkit::build::{self, Ethernet, Ip, L4, Shim, Tunnel};

use crate::case::*;
use crate::device::{check_parts, described};

/// Returns every form of a tunnel whose trains a port may take.
fn taken_tunnels(inner_is_v4: bool) -> Vec<Tunnel> {
    every_tunnel(inner_is_v4).into_iter().filter(|tunnel| is_taken(tunnel, &PORT_TUNNEL_CSUM)).collect()
}

fn has_checksum(tunnel: &Tunnel) -> bool {
    tunnel.udp.is_some_and(|(udp, _)| udp.checksum)
}

/// Returns VXLAN over this version of IP.
fn vxlan(outer: Ip, checksum: bool) -> Tunnel {
    let tunnel = over_udp(outer, Shim::Vxlan(0x12_3456, false), None, checksum, true);
    Tunnel { ethernet: Some(Ethernet::default()), ..tunnel }
}

/// Returns trains of TCP and of UDP over both versions of IP.
fn inners(len: usize) -> Vec<build::Packet> {
    let all = [(true, v4(1, 0xfffd)), (true, v6(1)), (false, v4(1, 0xfffd)), (false, v6(1))];
    all.into_iter().map(|(is_tcp, ip)| inner(ip, is_tcp, len)).collect()
}

fn is_v4(packet: &build::Packet) -> bool {
    matches!(packet.ip, Ip::V4(_))
}

#[test]
fn a_train_in_every_udp_tunnel_goes_whole_to_a_port_that_makes_the_same_packets() {
    let links = [vec![], vec![(0x8100, 7)], vec![(0x88a8, 1), (0x8100, 2)]];
    let links = links.map(|tags| Some(Ethernet { tags, ..Ethernet::default() }));
    let mut cases = 0;
    for (total, size) in [(10_000, 1448), (300, 100), (257, 51), (101, 100)] {
        for packet in inners(total) {
            let tunnels = taken_tunnels(is_v4(&packet));
            assert!(tunnels.iter().any(has_checksum) && !tunnels.iter().all(has_checksum));
            for tunnel in tunnels {
                for ethernet in links.iter().cloned().chain([None]) {
                    let case = Case { ethernet, ..Case::new(packet.clone(), size).within(tunnel.clone()) };
                    let train = case.train();
                    let out = check_parts(&case, &train, &PORT_TUNNEL_CSUM);
                    assert_eq!(out.len(), 1, "{case:?}");
                    assert_eq!(out[0].gso.map(|gso| usize::from(gso.size)), Some(size));
                    assert_eq!(split_both(&train, &PORT_TUNNEL_CSUM).unwrap().1, 0, "no payload is summed");
                    // Without the second offload only a train without an outer checksum is taken.
                    let whole = if has_checksum(&tunnel) { total.div_ceil(size) } else { 1 };
                    assert_eq!(check_parts(&case, &train, &PORT_TUNNEL).len(), whole, "{case:?}");
                    assert_eq!(check_parts(&case, &train, &PORT_TSO).len(), total.div_ceil(size));
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 500, "{cases}");
}

#[test]
fn an_outer_checksum_in_every_state_is_left_to_the_port() {
    for outer in [LayerCsum::Owed, LayerCsum::Done, LayerCsum::Unknown] {
        for csum in [TrainCsum::Partial, TrainCsum::Stale] {
            for (around, checksum) in [(v4(0, 9), true), (v6(0), true), (v4(0, 9), false), (v6(0), false)] {
                let case = Case::new(inner(v4(1, 1), true, 500), 150).within(vxlan(around, checksum));
                let case = Case { outer, csum, ..case };
                // Whether the port completes the checksum of single packets too makes no difference.
                for outer_csum in [false, true] {
                    let limits = Limits { outer_csum, ..PORT_TUNNEL_CSUM };
                    assert_eq!(check_parts(&case, &case.train(), &limits).len(), 1, "{case:?}");
                }
            }
        }
    }
}

#[test]
fn a_train_in_a_tunnel_is_cut_into_smaller_trains_at_each_limit() {
    for packet in inners(7 * 1000 + 5) {
        for (outer, checksum) in [(v4(0, 0xfffe), true), (v6(0), true), (v4(0, 0xfffe), false), (v6(0), false)] {
            let case = Case::new(packet.clone(), 1000).within(vxlan(outer, checksum));
            let mut train = case.train();
            let head = train.head.len();
            for (limits, parts) in [
                (Limits { max_bytes: head + 7005, ..PORT_TUNNEL_CSUM }, 1),
                (Limits { max_bytes: head + 7004, ..PORT_TUNNEL_CSUM }, 2),
                (Limits { max_bytes: head + 3000, ..PORT_TUNNEL_CSUM }, 3),
                (Limits { max_bytes: head + 2999, ..PORT_TUNNEL_CSUM }, 4),
                (Limits { max_bytes: 10, ..PORT_TUNNEL_CSUM }, 8),
                (Limits { max_segs: 3, max_udp_segs: 3, ..PORT_TUNNEL_CSUM }, 3),
                // The end of 5 bytes is a packet of its own, with a complete outer checksum.
                (Limits { max_segs: 7, max_udp_segs: 7, ..PORT_TUNNEL_CSUM }, 2),
                (Limits { max_segs: 1, max_udp_segs: 1, ..PORT_TUNNEL_CSUM }, 8),
                (Limits { max_head: head, ..PORT_TUNNEL_CSUM }, 1),
                (Limits { max_head: head - 1, ..PORT_TUNNEL_CSUM }, 8),
            ] {
                let out = check_parts(&case, &train, &limits);
                assert_eq!(out.len(), parts, "{limits:?} {case:?}");
                assert!(out.iter().all(|out| out.gso.is_some() == (out.bytes.len() - head > 1000)));
                assert!(parts == 8 || out.iter().all(|out| out.bytes.len() <= limits.max_bytes));
            }
            // Pieces that are segments, as a receiver makes them.
            train.payload.clear();
            let ranges = case.ranges().into_iter();
            ranges.for_each(|range| train.payload.push(Frag::new(case.inner.data.clone(), range)));
            let out = check_parts(&case, &train, &Limits { max_pieces: 4, ..PORT_TUNNEL_CSUM });
            assert_eq!(out.iter().map(|out| out.bytes.len() - head).collect::<Vec<_>>(), [3000, 3000, 1005]);
        }
    }
}

#[test]
fn a_train_in_a_tunnel_is_never_longer_than_its_outer_length_field_can_say() {
    for outer in [v4(0, 1), v6(0)] {
        for checksum in [true, false] {
            let case = Case::new(inner(v6(1), true, 200_000), 1448).within(vxlan(outer.clone(), checksum));
            for max_bytes in [65_535, 500_000] {
                let out = check_parts(&case, &case.train(), &Limits { max_bytes, ..PORT_TUNNEL_CSUM });
                assert_eq!(out.len(), 4);
                assert!(out.iter().all(|out| out.bytes.len() <= 65_535 && out.gso.is_some()));
            }
        }
    }
}

#[test]
fn what_the_fields_of_a_udp_tunnel_do_not_describe_is_cut() {
    let mut cases = 0;
    for packet in inners(500) {
        // IP and GRE in IP, GRE in UDP, remote checksums.
        let tunnels = every_tunnel(is_v4(&packet)).into_iter();
        for tunnel in tunnels.filter(|tunnel| !is_taken(tunnel, &PORT_TUNNEL_CSUM)) {
            check_case(&Case::new(packet.clone(), 150).within(tunnel), &PORT_TUNNEL_CSUM);
            cases += 1;
        }
        // Two levels: UDP in UDP, IP in UDP in IP, UDP in IP in IP.
        let plain = |ip| Tunnel { ip, udp: None, gre: None, ethernet: None };
        let near = |ip| over_udp(ip, Shim::Gue(None), None, true, is_v4(&packet));
        let case = || Case::new(packet.clone(), 150);
        check_case(&case().within(near(v4(2, 5))).within(vxlan(v6(0), true)), &PORT_TUNNEL_CSUM);
        let fou = over_udp(v4(0, 5), Shim::Fou, None, false, false);
        check_case(&case().within(plain(v6(2))).within(fou), &PORT_TUNNEL_CSUM);
        check_case(&case().within(near(v6(2))).within(plain(v4(0, 5))), &PORT_TUNNEL_CSUM);
    }
    assert!(cases > 200, "{cases}");
}

#[test]
fn a_train_in_a_tunnel_needs_the_offloads_of_one_outside_too() {
    for packet in inners(500) {
        let (is_v4, is_tcp) = (is_v4(&packet), matches!(packet.l4, L4::Tcp(_)));
        let case = Case::new(packet, 150).within(vxlan(v4(0, 1), false));
        let lacking = match (is_tcp, is_v4) {
            (true, true) => Limits { tso4: false, ..PORT_TUNNEL_CSUM },
            (true, false) => Limits { tso6: false, ..PORT_TUNNEL_CSUM },
            (false, _) => Limits { uso: false, ..PORT_TUNNEL_CSUM },
        };
        let unnamed = Limits { udp_tunnel: false, ..PORT_TUNNEL_CSUM };
        for limits in [lacking, Limits { csum: false, ..PORT_TUNNEL_CSUM }, unnamed] {
            check_case(&case, &limits);
        }
        // The kind of the outer IP header does not matter.
        let others = match (is_tcp, is_v4) {
            (true, true) => Limits { tso6: false, uso: false, ..PORT_TUNNEL_CSUM },
            (true, false) => Limits { tso4: false, uso: false, ..PORT_TUNNEL_CSUM },
            (false, _) => Limits { tso4: false, tso6: false, ..PORT_TUNNEL_CSUM },
        };
        for around in [v4(0, 1), v6(0)] {
            let case = Case { tunnels: vec![vxlan(around, true)], ..case.clone() };
            assert_eq!(check_parts(&case, &case.train(), &others).len(), 1, "{case:?}");
        }
    }
    // CWR on all segments is left to no port.
    for checksum in [true, false] {
        let case = Case::new(inner(v4(1, 1), true, 500), 150).within(vxlan(v6(0), checksum));
        check_case(&Case { keeps_cwr: true, ..case }, &PORT_TUNNEL_CSUM);
    }
}

#[test]
fn a_described_train_in_a_tunnel_is_loaded_as_the_same_train() {
    for packet in inners(1000) {
        for tunnel in taken_tunnels(is_v4(&packet)) {
            for tags in [vec![], vec![(0x8100, 7)]] {
                let case = Case::new(packet.clone(), 300).within(tunnel.clone());
                let case = Case { ethernet: Some(Ethernet { tags, ..Ethernet::default() }), ..case };
                let train = case.train();
                let out = split_both(&train, &PORT_TUNNEL_CSUM).unwrap().0.remove(0);
                let header = described(&out, &train);
                let bytes = header.emit(Form::Tunnel);
                assert_eq!(VirtioNet::parse(&bytes, Form::Tunnel), Some(header));
                let mut loaded = Packet::default();
                let result = virtio::load(&header, Frag::all(out.bytes.clone()), Start::Ethernet, &mut loaded);
                assert_eq!(result, Ok(Loaded::Ready), "{case:?}");
                let Unit::Train { gso, .. } = train.offload.unit else { panic!("a train") };
                assert_eq!(loaded.offload.unit, Unit::Train { csum: TrainCsum::Partial, gso });
                let udp = if has_checksum(&tunnel) { LayerCsum::Owed } else { LayerCsum::Absent };
                assert_eq!(loaded.offload.layers(), [Layer { udp, ..Layer::NONE }]);
                assert_eq!(loaded.head.bytes(), &out.bytes[..train.head.len()]);
                let again = check_parts(&case, &loaded, &Limits::NONE);
                assert_eq!(again.len(), 4);
                // It may pass to the next port whole.
                let on = check_parts(&case, &loaded, &PORT_TUNNEL_CSUM);
                assert_eq!((on.len(), &on[0].bytes), (1, &out.bytes));
            }
        }
    }
}

#[test]
fn the_worked_example_of_the_fields_of_a_tunnel() {
    // Frame 14, IPv4 20, UDP 8, VXLAN 8, frame 14, IPv4 20, TCP 32; frame 14, IPv6 40, UDP 8, VXLAN 8, frame 14,
    // IPv6 40, UDP 8.
    for (packet, tunnel, expected) in [
        (
            inner(v4(1, 1), true, 3000),
            vxlan(v4(0, 1), true),
            VirtioNet {
                flags: NEEDS_CSUM | UDP_TUNNEL_CSUM,
                gso_type: GSO_TCPV4 | GSO_ECN | GSO_UDP_TUNNEL_IPV4,
                hdr_len: 116,
                gso_size: 1000,
                csum_start: 84,
                csum_offset: 16,
                num_buffers: 1,
                outer_th: 34,
                inner_nh: 64,
                ..VirtioNet::default()
            },
        ),
        (
            inner(v6(1), false, 3000),
            vxlan(v6(0), false),
            VirtioNet {
                flags: NEEDS_CSUM,
                gso_type: GSO_UDP_L4 | GSO_UDP_TUNNEL_IPV6,
                hdr_len: 132,
                gso_size: 1000,
                csum_start: 124,
                csum_offset: 6,
                num_buffers: 1,
                outer_th: 54,
                inner_nh: 84,
                ..VirtioNet::default()
            },
        ),
    ] {
        let case = Case::new(packet, 1000).within(tunnel);
        let case = Case { ethernet: Some(Ethernet::default()), ..case };
        let train = case.train();
        let out = split_both(&train, &PORT_TUNNEL_CSUM).unwrap().0;
        assert_eq!(described(&out[0], &train), expected);
        // A single packet has no fields of a tunnel: its outer checksum is complete.
        let single = split_both(&train, &PORT_TSO).unwrap().0;
        let (csum_start, csum_offset) = (expected.csum_start, expected.csum_offset);
        let of_single =
            VirtioNet { flags: NEEDS_CSUM, csum_start, csum_offset, num_buffers: 1, ..VirtioNet::default() };
        assert_eq!(described(&single[0], &train), of_single);
    }
}
