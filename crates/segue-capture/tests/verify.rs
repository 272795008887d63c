//! Tests of verify and survey on packets with known contents.

mod common;

use common::packets::{datagram, frames_without_ip, from_away, source_routed, train, tunnels, v4, v6};
use common::{file_of, learned, merge_packets, split_packets, survey, verify};
use segue::gro::Profile;
use segue_capture::PacketVerdict;
use segue_capture::file::link;
use segue_capture::merge::MergeRules;
use segue_testkit::build::{self, Ip, L4, Udp};
use segue_testkit::flow::Sender;

/// Returns the verdict on one packet.
fn verdict(packet: &[u8]) -> PacketVerdict {
    verify(&file_of(&[packet.to_vec()], link::RAW), None).0[0]
}

#[test]
fn verify_finds_each_kind_by_layer() {
    let good = Sender::tcp(v4(), 3, 1, vec![]).send(700, 0).bytes();
    let mut bad_tcp = good.clone();
    bad_tcp[200] ^= 1;
    let mut bad_ip = good.clone();
    bad_ip[8] ^= 1;
    let absent =
        build::Packet { ip: v4(), l4: L4::Udp(Udp { src_port: 5, dst_port: 6, checksum: false }), data: vec![1; 9] };
    let (_, gue) = tunnels().remove(7);
    let mut bad_outer = gue.wrap(&good);
    bad_outer[26] ^= 1;
    let packets = [
        good.clone(),
        bad_tcp,
        bad_ip,
        absent.bytes(),
        build::prime(&good).unwrap(),
        gue.wrap(&good),
        bad_outer,
        train(v6(), 3000, 0, vec![]),
    ];
    let (verdicts, report) = verify(&file_of(&packets, link::RAW), Some(1500));
    use PacketVerdict::{Absent, Bad, Good, Unfinished};
    assert_eq!(verdicts, [Good, Bad, Bad, Absent, Unfinished, Good, Bad, Unfinished]);
    let counts = [report.good, report.bad, report.unfinished, report.absent, report.above_mtu, report.cut];
    assert_eq!((report.packets, counts), (8, [2, 3, 2, 1, 1, 0]));
    assert!(!report.is_good());
    let layer = |name: &str| report.layers[name].iter().map(|(verdict, n)| (*verdict, *n)).collect::<Vec<_>>();
    assert_eq!(layer("ipv4"), [("bad", 1), ("good", 6)]);
    assert_eq!(layer("tcp"), [("bad", 1), ("good", 2), ("remote", 2), ("unfinished", 2)]);
    assert_eq!(layer("outer_udp"), [("bad", 1), ("good", 1)]);
}

/// Returns packets without a tunnel, or with an unknown one, on the UDP port of a tunnel.
fn plain_on_tunnel_ports() -> Vec<(u16, Vec<u8>)> {
    let reply = [&[0x12, 0x34, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0, 7][..], b"example", &[3], b"com", &[0, 0, 1, 0, 1]];
    let reply = reply.concat();
    let mut all: Vec<(u16, Vec<u8>)> = [4789, 8472, 6080, 6081].map(|port| (port, reply.clone())).into();
    // Control messages of GUE and Geneve, GUE with ESP, flags that are not known, and what begins as version 1 of GUE
    // does.
    all.push((6080, [&[0x20, 1, 0, 0][..], b"abcdefghijk"].concat()));
    all.push((6080, [&[0, 50, 0, 0][..], b"abcdefghijk"].concat()));
    all.push((6080, [&[0, 4, 0x7f, 0xff][..], b"abcdefghijk"].concat()));
    all.push((6080, b"hello".to_vec()));
    all.push((6081, [&[0, 0x80, 0x65, 0x58, 0, 0, 0, 0][..], &reply].concat()));
    all.push((4789, vec![0; 50]));
    all.push((4789, Vec::new()));
    all
}

#[test]
fn a_datagram_to_the_port_of_a_tunnel_that_is_none_is_a_datagram() {
    for ip in [v4(), v6()] {
        for (port, data) in plain_on_tunnel_ports() {
            let whole = datagram(ip.clone(), port, data.clone());
            assert_eq!(verdict(&whole), PacketVerdict::Good, "{port} {data:02x?}");
            let sent = build::prime(&whole).unwrap();
            assert_eq!(verdict(&sent), PacketVerdict::Unfinished, "{port} {data:02x?}");
            let (out, report) = split_packets(std::slice::from_ref(&sent), link::RAW, &learned(false));
            assert!(out[0] == whole, "{port} {data:02x?}: {report:?}");
            assert_eq!(report.finished, 1);
            let mut bad = whole.clone();
            let at = if ip.protocol() == 4 { 20 } else { 40 };
            bad[at] ^= 0x40;
            assert_eq!(verdict(&bad), PacketVerdict::Bad, "{port} {data:02x?}");
        }
    }
}

#[test]
fn packets_of_which_only_the_ip_header_was_judged_are_counted_by_a_name_of_their_own() {
    let tcp = Sender::tcp(v6(), 3, 1, vec![]).send(30, 0).bytes();
    // SCTP and IGMP; a fragment; GRE of PPTP (RFC 2637) with data and without, GRE with routing; and TCP, which is
    // judged whole.
    let of = |protocol: u8| {
        let mut packet = tcp.clone();
        packet[6] = protocol;
        packet
    };
    let gre = |data: &[u8]| build::Packet { ip: v4(), l4: L4::Raw(47), data: data.to_vec() }.bytes();
    let packets = [
        of(132),
        of(2),
        of(44),
        gre(&[0x30, 0x81, 0x88, 0x0b, 0, 4, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 3, 0, 0x21]),
        gre(&[0x20, 0x81, 0x88, 0x0b, 0, 0, 0, 5, 0, 0, 0, 2]),
        gre(&[0x40, 0, 8, 0, 0, 0, 0, 0]),
        tcp.clone(),
    ];
    let file = file_of(&packets, link::RAW);
    let (verdicts, report) = verify(&file, None);
    assert_eq!(verdicts, [&[PacketVerdict::IpOnly; 6][..], &[PacketVerdict::Good]].concat());
    assert_eq!((report.good, report.ip_only, report.is_good()), (1, 6, true));
    let found = survey(&file, MergeRules::default());
    assert_eq!(found.checksums.into_iter().collect::<Vec<_>>(), [("good", 1), ("ip_only", 6)]);
}

#[test]
fn what_contradicts_itself_is_malformed_in_stat_as_in_verify() {
    let udp = datagram(v4(), 7, vec![1; 50]);
    let mut long = udp.clone();
    long[24] = 1;
    let mut short = udp.clone();
    short[25] = 7;
    // Half a GRE header, half an IP header, and a version of IP that does not exist.
    let gre = build::Packet { ip: v4(), l4: L4::Raw(47), data: vec![0xb0, 0, 8, 0, 1, 2] }.bytes();
    let mut version = udp.clone();
    version[0] = 0x55;
    let packets = [long, short, gre, udp[..11].to_vec(), version, udp];
    let file = file_of(&packets, link::RAW);
    let (_, report) = verify(&file, None);
    assert_eq!([report.malformed, report.good, report.ip_only, report.not_ip], [5, 1, 0, 0]);
    assert!(!report.is_good());
    let found = survey(&file, MergeRules::default());
    assert_eq!(found.checksums.into_iter().collect::<Vec<_>>(), [("good", 1), ("malformed", 5)]);
    assert_eq!((found.not_ip, found.encap.into_iter().collect::<Vec<_>>()), (0, vec![("plain", 4)]));
}

#[test]
fn a_checksum_made_in_expectation_of_a_finished_one_inside_is_good_in_any_tunnel() {
    let frame = frames_without_ip().remove(0);
    let middle = datagram(v4(), 4789, [&[8, 0, 0, 0, 0, 0, 5, 0][..], &frame].concat());
    for (name, tunnel) in tunnels().into_iter().filter(|(name, _)| ["gre full", "gue", "geneve"].contains(name)) {
        let whole = tunnel.wrap(&middle);
        let mut sent = whole.clone();
        let at = whole.len() - middle.len();
        sent[at..].copy_from_slice(&build::prime(&middle).unwrap());
        assert_eq!(verify(&file_of(std::slice::from_ref(&sent), link::RAW), None).1.bad, 0, "{name}");
        let (out, report) = split_packets(&[sent], link::RAW, &learned(false));
        assert!(out[0] == whole, "{name}: {report:?}");
        assert_eq!((report.finished, report.bad_left), (1, 0), "{name}");
    }
}

#[test]
fn checksums_are_of_the_addresses_in_options_where_these_are_the_ends() {
    let vxlan = [&[8, 0, 0, 0, 0, 0, 5, 0][..], &frames_without_ip()[0]].concat();
    let wholes = |ip: fn() -> Ip| {
        let tcp = |len| Sender::tcp(ip(), 3, 1, vec![]).send(len, 0).bytes();
        [tcp(300), tcp(3000), datagram(ip(), 7, vec![5; 33]), datagram(ip(), 4789, vxlan.clone())]
    };
    let linux = MergeRules { profile: Profile::linux(), ..MergeRules::default() };
    let mut cases: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for whole in wholes(v4) {
        let sent = build::prime(&whole).unwrap();
        for (kind, pointer) in [(131, 4), (131, 8), (137, 4), (137, 8)] {
            cases.push((source_routed(&whole, kind, pointer), source_routed(&sent, kind, pointer)));
        }
    }
    for whole in wholes(v6) {
        cases.push((from_away(&whole), from_away(&build::prime(&whole).unwrap())));
    }
    let icmp = build::Packet { ip: v6(), l4: L4::Icmp(128, 0, [0, 1, 0, 2]), data: vec![7; 9] }.bytes();
    assert_eq!(verdict(&from_away(&icmp)), PacketVerdict::Good);
    for (whole, sent) in cases {
        assert_eq!(verdict(&whole), PacketVerdict::Good, "{whole:02x?}");
        assert_eq!(verdict(&sent), PacketVerdict::Unfinished, "{sent:02x?}");
        let mut bad = whole.clone();
        *bad.last_mut().unwrap() ^= 1;
        assert_eq!(verdict(&bad), PacketVerdict::Bad, "{bad:02x?}");
        let mut mended = bad.clone();
        *mended.last_mut().unwrap() ^= 1;
        assert!(mended == whole);
        for fix_all in [false, true] {
            let (out, report) = split_packets(std::slice::from_ref(&whole), link::RAW, &learned(fix_all));
            assert!(out == [whole.clone()], "{report:?}");
            let (out, report) = split_packets(std::slice::from_ref(&sent), link::RAW, &learned(fix_all));
            assert!(out == [whole.clone()], "{report:?}");
            assert_eq!(report.finished, 1, "{report:?}");
        }
        let (out, report) = split_packets(&[bad], link::RAW, &learned(true));
        assert_eq!((verdict(&out[0]), report.fixed), (PacketVerdict::Good, 1), "{report:?}");
        let (out, report) = merge_packets(&[whole.clone(), sent], link::RAW, MergeRules::default());
        assert!(out.len() == 2 && report.gro.trains == 0, "{report:?}");
        let (out, _) = merge_packets(&[whole.clone(), whole.clone()], link::RAW, linux);
        assert!(out == [whole.clone(), whole], "what is not joined is not changed");
    }
    // Where the stops are past, the destination is in its field.
    let past = source_routed(&datagram(v4(), 7, vec![5; 33]), 131, 12);
    assert_eq!(verdict(&past), PacketVerdict::Bad);
    // The last stop of an invalid route is unknown.
    let senseless = source_routed(&datagram(v4(), 7, vec![5; 33]), 131, 5);
    assert_eq!(verdict(&senseless), PacketVerdict::IpOnly);
}
