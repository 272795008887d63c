//! Tests that frames inside tunnels are taken without being parsed once one of their form was, which is invisible in
//! their output: the slow path gives the same.

use std::collections::{BTreeMap, BTreeSet};

use segue_testkit::build::{Ethernet, Gre, Ip, L4, Packet as Built, Tcp, Tunnel, Udp, V4, V6};
use segue_testkit::sum;

use super::key::{FlowKey, Hasher};
use super::tunnel_shapes::{
    PORTS, PROFILES, Plan, SIZE, STAMPS, Shape, frame, image, shape, shapes, states, tcp, tunnels,
};
use super::*;
use crate::checksum::Sum;
use crate::hash::Key;
use crate::packet::{Csum, HEAD_BLOCK, Pool};
use crate::time::Nanos;

type Change = fn(&mut Plan);

/// The packets that left an engine, its counters, and the numbers of flows and packets that it held at the end.
#[derive(Debug, PartialEq)]
struct Outcome {
    left: Vec<String>,
    stats: String,
    held: (usize, usize),
}

/// Pushes frames. Returns what left, and the numbers of packets on the slow path and of frames that were parsed.
fn run(mut gro: Gro<Vec<u8>>, frames: &[Frame<Vec<u8>>]) -> (Outcome, (usize, usize)) {
    let (mut pool, mut left) = (Pool::new(8), Vec::new());
    let mut pop = |gro: &mut Gro<Vec<u8>>, pool: &mut Pool<Vec<u8>>| {
        while let Some(packet) = gro.pop_from(pool) {
            left.push(image(&packet));
            pool.put(packet);
        }
    };
    for frame in frames {
        gro.push_frame(frame.clone(), Nanos(1), &mut pool);
        pop(&mut gro, &mut pool);
    }
    let held = (gro.held(), gro.held_packets());
    gro.flush();
    pop(&mut gro, &mut pool);
    (Outcome { left, stats: format!("{:?}", gro.stats()), held }, (gro.effort.0, gro.parsed))
}

/// Pushes frames over both paths, which must agree. Returns the numbers of packets that took the slow path beside the
/// short one and of frames that were parsed there, and what left.
#[track_caller]
fn agree(config: Config, frames: &[Frame<Vec<u8>>], what: &str) -> ((usize, usize), Outcome) {
    let config = Config { tunnels: tunnels(), max_flows: 16, ..config };
    let (fast, effort) = run(Gro::new(config), frames);
    let (slow, _) = run(Gro::slow_path_only(config), frames);
    assert_eq!(fast, slow, "{what}");
    (effort, fast)
}

/// Returns frames of which the port knows no checksum.
fn unknown(shape: &Shape, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Frame<Vec<u8>>> {
    frames.into_iter().map(|bytes| frame(shape, bytes, Csum::Unknown)).collect()
}

/// Tests that of several flows in turn only the first segments take the slow path, and only the first of all is parsed,
/// in every form, profile and state of the checksum.
#[test]
fn trains_of_several_flows_inside_a_tunnel_are_joined_without_being_parsed() {
    const FLOWS: u16 = 5;
    for (shape, profile) in shapes().into_iter().flat_map(|shape| PROFILES.map(|profile| (shape.clone(), profile))) {
        for state in 0..states(&shape, &[0; 64]).len() {
            let mut frames = Vec::new();
            for (number, flow) in (0..6).flat_map(|number| (0..FLOWS).map(move |flow| (number, flow))) {
                // The last one is shorter, and pushes.
                let bytes = shape.frame(flow, number, |plan| {
                    if number == 5 {
                        plan.len = 60;
                        tcp(plan, |tcp| tcp.flags = 0x18);
                    }
                });
                let csum = states(&shape, &bytes)[state];
                frames.push(frame(&shape, bytes, csum));
            }
            let what = format!("{} {shape:?} {profile:?} {state}", shape.name);
            let (effort, outcome) = agree(Config { profile, ..Config::default() }, &frames, &what);
            // First segments with a remote checksum are left to the parser.
            let parsed = if shape.is_remote() { FLOWS } else { 1 };
            assert_eq!(effort, (usize::from(FLOWS), usize::from(parsed)), "{what}");
            assert_eq!((outcome.left.len(), outcome.held), (usize::from(FLOWS), (0, 0)), "{what}");
        }
    }
}

/// Tests that frames that can join nothing leave without the slow path behind the train of their flow alone.
#[test]
fn what_can_join_nothing_inside_a_tunnel_leaves_without_the_slow_path_behind_its_flow() {
    let cases: [(Change, bool, Option<RefusalReason>); 7] = [
        (|plan| plan.len = 0, true, Some(RefusalReason::NoPayload)),
        (|plan| plan.len = 0, false, Some(RefusalReason::NoPayload)),
        (|plan| tcp(plan, |tcp| tcp.flags = 0x14), true, Some(RefusalReason::TcpFlags)),
        (|plan| tcp(plan, |tcp| tcp.flags = 0x12), true, Some(RefusalReason::TcpFlags)),
        (
            |plan| plan.l4 = L4::Udp(Udp { src_port: 4000, dst_port: 80, checksum: false }),
            false,
            Some(RefusalReason::NoChecksum),
        ),
        (|plan| plan.l4 = L4::Icmp(8, 0, [0; 4]), true, None),
        (|plan| plan.l4 = L4::Raw(50), true, None),
    ];
    for (shape, (change, is_tcp, why)) in shapes().iter().flat_map(|shape| cases.map(|case| (shape, case))) {
        // Frames with a remote checksum are left to the slow path.
        if shape.is_tcp != is_tcp || shape.is_remote() {
            continue;
        }
        for state in 0..3 {
            let frames = |is_whole: bool| {
                // The form of other protocols is learned of the first one.
                let mut frames = vec![shape.frame(2, 0, |plan| {
                    if why.is_none() {
                        plan.l4 = L4::Icmp(8, 0, [0; 4]);
                    }
                })];
                for number in 0..3 {
                    frames.extend([0, 1].map(|flow| shape.frame(flow, number, |_| ())));
                }
                if is_whole {
                    frames.push(shape.frame(0, 3, change));
                }
                let of = |bytes: Vec<u8>| {
                    let csum = states(shape, &bytes)[state];
                    frame(shape, bytes, csum)
                };
                frames.into_iter().map(of).collect::<Vec<_>>()
            };
            let what = format!("{} {shape:?} {why:?} {state}", shape.name);
            let (before, _) = agree(Config::default(), &frames(false), &what);
            let (effort, outcome) = agree(Config::default(), &frames(true), &what);
            // A checksum that the port has verified or summed and that is absent is left to the slow path.
            if state > 0 && why == Some(RefusalReason::NoChecksum) {
                continue;
            }
            assert_eq!(effort, before, "{what}");
            // Of three flows that of the frame has left; a packet of another protocol, in the place of the third, has
            // none.
            assert_eq!(outcome.held.0, 2, "{what}: {}", outcome.stats);
            assert_eq!(outcome.left.len(), 4, "{what}: {}", outcome.stats);
        }
    }
}

/// Tests that a remote checksum counts only under an outer one, also if the form was learned of frames with both.
#[test]
fn a_remote_checksum_without_an_outer_one_joins_nothing_after_its_form_was_learned() {
    for shape in shapes().iter().filter(|shape| shape.is_remote()) {
        for profile in PROFILES {
            let mut frames: Vec<_> = (0..3).map(|number| shape.frame(0, number, |_| ())).collect();
            frames.extend([3, 4].map(|number| shape.without_outer_sum().frame(0, number, |_| ())));
            let config = Config { profile, ..Config::default() };
            let (_, outcome) = agree(config, &unknown(shape, frames), &format!("{shape:?} {profile:?}"));
            assert!(outcome.stats.contains("remcsum_unprotected: 2"), "{}", outcome.stats);
        }
    }
}

/// Tests that a datagram inside a tunnel is looked into if its port is that of another tunnel, whatever form it has.
#[test]
fn a_datagram_inside_a_tunnel_to_the_port_of_another_one_is_parsed() {
    let udp = Shape { is_tcp: false, ..shape("GRE") };
    let empty: Change = |plan| {
        (plan.l4, plan.len) = (L4::Udp(Udp { src_port: 4000, dst_port: PORTS[0], checksum: true }), 8);
    };
    let vxlan = shape("VXLAN").frame(0, 0, |_| ());
    for (odd, why) in [(udp.wrap(3, &vxlan), "too_deep: 1"), (udp.frame(0, 0, empty), "tunnel: 1")] {
        let mut frames: Vec<_> = (0..3).map(|number| udp.frame(0, number, |_| ())).collect();
        frames.extend([odd, udp.frame(0, 3, |_| ())]);
        let (effort, outcome) = agree(Config::default(), &unknown(&udp, frames), why);
        assert_eq!(effort.1, 2, "the first one and the odd one: {why}");
        assert!(outcome.stats.contains(why), "{}", outcome.stats);
    }
}

/// Tests that a transport that is not right behind IP gives the same on both paths each time.
#[test]
fn a_transport_right_behind_a_tunnel_header_has_no_form() {
    let tunnel = shape("IP in IP");
    let gue = |checksum, protocol, inside: &[u8]| {
        let l4 = L4::Udp(Udp { src_port: 50_000, dst_port: PORTS[2], checksum });
        Built { ip: Ip::V4(V4::new(1, 1, 2)), l4, data: [&[0, protocol, 0, 0][..], inside].concat() }.bytes()
    };
    // TCP without IP in GUE inside IP in IP, without payload, and with it and RST.
    let bare = |len, flags| {
        let options = Vec::new();
        let tcp = Tcp { src_port: 4000, dst_port: 80, seq: 1, ack: 1, flags, window: 9, urgent: 0, options };
        let packet = Built { ip: Ip::V4(V4::new(2, 1, 2)), l4: L4::Tcp(tcp), data: vec![1; len] }.bytes();
        tunnel.wrap(1, &gue(true, 6, &packet[20..]))
    };
    // A datagram of GUE with a checksum right inside one without.
    let inner = Shape { link: None, ..shape("GUE") }.frame(0, 1, |_| ());
    let nested = gue(false, 17, &inner[20..]);
    for bytes in [bare(0, 0x10), bare(9, 0x14), nested] {
        let frames = core::iter::repeat_n(bytes, 3);
        let (effort, outcome) = agree(Config::default(), &unknown(&tunnel, frames), "transports behind tunnel headers");
        assert_eq!(effort, (3, 3));
        assert!(outcome.stats.contains("tunnel: 3"), "{}", outcome.stats);
    }
}

/// Tests that more tunnels than forms that are kept, with Ethernet in front or not and the same addresses inside, give
/// the same on both paths while their trains go on.
#[test]
fn trains_go_on_while_their_forms_are_replaced() {
    const MANY: usize = 12;
    let several: Vec<_> = shapes().into_iter().filter(|shape| shape.is_tcp).take(MANY).collect();
    for profile in PROFILES {
        let each =
            |number| several.iter().map(move |shape| frame(shape, shape.frame(0, number, |_| ()), Csum::Unknown));
        let frames: Vec<_> = (0..4).flat_map(each).collect();
        let (effort, outcome) = agree(Config { profile, ..Config::default() }, &frames, &format!("{profile:?}"));
        assert_eq!((outcome.left.len(), outcome.held), (MANY, (MANY, 4 * MANY)), "{}", outcome.stats);
        assert!(effort.1 > MANY, "forms were learned again: {effort:?}");
    }
}

/// Returns a shape with another Ethernet header and another GRE header.
fn with_gre(link: Option<Ethernet>, gre: Option<Gre>, shape: &Shape) -> Shape {
    Shape { link, around: Tunnel { gre, ..shape.around.clone() }, ..shape.clone() }
}

/// Tests that flows are kept apart that differ in headers around their addresses alone, and that a packet that can join
/// nothing leaves behind the train of its own.
#[test]
fn flows_that_differ_in_their_tunnel_headers_alone_are_kept_apart() {
    let link = |tags| Some(Ethernet { tags, ..Ethernet::default() });
    let gre = |checksum, key| Gre { checksum, key, seq: None };
    let several = [
        (None, gre(false, None)),
        (None, gre(true, None)),
        (None, gre(false, Some(0))),
        (None, gre(true, Some(0))),
        (link(Vec::new()), gre(false, None)),
        (link(vec![(0x8100, 0)]), gre(false, None)),
    ]
    .map(|(link, gre)| with_gre(link, Some(gre), &shape("GRE")));
    for (a, b) in (0..several.len()).flat_map(|a| (0..several.len()).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        for (which, acks) in [(a, false), (b, false), (a, true), (b, true)] {
            let of = |index: usize, number, change: Change| {
                let shape = &several[index];
                frame(shape, shape.frame(0, number, change), Csum::Unknown)
            };
            let mut frames = [(a, 0), (a, 1), (b, 0), (b, 1)].map(|(index, number)| of(index, number, |_| ())).to_vec();
            frames.push(of(which, 2, |plan| plan.len = 0));
            let profile = if acks { Profile::Lro } else { Profile::Strict };
            let what = format!("{:?} {:?} {which} {acks}", several[a], several[b]);
            let (_, outcome) = agree(Config { profile, acks, ..Config::default() }, &frames, &what);
            assert_eq!((outcome.left.len(), outcome.held), (3, (1, 2)), "{what}: {}", outcome.stats);
        }
    }
}

/// Tests that packets inside tunnels have the same hash only if they are of one flow.
#[test]
fn flows_inside_tunnels_have_hashes_of_their_own() {
    let gres = [(false, None), (false, Some(7)), (true, None), (true, Some(7))]
        .map(|(checksum, key)| Some(Gre { checksum, key, seq: None }));
    let mut frames = Vec::new();
    for (flow, shape) in shapes().iter().enumerate() {
        let gres: &[Option<Gre>] = if shape.around.gre.is_some() { &gres } else { &[None] };
        for (gre, link) in gres.iter().flat_map(|gre| [None, Some(Ethernet::default())].map(|link| (*gre, link))) {
            let shape = with_gre(link, gre, shape);
            // A flow of its own, and one that other shapes may have.
            frames.extend([flow as u16, 0].map(|flow| frame(&shape, shape.frame(flow, 0, |_| ()), Csum::Unknown)));
        }
    }
    // The key and addresses of one are the addresses and ports of the other.
    for (key, src, ports) in [(Some(0x0102_0304), [5, 6, 7, 8], (0, 0)), (None, [1, 2, 3, 4], (0x0506, 0x0708))] {
        let shape = with_gre(None, Some(Gre { key, ..Gre::default() }), &shape("GRE"));
        let bytes = shape.frame(0, 0, |plan| {
            plan.ip = Ip::V4(V4 { src, dst: [0; 4], ..V4::new(1, 1, 2) });
            tcp(plan, |tcp| (tcp.src_port, tcp.dst_port) = ports);
        });
        frames.push(frame(&shape, bytes, Csum::Unknown));
    }
    let (hasher, mut pool) = (Hasher::new(Key([3, 4])), Pool::new(1));
    let mut hashes = BTreeMap::new();
    for frame in frames {
        let packet = frame.parse(&tunnels(), &mut pool);
        let key = FlowKey::of(&packet).expect("it has a transport");
        let hash = hasher.of(&packet, &key);
        assert_eq!(*hashes.entry(key.bytes().to_vec()).or_insert(hash), hash, "one flow: {key:?}");
    }
    let distinct: BTreeSet<u64> = hashes.values().copied().collect();
    assert!(hashes.len() > 200, "{}", hashes.len());
    assert_eq!(distinct.len(), hashes.len());
}

/// Returns the hash of a flow inside a tunnel by the text of `Hasher`, with numbers of any size: of the kinds of its
/// headers, and of words, each an offset and a number of bytes, or 0 for a VLAN identifier.
fn expected_hash(key: Key, kinds: u128, bytes: &[u8], words: &[(usize, usize)]) -> u64 {
    let k: Vec<u128> = (6..24).map(|index| u128::from(key.hash(&[index]))).collect();
    let add = |a: u128, b: u128| (a + b) % (1 << 64);
    let word = |at: usize, len: usize| match len {
        0 => u128::from(bytes[at] & 0x0f) + 256 * u128::from(bytes[at + 1]),
        _ => bytes[at..at + len].iter().rev().fold(0, |value: u128, byte| 256 * value + u128::from(*byte)),
    };
    let mut product = add(kinds, k[16]) * k[17];
    for (index, pair) in words.chunks(2).enumerate() {
        let second = pair.get(1).map_or(0, |&(at, len)| word(at, len));
        let nh = add(word(pair[0].0, pair[0].1), k[2 * index]) * add(second, k[2 * index + 1]);
        product = product.wrapping_add(nh);
    }
    (product % (1 << 64)) as u64 ^ (product / (1 << 64)) as u64
}

/// Tests that addresses, ports, VLAN identifiers, GRE flags and keys of both levels enter the hash of a flow, and
/// nothing else does.
#[test]
fn the_hash_of_a_flow_inside_a_tunnel_is_that_of_its_words() {
    let gre = |checksum| with_gre(None, Some(Gre { checksum, key: Some(0x0102_0304), seq: None }), &shape("GRE"));
    let vxlan = Shape {
        link: Some(Ethernet { tags: vec![(0x88a8, 0x2007), (0x8100, 0x6fff)], ..Ethernet::default() }),
        around: Tunnel { ip: Ip::V6(V6::new(3, 1, 2)), ..shape("VXLAN").around },
        ..shape("VXLAN")
    };
    let gue = Shape { link: None, ..shape("GUE") };
    let cases: [(Shape, &[(usize, usize)]); 4] = [
        (gre(false), &[(12, 8), (20, 2), (24, 4), (40, 8), (48, 4)]),
        (gre(true), &[(12, 8), (20, 2), (28, 4), (44, 8), (52, 4)]),
        (vxlan, &[(14, 0), (18, 0), (30, 8), (38, 8), (46, 8), (54, 8), (62, 4), (74, 3), (104, 8), (112, 4)]),
        (gue, &[(12, 8), (20, 4), (44, 8), (52, 4)]),
    ];
    let (key, mut pool) = (Key([3, 4]), Pool::new(1));
    for (shape, words) in cases {
        let bytes = shape.frame(5, 1, |_| ());
        let packet = frame(&shape, bytes.clone(), Csum::Unknown).parse(&tunnels(), &mut pool);
        let kinds = packet.layout.headers().iter().fold(1, |kinds, header| 16 * kinds + header.kind as u128);
        let flow = FlowKey::of(&packet).expect("it has a transport");
        let expected = expected_hash(key, kinds, &bytes, words);
        assert_eq!(Hasher::new(key).of(&packet, &flow), expected, "{} {:?}", shape.name, packet.layout);
    }
}

/// Tests that options of the length of timestamps that are none do not keep timestamps from having a form (profile
/// `lro`, which compares both in different ways).
#[test]
fn timestamps_have_their_form_after_other_options_of_their_length() {
    for shape in shapes().iter().filter(|shape| shape.options == STAMPS && !shape.is_remote()) {
        let mut frames =
            vec![shape.frame(9, 0, |plan| tcp(plan, |tcp| tcp.options = vec![1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]))];
        for number in 0..6 {
            frames.extend((0..5).map(|flow| shape.frame(flow, number, |_| ())));
        }
        // Where both are compared in the same way, they have one form.
        for (profile, parsed) in [(Profile::Lro, 2), (Profile::Strict, 1)] {
            let config = Config { profile, ..Config::default() };
            let (effort, _) = agree(config, &unknown(shape, frames.clone()), shape.name);
            assert_eq!(effort, (6, parsed), "{shape:?} {profile:?}");
        }
    }
}

/// Tests that a frame that does not fit the train of its flow gives what it gives on the slow path.
#[test]
fn frames_that_do_not_fit_inside_a_tunnel_give_the_same_on_both_paths() {
    let changes: [Change; 9] = [
        |plan| plan.len = SIZE + 1,
        |plan| plan.len = SIZE - 1,
        |plan| tcp(plan, |tcp| tcp.seq = tcp.seq.wrapping_add(1)),
        |plan| tcp(plan, |tcp| tcp.window += 1),
        |plan| tcp(plan, |tcp| tcp.ack += 1),
        |plan| tcp(plan, |tcp| tcp.flags = 0x90),
        |plan| tcp(plan, |tcp| tcp.flags = 0x11),
        |plan| tcp(plan, |tcp| tcp.options = vec![1; 12]),
        |plan| match &mut plan.ip {
            Ip::V4(ip) => ip.id = ip.id.wrapping_add(3),
            Ip::V6(ip) => ip.hop_limit -= 1,
        },
    ];
    let shapes = shapes();
    let cases = shapes.iter().flat_map(|shape| changes.map(|change| (shape, change)));
    for (turn, (shape, change)) in cases.enumerate() {
        for before in 1..4 {
            // Each case has one profile, in turn.
            let profile = PROFILES[(turn + turn / PROFILES.len() + before) % PROFILES.len()];
            let mut frames: Vec<_> = (0..before).map(|number| shape.frame(0, number, |_| ())).collect();
            frames.push(shape.frame(0, before, change));
            frames.extend([1, 2].map(|more| shape.frame(0, before + more, |_| ())));
            let config = Config { profile, acks: true, ..Config::default() };
            agree(config, &unknown(shape, frames), &format!("{} {before}", shape.name));
        }
    }
}

/// Tests that another bit in any byte of the headers of a frame, the first, the second or the third, has the same
/// effect on both paths, whatever the port has verified.
#[test]
fn any_other_bit_of_a_header_inside_a_tunnel_has_the_same_effect_on_both_paths() {
    let some = shapes().into_iter().filter(|shape| shape.is_tcp && shape.options == STAMPS);
    for (index, shape) in some.enumerate() {
        let frames: Vec<_> = (0..4).map(|number| shape.frame(0, number, |_| ())).collect();
        let headers = frames[0].len() - SIZE;
        for byte in 0..headers {
            // Each case has one bit, one profile, one state and one place, in turn.
            let turn = byte + index;
            let bit = 1 << (turn % 8);
            let (profile, changed) = (PROFILES[turn % PROFILES.len()], turn % 3);
            let mut frames = frames.clone();
            frames[changed][byte] ^= bit;
            let of = |bytes: Vec<u8>| {
                let states = states(&shape, &bytes);
                let csum = states[turn / 15 % states.len()];
                frame(&shape, bytes, csum)
            };
            let frames: Vec<_> = frames.into_iter().map(of).collect();
            let what = format!("{} byte {byte}, bit {bit:#x}, frame {changed}", shape.name);
            agree(Config { profile, ..Config::default() }, &frames, &what);
        }
    }
}

/// Tests that a wrong checksum is seen: of the first segment, and of another one.
#[test]
fn a_wrong_checksum_inside_a_tunnel_is_seen_on_the_short_path() {
    for shape in shapes() {
        for wrong in 0..3 {
            let mut frames: Vec<_> = (0..4).map(|number| shape.frame(0, number, |_| ())).collect();
            *frames[wrong].last_mut().expect("a frame has bytes") ^= 1;
            let (_, outcome) = agree(Config::default(), &unknown(&shape, frames), &format!("{} {wrong}", shape.name));
            assert!(outcome.left.len() > 1, "{} {wrong}", shape.name);
        }
    }
}

/// Tests that no form is used under other ports of tunnels than those with which it was learned.
#[test]
fn forms_are_forgotten_when_other_rules_are_taken() {
    let shape = shape("VXLAN");
    let mut gro = Gro::new(Config { tunnels: tunnels(), key: Key([3, 4]), ..Config::default() });
    let mut pool = Pool::new(8);
    let mut push = |gro: &mut Gro<Vec<u8>>| {
        for number in 0..3 {
            gro.push_frame(frame(&shape, shape.frame(0, number, |_| ()), Csum::Unknown), Nanos(1), &mut pool);
        }
        gro.flush();
        std::iter::from_fn(|| gro.pop()).map(|packet| packet.layout.ip_levels()).collect::<Vec<_>>()
    };
    assert_eq!(push(&mut gro), [2]);
    gro.reconfigure(Config::default());
    // They are datagrams of UDP then, and none is looked into.
    assert!(push(&mut gro).iter().all(|levels| *levels == 1));
    gro.reconfigure(Config { tunnels: tunnels(), ..Config::default() });
    assert_eq!(push(&mut gro), [2]);
}

/// Tests that a frame is parsed, whatever form it has, if the port says of its checksum what it can only say of an
/// outermost one, or that it is wrong; and a frame with a remote checksum if the port has summed it (A).
#[test]
fn a_frame_inside_a_tunnel_is_parsed_if_its_checksum_is_in_another_state_than_those_before() {
    let remote = shape("GUE with a remote checksum");
    let l3 = remote.link.as_ref().map_or(0, |link| 14 + 4 * link.tags.len());
    let last = remote.frame(0, 3, |_| ());
    let mut cases = vec![(remote, Csum::Complete(Sum::of(&last[l3..])))];
    for shape in ["VXLAN", "GRE"].map(shape) {
        cases.extend([Csum::Partial, Csum::Bad, Csum::Absent].map(|csum| (shape.clone(), csum)));
    }
    for (shape, csum) in cases {
        let mut frames = unknown(&shape, (0..3).map(|number| shape.frame(0, number, |_| ())));
        frames.push(frame(&shape, shape.frame(0, 3, |_| ()), csum));
        let (effort, outcome) = agree(Config::default(), &frames, &format!("{} {csum:?}", shape.name));
        assert_eq!(effort.1, 2, "{} {csum:?}: the first one and the last one", shape.name);
        assert!(!outcome.left.is_empty(), "{} {csum:?}", shape.name);
    }
}

/// Tests that what a port has verified of a datagram says nothing about the packet inside.
#[test]
fn a_wrong_checksum_inside_a_datagram_that_the_port_has_verified_joins_nothing() {
    for shape in shapes().into_iter().filter(|shape| shape.around.udp.is_some() && !shape.is_remote()) {
        let shape = shape.without_outer_sum();
        let mut frames: Vec<_> = (0..4).map(|number| shape.frame(0, number, |_| ())).collect();
        *frames[2].last_mut().unwrap() ^= 1;
        let frames: Vec<_> = frames.into_iter().map(|bytes| frame(&shape, bytes, Csum::Verified)).collect();
        let (_, outcome) = agree(Config::default(), &frames, &format!("{shape:?}"));
        assert!(outcome.stats.contains("bad_checksum: 1"), "{shape:?}: {}", outcome.stats);
    }
}

/// Tests that a frame without an outer checksum does not join a train with them, nor the other way round (B).
#[test]
fn frames_with_and_without_an_outer_checksum_are_no_train() {
    let has_sum = |shape: &Shape| shape.around.udp.is_some_and(|(udp, _)| udp.checksum);
    for shape in shapes().into_iter().filter(|shape| has_sum(shape) && !shape.is_remote()) {
        let without = shape.without_outer_sum();
        for (before, after) in [(&shape, &without), (&without, &shape)] {
            let frames = [(before, 0), (before, 1), (after, 2), (after, 3)];
            let frames = frames.map(|(shape, number)| shape.frame(0, number, |_| ()));
            let (_, outcome) = agree(Config::default(), &unknown(&shape, frames), &format!("{shape:?}"));
            assert!(outcome.stats.contains("checksum_kind: 1"), "{shape:?}: {}", outcome.stats);
            assert_eq!((outcome.left.len(), outcome.held), (2, (1, 2)), "{shape:?}");
        }
    }
}

/// Tests that a right checksum of all ones, which splitting would not restore, is seen inside a tunnel too (C).
#[test]
fn a_checksum_of_all_ones_inside_a_tunnel_stays_alone_where_it_has_to_be_restored() {
    // Bare IPv4 in IPv4: the inner header is at 20, TCP at 40, and the payload behind 32 bytes of that.
    let shape = shape("IP in IP");
    let mut ones = shape.frame(0, 2, |_| ());
    let checksum = |bytes: &[u8]| !sum::with_pseudo(&bytes[32..36], &bytes[36..40], 6, &bytes[40..]);
    ones[56..58].fill(0);
    ones[72..74].fill(0);
    let rest = checksum(&ones);
    ones[72..74].copy_from_slice(&rest.to_be_bytes());
    assert_eq!(checksum(&ones), 0);
    ones[56..58].fill(0xff);
    let frames = [shape.frame(0, 0, |_| ()), shape.frame(0, 1, |_| ()), ones];
    let (_, outcome) = agree(Config::default(), &unknown(&shape, frames), "all ones");
    assert!(outcome.stats.contains("not_canonical: 1"), "{}", outcome.stats);
}

/// Tests that a segment joins on the short path as long as there is room for it, to the byte: a larger one in profile
/// `lro`, and a shorter last one in the others (D).
#[test]
fn a_segment_inside_a_tunnel_joins_on_the_short_path_while_there_is_room() {
    let shape = shape("GRE");
    assert!(shape.link.is_none());
    let headers = shape.frame(0, 0, |_| ()).len() - SIZE;
    for (profile, lens, room, slow) in [
        (Profile::Lro, [100, 150, 300], 550, 1),
        (Profile::Lro, [100, 150, 301], 550, 2),
        (Profile::Strict, [100, 100, 50], 250, 1),
        (Profile::Strict, [100, 100, 51], 250, 2),
    ] {
        let mut seq = 0;
        let frames: Vec<_> = (lens.into_iter().enumerate())
            .map(|(number, len)| {
                let bytes = shape.frame(0, number, |plan| {
                    plan.len = len;
                    tcp(plan, |tcp| tcp.seq = seq);
                });
                seq += len as u32;
                bytes
            })
            .collect();
        let config = Config { profile, max_bytes: headers + room, ..Config::default() };
        let (effort, outcome) = agree(config, &unknown(&shape, frames), &format!("{profile:?} {lens:?}"));
        assert_eq!(effort, (slow, 1), "{profile:?} {lens:?}");
        assert_eq!(outcome.left.len(), slow, "{profile:?} {lens:?}");
    }
}

/// Tests that headers behind the first block are compared as those in it: two equal differences are no less than one.
#[test]
fn two_equal_differences_behind_the_first_block_of_headers_are_seen() {
    let transport = |shape: &Shape| shape.frame(0, 0, |_| ()).len() - SIZE - 20 - shape.options.len();
    let long: Vec<_> = shapes().into_iter().filter(|shape| shape.is_tcp && transport(shape) >= HEAD_BLOCK).collect();
    assert!(!long.is_empty());
    for shape in long {
        let mut frames: Vec<_> = (0..2).map(|number| shape.frame(0, number, |_| ())).collect();
        frames.push(shape.frame(0, 2, |plan| {
            tcp(plan, |tcp| {
                tcp.window ^= 1;
                tcp.urgent ^= 1;
            });
        }));
        let (_, outcome) = agree(Config::default(), &unknown(&shape, frames), shape.name);
        assert!(outcome.stats.contains("window: 1"), "{shape:?}: {}", outcome.stats);
    }
}
