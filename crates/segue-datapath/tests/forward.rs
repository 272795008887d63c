//! Tests of the forwarding step: groups, lookups, and the rewritten packets.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use segue::gso::{Frames, Limits, split_linear};
use segue::hash::Key;
use segue::packet::{Frag, Gso, GsoKind, Packet, Start, TrainCsum, Tunnels, Unit};
use segue::time::Nanos;
use segue_datapath::forward::{DropReason, Forwarder, Verdict};
use segue_datapath::group::{Grouper, Reads};
use segue_datapath::icmp::{self, ErrorKind, ErrorLimits, Limiter};
use segue_datapath::route::{Action, Hop, Link, Neighbours, Routes, Table};
use segue_testkit::Rng;
use segue_testkit::build::{self, Ethernet, Ip, L4, Tcp, Udp, V4, V6};
use segue_testkit::oracle::{self, Ports, verify};

type Boxed = Box<Packet<Vec<u8>>>;

fn udp() -> L4 {
    L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true })
}

fn tcp() -> L4 {
    L4::Tcp(Tcp { src_port: 1000, dst_port: 80, seq: 7, ack: 1, flags: 0x18, window: 9, urgent: 0, options: vec![] })
}

fn v4(last: [u8; 2]) -> Ip {
    Ip::V4(V4 { dst: [198, 18, last[0], last[1]], src: [198, 19, 0, 1], ..V4::new(0, 1, 2) })
}

fn v6(host: u8) -> Ip {
    Ip::V6(V6::new(1, 9, host))
}

fn load(bytes: &[u8], start: Start) -> Boxed {
    let mut packet = Box::<Packet<Vec<u8>>>::default();
    packet.load(Frag::all(bytes.to_vec()), start, &Tunnels::NONE);
    packet
}

fn packet(ip: Ip, l4: L4, len: usize) -> Boxed {
    load(&build::Packet { ip, l4, data: Rng::new(len as u64).bytes(len) }.bytes(), Start::Ip)
}

fn bytes(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    bytes.extend(packet.payload.pieces(0..usize::MAX).flatten());
    bytes
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Creates a forwarder with sixteen routes of 198.18.0.0/15 and of 2001:db8:1::/48 by sixteen routers, and some without
/// a next hop.
fn forwarder(reads: Reads, link: Link) -> Forwarder {
    let (mut routes, mut neighbours) = (Routes::new(1000), Neighbours::new(1000));
    for net in 0..16 {
        let via = IpAddr::from([198, 19, 1, net]);
        let action = Action::Forward { port: u16::from(net % 4), via: Some(via), mtu: 1500 };
        for third in 0..16 {
            routes.insert(Table::Main, IpAddr::from([198, 18, net * 16 + third, 0]), 24, action).unwrap();
        }
        neighbours.insert(Hop::new(u16::from(net % 4), Some(via), 0, true), link).unwrap();
    }
    let mut put = |prefix: &str, len, action| routes.insert(Table::Main, address(prefix), len, action).unwrap();
    put("2001:db8:1::", 48, Action::Forward { port: 9, via: None, mtu: 1280 });
    put("198.18.1.7", 32, Action::Unreachable);
    put("198.18.1.8", 32, Action::Prohibited);
    put("198.18.1.9", 32, Action::Blackhole);
    put("198.18.1.10", 32, Action::Local);
    neighbours.insert(Hop { port: 9, is_v4: false, address: u128::from_be_bytes(V6::new(1, 1, 5).dst) }, link).unwrap();
    Forwarder::new(routes, neighbours, reads, 7)
}

const ETHERNET: Link = Link::Ethernet { to: [2, 0, 0, 0, 0, 9], from: [2, 0, 0, 0, 0, 8] };

fn run(forwarder: &mut Forwarder, packets: &mut [Boxed]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    forwarder.batch(3, packets, &mut verdicts);
    verdicts
}

#[test]
fn there_are_no_more_route_lookups_than_keys_and_no_more_neighbour_lookups_than_next_hops() {
    // 512 flows to 512 hosts behind 16 routers, interleaved.
    let mut packets: Vec<Boxed> = Vec::new();
    let mut rng = Rng::new(1);
    for _ in 0..2048 {
        let flow = rng.below(512);
        packets.push(packet(v4([(flow / 2) as u8, (flow % 2) as u8 + 20]), udp(), 10));
    }
    let keys: HashSet<_> = packets.iter().map(|p| p.head.bytes()[16..20].to_vec()).collect();
    let mut forwarder = forwarder(Reads::default(), Link::Bare);
    let verdicts = run(&mut forwarder, &mut packets);
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Send { mtu: 1500, .. })));
    let lookups = forwarder.lookups();
    assert_eq!((lookups.packets, lookups.groups, lookups.routes), (2048, keys.len() as u64, keys.len() as u64));
    assert_eq!(lookups.neighbours, 16);
}

#[test]
fn looking_up_for_groups_and_for_each_packet_comes_to_the_same() {
    let mut rng = Rng::new(5);
    let make = |seed: u64| {
        let mut rng = Rng::new(seed);
        let ip = match rng.below(8) {
            0 => v6(rng.below(7) as u8),
            1 => v4([1, 6 + rng.below(6) as u8]),
            2 => Ip::V4(V4 { dst: [224, 0, 0, 1], ..V4::new(0, 1, 2) }),
            3 => Ip::V4(V4 { ttl: rng.below(3) as u8, dst: [198, 18, 3, 3], ..V4::new(0, 1, 2) }),
            _ => v4([rng.below(256) as u8, rng.below(4) as u8]),
        };
        let len = rng.below(1600);
        let inside = build::Packet { ip, l4: udp(), data: vec![1; len] }.bytes();
        let ethernet = Ethernet { tags: vec![(0x8100, 5)][..rng.below(2)].to_vec(), ..Ethernet::default() };
        match rng.below(2) {
            0 => load(&inside, Start::Ip),
            _ => load(&[&ethernet.wrap(&inside)[..], &[0; 6]].concat(), Start::Ethernet),
        }
    };
    for link in [Link::Bare, ETHERNET] {
        for reads in [Reads::default(), Reads { source: true, tos: true }] {
            for _ in 0..20 {
                let seeds: Vec<u64> = (0..rng.below(200)).map(|_| rng.next_u64() % 300).collect();
                let mut one: Vec<Boxed> = seeds.iter().map(|seed| make(*seed)).collect();
                let mut other: Vec<Boxed> = seeds.iter().map(|seed| make(*seed)).collect();
                let (mut grouped, mut single) = (forwarder(reads, link), forwarder(reads, link));
                let verdicts = run(&mut grouped, &mut one);
                let mut each = Vec::new();
                single.one_by_one(3, &mut other, &mut each);
                assert_eq!(verdicts, each);
                let used: HashSet<_> = grouped.used().collect();
                assert!(used.len() == grouped.used().count() && used == single.used().collect());
                let sent = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Send { .. })).count();
                assert!((sent > 0) <= !used.is_empty());
                let all = |packets: &[Boxed]| packets.iter().map(|packet| bytes(packet)).collect::<Vec<_>>();
                assert_eq!(all(&one), all(&other));
                // A packet that leaves is valid, has a hop limit one lower, and the right link header.
                for ((packet, verdict), seed) in one.iter().zip(&verdicts).zip(&seeds) {
                    let before = make(*seed);
                    if !matches!(verdict, Verdict::Send { .. }) {
                        assert_eq!(bytes(packet), bytes(&before), "{verdict:?}: not touched");
                        continue;
                    }
                    let start = if link == Link::Bare { oracle::Start::Ip } else { oracle::Start::Ethernet };
                    let report = verify(&bytes(packet), start, &Ports::default()).unwrap();
                    let at = before.layout.inner_ip().unwrap().start();
                    let from = if at == 0 { oracle::Start::Ip } else { oracle::Start::Ethernet };
                    let was = verify(&bytes(&before), from, &Ports::default()).unwrap();
                    assert_eq!(report.levels[0].ttl + 1, was.levels[0].ttl);
                    assert_eq!(report.padding, 0);
                    assert_eq!(report.levels[0].dst, was.levels[0].dst);
                }
            }
        }
    }
}

#[test]
fn groups_are_what_the_policy_cannot_tell_apart() {
    let from = |src: u8, tos: u8, dst: u8| {
        let ip = V4 { src: [198, 19, 0, src], tos, dst: [198, 18, 0, dst], ..V4::new(0, 1, 2) };
        packet(Ip::V4(ip), udp(), 1)
    };
    let packets = [from(1, 0, 1), from(2, 0, 1), from(1, 8, 1), from(1, 0, 2), from(1, 0, 1), packet(v6(1), udp(), 1)];
    for (reads, expected) in [
        (Reads::default(), vec![0, 0, 0, 1, 0, 2]),
        (Reads { source: true, tos: false }, vec![0, 1, 0, 2, 0, 3]),
        (Reads { source: false, tos: true }, vec![0, 0, 1, 2, 0, 3]),
        (Reads { source: true, tos: true }, vec![0, 1, 2, 3, 0, 4]),
    ] {
        let mut grouper = Grouper::new(reads, 1);
        for _ in 0..3 {
            grouper.gather(1, packets.iter().map(|packet| &**packet));
            let found: Vec<_> = (0..6).map(|at| grouper.group_of(at).unwrap()).collect();
            assert_eq!(found, expected);
            let total: u32 = grouper.groups().iter().map(|group| group.packets).sum();
            assert_eq!((total, grouper.group_of(6)), (6, None));
        }
    }
}

fn train(ip: Ip, size: u16, df: bool) -> Boxed {
    let ip = match ip {
        Ip::V4(ip) => Ip::V4(V4 { df, ..ip }),
        ip => ip,
    };
    let whole = build::prime(&build::Packet { ip, l4: tcp(), data: vec![3; 20_000] }.bytes()).unwrap();
    let mut packet = load(&whole, Start::Ip);
    let gso = Gso { kind: GsoKind::Tcp, size, fixed_ids: 0 };
    packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
    packet
}

#[test]
fn the_mtu_is_compared_with_segments_and_a_train_passes_whole() {
    let mut forwarder = forwarder(Reads::default(), ETHERNET);
    for (size, passes) in [(1460, true), (1461, false)] {
        for df in [true, false] {
            let mut packets = [train(v4([3, 3]), size, df)];
            let verdict = run(&mut forwarder, &mut packets)[0];
            if !passes && !df {
                // The train is split in front of the port, and its packets are fragmented there.
                assert_eq!(verdict, Verdict::Send { port: 0, mtu: 1500 });
                continue;
            }
            assert_eq!(matches!(verdict, Verdict::Send { .. }), passes, "{verdict:?}");
            if passes {
                let mut frames = Frames::new();
                assert_eq!(split_linear(&packets[0], &Limits::NONE, &mut frames), Ok(14));
                for frame in frames.frames() {
                    let report = verify(frames.bytes(frame), oracle::Start::Ethernet, &Ports::default()).unwrap();
                    assert_eq!((report.levels[0].ttl, report.levels[0].len <= 1500), (63, true));
                }
            } else {
                assert_eq!(verdict, Verdict::Drop { reason: DropReason::TooBig, mtu: 1500 });
            }
        }
    }
    // A single packet without DF is fragmented after this step; with DF, or of IPv6, it is too big.
    let long = |df| packet(Ip::V4(V4 { df, dst: [198, 18, 3, 3], ..V4::new(0, 1, 2) }), udp(), 1600);
    let mut packets = [long(false), long(true), packet(v6(5), udp(), 1240), packet(v6(5), udp(), 1232)];
    let verdicts = run(&mut forwarder, &mut packets);
    assert_eq!(verdicts[0], Verdict::Send { port: 0, mtu: 1500 });
    assert_eq!(verdicts[1], Verdict::Drop { reason: DropReason::TooBig, mtu: 1500 });
    assert_eq!(verdicts[2], Verdict::Drop { reason: DropReason::TooBig, mtu: 1280 });
    assert_eq!(verdicts[3], Verdict::Send { port: 9, mtu: 1280 });
}

#[test]
fn each_reason_to_drop_has_its_name() {
    let mut forwarder = forwarder(Reads::default(), Link::Bare);
    let to = |dst: [u8; 4]| packet(Ip::V4(V4 { dst, ..V4::new(0, 1, 2) }), udp(), 1);
    let from = |src: [u8; 4]| packet(Ip::V4(V4 { src, dst: [198, 18, 3, 3], ..V4::new(0, 1, 2) }), udp(), 1);
    let link_local = |mut ip: V6, is_source: bool| {
        let address = if is_source { &mut ip.src } else { &mut ip.dst };
        (address[0], address[1]) = (0xfe, 0x80);
        packet(Ip::V6(ip), udp(), 1)
    };
    let mut packets = [
        to([203, 0, 113, 1]),
        to([198, 18, 1, 7]),
        to([198, 18, 1, 8]),
        to([198, 18, 1, 9]),
        to([198, 18, 1, 10]),
        to([239, 1, 1, 1]),
        to([255, 255, 255, 255]),
        to([127, 0, 0, 1]),
        to([169, 254, 1, 1]),
        from([127, 0, 0, 1]),
        from([0, 0, 0, 0]),
        from([224, 0, 0, 1]),
        link_local(V6::new(1, 1, 5), false),
        link_local(V6::new(1, 1, 5), true),
        packet(Ip::V6(V6 { hop_limit: 1, ..V6::new(1, 9, 5) }), udp(), 1),
        packet(v6(6), udp(), 1),
        load(&[&[2; 12][..], &[8, 6], &[0; 28]].concat(), Start::Ethernet),
    ];
    let found: Vec<_> = run(&mut forwarder, &mut packets)
        .into_iter()
        .map(|verdict| match verdict {
            Verdict::Drop { reason, .. } => Some(reason),
            Verdict::Local => None,
            Verdict::Send { .. } => panic!("sent"),
        })
        .collect();
    use DropReason::*;
    let expected = [
        Some(NoRoute),
        Some(Unreachable),
        Some(Prohibited),
        Some(Blackhole),
        None,
        Some(Scope),
        Some(Scope),
        Some(Scope),
        Some(Scope),
        Some(Source),
        Some(Source),
        Some(Source),
        Some(Scope),
        Some(Source),
        Some(HopLimit),
        Some(NoNeighbour),
        Some(NotIp),
    ];
    assert_eq!(found, expected);
}

#[test]
fn senders_hear_of_what_was_dropped() {
    let mut scratch = Frames::new();
    let mut answer_to =
        |packet: &Packet<Vec<u8>>, reason, from: &str| icmp::error(packet, reason, 1400, address(from), &mut scratch);
    for (packet, from, reason, expected) in [
        (packet(v4([1, 1]), udp(), 2000), "198.18.0.9", DropReason::HopLimit, [11, 0]),
        (packet(v4([1, 1]), udp(), 2), "198.18.0.9", DropReason::TooBig, [3, 4]),
        (packet(v4([1, 1]), udp(), 2), "198.18.0.9", DropReason::NoRoute, [3, 0]),
        (packet(v4([1, 1]), udp(), 2), "198.18.0.9", DropReason::NoNeighbour, [3, 1]),
        (packet(v4([1, 1]), udp(), 2), "198.18.0.9", DropReason::Prohibited, [3, 13]),
        (packet(v6(5), udp(), 2000), "2001:db8::9", DropReason::HopLimit, [3, 0]),
        (packet(v6(5), udp(), 20), "2001:db8::9", DropReason::TooBig, [2, 0]),
        (packet(v6(5), udp(), 20), "2001:db8::9", DropReason::Prohibited, [1, 1]),
        (train(v4([1, 1]), 1448, true), "198.18.0.9", DropReason::TooBig, [3, 4]),
    ] {
        let reply = answer_to(&packet, reason, from).unwrap();
        let report = verify(&reply, oracle::Start::Ip, &Ports::default()).unwrap();
        let is_v4 = report.levels[0].version == 4;
        assert!(reply.len() <= if is_v4 { 576 } else { 1280 });
        let icmp = if is_v4 { 20 } else { 40 };
        assert_eq!(reply[icmp..icmp + 2], expected);
        if reason == DropReason::TooBig {
            assert_eq!(reply[icmp + 6..icmp + 8], 1400_u16.to_be_bytes());
        }
        assert_eq!(
            report.levels[0].dst,
            if is_v4 { packet.head.bytes()[12..16].to_vec() } else { packet.head.bytes()[8..24].to_vec() }
        );
        // The quoted packet is one as it would have been on the wire.
        let mut frames = Frames::new();
        split_linear(&packet, &Limits::NONE, &mut frames).unwrap();
        let first = frames.bytes(&frames.frames()[0]);
        let quoted = &reply[icmp + 8..];
        assert_eq!(quoted, &first[..quoted.len()]);
    }
    // No error is sent about these.
    let icmp_error = |ip: Ip, kind| packet(ip, L4::Icmp(kind, 0, [0; 4]), 60);
    let later = Ip::V4(V4 { fragment: Some((8, true)), df: false, ..V4::new(0, 1, 2) });
    let to_many = Ip::V4(V4 { dst: [239, 0, 0, 1], ..V4::new(0, 1, 2) });
    let mut wrong = bytes(&packet(v4([1, 1]), udp(), 1));
    wrong[10] ^= 1;
    for (packet, reason, from) in [
        (packet(v4([1, 1]), udp(), 1), DropReason::Blackhole, "198.18.0.9"),
        (packet(v4([1, 1]), udp(), 1), DropReason::Source, "198.18.0.9"),
        (packet(v4([1, 1]), udp(), 1), DropReason::NoRoom, "198.18.0.9"),
        (packet(v6(5), udp(), 1), DropReason::NoRoom, "2001:db8::9"),
        (packet(v4([1, 1]), udp(), 1), DropReason::HopLimit, "2001:db8::9"),
        (icmp_error(v4([1, 1]), 3), DropReason::HopLimit, "198.18.0.9"),
        (icmp_error(v4([1, 1]), 11), DropReason::HopLimit, "198.18.0.9"),
        (icmp_error(v6(5), 1), DropReason::HopLimit, "2001:db8::9"),
        (icmp_error(v4([1, 1]), 5), DropReason::HopLimit, "198.18.0.9"),
        (icmp_error(v6(5), 137), DropReason::HopLimit, "2001:db8::9"),
        (packet(later, L4::Raw(17), 64), DropReason::HopLimit, "198.18.0.9"),
        (packet(to_many, udp(), 1), DropReason::HopLimit, "198.18.0.9"),
        (load(&wrong, Start::Ip), DropReason::HopLimit, "198.18.0.9"),
    ] {
        assert_eq!(answer_to(&packet, reason, from), None);
    }
    let part_v6 =
        |offset, l4, len| packet(Ip::V6(V6 { fragment: Some((7, offset, true)), ..V6::new(1, 9, 5) }), l4, len);
    for extensions in [vec![], vec![(0, vec![0; 6])]] {
        let ip = Ip::V6(V6 { fragment: Some((7, 0, true)), extensions, ..V6::new(1, 9, 5) });
        assert_eq!(
            answer_to(&icmp_error(ip, 1), DropReason::HopLimit, "2001:db8::9"),
            None,
            "the first fragment of an error"
        );
    }
    assert_eq!(answer_to(&part_v6(0, L4::Raw(58), 0), DropReason::HopLimit, "2001:db8::9"), None, "it may be one");
    // Errors are sent about these.
    for (reason, expected) in [(DropReason::TooBig, [2, 0]), (DropReason::HopLimit, [3, 0])] {
        for part in
            [part_v6(0, udp(), 1440), part_v6(0, L4::Icmp(128, 0, [0; 4]), 1440), part_v6(1448, L4::Raw(58), 99)]
        {
            let reply = answer_to(&part, reason, "2001:db8::9").unwrap();
            assert_eq!(reply[40..42], expected);
            let quoted = &reply[48..];
            assert_eq!(quoted, &bytes(&part)[..quoted.len()]);
        }
    }
    assert!(answer_to(&icmp_error(v4([1, 1]), 8), DropReason::HopLimit, "198.18.0.9").is_some());
    for query in [9, 10, 17, 42] {
        assert!(answer_to(&icmp_error(v4([1, 1]), query), DropReason::HopLimit, "198.18.0.9").is_some());
    }
    assert!(answer_to(&icmp_error(v6(5), 128), DropReason::HopLimit, "2001:db8::9").is_some());
}

/// Tests that an ICMP error has a TTL or hop limit of its own, precedence 6, and quotes as much of the packet as fits
/// into 576 or 1280 bytes (RFC 1812, sections 4.3.2.2, 4.3.2.3 and 4.3.2.5; RFC 4443, section 2.4 (c)).
#[test]
fn errors_have_a_hop_limit_and_a_precedence_of_their_own_and_quote_all_that_fits() {
    let mut scratch = Frames::new();
    let worn_v4 = Ip::V4(V4 { ttl: 1, tos: 0x28, dst: [198, 18, 1, 1], ..V4::new(0, 1, 2) });
    let worn_v6 = Ip::V6(V6 { hop_limit: 1, ..V6::new(1, 9, 5) });
    for (ip, from, most) in [(worn_v4, "198.18.0.9", 576), (worn_v6, "2001:db8::9", 1280)] {
        let is_v4 = most == 576;
        let room = most - if is_v4 { 28 } else { 48 };
        let header = if is_v4 { 28 } else { 48 };
        for (data, quoted) in [(2000, room), (room - header, room), (room - header - 1, room - 1), (0, header)] {
            let expired = packet(ip.clone(), udp(), data);
            let reply = icmp::error(&expired, DropReason::HopLimit, 0, address(from), &mut scratch).unwrap();
            verify(&reply, oracle::Start::Ip, &Ports::default()).unwrap();
            let ends = if is_v4 { (reply[8], reply[1]) } else { (reply[7], reply[0]) };
            assert_eq!(ends, (64, if is_v4 { 0xc0 } else { 0x60 }));
            let begin = reply.len() - quoted;
            assert_eq!((begin, &reply[begin..]), (most - room, &bytes(&expired)[..quoted]), "{data} bytes of data");
        }
    }
}

/// Tests that an IPv6 datagram with a zero UDP checksum is forwarded unchanged, on the same route as one with a
/// checksum (RFC 6936, section 5, requirements 8 and 10).
#[test]
fn ipv6_datagrams_with_and_without_a_checksum_take_the_same_way() {
    let mut forwarder = forwarder(Reads::default(), Link::Bare);
    let datagram = |checksum| packet(v6(5), L4::Udp(Udp { src_port: 1000, dst_port: 4789, checksum }), 100);
    let mut packets = [datagram(true), datagram(false)];
    let before: Vec<_> = packets.iter().map(|packet| bytes(packet)).collect();
    assert!(before[0][46..48] != [0, 0] && before[1][46..48] == [0, 0]);
    assert_eq!(run(&mut forwarder, &mut packets), [Verdict::Send { port: 9, mtu: 1280 }; 2]);
    assert_eq!(forwarder.lookups().groups, 1);
    for (packet, mut expected) in packets.iter().zip(before) {
        // The hop limit.
        expected[7] -= 1;
        assert_eq!(bytes(packet), expected);
    }
}

#[test]
fn errors_are_limited() {
    let second = 1_000_000_000;
    let mut limiter = Limiter::new(10, 5, Nanos(0));
    let mut take = |now| (0..100).filter(|_| limiter.take(Nanos(now))).count();
    assert_eq!([take(0), take(0), take(second / 2), take(second * 100), take(second * 100)], [5, 0, 5, 5, 0]);
}

#[test]
fn a_sender_is_not_charged_for_errors_that_the_limit_of_all_senders_holds_back() {
    const MILLISECOND: u64 = 1_000_000;
    let mut limits = ErrorLimits::new(Key([1, 2]), Nanos(0));
    let mut take =
        |sender: u32, now: u64| limits.take(ErrorKind::TimeExceeded, Ipv4Addr::from_bits(sender).into(), Nanos(now));
    // Forged senders use up all that there is.
    assert_eq!((1000..3000).filter(|forged| take(*forged, 0)).count(), 200);
    assert!((0..100).all(|_| !take(1, 0)));
    assert!(take(1, MILLISECOND), "there is one for all again, and the sender has all of its own");
}
