//! Tests of datagrams that a tunnel must refuse, each with the reason it is counted under.

use super::*;

const RCO: Carrier = Carrier::Gue { remcsum: true };
const UDP: &str = "4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869";
const UDP_PRIMED: &str = "4500001e000040004011aca7c6120101c6120102 03e807d0000a8e43 6869";
const UDP6: &str = "60000000000a1140 20010db8000000000000000000000001 20010db8000000000000000000000002
    03e807d0000a0000 6869";
const VERIFIED: Received = Received { tos: 0, csum: OuterCsum::Verified, sum: None };

/// Decapsulates a UDP payload; returns the inner packet or the reason for refusing it.
fn fate_at(mode: Mode, carrier: Carrier, meta: &Received, datagram: &str) -> Result<Vec<u8>, DecapRefusal> {
    let mut out = load(&hex(UDP));
    let result =
        Decapsulator::new(opposite(&sender(mode, carrier))).unwrap().pull(Frag::all(hex(datagram)), meta, &mut out);
    if result.is_err() {
        assert!(out.is_empty() && out.layout.headers().is_empty(), "nothing stays behind");
    }
    result.map(|()| bytes_of(&out))
}

/// Decapsulates a UDP payload at a GUE port for IPv4.
fn fate(datagram: &str) -> Result<Vec<u8>, DecapRefusal> {
    fate_at(Mode::Ipip, RCO, &VERIFIED, datagram)
}

fn gre(key: Option<u32>, csum: bool, seq: bool) -> Mode {
    Mode::Gre(GreOptions { ikey: key, okey: key, icsum: csum, ocsum: csum, iseq: seq, oseq: seq })
}

#[test]
fn the_datagrams_that_the_others_are_made_from_are_good() {
    assert_eq!(fate(&format!("00040000 {UDP}")), Ok(hex(UDP)));
    assert_eq!(fate(&format!("02040001 80000000 0014001a {UDP_PRIMED}")), Ok(hex(UDP_PRIMED)));
    assert_eq!(fate(UDP), Ok(hex(UDP)));
}

#[test]
fn an_unknown_standard_flag() {
    for flag in 1..16 {
        assert_eq!(fate(&format!("0004{:04x} {UDP}", 1 << flag)), Err(DecapRefusal::GueFlags));
    }
    // The form of the later drafts, which Linux does not support either.
    assert_eq!(fate(&format!("01040200 0014001a {UDP_PRIMED}")), Err(DecapRefusal::GueFlags));
}

#[test]
fn an_unknown_private_flag() {
    for flag in 0..31 {
        let word = 0x8000_0000u32 | 1 << flag;
        assert_eq!(fate(&format!("02040001 {word:08x} 0014001a {UDP_PRIMED}")), Err(DecapRefusal::GueFlags));
    }
}

#[test]
fn private_flags_in_a_header_without_room_for_them() {
    assert_eq!(fate(&format!("00040001 80000000 0014001a {UDP_PRIMED}")), Err(DecapRefusal::GueHeaderLen));
}

#[test]
fn a_remote_checksum_in_a_header_without_room_for_it() {
    assert_eq!(fate(&format!("01040001 80000000 0014001a {UDP_PRIMED}")), Err(DecapRefusal::GueHeaderLen));
}

#[test]
fn a_header_longer_than_the_datagram() {
    assert_eq!(fate("1f040000 0000"), Err(DecapRefusal::GueTruncated));
    assert_eq!(fate(""), Err(DecapRefusal::GueTruncated));
    assert_eq!(fate("0004"), Err(DecapRefusal::GueTruncated));
}

#[test]
fn a_remote_checksum_field_past_the_end() {
    for option in ["0014001e", "0014fffe", "0000fffe"] {
        let datagram = format!("02040001 80000000 {option} {UDP_PRIMED}");
        assert_eq!(fate(&datagram), Err(DecapRefusal::RemcsumBounds), "{option}");
    }
}

#[test]
fn a_remote_checksum_start_past_the_end() {
    for option in ["001e001e", "fffefffe"] {
        let datagram = format!("02040001 80000000 {option} {UDP_PRIMED}");
        assert_eq!(fate(&datagram), Err(DecapRefusal::RemcsumBounds), "{option}");
    }
}

#[test]
fn a_remote_checksum_field_before_its_start() {
    for option in ["001c001a", "00140000", "ffff001a"] {
        let datagram = format!("02040001 80000000 {option} {UDP_PRIMED}");
        assert_eq!(fate(&datagram), Err(DecapRefusal::RemcsumOrder), "{option}");
    }
}

#[test]
fn a_remote_checksum_field_at_an_odd_distance() {
    for option in ["0014001b", "0013001a"] {
        let datagram = format!("02040001 80000000 {option} {UDP_PRIMED}");
        assert_eq!(fate(&datagram), Err(DecapRefusal::RemcsumOrder), "{option}");
    }
}

#[test]
fn a_remote_checksum_place_that_no_header_has() {
    // Into the IP header, the ports, the payload; the right field with another start; the place of a GRE checksum.
    for option in ["0000000a", "00140014", "0014001c", "0000001a", "0012001a", "00140018", "00000004"] {
        let datagram = format!("02040001 80000000 {option} {UDP_PRIMED}");
        assert_eq!(fate(&datagram), Err(DecapRefusal::RemcsumField), "{option}");
    }
}

#[test]
fn a_remote_checksum_in_a_packet_without_transport() {
    let icmp = "4500001c000040004001acb9c6120101c6120102 0800f7ff00000000";
    assert_eq!(fate(&format!("02040001 80000000 00140016 {icmp}")), Err(DecapRefusal::RemcsumField));
    let fragment = UDP_PRIMED.replace("4500001e000040004011aca7", "4500001e000020004011cca7");
    assert_eq!(fate(&format!("02040001 80000000 0014001a {fragment}")), Err(DecapRefusal::RemcsumField));
}

#[test]
fn a_remote_gre_checksum_in_a_header_without_one() {
    let datagram = format!("022f0001 80000000 00000004 00000800 {UDP}");
    assert_eq!(fate_at(gre(None, false, false), RCO, &VERIFIED, &datagram), Err(DecapRefusal::RemcsumField));
}

#[test]
fn a_remote_gre_checksum_that_is_not_zero() {
    let datagram = |field| format!("022f0001 80000000 00000004 80000800 {field}0000 {UDP}");
    let fate = |field| fate_at(gre(None, true, false), RCO, &VERIFIED, &datagram(field));
    assert_eq!(fate("0000"), Ok(hex(UDP)));
    assert_eq!(fate("1234"), Err(DecapRefusal::RemcsumPrimed));
}

#[test]
fn a_remote_checksum_without_an_outer_one() {
    let datagram = format!("02040001 80000000 0014001a {UDP_PRIMED}");
    for csum in [OuterCsum::Absent, OuterCsum::Unknown] {
        let meta = Received { csum, ..VERIFIED };
        assert_eq!(fate_at(Mode::Ipip, RCO, &meta, &datagram), Err(DecapRefusal::RemcsumNoOuterCsum));
        assert_eq!(fate_at(Mode::Ipip, RCO, &meta, &format!("00040000 {UDP}")), Ok(hex(UDP)), "plain ones may come");
    }
}

#[test]
fn a_primed_field_that_is_not_the_pseudo_header_sum() {
    // Complete already, zero, off by one.
    for field in ["fd90", "0000", "8e44"] {
        let inner = UDP_PRIMED.replace("8e43", field);
        assert_eq!(fate(&format!("02040001 80000000 0014001a {inner}")), Err(DecapRefusal::RemcsumPrimed), "{field}");
    }
    // The UDP length says 9, and the sum would run over 10.
    let inner = UDP_PRIMED.replace("000a8e43", "00098e43");
    assert_eq!(fate(&format!("02040001 80000000 0014001a {inner}")), Err(DecapRefusal::RemcsumPrimed));
}

#[test]
fn a_control_message() {
    assert_eq!(fate(&format!("20040000 {UDP}")), Err(DecapRefusal::GueControl));
    assert_eq!(fate("20000000"), Err(DecapRefusal::GueControl));
}

#[test]
fn versions_two_and_three() {
    assert_eq!(fate(&format!("80040000 {UDP}")), Err(DecapRefusal::GueVersion));
    assert_eq!(fate(&format!("c0040000 {UDP}")), Err(DecapRefusal::GueVersion));
}

#[test]
fn version_one_with_another_nibble() {
    assert_eq!(fate(&UDP.replacen("45", "55", 1)), Err(DecapRefusal::GueVersion));
    assert_eq!(fate(&UDP.replacen("45", "75", 1)), Err(DecapRefusal::GueVersion));
}

#[test]
fn a_protocol_that_the_mode_does_not_have() {
    for (mode, header) in [(Mode::Ipip, "0029"), (Mode::Ipip, "002f"), (Mode::Sit, "0004"), (Mode::Ip, "0011")] {
        let fate = fate_at(mode, RCO, &VERIFIED, &format!("{header}0000 {UDP}"));
        assert_eq!(fate, Err(DecapRefusal::InnerProtocol), "{mode:?} {header}");
    }
    let mode = gre(None, false, false);
    assert_eq!(fate_at(mode, RCO, &VERIFIED, &format!("00040000 {UDP}")), Err(DecapRefusal::InnerProtocol));
    assert_eq!(fate_at(mode, RCO, &VERIFIED, UDP), Err(DecapRefusal::InnerProtocol), "version 1 in a GRE tunnel");
    assert_eq!(fate_at(mode, RCO, &VERIFIED, "002f0000 00006558"), Err(DecapRefusal::InnerProtocol));
}

#[test]
fn an_ip_version_that_the_header_does_not_announce() {
    assert_eq!(fate(&format!("00040000 {UDP6}")), Err(DecapRefusal::InnerVersion));
    assert_eq!(fate_at(Mode::Sit, RCO, &VERIFIED, &format!("00290000 {UDP}")), Err(DecapRefusal::InnerVersion));
    // Linux hands any FOU payload to the port's protocol; the nibble is checked here.
    assert_eq!(fate_at(Mode::Ipip, Carrier::Fou, &VERIFIED, UDP6), Err(DecapRefusal::InnerVersion));
    assert_eq!(fate_at(Mode::Ip, Carrier::Fou, &VERIFIED, UDP6), Ok(hex(UDP6)));
    let mode = gre(None, false, false);
    assert_eq!(fate_at(mode, Carrier::Fou, &VERIFIED, &format!("000086dd {UDP}")), Err(DecapRefusal::InnerVersion));
}

#[test]
fn an_inner_length_beyond_the_payload() {
    let long = UDP.replacen("4500001e", "4500001f", 1);
    assert_eq!(fate(&format!("00040000 {long}")), Err(DecapRefusal::InnerMalformed));
    let long = UDP6.replacen("000a1140", "000b1140", 1);
    assert_eq!(fate_at(Mode::Sit, RCO, &VERIFIED, &format!("00290000 {long}")), Err(DecapRefusal::InnerMalformed));
}

#[test]
fn an_inner_header_cut_short_or_missing() {
    for inner in ["", "45", "4500001e000040004011aca7c6120101c61201"] {
        assert_eq!(fate(&format!("00040000 {inner}")), Err(DecapRefusal::InnerMalformed), "{inner}");
    }
    // Header length 16; total length below the header's.
    assert_eq!(fate(&format!("00040000 {}", UDP.replacen("45", "44", 1))), Err(DecapRefusal::InnerMalformed));
    let short = UDP.replacen("4500001e", "45000013", 1);
    assert_eq!(fate(&format!("00040000 {short}")), Err(DecapRefusal::InnerMalformed));
    assert_eq!(fate_at(Mode::Ip, Carrier::Fou, &VERIFIED, ""), Err(DecapRefusal::InnerMalformed));
}

#[test]
fn inner_sources_that_no_packet_may_have() {
    for source in ["e0000001", "efffffff", "ffffffff", "7f000001"] {
        let inner = UDP.replacen("c6120101", source, 1);
        assert_eq!(fate(&format!("00040000 {inner}")), Err(DecapRefusal::InnerSource), "{source}");
    }
    for source in ["ff020000000000000000000000000001", "00000000000000000000000000000001"] {
        let inner = UDP6.replacen("20010db8000000000000000000000001", source, 1);
        let fate = fate_at(Mode::Sit, RCO, &VERIFIED, &format!("00290000 {inner}"));
        assert_eq!(fate, Err(DecapRefusal::InnerSource), "{source}");
    }
}

#[test]
fn gre_headers_that_are_malformed() {
    for header in ["", "0000", "20000800", "40000800 00000000", "00010800", "00800800"] {
        let fate = fate_at(gre(None, false, false), RCO, &VERIFIED, &format!("002f0000 {header}"));
        assert_eq!(fate, Err(DecapRefusal::GreMalformed), "{header}");
    }
}

#[test]
fn gre_words_that_the_tunnel_does_not_have() {
    let fate = |mode, header: &str| fate_at(mode, RCO, &VERIFIED, &format!("002f0000 {header} {UDP}"));
    assert_eq!(fate(gre(Some(42), false, false), "20000800 0000002a"), Ok(hex(UDP)));
    assert_eq!(fate(gre(Some(42), false, false), "20000800 0000002b"), Err(DecapRefusal::GreMismatch));
    assert_eq!(fate(gre(Some(42), false, false), "00000800"), Err(DecapRefusal::GreMismatch));
    assert_eq!(fate(gre(None, false, false), "20000800 0000002a"), Err(DecapRefusal::GreMismatch));
    assert_eq!(fate(gre(None, true, false), "00000800"), Err(DecapRefusal::GreMismatch));
    assert_eq!(fate(gre(None, false, false), "80000800 06430000"), Err(DecapRefusal::GreMismatch));
    assert_eq!(fate(gre(None, false, true), "00000800"), Err(DecapRefusal::GreMismatch));
    // As in Linux, an unconfigured sequence number is ignored.
    assert_eq!(fate(gre(None, false, false), "10000800 00000007"), Ok(hex(UDP)));
}

#[test]
fn a_wrong_gre_checksum_and_its_cost() {
    let fate = |field: &str, sum: bool| {
        let datagram = hex(&format!("002f0000 80000800 {field}0000 {UDP}"));
        let sum = sum.then(|| crate::checksum::Sum::of(&datagram));
        let mut decap = Decapsulator::new(sender(gre(None, true, false), RCO)).unwrap();
        let mut out = Packet::default();
        let result = decap.pull(Frag::all(datagram), &Received { sum, ..VERIFIED }, &mut out);
        (result, decap.checksummed_bytes(), matches!(out.offload.unit, Unit::Whole(Csum::Complete(_))))
    };
    assert_eq!(fate("0643", false), (Ok(()), 30, true));
    assert_eq!(fate("0642", false), (Err(DecapRefusal::GreCsum), 30, false));
    // With the datagram's sum known nothing is read.
    assert_eq!(fate("0643", true), (Ok(()), 0, true));
    assert_eq!(fate("0642", true), (Err(DecapRefusal::GreCsum), 0, false));
}

#[test]
fn older_gre_sequence_numbers_than_the_newest() {
    let mut decap = Decapsulator::new(sender(gre(None, false, true), RCO)).unwrap();
    let mut pull = |seq: u32| {
        let datagram = hex(&format!("002f0000 10000800 {seq:08x} {UDP}"));
        decap.pull(Frag::all(datagram), &VERIFIED, &mut Packet::default())
    };
    let late = Err(DecapRefusal::GreSeq);
    assert_eq!([pull(5), pull(6), pull(6), pull(9), pull(8), pull(10)], [Ok(()), Ok(()), late, Ok(()), late, Ok(())]);
    // Half the number space ahead, and across the wrap.
    assert_eq!([pull(0x8000_000a), pull(0x7fff_0000)], [Ok(()), late]);
    assert_eq!([pull(u32::MAX), pull(0), pull(1), pull(0)], [Ok(()), Ok(()), Ok(()), late]);
    // The first one may be any.
    let mut decap = Decapsulator::new(sender(gre(None, false, true), RCO)).unwrap();
    let datagram = hex(&format!("002f0000 10000800 ffff0000 {UDP}"));
    assert_eq!(decap.pull(Frag::all(datagram), &VERIFIED, &mut Packet::default()), Ok(()));
}

/// Tests that a tunnel follows a sender that began its sequence numbers anew, and the true one after a forged number
/// far ahead, after 15 packets; and that no number of late, repeated or single old packets is taken for such a sender.
#[test]
fn gre_sequence_numbers_that_begin_anew() {
    let mut decap = Decapsulator::new(sender(gre(None, false, true), RCO)).unwrap();
    let mut pull = |seq: u32| {
        let datagram = hex(&format!("002f0000 10000800 {seq:08x} {UDP}"));
        decap.pull(Frag::all(datagram), &VERIFIED, &mut Packet::default())
    };
    let late = Err(DecapRefusal::GreSeq);
    assert!((0..5000).all(|seq| pull(seq).is_ok()));
    assert!((4000..4100).all(|seq| pull(seq) == late), "all of a path that is slower");
    assert_eq!(pull(5000), Ok(()));
    assert_eq!((0..100).filter(|seq| pull(*seq) == late).count(), 15, "a restart");
    assert_eq!(pull(0x7000_0000), Ok(()));
    assert_eq!((100..200).filter(|seq| pull(*seq) == late).count(), 15, "a forged number");
    for seq in 0..50 {
        assert_eq!([pull(seq), pull(20_000 + seq)], [late, Ok(())], "with newer ones in between");
    }
    assert!((0..100).all(|_| pull(7) == late), "the same again and again");
    assert!((0..100).rev().all(|seq| pull(seq) == late), "in falling order");
}

#[test]
fn congestion_marked_outside_a_packet_without_ecn() {
    let meta = Received { tos: 0x03, ..VERIFIED };
    assert_eq!(fate_at(Mode::Ipip, RCO, &meta, &format!("00040000 {UDP}")), Err(DecapRefusal::Ecn));
}

#[test]
fn congestion_is_carried_inside_and_no_checksum_is_laundered() {
    for (inner, outer, good) in [(2u8, 3u8, true), (1, 3, true), (2, 1, true), (2, 3, false)] {
        for fragment in ["4000", "2000"] {
            let mut v4 = hex(&UDP.replacen("00004000", &format!("0000{fragment}"), 1));
            v4[1] = 0xb8 | inner;
            put(&mut v4, 10, 0);
            let field = !naive_sum(&v4[..20]) ^ u16::from(!good);
            put(&mut v4, 10, field);
            let mut v6 = hex(UDP6);
            put(&mut v6, 46, 0x1234); // a checksum, right or wrong
            v6[..2].copy_from_slice(&[0x6b, 0x8f | inner << 4]);
            for (mut inner, header) in [(v4, "00040000"), (v6, "00290000")] {
                let mut datagram = hex(header);
                datagram.extend(&inner);
                let sum = crate::checksum::Sum::of(&datagram);
                let meta = Received { tos: outer, sum: Some(sum), ..VERIFIED };
                let mut out = Packet::default();
                Decapsulator::new(sender(Mode::Ip, RCO)).unwrap().pull(Frag::all(datagram), &meta, &mut out).unwrap();
                let bytes = bytes_of(&out);
                if inner[0] >> 4 == 4 {
                    assert_eq!(bytes[1], 0xb8 | outer);
                    assert_eq!(naive_sum(&bytes[..20]) == 0xffff, good);
                    inner[1] = bytes[1];
                    inner[10..12].copy_from_slice(&bytes[10..12]);
                } else {
                    inner[1] = 0x8f | outer << 4;
                }
                assert_eq!(bytes, inner, "nothing else changes");
                let sum = crate::checksum::Sum::of(&bytes);
                assert_eq!(out.offload.unit, Unit::Whole(Csum::Complete(sum)), "the known sum follows");
            }
        }
    }
}

const WIRE: &str = "4500003e000040004011ae87c6120001c6120002 c00017c0002a29f1 00040000
    4500001e000040004011aca7c6120101c6120102 03e807d0000afd90 6869";

/// Decapsulates a whole outer packet after `change`, with its header checksum corrected.
fn outer_fate(change: impl FnOnce(&mut Vec<u8>)) -> Result<(), DecapRefusal> {
    let mut wire = hex(WIRE);
    change(&mut wire);
    if wire.len() >= 20 {
        put(&mut wire, 10, 0);
        let field = !naive_sum(&wire[..20]);
        put(&mut wire, 10, field);
    }
    let mut decap = Decapsulator::new(opposite(&sender(Mode::Ipip, RCO))).unwrap();
    decap.pull_packet(Frag::all(wire), &mut Packet::default())
}

#[test]
fn outer_udp_lengths_below_the_header_or_beyond_the_packet() {
    assert_eq!(outer_fate(|_| {}), Ok(()));
    for length in [0, 7, 43, 0xffff] {
        assert_eq!(outer_fate(|wire| put(wire, 24, length)), Err(DecapRefusal::OuterMalformed), "{length}");
    }
}

#[test]
fn outer_headers_cut_short() {
    for len in 0..62 {
        assert_eq!(outer_fate(|wire| wire.truncate(len)), Err(DecapRefusal::OuterMalformed), "{len}");
    }
    assert_eq!(outer_fate(|wire| put(wire, 2, 19)), Err(DecapRefusal::OuterMalformed));
}

#[test]
fn a_wrong_outer_checksum() {
    for at in [20, 26, 28, 40, 61] {
        let fate = outer_fate(|wire| wire[at] ^= 0x10);
        assert!(matches!(fate, Err(DecapRefusal::OuterCsum)), "{at}: {fate:?}");
    }
    let mut wire = hex(WIRE);
    wire[10] ^= 1;
    let mut decap = Decapsulator::new(opposite(&sender(Mode::Ipip, RCO))).unwrap();
    assert_eq!(decap.pull_packet(Frag::all(wire), &mut Packet::default()), Err(DecapRefusal::OuterIpCsum));
}

#[test]
fn a_remote_checksum_in_a_packet_with_a_zero_outer_checksum() {
    let wire = "45000046000040004011ae7fc6120001c6120002 c00017c000320000 02040001 80000000 0014001a";
    let mut decap = Decapsulator::new(opposite(&sender(Mode::Ipip, RCO))).unwrap();
    let fate = decap.pull_packet(Frag::all(hex(&format!("{wire}{UDP_PRIMED}"))), &mut Packet::default());
    assert_eq!(fate, Err(DecapRefusal::RemcsumNoOuterCsum));
}

#[test]
fn outer_packets_that_are_not_this_tunnels() {
    assert_eq!(outer_fate(|wire| wire[15] ^= 0x80), Err(DecapRefusal::OuterAddress));
    assert_eq!(outer_fate(|wire| wire[19] ^= 0x80), Err(DecapRefusal::OuterAddress));
    assert_eq!(outer_fate(|wire| put(wire, 22, 6081)), Err(DecapRefusal::OuterPort));
    assert_eq!(outer_fate(|wire| wire[9] = 1), Err(DecapRefusal::OuterProtocol));
    assert_eq!(outer_fate(|wire| put(wire, 6, 0x2000)), Err(DecapRefusal::OuterFragment));
    assert_eq!(outer_fate(|wire| put(wire, 6, 1)), Err(DecapRefusal::OuterFragment));
}

#[test]
fn a_zero_checksum_over_ipv6_only_where_the_tunnel_does_without() {
    let config = Config {
        local: address("2001:db8::1"),
        remote: address("2001:db8::2"),
        csum: false,
        zero_csum6: true,
        ..sender(Mode::Ipip, Carrier::Gue { remcsum: false })
    };
    let mut packet = load(&hex(UDP));
    Encapsulator::new(config).unwrap().push(&mut packet).unwrap();
    let fate = |csum| {
        let mut decap = Decapsulator::new(Config { csum, zero_csum6: !csum, ..opposite(&config) }).unwrap();
        decap.pull_packet(Frag::all(seal(&packet)), &mut Packet::default())
    };
    assert_eq!(fate(false), Ok(()));
    assert_eq!(fate(true), Err(DecapRefusal::OuterCsumAbsent));
}

/// Tests that a port that accepts a zero checksum also accepts and verifies nonzero ones (RFC 6936, section 4,
/// requirement 7).
#[test]
fn other_checksums_over_ipv6_are_verified_where_a_zero_one_is_accepted() {
    let sending = Config {
        local: address("2001:db8::1"),
        remote: address("2001:db8::2"),
        ..sender(Mode::Ipip, Carrier::Gue { remcsum: false })
    };
    let mut packet = load(&hex(UDP));
    Encapsulator::new(sending).unwrap().push(&mut packet).unwrap();
    let wire = seal(&packet);
    assert_ne!(wire[46..48], [0, 0], "it has a checksum");
    let fate = |wire: Vec<u8>| {
        let accepting = Config { csum: false, zero_csum6: true, ..opposite(&sending) };
        Decapsulator::new(accepting).unwrap().pull_packet(Frag::all(wire), &mut Packet::default())
    };
    assert_eq!(fate(wire.clone()), Ok(()));
    // The source port, an address of the inner packet, and its last byte.
    for at in [40, 64, wire.len() - 1] {
        let mut wrong = wire.clone();
        wrong[at] ^= 0x10;
        assert_eq!(fate(wrong), Err(DecapRefusal::OuterCsum), "byte {at}");
    }
}

#[test]
fn packets_refused_by_the_encapsulator_are_unchanged() {
    let refused = |mode, packet: &mut Packet<Vec<u8>>| {
        let (bytes, layout, offload, outer) = (bytes_of(packet), packet.layout, packet.offload, packet.outer);
        let refusal = Encapsulator::new(sender(mode, RCO)).unwrap().push(packet).unwrap_err();
        assert_eq!((bytes_of(packet), packet.layout, packet.offload), (bytes, layout, offload));
        assert_eq!(packet.outer, outer);
        refusal
    };
    assert_eq!(refused(Mode::Ipip, &mut load(&hex(UDP6))), EncapRefusal::InnerVersion);
    assert_eq!(refused(Mode::Sit, &mut load(&hex(UDP))), EncapRefusal::InnerVersion);
    assert_eq!(refused(Mode::Ip, &mut load(&[])), EncapRefusal::InnerMalformed);
    assert_eq!(refused(Mode::Ip, &mut load(&[0x50; 40])), EncapRefusal::InnerMalformed);
    assert_eq!(refused(Mode::Ip, &mut load(&hex(UDP)[..29])), EncapRefusal::InnerLength);
    let mut long = hex("4500ffff000040004001 0000 c6120101c6120102");
    long.resize(65535, 0);
    assert_eq!(refused(Mode::Ip, &mut load(&long)), EncapRefusal::TooLong);
    let mut deep = load(&hex(UDP));
    for (local, remote) in [("198.18.2.1", "198.18.2.2"), ("198.18.3.1", "198.18.3.2")] {
        let config = Config::new(Mode::Ip, Carrier::Fou, address(local), address(remote));
        assert_eq!(Encapsulator::new(config).unwrap().push(&mut deep), Ok(()));
    }
    assert_eq!(refused(Mode::Ip, &mut deep), EncapRefusal::TooDeep);
}

/// Returns a fragment of a packet without options: the word of its IPv4 header, a flag and an offset, says which.
fn fragment(packet: &[u8], word: u16) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    if bytes[0] >> 4 == 4 {
        put(&mut bytes, 6, word);
        return bytes;
    }
    let next = core::mem::replace(&mut bytes[6], 44);
    let [high, low] = word.rotate_left(3).to_be_bytes();
    bytes.splice(40..40, [next, 0, high, low, 0, 0, 0, 1]);
    let len = bytes.len() as u16 - 40;
    put(&mut bytes, 4, len);
    bytes
}

/// Tests that a tunnel refuses its own packets, which a route leads back into it, whole or in fragments that have its
/// port or protocol, and takes others between the same hosts.
#[test]
fn a_tunnel_takes_none_of_its_own_packets() {
    for (mode, carrier) in [
        (Mode::Ip, RCO),
        (gre(Some(7), true, false), Carrier::Fou),
        (gre(None, false, false), Carrier::Bare),
        (Mode::Ip, Carrier::Bare),
    ] {
        let v4 = sender(mode, carrier);
        let v6 = Config { local: address("2001:db8:1::1"), remote: address("2001:db8:1::2"), ..v4 };
        for config in [v4, v6] {
            let mut encap = Encapsulator::new(config).unwrap();
            let mut packet = load(&hex(UDP));
            encap.push(&mut packet).unwrap();
            let own = seal(&packet);
            let mut again = |bytes: &[u8]| {
                let mut packet = load(bytes);
                let is_own = encap.is_own(&packet);
                let result = encap.push(&mut packet);
                assert_eq!(result, if is_own { Err(EncapRefusal::Loop) } else { Ok(()) }, "{config:?}");
                is_own
            };
            assert!(again(&own), "{config:?}");
            assert!(again(&fragment(&own, 0x2000)), "{config:?}");
            assert_eq!(again(&fragment(&own, 1)), carrier == Carrier::Bare, "{config:?}: it has no port");
            let with = |at: usize| {
                let mut bytes = own.clone();
                bytes[at] ^= 4;
                bytes
            };
            let outer_ip = if config.local.is_ipv4() { 20 } else { 40 };
            assert!(!again(&with(outer_ip - 1)), "another destination");
            let mut another = fragment(&own, 1);
            another[if config.local.is_ipv4() { 9 } else { 40 }] = 1;
            assert!(!again(&another), "a fragment of another protocol");
            if carrier != Carrier::Bare {
                let other = with(outer_ip + 3);
                assert!(!again(&other) && !again(&fragment(&other, 0x2000)), "another port");
            }
        }
    }
}

/// Tests that a tunnel of frames tells its own packets as IP packets, and takes frames with them.
#[test]
fn a_tunnel_of_frames_tells_its_own_packets_before_they_are_in_frames() {
    let vxlan = Carrier::Vxlan { vni: 1, remcsum: false, takes_remcsum: false };
    let mut encap = Encapsulator::new(sender(Mode::Ethernet, vxlan)).unwrap();
    let framed = |packet: &[u8]| {
        let mut frame = Packet::default();
        frame.load(Frag::all([&[2; 12][..], &[8, 0], packet].concat()), Start::Ethernet, &Tunnels::NONE);
        frame
    };
    let mut frame = framed(&hex(UDP));
    encap.push(&mut frame).unwrap();
    let own = bytes_of(&frame);
    assert!(encap.is_own(&load(&own)));
    assert!(!encap.is_own(&load(&hex(UDP))), "other addresses");
    let mut again = framed(&own);
    assert!(!encap.is_own(&again));
    assert_eq!(encap.push(&mut again), Ok(()));
}

/// Tests that a packet has room for four tunnel levels and for 256 bytes of headers.
#[test]
fn a_packet_has_at_most_four_tunnel_levels_and_256_bytes_of_headers() {
    // IPv4 with so many words of options (no operation) around a packet.
    let in_ipv4 = |packet: Vec<u8>, words: usize| {
        let len = 20 + 4 * words;
        let mut ip = hex("45000000000040004004 0000 c6120201 c6120202");
        ip[0] = 0x40 | (len / 4) as u8;
        ip.resize(len, 1);
        put(&mut ip, 2, (len + packet.len()) as u16);
        let field = !naive_sum(&ip);
        put(&mut ip, 10, field);
        [ip, packet].concat()
    };
    let push = |bytes: &[u8], config: Config| {
        let mut packet = load(bytes);
        let result = Encapsulator::new(config).unwrap().push(&mut packet);
        (result, packet.offload.layers().len(), packet.layout.header_len())
    };
    let bare = sender(Mode::Ipip, Carrier::Bare);
    let three = (0..3).fold(hex(UDP), |packet, _| in_ipv4(packet, 0));
    assert_eq!(push(&three, bare), (Ok(()), 4, 5 * 20 + 8));
    assert_eq!(push(&in_ipv4(three, 0), bare), (Err(EncapRefusal::TooDeep), 4, 5 * 20 + 8));
    // 3 * 60 + 20 + 8, and 20 or 40 + 8 + 4 + 16.
    let long = (0..3).fold(hex(UDP), |packet, _| in_ipv4(packet, 10));
    let over_v4 = sender(gre(Some(1), true, true), Carrier::Gue { remcsum: false });
    let over_v6 = Config { local: address("2001:db8::1"), remote: address("2001:db8::2"), ..over_v4 };
    assert_eq!(push(&long, over_v4), (Ok(()), 4, 256));
    assert_eq!(push(&long, over_v6), (Err(EncapRefusal::TooDeep), 3, 208));
}

#[test]
fn the_bytes_that_an_outer_checksum_covers_are_counted() {
    let mut decap = Decapsulator::new(opposite(&sender(Mode::Ipip, RCO))).unwrap();
    for count in [34, 68] {
        decap.pull_packet(Frag::all(hex(WIRE)), &mut Packet::default()).unwrap();
        assert_eq!(decap.checksummed_bytes(), count);
    }
}
