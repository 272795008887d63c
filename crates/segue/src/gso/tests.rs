//! Tests of the parts of splitting whose decisions a result does not always show: a train that is not passed uncut at
//! once is planned, and may be passed uncut all the same.

mod single;

use proptest::prelude::*;
use segue_testkit::build::{self, Gre, Ip, L4, Remcsum, Shim, Tunnel, Udp, V4};
use segue_testkit::strategy::{self, FOU_PORTS, GENEVE_PORT, GUE_PORT, VXLAN_PORT};

use super::arena::{Arena, FragmentIds, Frames};
use super::check::check;
use super::cursor::Cursor;
use super::fragment::Cut;
use super::limits::{Fragment, Limits, MIN_TCP_SIZE};
use super::plan::SegmentPlan;
use super::prime::{fill as fill_checksum, prime, request_checksum, verify};
use super::refusal::Refusal;
use super::segment::{Segment, SegmentCsum};
use super::split::{push_joined, split, split_linear};
use super::uncut::gso_of;
use super::whole::{Task, fill_any, fill_short};
use crate::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use crate::hash::Key;
use crate::packet::{
    Csum, Frag, Gso, GsoKind, Kind, Layer, LayerCsum, Layout, Offload, Packet, Payload, Remote, Start, Stop, TrainCsum,
    Tunnels, Unit,
};
use crate::virtio::device;
use crate::wire::{ipv4, ipv6, protocol, read_u16, tcp, write_u16};

/// Limits of a test port that accepts TCP trains of both families, without further limits.
const PORT: Limits = Limits { csum: true, tso4: true, tso6: true, ..Limits::NONE };

fn gso(kind: GsoKind, size: u16) -> Gso {
    Gso { kind, size, fixed_ids: 0 }
}

fn ip_len(is_v6: bool) -> usize {
    if is_v6 { ipv6::LEN } else { ipv4::MIN_LEN }
}

/// Returns a train of TCP without options whose headers describe it, with a primed checksum.
fn train(is_v6: bool, size: u16, payload: usize) -> Packet<Vec<u8>> {
    train_with(is_v6, size, payload, 0)
}

/// Returns a train of TCP with `options` bytes of options, as [`train`] does.
fn train_with(is_v6: bool, size: u16, payload: usize, options: usize) -> Packet<Vec<u8>> {
    let (l4, len) = (ip_len(is_v6), tcp::MIN_LEN + options + payload);
    let mut bytes = vec![0; l4 + len];
    let pseudo = if is_v6 {
        (bytes[0], bytes[ipv6::NEXT_HEADER], bytes[ipv6::HOP_LIMIT]) = (0x60, protocol::TCP, 64);
        write_u16(&mut bytes, ipv6::PAYLOAD_LEN, len as u16);
        pseudo_v6([0; 16], [0; 16], protocol::TCP, len)
    } else {
        (bytes[0], bytes[ipv4::PROTOCOL], bytes[ipv4::TTL]) = (0x45, protocol::TCP, 64);
        write_u16(&mut bytes, ipv4::TOTAL_LEN, (l4 + len) as u16);
        let field = Field::complete(Sum::of(&bytes[..l4]));
        write_u16(&mut bytes, ipv4::CHECKSUM, field.value());
        pseudo_v4([0; 4], [0; 4], protocol::TCP, len)
    };
    (bytes[l4 + tcp::OFFSET], bytes[l4 + tcp::FLAGS]) = (0x50 + ((options as u8 / 4) << 4), tcp::ACK);
    write_u16(&mut bytes, l4 + tcp::CHECKSUM, Field::primed(pseudo).value());
    let mut packet = Packet::default();
    packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
    packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso: gso(GsoKind::Tcp, size) };
    packet
}

/// Tests that a train passes whole up to each limit of a port (`Limits`), and is cut beyond it.
#[test]
fn a_train_passes_uncut_up_to_each_limit_of_the_port_and_not_beyond() {
    for is_v6 in [false, true] {
        let packet = train(is_v6, 1000, 3000);
        let (head, passes) = (packet.head.len(), Some(gso(GsoKind::Tcp, 1000)));
        assert_eq!(gso_of(&packet, &PORT), passes);
        for (last, beyond) in [
            (Limits { max_segs: 3, ..PORT }, Limits { max_segs: 2, ..PORT }),
            (Limits { max_piece: 3000, ..PORT }, Limits { max_piece: 2999, ..PORT }),
            (Limits { max_bytes: head + 3000, ..PORT }, Limits { max_bytes: head + 2999, ..PORT }),
            (Limits { max_head: head, ..PORT }, Limits { max_head: head - 1, ..PORT }),
            (Limits { mtu: head + 1000, ..PORT }, Limits { mtu: head + 999, ..PORT }),
            (Limits { max_pieces: 2, ..PORT }, Limits { max_pieces: 1, ..PORT }),
            (Limits { tso4: !is_v6, tso6: is_v6, ..PORT }, Limits { tso4: is_v6, tso6: !is_v6, ..PORT }),
            (PORT, Limits { csum: false, ..PORT }),
        ] {
            assert_eq!(gso_of(&packet, &last), passes, "{is_v6} {last:?}");
            assert_eq!(gso_of(&packet, &beyond), None, "{is_v6} {beyond:?}");
        }
    }
}

#[test]
fn only_several_segments_of_a_size_that_is_not_tiny_pass_uncut() {
    for is_v6 in [false, true] {
        for (size, payload, passes) in [
            (1000, 1001, true),
            (1000, 1000, false),
            (1000, 999, false),
            (MIN_TCP_SIZE, 64, true),
            (MIN_TCP_SIZE - 1, 64, false),
        ] {
            let found = gso_of(&train(is_v6, size, payload), &PORT);
            assert_eq!(found, passes.then_some(gso(GsoKind::Tcp, size)), "{is_v6} {size} {payload}");
        }
        for (flag, passes) in [(tcp::PSH, true), (tcp::FIN, true), (tcp::SYN, false), (tcp::RST, false)] {
            let mut packet = train(is_v6, 1000, 3000);
            packet.head.bytes_mut()[ip_len(is_v6) + tcp::FLAGS] |= flag;
            assert_eq!(gso_of(&packet, &PORT).is_some(), passes, "{is_v6} {flag:#x}");
        }
        let plain = gso(GsoKind::Tcp, 1000);
        for unit in [
            Unit::Whole(Csum::Partial),
            Unit::Train { csum: TrainCsum::Partial, gso: gso(GsoKind::Udp, 1000) },
            Unit::Train { csum: TrainCsum::Partial, gso: Gso { fixed_ids: Gso::CWR, ..plain } },
        ] {
            let mut packet = train(is_v6, 1000, 3000);
            packet.offload.unit = unit;
            assert_eq!(gso_of(&packet, &PORT), None, "{is_v6} {unit:?}");
        }
    }
}

/// Tests that a driver without `VIRTIO_NET_F_GUEST_ECN` gets no train with CWR.
#[test]
fn a_train_with_cwr_is_cut_for_a_port_that_takes_none_and_has_it_on_the_first_segment_only() {
    let accepted = 1 << device::GUEST_CSUM | 1 << device::GUEST_TSO4 | 1 << device::GUEST_TSO6;
    for is_v6 in [false, true] {
        let at = ip_len(is_v6) + tcp::FLAGS;
        for (features, flags, count) in
            [(accepted, tcp::CWR, 3), (accepted | 1 << device::GUEST_ECN, tcp::CWR, 1), (accepted, tcp::ACK, 1)]
        {
            let mut packet = train(is_v6, 1000, 3000);
            packet.head.bytes_mut()[at] |= flags;
            let (limits, mut arena, mut frames) = (Limits::guest(features, 65_550), Arena::new(), Frames::new());
            assert_eq!(split(&packet, &limits, &mut arena), Ok(count), "{is_v6} {features:x} {flags}");
            assert_eq!(split_linear(&packet, &limits, &mut frames), Ok(count));
            assert_eq!(push_joined(&packet, &limits, &mut Arena::new()), count == 1);
            for (number, segment) in arena.segments().iter().enumerate() {
                assert_eq!(segment.gso.is_some(), count == 1);
                let has_cwr = number == 0 && flags == tcp::CWR;
                assert_eq!(arena.head(segment)[at] & tcp::CWR != 0, has_cwr, "segment {number}");
            }
        }
    }
}

/// Builds UDP with 4 bytes of payload and 4 behind the datagram (RFC 9868), or the same inside another IP packet, or
/// TCP there with 4 bytes behind its IP packet.
fn trailed(is_tunnelled: bool, is_tcp: bool) -> Vec<u8> {
    let ip = |number: u8, len: usize| {
        let mut header = vec![0x45, 0, 0, len as u8, 0, 0, 0, 0, 64, number, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
        let field = Field::complete(Sum::of(&header));
        write_u16(&mut header, ipv4::CHECKSUM, field.value());
        header
    };
    let udp = [0, 1, 0, 2, 0, 12, 0, 0, 5, 6, 7, 8];
    let tcp = [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0, 5, 6, 7, 8];
    let (number, body) = if is_tcp { (6, &tcp[..]) } else { (17, &udp[..]) };
    let inner = 20 + body.len() + if is_tcp { 0 } else { 4 };
    let packet = [&ip(number, inner)[..], body, &[0x91, 0x92, 0x93, 0x94]].concat();
    if is_tunnelled { [ip(4, 20 + packet.len()), packet].concat() } else { packet }
}

#[test]
fn a_checksum_covers_a_datagram_that_ends_before_its_ip_packet_and_no_more() {
    for (is_tunnelled, is_tcp) in [(false, false), (true, false), (true, true)] {
        let mut packet = trailed(is_tunnelled, is_tcp);
        let unfilled = packet.clone();
        assert_eq!(prime(&mut packet, Start::Ip), Err(Refusal::Trailing), "a device would sum too much");
        let mut loaded = Packet::default();
        loaded.load(Frag::all(packet.clone()), Start::Ip, &Tunnels::NONE);
        assert_eq!(request_checksum(&mut loaded), Err(Refusal::Trailing));
        assert_eq!(packet, unfilled);
        fill_checksum(&mut packet, Start::Ip).unwrap();
        // What verifies knows no tunnels.
        let inner = packet.split_off(if is_tunnelled { 20 } else { 0 });
        let inner = inner[..if is_tcp { inner.len() - 4 } else { inner.len() }].to_vec();
        loaded.load(Frag::all(inner), Start::Ip, &Tunnels::NONE);
        assert_eq!(verify(&loaded), Csum::Verified, "{is_tunnelled} {is_tcp}");
    }
}

/// Tests that a train passes with its own headers only if splitting would write the same ones.
#[test]
fn a_train_whose_headers_do_not_describe_it_is_planned() {
    for is_v6 in [false, true] {
        let length_at = if is_v6 { ipv6::PAYLOAD_LEN } else { ipv4::TOTAL_LEN };
        let checksum_at = ip_len(is_v6) + tcp::CHECKSUM;
        let fields = [Some(length_at), Some(checksum_at), (!is_v6).then_some(ipv4::CHECKSUM)];
        for at in fields.into_iter().flatten() {
            for change in [1, u16::MAX] {
                let mut packet = train(is_v6, 1000, 3000);
                let head = packet.head.bytes_mut();
                let value = read_u16(head, at).unwrap();
                write_u16(head, at, value.wrapping_add(change));
                assert_eq!(gso_of(&packet, &PORT), None, "{is_v6} byte {at}");
            }
        }
    }
}

#[test]
fn a_layout_is_checked_against_the_kinds_of_its_headers_and_the_bytes_of_the_head() {
    use Kind::{Ethernet, Gre, Gue, Ipv4, Ipv6, Tcp, Udp, Vlan};
    for (headers, fits) in [
        (&[(Ipv4, 20), (Tcp, 20)][..], true),
        (&[(Ethernet, 14), (Vlan, 4), (Ipv4, 60), (Tcp, 60)], true),
        (&[(Ipv6, 40), (Udp, 8)], true),
        (&[(Ipv4, 20), (Udp, 8), (Gue, 4), (Ipv6, 48), (Tcp, 32)], true),
        (&[(Ipv4, 20), (Gre, 4), (Ipv4, 20), (Tcp, 20)], true),
        (&[(Ipv4, 18), (Tcp, 20)], false),
        (&[(Ipv6, 38), (Tcp, 20)], false),
        (&[(Ipv4, 20), (Tcp, 18)], false),
        (&[(Ipv4, 20), (Udp, 6)], false),
        (&[(Ipv4, 20), (Udp, 10)], false),
        (&[(Ethernet, 14), (Tcp, 20)], false),
        (&[(Ethernet, 14), (Udp, 8)], false),
        (&[(Ipv4, 20), (Udp, 8), (Tcp, 20)], false),
        (&[(Ipv4, 20), (Udp, 8), (Gue, 5), (Ipv4, 20), (Tcp, 20)], false),
        (&[(Ipv4, 20), (Gre, 8), (Ipv4, 20), (Tcp, 20)], false),
    ] {
        let mut layout = Layout::empty(Stop::Transport);
        assert!(headers.iter().all(|&(kind, len)| layout.push(kind, len)));
        let expected = if fits { Ok(()) } else { Err(Refusal::Layout) };
        assert_eq!(check(&vec![0; layout.header_len()], &layout), expected, "{headers:?}");
        for len in [layout.header_len() - 1, layout.header_len() + 1] {
            assert_eq!(check(&vec![0; len], &layout), Err(Refusal::Layout), "{headers:?} in {len} bytes");
        }
    }
}

/// Lengths of the pieces of a payload, whose bytes count up.
const PIECES: [usize; 3] = [5, 3, 8];

fn payload() -> Payload<Vec<u8>> {
    let (mut payload, mut at) = (Payload::default(), 0);
    for len in PIECES {
        payload.push(Frag::all((at..at + len).map(|byte| byte as u8).collect()));
        at += len;
    }
    payload
}

#[test]
fn a_cursor_copies_sums_and_skips_across_pieces() {
    let (payload, total) = (payload(), PIECES.iter().sum::<usize>());
    let all: Vec<u8> = (0..total as u8).collect();
    for skip in 0..=total {
        for len in 0..=total - skip {
            let end = skip + len;
            let at = || {
                let mut cursor = Cursor::new(&payload);
                cursor.skip(skip);
                cursor
            };
            let expected = Sum::of(&all[skip..end]).fold();
            let (mut copied, mut summed, mut out, mut sum) = (at(), at(), vec![0; len], Sum::ZERO);
            copied.copy(&mut out, Some(&mut sum));
            assert_eq!((&out[..], sum.fold()), (&all[skip..end], expected), "{len} from {skip}");
            assert_eq!(summed.sum(len).fold(), expected, "{len} from {skip}");
            let mut plain = vec![0; len];
            at().copy(&mut plain, None);
            assert_eq!(plain, out, "{len} from {skip}");
            // What is left of the piece after that.
            let stop = [5, 8, 16].into_iter().find(|stop| *stop > end).unwrap_or(total);
            for cursor in [copied, summed] {
                assert_eq!(cursor.rest(), &all[end..stop], "{len} from {skip}");
            }
        }
    }
}

/// Tests that a piece larger than the port takes counts as several.
#[test]
fn a_cursor_reaches_as_far_as_a_number_of_pieces() {
    let payload = payload();
    for (skip, pieces, most, expected) in [
        (0, 0, 4, 0),
        (0, 1, 4, 4),
        (0, 2, 4, 5),
        (0, 3, 4, 8),
        (0, 4, 4, 12),
        (0, 5, 4, 16),
        (0, 9, 4, 16),
        (0, 1, 5, 5),
        (0, 1, usize::MAX, 5),
        (0, 2, usize::MAX, 8),
        (0, 3, usize::MAX, 16),
        (2, 1, 4, 3),
        (5, 1, 4, 3),
        (6, 2, 8, 10),
        (16, 3, 4, 0),
    ] {
        let mut cursor = Cursor::new(&payload);
        cursor.skip(skip);
        assert_eq!(cursor.reach(pieces, most), expected, "{pieces} of {most} from {skip}");
    }
}

/// Limits of a port that completes checksums and takes no trains.
const CSUM: Limits = Limits { csum: true, ..Limits::NONE };

/// Returns the number of segments that are made in one run, and that of the run after the next part, in scatter form.
fn runs(packet: &Packet<Vec<u8>>, limits: &Limits) -> [usize; 2] {
    let (mut plan, mut arena) = (SegmentPlan::new(packet, limits).unwrap(), Arena::new());
    arena.reserve(plan.count(), packet.head.len()).unwrap();
    let mut parts = plan.parts(&packet.payload, limits);
    let first = plan.run(&mut parts, &mut arena);
    let _ = parts.next();
    let found = [first, plan.run(&mut parts, &mut arena)];
    assert_eq!(arena.segments().len(), found[0] + found[1]);
    found
}

/// Returns what [`runs`] does, in linear form.
fn linear_runs(packet: &Packet<Vec<u8>>, limits: &Limits) -> [usize; 2] {
    let (mut plan, mut frames) = (SegmentPlan::new(packet, limits).unwrap(), Frames::new());
    let (count, mut cursor) = (plan.count(), Cursor::new(&packet.payload));
    frames.reserve(count, count * packet.head.len() + packet.payload.len(), 0).unwrap();
    let mut parts = plan.parts(&packet.payload, limits);
    let first = plan.run_linear(&mut parts, &mut cursor, &mut frames, 0);
    if let Some(part) = parts.next() {
        cursor.skip(part.len);
    }
    let found = [first, plan.run_linear(&mut parts, &mut cursor, &mut frames, 0)];
    assert_eq!(frames.frames().len(), found[0] + found[1]);
    let payload: usize = frames.frames().iter().map(|frame| frames.bytes(frame).len() - packet.head.len()).sum();
    assert_eq!(frames.take_checksummed(), if limits.csum { 0 } else { payload as u64 });
    found
}

/// Tests which segments are made in one run: those that differ in counting fields only. FIN and PSH are left to the
/// last segment, CWR to the first.
#[test]
fn segments_that_differ_in_counting_fields_only_are_made_in_one_run() {
    let all = tcp::CWR | tcp::FIN | tcp::PSH;
    for is_v6 in [false, true] {
        for (payload, flags, expected) in [
            (3000, 0, [3, 0]),
            (3500, 0, [3, 0]),
            (999, 0, [0, 0]),
            (3000, tcp::PSH, [2, 0]),
            (3000, tcp::FIN, [2, 0]),
            (3500, tcp::PSH, [3, 0]),
            (1000, tcp::PSH, [0, 0]),
            (3000, tcp::CWR, [0, 2]),
            (3500, tcp::CWR, [0, 2]),
            (3000, all, [0, 1]),
            (2000, all, [0, 0]),
        ] {
            let mut packet = train(is_v6, 1000, payload);
            packet.head.bytes_mut()[ip_len(is_v6) + tcp::FLAGS] |= flags;
            let case = format!("{is_v6} {payload} {flags:#x}");
            assert_eq!(runs(&packet, &CSUM), expected, "{case}");
            assert_eq!(runs(&packet, &Limits::NONE), [0, 0], "{case}: each payload is summed");
            for limits in [CSUM, Limits::NONE] {
                assert_eq!(linear_runs(&packet, &limits), expected, "{case}");
            }
        }
        // CWR on every segment is no change.
        let mut packet = train(is_v6, 1000, 3000);
        packet.head.bytes_mut()[ip_len(is_v6) + tcp::FLAGS] |= tcp::CWR;
        let on_all = Gso { fixed_ids: Gso::CWR, ..gso(GsoKind::Tcp, 1000) };
        packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso: on_all };
        assert_eq!((runs(&packet, &CSUM), linear_runs(&packet, &CSUM)), ([3, 0], [3, 0]), "{is_v6}");
    }
}

/// Returns IPv4 directly around an IP packet.
fn direct(net: u8) -> Tunnel {
    Tunnel { ip: Ip::V4(V4::new(net, 1, 2)), udp: None, gre: None, ethernet: None }
}

/// Returns a tunnel over UDP and IPv4 around IPv4.
fn over_udp(shim: Shim, checksum: bool) -> Tunnel {
    let udp = Udp { src_port: 0xc123, dst_port: strategy::port_of(shim, false, false, true), checksum };
    Tunnel { udp: Some((udp, shim)), ..direct(0) }
}

/// Returns the packet in `inner`, in tunnels, the outermost first.
fn within(tunnels: &[Tunnel], inner: Vec<u8>) -> Packet<Vec<u8>> {
    let ports = Tunnels::NONE.with_gue(GUE_PORT).with(VXLAN_PORT, Kind::Vxlan).with(GENEVE_PORT, Kind::Geneve);
    let ports = FOU_PORTS.iter().fold(ports, |ports, fou| ports.with_fou(fou.0, fou.1));
    let bytes = tunnels.iter().rev().fold(inner, |packet, tunnel| tunnel.wrap(&packet));
    let mut packet = Packet::default();
    packet.load(Frag::all(bytes), Start::Ip, &ports);
    packet
}

fn bytes_of(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    bytes.extend(packet.payload.pieces(0..usize::MAX).flatten());
    bytes
}

/// Tests that runs are of trains in tunnels too, where the identifications of at most two IPv4 headers count and no
/// outer checksum or sequence number changes.
#[test]
fn segments_in_a_tunnel_over_ipv4_are_made_in_one_run() {
    let gre = |seq| Tunnel { gre: Some(Gre { seq, ..Gre::default() }), ..direct(0) };
    let remote = over_udp(Shim::Gue(Some(Remcsum::Transport)), true);
    for (tunnels, outer_csum, expected) in [
        (vec![direct(0)], false, [3, 0]),
        (vec![direct(0), direct(2)], false, [0, 0]),
        (vec![gre(None)], false, [3, 0]),
        (vec![gre(Some(7))], false, [0, 0]),
        (vec![over_udp(Shim::Fou, false)], false, [3, 0]),
        (vec![over_udp(Shim::Fou, true)], false, [3, 0]),
        (vec![over_udp(Shim::Fou, true)], true, [3, 0]),
        (vec![remote.clone()], true, [3, 0]),
        // The outer checksum covers the primed field and the payload.
        (vec![remote], false, [0, 0]),
    ] {
        let plain = train(false, 1000, 3000);
        let mut packet = within(&tunnels, bytes_of(&plain));
        packet.offload.unit = plain.offload.unit;
        let limits = Limits { outer_csum, ..CSUM };
        assert_eq!(runs(&packet, &limits), expected, "{tunnels:?}");
        assert_eq!(linear_runs(&packet, &limits), expected, "{tunnels:?}");
    }
}

/// Tests that runs are for headers of at most a block (80 bytes), and in linear form for frames of at least one.
#[test]
fn runs_have_headers_of_at_most_a_block_and_frames_of_at_least_one() {
    for (is_v6, options, expected) in [(false, 40, [3, 0]), (true, 20, [3, 0]), (true, 24, [0, 0]), (true, 40, [0, 0])]
    {
        let packet = train_with(is_v6, 1000, 3000, options);
        assert_eq!(runs(&packet, &CSUM), expected, "{options}");
        assert_eq!(linear_runs(&packet, &CSUM), expected, "{options}");
    }
    for (is_v6, size, linear) in [(false, 40, [3, 0]), (false, 39, [0, 0]), (true, 20, [3, 0]), (true, 19, [0, 0])] {
        let packet = train(is_v6, size, 3 * usize::from(size));
        assert_eq!(runs(&packet, &CSUM), [3, 0], "{size}");
        assert_eq!(linear_runs(&packet, &CSUM), linear, "{size}");
    }
}

/// Tests that pieces are counted only where their number can be too large for the port.
#[test]
fn the_pieces_of_a_train_are_counted_only_where_they_can_be_too_many() {
    let packet = train(false, 1000, 3000);
    let plan = SegmentPlan::new(&packet, &PORT).unwrap();
    for (port, max_pieces, max_piece, expected) in [
        (PORT, usize::MAX, usize::MAX, None),
        (PORT, 2, usize::MAX, None),
        (PORT, 1, usize::MAX, Some((1, usize::MAX))),
        (PORT, 2, 3000, None),
        (PORT, 2, 2999, Some((2, 2999))),
        (PORT, 3, 2999, None),
        (PORT, 3, 1500, None),
        (PORT, 3, 1499, Some((3, 1499))),
        (PORT, usize::MAX, 0, None),
        (PORT, 5, 0, Some((5, 1))),
        (CSUM, 1, 1, None),
    ] {
        let limits = Limits { max_pieces, max_piece, ..port };
        assert_eq!(plan.parts(&packet.payload, &limits).pieces, expected, "{max_pieces} {max_piece}");
    }
}

/// Tests that memory is reserved for as many segments and fragments as there will be.
#[test]
fn the_number_of_segments_and_of_fragments_is_known_in_advance() {
    for is_v6 in [false, true] {
        for (payload, segments) in [(1, 1), (1000, 1), (1001, 2), (3000, 3), (3001, 4)] {
            let packet = train(is_v6, 1000, payload);
            assert_eq!(SegmentPlan::new(&packet, &CSUM).map(|plan| plan.count()).ok(), Some(segments), "{payload}");
        }
        let mut counts = Vec::new();
        for payload in 600..2600 {
            let mut packet = train(is_v6, 1000, payload);
            packet.offload.unit = Unit::Whole(Csum::Unknown);
            let limits = Limits { mtu: 600, fragment: Fragment::Sender { clears_df: true }, ..Limits::NONE };
            let cut = Cut::new(&packet, &limits, &mut FragmentIds::new(Key([0; 2]))).unwrap();
            let (mut next, mut count) = (Some(cut.piece(0, 0)), 0);
            while let Some(piece) = next {
                count += 1;
                assert!(cut.head_len(&piece) + piece.len <= 600, "{is_v6} {payload}");
                next = cut.next(&piece);
            }
            assert_eq!(cut.count(), count, "{is_v6} {payload}");
            counts.push(count);
        }
        assert_eq!((counts[0], counts[1999]), (2, 5), "{is_v6}");
    }
}

#[test]
fn a_train_that_was_just_joined_passes_without_its_headers_where_the_port_takes_it() {
    let (packet, mut arena) = (train(false, 1000, 3000), Arena::new());
    assert!(!push_joined(&packet, &CSUM, &mut arena));
    assert!(arena.segments().is_empty());
    assert!(push_joined(&packet, &PORT, &mut arena));
    let gso = Some(gso(GsoKind::Tcp, 1000));
    assert_eq!(arena.segments(), [Segment { head: 0..0, payload: 0..3000, csum: SegmentCsum::Partial, gso }]);
}

/// Fills in the checksums of `packet` in the short way and in the general one, and checks that the results are equal.
/// Returns whether the short way is for this packet.
#[track_caller]
fn is_short(packet: &Packet<Vec<u8>>, limits: &Limits) -> bool {
    assert_eq!(check(packet.head.bytes(), &packet.layout), Ok(()));
    let task = Task::new(packet, limits).unwrap();
    let (mut short, mut general) = (packet.head.clone(), packet.head.clone());
    let Some(found) = fill_short(short.bytes_mut(), packet, limits, &task).transpose() else {
        assert_eq!(short.bytes(), packet.head.bytes(), "{limits:?} {packet:?}");
        return false;
    };
    assert_eq!(found, fill_any(general.bytes_mut(), packet, limits, &task), "{limits:?} {packet:?}");
    // The headers of a packet that is refused are not used.
    assert!(found.is_err() || short.bytes() == general.bytes(), "{limits:?} {packet:?}");
    true
}

/// Tests which packets take the short way: those of which nothing but the transport checksum and the outermost UDP
/// checksum is owed, the latter to the port, and that end where their lengths say.
#[test]
fn the_short_way_is_for_packets_that_owe_two_checksums_at_most() {
    const NONE: Layer = Layer::NONE;
    const OWED: Layer = Layer { udp: LayerCsum::Owed, ..NONE };
    let fou = || over_udp(Shim::Fou, true);
    let gre = Tunnel { gre: Some(Gre { checksum: true, ..Gre::default() }), ..direct(0) };
    let udp = L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true });
    let datagram = build::Packet { ip: Ip::V4(V4::new(1, 1, 2)), l4: udp, data: vec![7; 101] }.bytes();
    for inner in [bytes_of(&train(false, 1000, 101)), datagram] {
        for (tunnels, layers, outer_csum, expected) in [
            (vec![], vec![], false, true),
            (vec![direct(0)], vec![NONE], false, true),
            (vec![over_udp(Shim::Fou, false)], vec![NONE], true, true),
            (vec![fou()], vec![OWED], true, true),
            (vec![fou()], vec![OWED], false, false),
            (vec![fou(), direct(2)], vec![OWED, NONE], true, true),
            (vec![fou(), fou()], vec![OWED, OWED], true, false),
            (vec![fou(), fou()], vec![NONE, OWED], true, false),
            (vec![gre.clone()], vec![Layer { gre: LayerCsum::Owed, ..NONE }], true, false),
            (vec![fou()], vec![Layer { remote: Some(Remote::Gre), ..OWED }], true, false),
            (vec![fou()], vec![Layer { remote: Some(Remote::Transport), ..OWED }], true, true),
            // There is no such checksum: it is refused.
            (vec![direct(0)], vec![OWED], true, true),
        ] {
            let limits = Limits { outer_csum, ..Limits::NONE };
            let mut offload = Offload::plain(Unit::Whole(Csum::Partial));
            assert!(layers.iter().rev().all(|layer| offload.push_outer(*layer)));
            let mut packet = within(&tunnels, inner.clone());
            packet.offload = offload;
            assert_eq!(is_short(&packet, &limits), expected, "{tunnels:?} {layers:?}");
            // A byte after the inner packet, which its checksum does not cover.
            let mut packet = within(&tunnels, [&inner[..], &[9]].concat());
            packet.offload = offload;
            let is_completed = layers.iter().all(|layer| layer.remote != Some(Remote::Transport));
            assert_eq!(is_short(&packet, &limits), expected && !is_completed, "{tunnels:?} {layers:?} and a byte");
        }
    }
    // A packet too long for its length field, which is zero.
    let mut bytes = vec![0; 70_000];
    (bytes[0], bytes[ipv4::PROTOCOL], bytes[ipv4::MIN_LEN + tcp::OFFSET]) = (0x45, protocol::TCP, 0x50);
    let mut packet = within(&[], bytes);
    packet.offload.unit = Unit::Whole(Csum::Partial);
    assert!(packet.layout.is_exact() && !is_short(&packet, &Limits::NONE));
    // One of just the longest length that there is.
    let mut bytes = vec![0; 65_535];
    (bytes[0], bytes[ipv4::PROTOCOL], bytes[ipv4::MIN_LEN + tcp::OFFSET]) = (0x45, protocol::TCP, 0x50);
    write_u16(&mut bytes, ipv4::TOTAL_LEN, u16::MAX);
    let mut packet = within(&[], bytes);
    packet.offload.unit = Unit::Whole(Csum::Partial);
    assert!(is_short(&packet, &Limits::NONE));
}

/// Generates a packet and tunnels around it, the outermost first.
fn any_tunnelled() -> impl Strategy<Value = (build::Packet, Vec<Tunnel>)> {
    strategy::packet(300).prop_flat_map(|inner| {
        let is_v4 = matches!(inner.ip, Ip::V4(_));
        (strategy::tunnel(is_v4), strategy::tunnel(true), 0..5).prop_map(move |(near, far, form)| {
            let tunnels = match form {
                0 => vec![],
                1 => vec![near],
                2 => vec![direct(0)],
                3 => vec![far, direct(2)],
                _ => vec![direct(2), near],
            };
            (inner.clone(), tunnels)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_short_way_of_filling_in_checksums_gives_what_the_general_one_gives(
        (inner, tunnels) in any_tunnelled(),
        (extra, is_inside) in (0_usize..12, any::<bool>()),
        cut in any::<prop::sample::Index>(),
        csum in 0_usize..6,
        states in any::<[u8; 4]>(),
        (csum_offload, outer_csum) in any::<(bool, bool)>(),
    ) {
        // Bytes after the inner packet, as the parser finds them, or after the outermost one.
        let extra = vec![0xee_u8; if extra < 3 { extra } else { 0 }];
        let mut bytes = inner.bytes();
        if is_inside {
            bytes.extend(&extra);
        }
        let mut packet = within(&tunnels, bytes);
        let mut payload: Vec<u8> = packet.payload.pieces(0..usize::MAX).flatten().copied().collect();
        packet.payload.clear();
        let rest = payload.split_off(cut.index(payload.len() + 1));
        packet.payload.push(Frag::all(payload));
        packet.payload.push(Frag::all(rest));
        if !is_inside {
            packet.payload.push(Frag::all(extra));
        }
        let csums = [Csum::Partial, Csum::Partial, Csum::Verified, Csum::Unknown, Csum::Absent, Csum::Bad];
        packet.offload.unit = Unit::Whole(csums[csum]);
        let layer_csums = [LayerCsum::Absent, LayerCsum::Unknown, LayerCsum::Done, LayerCsum::Owed];
        for (layer, state) in packet.offload.layers_mut().iter_mut().zip(states) {
            layer.udp = layer_csums[usize::from(state % 4)];
            layer.gre = layer_csums[usize::from(state / 4 % 4)];
            layer.remote = [None, None, Some(Remote::Transport), Some(Remote::Gre)][usize::from(state / 16 % 4)];
        }
        is_short(&packet, &Limits { csum: csum_offload, outer_csum, ..Limits::NONE });
    }
}
