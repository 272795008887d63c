//! Tests of joining inside tunnels: every form, over both versions of IP.

use segue::gro::{Flush, Mismatch, RefusalReason};
use segue::packet::{LayerCsum, TrainCsum, Unit};
use segue::wire::read_u16;
use segue_testkit::build::{Gre, Ip, Remcsum, Shim, Tunnel, V4, V6};
use segue_testkit::flow::Sender;

use crate::bench::{Stream, bridge, every, run, tcp4, tunnel, v4, v6, wrap};

const PLAIN: Gre = Gre { checksum: false, key: None, seq: None };
const KEY: Gre = Gre { checksum: false, key: Some(42), seq: None };
const CSUM: Gre = Gre { checksum: true, key: None, seq: None };
const BOTH: Gre = Gre { checksum: true, key: Some(7), seq: None };

fn outers() -> [Ip; 2] {
    [Ip::V4(V4::new(0, 1, 2)), Ip::V6(V6::new(0, 1, 2))]
}

/// Checks that TCP and UDP packets of both IP versions are joined inside the given tunnel, over IPv4 and IPv6, with an
/// outer checksum.
fn joins(shim: Shim, gre: Option<Gre>) {
    for outer in outers() {
        for mut sender in every() {
            let around = tunnel(outer.clone(), shim, gre, &sender.next.ip);
            let outcome = Stream::new(wrap(&around, run(&mut sender, 4))).joins();
            outcome.counts(&[], &[(Flush::PollEnd, 1)], &[]);
            let layer = outcome.trains[0].offload.layers()[0];
            let gre = if gre.is_some_and(|gre| gre.checksum) { LayerCsum::Owed } else { LayerCsum::Absent };
            assert_eq!((layer.udp, layer.gre), (LayerCsum::Owed, gre));
        }
    }
}

#[test]
fn gue_joins() {
    joins(Shim::Gue(None), None);
}

#[test]
fn gue_version_1_joins() {
    joins(Shim::GueBare, None);
}

#[test]
fn fou_joins() {
    joins(Shim::Fou, None);
}

#[test]
fn gre_in_gue_joins() {
    joins(Shim::Gue(None), Some(PLAIN));
}

#[test]
fn gre_in_fou_joins() {
    joins(Shim::Fou, Some(PLAIN));
}

#[test]
fn gre_with_a_key_joins() {
    joins(Shim::Gue(None), Some(KEY));
    joins(Shim::Fou, Some(KEY));
}

#[test]
fn gre_with_a_checksum_joins() {
    joins(Shim::Gue(None), Some(CSUM));
    joins(Shim::Fou, Some(BOTH));
}

#[test]
fn remote_checksums_join_and_stay_remote() {
    joins(Shim::Gue(Some(Remcsum::Transport)), None);
    let around = tunnel(v4(), Shim::Gue(Some(Remcsum::Transport)), None, &v4());
    let outcome = Stream::new(wrap(&around, run(&mut tcp4(), 3))).joins();
    let train = &outcome.trains[0];
    assert!(matches!(train.offload.unit, Unit::Train { csum: TrainCsum::Partial, .. }));
    assert!(train.offload.layers()[0].remote.is_some());
    assert_eq!(outcome.stats.checksummed_bytes, 300, "the outer checksum is verified, and nothing else");
}

#[test]
fn remote_checksums_behind_gre_join() {
    joins(Shim::Gue(Some(Remcsum::Transport)), Some(PLAIN));
    joins(Shim::Gue(Some(Remcsum::Transport)), Some(KEY));
}

#[test]
fn remote_checksums_behind_gre_with_a_checksum_join() {
    joins(Shim::Gue(Some(Remcsum::Transport)), Some(BOTH));
}

#[test]
fn tunnels_without_outer_checksum_join() {
    for outer in outers() {
        for shim in [Shim::Fou, Shim::Gue(None)] {
            let mut around = tunnel(outer.clone(), shim, None, &v6());
            if let Some((udp, _)) = &mut around.udp {
                udp.checksum = false;
            }
            let mut sender = Sender::tcp(v6(), 1, 1, Vec::new());
            let outcome = Stream::new(wrap(&around, run(&mut sender, 3))).joins();
            assert_eq!(outcome.trains[0].offload.layers()[0].udp, LayerCsum::Absent);
        }
    }
}

#[test]
fn tunnels_right_in_ip_join() {
    for outer in outers() {
        for gre in [None, Some(PLAIN), Some(KEY), Some(BOTH)] {
            for mut sender in every() {
                let around = Tunnel { ip: outer.clone(), udp: None, gre, ethernet: None };
                Stream::new(wrap(&around, run(&mut sender, 3))).joins();
            }
        }
    }
}

/// Checks that Ethernet frames in the given tunnel join, with and without a VLAN tag.
fn frames_join(shim: Shim, gre: Option<Gre>) {
    for (outer, tag) in outers().into_iter().flat_map(|outer| [(outer.clone(), None), (outer, Some(6))]) {
        for mut sender in every() {
            let around = bridge(outer.clone(), shim, gre, tag);
            let outcome = Stream::new(wrap(&around, run(&mut sender, 4))).joins();
            outcome.counts(&[], &[(Flush::PollEnd, 1)], &[]);
        }
    }
}

#[test]
fn ethernet_inside_gre_joins() {
    for gre in [PLAIN, KEY, BOTH] {
        frames_join(Shim::Gue(None), Some(gre));
        frames_join(Shim::Fou, Some(gre));
        for (outer, mut sender) in outers().into_iter().zip(every()) {
            let around = Tunnel { udp: None, ..bridge(outer, Shim::Fou, Some(gre), Some(6)) };
            Stream::new(wrap(&around, run(&mut sender, 3))).joins();
        }
    }
}

#[test]
fn ethernet_inside_gue_and_fou_joins() {
    frames_join(Shim::Gue(None), None);
    frames_join(Shim::Gue(Some(Remcsum::Transport)), None);
    frames_join(Shim::Fou, None);
}

#[test]
fn vxlan_joins() {
    frames_join(Shim::Vxlan(42, false), None);
}

#[test]
fn vxlan_with_remote_checksums_joins_and_stays_remote() {
    frames_join(Shim::Vxlan(42, true), None);
    let around = bridge(v4(), Shim::Vxlan(42, true), None, None);
    let outcome = Stream::new(wrap(&around, run(&mut tcp4(), 3))).joins();
    let train = &outcome.trains[0];
    assert!(matches!(train.offload.unit, Unit::Train { csum: TrainCsum::Partial, .. }));
    assert!(train.offload.layers()[0].remote.is_some());
    assert_eq!(outcome.stats.checksummed_bytes, 300, "the outer checksum is verified, and nothing else");
}

#[test]
fn geneve_joins() {
    frames_join(Shim::Geneve(42, 0), None);
    joins(Shim::Geneve(42, 0), None);
}

#[test]
fn geneve_with_options_joins() {
    frames_join(Shim::Geneve(42, 5), None);
    joins(Shim::Geneve(42, 1), None);
}

#[test]
fn network_identifiers_part_flows() {
    for shim in [Shim::Vxlan, |vni, _| Shim::Geneve(vni, 0)] {
        let packets = run(&mut tcp4(), 2);
        let [first, second] = [1, 2].map(|vni| bridge(v6(), shim(vni, false), None, None));
        let stream = Stream::new([first.wrap(&packets[0]), second.wrap(&packets[1])]);
        stream.gives(&[1, 1]).counts(&[], &[(Flush::PollEnd, 2)], &[]);
    }
}

#[test]
fn other_options_of_geneve_start_anew() {
    let packets = run(&mut tcp4(), 2);
    let around = bridge(v6(), Shim::Geneve(1, 3), None, None);
    let mut stream = Stream::new([around.wrap(&packets[0]), around.wrap(&packets[1])]);
    let other = around.wrap(&packets[1]);
    stream.packets[1].0 = {
        // A byte of the option, and the checksum that covers it.
        let mut bytes = other;
        bytes[40 + 8 + 8 + 5] ^= 1;
        let field = u16::from_be_bytes([bytes[46], bytes[47]]);
        let change = if bytes[40 + 8 + 8 + 5] & 1 == 0 { 1 } else { u16::MAX };
        bytes[46..48].copy_from_slice(&field.wrapping_add(change).to_be_bytes());
        bytes
    };
    stream.gives(&[1, 1]).counts(&[], &[(Flush::Mismatch, 1), (Flush::PollEnd, 1)], &[(Mismatch::TunnelHeader, 1)]);
}

#[test]
fn tunnels_in_tunnels_join_up_to_the_one_limit() {
    // Three IP headers, whatever they belong to, are one too many.
    for mut sender in every() {
        let inside = bridge(v4(), Shim::Vxlan(1, false), None, None);
        let twice = wrap(&bridge(v6(), Shim::Geneve(2, 0), None, None), wrap(&inside, run(&mut sender, 2)));
        Stream::new(twice).gives(&[1, 1]).counts(&[(RefusalReason::TooDeep, 2)], &[], &[]);
    }
}

#[test]
fn the_lengths_of_every_level_are_those_of_the_whole() {
    let around = tunnel(Ip::V4(V4::new(0, 1, 2)), Shim::Gue(None), Some(KEY), &v4());
    let outcome = Stream::new(wrap(&around, run(&mut tcp4(), 3))).joins();
    let head = outcome.trains[0].head.bytes();
    // IPv4, UDP, GUE, GRE, IPv4, TCP: 20, 8, 4, 8, 20, 20.
    assert_eq!((read_u16(head, 2), read_u16(head, 24), read_u16(head, 42)), (Some(380), Some(360), Some(340)));
}

#[test]
fn each_ip_level_has_its_own_way_of_identification() {
    // The outer identification constant and the inner counting, and the reverse.
    let packets = run(&mut tcp4(), 4);
    let around = tunnel(Ip::V4(V4::new(0, 1, 2)), Shim::Fou, None, &v4());
    let fixed_outside = Stream::new(packets.iter().map(|packet| around.wrap(packet)).collect::<Vec<_>>());
    let mut sender = tcp4();
    sender.ids = segue_testkit::flow::Ids::Fixed;
    let fixed_inside = Stream::new(wrap(&around, run(&mut sender, 4)));
    for (stream, fixed) in [(fixed_outside, 0b0001), (fixed_inside, 0b0100)] {
        let Unit::Train { gso, .. } = stream.joins().trains[0].offload.unit else { panic!("a train") };
        assert_eq!(gso.fixed_ids, fixed);
    }
}

#[test]
fn an_outer_identification_that_jumps_starts_anew() {
    let around = tunnel(Ip::V4(V4::new(0, 1, 2)), Shim::Fou, None, &v4());
    let mut far = around.clone();
    if let Ip::V4(ip) = &mut far.ip {
        ip.id = 5;
    }
    let packets = run(&mut tcp4(), 2);
    let stream = Stream::new([around.wrap(&packets[0]), far.wrap(&packets[1])]);
    assert_eq!(stream.gives(&[1, 1]).stats.mismatches.of(Mismatch::IpId), 1);
}

#[test]
fn an_outer_ttl_or_tos_starts_anew() {
    let around = tunnel(Ip::V4(V4::new(0, 1, 2)), Shim::Gue(None), None, &v4());
    let packets = run(&mut tcp4(), 2);
    let change = |ip: &mut V4, why| match why {
        Mismatch::Ttl => ip.ttl = 9,
        Mismatch::Tos => ip.tos = 3,
        _ => ip.df = false,
    };
    for why in [Mismatch::Ttl, Mismatch::Tos, Mismatch::Fragment] {
        let mut other = around.clone();
        if let Ip::V4(ip) = &mut other.ip {
            ip.id = 1;
            change(ip, why);
        }
        let stream = Stream::new([around.wrap(&packets[0]), other.wrap(&packets[1])]);
        assert_eq!(stream.gives(&[1, 1]).stats.mismatches.of(why), 1);
    }
}

#[test]
fn a_tunnelled_train_is_no_longer_than_its_outer_length_can_say() {
    let mut sender = Sender::tcp(v4(), 1, 1, Vec::new());
    let around = tunnel(Ip::V6(V6::new(0, 1, 2)), Shim::Gue(Some(Remcsum::Transport)), Some(BOTH), &v4());
    let packets: Vec<_> = (0..60).map(|_| sender.send(1400, 0).bytes()).collect();
    let outcome = Stream::new(wrap(&around, packets)).run();
    assert!(outcome.sizes[0] > 40 && outcome.trains.iter().all(|train| train.len() <= 65_535), "{:?}", outcome.sizes);
}

#[test]
fn outer_source_ports_part_flows() {
    let packets = run(&mut tcp4(), 2);
    let mut around = tunnel(v4(), Shim::Gue(None), None, &v4());
    let first = around.wrap(&packets[0]);
    if let Some((udp, _)) = &mut around.udp {
        udp.src_port = 50_001;
    }
    Stream::new([first, around.wrap(&packets[1])]).gives(&[1, 1]).counts(&[], &[(Flush::PollEnd, 2)], &[]);
}

/// Tests that the Geneve option of CVE-2026-72408 changes nothing: with class 0x0100 and type 1 it made Linux join
/// packets by headers of a nested tunnel that only the option described.
#[test]
fn cve_2026_72408_a_geneve_option_about_nested_headers_joins_nothing() {
    let with = |packets: &[Vec<u8>], option: [u8; 12]| {
        let patched = packets.iter().map(|bytes| {
            let mut bytes = bytes.clone();
            // Behind 20 bytes of IPv4, 8 of UDP, without checksum, and 8 of Geneve.
            bytes[36..48].copy_from_slice(&option);
            bytes
        });
        Stream::new(patched).run().sizes
    };
    let option = |class: u8, kind: u8, hint: [u8; 8]| {
        let mut option = [class, 0, kind, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        option[4..].copy_from_slice(&hint);
        option
    };
    for is_nested in [false, true] {
        let mut sender = tcp4();
        let mut packets = run(&mut sender, 4);
        if is_nested {
            packets = wrap(&tunnel(v4(), Shim::Geneve(7, 0), None, &sender.next.ip), packets);
        }
        let mut around = tunnel(v4(), Shim::Geneve(42, 3), None, &sender.next.ip);
        if let Some((udp, _)) = &mut around.udp {
            udp.checksum = false;
        }
        let packets = wrap(&around, packets);
        let unknown = with(&packets, option(9, 9, [0; 8]));
        assert_eq!(unknown, if is_nested { vec![1; 4] } else { vec![4] });
        // Right, wrong and impossible places of inner headers.
        for hint in [[0; 8], [0xff; 8], [14, 34, 42, 50, 64, 84, 0, 0], [50, 70, 78, 86, 100, 120, 0, 0]] {
            assert_eq!(with(&packets, option(1, 1, hint)), unknown, "{hint:x?}");
        }
    }
}
