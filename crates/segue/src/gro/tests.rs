//! Tests of internal parts: the table against a plain list, and the masks.

use alloc::collections::VecDeque;

use segue_testkit::Rng;
use segue_testkit::build::{Ethernet, Gre, Ip, L4, Packet as Built, Shim, Tcp, Tunnel, Udp, V4, V6};

use super::ip_id::Ids;
use super::key::FlowKey;
use super::rules::Masks;
use super::rules::{self, VARYING};
use super::table::{ExpectedNext, Found, Held, HeldKind, MatchKey, Slot, Table, left};
use super::tunnel_form::TunnelFormId;
use super::verify::{is_right_end, is_sum_good};
use super::*;
use crate::checksum::{Field, Sum};
use crate::easy::Joiner;
use crate::gso::Limits;
use crate::hash::Key;
use crate::packet::{
    Csum, Frag, Gso, GsoKind, Kind, Layer, LayerCsum, Layout, Packet, Pool, Remote, Start, Stop, TrainCsum, Tunnels,
    Unit,
};
use crate::time::Nanos;
use crate::virtio::{Form, TUN_OFFLOADS};

fn packet(port: u16) -> Box<Packet<Vec<u8>>> {
    let tcp =
        Tcp { src_port: port, dst_port: 80, seq: 1, ack: 1, flags: 0x10, window: 1, urgent: 0, options: Vec::new() };
    let bytes = Built { ip: Ip::V4(V4::new(1, 1, 2)), l4: L4::Tcp(tcp), data: vec![1; 40] }.bytes();
    let mut packet = Box::<Packet<Vec<u8>>>::default();
    packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
    packet
}

fn held(port: u16) -> Held<Vec<u8>> {
    let (size, segs, since) = (40, 1, Nanos(u64::from(port)));
    let (ids, key) = (Ids::default(), MatchKey::other(None, HeldKind::Data, false));
    let (most, left, room, next_seq, stamp, verified) = (9, 8, 999, 0, 0, false);
    let packet = packet(port);
    Held {
        packet,
        since,
        size,
        room,
        left,
        segs,
        most,
        next_seq,
        stamp,
        ids,
        key,
        tunnel_form: TunnelFormId::NONE,
        expected: ExpectedNext::NOTHING,
        verified,
    }
}

#[test]
fn the_table_is_a_list_by_age_with_a_bound_for_each_bucket() {
    for (capacity, hashes) in [(1, 1), (4, 2), (32, 3), (32, 1000)] {
        let mut table = Table::new(capacity);
        let mut rng = Rng::new(capacity as u64);
        // The expected content, oldest first: the port that stands for the flow, and its hash.
        let mut model: Vec<(u16, u64)> = Vec::new();
        // The flushed rounds: the first slot of each, and its ports.
        let mut leaving: VecDeque<(usize, Vec<u16>)> = VecDeque::new();
        for round in 0..3000_u16 {
            if rng.chance(30) && !model.is_empty() {
                let first = table.flush().expect("something is held");
                leaving.push_back((first, model.drain(..).map(|(port, _)| port).collect()));
            }
            if (table.is_full() || rng.chance(20))
                && let Some((first, ports)) = leaving.pop_front()
            {
                let mut idx = Some(first);
                for port in ports {
                    let (slot, next) = table.release(idx.expect("there are as many"));
                    let Slot::Held(held) = slot.take() else { panic!("it was held") };
                    assert_eq!(held.since, Nanos(u64::from(port)));
                    idx = next;
                }
                assert_eq!(idx, None);
            }
            if rng.chance(300) && !model.is_empty() {
                let (port, hash) = model.remove(rng.below(model.len()));
                let key = FlowKey::of(&packet(port)).unwrap();
                let Some(Found::Held(idx)) = table.find(hash, |held| key.is_of(&held.packet)) else {
                    panic!("it is held")
                };
                assert_eq!(table.since(idx), Nanos(u64::from(port)));
                table.remove(idx);
            } else {
                let hash = rng.below(hashes) as u64;
                let oldest = table.oldest().filter(|_| table.is_full());
                if let Some(idx) = table.make_room(hash).or(oldest) {
                    let gone = table.since(idx).0 as u16;
                    table.remove(idx);
                    let at = model.iter().position(|&(port, _)| port == gone).expect("it was held");
                    // The oldest of all, or of those that collide.
                    let (_, its) = model.remove(at);
                    assert!(at == 0 || model[..at].iter().all(|&(_, other)| other != its));
                }
                table.insert(hash, Slot::Held(held(round)));
                model.push((round, hash));
            }
            assert_eq!(table.len(), model.len());
            assert!(model.len() <= capacity);
            let same = |hash| model.iter().filter(|&&(_, other)| other == hash).count();
            assert!(model.iter().all(|&(_, hash)| same(hash) <= 8), "a chain has a bound");
            let oldest = table.oldest().map(|idx| table.since(idx).0 as u16);
            assert_eq!(oldest, model.first().map(|&(port, _)| port));
        }
    }
}

#[test]
fn the_key_is_that_of_the_flow_and_of_nothing_else() {
    let of = |bytes: Vec<u8>, start| {
        let mut packet = Packet::default();
        packet.load(Frag::all(bytes), start, &Tunnels::NONE.with_gue(6080));
        FlowKey::of(&packet)
    };
    let inner = |ttl, data| {
        let udp = L4::Udp(Udp { src_port: 1, dst_port: 2, checksum: true });
        Built { ip: Ip::V4(V4 { ttl, ..V4::new(1, 1, 2) }), l4: udp, data: vec![data; 9] }.bytes()
    };
    assert_eq!(of(inner(1, 2), Start::Ip), of(inner(3, 4), Start::Ip));
    let outer = |key, class| {
        let ip = Ip::V6(V6 { class, ..V6::new(0, 1, 2) });
        let udp = Udp { src_port: 9, dst_port: 6080, checksum: true };
        let gre = Some(Gre { key, ..Gre::default() });
        Tunnel { ip, udp: Some((udp, Shim::Gue(None))), gre, ethernet: None }.wrap(&inner(1, 2))
    };
    assert_eq!(of(outer(Some(1), 0), Start::Ip), of(outer(Some(1), 9), Start::Ip));
    assert_ne!(of(outer(Some(1), 0), Start::Ip), of(outer(Some(2), 0), Start::Ip));
    assert_ne!(of(outer(Some(1), 0), Start::Ip), of(outer(None, 0), Start::Ip));
    assert_eq!(of(b"E".to_vec(), Start::Ip), Err(RefusalReason::Malformed));
    let key = of(inner(1, 2), Start::Ip).unwrap();
    assert_eq!(format!("{key:?}"), format!("FlowKey({:02x?})", key.bytes()));
}

/// Tests that neither of two keys is that of the other's packet if one is the beginning of the other: here of a
/// datagram that is looked into or not.
#[test]
fn a_key_that_begins_as_another_one_is_of_another_flow() {
    let load = |tunnels: &Tunnels| {
        let udp = |dst_port| Udp { src_port: 1, dst_port, checksum: true };
        let inner = Built { ip: Ip::V4(V4::new(1, 1, 2)), l4: L4::Udp(udp(2)), data: vec![3; 9] }.bytes();
        let shim = Some((udp(6080), Shim::Gue(None)));
        let tunnel = Tunnel { ip: Ip::V4(V4::new(0, 1, 2)), udp: shim, gre: None, ethernet: None };
        let mut packet = Packet::default();
        packet.load(Frag::all(tunnel.wrap(&inner)), Start::Ip, tunnels);
        packet
    };
    let (outside, inside) = (load(&Tunnels::NONE), load(&Tunnels::NONE.with_gue(6080)));
    let (short, long) = (FlowKey::of(&outside).unwrap(), FlowKey::of(&inside).unwrap());
    assert!(long.bytes().starts_with(short.bytes()) && short.bytes().len() < long.bytes().len());
    assert_eq!((short.is_of(&outside), short.is_of(&inside)), (true, false));
    assert_eq!((long.is_of(&outside), long.is_of(&inside)), (false, true));
}

#[test]
fn a_mask_leaves_out_what_varies_and_nothing_else() {
    let packet = packet(1);
    for profile in [Profile::Strict, Profile::linux(), Profile::Linux(Generation::V7), Profile::Lro] {
        let masks = Masks::new(profile);
        let differ = |a: &[u8], b: &[u8]| masks.difference(&packet.layout, a, b);
        for (at, bit) in (0..packet.head.len()).flat_map(|at| (0..8).map(move |bit| (at, 1_u8 << bit))) {
            let mut other = packet.head.clone();
            other.bytes_mut()[at] ^= bit;
            let varies = packet.layout.headers().iter().any(|header| {
                VARYING.iter().any(|field| {
                    let range = header.start() + field.at..header.start() + field.at + field.len;
                    let counts = field.whose.has(profile);
                    counts && field.kind == header.kind && range.contains(&at) && field.bits & bit != 0
                })
            });
            let difference = differ(packet.head.bytes(), other.bytes());
            assert_eq!(difference, (!varies).then_some(at), "byte {at}, bit {bit:02x}");
        }
        assert!(differ(packet.head.bytes(), &packet.head.bytes()[1..]).is_some());
        // Two differences of the same bits are no less than one.
        let mut other = packet.head.clone();
        (other.bytes_mut()[8], other.bytes_mut()[12]) = (other.bytes()[8] ^ 1, other.bytes()[12] ^ 1);
        assert_eq!(differ(packet.head.bytes(), other.bytes()), Some(8), "TTL and source address");
        let (head, mask) = (packet.head.bytes(), masks.all(&packet.layout, packet.head.bytes()));
        assert_eq!(differ(head, &head[..head.len() - 1]), Some(usize::MAX), "one byte less, and all others equal");
        let inverted: Vec<u8> = head.iter().zip(&mask).map(|(byte, mask)| byte ^ mask).collect();
        assert_eq!(differ(head, &inverted), Some(0), "every bit that counts is another");
    }
}

/// Tests the quick sum of an IPv4 header against the definition (RFC 1071), with carries of every kind.
#[test]
fn an_ipv4_header_is_good_where_its_words_sum_to_all_ones() {
    let mut rng = Rng::new(5);
    for round in 0..4000 {
        let mut header: [u8; 20] = core::array::from_fn(|_| match round % 4 {
            0 => rng.next_u64() as u8,
            // Words that carry as often as they can, and as seldom.
            1 => 0xff,
            2 => [0, 0xff][rng.below(2)],
            _ => [0, 1][rng.below(2)],
        });
        header[0] = 0x45;
        header[10..12].fill(0);
        let field = Field::complete(Sum::of(&header)).value();
        // The right field, then one with another bit in any byte.
        for (at, bit) in [(0, 0), (10, 1), (11, 1), (rng.below(20), 1 << rng.below(8))] {
            let mut header = header;
            header[10..12].copy_from_slice(&field.to_be_bytes());
            header[at] ^= bit;
            let expected = Sum::of(&header).fold() == 0xffff;
            assert_eq!(is_sum_good(&header), expected, "{header:02x?}");
            assert_eq!(expected, bit == 0, "{header:02x?}");
        }
    }
}

/// Tests that the second byte of IPv6, half traffic class and half flow label, is named by the half that differs.
#[test]
fn a_difference_in_the_shared_byte_of_ipv6_is_named_by_its_half() {
    let mut layout = Layout::empty(Stop::Transport);
    assert!(layout.push(Kind::Ipv6, 40));
    let bytes = |second: u8| {
        let mut bytes = [0x60; 40];
        bytes[1] = second;
        bytes
    };
    for (other, expected) in [(0xf1, Mismatch::FlowLabel), (0xe0, Mismatch::Tos), (0xe1, Mismatch::Tos)] {
        assert_eq!(rules::explain(&layout, 1, &bytes(0xf0), &bytes(other)), expected, "{other:#x}");
    }
}

#[test]
fn a_layout_that_contradicts_the_packet_keeps_it_alone() {
    let ipv4 = packet(1).head.bytes()[..20].to_vec();
    type Lie<'a> = (&'a str, &'a [u8], &'a [(Kind, usize)]);
    let lies: [Lie<'_>; 4] = [
        ("a header shorter than its kind", &[0; 4], &[(Kind::Ethernet, 4)]),
        ("a header of odd length", &[0; 3], &[(Kind::Gue, 3)]),
        ("an IP level without a state", &ipv4, &[(Kind::Ipv4, 20)]),
        ("a head longer than the layout", &[0; 4], &[]),
    ];
    for (what, front, headers) in lies {
        let mut packet = packet(1);
        packet.head.push_front(front.len()).unwrap().copy_from_slice(front);
        let mut outer = Layout::empty(Stop::Protocol);
        assert!(headers.iter().all(|&(kind, len)| outer.push(kind, len)) && packet.layout.prepend(&outer));
        assert_eq!(rules::gate(&packet, &Config::default()), Err(RefusalReason::Malformed), "{what}");
    }
    assert_eq!(rules::gate(&packet(1), &Config::default()), Ok(()));
}

#[test]
fn as_many_segments_fit_as_the_bytes_and_the_number_allow() {
    for (most, room, size, expected) in [
        (8, 999, 40, 8),
        (30, 999, 40, 24),
        (24, 960, 40, 24),
        (30, 959, 40, 23),
        (5, 39, 40, 0),
        (5, 40, 40, 1),
        (5, 40, 0, 0),
        (0, 999, 40, 0),
    ] {
        assert_eq!(left(most, room, size), expected, "{most} {room} {size}");
    }
    for (segs, spare) in [(1, 999), (3, 919), (25, 39), (26, 0), (1000, 0)] {
        let held = Held { segs, ..held(1) };
        assert_eq!((held.spare(false), held.spare(true)), (spare, 999), "{segs}");
    }
    for (segs, carries, expected) in [(1, HeldKind::Data, false), (2, HeldKind::Data, true), (2, HeldKind::Acks, false)]
    {
        let held = Held { segs, key: MatchKey::other(None, carries, false), ..held(1) };
        assert_eq!(held.is_train(), expected, "{segs} {carries:?}");
    }
}

/// Tests when a train is closed by the segment that joins it: by its length, its flags, and the room that is left.
#[test]
fn a_segment_that_joins_closes_the_train_where_none_can_follow() {
    const L4: usize = 20;
    let header = |flags: u8| {
        let mut header = packet(1).head.bytes()[L4..].to_vec();
        header[13] = flags;
        header
    };
    // Largest number of packets, room, segments left; length, flags, whether sizes may differ; and the reason.
    for (most, room, before, len, flags, is_lro, expected) in [
        (9, 999, 8, 40, 0x10, false, None),
        (9, 999, 8, 39, 0x10, false, Some(Flush::Short)),
        (9, 999, 8, 40, 0x18, false, Some(Flush::Push)),
        (9, 999, 8, 40, 0x11, false, Some(Flush::Fin)),
        (9, 999, 8, 39, 0x19, false, Some(Flush::Fin)),
        (9, 999, 8, 40, 0x09, false, Some(Flush::Fin)),
        (9, 999, 8, 40, 0x50, false, None),
        (2, 999, 1, 40, 0x10, false, Some(Flush::Full)),
        (3, 999, 2, 40, 0x10, false, None),
        // No full segment fits any more, but a shorter one does; then none does.
        (9, 79, 1, 40, 0x10, false, None),
        (9, 40, 1, 40, 0x10, false, Some(Flush::Full)),
        (9, 999, 8, 39, 0x10, true, None),
        (9, 999, 8, 100, 0x10, true, None),
        (9, 150, 8, 100, 0x10, true, None),
        (9, 100, 8, 100, 0x10, true, Some(Flush::Full)),
        (2, 999, 8, 100, 0x10, true, Some(Flush::Full)),
        (9, 999, 8, 100, 0x18, true, Some(Flush::Push)),
    ] {
        let mut held = Held { most, room, left: before, ..held(1) };
        let why = held.add(Ids::default(), Some(L4), &header(flags), len, is_lro);
        let case = format!("{most} {room} {before}, {len} bytes, {flags:#x}, {is_lro}");
        assert_eq!((why, held.segs, held.next_seq), (expected, 2, len as u32), "{case}");
        assert_eq!(held.packet.head.bytes()[L4 + 13], 0x10 | flags & 0x09, "{case}");
        if is_lro {
            let size = len.max(40);
            assert_eq!((held.size, held.room), (size, room - len), "{case}");
            assert_eq!(held.left, left(most - 2, room - len, size), "{case}");
        } else {
            assert_eq!((held.size, held.room, held.left), (40, room, before - 1), "{case}");
        }
    }
}

#[test]
fn the_size_of_a_held_flow_is_bounded() {
    // With the default of 256 flows the table takes well under a megabyte, whatever is sent.
    assert!(size_of::<Held<Vec<u8>>>() + size_of::<Packet<Vec<u8>>>() < 1500);
}

/// Tests that a datagram without a checksum does not get one, whatever a caller says about it.
#[test]
fn datagrams_without_a_checksum_are_not_joined_even_if_they_are_called_verified() {
    const VXLAN: u16 = 4789;
    let tunnels = Tunnels::NONE.with(VXLAN, Kind::Vxlan);
    for is_v6 in [false, true] {
        let ip = if is_v6 { Ip::V6(V6::new(1, 1, 2)) } else { Ip::V4(V4::new(1, 1, 2)) };
        let udp = Udp { src_port: 7, dst_port: 8, checksum: false };
        let outer = Udp { src_port: 9, dst_port: VXLAN, checksum: false };
        let ethernet = Some(Ethernet::default());
        let tunnel = Tunnel { ip: ip.clone(), udp: Some((outer, Shim::Vxlan(5, false))), gre: None, ethernet };
        let plain = Built { ip, l4: L4::Udp(udp), data: vec![1; 100] }.bytes();
        for packet in [plain.clone(), tunnel.wrap(&plain)] {
            for in_pieces in [false, true] {
                let mut joiner = Joiner::virtio(
                    Config { tunnels, ..Config::vpn(Key([1, 2])) },
                    Limits::tun(TUN_OFFLOADS[0]),
                    Form::Basic,
                );
                let mut batch = joiner.batch();
                for _ in 0..2 {
                    match in_pieces {
                        false => batch.push_with(&packet, Csum::Verified),
                        true => batch.push_pieces(packet.chunks(50), Csum::Verified),
                    };
                }
                for number in 0..2 {
                    let train = batch.pop().expect("one of two");
                    let bytes: Vec<u8> = train.pieces().flatten().copied().collect();
                    assert!(bytes[10..] == packet, "{number} {is_v6} {in_pieces}: {bytes:02x?}");
                }
                assert!(batch.pop().is_none());
            }
        }
    }
}

/// Tests that a segment begins or ends a connection by SYN, FIN or RST, and only if its checksum is right or was
/// checked.
#[test]
fn a_right_segment_with_syn_fin_or_rst_begins_or_ends_a_connection_and_no_other_one() {
    for (flags, is_end) in [
        (0x00, false),
        (0x10, false),
        (0x18, false),
        (0x30, false),
        (0x11, true),
        (0x12, true),
        (0x14, true),
        (0x07, true),
    ] {
        let (src_port, dst_port, options) = (1, 80, Vec::new());
        let tcp = Tcp { src_port, dst_port, seq: 1, ack: 1, flags, window: 1, urgent: 0, options };
        let bytes = Built { ip: Ip::V4(V4::new(1, 1, 2)), l4: L4::Tcp(tcp), data: vec![1; 40] }.bytes();
        let is_right = |bytes: &[u8], unit: Unit| {
            let mut packet = Packet::default();
            packet.load(Frag::all(bytes.to_vec()), Start::Ip, &Tunnels::NONE);
            packet.offload.unit = unit;
            let (_, header) = packet.transport().expect("it has one");
            is_right_end(&packet, header)
        };
        let train = Unit::Train { csum: TrainCsum::Stale, gso: Gso { kind: GsoKind::Tcp, size: 20, fixed_ids: 0 } };
        let whole = [Csum::Unknown, Csum::Verified, Csum::Partial, Csum::Complete(Sum::of(&bytes))].map(Unit::Whole);
        for unit in whole.into_iter().chain([train]) {
            assert_eq!(is_right(&bytes, unit), is_end, "{flags:#x} {unit:?}");
        }
        for csum in [Csum::Bad, Csum::Absent] {
            assert!(!is_right(&bytes, Unit::Whole(csum)), "{flags:#x} {csum:?}");
        }
        let mut wrong = bytes;
        *wrong.last_mut().expect("it has payload") ^= 1;
        assert!(!is_right(&wrong, Unit::Whole(Csum::Unknown)), "{flags:#x}");
    }
}

/// Tests that a header that is shorter than its kind is malformed, whatever stands around it.
#[test]
fn a_header_that_is_shorter_than_its_kind_keeps_a_packet_alone() {
    let head = packet(1).head.bytes().to_vec();
    let (ip, tcp) = head.split_at(20);
    let judge = |packet: &Packet<Vec<u8>>| rules::gate(packet, &Config::default());
    type Headers<'a> = &'a [(Kind, usize)];
    // In front of a packet.
    let fronts: [(Vec<u8>, Headers<'_>); 4] = [
        (vec![0; 16], &[(Kind::Ethernet, 14), (Kind::Vlan, 2)]),
        (vec![0; 18], &[(Kind::Ipv4, 18)]),
        (vec![0; 38], &[(Kind::Ipv6, 38)]),
        ([ip, &[0; 6]].concat(), &[(Kind::Ipv4, 20), (Kind::Udp, 6)]),
    ];
    for (front, headers) in fronts {
        let mut packet = packet(1);
        packet.head.push_front(front.len()).unwrap().copy_from_slice(&front);
        let mut outer = Layout::empty(Stop::Protocol);
        assert!(headers.iter().all(|&(kind, len)| outer.push(kind, len)) && packet.layout.prepend(&outer));
        assert!(outer.ip_levels() == 0 || packet.offload.push_outer(Layer::NONE));
        assert_eq!(judge(&packet), Err(RefusalReason::Malformed), "{headers:?}");
    }
    // Behind its transport header, where each looks like a tunnel.
    let backs: [(Vec<u8>, Headers<'_>); 2] = [
        ([&[0; 2][..], tcp].concat(), &[(Kind::Gre, 2), (Kind::Tcp, 20)]),
        ([ip, &tcp[..18]].concat(), &[(Kind::Ipv4, 20), (Kind::Tcp, 18)]),
    ];
    for (back, headers) in backs {
        let mut packet = packet(1);
        packet.head.set(&[&head[..], &back].concat());
        assert!(headers.iter().all(|&(kind, len)| packet.layout.push(kind, len)));
        assert!(packet.layout.ip_levels() == 1 || packet.offload.push_outer(Layer::NONE));
        assert_eq!(judge(&packet), Err(RefusalReason::Malformed), "{headers:?}");
    }
}

/// Tests that a GRE checksum of all ones is refused only where splitting has to restore it.
#[test]
fn a_gre_checksum_of_all_ones_stays_alone_where_it_has_to_be_restored() {
    let inner = [packet(1).head.bytes(), &[1; 40]].concat();
    let gre = Some(Gre { checksum: true, ..Gre::default() });
    let mut bytes = Tunnel { ip: Ip::V4(V4::new(0, 1, 2)), udp: None, gre, ethernet: None }.wrap(&inner);
    // Behind 20 bytes of IPv4 and 4 of GRE. The gate does not sum it.
    bytes[24..26].fill(0xff);
    let mut packet = Packet::<Vec<u8>>::default();
    packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
    for (profile, expected) in
        [(Profile::Strict, Err(RefusalReason::NotCanonical)), (Profile::linux(), Ok(())), (Profile::Lro, Ok(()))]
    {
        assert_eq!(rules::gate(&packet, &Config { profile, ..Config::default() }), expected, "{profile:?}");
    }
}

/// Tests that packets whose tunnel levels have other states than their headers say do not join.
#[test]
fn tunnel_levels_with_other_checksums_do_not_join_whatever_the_headers_say() {
    const GUE: u16 = 6080;
    let outer = Udp { src_port: 9, dst_port: GUE, checksum: true };
    let around =
        Tunnel { ip: Ip::V4(V4::new(0, 1, 2)), udp: Some((outer, Shim::Gue(None))), gre: None, ethernet: None };
    let others: [fn(&mut Layer); 3] =
        [|_| (), |layer| layer.gre = LayerCsum::Unknown, |layer| layer.remote = Some(Remote::Transport)];
    for (index, change) in others.into_iter().enumerate() {
        let (mut gro, mut pool) = (Gro::<Vec<u8>>::new(Config::default()), Pool::new(2));
        for number in 0..2_u16 {
            let (seq, options) = (u32::from(number) * 40, Vec::new());
            let tcp = Tcp { src_port: 7, dst_port: 8, seq, ack: 1, flags: 0x10, window: 1, urgent: 0, options };
            let ip = Ip::V4(V4 { id: number, ..V4::new(1, 1, 2) });
            let bytes = around.wrap(&Built { ip, l4: L4::Tcp(tcp), data: vec![1; 40] }.bytes());
            let mut packet = pool.take();
            packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE.with_gue(GUE));
            if number == 1 {
                change(&mut packet.offload.layers_mut()[0]);
            }
            gro.push(packet, Nanos(1), &mut pool);
        }
        let expected = if index == 0 { (1, 2, 0) } else { (1, 1, 1) };
        let mismatches = gro.stats().mismatches.of(Mismatch::ChecksumKind);
        assert_eq!((gro.held(), gro.held_packets(), mismatches), expected, "{index}");
    }
}
