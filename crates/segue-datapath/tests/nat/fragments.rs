//! Tests of fragmented datagrams: each is fragmented, translated piece by piece, reassembled by the oracle, and
//! compared with the translated unfragmented datagram.

use segue_testkit::fragment::{fragments, reassemble};

use super::*;

const LONG: usize = 5000;

/// Translates fragments in order of arrival; those before the first fragment are retried after it.
fn through(nat: &mut Nat, pieces: &[Vec<u8>], is_outbound: bool) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut done = Vec::new();
    let mut waiting: Vec<Boxed> = Vec::new();
    let mut translate = |packet: &mut Boxed| match is_outbound {
        true => nat.outbound(packet, Nanos(0), &mut copy),
        false => nat.inbound(packet, Nanos(0), &mut copy),
    };
    for piece in pieces {
        let mut packet = load(piece);
        let is_first = Part::of(&packet).is_some_and(|part| part.is_first);
        match translate(&mut packet)? {
            Done::FirstMissing => {
                assert_eq!(bytes(&packet), *piece);
                waiting.push(packet);
                continue;
            }
            _ => done.push(bytes(&packet)),
        }
        for mut packet in if is_first { std::mem::take(&mut waiting) } else { Vec::new() } {
            assert_eq!(translate(&mut packet), Ok(Done::Translated));
            done.push(bytes(&packet));
        }
    }
    assert!(waiting.is_empty());
    Ok(done)
}

/// Returns the same packet with another identification.
fn numbered(mut packet: build::Packet, id: u16) -> build::Packet {
    if let Ip::V4(ip) = &mut packet.ip {
        ip.id = id;
    }
    packet
}

fn shuffle<T>(list: &mut [T], rng: &mut Rng) {
    (1..list.len()).for_each(|at| list.swap(at, rng.below(at + 1)));
}

fn id_of(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[4], packet[5]])
}

/// Returns one packet of each kind that has a port or identifier; that of ICMP is a query, or the server's reply.
fn kinds(from: Endpoint, to: Endpoint) -> [build::Packet; 4] {
    let mut bare = udp(from, to, LONG);
    bare.l4 = L4::Udp(Udp { src_port: from.1, dst_port: to.1, checksum: false });
    let kind = if from == SERVER { 0 } else { 8 };
    let mut ping = echo(from.0, to.0, kind, from.1.max(to.1));
    ping.data = Rng::new(3).bytes(LONG);
    [udp(from, to, LONG), bare, tcp(from, to, 0x18, LONG), ping]
}

#[test]
fn a_datagram_arrives_whole_in_any_order_of_its_fragments() {
    let mut rng = Rng::new(5);
    for (kind, mtu) in (0..4).flat_map(|kind| [576, 1500].map(|mtu| (kind, mtu))) {
        for _ in 0..6 {
            // The outside port differs from the inside one.
            let mut nat = nat(|config| config.ports = (40_000, 60_000));
            let whole = &kinds(CLIENT, SERVER)[kind];
            let expected = out(&mut nat, whole, 0).unwrap();
            let mut pieces = fragments(&whole.bytes(), mtu, 0);
            shuffle(&mut pieces, &mut rng);
            let left = reassemble(&through(&mut nat, &pieces, true).unwrap()).unwrap();
            assert!(left == expected, "kind {kind}, MTU {mtu}");
            // Without a checksum none is added.
            if kind != 1 {
                judge(&left);
            }
            let port = nat.mappings(Nanos(0)).next().unwrap().outside;
            let answer = &kinds(SERVER, (OUTSIDE, port))[kind];
            let expected = into(&mut nat, answer, 0).unwrap();
            let mut pieces = fragments(&answer.bytes(), mtu, 0);
            shuffle(&mut pieces, &mut rng);
            let came = reassemble(&through(&mut nat, &pieces, false).unwrap()).unwrap();
            assert!(came == expected, "kind {kind}, MTU {mtu}, on its way back");
        }
    }
}

#[test]
fn hosts_that_use_one_identification_do_not_share_it_outside() {
    let mut nat = nat(|_| ());
    let mut seen = Vec::new();
    for host in 1..=200 {
        let whole = numbered(udp(([198, 18, 0, host], 7000), SERVER, LONG), 77);
        let pieces = fragments(&whole.bytes(), 1500, 0);
        let left = through(&mut nat, &pieces, true).unwrap();
        let mut twice = load(&pieces[0]);
        nat.outbound(&mut twice, Nanos(0), &mut copy).unwrap();
        assert_eq!(bytes(&twice), left[0], "a fragment that comes twice stays what it is");
        judge(&reassemble(&left).unwrap());
        seen.push(id_of(&left[0]));
    }
    assert_eq!(seen[0], 77);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 200);
    // To another destination the identification is free.
    let other = numbered(udp(([198, 18, 0, 9], 7000), ([198, 19, 0, 2], 80), LONG), 77);
    let left = through(&mut nat, &fragments(&other.bytes(), 1500, 0), true).unwrap();
    assert_eq!(id_of(&left[0]), 77);
}

#[test]
fn all_fragments_of_a_refused_datagram_are_dropped() {
    let mut nat = nat(|_| ());
    let stray = fragments(&udp(SERVER, (OUTSIDE, 9), LONG).bytes(), 1500, 0);
    for piece in &stray {
        let found = nat.inbound(&mut load(piece), Nanos(0), &mut copy);
        assert_eq!(found, Err(Refusal::NoMapping));
    }
    // A header in two fragments is refused (RFC 1858, section 3).
    for (whole, len) in [(udp(CLIENT, SERVER, 100), 0), (tcp(CLIENT, SERVER, 2, 100), 16)] {
        let Ip::V4(ip) = ip(CLIENT.0, SERVER.0) else { unreachable!() };
        let protocol = whole.bytes()[9];
        let ip = Ip::V4(V4 { id: 9 + len as u16, df: false, fragment: Some((0, true)), ..ip });
        let data = whole.bytes()[20..20 + len].to_vec();
        let tiny = build::Packet { ip, l4: L4::Raw(protocol), data };
        assert_eq!(out(&mut nat, &tiny, 0), Err(Refusal::TinyFragment));
    }
    let Ip::V4(ip) = ip(CLIENT.0, SERVER.0) else { unreachable!() };
    let esp = Ip::V4(V4 { df: false, fragment: Some((0, true)), ..ip });
    let esp = build::Packet { ip: esp, l4: L4::Raw(50), data: vec![1; 40] };
    assert_eq!(out(&mut nat, &esp, 0), Err(Refusal::Protocol));
}

#[test]
fn hairpinned_fragments_follow_their_first_fragment() {
    let mut nat = nat(|_| ());
    let (a, b) = (CLIENT, ([198, 18, 0, 2], 2000));
    out(&mut nat, &udp(b, SERVER, 1), 0).unwrap();
    let mut left = Vec::new();
    for piece in fragments(&udp(a, (OUTSIDE, 2000), LONG).bytes(), 1500, 0) {
        let mut packet = load(&piece);
        assert_eq!(nat.outbound(&mut packet, Nanos(0), &mut copy), Ok(Done::Hairpin));
        left.push(bytes(&packet));
    }
    assert!(reassemble(&left).unwrap() == numbered(udp((OUTSIDE, a.1), b, LONG), 5).bytes());
}

#[test]
fn a_flood_of_first_fragments_takes_no_more_than_its_room() {
    let mut nat = nat(|_| ());
    let own = fragments(&numbered(udp(CLIENT, SERVER, LONG), 1).bytes(), 1500, 0);
    let later = |nat: &mut Nat, now| nat.outbound(&mut load(&own[1]), Nanos(now), &mut copy);
    assert_eq!(later(&mut nat, 0), Ok(Done::FirstMissing));
    nat.outbound(&mut load(&own[0]), Nanos(0), &mut copy).unwrap();
    assert_eq!(later(&mut nat, 15 * SECOND), Ok(Done::Translated));
    assert_eq!(later(&mut nat, 15 * SECOND + 1), Ok(Done::FirstMissing), "its time is over");
    let flood = |nat: &mut Nat, count: u32| {
        for number in 0..count {
            let whole = numbered(udp(([198, 18, 7, (number >> 15) as u8], 1), SERVER, 1500), number as u16 & 0x7fff);
            nat.outbound(&mut load(&fragments(&whole.bytes(), 1500, 0)[0]), Nanos(0), &mut copy).unwrap();
        }
    };
    nat.outbound(&mut load(&own[0]), Nanos(0), &mut copy).unwrap();
    flood(&mut nat, 4000);
    assert_eq!(later(&mut nat, 0), Ok(Done::Translated));
    flood(&mut nat, 100_000);
    assert_eq!(later(&mut nat, 0), Ok(Done::FirstMissing), "the oldest made room");
    nat.outbound(&mut load(&own[0]), Nanos(0), &mut copy).unwrap();
    assert_eq!(later(&mut nat, 0), Ok(Done::Translated), "in order they pass all the same");
}

/// Returns the first fragment of a datagram from a host, with the given identification.
fn first_of(host: u8, id: u16) -> Vec<u8> {
    fragments(&numbered(udp(([198, 18, 7, host], 1), SERVER, 1500), id).bytes(), 1500, 0).swap_remove(0)
}

#[test]
fn the_oldest_of_4096_datagrams_makes_room() {
    let own = fragments(&numbered(udp(CLIENT, SERVER, LONG), 1).bytes(), 1500, 0);
    let later = |nat: &mut Nat| nat.outbound(&mut load(&own[1]), Nanos(0), &mut copy);
    let first = |nat: &mut Nat, piece: &[u8]| {
        assert_eq!(nat.outbound(&mut load(piece), Nanos(0), &mut copy), Ok(Done::Translated));
    };
    let mut nat = nat(|_| ());
    first(&mut nat, &own[0]);
    (0..4095).for_each(|id| first(&mut nat, &first_of(1, id)));
    assert_eq!(later(&mut nat), Ok(Done::Translated));
    // A first fragment that comes again makes its datagram the youngest.
    first(&mut nat, &own[0]);
    first(&mut nat, &first_of(1, 4095));
    assert_eq!(later(&mut nat), Ok(Done::Translated));
    (4096..8190).for_each(|id| first(&mut nat, &first_of(1, id)));
    assert_eq!(later(&mut nat), Ok(Done::Translated));
    first(&mut nat, &first_of(1, 8190));
    assert_eq!(later(&mut nat), Ok(Done::FirstMissing));
    // One that comes again and again takes the room of 8192 at most.
    first(&mut nat, &own[0]);
    let again = first_of(2, 1);
    (0..8191).for_each(|_| first(&mut nat, &again));
    assert_eq!(later(&mut nat), Ok(Done::Translated));
    first(&mut nat, &again);
    assert_eq!(later(&mut nat), Ok(Done::FirstMissing));
}

#[test]
fn what_is_remembered_of_datagrams_ends_with_their_time() {
    let mut nat = nat(|_| ());
    assert!(nat.is_empty());
    // Without a mapping only the refusal is remembered.
    let stray = fragments(&udp(SERVER, (OUTSIDE, 9), LONG).bytes(), 1500, 0);
    nat.inbound(&mut load(&stray[0]), Nanos(0), &mut copy).unwrap_err();
    assert_eq!((nat.len(), nat.is_empty()), (0, false));
    nat.expire(Nanos(15 * SECOND));
    assert!(!nat.is_empty());
    nat.expire(Nanos(15 * SECOND + 1));
    assert!(nat.is_empty());
    // A mapping, then a mapping and a datagram of 16 s later, one of which comes again.
    out(&mut nat, &udp(CLIENT, SERVER, 1), 0).unwrap();
    assert!(!nat.is_empty());
    let own = fragments(&numbered(udp(CLIENT, SERVER, LONG), 1).bytes(), 1500, 0);
    for (second, piece) in [(0, &own[0]), (1, &own[0])] {
        nat.outbound(&mut load(piece), Nanos(second * SECOND), &mut copy).unwrap();
    }
    nat.expire(Nanos(16 * SECOND));
    assert_eq!(nat.outbound(&mut load(&own[1]), Nanos(16 * SECOND), &mut copy), Ok(Done::Translated));
    nat.expire(Nanos(17 * SECOND));
    assert_eq!(nat.outbound(&mut load(&own[1]), Nanos(16 * SECOND), &mut copy), Ok(Done::FirstMissing));
    assert!(!nat.is_empty(), "the mapping is there");
}

#[test]
fn an_identification_is_free_again_once_its_datagram_is_over() {
    let mut nat = nat(|_| ());
    let mut leave = |host, second| {
        let mut packet = load(&first_of(host, 77));
        nat.expire(Nanos(second * SECOND));
        nat.outbound(&mut packet, Nanos(second * SECOND), &mut copy).unwrap();
        id_of(&bytes(&packet))
    };
    assert_eq!(leave(1, 0), 77);
    assert_ne!(leave(2, 0), 77);
    assert_eq!(leave(3, 16), 77);
    assert_ne!(leave(1, 16), 77);
}

#[test]
fn a_first_fragment_with_a_udp_header_and_nothing_else_is_translated() {
    let whole = udp(CLIENT, SERVER, 100).bytes();
    let Ip::V4(ip) = ip(CLIENT.0, SERVER.0) else { unreachable!() };
    let ip = Ip::V4(V4 { df: false, fragment: Some((0, true)), ..ip });
    let least = build::Packet { ip, l4: L4::Raw(17), data: whole[20..28].to_vec() };
    let left = out(&mut nat(|config| config.ports = (40_000, 40_000)), &least, 0).unwrap();
    assert_eq!((&left[12..16], &left[20..22]), (&OUTSIDE[..], &40_000_u16.to_be_bytes()[..]));
}

#[test]
fn a_datagram_is_remembered_for_fifteen_seconds_and_a_translator_with_one_is_not_empty() {
    let mut nat = nat(|_| ());
    assert!(nat.is_empty());
    let stray = fragments(&udp(SERVER, (OUTSIDE, 9), LONG).bytes(), 1500, 0);
    let enter = |nat: &mut Nat, piece: usize, now| nat.inbound(&mut load(&stray[piece]), Nanos(now), &mut copy);
    assert_eq!(enter(&mut nat, 0, 7), Err(Refusal::NoMapping));
    assert_eq!((nat.len(), nat.is_empty()), (0, false));
    let last = 7 + 15 * SECOND;
    nat.expire(Nanos(last));
    assert!(!nat.is_empty());
    assert_eq!(enter(&mut nat, 1, last), Err(Refusal::NoMapping));
    assert_eq!(enter(&mut nat, 1, last + 1), Ok(Done::FirstMissing));
    nat.expire(Nanos(last + 1));
    assert!(nat.is_empty());
    // Nor is one with a mapping alone.
    out(&mut nat, &udp(CLIENT, SERVER, 1), last + 2).unwrap();
    assert_eq!((nat.len(), nat.is_empty()), (1, false));
}
