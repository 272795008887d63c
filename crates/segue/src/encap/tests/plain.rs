//! Tests of which datagrams have only headers to be removed: a result does not show that, since all others give the
//! same packet in more steps.

use super::*;
use crate::checksum::Sum;

const GUE: Carrier = Carrier::Gue { remcsum: false };
const VERIFIED: Received = Received { tos: 0, csum: OuterCsum::Verified, sum: None };
const UDP: &str = "4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869";
const UDP6: &str = "60000000000a1140 20010db8000000000000000000000001 20010db8000000000000000000000002
    03e807d0000a0000 6869";
/// Packets of UDP and TCP whose checksum fields hold the sum of the pseudo-header.
const UDP_PRIMED: &str = "4500001e000040004011aca7c6120101c6120102 03e807d0000a8e43 6869";
const UDP6_PRIMED: &str = "60000000000a1140 20010db8000000000000000000000001 20010db8000000000000000000000002
    03e807d0000a5b90 6869";
const TCP_PRIMED: &str = "4500002800004000400600b8c6120101c6120102 03e800500000000100000001 501000098e420000";
/// An IPv4 header in front of [`UDP`].
const IPV4_IN_IPV4: &str = "4500003200004000400400a0c6120101c6120102";
/// Destination, source and type of a frame.
const ETHERNET: &str = "020000000002 020000000001 0800";

/// Returns how a datagram is taken without being parsed: the first header that is left, the number of bytes in front of
/// it, and the state of its checksum.
fn taken(config: &Config, meta: &Received, datagram: &str) -> Option<(Start, usize, Csum)> {
    let bytes = hex(datagram);
    let frame = Decapsulator::new(opposite(config)).unwrap().pull_frame(Frag::all(bytes.clone()), meta).ok()?;
    assert!(bytes.ends_with(frame.bytes.bytes()), "{datagram}");
    Some((frame.start, bytes.len() - frame.len(), frame.csum))
}

/// Returns whether a tunnel of IPv4 over GUE takes the packet without parsing it.
fn takes(packet: &str, meta: &Received) -> bool {
    taken(&sender(Mode::Ipip, GUE), meta, &format!("00040000 {packet}")).is_some()
}

fn gre(key: Option<u32>, csum: bool, seq: bool) -> Mode {
    Mode::Gre(GreOptions { ikey: key, okey: key, icsum: csum, ocsum: csum, iseq: seq, oseq: seq })
}

fn vxlan() -> Carrier {
    Carrier::Vxlan { vni: 1, remcsum: false, takes_remcsum: false }
}

#[test]
fn a_datagram_of_each_form_has_only_headers_to_be_removed() {
    let frame = format!("{ETHERNET} {UDP}");
    for (mode, carrier, headers, packet, start, len) in [
        (Mode::Ipip, Carrier::Fou, "", UDP, Start::Ip, 0),
        (Mode::Ipip, GUE, "00040000", UDP, Start::Ip, 4),
        (Mode::Ip, GUE, "00290000", UDP6, Start::Ip, 4),
        (Mode::Sit, Carrier::Fou, "", UDP6, Start::Ip, 0),
        (gre(None, false, false), Carrier::Bare, "00000800", UDP, Start::Ip, 4),
        (gre(Some(7), false, false), GUE, "002f0000 20000800 00000007", UDP, Start::Ip, 12),
        (Mode::GreTap(GreOptions::default()), Carrier::Bare, "00006558", frame.as_str(), Start::Ethernet, 4),
        (Mode::Ethernet, vxlan(), "08000000 00000100", frame.as_str(), Start::Ethernet, 8),
        (Mode::Ethernet, Carrier::Geneve { vni: 1 }, "00006558 00000100", frame.as_str(), Start::Ethernet, 8),
    ] {
        let found = taken(&sender(mode, carrier), &VERIFIED, &format!("{headers} {packet}"));
        assert_eq!(found, Some((start, len, Csum::Unknown)), "{mode:?} {carrier:?}");
    }
}

#[test]
fn what_a_port_knows_or_leaves_open_is_for_the_parser() {
    assert!(takes(UDP, &VERIFIED));
    assert!(!takes(UDP, &Received { sum: Some(Sum::ZERO), ..VERIFIED }), "a sum that is known");
    let plain = format!("00040000 {UDP}");
    // A checksum that this host's kernel may have left unfinished is; a finished one has only headers removed.
    let [tcp, udp] = [TCP_PRIMED, UDP_PRIMED].map(|packet| format!("00040000 {packet}"));
    let inside = format!("00040000 {IPV4_IN_IPV4} {UDP}");
    for (datagram, expected) in [(&plain, true), (&udp, false), (&tcp, false), (&inside, false)] {
        let config = sender(Mode::Ipip, GUE);
        assert!(taken(&config, &VERIFIED, datagram).is_some(), "{datagram}");
        let unfinished = Config { unfinished: Some(1400), ..config };
        assert_eq!(taken(&unfinished, &VERIFIED, datagram).is_some(), expected, "{datagram}");
    }
    // An outer checksum that is absent matters to UDP over IPv6, unless it may be.
    let absent = Received { csum: OuterCsum::Absent, ..VERIFIED };
    let over_v6 = |mode, carrier| Config::new(mode, carrier, address("2001:db8::1"), address("2001:db8::2"));
    let may_be = Config { csum: false, zero_csum6: true, ..over_v6(Mode::Ipip, GUE) };
    for (config, datagram, expected) in [
        (sender(Mode::Ipip, GUE), &plain, true),
        (over_v6(Mode::Ipip, GUE), &plain, false),
        (may_be, &plain, true),
        (over_v6(gre(None, false, false), Carrier::Bare), &format!("00000800 {UDP}"), true),
    ] {
        assert_eq!(taken(&config, &absent, datagram).is_some(), expected, "{config:?}");
    }
}

#[test]
fn checksums_and_numbers_of_gre_are_for_the_parser() {
    for (mode, headers) in
        [(gre(None, true, false), "80000800 00000000"), (gre(None, false, true), "10000800 00000001")]
    {
        assert_eq!(taken(&sender(mode, Carrier::Bare), &VERIFIED, &format!("{headers} {UDP}")), None, "{mode:?}");
    }
}

#[test]
fn a_frame_is_plain_with_a_station_and_the_type_of_its_packet() {
    let takes = |ethernet: &str, packet: &str| {
        let datagram = format!("08000000 00000100 {ethernet} {packet}");
        taken(&sender(Mode::Ethernet, vxlan()), &VERIFIED, &datagram).is_some()
    };
    let v6 = ETHERNET.replace("0800", "86dd");
    assert!(takes(ETHERNET, UDP) && takes(&v6, UDP6));
    assert!(!takes(ETHERNET, UDP6) && !takes(&v6, UDP), "the type of the other version");
    assert!(!takes(&ETHERNET.replace("0800", "0806"), UDP), "another type");
    for source in ["030000000001", "000000000000", "ffffffffffff"] {
        assert!(!takes(&ETHERNET.replace("020000000001", source), UDP), "{source}");
    }
    assert!(takes(ETHERNET, &UDP.replace("c6120101", "7f000001")), "addresses in frames are not judged");
}

#[test]
fn a_packet_is_plain_with_its_length_its_version_and_no_options() {
    assert!(!takes(&format!("{UDP} 00"), &VERIFIED), "a trailer");
    assert!(!takes(&UDP[..UDP.len() - 2], &VERIFIED), "a missing byte");
    assert!(!takes(&UDP.replace("c6120101", "7f000001"), &VERIFIED), "a martian");
    assert_eq!(taken(&sender(Mode::Ipip, Carrier::Fou), &VERIFIED, UDP6), None, "a version that the mode has not");
    assert_eq!(taken(&sender(Mode::Ip, GUE), &VERIFIED, &format!("00040000 {UDP6}")), None, "that GUE does not name");
    let options = "460000220000400040110000c6120101c6120102 94040000 03e807d0000afd90 6869";
    assert!(!takes(options, &VERIFIED));
    // Protocols by number: what follows IPv6 may be a further header, what follows IPv4 is a transport.
    for (number, expected) in [(0, false), (43, false), (44, false), (60, false), (17, true), (58, true), (59, true)] {
        let v6 = UDP6.replace("000a1140", &format!("000a{number:02x}40"));
        let found = taken(&sender(Mode::Sit, GUE), &VERIFIED, &format!("00290000 {v6}"));
        assert_eq!(found.is_some(), expected, "{number}");
        assert!(takes(&UDP.replace("4011aca7", &format!("40{number:02x}aca7")), &VERIFIED), "{number}");
    }
}

/// Tests that a packet is plain only where its ECN field stays what it is (RFC 6040, section 4.2).
#[test]
fn a_congestion_mark_that_changes_the_packet_is_for_the_parser() {
    for (inner, outer, expected) in [
        (0, 0, true),
        (0, 2, true),
        (0, 3, false),
        (2, 0, true),
        (2, 2, true),
        (2, 1, false),
        (2, 3, false),
        (3, 3, true),
        (3, 0, true),
    ] {
        let packet = UDP.replacen("4500", &format!("45{:02x}", 0xb8 | inner), 1);
        let found = takes(&packet, &Received { tos: outer, ..VERIFIED });
        assert_eq!(found, expected, "inner {inner}, outer {outer}");
    }
}

/// Tests that a remote checksum option is resolved without the parser where it names the transport checksum of the
/// packet, which holds the sum of its pseudo-header.
#[test]
fn a_remote_checksum_is_plain_where_it_names_the_primed_field() {
    let rco = Carrier::Gue { remcsum: true };
    let frame = format!("{ETHERNET} {UDP_PRIMED}");
    let cases: [(Mode, &str, &str, Start, usize); 5] = [
        (Mode::Ipip, "02040001 80000000 0014001a", UDP_PRIMED, Start::Ip, 12),
        (Mode::Ipip, "02040001 80000000 00140024", TCP_PRIMED, Start::Ip, 12),
        (Mode::Sit, "02290001 80000000 0028002e", UDP6_PRIMED, Start::Ip, 12),
        (gre(None, false, false), "022f0001 80000000 0018001e 00000800", UDP_PRIMED, Start::Ip, 16),
        (Mode::Ethernet, "028f0001 80000000 00220028", &frame, Start::Ethernet, 12),
    ];
    for (mode, headers, packet, start, len) in cases {
        let (config, datagram) = (sender(mode, rco), format!("{headers} {packet}"));
        assert_eq!(taken(&config, &VERIFIED, &datagram), Some((start, len, Csum::Partial)), "{headers}");
        for csum in [OuterCsum::Unknown, OuterCsum::Absent] {
            assert_eq!(taken(&config, &Received { csum, ..VERIFIED }, &datagram), None, "{headers} {csum:?}");
        }
        // A field that is not primed: its lowest bit is another.
        let place = usize::from_str_radix(&headers.replace(' ', "")[20..24], 16).unwrap();
        let mut bytes = hex(&datagram);
        // The option counts from behind its own header.
        bytes[12 + place + 1] ^= 1;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(taken(&config, &VERIFIED, &text), None, "{headers}");
    }
    let udp = |option: &str, packet: &str| {
        taken(&sender(Mode::Ipip, rco), &VERIFIED, &format!("02040001 80000000 {option} {packet}"))
    };
    for option in ["0012001a", "00140018"] {
        assert_eq!(udp(option, UDP_PRIMED), None, "{option}");
    }
    assert_eq!(udp("0014001a", &UDP_PRIMED.replace("000040004011", "000020004011")), None, "a first fragment");
    assert_eq!(udp("0014001a", &UDP_PRIMED.replace("000a8e43", "00098e43")), None, "another length of UDP");
    for words in ["4010", "6010"] {
        assert_eq!(udp("00140024", &TCP_PRIMED.replace("5010", words)), None, "a TCP header of {words}");
    }
    let icmp = "4500001c000040004001acb9c6120101c6120102 0800f7ff00000000";
    assert_eq!(udp("00140016", icmp), None);
}
