//! Tests of the forms of packets inside tunnels, against the parser.

use segue_testkit::build::{Gre, Ip, L4, Packet as Built, Udp, V4, V6};

use super::pending_first::padded;
use super::rules::Masks;
use super::tunnel_form::{MOST, TunnelForm, TunnelFormId, TunnelForms};
use super::tunnel_shapes::{PROFILES, Plan, Shape, frame, image, shape, shapes, states, tcp, tunnels};
use super::*;
use crate::arch;
use crate::packet::{Csum, Kind, Layout, Packet, Pool};
use crate::wire;

type Change = fn(&mut Plan);

fn parse(shape: &Shape, bytes: &[u8]) -> Box<Packet<Vec<u8>>> {
    frame(shape, bytes.to_vec(), Csum::Unknown).parse(&tunnels(), &mut Pool::new(0))
}

fn layout(shape: &Shape, bytes: &[u8]) -> Layout {
    wire::parse(bytes, shape.start(), &tunnels())
}

fn find<'a>(forms: &'a mut TunnelForms, shape: &Shape, bytes: &[u8]) -> Option<&'a TunnelForm> {
    let front = bytes.first_chunk().copied().unwrap_or_else(|| padded(bytes));
    let at = forms.find(arch::chosen(), shape.start(), &front, bytes)?;
    forms.get(at)
}

/// Returns the forms that are learned of a frame.
fn learned(shape: &Shape, bytes: &[u8]) -> TunnelForms {
    let mut forms = TunnelForms::new();
    forms.learn(&parse(shape, bytes), &Masks::new(Profile::Strict));
    forms
}

/// Replaces TCP or UDP by another protocol.
const ICMP: Change = |plan| plan.l4 = L4::Icmp(8, 0, [0; 4]);

/// Tests against the parser that a frame with another bit or another value anywhere in its headers has the form only if
/// the parser gives it the same layout, and that this layout follows from the form.
#[test]
fn a_frame_has_a_form_only_if_the_parser_gives_it_that_layout() {
    // Protocols, and what versions, lengths and EtherTypes begin with.
    const VALUES: [u8; 16] = [0, 4, 6, 17, 41, 43, 44, 47, 58, 60, 143, 0x45, 0x46, 0x60, 0x81, 0x88];
    for (index, shape) in shapes().into_iter().enumerate() {
        // Other protocols than TCP and UDP are in the place of TCP without options.
        let change: Change = if shape.is_tcp && shape.options.is_empty() { ICMP } else { |_| () };
        let bytes = shape.frame(0, 0, change);
        let packet = parse(&shape, &bytes);
        let mut forms = TunnelForms::new();
        assert!(find(&mut forms, &shape, &bytes).is_none());
        forms.learn(&packet, &Masks::new(PROFILES[index % PROFILES.len()]));
        assert!(find(&mut forms, &shape, &bytes).is_some_and(|form| form.is_exact(&bytes)), "{shape:?}");
        assert_ne!(forms.of(&packet), TunnelFormId::NONE);
        let (mut same, mut other) = (0, bytes.clone());
        for byte in 0..packet.layout.header_len() {
            for value in (0..8).map(|bit| bytes[byte] ^ (1 << bit)).chain(VALUES) {
                other[byte] = value;
                if find(&mut forms, &shape, &other).is_some_and(|form| form.is_exact(&other)) {
                    let parsed = layout(&shape, &other);
                    assert!(parsed == packet.layout && parsed.is_exact(), "{shape:?} byte {byte}, value {value:#x}");
                    same += 1;
                }
            }
            other[byte] = bytes[byte];
        }
        // Two pairs of addresses alone have 16 bytes.
        assert!(same > 16 * 20, "{shape:?} {same}");
    }
}

#[test]
fn a_frame_is_loaded_by_its_form_as_the_parser_does_it() {
    let changes: [Change; 4] = [
        |_| (),
        |plan| plan.len = 0,
        |plan| plan.l4 = L4::Udp(Udp { src_port: 4000, dst_port: 80, checksum: false }),
        ICMP,
    ];
    let mut pool = Pool::new(8);
    for shape in shapes().into_iter().filter(|shape| !shape.is_remote()) {
        for (change, other) in
            changes.iter().flat_map(|change| [(change, shape.clone()), (change, shape.without_outer_sum())])
        {
            let (mut forms, bytes) = (learned(&shape, &shape.frame(0, 0, change)), other.frame(1, 1, change));
            let form = find(&mut forms, &shape, &bytes).expect("it was learned");
            for csum in states(&shape, &bytes) {
                let parsed = frame(&shape, bytes.clone(), csum).parse(&tunnels(), &mut pool);
                let mut loaded = Packet::default();
                form.load(frame(&shape, bytes.clone(), csum), &mut loaded);
                assert_eq!(image(&loaded), image(&parsed), "{other:?} {csum:?}");
                assert!(loaded.layout.is_exact() && loaded.len() == bytes.len());
                pool.put(parsed);
            }
        }
    }
}

#[test]
fn no_form_is_learned_of_what_could_be_read_in_another_way() {
    let is_learned = |shape: &Shape, bytes: &[u8]| !learned(shape, bytes).is_empty();
    let (vxlan, gre) = (shape("VXLAN"), shape("GRE"));
    let plain = vxlan.frame(0, 0, |_| ());
    assert!(is_learned(&vxlan, &plain));
    assert!(!is_learned(&vxlan, &[plain, vec![0; 2]].concat()), "padding");
    for (checksum, key, seq, expected) in [
        (false, None, None, true),
        (false, Some(1), None, true),
        (true, None, None, false),
        (false, None, Some(7), false),
    ] {
        let mut gre = gre.clone();
        gre.around.gre = Some(Gre { checksum, key, seq });
        assert_eq!(is_learned(&gre, &gre.frame(0, 0, |_| ())), expected, "{checksum} {key:?} {seq:?}");
    }
    let mut options = vxlan.clone();
    options.around.ip = Ip::V4(V4 { options: vec![1; 4], ..V4::new(0, 1, 2) });
    assert!(!is_learned(&options, &options.frame(0, 0, |_| ())), "IPv4 options");
    // Of segments without payload only those of usual lengths.
    for (words, len, expected) in [(3, 0, true), (0, 0, true), (5, 0, false), (5, 1, true)] {
        assert_eq!(is_learned(&gre, &with_options(&gre, words, len)), expected, "{words} {len}");
    }
    let extended = vxlan.frame(0, 0, |plan| {
        plan.ip = Ip::V6(V6 { extensions: vec![(60, vec![1, 4, 0, 0, 0, 0])], ..V6::new(1, 1, 2) });
    });
    assert!(!is_learned(&vxlan, &extended), "IPv6 extension headers");
    // Data of PPTP, which is GRE of another version: nothing is read behind IP, but of another packet it is.
    let pptp = [0x30, 0x81, 0x88, 0x0b, 0, 4, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 3, 0, 0x21].to_vec();
    let inside = Built { ip: Ip::V4(V4::new(1, 1, 2)), l4: L4::Raw(47), data: pptp }.bytes();
    let ipip = shape("IP in IP");
    assert!(!is_learned(&ipip, &ipip.wrap(0, &inside)), "a protocol that is not always read");
}

/// Returns a frame with as many words of TCP options, which are NOPs, and this length of payload.
fn with_options(shape: &Shape, words: usize, len: usize) -> Vec<u8> {
    shape.frame(0, 0, |plan| {
        plan.len = len;
        tcp(plan, |tcp| tcp.options = vec![1; 4 * words]);
    })
}

/// Tests that all protocols behind which the parser reads nothing have one form, and no other has that one.
#[test]
fn other_protocols_than_tcp_and_udp_have_one_form() {
    for shape in ["VXLAN", "GRE", "IP in IP"].map(shape) {
        for ip in [Ip::V4(V4::new(1, 1, 2)), Ip::V6(V6::new(1, 1, 2))] {
            let with = |l4| shape.frame(0, 0, |plan| (plan.ip, plan.l4) = (ip.clone(), l4));
            let first = with(L4::Icmp(8, 0, [0; 4]));
            let (expected, mut forms) = (layout(&shape, &first), learned(&shape, &first));
            let found = (0..=u8::MAX).filter(|protocol| {
                let bytes = with(L4::Raw(*protocol));
                let is_found = find(&mut forms, &shape, &bytes).is_some();
                assert_eq!(is_found, layout(&shape, &bytes) == expected, "{ip:?} {protocol}");
                is_found
            });
            assert!(found.count() > 240);
        }
    }
}

/// Tests that the options of Geneve may change from packet to packet, as long as none has another length.
#[test]
fn the_values_of_geneve_options_are_of_no_form() {
    let shape = shape("Geneve");
    // One option with two words, and one without any before one with a word; the offsets of their lengths.
    for (values, lengths) in
        [([1, 2, 3, 2, 9, 9, 9, 9, 9, 9, 9, 9], &[3][..]), ([1, 2, 3, 0, 1, 2, 4, 1, 9, 9, 9, 9], &[3, 7][..])]
    {
        let mut bytes = shape.frame(0, 0, |_| ());
        let geneve =
            *layout(&shape, &bytes).headers().iter().find(|header| header.kind == Kind::Geneve).expect("it has one");
        let options = geneve.start() + wire::geneve::MIN_LEN..geneve.end();
        bytes[options.clone()].copy_from_slice(&values);
        let mut forms = learned(&shape, &bytes);
        for at in options.clone() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            let is_length = lengths.contains(&(at - options.start));
            assert_eq!(find(&mut forms, &shape, &other).is_some(), !is_length, "{values:?} byte {at}");
        }
    }
}

/// Tests that the form that is replaced is one that no frame had since the last look at it, and never the last one that
/// a frame had.
#[test]
fn a_form_is_replaced_that_was_not_found_lately() {
    let shape = shape("GRE");
    let frames: Vec<_> = (0..=MOST).map(|words| with_options(&shape, words, 40)).collect();
    let mut forms = TunnelForms::new();
    let learn = |forms: &mut TunnelForms, frame: usize| {
        // The second time it is known.
        for _ in 0..2 {
            forms.learn(&parse(&shape, &frames[frame]), &Masks::new(Profile::Strict));
        }
    };
    let lost = |forms: &mut TunnelForms| -> Vec<usize> {
        (0..=MOST).filter(|frame| find(forms, &shape, &frames[*frame]).is_none()).collect()
    };
    (0..MOST).for_each(|frame| learn(&mut forms, frame));
    for found in [0, 3, 5] {
        assert!(find(&mut forms, &shape, &frames[found]).is_some());
    }
    learn(&mut forms, MOST);
    assert_eq!(lost(&mut forms), [1]);
    // All were found now, that of the last frame as the last one; it is in the place of the lost one.
    learn(&mut forms, 1);
    assert_eq!(lost(&mut forms), [2]);
    forms.clear();
    assert_eq!(lost(&mut forms).len(), MOST + 1);
}

/// Tests that packets of one form may have DF or not.
#[test]
fn the_flag_df_is_of_no_form() {
    let shape = shape("VXLAN");
    let mut forms = learned(&shape, &shape.frame(0, 0, |_| ()));
    let without = shape.frame(0, 0, |plan| {
        if let Ip::V4(ip) = &mut plan.ip {
            ip.df = false;
        }
    });
    assert_ne!(without, shape.frame(0, 0, |_| ()));
    assert!(find(&mut forms, &shape, &without).is_some());
}

/// Tests that two forms that are learned one right after the other replace different ones.
#[test]
fn a_form_that_was_just_learned_is_not_replaced_by_the_next_one() {
    let shape = shape("GRE");
    let frames: Vec<_> = (0..MOST + 2).map(|words| with_options(&shape, words, 40)).collect();
    let mut forms = TunnelForms::new();
    frames.iter().for_each(|bytes| forms.learn(&parse(&shape, bytes), &Masks::new(Profile::Strict)));
    let lost = (0..frames.len()).filter(|frame| find(&mut forms, &shape, &frames[*frame]).is_none());
    assert_eq!(lost.collect::<Vec<_>>(), [1, 2], "the first one counts as the last one that was found");
}
