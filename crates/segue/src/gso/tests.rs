//! Tests of the parts of splitting whose decisions a result does not always show: a train that is not passed uncut at
//! once is planned, and may be passed uncut all the same.

use super::check::check;
use super::cursor::Cursor;
use super::limits::{Limits, MIN_TCP_SIZE};
use super::refusal::Refusal;
use super::uncut::gso_of;
use crate::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use crate::packet::{Csum, Frag, Gso, GsoKind, Kind, Layout, Packet, Payload, Start, Stop, TrainCsum, Tunnels, Unit};
use crate::wire::{ipv4, ipv6, protocol, read_u16, tcp, write_u16};

/// Limits of a test port that accepts TCP trains of both families, without further limits.
const PORT: Limits = Limits { csum: true, tso4: true, tso6: true, ..Limits::NONE };

fn gso(kind: GsoKind, size: u16) -> Gso {
    Gso { kind, size, fixed_ids: 0 }
}

fn ip_len(is_v6: bool) -> usize {
    if is_v6 { ipv6::LEN } else { ipv4::MIN_LEN }
}

/// Returns a train of TCP whose headers describe it, with a primed checksum.
fn train(is_v6: bool, size: u16, payload: usize) -> Packet<Vec<u8>> {
    let (l4, len) = (ip_len(is_v6), tcp::MIN_LEN + payload);
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
    (bytes[l4 + tcp::OFFSET], bytes[l4 + tcp::FLAGS]) = (0x50, tcp::ACK);
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
