//! Tests of UDP and other datagrams longer than the MTU, against the testkit's own fragments and reassembly.

mod limits;

use proptest::prelude::*;
use segue::gso::{Arena, Fragment, FragmentIds, Frames, FreeTags, Limits, Refusal, SegmentCsum, split, split_linear};
use segue::hash::Key;
use segue::packet::{Csum, Frag, Gso, GsoKind, LayerCsum, Offload, Packet, Start, TrainCsum, Unit};
use segue_testkit::build::{self, Ethernet, Gre, Ip, L4, Remcsum, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::fragment::{fragments, reassemble};
use segue_testkit::{Rng, oracle};

use crate::case::*;
use crate::single::{prime, wire};

const SENDER: Fragment = Fragment::Sender { clears_df: false };

fn limits(mtu: usize, fragment: Fragment) -> Limits {
    Limits { mtu, fragment, ..Limits::NONE }
}

fn free(net: u8, id: u16) -> Ip {
    Ip::V4(V4 { id, tos: 0x2a, df: false, ..V4::new(net, 1, 2) })
}

fn datagram(ip: Ip, len: usize) -> build::Packet {
    let udp = Udp { src_port: 1000, dst_port: 2000, checksum: true };
    build::Packet { ip, l4: L4::Udp(udp), data: Rng::new(len as u64).bytes(len) }
}

/// Returns the identification that the engine gave to the one fragmented packet in `out`, read at this offset of each
/// frame.
fn id_of(out: &[Out], ip: usize) -> u32 {
    let bytes = &out[0].bytes[ip..];
    let mut at = 40;
    let mut next = bytes[6];
    while next != 44 {
        next = bytes[at];
        at += 8 + usize::from(bytes[at + 1]) * 8;
    }
    u32::from_be_bytes(bytes[at + 4..at + 8].try_into().unwrap())
}

/// Returns a datagram inside tunnels, primed, in ranges of odd lengths.
fn packet(inner: &build::Packet, tunnels: &[Tunnel], ethernet: Option<&Ethernet>, csum: Csum) -> Packet<Vec<u8>> {
    let plain = inner.bytes();
    let mut bytes = tunnels.iter().rev().fold(plain.clone(), |packet, tunnel| tunnel.wrap(&packet));
    let mut start = Start::Ip;
    if let Some(ethernet) = ethernet {
        (bytes, start) = (ethernet.wrap(&bytes), Start::Ethernet);
    }
    let mut packet = load(&bytes, start);
    packet.offload = Offload::plain(Unit::Whole(csum));
    for tunnel in tunnels.iter().rev() {
        assert!(packet.offload.push_outer(layer_of(tunnel, LayerCsum::Owed)));
    }
    if csum == Csum::Partial {
        prime(&mut packet, &plain);
    }
    let mut payload = Vec::new();
    payload.extend(packet.payload.pieces(0..usize::MAX).flatten());
    packet.payload.clear();
    let mut rng = Rng::new(payload.len() as u64);
    let mut at = 0;
    while at < payload.len() {
        let len = (1 + rng.below(2000)).min(payload.len() - at);
        packet.payload.push(Frag::new(payload.clone(), at..at + len));
        at += len;
    }
    packet
}

/// Fragments `inner` within `tunnels` and compares each frame with one that is built around a fragment made by the
/// testkit.
fn check(inner: &build::Packet, tunnels: &[Tunnel], ethernet: Option<&Ethernet>, csum: Csum, limits: &Limits) {
    let cut = packet(inner, tunnels, ethernet, csum);
    let (out, _) = split_both(&cut, limits).unwrap_or_else(|r| panic!("{r:?}: {inner:?} {tunnels:?}"));
    let overhead = tunnels.iter().rev().fold(inner.bytes(), |packet, t| t.wrap(&packet)).len() - inner.bytes().len();
    let front = overhead + cut.layout.outer_ip().unwrap().start();
    let id = if matches!(inner.ip, Ip::V6(_)) { id_of(&out, front) } else { 0 };
    let expected = fragments(&inner.bytes(), limits.mtu - overhead, id);
    assert_eq!(out.len(), expected.len());
    assert!(out.len() > 1, "nothing to cut");
    let mut inside = Vec::new();
    for (number, (out, expected)) in out.iter().zip(expected).enumerate() {
        let mut whole = expected.clone();
        for tunnel in tunnels.iter().rev() {
            let mut tunnel = tunnel.clone();
            if let Ip::V4(ip) = &mut tunnel.ip {
                ip.id = ip.id.wrapping_add(number as u16);
            }
            whole = wrap_as_gso_leaves_it(&tunnel, &whole);
        }
        if let Some(ethernet) = ethernet {
            whole = ethernet.wrap(&whole);
        }
        let start = if ethernet.is_some() { oracle::Start::Ethernet } else { oracle::Start::Ip };
        let (bytes, _) = complete_as_port(out, limits, start);
        assert!(bytes == whole, "fragment {number}\n   is {bytes:02x?}\nnot {whole:02x?}");
        assert_eq!((out.csum, out.gso), (SegmentCsum::AsIs, None));
        inside.push(expected);
    }
    let mut together = reassemble(&inside).unwrap();
    if together[0] >> 4 == 4 {
        // What was cleared.
        together[6..8].copy_from_slice(&inner.bytes()[6..8]);
        together[10..12].copy_from_slice(&inner.bytes()[10..12]);
    }
    assert_eq!(together, inner.bytes());
}

/// Returns a fragment wrapped in the tunnel. In GUE, the 8 bytes of a remote checksum option for the transport checksum
/// are still there, without a meaning.
fn wrap_as_gso_leaves_it(tunnel: &Tunnel, inside: &[u8]) -> Vec<u8> {
    if let Some((udp, Shim::Vxlan(vni, true))) = tunnel.udp {
        return Tunnel { udp: Some((udp, Shim::Vxlan(vni, false))), ..tunnel.clone() }.wrap(inside);
    }
    let Some((udp, Shim::Gue(Some(Remcsum::Transport)))) = tunnel.udp else { return tunnel.wrap(inside) };
    let bare = Tunnel { udp: Some((udp, Shim::Gue(None))), ..tunnel.clone() };
    let mut bytes = bare.wrap(inside);
    let ip = if bytes[0] >> 4 == 4 { 20 } else { 40 };
    // Two more words, without meaning.
    bytes[ip + 8] += 2;
    bytes.splice(ip + 12..ip + 12, [0; 8]);
    let len = bytes.len() - ip;
    bytes[ip + 4..ip + 6].copy_from_slice(&(len as u16).to_be_bytes());
    let fixed = if ip == 40 { 40 } else { 0 };
    let length_at = if ip == 40 { 4 } else { 2 };
    let total = (bytes.len() - fixed) as u16;
    bytes[length_at..length_at + 2].copy_from_slice(&total.to_be_bytes());
    if ip == 20 {
        bytes[10..12].fill(0);
        let checksum = !segue_testkit::sum::fold(&bytes[..20]);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    bytes[ip + 6..ip + 8].fill(0);
    let (src, dst) = tunnel.ip.addresses();
    let value = !segue_testkit::sum::with_pseudo(src, dst, 17, &bytes[ip..]);
    let value = if value == 0 { 0xffff } else { value };
    bytes[ip + 6..ip + 8].copy_from_slice(&value.to_be_bytes());
    bytes
}

#[test]
fn plain_datagrams_of_every_size_and_mtu() {
    for ip in [free(1, 0xfffe), v6(1)] {
        for mtu in [68, 100, 576, 1279, 1280, 1500, 1501, 9000] {
            for len in [mtu, mtu + 1, 2 * mtu + 3, 9000, 65_000] {
                for csum in [Csum::Partial, Csum::Verified, Csum::Unknown] {
                    for limits in [limits(mtu, SENDER), Limits { csum: true, ..limits(mtu, SENDER) }] {
                        check(&datagram(ip.clone(), len), &[], None, csum, &limits);
                    }
                }
            }
        }
    }
}

#[test]
fn the_longest_datagrams_that_there_are() {
    for (ip, most) in [(free(1, 1), 65_535 - 28), (v6(1), 65_535 - 8)] {
        check(&datagram(ip, most), &[], None, Csum::Partial, &limits(1500, SENDER));
    }
}

#[test]
fn lengths_around_every_multiple_of_what_a_fragment_holds() {
    for (ip, front) in [(free(1, 1), 20), (v6(1), 48)] {
        let full = (1500 - front) / 8 * 8;
        for count in 1..4 {
            for more in 0..18 {
                let len = count * full + 1500 - front - full - 8 + more;
                let datagram = datagram(ip.clone(), len - 8);
                if datagram.bytes().len() > 1500 {
                    check(&datagram, &[], None, Csum::Partial, &limits(1500, SENDER));
                }
            }
        }
    }
}

#[test]
fn datagrams_behind_tags_and_with_options_and_extension_headers() {
    let options = vec![7, 7, 4, 1, 2, 3, 4, 0x94, 4, 0, 0];
    let v4 = Ip::V4(V4 { options, df: false, ..V4::new(1, 1, 2) });
    let with = |extensions| Ip::V6(V6 { extensions, ..V6::new(1, 1, 2) });
    let options = || vec![1, 4, 0, 0, 0, 0];
    let all = [
        v4,
        with(vec![(0, options())]),
        with(vec![(60, options())]),
        with(vec![(0, options()), (60, options()), (43, vec![4, 0]), (60, options())]),
    ];
    for ip in all {
        for tags in [vec![], vec![(0x8100, 7)], vec![(0x88a8, 1), (0x8100, 2)]] {
            let ethernet = Ethernet { tags, ..Ethernet::default() };
            check(&datagram(ip.clone(), 5000), &[], Some(&ethernet), Csum::Partial, &limits(1500, SENDER));
        }
    }
}

#[test]
fn inside_every_tunnel_each_fragment_has_a_packet_of_its_own() {
    let mut cases = 0;
    for ip in [free(1, 7), v6(1)] {
        for tunnel in every_tunnel(matches!(ip, Ip::V4(_))) {
            let cut = |limits: &Limits, csum| {
                check(&datagram(ip.clone(), 4001), std::slice::from_ref(&tunnel), None, csum, limits)
            };
            if tunnel.gre.is_some_and(|gre| gre.seq.is_some()) {
                let packet = packet(&datagram(ip.clone(), 4001), std::slice::from_ref(&tunnel), None, Csum::Partial);
                let result = split(&packet, &limits(1500, SENDER), &mut Arena::new());
                assert_eq!(result, Err(Refusal::Sequence), "it has only one number");
                continue;
            }
            for limits in [Limits::NONE, PORT_CSUM, PORT_OUTER, PORT_BOTH] {
                cut(&Limits { mtu: 1500, fragment: SENDER, ..limits }, Csum::Partial);
                cases += 1;
            }
            if !matches!(tunnel.udp, Some((_, Shim::Gue(Some(Remcsum::Transport)) | Shim::Vxlan(_, true)))) {
                cut(&limits(1400, SENDER), Csum::Unknown);
            }
        }
    }
    assert!(cases > 100);
}

#[test]
fn inside_two_tunnels() {
    let gre = Some(Gre { checksum: true, key: Some(9), seq: None });
    for shim in [Shim::Fou, Shim::Gue(None), Shim::Gue(Some(Remcsum::Transport))] {
        for ip in [free(1, 7), v6(1)] {
            let near = over_udp(v6(2), shim, gre, true, true);
            let far = over_udp(v4(0, 0xffff), Shim::Gue(None), gre, true, false);
            for limits in [limits(1500, SENDER), Limits { outer_csum: true, ..limits(1500, SENDER) }] {
                check(&datagram(ip.clone(), 9000), &[far.clone(), near.clone()], None, Csum::Partial, &limits);
            }
        }
    }
}

#[test]
fn a_router_cuts_the_outermost_packet_as_it_came() {
    let inner = datagram(v4(1, 3), 3000);
    for tunnel in [
        over_udp(free(0, 5), Shim::Gue(Some(Remcsum::Transport)), None, true, true),
        over_udp(free(0, 5), Shim::Gue(None), Some(Gre { checksum: true, key: None, seq: Some(8) }), true, true),
    ] {
        let whole = tunnel.wrap(&inner.bytes());
        let mut packet = load(&whole, Start::Ip);
        for unit in [packet.offload.unit, Unit::Whole(Csum::Unknown)] {
            packet.offload.unit = unit;
            let out = split_both(&packet, &limits(1000, Fragment::Router)).unwrap().0;
            let out: Vec<_> = out.into_iter().map(|o| o.bytes).collect();
            assert_eq!(out, fragments(&whole, 1000, 0));
        }
        // An owed checksum is filled in before the cut, over the whole packet.
        let mut owed = load(&whole, Start::Ip);
        owed.offload.layers_mut()[0].udp = LayerCsum::Owed;
        owed.head.bytes_mut()[26..28].fill(0);
        let limits = Limits { outer_csum: true, csum: true, ..limits(1000, Fragment::Router) };
        let out: Vec<_> = split_both(&owed, &limits).unwrap().0.into_iter().map(|o| o.bytes).collect();
        assert_eq!(out, fragments(&whole, 1000, 0));
    }
}

#[test]
fn a_fragment_is_cut_again_as_a_router_may() {
    let whole = datagram(free(1, 77), 30_000).bytes();
    let mut all = Vec::new();
    for part in fragments(&whole, 9000, 0) {
        let packet = load(&part, Start::Ip);
        for policy in [Fragment::Router, SENDER] {
            let out = split_both(&packet, &limits(1500, policy)).unwrap().0;
            let out: Vec<_> = out.into_iter().map(|o| o.bytes).collect();
            assert_eq!(out, fragments(&part, 1500, 0));
            if policy == SENDER {
                all.extend(out);
            }
        }
    }
    let mut together = reassemble(&all).unwrap();
    together[10..12].copy_from_slice(&whole[10..12]);
    assert_eq!(together, whole);
}

#[test]
fn what_is_no_longer_than_the_mtu_is_left_alone() {
    for ip in [v4(1, 1), v6(1)] {
        let bytes = datagram(ip, 1400).bytes();
        let frame = Ethernet::default().wrap(&bytes);
        let padded = [&frame[..], &[0; 500]].concat();
        for (bytes, start) in [(bytes.clone(), Start::Ip), (frame, Start::Ethernet), (padded, Start::Ethernet)] {
            for policy in [Fragment::Never, Fragment::Router, SENDER, Fragment::Sender { clears_df: true }] {
                let packet = load(&bytes, start);
                let len = if start == Start::Ip { bytes.len() } else { 1400 + packet.head.len() - 14 };
                let out = split_both(&packet, &limits(len, policy)).unwrap().0;
                assert_eq!((out.len(), &out[0].bytes), (1, &bytes));
                assert_eq!(
                    split_both(&packet, &limits(len - 1, policy)).is_ok_and(|(out, _)| out.len() == 2),
                    matches!(
                        (policy, bytes[if start == Start::Ip { 0 } else { 14 }] >> 4),
                        (Fragment::Sender { .. }, 6) | (Fragment::Sender { clears_df: true }, 4)
                    ),
                );
            }
        }
    }
}

#[test]
fn padding_is_no_part_of_the_last_fragment() {
    let bytes = datagram(free(1, 3), 3000).bytes();
    let frame = Ethernet::default().wrap(&bytes);
    let padded = [&frame[..], &[0xee; 9]].concat();
    let out = split_both(&load(&padded, Start::Ethernet), &limits(1500, SENDER)).unwrap().0;
    let out: Vec<_> = out.into_iter().map(|o| o.bytes[14..].to_vec()).collect();
    assert_eq!(out, fragments(&bytes, 1500, 0));
}

#[test]
fn a_datagram_without_a_checksum_stays_without_one() {
    for limits in [limits(1500, SENDER), limits(1500, Fragment::Router)] {
        let mut inner = datagram(free(1, 3), 3000);
        inner.l4 = L4::Udp(Udp { src_port: 1, dst_port: 2, checksum: false });
        let out = split_both(&load(&inner.bytes(), Start::Ip), &limits).unwrap().0;
        assert_eq!(out.into_iter().map(|o| o.bytes).collect::<Vec<_>>(), fragments(&inner.bytes(), 1500, 0));
    }
}

#[test]
fn a_udp_checksum_of_zero_is_all_ones_in_the_first_fragment() {
    let mut inner = datagram(Ip::V4(V4 { df: false, ..V4::new(1, 1, 2) }), 3000);
    let bytes = inner.bytes();
    let found = u16::from_be_bytes([bytes[26], bytes[27]]);
    // The value that makes the sum all ones.
    let at = inner.data.len() - 2;
    let old = u16::from_be_bytes([inner.data[at], inner.data[at + 1]]);
    let (mut new, carry) = old.overflowing_add(found);
    new += u16::from(carry);
    inner.data[at..].copy_from_slice(&new.to_be_bytes());
    assert_eq!(inner.bytes()[26..28], [255, 255]);
    check(&inner, &[], None, Csum::Partial, &limits(1500, SENDER));
    // Under tunnel headers it is completed from the fragments' payload.
    check(&inner, &[over_udp(v4(0, 1), Shim::Fou, None, true, true)], None, Csum::Partial, &limits(1500, SENDER));
}

#[test]
fn icmp_tcp_and_other_protocols_are_cut_too() {
    for ip in [free(1, 3), v6(1)] {
        let data = Rng::new(1).bytes(4000);
        let icmp = build::Packet { ip: ip.clone(), l4: L4::Icmp(8, 0, [1, 2, 3, 4]), data: data.clone() };
        let other = build::Packet { ip: ip.clone(), l4: L4::Raw(132), data };
        for packet in [icmp, other] {
            check(&packet, &[], None, Csum::Unknown, &limits(1500, SENDER));
        }
        check(&inner(ip, true, 4000), &[], None, Csum::Partial, &limits(1500, SENDER));
    }
}

#[test]
fn df_is_obeyed_or_cleared_as_the_sender_wishes_and_then_the_identification_is_fresh() {
    let packet = |id| load(&datagram(v4(1, id), 3000).bytes(), Start::Ip);
    for policy in [SENDER, Fragment::Router] {
        assert_eq!(split(&packet(0), &limits(1500, policy), &mut Arena::new()), Err(Refusal::DontFragment));
    }
    let mut arena = Arena::new();
    arena.ids = FragmentIds::new(Key([3, 4]));
    let mut seen = Vec::new();
    for _ in 0..3 {
        arena.clear();
        let limits = limits(1500, Fragment::Sender { clears_df: true });
        assert_eq!(split(&packet(0), &limits, &mut arena), Ok(3));
        let heads: Vec<_> = arena.segments().iter().map(|s| arena.head(s).to_vec()).collect();
        assert!(heads.iter().all(|h| h[4..6] == heads[0][4..6] && h[6] & 0x40 == 0));
        seen.push(u16::from_be_bytes([heads[0][4], heads[0][5]]));
    }
    assert_eq!(seen, [seen[0], seen[0].wrapping_add(1), seen[0].wrapping_add(2)]);
    assert_ne!(seen[0], 0);
}

#[test]
fn identifications_of_other_pairs_of_addresses_and_other_keys_begin_elsewhere() {
    let first = |net, key| {
        let mut frames = Frames::new();
        frames.ids = FragmentIds::new(Key(key));
        split_linear(&load(&datagram(v6(net), 3000).bytes(), Start::Ip), &limits(1500, SENDER), &mut frames).unwrap();
        u32::from_be_bytes(frames.bytes(&frames.frames()[0])[44..48].try_into().unwrap())
    };
    let all = [first(1, [1, 2]), first(2, [1, 2]), first(1, [1, 3])];
    assert!(all[0] != all[1] && all[0] != all[2]);
    assert_eq!(first(1, [1, 2]), all[0]);
}

fn refusal(bytes: &[u8], mtu: usize, policy: Fragment) -> Refusal {
    let packet = load(bytes, Start::Ip);
    refusal_of(&packet, mtu, policy)
}

fn refusal_of(packet: &Packet<Vec<u8>>, mtu: usize, policy: Fragment) -> Refusal {
    let (mut arena, mut frames) = (Arena::new(), Frames::new());
    let before = (arena.ids, frames.ids);
    let reason = split(packet, &limits(mtu, policy), &mut arena).unwrap_err();
    assert_eq!(split_linear(packet, &limits(mtu, policy), &mut frames), Err(reason));
    assert!(arena.segments().is_empty() && frames.frames().is_empty());
    assert_eq!((arena.ids, frames.ids), before, "no number is used up");
    reason
}

#[test]
fn a_packet_that_may_not_be_fragmented_is_too_big() {
    assert_eq!(refusal(&datagram(free(1, 1), 3000).bytes(), 1500, Fragment::Never), Refusal::TooBig);
    assert_eq!(refusal(&datagram(v6(1), 3000).bytes(), 1500, Fragment::Router), Refusal::TooBig);
    // No IP at all.
    let arp = [&[2; 12][..], &[8, 6], &[0; 2000]].concat();
    assert_eq!(refusal_of(&load(&arp, Start::Ethernet), 1500, SENDER), Refusal::TooBig);
    // Its link header does not count.
    let limits = |mtu| Limits { mtu, fragment: Fragment::Never, ..Limits::NONE };
    assert_eq!(split_both(&load(&arp, Start::Ethernet), &limits(1999)).unwrap_err(), Refusal::TooBig);
    assert_eq!(split_both(&load(&arp, Start::Ethernet), &limits(2000)).unwrap().0.len(), 1);
}

#[test]
fn a_train_is_too_big_where_its_segments_are() {
    let case = Case::new(inner(v4(1, 1), true, 9000), 1448);
    let limits = |mtu| Limits { mtu, fragment: SENDER, ..PORT_TSO };
    assert_eq!(split_both(&case.train(), &limits(1499)).unwrap_err(), Refusal::TooBig);
    assert_eq!(split_both(&case.train(), &limits(1500)).unwrap().0.len(), 1);
    let tunnelled = case.within(over_udp(v4(0, 1), Shim::Gue(None), None, true, true));
    assert_eq!(split_both(&tunnelled.train(), &limits(1500)).unwrap_err(), Refusal::TooBig);
    assert_eq!(split_both(&tunnelled.train(), &limits(1532)).unwrap().0.len(), 7);
}

/// Checks that only a first tag of 802.1Q is not counted, as in Linux (`packet_extra_vlan_len_allowed`).
#[test]
fn a_first_tag_of_802_1q_may_be_free_and_all_others_count() {
    const Q: (u16, u16) = (0x8100, 5);
    const AD: (u16, u16) = (0x88a8, 7);
    let mut case = Case::new(inner(v4(1, 1), true, 9000), 1448);
    for (tags, spared, counted) in [
        (&[Q, Q][..], FreeTags::First, 4),
        (&[Q, AD], FreeTags::First, 4),
        (&[AD, Q], FreeTags::First, 8),
        (&[Q], FreeTags::First, 0),
        (&[AD], FreeTags::First, 4),
        (&[], FreeTags::First, 0),
        (&[Q, Q], FreeTags::None, 8),
        (&[AD, Q], FreeTags::None, 8),
        (&[Q], FreeTags::None, 4),
        (&[], FreeTags::None, 0),
        (&[AD, Q], FreeTags::All, 0),
        (&[Q, Q], FreeTags::All, 0),
        (&[AD], FreeTags::All, 0),
    ] {
        let ethernet = Ethernet { tags: tags.to_vec(), ..Ethernet::default() };
        case.ethernet = Some(ethernet.clone());
        let limits = |mtu| Limits { mtu, free_tags: spared, ..Limits::NONE };
        assert_eq!(split_both(&case.train(), &limits(1499 + counted)).unwrap_err(), Refusal::TooBig);
        assert_eq!(split_both(&case.train(), &limits(1500 + counted)).unwrap().0.len(), 7);
        // A fragment leaves room for them.
        let datagram = packet(&datagram(free(1, 1), 3000), &[], Some(&ethernet), Csum::Unknown);
        let (out, _) = split_both(&datagram, &Limits { fragment: SENDER, ..limits(1500) }).unwrap();
        let len = 14 + 4 * tags.len() + 20 + (1480 - counted) / 8 * 8;
        assert_eq!(out[0].bytes.len(), len, "{tags:04x?}, {spared:?} free");
    }
}

#[test]
fn a_tiny_mtu_is_refused() {
    let bytes = datagram(free(1, 1), 3000).bytes();
    for mtu in [0, 1, 20, 27] {
        assert_eq!(refusal(&bytes, mtu, SENDER), Refusal::Tiny);
    }
    assert_eq!(split_both(&load(&bytes, Start::Ip), &limits(28, SENDER)).unwrap().0.len(), 3008 / 8);
    // The first fragment must hold the whole chain of headers (RFC 7112).
    let tcp = inner(free(1, 1), true, 3000).bytes();
    assert_eq!(refusal(&tcp, 20 + 31, SENDER), Refusal::Tiny);
    assert!(split_both(&load(&tcp, Start::Ip), &limits(20 + 32, SENDER)).is_ok());
}

#[test]
fn fragments_that_overlap_a_header_are_ragged_or_run_past_the_end_are_refused() {
    let part = |offset, more, protocol, len| {
        let ip = Ip::V4(V4 { fragment: Some((offset, more)), df: false, ..V4::new(1, 1, 2) });
        build::Packet { ip, l4: L4::Raw(protocol), data: vec![7; len] }.bytes()
    };
    for policy in [SENDER, Fragment::Router] {
        assert_eq!(refusal(&part(8, true, 6, 2000), 1500, policy), Refusal::Overlap);
        assert_eq!(refusal(&part(0, true, 17, 2001), 1500, policy), Refusal::Ragged);
        assert_eq!(refusal(&part(64_000, false, 17, 2000), 1500, policy), Refusal::Length);
        assert_eq!(refusal(&part(65_528, true, 17, 2000), 1500, policy), Refusal::Length);
        for good in [part(8, true, 17, 2000), part(64_000, false, 17, 1515), part(16, true, 6, 2000)] {
            assert_eq!(split_both(&load(&good, Start::Ip), &limits(1500, policy)).unwrap().0.len(), 2);
        }
    }
    let ip = Ip::V6(V6 { fragment: Some((1, 0, true)), ..V6::new(1, 1, 2) });
    let v6 = build::Packet { ip, l4: L4::Raw(17), data: vec![7; 2000] }.bytes();
    assert_eq!(refusal(&v6, 1500, SENDER), Refusal::Fragment, "only its sender could");
}

#[test]
fn lengths_that_disagree_are_refused() {
    let plain = datagram(free(1, 3), 2990).bytes();
    let tunnel = over_udp(v4(0, 1), Shim::Gue(None), None, true, true);
    let padded = tunnel.wrap(&[&plain[..], &[0; 10]].concat());
    assert_eq!(refusal(&padded, 1500, SENDER), Refusal::Trailing);
}

/// Tests that bytes behind the inner packet do not matter to a router, which does not look inside, unless a checksum is
/// owed there.
#[test]
fn a_router_fragments_by_the_outermost_length() {
    let plain = datagram(free(1, 3), 2990).bytes();
    let tunnel = Tunnel { ip: free(0, 1), udp: None, gre: None, ethernet: None };
    let whole = tunnel.wrap(&[&plain[..], &[7; 10]].concat());
    let limits = limits(1500, Fragment::Router);
    let out = split_both(&load(&whole, Start::Ip), &limits).unwrap().0;
    let bytes: Vec<_> = out.into_iter().map(|out| out.bytes).collect();
    let mut together = reassemble(&bytes).unwrap();
    together[10..12].copy_from_slice(&whole[10..12]);
    assert!(together == whole && bytes.len() == 3);
    let mut owing = load(&whole, Start::Ip);
    owing.offload.unit = Unit::Whole(Csum::Partial);
    assert_eq!(refusal_of(&owing, 1500, Fragment::Router), Refusal::Trailing);
}

/// Tests that no IPv4 header with a wrong checksum leaves with a right one: neither that of the fragmented packet, nor
/// one around it. One inside is payload.
#[test]
fn a_packet_with_a_wrong_header_checksum_is_refused() {
    let tunnel = over_udp(free(0, 1), Shim::Gue(None), None, false, true);
    let (plain, inside) = (datagram(free(1, 3), 3000).bytes(), tunnel.wrap(&datagram(free(1, 3), 3000).bytes()));
    for (bytes, headers) in [(plain, &[0][..]), (inside, &[0, 32][..])] {
        for &header in headers {
            for at in [8, 10, 11, 16] {
                let mut wrong = bytes.clone();
                wrong[header + at] ^= 1;
                assert_eq!(refusal(&wrong, 1500, SENDER), Refusal::IpChecksum, "{header} {at}");
                let router = split_both(&load(&wrong, Start::Ip), &limits(1500, Fragment::Router)).map(drop);
                assert_eq!(router, if header == 0 { Err(Refusal::IpChecksum) } else { Ok(()) }, "{header} {at}");
            }
        }
    }
}

/// Tests that a packet of which not all extension headers are known is not fragmented: some may belong in each
/// fragment.
#[test]
fn an_ipv6_packet_with_too_many_extension_headers_is_refused() {
    for (len, is_cut) in [(94, true), (102, false)] {
        let ip = Ip::V6(V6 { extensions: vec![(0, vec![0; len])], ..V6::new(1, 1, 2) });
        let split = split_both(&load(&datagram(ip, 3000).bytes(), Start::Ip), &limits(1500, SENDER));
        assert_eq!(split.map(|(out, _)| out.len()), if is_cut { Ok(3) } else { Err(Refusal::TooBig) });
    }
}

#[test]
fn an_unverified_outer_checksum_is_not_corrected() {
    let tunnel = over_udp(free(0, 1), Shim::Gue(None), None, true, true);
    let mut packet = load(&tunnel.wrap(&datagram(free(1, 3), 3000).bytes()), Start::Ip);
    assert_eq!(packet.offload.layers()[0].udp, LayerCsum::Unknown);
    assert_eq!(refusal_of(&packet, 1500, SENDER), Refusal::Unverified);
    packet.offload.layers_mut()[0].udp = LayerCsum::Done;
    assert_eq!(split_both(&packet, &limits(1500, SENDER)).unwrap().0.len(), 3);
    packet.offload = Offload::plain(Unit::Whole(Csum::Unknown));
    assert_eq!(refusal_of(&packet, 1500, SENDER), Refusal::Levels, "nothing is said about a level that is there");
}

#[test]
fn a_wrong_checksum_stays_wrong() {
    let mut bytes = datagram(free(1, 3), 3000).bytes();
    bytes[100] ^= 1;
    for csum in [Csum::Unknown, Csum::Bad] {
        let mut packet = load(&bytes, Start::Ip);
        packet.offload.unit = Unit::Whole(csum);
        let out: Vec<_> = split_both(&packet, &limits(1500, SENDER)).unwrap().0.into_iter().map(|o| o.bytes).collect();
        let mut together = reassemble(&out).unwrap();
        together[10..12].copy_from_slice(&bytes[10..12]);
        assert_eq!(together, bytes);
    }
}

#[test]
fn the_port_s_own_header_has_room_in_front_of_each_frame() {
    let train = Case::new(inner(v4(1, 1), true, 5000), 1448).train();
    let long = load(&datagram(free(1, 3), 3000).bytes(), Start::Ip);
    let short = load(&datagram(free(1, 3), 300).bytes(), Start::Ip);
    let mut frames = Frames::new();
    let limits = Limits { header_room: 8, ..limits(1500, SENDER) };
    for packet in [&train, &long, &short] {
        split_linear(packet, &limits, &mut frames).unwrap();
    }
    let all = frames.frames().to_vec();
    let before: Vec<Vec<u8>> = all.iter().map(|f| frames.bytes(f).to_vec()).collect();
    for frame in &all {
        let room = frames.room_in_front(frame);
        assert_eq!(room.len(), 8);
        room.fill(0xaa);
    }
    assert_eq!(all.iter().map(|f| frames.bytes(f).to_vec()).collect::<Vec<_>>(), before);
    assert_eq!(all.len(), 4 + 3 + 1);
}

#[test]
fn trains_are_cut_for_headers_and_pieces_that_are_too_large_for_the_port() {
    let case = Case::new(inner(v4(1, 1), true, 10_000), 1000);
    let mut train = case.train();
    let count = |train: &Packet<Vec<u8>>, limits| split_both(train, &limits).unwrap().0.len();
    assert_eq!(count(&train, Limits { max_head: 52, ..PORT_TSO }), 1);
    assert_eq!(count(&train, Limits { max_head: 51, ..PORT_TSO }), 10);
    train.payload.clear();
    train.payload.push(Frag::all(case.inner.data.clone()));
    // A head and ten pieces of at most 1000; a head and three of at most 900, which hold two segments.
    assert_eq!(count(&train, Limits { max_pieces: 11, max_piece: 1000, ..PORT_TSO }), 1);
    assert_eq!(count(&train, Limits { max_pieces: 10, max_piece: 1000, ..PORT_TSO }), 2);
    assert_eq!(count(&train, Limits { max_pieces: 4, max_piece: 900, ..PORT_TSO }), 5);
    assert_eq!(count(&train, Limits { max_pieces: 0, max_piece: 0, ..PORT_TSO }), 10);
}

#[test]
fn a_train_within_the_mtu_is_cut_into_its_segments() {
    let packet = load(&datagram(free(1, 3), 3000).bytes(), Start::Ip);
    let gso = Gso { kind: GsoKind::Udp, size: 1000, fixed_ids: 0 };
    let mut train = load(&wire(&packet), Start::Ip);
    train.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
    assert_eq!(split(&train, &limits(1500, SENDER), &mut Arena::new()), Ok(3), "a train is cut as one");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_datagram_in_any_tunnel_is_put_together_again(
        is_v4 in any::<bool>(),
        len in 0..20_000_usize,
        mtu in 200..3000_usize,
        pick in any::<prop::sample::Index>(),
        outer_csum in any::<bool>(),
    ) {
        let ip = if is_v4 { free(1, len as u16) } else { v6(1) };
        let tunnels = every_tunnel(is_v4);
        let tunnel = &tunnels[pick.index(tunnels.len())];
        let inner = datagram(ip, len);
        let is_cut = tunnel.wrap(&inner.bytes()).len() > mtu;
        if is_cut && tunnel.gre.is_none_or(|gre| gre.seq.is_none()) {
            let limits = Limits { outer_csum, ..limits(mtu, SENDER) };
            check(&inner, std::slice::from_ref(tunnel), None, Csum::Partial, &limits);
        }
    }
}
