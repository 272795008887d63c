//! Tests of the order in which mappings are evicted, of limits that are reached exactly, and of the times and ports of
//! mappings.

use segue::time::Nanos;
use segue_datapath::nat::{Done, Nat, Protocol, Refusal};
use segue_testkit::build::{self, L4, Udp};

use super::{
    CLIENT, Endpoint, OUTSIDE, SECOND, SERVER, Talk, echo, error, into, into_bytes, ip, judge, load, nat, out, tcp, udp,
};

const STRANGER: Endpoint = ([198, 19, 7, 7], 9999);

/// Returns the client's endpoint with the given port.
fn own(port: u16) -> Endpoint {
    (CLIENT.0, port)
}

/// Returns another host's endpoint with the given port.
fn other(port: u16) -> Endpoint {
    ([198, 18, 0, 2], port)
}

fn send_request(nat: &mut Nat, from: Endpoint, now: u64) -> Result<(), Refusal> {
    out(nat, &udp(from, SERVER, 1), now).map(drop)
}

/// Sends a request, its answer, and another request, so that the mapping is kept.
fn send_request_and_answer(nat: &mut Nat, from: Endpoint, now: u64) -> Result<(), Refusal> {
    let left = out(nat, &udp(from, SERVER, 1), now)?;
    into(nat, &udp(SERVER, (OUTSIDE, judge(&left).transport.unwrap().ports.0), 1), now)?;
    send_request(nat, from, now)
}

/// Returns the inside ports of the mappings that are alive, in the order of their numbers.
fn ports(nat: &Nat) -> Vec<u16> {
    let mut ports: Vec<u16> = nat.mappings(Nanos(0)).map(|mapping| mapping.inside.1).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn the_mapping_that_was_used_least_recently_gives_way() {
    // By the limit of a host, and by that of the table.
    for (most, most_per_host) in [(100, 3), (3, 100)] {
        let mut nat = nat(|config| (config.most, config.most_per_host) = (most, most_per_host));
        for port in [1, 2, 3] {
            send_request(&mut nat, own(port), u64::from(port)).unwrap();
        }
        // 1 is used again; a packet of a stranger is no use of 2.
        send_request(&mut nat, own(1), 4).unwrap();
        into(&mut nat, &udp(STRANGER, (OUTSIDE, 2), 1), 5).unwrap_err();
        let outside = nat.mappings(Nanos(0)).find(|mapping| mapping.inside.1 == 2).unwrap().outside;
        into(&mut nat, &udp(STRANGER, (OUTSIDE, outside), 1), 5).unwrap();
        for (port, left) in [(4, [1, 3, 4]), (5, [1, 4, 5]), (6, [4, 5, 6]), (7, [5, 6, 7])] {
            send_request(&mut nat, own(port), 5 + u64::from(port)).unwrap();
            assert_eq!(ports(&nat), left);
        }
        assert_eq!((nat.len(), nat.early_drops()), (3, 4));
    }
}

#[test]
fn a_tcp_mapping_gives_way_until_it_is_open_and_once_it_is_over() {
    // Steps of the connection, and whether its mapping gives way to the next one of its host.
    let open: &[(bool, u8)] = &[(true, 2), (false, 0x12), (true, 0x10)];
    for (more, is_dropped) in [
        (None, true),
        (Some(&[][..]), false),
        (Some(&[(false, 0x14)]), true),
        (Some(&[(true, 0x14)]), true),
        (Some(&[(true, 0x11), (false, 0x11)]), true),
        (Some(&[(false, 0x14), (true, 2), (false, 0x12), (true, 0x10)]), false),
    ] {
        let (mut nat, mut talk) = (nat(|config| config.most_per_host = 2), Talk::default());
        let steps = more.map_or(open[..1].to_vec(), |more: &[(bool, u8)]| [open, more].concat());
        for (is_outbound, flags) in steps {
            talk.send(&mut nat, is_outbound, SERVER, flags, 0, 0).unwrap();
        }
        send_request(&mut nat, own(1), 1).unwrap();
        send_request(&mut nat, own(2), 2).unwrap();
        let is_there = ports(&nat).contains(&CLIENT.1);
        assert_eq!(is_there, !is_dropped, "{more:x?}");
        // The lists are whole: the others give way, too.
        send_request(&mut nat, own(3), 3).unwrap();
        assert_eq!(nat.len(), 2);
        assert!(ports(&nat).contains(&3));
    }
}

#[test]
fn a_host_with_as_many_mappings_gives_up_none_for_another() {
    let mut nat = nat(|config| (config.most, config.most_per_host) = (4, 4));
    for from in [own(1), own(2), other(1), other(2)] {
        send_request_and_answer(&mut nat, from, 0).unwrap();
    }
    assert_eq!(send_request(&mut nat, own(3), 0), Err(Refusal::Full));
    assert_eq!(send_request(&mut nat, other(3), 0), Err(Refusal::Full));
    assert_eq!((nat.len(), nat.early_drops()), (4, 0));
    assert_eq!(nat.forward(Protocol::Udp, 53, (CLIENT.0.into(), 53)), Err(Refusal::Full));
}

#[test]
fn a_host_has_room_again_for_what_has_ended_and_no_more() {
    let mut nat = nat(|config| config.most_per_host = 4);
    send_request_and_answer(&mut nat, own(1), 0).unwrap();
    for port in 2..=4 {
        send_request_and_answer(&mut nat, own(port), 100 * SECOND).unwrap();
    }
    let refused = |nat: &mut Nat, now| assert_eq!(send_request(nat, own(9), now * SECOND), Err(Refusal::HostFull));
    refused(&mut nat, 200);
    nat.expire(Nanos(301 * SECOND));
    assert_eq!(nat.len(), 3);
    send_request_and_answer(&mut nat, own(5), 301 * SECOND).unwrap();
    refused(&mut nat, 302);
    nat.expire(Nanos(1000 * SECOND));
    assert!(nat.is_empty());
    for port in 1..=4 {
        send_request_and_answer(&mut nat, own(port), 1000 * SECOND).unwrap();
    }
    refused(&mut nat, 1001);
}

/// Tests that mappings that have ended count for nothing before they are swept, and that a packet of a host whose other
/// mappings are alive looks at a few of them only.
#[test]
fn a_host_at_its_limit_gets_the_place_of_what_has_ended_before_it_is_swept() {
    let mut nat = nat(|config| config.most_per_host = 40);
    for port in 1..=40 {
        // Those of 33 to 40 are over first.
        send_request_and_answer(&mut nat, own(port), if port <= 32 { SECOND } else { 0 }).unwrap();
    }
    let mut send = |port, now| send_request_and_answer(&mut nat, own(port), now);
    assert_eq!(send(100, 300 * SECOND), Err(Refusal::HostFull));
    // The places of 17 to 32 are next, and then those that are over.
    assert_eq!(send(101, 300 * SECOND + 1), Err(Refusal::HostFull));
    assert_eq!((101..=108).filter(|port| send(*port, 300 * SECOND + 1).is_ok()).count(), 8);
    for port in 109..=130 {
        assert_eq!(send(port, 300 * SECOND + 1), Err(Refusal::HostFull));
    }
    // All have ended: as many as before find a place at once.
    assert!((200..240).all(|port| send(port, 1000 * SECOND).is_ok()));
    assert_eq!((nat.len(), nat.early_drops()), (40, 0));
}

/// Tests that requests which leave before their answers come find places among ended mappings, and take none of each
/// other.
#[test]
fn requests_that_leave_together_take_the_places_of_what_has_ended() {
    let mut nat = nat(|config| config.most_per_host = 40);
    (1..=40).for_each(|port| send_request_and_answer(&mut nat, own(port), 0).unwrap());
    (100..110).for_each(|port| send_request(&mut nat, own(port), 1000 * SECOND).unwrap());
    assert_eq!((ports(&nat).iter().filter(|port| **port >= 100).count(), nat.early_drops()), (10, 0));
}

/// Tests that the mapping of a hairpinned packet's sender takes the place of another mapping than the one that the
/// packet is for.
#[test]
fn a_packet_between_two_hosts_inside_does_not_evict_the_mapping_that_it_is_for() {
    for limit in ["table", "host", "ports"] {
        let mut nat = nat(|config| match limit {
            "table" => config.most = 2,
            "host" => config.most_per_host = 2,
            _ => config.ports = (40_000, 40_001),
        });
        send_request(&mut nat, own(1), 0).unwrap();
        send_request(&mut nat, own(2), 1).unwrap();
        let target = nat.mappings(Nanos(1)).find(|mapping| mapping.inside.1 == 1).unwrap().outside;
        // From the host of the mapping itself, which has no room for another one.
        let mut packet = load(&udp(own(3), (OUTSIDE, target), 9).bytes());
        assert_eq!(nat.outbound(&mut packet, Nanos(2), &mut super::copy), Ok(Done::Hairpin), "{limit}");
        assert_eq!(
            super::bytes(&packet)[16..24],
            [198, 18, 0, 1, packet.head.bytes()[20], packet.head.bytes()[21], 0, 1]
        );
        assert_eq!((ports(&nat), nat.early_drops()), (vec![1, 3], 1), "{limit}");
        // Where there is no other one, the packet is refused.
        send_request_and_answer(&mut nat, own(3), 3).unwrap();
        let mut packet = load(&udp(own(4), (OUTSIDE, target), 9).bytes());
        assert!(nat.outbound(&mut packet, Nanos(4), &mut super::copy).is_err(), "{limit}");
        assert_eq!(ports(&nat), [1, 3], "{limit}");
    }
}

#[test]
fn a_host_with_more_mappings_gives_up_another_one_than_that_which_a_hairpinned_packet_is_for() {
    // Both mappings were answered; the limit is that of the table, or the ports.
    for (most, last, seed) in (0..16).flat_map(|seed| [(2, u16::MAX, seed), (99, 2001, seed)]) {
        let mut nat = nat(|config| (config.most, config.ports, config.seed) = (most, (2000, last), seed));
        for port in [2000, 2001] {
            send_request_and_answer(&mut nat, other(port), 0).unwrap();
        }
        let mut packet = load(&udp(([198, 18, 0, 3], 7), (OUTSIDE, 2000), 5).bytes());
        assert_eq!(nat.outbound(&mut packet, Nanos(2), &mut super::copy), Ok(Done::Hairpin));
        assert_eq!((ports(&nat), nat.early_drops()), (vec![7, 2000], 1));
    }
}

#[test]
fn an_icmp_mapping_lives_for_a_minute() {
    for (second, is_alive) in [(60, true), (61, false)] {
        let mut nat = nat(|_| ());
        out(&mut nat, &echo(CLIENT.0, SERVER.0, 8, 5555), 0).unwrap();
        let answer = echo(SERVER.0, OUTSIDE, 0, 5555);
        assert_eq!(into(&mut nat, &answer, second * SECOND).is_ok(), is_alive, "{second} s");
    }
}

#[test]
fn ports_that_are_not_kept_are_spread_over_the_range() {
    let mut nat = nat(|_| ());
    let ports: Vec<u16> = (1..=60)
        .map(|host| {
            let left = out(&mut nat, &udp(([198, 18, 1, host], 5555), SERVER, 1), 0).unwrap();
            judge(&left).transport.unwrap().ports.0
        })
        .collect();
    // Each quarter of the range has several of 59, and few follow each other.
    for quarter in 0..4 {
        let count = ports[1..].iter().filter(|port| (usize::from(**port) - 1024) / 16_128 == quarter).count();
        assert!(count > 3, "{count} in quarter {quarter}: {ports:?}");
    }
    assert!(ports.windows(2).filter(|two| two[0].abs_diff(two[1]) < 64).count() < 10, "{ports:?}");
}

#[test]
fn a_udp_checksum_that_becomes_zero_is_sent_as_all_ones() {
    // The data is chosen so that the translated packet sums to all ones.
    let with = |word: u16| build::Packet {
        ip: ip(CLIENT.0, SERVER.0),
        l4: L4::Udp(Udp { src_port: CLIENT.1, dst_port: SERVER.1, checksum: true }),
        data: word.to_be_bytes().to_vec(),
    };
    let checksum = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let mut nat = nat(|config| config.ports = (40_000, 40_009));
    let word = checksum(&out(&mut nat, &with(0), 0).unwrap(), 26);
    let left = out(&mut nat, &with(word), 0).unwrap();
    assert_eq!(checksum(&left, 26), 0xffff);
    judge(&left);
    // TCP has no such rule.
    let with = |word: u16| build::Packet { data: word.to_be_bytes().to_vec(), ..tcp(CLIENT, SERVER, 0x18, 0) };
    let word = checksum(&out(&mut nat, &with(0), 0).unwrap(), 36);
    let left = out(&mut nat, &with(word), 0).unwrap();
    assert_eq!(checksum(&left, 36), 0);
    judge(&left);
}

#[test]
fn errors_about_what_has_no_ports_to_translate_are_refused() {
    let mut nat = nat(|_| ());
    out(&mut nat, &udp(CLIENT, SERVER, 300), 0).unwrap();
    let quoted = udp((OUTSIDE, CLIENT.1), SERVER, 300).bytes();
    let changed = |at: usize, value: u8| {
        let mut bytes = quoted.clone();
        bytes[at] = value;
        bytes
    };
    for (quoted, reason) in [
        // IPv6 with the length of an IPv4 header, a later fragment, and a protocol without ports.
        (changed(0, 0x65), Refusal::Malformed),
        (changed(7, 1), Refusal::Fragment),
        (changed(9, 50), Refusal::Protocol),
    ] {
        assert_eq!(into(&mut nat, &error(STRANGER.0, OUTSIDE, 3, &quoted, 100), 0), Err(reason));
    }
    assert!(into(&mut nat, &error(STRANGER.0, OUTSIDE, 3, &quoted, 100), 0).is_ok());
}

/// Tests that options of the quoted packet are skipped, that its transport checksum is not checked, and that trailing
/// data is kept (RFC 5508, REQ-3 b to d).
#[test]
fn errors_about_packets_with_options_and_wrong_checksums_are_translated() {
    let options = |mut packet: build::Packet| {
        let build::Ip::V4(ip) = &mut packet.ip else { unreachable!() };
        // Record route, with room for two addresses.
        ip.options = vec![7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0];
        packet
    };
    let router = [203, 0, 113, 1];
    for sent in [udp(CLIENT, SERVER, 100), tcp(CLIENT, SERVER, 0x18, 100)].map(options) {
        let mut nat = nat(|config| config.ports = (40_000, 60_000));
        let mut left = out(&mut nat, &sent, 0).unwrap();
        let mut quoted = sent.bytes();
        for bytes in [&mut left, &mut quoted] {
            // The last byte of data, and an extension of the error after it (RFC 4884).
            *bytes.last_mut().unwrap() ^= 0x55;
            bytes.extend([0x20, 0, 0xfd, 0x3e, 0, 8, 1, 1, 0, 1, 0x11, 0x01]);
        }
        let came = into(&mut nat, &error(router, OUTSIDE, 11, &left, 200), 0).unwrap();
        assert_eq!(came, error(router, CLIENT.0, 11, &quoted, 200).bytes());
    }
}

/// Tests that wrong checksums of an error, and of the IP header that it quotes, are updated and not corrected: they are
/// wrong by as much as before (RFC 5508, REQ-3).
#[test]
fn wrong_checksums_of_errors_and_of_quoted_headers_stay_wrong() {
    let router = [203, 0, 113, 1];
    let mut nat = nat(|config| config.ports = (40_000, 60_000));
    let sent = udp(CLIENT, SERVER, 100);
    let left = out(&mut nat, &sent, 0).unwrap();
    // Adds to a field, in the arithmetic of checksums.
    let spoil = |bytes: &mut [u8], at: usize| {
        let sum = u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]])) + 0x1234;
        bytes[at..at + 2].copy_from_slice(&((sum & 0xffff) as u16 + (sum >> 16) as u16).to_be_bytes());
    };
    // Of the message, and of the quoted header.
    for at in [22, 38] {
        let mut wrong = error(router, OUTSIDE, 11, &left, 200).bytes();
        let mut expected = error(router, CLIENT.0, 11, &sent.bytes(), 200).bytes();
        spoil(&mut wrong, at);
        spoil(&mut expected, at);
        assert_eq!(into_bytes(&mut nat, &wrong, 0), Ok(expected), "{at}");
    }
}

/// Tests that ICMP errors do not refresh a mapping (RFC 5508, REQ-6).
#[test]
fn errors_in_neither_direction_refresh_a_mapping() {
    let mut nat = nat(|_| ());
    let left = out(&mut nat, &udp(CLIENT, SERVER, 50), 0).unwrap();
    let answer = udp(SERVER, CLIENT, 50).bytes();
    let mut last = 0;
    for second in (10..1000).step_by(10) {
        let now = second * SECOND;
        let from_outside = into(&mut nat, &error(STRANGER.0, OUTSIDE, 3, &left, 60), now).is_ok();
        let from_inside = out(&mut nat, &error(CLIENT.0, SERVER.0, 3, &answer, 60), now).is_ok();
        assert_eq!(from_outside, from_inside, "{second} s");
        if from_inside {
            last = second;
        }
    }
    assert_eq!(last, 300);
}

#[test]
fn errors_between_two_hosts_inside_need_a_packet_of_the_one_to_the_other() {
    let mut nat = nat(|_| ());
    let (a, b) = (own(1111), other(2222));
    for from in [a, b] {
        out(&mut nat, &udp(from, SERVER, 1), 0).unwrap();
        out(&mut nat, &echo(from.0, SERVER.0, 8, from.1), 0).unwrap();
    }
    let mut hairpin = |quoted: &build::Packet| out_of(&mut nat, &error(b.0, OUTSIDE, 3, &quoted.bytes(), 60));
    assert_eq!(hairpin(&udp((OUTSIDE, 1111), b, 50)), Ok(()));
    // The source is another host with that port.
    assert_eq!(hairpin(&udp((SERVER.0, 1111), b, 50)), Err(Refusal::NoMapping));
    // Queries are not hairpinned.
    assert_eq!(hairpin(&echo(OUTSIDE, b.0, 8, 2222)), Err(Refusal::NoMapping));
}

fn out_of(nat: &mut Nat, packet: &build::Packet) -> Result<(), Refusal> {
    nat.outbound(&mut load(&packet.bytes()), Nanos(0), &mut super::copy).map(drop)
}

#[test]
fn a_buffer_of_another_length_is_not_taken() {
    let mut nat = nat(|config| config.ports = (500, 600));
    let mut packet = load(&echo(CLIENT.0, SERVER.0, 8, 1).bytes());
    let mut short = |bytes: &[u8]| Some(bytes[1..].to_vec());
    assert_eq!(nat.outbound(&mut packet, Nanos(0), &mut short), Err(Refusal::Memory));
    assert_eq!(super::bytes(&packet), echo(CLIENT.0, SERVER.0, 8, 1).bytes());
}

/// Tests that the next port cannot be predicted from outside (RFC 6056, section 3).
#[test]
fn the_search_for_a_port_begins_at_each_place_of_the_range_equally_often() {
    let mut found = [0; 8];
    for seed in 0..800 {
        let mut nat = nat(|config| (config.ports, config.seed) = ((40_000, 40_007), seed));
        send_request(&mut nat, own(7), 0).unwrap();
        let port = nat.mappings(Nanos(0)).next().unwrap().outside;
        found[usize::from(port - 40_000)] += 1;
    }
    assert!(found.iter().all(|count| (60..=140).contains(count)), "{found:?}");
}
