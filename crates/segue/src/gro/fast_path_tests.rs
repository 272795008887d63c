//! Tests that packets of known forms take the fast path, which is invisible in their output: the slow path gives the
//! same.

mod acks;

use core::slice;

use segue_testkit::build::{self, Ethernet, Ip, L4, Packet as Built, Tcp, Udp, V4, V6};

use super::form::{FormId, Forms};
use super::key::{FlowKey, Hasher, L3};
use super::ready::Ready;
use super::rules::Masks;
use super::table::{FrameMatch, Lookup};
use super::*;
use crate::gso::MIN_TCP_SIZE;
use crate::hash::Key;
use crate::packet::{Csum, Frag, HEAD_BLOCK, Packet, Pool, Start, Tunnels};
use crate::time::Nanos;
use crate::wire::{ethernet, read_u16, read_u32};

/// A known form: number of headers in front of IP, IPv6, TCP, options of TCP.
#[derive(Clone, Copy, Debug)]
struct Shape {
    link: usize,
    is_v6: bool,
    is_tcp: bool,
    options: &'static [u8],
}

const STAMPS: &[u8] = &[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
const SIZE: usize = 100;

fn shapes() -> impl Iterator<Item = Shape> {
    let transports: [(bool, &[u8]); 4] = [(false, &[]), (true, &[]), (true, STAMPS), (true, &[1; 40])];
    let ips = (0..L3.len()).flat_map(|link| [false, true].map(|is_v6| (link, is_v6)));
    ips.flat_map(move |(link, is_v6)| transports.map(|(is_tcp, options)| Shape { link, is_v6, is_tcp, options }))
}

/// Parameters of a packet before it is built: its headers, and the length of its payload.
struct Plan {
    ip: Ip,
    l4: L4,
    len: usize,
}

impl Shape {
    fn start(self) -> Start {
        if self.link == 0 { Start::Ip } else { Start::Ethernet }
    }

    /// Returns the packet with the given number of a stream, changed; `state` says whether its checksum is completed.
    fn frame(self, number: usize, state: Csum, change: impl FnOnce(&mut Plan)) -> Vec<u8> {
        let ip = match self.is_v6 {
            true => Ip::V6(V6::new(1, 1, 2)),
            false => Ip::V4(V4 { id: number as u16, ..V4::new(1, 1, 2) }),
        };
        let (src_port, dst_port) = (4000, 80);
        let seq = (number * SIZE) as u32;
        let options = self.options.to_vec();
        let l4 = match self.is_tcp {
            true => L4::Tcp(Tcp { src_port, dst_port, seq, ack: 1, flags: 0x10, window: 9, urgent: 0, options }),
            false => L4::Udp(Udp { src_port, dst_port, checksum: true }),
        };
        let mut plan = Plan { ip, l4, len: SIZE };
        change(&mut plan);
        let bytes = Built { ip: plan.ip, l4: plan.l4, data: vec![number as u8; plan.len] }.bytes();
        let bytes = if state == Csum::Partial { build::prime(&bytes).unwrap() } else { bytes };
        self.wrap(&bytes)
    }

    fn wrap(self, bytes: &[u8]) -> Vec<u8> {
        let tags = [&[][..], &[], &[(0x8100, 0x2005)], &[(0x88a8, 7), (0x8100, 0x6fff)]][self.link].to_vec();
        if self.link == 0 { bytes.to_vec() } else { Ethernet { tags, ..Ethernet::default() }.wrap(bytes) }
    }
}

fn gro(profile: Profile) -> Gro<Vec<u8>> {
    Gro::new(Config { profile, ..Config::default() })
}

/// Pushes frames; returns how many took the slow path, and how many were judged field by field.
fn push(gro: &mut Gro<Vec<u8>>, start: Start, csum: Csum, frames: &[Vec<u8>]) -> (usize, usize) {
    let (before, mut pool) = (gro.effort, Pool::new(8));
    for bytes in frames {
        gro.push_frame(Frame { bytes: Frag::all(bytes.clone()), start, csum }, Nanos(1), &mut pool);
    }
    (gro.effort.0 - before.0, gro.effort.1 - before.1)
}

fn len(plan: &mut Plan, len: usize) {
    plan.len = len;
}

const PROFILES: [Profile; 3] = [Profile::Strict, Profile::Linux(Generation::V6_18), Profile::Lro];

#[test]
fn a_train_of_a_known_form_is_joined_without_being_parsed() {
    for (shape, profile) in shapes().flat_map(|shape| PROFILES.map(|profile| (shape, profile))) {
        for state in [Csum::Unknown, Csum::Verified, Csum::Partial] {
            let mut gro = gro(profile);
            let mut frames: Vec<_> = (0..6).map(|number| shape.frame(number, state, |_| ())).collect();
            frames.push(shape.frame(6, state, |plan| len(plan, 60)));
            let (parsed, judged) = push(&mut gro, shape.start(), state, &frames);
            let what = format!("{shape:?} {profile:?} {state:?}");
            assert_eq!(parsed, 0, "{what}");
            // Of TCP only the last segment is more than expected.
            let judged_once = shape.is_tcp && profile != Profile::Lro && state != Csum::Partial;
            let expected = if judged_once { 1 } else { frames.len() };
            assert_eq!(judged, expected, "{what}");
            gro.flush();
            assert_eq!((gro.stats.trains, gro.stats.segments, gro.stats.packets), (1, 7, 7), "{what}");
        }
    }
}

#[test]
fn packets_that_are_parsed_already_are_joined_by_their_form() {
    for shape in shapes() {
        let (mut gro, mut pool) = (gro(Profile::Strict), Pool::new(8));
        for number in 0..4 {
            let mut packet = pool.take();
            packet.load(Frag::all(shape.frame(number, Csum::Unknown, |_| ())), shape.start(), &Tunnels::NONE);
            gro.push(packet, Nanos(1), &mut pool);
        }
        assert_eq!(gro.effort, (0, 4), "{shape:?}");
        gro.flush();
        assert_eq!((gro.stats.trains, gro.stats.segments), (1, 4), "{shape:?}");
    }
}

/// A recognised frame: whether the bucket of its flow is empty, whether it continues a train, and the length of its
/// headers if so.
type Recognised = Option<(bool, bool, u16)>;

fn recognise(gro: &mut Gro<Vec<u8>>, bytes: Vec<u8>, start: Start, csum: Csum) -> Recognised {
    match gro.recognise(&Frame { bytes: Frag::all(bytes), start, csum }) {
        FrameMatch::Continues(_, header_len) => Some((false, true, header_len)),
        FrameMatch::Starts(first) => Some((first.is_alone, false, 0)),
        FrameMatch::Plain(_, found) => Some((matches!(found, Lookup::Empty), false, 0)),
        FrameMatch::Unknown => None,
    }
}

/// Tests which frames of a queue are recognised where they lie: TCP over IPv4 without options, bare or on untagged
/// Ethernet, with at least a block of bytes, whose checksum is verified or of an unknown state.
#[test]
fn a_plain_frame_of_a_queue_is_recognised_where_it_lies() {
    for shape in shapes() {
        let headers = L3[shape.link] + if shape.is_v6 { 40 } else { 20 } + 20 + shape.options.len();
        let is_plain = shape.link < 2 && !shape.is_v6 && shape.is_tcp;
        for (csum, is_own) in [(Csum::Unknown, true), (Csum::Verified, true), (Csum::Partial, false)] {
            let mut gro = gro(Profile::Strict);
            let frame = |number| shape.frame(number, csum, |_| ());
            let expected = |what| (is_plain && is_own).then_some(what);
            let case = format!("{shape:?} {csum:?}");
            assert_eq!(recognise(&mut gro, frame(0), shape.start(), csum), expected((true, false, 0)), "{case}");
            push(&mut gro, shape.start(), csum, &[frame(0), frame(1)]);
            // The flow is held, so that its bucket is not empty.
            assert_eq!(
                recognise(&mut gro, frame(3), shape.start(), csum),
                expected((false, false, 0)),
                "{case}, a gap"
            );
            let next = expected((false, true, headers as u16));
            assert_eq!(recognise(&mut gro, frame(2), shape.start(), csum), next, "{case}");
        }
        if !is_plain {
            continue;
        }
        for (total, is_long) in [(HEAD_BLOCK - 1, false), (HEAD_BLOCK, true)] {
            let bytes = shape.frame(0, Csum::Unknown, |plan| len(plan, total - headers));
            assert_eq!(bytes.len(), total);
            let found = recognise(&mut gro(Profile::Strict), bytes, shape.start(), Csum::Unknown);
            assert_eq!(found.is_some(), is_long, "{shape:?} {total}");
        }
        let bytes = shape.frame(0, Csum::Unknown, |_| ());
        let mut slow = Gro::slow_path_only(Config::default());
        assert_eq!(recognise(&mut slow, bytes, shape.start(), Csum::Unknown), None, "{shape:?}");
        let options = shape.frame(0, Csum::Unknown, |plan| {
            if let Ip::V4(ip) = &mut plan.ip {
                ip.options = vec![1; 4];
            }
        });
        assert_eq!(recognise(&mut gro(Profile::Strict), options, shape.start(), Csum::Unknown), None, "{shape:?}");
    }
}

/// Tests that a bare packet with the bytes of the beginning of an Ethernet frame in the same places (an address of
/// 8.0.69.1, where the type of IPv4 and its version would be, and port 6, where TCP would be) is a bare packet.
#[test]
fn a_bare_packet_that_looks_like_an_ethernet_frame_is_bare() {
    let shape = Shape { link: 0, is_v6: false, is_tcp: true, options: &[] };
    for csum in [Csum::Unknown, Csum::Verified, Csum::Partial] {
        let mut gro = gro(Profile::Strict);
        let frames: Vec<_> = (0..4)
            .map(|number| {
                shape.frame(number, csum, |plan| {
                    tcp(plan, |tcp| tcp.dst_port = 6);
                    if let Ip::V4(ip) = &mut plan.ip {
                        ip.src = [8, 0, 69, 1];
                    }
                })
            })
            .collect();
        assert_eq!((&frames[0][12..15], frames[0][23]), (&[8, 0, 0x45][..], 6));
        assert_eq!(push(&mut gro, shape.start(), csum, &frames).0, 0, "{csum:?}");
        gro.flush();
        assert_eq!((gro.stats.trains, gro.stats.segments), (1, 4), "{csum:?}");
    }
}

/// A change of a packet, the shapes that it is for, and the name of the field that then differs.
type Change = (fn(&mut Plan), fn(Shape) -> bool, Mismatch);

fn ttl(plan: &mut Plan) {
    match &mut plan.ip {
        Ip::V4(ip) => ip.ttl -= 1,
        Ip::V6(ip) => ip.hop_limit -= 1,
    }
}

fn tos(plan: &mut Plan) {
    match &mut plan.ip {
        Ip::V4(ip) => ip.tos = 2,
        Ip::V6(ip) => ip.class = 0x20,
    }
}

fn label(plan: &mut Plan) {
    if let Ip::V6(ip) = &mut plan.ip {
        ip.label ^= 1;
    }
}

fn id(plan: &mut Plan) {
    if let Ip::V4(ip) = &mut plan.ip {
        ip.id = ip.id.wrapping_add(7);
    }
}

fn tcp(plan: &mut Plan, change: impl FnOnce(&mut Tcp)) {
    if let L4::Tcp(tcp) = &mut plan.l4 {
        change(tcp);
    }
}

const CHANGES: [Change; 9] = [
    (ttl, |_| true, Mismatch::Ttl),
    (tos, |_| true, Mismatch::Tos),
    (label, |shape| shape.is_v6, Mismatch::FlowLabel),
    (id, |shape| !shape.is_v6, Mismatch::IpId),
    (|plan| len(plan, SIZE + 1), |_| true, Mismatch::Larger),
    (|plan| tcp(plan, |tcp| tcp.seq = tcp.seq.wrapping_add(1)), |shape| shape.is_tcp, Mismatch::Sequence),
    (|plan| tcp(plan, |tcp| tcp.window += 1), |shape| shape.is_tcp, Mismatch::Window),
    (|plan| tcp(plan, |tcp| tcp.ack += 1), |shape| shape.is_tcp, Mismatch::AckNumber),
    (|plan| tcp(plan, |tcp| tcp.options = vec![1; 8]), |shape| shape.is_tcp, Mismatch::Headers),
];

#[test]
fn a_packet_that_does_not_fit_begins_a_train_without_being_parsed() {
    for shape in shapes() {
        for (change, _, mismatch) in CHANGES.iter().filter(|(_, is_for, _)| is_for(shape)) {
            for (before, state) in [(1, Csum::Unknown), (1, Csum::Verified), (3, Csum::Unknown), (3, Csum::Partial)] {
                let mut gro = gro(Profile::Strict);
                let mut frames: Vec<_> = (0..before).map(|number| shape.frame(number, state, |_| ())).collect();
                frames.push(shape.frame(before, state, change));
                let what = format!("{shape:?} {mismatch:?} after {before}, {state:?}");
                assert_eq!(push(&mut gro, shape.start(), state, &frames).0, 0, "{what}");
                assert_eq!(gro.stats.mismatches.of(*mismatch), 1, "{what}");
                assert_eq!(gro.stats.flushes.of(Flush::Mismatch), 1, "{what}");
                assert_eq!((gro.held(), gro.held_packets()), (1, 1), "{what}");
                // A first segment that the next one does not continue takes no box.
                let is_frame = matches!(gro.ready.front(), Some(Ready::First(_)));
                let is_out_of_order = *mismatch == Mismatch::Sequence;
                assert_eq!(is_frame, shape.is_tcp && before == 1 && is_out_of_order, "{what}");
            }
        }
    }
}

#[test]
fn what_can_join_nothing_leaves_without_being_parsed_behind_its_flow() {
    let raw = |shape: Shape, protocol: u8| {
        let ip = if shape.is_v6 { Ip::V6(V6::new(1, 1, 2)) } else { Ip::V4(V4::new(1, 1, 2)) };
        shape.wrap(&Built { ip, l4: L4::Raw(protocol), data: vec![1; 30] }.bytes())
    };
    let fragment = |shape: Shape| {
        shape.frame(1, Csum::Unknown, |plan| match &mut plan.ip {
            Ip::V4(ip) => (ip.df, ip.fragment) = (false, Some((0, true))),
            Ip::V6(ip) => ip.fragment = Some((7, 0, true)),
        })
    };
    for (shape, len) in shapes().flat_map(|shape| [0, 200].map(|len| (shape, len))) {
        let flags = |flags| {
            shape.frame(1, Csum::Unknown, |plan| {
                plan.len = len;
                tcp(plan, |tcp| tcp.flags = flags);
            })
        };
        let without = shape.frame(1, Csum::Unknown, |plan| {
            plan.len = len;
            plan.l4 = L4::Udp(Udp { src_port: 4000, dst_port: 80, checksum: false });
        });
        let padded = |len| [shape.frame(1, Csum::Unknown, |plan| plan.len = len), vec![0; 6]].concat();
        // The frame, the reason, and whether the train of the flow, or everything, leaves before it.
        let (flow, payload) = (Some(Flush::Order), (len > 0).then_some(RefusalReason::TcpFlags));
        let mut cases = vec![
            (raw(shape, 1), RefusalReason::Protocol, None),
            (raw(shape, 50), RefusalReason::Protocol, None),
            (padded(len.max(1)), RefusalReason::Padding, flow),
        ];
        // One of TCP over IPv4 whose flow is held is compared with the train first.
        if shape.is_v6 || !shape.is_tcp {
            cases.push((fragment(shape), RefusalReason::Fragment, flow));
        }
        if shape.is_tcp {
            let why = payload.unwrap_or(RefusalReason::NoPayload);
            cases.extend([2, 4, 0x30].map(|bits| (flags(bits), why, flow)));
            if len == 0 {
                cases.push((flags(0x10), RefusalReason::NoPayload, flow));
            }
        } else {
            cases.push((without, RefusalReason::NoChecksum, flow));
            if len == 0 {
                cases.push((flags(0), RefusalReason::NoPayload, flow));
            }
        }
        for (frame, why, order) in cases {
            let mut gro = gro(Profile::Strict);
            let first: Vec<_> = (0..2).map(|number| shape.frame(number, Csum::Unknown, |_| ())).collect();
            push(&mut gro, shape.start(), Csum::Unknown, &first);
            let what = format!("{shape:?} {why:?} {len}");
            assert_eq!(push(&mut gro, shape.start(), Csum::Unknown, &[frame]).0, 0, "{what}");
            assert_eq!(gro.stats.alone.of(why), 1, "{what}: {:?}", gro.stats.alone);
            assert_eq!(gro.held(), usize::from(order.is_none()), "{what}");
            assert_eq!(gro.stats.flushes.of(Flush::Order), u64::from(order.is_some()), "{what}");
            // The train leaves first.
            let mut pool = Pool::new(8);
            let segments = [gro.pop_from(&mut pool).is_some(), gro.pop_from(&mut pool).is_some()];
            assert_eq!(segments, [true, order.is_some()], "{what}");
        }
    }
}

#[test]
fn the_identifier_of_a_form_says_what_stands_where() {
    let forms = Forms::new(&Masks::new(Profile::Strict));
    for (link, is_v6) in (0..L3.len()).flat_map(|link| [false, true].map(|is_v6| (link, is_v6))) {
        for len in (20..=60).step_by(4) {
            let mut transport = vec![0; len];
            transport[12] = ((len / 4) << 4) as u8;
            let id = match is_v6 {
                true => forms.id_of::<true, true>(link, &transport),
                false => forms.id_of::<false, true>(link, &transport),
            };
            assert_eq!(id, Some(FormId::tcp(link, is_v6, len)));
            let (id, form) = (id.unwrap(), id.and_then(|id| forms.get(id)).unwrap());
            assert_eq!((id.link(), id.l3(), form.l3), (link, L3[link], L3[link]));
            let l4 = L3[link] + if is_v6 { 40 } else { 20 };
            assert_eq!((form.l4, form.len, form.is_tcp), (l4, l4 + len, true));
        }
    }
    assert_eq!(FormId::NONE.l3(), 0);
    assert!(forms.get(FormId::NONE).is_none());
}

/// Returns the hash of a flow by the text of `Hasher`, with numbers of any size.
fn expected_hash(key: Key, shape: Shape, frame: &[u8]) -> u64 {
    let k: Vec<u128> = (0..6).map(|index| u128::from(key.hash(&[index]))).collect();
    let add = |a: u128, b: u128| (a + b) % (1 << 64);
    let nh = |a: u128, key_a: usize, b: u128, key_b: usize| add(a, k[key_a]) * add(b, k[key_b]);
    let tag = |at: usize| u128::from(read_u16(frame, at).unwrap() & ethernet::VLAN_ID);
    let tags = match shape.link {
        2 => tag(14),
        3 => tag(14) + tag(18) * 4096,
        _ => 0,
    };
    let what =
        shape.link as u128 * (1 << 24) + u128::from(shape.is_v6) * (1 << 26) + u128::from(shape.is_tcp) * (1 << 27);
    let l3 = L3[shape.link];
    let (addresses, l4) = if shape.is_v6 { (l3 + 8, l3 + 40) } else { (l3 + 12, l3 + 20) };
    let rest = (what + tags) * (1 << 32) + u128::from(read_u32(frame, l4).unwrap());
    let word = |index: usize| {
        let at = addresses + 8 * index;
        u128::from(u64::from_le_bytes(frame[at..at + 8].try_into().unwrap()))
    };
    let product = match shape.is_v6 {
        true => nh(word(0), 0, word(1), 1).wrapping_add(nh(word(2), 2, word(3), 3)).wrapping_add(nh(rest, 4, 0, 5)),
        false => nh(word(0), 0, rest, 1),
    };
    (product % (1 << 64)) as u64 ^ (product / (1 << 64)) as u64
}

#[test]
fn the_hash_of_a_flow_is_that_of_its_parts_in_each_form_of_the_function() {
    let key = Key([11, 12]);
    let hasher = Hasher::new(key);
    for shape in shapes() {
        let bytes = shape.frame(3, Csum::Unknown, |_| ());
        let mut front = [0; HEAD_BLOCK];
        front.copy_from_slice(&bytes[..HEAD_BLOCK]);
        let expected = expected_hash(key, shape, &bytes);
        let mut packet = Packet::default();
        packet.load(Frag::all(bytes), shape.start(), &Tunnels::NONE);
        let flow = FlowKey::of(&packet).unwrap();
        assert_eq!(hasher.of(&packet, &flow), expected, "{shape:?}");
        // 198.18.1.1, or 2001:db8:1::1.
        assert!(format!("{flow:?}").contains(if shape.is_v6 { "20, 01, 0d, b8" } else { "c6, 12, 01, 01" }));
        let usual = match (shape.link, shape.is_v6, shape.is_tcp) {
            (0, false, true) => hasher.usual::<0, false, true>(&front),
            (1, false, true) => hasher.usual::<1, false, true>(&front),
            (2, true, false) => hasher.usual::<2, true, false>(&front),
            (3, true, true) => hasher.usual::<3, true, true>(&front),
            _ => expected,
        };
        assert_eq!(usual, expected, "{shape:?}");
        // A packet that is no plain one takes the other function.
        let options = shape.frame(3, Csum::Unknown, |plan| {
            if let Ip::V6(ip) = &mut plan.ip {
                ip.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
            }
        });
        packet.load(Frag::all(options), shape.start(), &Tunnels::NONE);
        assert_eq!(hasher.of(&packet, &FlowKey::of(&packet).unwrap()), expected, "extension headers do not matter");
    }
}

/// Tests that a first frame is held if one more byte and one more packet have room, whatever is in front of IP.
#[test]
fn a_first_frame_is_held_where_a_byte_and_a_packet_more_have_room() {
    for (shape, profile) in shapes().flat_map(|shape| PROFILES.map(|profile| (shape, profile))) {
        for state in [Csum::Unknown, Csum::Verified, Csum::Partial] {
            let bytes = shape.frame(0, state, |_| ());
            let len = bytes.len() - L3[shape.link];
            for (max_bytes, most, held) in
                [(len + 1, 2, 1), (len, 2, 0), (len + 1, 1, 0), (65_535, 2, 1), (65_535, 1, 0)]
            {
                let config =
                    Config { profile, max_bytes, max_packets: most, max_udp_packets: most, ..Config::default() };
                let mut gro = Gro::new(config);
                let what = format!("{shape:?} {profile:?} {state:?} {max_bytes} {most}");
                assert_eq!(push(&mut gro, shape.start(), state, slice::from_ref(&bytes)).0, 0, "{what}");
                assert_eq!((gro.held(), gro.stats.flushes.of(Flush::Full)), (held, 1 - held as u64), "{what}");
            }
        }
    }
}

/// Tests that a byte of payload is enough, except for TCP whose checksum is pending: that needs as much as the least
/// segment of a train from outside has.
#[test]
fn the_least_payload_that_may_begin_a_train_takes_the_fast_path() {
    for (shape, profile) in shapes().flat_map(|shape| PROFILES.map(|profile| (shape, profile))) {
        for state in [Csum::Unknown, Csum::Verified, Csum::Partial] {
            let is_bounded = shape.is_tcp && state == Csum::Partial;
            let least = if is_bounded { usize::from(MIN_TCP_SIZE) } else { 1 };
            let first = |size| {
                let mut gro = gro(profile);
                let bytes = shape.frame(0, state, |plan| len(plan, size));
                (push(&mut gro, shape.start(), state, &[bytes]).0, gro.held(), gro.stats.alone.of(RefusalReason::Tiny))
            };
            assert_eq!(first(least), (0, 1, 0), "{shape:?} {profile:?} {state:?}");
            if is_bounded {
                assert_eq!(first(least - 1), (1, 0, 1), "{shape:?} {profile:?}");
            }
        }
    }
}

/// Tests that of a full train of TCP only the last segment is more than expected, and the second one if the
/// identification stays the same.
#[test]
fn only_the_last_segment_of_a_full_train_is_judged_field_by_field() {
    const MOST: usize = 5;
    for (shape, is_fixed) in shapes().flat_map(|shape| [(shape, false), (shape, true)]) {
        for state in [Csum::Unknown, Csum::Verified] {
            let mut gro = Gro::new(Config { max_packets: MOST, max_udp_packets: MOST, ..Config::default() });
            let frames: Vec<_> = (0..MOST)
                .map(|number| {
                    shape.frame(number, state, |plan| {
                        if let (true, Ip::V4(ip)) = (is_fixed, &mut plan.ip) {
                            ip.id = 7;
                        }
                    })
                })
                .collect();
            let judged = match shape.is_tcp {
                true => 1 + usize::from(is_fixed && !shape.is_v6),
                false => MOST,
            };
            let what = format!("{shape:?} {is_fixed} {state:?}");
            assert_eq!(push(&mut gro, shape.start(), state, &frames), (0, judged), "{what}");
            let counts = (gro.held(), gro.stats.flushes.of(Flush::Full), gro.stats.segments);
            assert_eq!(counts, (0, 1, MOST as u64), "{what}");
        }
    }
}

#[test]
fn frames_continue_a_train_whose_first_segment_was_parsed() {
    for shape in shapes().filter(|shape| shape.is_tcp) {
        let (mut gro, mut pool) = (gro(Profile::Strict), Pool::new(8));
        let mut packet = pool.take();
        packet.load(Frag::all(shape.frame(0, Csum::Unknown, |_| ())), shape.start(), &Tunnels::NONE);
        gro.push(packet, Nanos(1), &mut pool);
        let frames: Vec<_> = (1..5).map(|number| shape.frame(number, Csum::Unknown, |_| ())).collect();
        assert_eq!(push(&mut gro, shape.start(), Csum::Unknown, &frames), (0, 0), "{shape:?}");
        gro.flush();
        assert_eq!((gro.stats.trains, gro.stats.segments), (1, 5), "{shape:?}");
    }
}

/// Tests that a parsed packet is compared with a first segment that is still a frame, and that this one leaves as a
/// frame if the packet is larger.
#[test]
fn a_parsed_packet_continues_a_first_segment_that_is_still_a_frame() {
    for shape in shapes().filter(|shape| shape.is_tcp) {
        for (size, is_larger) in [(SIZE - 40, false), (SIZE, false), (SIZE + 1, true)] {
            let (mut gro, mut pool) = (gro(Profile::Strict), Pool::new(8));
            push(&mut gro, shape.start(), Csum::Unknown, &[shape.frame(0, Csum::Unknown, |_| ())]);
            let mut packet = pool.take();
            let bytes = shape.frame(1, Csum::Unknown, |plan| len(plan, size));
            packet.load(Frag::all(bytes), shape.start(), &Tunnels::NONE);
            gro.push(packet, Nanos(1), &mut pool);
            let what = format!("{shape:?} {size}");
            assert_eq!((gro.effort, gro.stats.mismatches.total()), ((0, 1), u64::from(is_larger)), "{what}");
            assert_eq!(gro.stats.mismatches.of(Mismatch::Larger), u64::from(is_larger), "{what}");
            assert_eq!(matches!(gro.ready.front(), Some(Ready::First(_))), is_larger, "{what}");
            gro.flush();
            assert_eq!(gro.stats.segments, if is_larger { 0 } else { 2 }, "{what}");
        }
    }
}

#[test]
fn a_frame_whose_checksum_is_called_bad_or_absent_stays_alone_though_it_is_right() {
    for shape in shapes() {
        for (csum, why) in [(Csum::Bad, RefusalReason::BadChecksum), (Csum::Absent, RefusalReason::NoChecksum)] {
            let mut gro = gro(Profile::Strict);
            push(&mut gro, shape.start(), Csum::Unknown, &[shape.frame(0, Csum::Unknown, |_| ())]);
            let odd = [1, 2].map(|number| shape.frame(number, Csum::Unknown, |_| ()));
            // The second of them has no train of its flow.
            assert_eq!(push(&mut gro, shape.start(), csum, &odd).0, 2, "{shape:?} {csum:?}");
            let counts = (gro.stats.alone.of(why), gro.stats.flushes.of(Flush::Order), gro.held());
            assert_eq!(counts, (2, 1, 0), "{shape:?} {csum:?}");
        }
    }
}

#[test]
fn a_pending_checksum_and_a_complete_one_share_no_train() {
    for shape in shapes() {
        for (first, second) in [(Csum::Partial, Csum::Unknown), (Csum::Unknown, Csum::Partial)] {
            let mut gro = gro(Profile::Strict);
            let frames: Vec<_> = (0..2).map(|number| shape.frame(number, first, |_| ())).collect();
            push(&mut gro, shape.start(), first, &frames);
            push(&mut gro, shape.start(), second, &[shape.frame(2, second, |_| ())]);
            let counts = (gro.stats.mismatches.of(Mismatch::ChecksumKind), gro.held(), gro.held_packets());
            assert_eq!(counts, (1, 1, 1), "{shape:?} {first:?} {second:?}");
        }
    }
}

/// Tests that a difference in the headers is named before one in the sequence number, and that the first segment leaves
/// as the frame that it was.
#[test]
fn a_gap_has_the_name_of_what_else_differs_in_the_headers() {
    for shape in shapes().filter(|shape| shape.is_tcp) {
        let other = [(10, shape.options.to_vec(), Mismatch::Window), (9, vec![1; 8], Mismatch::Headers)];
        for (window, options, mismatch) in other {
            let mut gro = gro(Profile::Strict);
            let second = shape.frame(1, Csum::Unknown, |plan| {
                tcp(plan, |tcp| (tcp.seq, tcp.window, tcp.options) = (tcp.seq + 1, window, options));
            });
            let frames = [shape.frame(0, Csum::Unknown, |_| ()), second];
            assert_eq!(push(&mut gro, shape.start(), Csum::Unknown, &frames).0, 0, "{shape:?} {mismatch:?}");
            assert_eq!((gro.stats.mismatches.of(mismatch), gro.held()), (1, 1), "{shape:?} {mismatch:?}");
            assert!(matches!(gro.ready.front(), Some(Ready::First(_))), "{shape:?} {mismatch:?}");
        }
    }
}

#[test]
fn a_lost_segment_is_a_gap_although_the_identification_jumps_too() {
    for (shape, before) in shapes().filter(|shape| shape.is_tcp).flat_map(|shape| [(shape, 1), (shape, 3)]) {
        for state in [Csum::Unknown, Csum::Partial] {
            let mut gro = gro(Profile::Strict);
            let numbers = (0..before).chain([before + 1]);
            let frames: Vec<_> = numbers.map(|number| shape.frame(number, state, |_| ())).collect();
            assert_eq!(push(&mut gro, shape.start(), state, &frames).0, 0, "{shape:?} {before} {state:?}");
            assert_eq!(gro.stats.mismatches.of(Mismatch::Sequence), 1, "{shape:?} {before} {state:?}");
        }
    }
}

#[test]
fn only_an_exact_packet_without_other_headers_has_a_form() {
    let forms = Forms::new(&Masks::new(Profile::Strict));
    for shape in shapes() {
        let of = |bytes: Vec<u8>| {
            let mut packet = Packet::default();
            packet.load(Frag::all(bytes), shape.start(), &Tunnels::NONE);
            forms.of(&packet)
        };
        let frame = |change: fn(&mut Plan)| shape.frame(0, Csum::Unknown, change);
        assert!(of(frame(|_| ())).is_some(), "{shape:?}");
        assert_eq!(of([frame(|_| ()), vec![0]].concat()), None, "{shape:?}, padded");
        let longer = frame(|plan| match &mut plan.ip {
            Ip::V4(ip) => ip.options = vec![1; 4],
            Ip::V6(ip) => ip.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])],
        });
        assert_eq!(of(longer), None, "{shape:?}, with options or extension headers");
    }
}
