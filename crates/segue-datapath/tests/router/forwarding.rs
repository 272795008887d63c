//! Tests of packets with unusual headers: long chains of extension headers, lengths that disagree, wrong checksums,
//! addresses that are not those of one host, options of Geneve that no router knows.

use segue_datapath::knobs::Knobs;
use segue_testkit::build::{Shim, Tunnel, V6};

use super::*;

/// Returns the frame of an IPv6 datagram with these extension headers from the client to the host 2001:db8:2::2.
fn extended(extensions: Vec<(u8, Vec<u8>)>, hop_limit: u8, len: usize) -> Vec<u8> {
    let (src, dst) = (v6(1, 2).octets(), v6(2, 2).octets());
    let ip = Ip::V6(V6 { src, dst, hop_limit, extensions, ..V6::new(1, 0, 0) });
    link(0).wrap(&Packet { ip, l4: udp(), data: vec![7; len] }.bytes())
}

/// Returns the Ethernet header of frames to the router's `port`.
fn link(port: usize) -> Ethernet {
    Ethernet { dst: OWN[port], src: [CLIENT, OLD][port], tags: Vec::new() }
}

/// Returns the neighbours at 2001:db8:1::2 and 2001:db8:2::2.
fn neighbours() -> [Neighbour; 2] {
    let at = |port, mac| {
        let hop = Hop { port, is_v4: false, address: v6(port + 1, 2).to_bits() };
        Neighbour { hop, mac, is_permanent: true }
    };
    [at(0, CLIENT), at(1, OLD)]
}

/// Tests that a router forwards by the fixed header whatever extension headers follow (RFC 8200, section 4; RFC 7045).
#[test]
fn ipv6_packets_with_extension_headers_of_any_length_are_forwarded() {
    // Destination options of this length.
    let with = |len: u8| (60, [vec![1, len - 4], vec![0; usize::from(len) - 4]].concat());
    for extensions in [vec![with(96)], vec![with(104)], vec![with(200)], vec![with(8); 6], vec![with(8); 7]] {
        in_both_forms(|| {
            let mut here = Bench::new(1400);
            here.tables(0, &neighbours());
            let frame = extended(extensions.clone(), 64, 100);
            here.give(0, vec![frame.clone()]);
            here.round(0);
            let mut expected = [&OLD[..], &OWN[1], &frame[12..]].concat();
            expected[21] = 63;
            assert_eq!(here.sent(1), [expected], "{extensions:?}");
            // The sender is told that it is too long, or that the hop limit has run out.
            here.give(0, vec![extended(extensions.clone(), 64, 1400), extended(extensions.clone(), 1, 1)]);
            here.round(0);
            here.round(1_000_000);
            let errors: Vec<u8> = here.sent(0).iter().map(|frame| frame[54]).collect();
            assert_eq!((here.sent(1).len(), errors), (0, vec![2, 3]), "{extensions:?}");
            assert_eq!(here.number("in", Group::Port, "local"), 0);
        });
    }
}

/// Tests that a packet whose length exceeds its frame is a drop, and no packet for the host.
#[test]
fn packets_whose_header_cannot_be_read_are_counted_as_no_ip() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &neighbours());
        let mut long = [segment(64, 1, 100), extended(Vec::new(), 64, 100)];
        long[0][17] += 1;
        long[1][19] += 1;
        here.give(0, long.to_vec());
        // Another protocol is not for the router.
        here.give(0, vec![[&OWN[0][..], &CLIENT, &[0x88, 0xcc], &[0; 46]].concat()]);
        here.rounds(0);
        assert_eq!((here.sent(0).len(), here.sent(1).len()), (0, 0));
        let counts = (here.number("in", Group::Drops, "route_not_ip"), here.number("in", Group::Port, "local"));
        assert_eq!(counts, (2, 1));
    });
}

/// Returns the frame of an IPv4 packet without DF from the client to the server.
fn free(l4: L4, data: Vec<u8>) -> Vec<u8> {
    let ip = Ip::V4(V4 { src: [198, 18, 1, 2], dst: [198, 18, 2, 2], df: false, id: 9, ..V4::new(0, 0, 0) });
    link(0).wrap(&Packet { ip, l4, data }.bytes())
}

fn udp() -> L4 {
    L4::Udp(Udp { src_port: 7, dst_port: 9, checksum: true })
}

/// Tests that fragmentation repairs no header checksum, and that a packet that fits keeps its wrong one.
#[test]
fn a_packet_with_a_wrong_header_checksum_is_not_fragmented() {
    in_both_forms(|| {
        let mut here = Bench::new(1400);
        here.tables(0, &[by_hand(OLD)]);
        for len in [1000, 1472] {
            let mut wrong = free(udp(), vec![7; len]);
            wrong[25] ^= 1;
            here.give(0, vec![wrong, free(udp(), vec![7; len])]);
        }
        here.rounds(0);
        let sent: Vec<usize> = here.sent(1).iter().map(Vec::len).collect();
        assert_eq!(sent, [1042, 1042, 1410, 138]);
        assert_eq!(here.number("out", Group::Drops, "gso_ip_checksum"), 1);
    });
}

/// Tests that a router fragments by the length of the outermost packet, whatever the lengths inside say: options behind
/// a UDP datagram (RFC 9868), and bytes behind a packet in a tunnel. What is behind the outermost packet is padding.
/// Tests that link padding counts neither towards the MTU nor leaves, also where a length inside ends early.
#[test]
fn padding_is_cut_off_whatever_the_lengths_inside_say() {
    for flags in [0, 0x40] {
        let mut frame = free(udp(), vec![7; 1372]);
        frame[38] -= 1;
        frame[20] |= flags;
        in_both_forms(|| {
            let mut here = Bench::new(1400);
            here.tables(0, &[by_hand(OLD)]);
            here.give(0, vec![[&frame[..], &[0xee; 20]].concat()]);
            here.round(0);
            assert_eq!((here.sent(0).len(), here.number("out", Group::Drops, "too_big")), (0, 0), "{flags}");
            let sent = here.sent(1);
            assert!(sent.len() == 1 && sent[0][26..] == frame[26..], "{flags}: {} frames", sent.len());
        });
    }
}

#[test]
fn packets_with_bytes_behind_what_they_carry_are_fragmented_whole() {
    let mut behind_udp = free(udp(), vec![7; 1472]);
    behind_udp[38] -= 1;
    let inner = Packet { ip: Ip::V4(V4::new(9, 1, 2)), l4: udp(), data: vec![7; 100] }.bytes();
    let behind_ip = free(L4::Raw(4), [&inner[..], &[7; 1300]].concat());
    let behind_gre = free(L4::Raw(47), [&[0, 0, 8, 0], &inner[..], &[7; 1300]].concat());
    for frame in [behind_udp, behind_ip, behind_gre] {
        for padding in [0, 20] {
            in_both_forms(|| {
                let mut here = Bench::new(1400);
                here.tables(0, &[by_hand(OLD)]);
                here.give(0, vec![[&frame[..], &vec![0xee; padding]].concat()]);
                here.round(0);
                let sent: Vec<Vec<u8>> = here.sent(1).iter().map(|frame| frame[14..].to_vec()).collect();
                assert_eq!((sent.len(), here.number("out", Group::Drops, "gso_trailing")), (2, 0));
                // In their order (RFC 4787, REQ-13 a).
                let offsets = sent.iter().map(|packet| u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff);
                assert!(offsets.is_sorted());
                let mut whole = reassemble(&sent).unwrap();
                // The hop count, and with it the checksum, are others.
                assert_eq!(whole[8], 63);
                whole[8] = 64;
                whole[10..12].copy_from_slice(&frame[24..26]);
                assert!(whole == frame[14..], "{padding}");
            });
        }
    }
}

/// Tests that ICMP errors are limited over IPv6 too (RFC 4443, section 2.4 (f)), and that those about too long packets
/// have a limit of their own (section 3.2).
#[test]
fn errors_over_ipv6_are_limited_and_packet_too_big_passes_beside_others() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &neighbours());
        let to_client = |host: u16, hop_limit: u8, len: usize| {
            let src = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, host).octets();
            let ip = Ip::V6(V6 { src, dst: v6(1, 2).octets(), hop_limit, ..V6::new(1, 0, 0) });
            link(1).wrap(&Packet { ip, l4: udp(), data: vec![7; len] }.bytes())
        };
        here.give(1, (0..2000).map(|host| to_client(host, 1, 10)).collect());
        here.rounds(0);
        let told = |here: &Bench| here.number("out", Group::Port, "icmp_errors");
        assert_eq!((told(&here), here.number("out", Group::Drops, "route_hop_limit")), (200, 2000));
        here.give(1, vec![to_client(1, 64, 1500)]);
        here.rounds(0);
        assert_eq!((told(&here), here.number("out", Group::Drops, "route_too_big")), (201, 1));
    });
}

/// Tests that packets from outside whose source is of the inside network, or an address of this host, reach no inside
/// host, neither by its mapping nor by its own address, and cause no error there (RFC 6092, REC-6), unless the check is
/// switched off for the outside, where that of the inside can stay strict.
#[test]
fn sources_of_the_inside_are_dropped_where_they_come_from_outside() {
    let mapped = ([198, 18, 2, 100], 7000);
    let genuine = [[198, 18, 2, 2], [198, 19, 0, 5], [203, 0, 113, 5]];
    // Two other hosts inside, the host of the mapping, and this host.
    let forged = [[198, 18, 1, 77], [10, 1, 0, 5], [198, 18, 1, 2], [192, 0, 2, 9]];
    for (mode, passed, dropped) in [(1, 4, 6), (2, 9, 0), (0, 9, 0), (3, 9, 0)] {
        in_both_forms(|| {
            let mut here = Bench::with_nat(1500, Some(mapped.0.into()));
            here.local = Some([192, 0, 2, 9].into());
            here.tables(SECOND, &[&[by_hand(OLD)], &neighbours()[..]].concat());
            if mode != 1 {
                let knobs = Knobs::of(|dial| here.router.tune(dial));
                knobs.set("net.route.source_check", mode).unwrap();
                knobs.follow(&mut 0, |dial| here.router.tune(dial));
            }
            here.give(0, vec![short(0, 64, ([198, 18, 1, 2], 7000), ([198, 18, 2, 2], 9))]);
            // A host inside with an address of the outside.
            here.give(0, vec![short(0, 64, ([198, 18, 2, 77], 7), ([198, 18, 2, 2], 9))]);
            here.rounds(SECOND);
            let dropped_inside = here.number("in", Group::Drops, "route_reverse_path");
            assert_eq!(dropped_inside, u64::from(mode == 1 || mode == 3), "{mode}");
            let over_v6 = |src: Ipv6Addr| {
                let ip = Ip::V6(V6 { src: src.octets(), dst: v6(1, 2).octets(), ..V6::new(1, 0, 0) });
                link(1).wrap(&Packet { ip, l4: udp(), data: vec![7; 10] }.bytes())
            };
            here.give(1, genuine.iter().chain(&forged).map(|from| short(1, 64, (*from, 9), mapped)).collect());
            here.give(1, vec![over_v6(v6(2, 9)), over_v6(v6(1, 9)), short(1, 1, (forged[0], 9), mapped)]);
            here.rounds(SECOND);
            here.rounds(SECOND + 1_000_000);
            let sent = here.sent(0);
            let to_client = sent.iter().filter(|frame| frame[..6] == CLIENT).count();
            let counted = here.number("out", Group::Drops, "route_reverse_path");
            assert_eq!((to_client, counted), (passed, dropped), "{mode}");
            // An error to the forged sender would have it asked for.
            assert_eq!(sent.len() > to_client, mode != 1, "{mode}");
        });
    }
}

/// Tests that senders behind a port without an address of its own, or with link-local ones alone, as an uplink may
/// have, hear what stops their packets from an address of the other port (RFC 4443, sections 2.2, 3.2 and 3.3).
#[test]
fn errors_to_a_port_without_a_global_address_come_from_one_of_the_other_port() {
    in_both_forms(|| {
        let mut here = Bench::new(1400);
        let mut routes = Routes::new(4);
        for port in [0, 1] {
            let action = Action::Forward { port, via: None, mtu: 1400 };
            routes.insert(Table::Main, [198, 18, port as u8 + 1, 0].into(), 24, action).unwrap();
            routes.insert(Table::Main, v6(port + 1, 0).into(), 64, action).unwrap();
        }
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let inside =
            InterfaceAddrs { mac: OWN[0], mtu: 1400, v4: vec![([198, 18, 1, 1].into(), 24)], v6: vec![(v6(1, 1), 64)] };
        let outside = InterfaceAddrs { mac: OWN[1], mtu: 1400, v4: Vec::new(), v6: vec![(link_local, 64)] };
        let neighbours = [&[by_hand(OLD)], &neighbours()[..]].concat();
        let tables = Tables { routes, ports: [inside, outside], neighbours };
        assert!(here.sender.send(Message::Tables(Box::new(tables))));
        here.round(0);
        let to_client = |hop_limit: u8, len: usize| {
            let (src, dst) = (v6(2, 2).octets(), v6(1, 2).octets());
            let ip = Ip::V6(V6 { src, dst, hop_limit, ..V6::new(1, 0, 0) });
            link(1).wrap(&Packet { ip, l4: udp(), data: vec![7; len] }.bytes())
        };
        let over_v4 = short(1, 1, ([198, 18, 2, 2], 9), ([198, 18, 1, 2], 7));
        for (now, frame) in [(0, to_client(1, 10)), (2_000_000, to_client(64, 1400)), (4_000_000, over_v4)] {
            here.give(1, vec![frame]);
            here.rounds(now);
            here.rounds(now + 1_000_000);
        }
        let sent = here.sent(1);
        // Time exceeded, packet too big, and time exceeded of IPv4.
        let [exceeded, too_big, over_v4] = &sent[..] else { panic!("{sent:x?}") };
        assert_eq!((&exceeded[22..38], exceeded[54]), (&v6(1, 1).octets()[..], 3));
        assert_eq!((&too_big[22..38], too_big[54]), (&v6(1, 1).octets()[..], 2));
        assert_eq!((&over_v4[26..30], over_v4[34]), (&[198, 18, 1, 1][..], 11));
    });
}

/// Tests that no ICMP error is sent about packets from and to reserved addresses (240.0.0.0/4) and limited and directed
/// broadcasts (RFC 1812, section 4.3.2.7), nor about packets from anycast addresses (RFC 4443, section 2.4 (e.6)), and
/// that they use up none of the rate limit.
#[test]
fn packets_from_and_to_addresses_that_are_not_one_hosts_cause_no_error() {
    // A host on each side; with the address 203.0.113.9 there is no route.
    const HOSTS: [[u8; 4]; 2] = [[198, 18, 1, 2], [198, 18, 2, 2]];
    let shared = [[240, 0, 0, 5], [255, 255, 255, 254], [255; 4], [198, 18, 1, 255], [198, 18, 2, 255]];
    let short_v6 = |port: usize, hop_limit, src: Ipv6Addr, dst: Ipv6Addr| {
        let ip = Ip::V6(V6 { src: src.octets(), dst: dst.octets(), hop_limit, ..V6::new(1, 0, 0) });
        link(port).wrap(&Packet { ip, l4: udp(), data: vec![7; 10] }.bytes())
    };
    for has_source_check in [true, false] {
        in_both_forms(|| {
            let mut here = Bench::new(1500);
            here.tables(0, &[&[by_hand(OLD)], &neighbours()[..]].concat());
            if !has_source_check {
                let knobs = Knobs::of(|dial| here.router.tune(dial));
                knobs.set("net.route.source_check", 0).unwrap();
                knobs.follow(&mut 0, |dial| here.router.tune(dial));
            }
            let mut given = Vec::new();
            for port in [0, 1] {
                let (near, far) = (HOSTS[port], HOSTS[1 - port]);
                given.extend(shared.map(|address| (port, short(port, 1, (address, 7), (far, 9)))));
                given.extend(shared.map(|address| (port, short(port, 64, (address, 7), ([203, 0, 113, 9], 9)))));
                given.extend(shared.map(|address| (port, short(port, 1, (near, 7), (address, 9)))));
                let (own, other) = (port as u16 + 1, 2 - port as u16);
                given.push((port, short_v6(port, 1, v6(own, 0), v6(other, 2))));
                given.push((port, short_v6(port, 64, v6(other, 0), Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 9))));
            }
            let count = given.len() as u64;
            given.into_iter().for_each(|(port, frame)| here.give(port, vec![frame]));
            here.rounds(0);
            here.rounds(1_000_000);
            assert_eq!((here.sent(0), here.sent(1)), (Vec::new(), Vec::new()));
            let counters = counters(&here.router);
            let all = |group, key: &str| -> u64 {
                counters.iter().filter(|((_, of, name), _)| *of == group && name.starts_with(key)).map(|(_, n)| n).sum()
            };
            assert_eq!(all(Group::Port, "icmp_errors"), 0);
            assert_eq!(all(Group::Drops, "route_") + all(Group::Port, "local"), count, "each is dropped or local");
            // The same packets from one host to another cause an error each.
            for port in [0, 1] {
                let (near, far) = (HOSTS[port], HOSTS[1 - port]);
                let to_far = [(1, far), (64, [203, 0, 113, 9])].map(|(ttl, to)| short(port, ttl, (near, 7), (to, 9)));
                let (own, other) = (port as u16 + 1, 2 - port as u16);
                here.give(port, [&to_far[..], &[short_v6(port, 1, v6(own, 2), v6(other, 2))]].concat());
                here.rounds(2_000_000);
                here.rounds(3_000_000);
                assert_eq!((here.sent(port).len(), here.sent(1 - port).len()), (3, 0), "port {port}");
            }
        });
    }
}

/// Tests that a router, as a transit device, forwards a Geneve packet whatever its flags and options are: unchanged but
/// for the TTL, over IPv4 with its checksum (RFC 8926, section 3.4).
#[test]
fn geneve_packets_with_unknown_critical_options_are_forwarded() {
    let inner = Packet { ip: Ip::V4(V4::new(9, 1, 2)), l4: udp(), data: vec![7; 100] }.bytes();
    let outer = [
        Ip::V4(V4 { src: [198, 18, 1, 2], dst: [198, 18, 2, 2], ..V4::new(0, 0, 0) }),
        Ip::V6(V6 { src: v6(1, 2).octets(), dst: v6(2, 2).octets(), ..V6::new(1, 0, 0) }),
    ];
    for ip in outer {
        let header = Udp { src_port: 50_000, dst_port: 6081, checksum: false };
        let ethernet = Some(Ethernet::default());
        let tunnel = Tunnel { ip: ip.clone(), udp: Some((header, Shim::Geneve(42, 3))), gre: None, ethernet };
        let datagram = tunnel.wrap(&inner);
        let geneve = if matches!(ip, Ip::V4(_)) { 28 } else { 48 };
        assert_eq!(datagram[geneve..geneve + 12], [3, 0, 0x65, 0x58, 0, 0, 42, 0, 1, 2, 3, 2], "one option");
        // The offset of a byte, and what is set there: a critical option, one with the flag C, the flag O, a version.
        let changes = [(10, 0x80), (1, 0x40), (1, 0x80), (0, 0x40)];
        let changed = changes.map(|(at, bits)| {
            let mut changed = datagram.clone();
            changed[geneve + at] |= bits;
            changed[geneve + 10] |= 0x80;
            link(0).wrap(&changed)
        });
        in_both_forms(|| {
            let mut here = Bench::new(1500);
            here.tables(0, &[&[by_hand(OLD)], &neighbours()[..]].concat());
            here.give(0, changed.to_vec());
            here.rounds(0);
            let (sent, expected) = (
                here.sent(1),
                changed.clone().map(|mut frame| {
                    frame.splice(..12, [OLD, OWN[1]].concat());
                    match ip {
                        Ip::V4(_) => set_field(&mut frame, 22, 0x3f11),
                        Ip::V6(_) => frame[21] = 63,
                    }
                    frame
                }),
            );
            assert_eq!(sent, expected);
        });
    }
}
