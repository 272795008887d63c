//! Tests of split on packets with known contents.

mod common;

use common::packets::{datagram, frames_without_ip, train, tunnels, v4, v6};
use common::{
    by, decap, file_of, form_of, learned, split, split_packets, survey, verify as judge, with_check_sequences,
};
use segue_capture::decap::DecapConfig;
use segue_capture::file::undo_notes::filtered;
use segue_capture::file::{
    Format, Item, Order, Outgoing, PcapHeader, Reader, Writer, interface_block, link, options, section_block,
};
use segue_capture::merge::MergeRules;
use segue_capture::split::SegmentSize;
use segue_testkit::Rng;
use segue_testkit::build::{self, Ethernet, Gre, Ip, Remcsum, Shim, Tunnel, Udp, V4};
use segue_testkit::flow::{Sender, corrupt};
use segue_testkit::fragment::reassemble;
use segue_testkit::oracle::{Ports, Start, verify};

fn ports() -> Ports {
    segue_testkit::strategy::ports()
}

#[test]
fn a_train_becomes_the_packets_that_a_sender_would_have_sent() {
    for ip in [v4(), v6()] {
        for (len, flags) in [(1448 * 10, 0x08), (1448 * 3 + 1, 0x01), (60_000, 0x80), (1449, 0)] {
            let expected: Vec<Vec<u8>> = {
                let mut sender = Sender::tcp(ip.clone(), 3, 0xffff_f000, vec![1; 12]);
                let overhead = if ip.protocol() == 4 { 52 } else { 72 };
                sender.run(len, 1500 - overhead, 0).into_iter().map(|p| p.bytes()).collect()
            };
            for number in [link::ETHERNET, link::RAW, link::COOKED, link::COOKED2] {
                let (out, report) =
                    split_packets(&[train(ip.clone(), len, flags, vec![1; 12])], number, &learned(false));
                assert_eq!(out.len(), expected.len());
                assert_eq!(report.trains, 1);
                for (n, (ours, theirs)) in out.iter().zip(&expected).enumerate() {
                    // Payload bytes come from one generator, drawn in different portions: the train's are the truth.
                    let report = verify(ours, Start::Ip, &ports()).unwrap();
                    assert_eq!(ours.len().max(46), theirs.len().max(46));
                    let transport = report.transport.unwrap();
                    let seq =
                        0xffff_f000_u32.wrapping_add((n * (1500 - if ip.protocol() == 4 { 52 } else { 72 })) as u32);
                    assert_eq!(transport.seq, seq);
                    let last = n + 1 == out.len();
                    let mut wanted = 0x10;
                    wanted |= if last { flags & 0x09 } else { 0 };
                    wanted |= if n == 0 { flags & 0x80 } else { 0 };
                    assert_eq!(transport.flags, wanted, "segment {n} of {}", out.len());
                }
            }
        }
    }
}

#[test]
fn payload_is_kept_in_order_whatever_the_size() {
    let whole = train(v4(), 20_000, 0, vec![]);
    for (asked, size) in [
        (SegmentSize::Mss(1000), 1000),
        (SegmentSize::Mtu(1500), 1460),
        (SegmentSize::Mtu(576), 536),
        (SegmentSize::Mtu(9000), 8960),
        (SegmentSize::Learned, 1460),
    ] {
        let (out, _) = split_packets(std::slice::from_ref(&whole), link::ETHERNET, &by(asked));
        assert_eq!(out.len(), 20_000_usize.div_ceil(size), "{asked:?}");
        let payload: Vec<u8> = out.iter().flat_map(|p| p[40..].to_vec()).collect();
        assert!(payload == whole[40..], "{asked:?}");
        for packet in &out {
            verify(packet, Start::Ip, &ports()).unwrap();
        }
    }
}

#[test]
fn a_length_of_zero_is_the_length_of_the_frame_also_above_64_kib() {
    for ip in [v4(), v6()] {
        for len in [3000, 60_000, 180_000] {
            let mut whole = Sender::tcp(ip.clone(), 3, 1, vec![]).send(len.min(60_000), 8).bytes();
            whole.extend(Rng::new(9).bytes(len - len.min(60_000)));
            let is_v4 = ip.protocol() == 4;
            whole[if is_v4 { 2..4 } else { 4..6 }].fill(0);
            let head = if is_v4 { 40 } else { 60 };
            let mut forms = vec![whole.clone()];
            if !is_v4 {
                // With the option of RFC 2675.
                let option = [&[6, 0, 0xc2, 4][..], &((whole.len() - 40 + 8) as u32).to_be_bytes()].concat();
                let mut jumbo = whole.clone();
                jumbo.splice(40..40, option);
                jumbo[6] = 0;
                forms.push(jumbo);
            }
            for form in forms {
                let (out, _) = split_packets(&[form], link::ETHERNET, &learned(true));
                let payload: Vec<u8> = out.iter().flat_map(|p| p[head..].to_vec()).collect();
                assert!(payload == whole[head..], "{len} bytes");
                for packet in &out {
                    assert!(packet.len() <= 1500);
                    verify(packet, Start::Ip, &ports()).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_jumbo_option_whose_length_is_less_than_its_own_header_is_no_length() {
    for stated in 0..=8_u32 {
        // RFC 2675: the length counts from the end of the fixed header.
        let mut jumbo = Sender::tcp(v6(), 3, 1, vec![]).send(3000, 8).bytes();
        jumbo.splice(40..40, [&[6, 0, 0xc2, 4][..], &stated.to_be_bytes()].concat());
        jumbo[4..7].fill(0);
        let file = file_of(std::slice::from_ref(&jumbo), link::RAW);
        for config in [learned(true), learned(false), by(SegmentSize::Mtu(1400)), by(SegmentSize::Mss(536))] {
            let (out, report) = split_packets(std::slice::from_ref(&jumbo), link::RAW, &config);
            assert_eq!(report.packets_out, 1, "{stated}: {report:?}");
            assert!(stated == 8 || out == [jumbo.clone()], "{stated}: {report:?}");
        }
        assert_eq!(decap(&file, Format::Pcap, &DecapConfig::default()).unwrap().1.packets_out, 1, "{stated}");
        assert_eq!(judge(&file, Some(1500)).1.packets, 1, "{stated}");
        assert_eq!(survey(&file, MergeRules::default()).packets, 1, "{stated}");
    }
}

#[test]
fn the_mss_of_a_connection_decides_where_it_was_seen() {
    let mut jumbo = Sender::tcp(v4(), 3, 1, vec![2, 4, 0x23, 0]);
    let syn = jumbo.send(0, 0x02).bytes();
    let mut packets = vec![syn];
    let mut data = Sender::tcp(v4(), 3, 2, vec![]);
    packets.push(data.send(8960, 0).bytes());
    packets.push(build::prime(&data.send(26_880, 0).bytes()).unwrap());
    let (out, report) = split_packets(&packets, link::ETHERNET, &learned(false));
    assert_eq!(out.iter().map(Vec::len).collect::<Vec<_>>(), [46, 9000, 9000, 9000, 9000], "the first is padded");
    assert_eq!((report.trains, report.unchanged), (1, 2));
}

#[test]
fn an_mss_below_the_least_of_linux_does_not_make_a_packet_for_each_byte() {
    for (mss, options, payload) in [(1, 0, 48), (0, 0, 48), (48, 0, 48), (49, 0, 49), (1, 12, 36), (1, 40, 8)] {
        let syn = Sender::tcp(v4(), 3, 1, vec![2, 4, 0, mss]).send(0, 0x02).bytes();
        let whole = build::prime(&Sender::tcp(v4(), 3, 2, vec![1; options]).send(9000, 0).bytes()).unwrap();
        let (out, report) = split_packets(&[syn, whole.clone()], link::RAW, &learned(false));
        assert_eq!((report.trains, out.len()), (1, 1 + 9000_usize.div_ceil(payload)), "{mss} {options}");
        let head = 40 + options;
        assert!(out[1..].iter().flat_map(|packet| &packet[head..]).eq(&whole[head..]), "{mss} {options}");
    }
}

#[test]
fn wrong_checksums_stay_wrong_in_every_piece_and_unfinished_ones_are_finished() {
    let mut rng = Rng::new(4);
    let good = Sender::tcp(v4(), 3, 1, vec![]).send(700, 0).bytes();
    let unfinished = build::prime(&good).unwrap();
    let mut bad = good.clone();
    assert!(corrupt(&mut rng, &mut bad));
    let mut bad_train = Sender::tcp(v6(), 4, 1, vec![]).send(10_000, 0).bytes();
    assert!(corrupt(&mut rng, &mut bad_train));
    let mut header = good.clone();
    header[10] ^= 1;
    let packets = [good.clone(), unfinished, bad.clone(), bad_train, header.clone()];

    let (out, report) = split_packets(&packets, link::ETHERNET, &learned(false));
    assert_eq!((&out[0], &out[1], &out[2]), (&good, &good, &bad));
    assert_eq!(out.last(), Some(&header));
    assert_eq!(out[3..out.len() - 1].len(), 7);
    for piece in &out[3..out.len() - 1] {
        let error = verify(piece, Start::Ip, &ports()).unwrap_err();
        assert!(error.contains("checksum"), "{error}");
    }
    assert_eq!((report.bad_left, report.finished), (3, 1));

    let (out, report) = split_packets(&packets, link::ETHERNET, &learned(true));
    for packet in &out {
        verify(packet, Start::Ip, &ports()).unwrap();
    }
    assert_eq!((report.bad_left, report.fixed), (0, 3));
}

/// Makes an IPv4 packet one whose length is left to the card, with a wrong header checksum.
fn without_length(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[2..4].fill(0);
    packet[10..12].fill(0);
    let checksum = !segue_testkit::sum::fold(&packet[..20]) ^ 1;
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[test]
fn a_train_with_a_wrong_checksum_of_a_tunnel_or_a_header_is_cut_only_where_it_is_fixed() {
    let good = train(v4(), 20_000, 0, vec![]);
    let finished = Sender::tcp(v4(), 3, 0xffff_f000, vec![]).send(20_000, 0).bytes();
    let wrong = |packet: &[u8], at: usize| {
        let mut packet = packet.to_vec();
        packet[at] ^= 1;
        packet
    };
    let (_, gue) = tunnels().remove(4);
    let gre = Tunnel { ip: v6(), udp: None, gre: Some(Gre { checksum: true, ..Gre::default() }), ethernet: None };
    let cases = [
        ("a header", wrong(&good, 10), "gso_ip_checksum"),
        ("a header without a length", without_length(&good), "gso_ip_checksum"),
        ("an outer header", wrong(&gue.wrap(&good), 10), "gso_ip_checksum"),
        ("a header inside", gue.wrap(&wrong(&good, 10)), "gso_ip_checksum"),
        ("outer UDP", wrong(&gue.wrap(&good), 26), "gso_outer_unknown"),
        ("GRE", wrong(&gre.wrap(&finished), 44), "gso_outer_unknown"),
    ];
    for (what, packet, reason) in cases {
        let packets = std::slice::from_ref(&packet);
        let (out, report) = split_packets(packets, link::RAW, &learned(false));
        assert_eq!((out.len(), report.trains, report.bad_left), (1, 0, 1), "{what}: {report:?}");
        assert_eq!(report.refused, [(reason, 1)].into(), "{what}");
        let (_, left) = judge(&file_of(&out, link::RAW), None);
        let wrong: u64 = left.layers.values().filter_map(|layer| layer.get("bad")).sum();
        assert_eq!((left.bad, wrong), (1, 1), "{what}: {left:?}");
        let (out, report) = split_packets(packets, link::RAW, &learned(true));
        assert!(out.len() > 10 && report.refused.is_empty(), "{what}: {report:?}");
        assert_eq!((report.trains, report.bad_left, report.fixed), (1, 0, 1), "{what}");
        assert_eq!(judge(&file_of(&out, link::RAW), None).1.good, out.len() as u64, "{what}");
    }
    // As Linux leaves a train in GRE: neither checksum is filled in.
    let unfinished = wrong(&gre.wrap(&good), 44);
    let (out, report) = split_packets(&[unfinished], link::RAW, &learned(false));
    assert_eq!((report.trains, report.bad_left), (1, 0), "{report:?}");
    assert_eq!(judge(&file_of(&out, link::RAW), None).1.good, out.len() as u64);
}

/// Reassembles the fragments from 198.18.1.1 to 198.18.1.2, or the IPv6 counterparts, in order of arrival.
fn together(out: &[Vec<u8>], inside: usize) -> Vec<u8> {
    let parts: Vec<Vec<u8>> = out.iter().map(|packet| packet[inside..].to_vec()).collect();
    reassemble(&parts).unwrap()
}

#[test]
fn datagrams_longer_than_the_mtu_become_fragments_unless_they_forbid_it() {
    let small = by(SegmentSize::Mtu(1400));
    let free = Ip::V4(V4 { df: false, id: 7, ..V4::new(1, 1, 2) });
    for ip in [free.clone(), v6()] {
        let whole = Sender::udp(ip.clone(), 1).send(9000, 0).bytes();
        for sent in [whole.clone(), build::prime(&whole).unwrap()] {
            for number in [link::ETHERNET, link::COOKED, link::RAW] {
                let (out, report) = split_packets(std::slice::from_ref(&sent), number, &small);
                assert!(out.len() > 6 && report.fragmented == 1);
                assert!(out.iter().all(|packet| packet.len() <= 1400));
                assert_eq!(together(&out, 0), whole);
            }
        }
        // In a tunnel with checksums the fragments are inside.
        let udp = Udp { src_port: 50_001, dst_port: 6080, checksum: true };
        let gre = Some(Gre { checksum: true, ..Gre::default() });
        for shim in [Shim::Gue(None), Shim::Gue(Some(Remcsum::Transport))] {
            let tunnel = Tunnel { ip: v6(), udp: Some((udp, shim)), gre, ethernet: None };
            let tunnelled = tunnel.wrap(&whole);
            let (out, report) = split_packets(std::slice::from_ref(&tunnelled), link::ETHERNET, &small);
            assert!(out.len() > 6 && report.fragmented == 1);
            for packet in &out {
                verify(packet, Start::Ip, &ports()).unwrap();
            }
            assert_eq!(together(&out, tunnelled.len() - whole.len()), whole);
            // A wrong outer checksum is not corrected.
            let mut bad = tunnelled.clone();
            bad[46] ^= 1;
            let (out, report) = split_packets(std::slice::from_ref(&bad), link::ETHERNET, &small);
            assert_eq!((&out[0], out.len()), (&bad, 1));
            assert_eq!(report.refused["gso_outer_unknown"], 1);
        }
    }
    let fixed = Sender::udp(v4(), 1).send(9000, 0).bytes();
    let (out, report) = split_packets(std::slice::from_ref(&fixed), link::ETHERNET, &small);
    assert_eq!(out, [fixed]);
    assert_eq!(report.refused["gso_dont_fragment"], 1);
    // A wrong checksum is as wrong when the fragments are together.
    let mut bad = Sender::udp(free, 1).send(9000, 0).bytes();
    bad[5000] ^= 1;
    let (out, report) = split_packets(std::slice::from_ref(&bad), link::ETHERNET, &small);
    assert_eq!((together(&out, 0), report.bad_left), (bad, 1));
}

#[test]
fn udp_trains_are_cut_only_where_the_size_is_said() {
    let whole = build::prime(&Sender::udp(v4(), 1).send(12_000, 0).bytes()).unwrap();
    let (out, report) = split_packets(std::slice::from_ref(&whole), link::ETHERNET, &learned(false));
    assert_eq!((out.len(), report.udp_of_unknown_size), (1, 1));
    verify(&out[0], Start::Ip, &ports()).unwrap();
    let (out, _) = split_packets(std::slice::from_ref(&whole), link::ETHERNET, &by(SegmentSize::Mss(1200)));
    assert_eq!(out.len(), 10);
    assert!(out.iter().flat_map(|p| p[28..].to_vec()).collect::<Vec<_>>() == whole[28..]);
    for packet in &out {
        verify(packet, Start::Ip, &ports()).unwrap();
    }
}

#[test]
fn outer_checksums_are_finished_whatever_is_inside() {
    let headers: [(u16, &[u8]); 3] =
        [(4789, &[8, 0, 0, 0, 0, 0, 5, 0]), (8472, &[8, 0, 0, 0, 0, 0, 5, 0]), (6081, &[0, 0, 0x65, 0x58, 0, 0, 5, 0])];
    for ip in [v4(), v6()] {
        for (port, header) in headers {
            for inside in frames_without_ip() {
                let whole = datagram(ip.clone(), port, [header, &inside].concat());
                let sent = build::prime(&whole).unwrap();
                for fix_all in [false, true] {
                    let (out, report) = split_packets(std::slice::from_ref(&sent), link::RAW, &learned(fix_all));
                    assert!(out[0] == whole, "{port} {inside:02x?}: {report:?}");
                    assert_eq!((report.finished, report.unchanged), (1, 0));
                }
            }
        }
    }
}

#[test]
fn a_checksum_that_was_right_around_a_wrong_one_stays_right_when_that_is_mended() {
    let good = Sender::tcp(v4(), 3, 1, vec![]).send(300, 0).bytes();
    let mut bad = good.clone();
    bad[36] ^= 1;
    // The second holds the checksum of what is inside as it stands, with a sum to be finished in it.
    for inner in [bad, build::prime(&good).unwrap()] {
        for (name, tunnel) in
            tunnels().into_iter().filter(|(name, _)| ["gre full", "gue", "vxlan", "geneve"].contains(name))
        {
            let (out, report) = split_packets(&[tunnel.wrap(&inner)], link::RAW, &learned(true));
            assert!(out[0] == tunnel.wrap(&good), "{name}: {report:?}");
            assert!(report.finished + report.fixed > 0, "{name}: {report:?}");
        }
    }
}

#[test]
fn checksums_under_a_routing_header_are_of_the_last_address_and_finished_also_where_a_train_stays_whole() {
    // A header of type 0, and one of segment routing, whose list is reversed; each with one stop to come.
    let routed = |packet: &[u8], kind: u8| {
        let mut routed = packet.to_vec();
        let last: Vec<u8> = routed.splice(24..40, [0x20; 16]).collect();
        let mut header = vec![routed[6], 4, kind, 1, u8::from(kind == 4), 0, 0, 0];
        let stops = [[0x20; 16].to_vec(), last];
        header.extend(if kind == 4 { [&stops[1][..], &stops[0]].concat() } else { stops.concat() });
        let len = (packet.len() - 40 + header.len()) as u16;
        routed[4..6].copy_from_slice(&len.to_be_bytes());
        routed[6] = 43;
        routed.splice(40..40, header);
        routed
    };
    for len in [300, 3000] {
        let whole = Sender::tcp(v6(), 3, 1, vec![]).send(len, 0).bytes();
        for kind in [0, 4] {
            let sent = routed(&build::prime(&whole).unwrap(), kind);
            let (out, report) = split_packets(&[sent], link::RAW, &learned(false));
            assert!(out == [routed(&whole, kind)], "{len} {kind}: {report:?}");
            assert_eq!((report.finished, report.refused.len()), (1, usize::from(len == 3000)), "{report:?}");
        }
    }
}

#[test]
fn packets_with_a_frame_check_sequence_are_not_changed() {
    let short = build::prime(&Sender::tcp(v6(), 3, 1, vec![]).send(300, 0).bytes()).unwrap();
    let long = Sender::udp(Ip::V4(V4 { df: false, ..V4::new(1, 1, 2) }), 1).send(9000, 0).bytes();
    for file in with_check_sequences(&[train(v4(), 20_000, 0, vec![]), short, long]) {
        for config in [learned(true), by(SegmentSize::Mtu(1400))] {
            let (out, report) = split(&file, form_of(&file), &config).unwrap();
            assert!(out == file, "{report:?}");
            assert_eq!((report.refused["frame_check_sequence"], report.unchanged), (3, 3), "{report:?}");
        }
    }
}

#[test]
fn what_is_too_deep_to_be_looked_at_is_counted() {
    let udp = Udp { src_port: 50_001, dst_port: 4789, checksum: true };
    let ethernet = Some(Ethernet::default());
    let tunnel = Tunnel { ip: v6(), udp: Some((udp, Shim::Vxlan(42, false))), gre: None, ethernet };
    let mut whole = build::prime(&Sender::tcp(v4(), 3, 1, vec![]).send(30, 0).bytes()).unwrap();
    for depth in 1..=4 {
        whole = tunnel.wrap(&whole);
        let (_, report) = split_packets(std::slice::from_ref(&whole), link::RAW, &learned(false));
        assert_eq!(report.refused.get("too_deep").copied(), (depth == 4).then_some(1), "{depth}: {report:?}");
    }
}

#[test]
fn the_length_of_a_section_is_unknown_in_what_is_made_of_it() {
    for order in [Order::Little, Order::Big] {
        let head = PcapHeader { order, nanos: true, snaplen: 0, link: u32::from(link::RAW) };
        let mut list = Vec::new();
        options::push(&mut list, order, options::SHB_USERAPPL, b"a test");
        let mut section = section_block(order, &list);
        let unknown = section.clone();
        // The length of the section below, as far as it matters.
        section[16..24].copy_from_slice(&[0, 0, 0, 4, 4, 0, 0, 0]);
        let interface = interface_block(order, &head.interface());
        let file = [&section[..], &interface].concat();
        let config = DecapConfig::default();
        for out in
            [split(&file, Format::Pcapng, &learned(false)).unwrap().0, decap(&file, Format::Pcapng, &config).unwrap().0]
        {
            assert!(out == [&unknown[..], &interface].concat(), "{order:?}");
        }
    }
}

#[test]
fn a_packet_whose_flags_announce_a_frame_check_sequence_is_not_changed() {
    let head = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 0, link: u32::from(link::RAW) };
    let mut writer = Writer::new(section_block(Order::NATIVE, &[]), Format::Pcapng);
    writer.get_mut().extend(interface_block(Order::NATIVE, &head.interface()));
    let data = [train(v4(), 20_000, 0, vec![]), vec![0xcc; 4]].concat();
    let mut flags = Vec::new();
    options::push(&mut flags, Order::NATIVE, options::EPB_FLAGS, &(4_u32 << 5).to_ne_bytes());
    let len = data.len() as u32;
    writer.packet(&Outgoing { interface: 0, ticks: Some(1), len, data: &[&data], options: &flags }).unwrap();
    let file = writer.finish().unwrap();
    let (out, report) = split(&file, Format::Pcapng, &learned(true)).unwrap();
    assert!(out == file && report.refused["frame_check_sequence"] == 1, "{report:?}");
}

#[test]
fn the_packets_of_a_train_carry_no_options_but_flags_and_queue_of_the_right_length() {
    let order = Order::NATIVE;
    let option = |code: u16, value: &[u8]| {
        let mut list = Vec::new();
        options::push(&mut list, order, code, value);
        list
    };
    let (flags, queue) = (option(options::EPB_FLAGS, &[1, 0, 0, 0]), option(options::EPB_QUEUE, &[7, 0, 0, 0]));
    let long = [option(options::EPB_FLAGS, &[0; 60_000]), option(options::EPB_QUEUE, &[0; 60_000])].concat();
    let list = [&long[..], &flags, &queue, &queue.repeat(9000), &option(options::COMMENT, b"of the first")].concat();
    let head = PcapHeader { order, nanos: true, snaplen: 0, link: u32::from(link::RAW) };
    let mut writer = Writer::new(section_block(order, &[]), Format::Pcapng);
    writer.get_mut().extend(interface_block(order, &head.interface()));
    let data = train(v4(), 20_000, 0, vec![]);
    let len = data.len() as u32;
    writer.packet(&Outgoing { interface: 0, ticks: Some(1), len, data: &[&data], options: &list }).unwrap();
    let file = writer.finish().unwrap();
    for size in [SegmentSize::Learned, SegmentSize::Mss(1000)] {
        let (out, report) = split(&file, Format::Pcapng, &by(size)).unwrap();
        assert!(report.trains == 1 && out.len() < 2 * file.len(), "{} bytes of {}", out.len(), file.len());
        let mut reader = Reader::new(&out[..]).unwrap();
        let mut carried = Vec::new();
        while let Some(item) = reader.next().unwrap() {
            if let Item::Packet(record) = item {
                carried.push(filtered(record.options(), order, |_| true));
            }
        }
        assert!(carried[0] == list && carried.len() as u64 == report.packets_out);
        let each = [&flags[..], &queue].concat();
        assert!(carried[1..].iter().all(|later| *later == each), "{:?}", carried.last());
    }
}
