//! Tests of pure acknowledgments in profile `lro`: which ones collapse, and which must not.

use std::sync::Arc;

use segue::gro::{Config, Flush, Gro, Mismatch, Profile, RefusalReason};
use segue::packet::{Csum, Frag, Pool, Start, Tunnels, Unit};
use segue::time::Nanos;
use segue_testkit::build::{self, Ethernet, Ip, L4, Remcsum, Shim, Tcp, V4, prime};
use segue_testkit::flow::Sender;

use crate::bench::{Stream, frames, tcp4, tcp6, tunnel, v4, v6, wrap};

const STEP: u32 = 2896;

/// Returns the next acknowledgment, higher by `more` bytes.
fn ack(sender: &mut Sender, more: u32) -> Vec<u8> {
    acks(sender, more, |_| {})
}

/// Returns the next acknowledgment, higher by `more` bytes, with a change that later ones keep.
fn acks(sender: &mut Sender, more: u32, change: impl FnOnce(&mut Tcp)) -> Vec<u8> {
    if let L4::Tcp(tcp) = &mut sender.next.l4 {
        tcp.ack = tcp.ack.wrapping_add(more);
        change(tcp);
    }
    sender.send(0, 0).bytes()
}

fn stamped() -> Sender {
    Sender::tcp(v4(), 1, 1000, Tcp::timestamps(500, 700))
}

/// Returns `count` pure acknowledgments with rising numbers.
fn moving(sender: &mut Sender, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| ack(sender, STEP)).collect()
}

/// Returns a stream of five acknowledgments: two, the second of which is held; a third, which acknowledges `more` bytes
/// more and is changed by `edit`; and two more.
fn around(sender: Sender, more: u32, edit: impl FnOnce(&mut build::Packet)) -> Stream {
    let (mut sender, mut packets) = (sender, Vec::new());
    packets.extend(moving(&mut sender, 2));
    let mut odd = sender.clone();
    if let L4::Tcp(tcp) = &mut odd.next.l4 {
        tcp.ack = tcp.ack.wrapping_add(more);
    }
    let mut odd = odd.send(0, 0);
    edit(&mut odd);
    packets.push(odd.bytes());
    packets.push(ack(&mut sender, STEP + more));
    packets.push(ack(&mut sender, STEP));
    Stream::new(packets).lro()
}

fn field(sender: Sender, more: u32, edit: impl FnOnce(&mut Tcp)) -> Stream {
    around(sender, more, |packet| {
        if let L4::Tcp(tcp) = &mut packet.l4 {
            edit(tcp);
        }
    })
}

/// Returns the packets of [`around`] with a change that also affects all later ones.
fn lasting(sender: Sender, edit: fn(&mut Tcp)) -> Stream {
    let mut sender = sender;
    let mut packets = moving(&mut sender, 2);
    packets.push(acks(&mut sender, 0, edit));
    packets.extend(moving(&mut sender, 2));
    Stream::new(packets).lro()
}

/// Declares a test for each scenario of five acknowledgments, the third of which must reach the sender, and a table of
/// all scenarios. None is swallowed: the first one of a flow and the first one after the third stay alone too.
macro_rules! seen {
    ($($name:ident: $reason:ident = $scenario:expr;)+) => {
        pub(crate) const REFUSED: &[(RefusalReason, fn() -> Stream)] = &[
            $((RefusalReason::$reason, || $scenario),)+
            (RefusalReason::AckFirst, || Stream::new(moving(&mut tcp4(), 2)).lro()),
        ];
        $(#[test] fn $name() {
            let stream = $scenario;
            let outcome = Stream::gives(&stream, &[1; 5]);
            let refused = [(RefusalReason::$reason, 1), (RefusalReason::AckFirst, 2)];
            outcome.counts(&refused, &[(Flush::Order, 1), (Flush::PollEnd, 1)], &[]);
            let (_, left) = stream.run_unchecked();
            assert!(left.iter().eq(stream.packets.iter().map(|(bytes, _)| bytes)), "in order, and unchanged");
        })+
    };
}

seen! {
    a_duplicate_acknowledgment_is_seen: AckDuplicate = field(tcp4(), 0, |_| {});
    a_duplicate_with_a_newer_timestamp_is_seen: AckDuplicate =
        lasting(stamped(), |tcp| tcp.options = Tcp::timestamps(501, 700));
    a_pure_window_update_is_seen: AckWindow = lasting(tcp6(), |tcp| tcp.window += 1);
    a_window_that_shrinks_is_seen: AckWindow = field(tcp4(), 0, |tcp| tcp.window -= 1);
    a_window_taken_back_is_seen: AckWindow = field(tcp4(), STEP, |tcp| tcp.window -= 1);
    sack_blocks_are_seen: AckOptions = field(tcp4(), STEP, |tcp| tcp.options = [&[1, 1, 5, 10][..], &[7; 8]].concat());
    sack_blocks_behind_timestamps_are_seen: AckOptions =
        field(stamped(), STEP, |tcp| tcp.options.extend([&[1, 1, 5, 10][..], &[7; 8]].concat()));
    timestamps_in_another_layout_are_seen: AckOptions = field(stamped(), STEP, |tcp| tcp.options.rotate_left(2));
    ece_is_seen: AckFlags = field(tcp4(), STEP, |tcp| tcp.flags |= 0x40);
    cwr_is_seen: AckFlags = field(tcp6(), STEP, |tcp| tcp.flags |= 0x80);
    accurate_ecn_is_seen: AckFlags = {
        let mut stream = field(tcp4(), STEP, |_| {});
        let bytes = &mut stream.packets[2].0;
        bytes[32] |= 1;
        crate::refused::tcp_checksum(bytes);
        stream
    };
    psh_is_seen: AckFlags = field(tcp4(), STEP, |tcp| tcp.flags |= 0x08);
    urg_is_seen: AckFlags = field(tcp4(), STEP, |tcp| tcp.flags |= 0x20);
    a_missing_ack_flag_is_seen: AckFlags = field(tcp4(), STEP, |tcp| tcp.flags = 0);
    fin_is_seen: AckFlags = field(tcp4(), STEP, |tcp| tcp.flags |= 0x01);
    rst_is_seen: AckFlags = field(tcp4(), STEP, |tcp| tcp.flags |= 0x04);
    syn_is_seen: AckFlags = field(tcp4(), STEP, |tcp| tcp.flags |= 0x02);
    an_older_acknowledgment_is_seen: AckOld = field(tcp4(), 0, |tcp| tcp.ack -= 1);
    a_timestamp_that_goes_back_is_seen: AckTimestamp =
        field(stamped(), STEP, |tcp| tcp.options = Tcp::timestamps(499, 700));
    an_echo_that_goes_back_is_seen: AckTimestamp = field(stamped(), STEP, |tcp| tcp.options = Tcp::timestamps(500, 699));
    a_missing_echo_is_seen: AckTimestamp = field(stamped(), STEP, |tcp| tcp.options = Tcp::timestamps(500, 0));
}

#[test]
fn missing_timestamps_are_seen() {
    // The next one has them again, so it differs from its predecessor too.
    let stream = field(stamped(), STEP, |tcp| tcp.options = Vec::new());
    let outcome = stream.gives(&[1; 5]);
    assert_eq!((outcome.stats.swallowed, outcome.stats.alone.of(RefusalReason::AckTimestamp)), (0, 2));
}

#[test]
fn acknowledgments_collapse_to_the_newest() {
    for mut sender in [tcp4(), tcp6(), stamped()] {
        let stream = Stream::new(moving(&mut sender, 10)).lro();
        let (outcome, left) = stream.run_unchecked();
        outcome.counts(&[(RefusalReason::AckFirst, 1)], &[(Flush::PollEnd, 1)], &[]);
        assert_eq!((outcome.stats.swallowed, outcome.stats.packets, outcome.stats.trains), (8, 10, 0));
        assert_eq!(left, [stream.packets[0].0.clone(), stream.packets[9].0.clone()], "byte for byte");
        assert_eq!(outcome.trains[1].offload.unit, Unit::Whole(Csum::Verified));
    }
}

#[test]
fn nothing_collapses_unless_asked_for() {
    let outcome = Stream::new(moving(&mut tcp4(), 5)).profile(Profile::Lro).gives(&[1; 5]);
    outcome.counts(&[(RefusalReason::NoPayload, 5)], &[], &[]);
}

#[test]
fn a_datagram_without_payload_is_no_acknowledgment() {
    let mut sender = Sender::udp(v4(), 1);
    let packets = [0, 0].map(|len| sender.send(len, 0).bytes());
    Stream::new(packets).lro().gives(&[1, 1]).counts(&[(RefusalReason::NoPayload, 2)], &[], &[]);
}

#[test]
fn numbers_wrap() {
    let mut sender = tcp4();
    if let L4::Tcp(tcp) = &mut sender.next.l4 {
        tcp.ack = u32::MAX - 3 * STEP;
    }
    assert_eq!(Stream::new(moving(&mut sender, 9)).lro().run_unchecked().0.stats.swallowed, 7);
}

#[test]
fn timestamps_and_echoes_that_move_on_collapse_and_the_newest_stay_together() {
    let mut sender = Sender::tcp(v6(), 1, 1, Tcp::timestamps(u32::MAX - 2, u32::MAX - 1));
    let packets: Vec<_> = (0..6)
        .map(|i: u32| {
            let options = Tcp::timestamps((u32::MAX - 2).wrapping_add(i), (u32::MAX - 1).wrapping_add(i / 2));
            // An echo of zero means none; this one is skipped.
            acks(&mut sender, STEP, |tcp| {
                tcp.options = if options[8..] == [0; 4] { Tcp::timestamps(3, 1) } else { options }
            })
        })
        .collect();
    let (outcome, left) = Stream::new(packets.clone()).lro().run_unchecked();
    assert_eq!((outcome.stats.swallowed, left.last()), (4, packets.last()), "{:?}", outcome.stats);
}

#[test]
fn a_window_that_grows_collapses() {
    let mut sender = tcp4();
    let packets: Vec<_> = (0..5).map(|_| acks(&mut sender, STEP, |tcp| tcp.window += 3)).collect();
    let (outcome, left) = Stream::new(packets.clone()).lro().run_unchecked();
    assert_eq!((outcome.stats.swallowed, &left[1]), (3, &packets[4]));
}

#[test]
fn a_right_edge_that_stays_is_told_by_the_scale_of_the_syn() {
    // The reader is slow: the window shrinks by the newly acknowledged bytes, in units of 128.
    let stream = |syn: Option<Vec<u8>>| {
        let mut sender = tcp4();
        let mut packets = Vec::new();
        if let Some(options) = syn {
            let mut first = sender.clone().send(0, 0x02);
            if let L4::Tcp(tcp) = &mut first.l4 {
                (tcp.flags, tcp.options) = (0x02, options);
            }
            packets.push(first.bytes());
        }
        packets.extend((0..5).map(|_| acks(&mut sender, 1280, |tcp| tcp.window -= 10)));
        Stream::new(packets).lro()
    };
    let swallowed = |syn| stream(syn).run_unchecked().0.stats.swallowed;
    assert_eq!(swallowed(Some(vec![2, 4, 5, 0xb4, 1, 3, 3, 7])), 3);
    assert_eq!(swallowed(Some(vec![2, 4, 5, 0xb4])), 3, "no scale");
    assert_eq!(swallowed(Some(vec![1, 3, 3, 8])), 0, "it is taken back");
    assert_eq!(swallowed(None), 0, "it might be taken back");
}

#[test]
fn other_headers_start_anew() {
    let change = |edit: fn(&mut Sender)| {
        let mut sender = tcp4();
        let mut packets = moving(&mut sender, 3);
        edit(&mut sender);
        packets.extend(moving(&mut sender, 2));
        let (outcome, left) = Stream::new(packets.clone()).lro().run_unchecked();
        assert_eq!(outcome.stats.swallowed, 2);
        assert_eq!(left, [packets[0].clone(), packets[2].clone(), packets[4].clone()]);
        outcome.stats.mismatches.iter().find(|(_, count)| *count == 1).map(|(why, _)| why)
    };
    type Edit = fn(&mut Sender);
    let edits: [(Edit, Mismatch); 4] = [
        (
            |s| {
                if let Ip::V4(ip) = &mut s.next.ip {
                    ip.ttl = 9
                }
            },
            Mismatch::Ttl,
        ),
        (
            |s| {
                if let Ip::V4(ip) = &mut s.next.ip {
                    ip.tos = 3
                }
            },
            Mismatch::Tos,
        ),
        (
            |s| {
                if let Ip::V4(ip) = &mut s.next.ip {
                    ip.df = false
                }
            },
            Mismatch::Fragment,
        ),
        (
            |s| {
                if let L4::Tcp(tcp) = &mut s.next.l4 {
                    tcp.seq += 5
                }
            },
            Mismatch::Sequence,
        ),
    ];
    for (edit, why) in edits {
        assert_eq!(change(edit), Some(why));
    }
}

#[test]
fn identifications_of_any_kind_collapse() {
    let mut sender = tcp4();
    sender.ids = segue_testkit::flow::Ids::Random;
    assert_eq!(Stream::new(moving(&mut sender, 9)).lro().run_unchecked().0.stats.swallowed, 7);
}

#[test]
fn data_and_acknowledgments_keep_their_order() {
    let mut sender = tcp4();
    let mut packets = moving(&mut sender, 3);
    packets.extend([100, 100].map(|len| sender.send(len, 0).bytes()));
    packets.extend(moving(&mut sender, 4));
    packets.push(sender.send(100, 0).bytes());
    let stream = Stream::new(packets.clone()).lro();
    let (outcome, left) = stream.run_unchecked();
    // The first one, the third, two segments, the first one after them, the last, a segment.
    let expected = [0, 2, 3, 4, 5, 8, 9].map(|at: usize| packets[at].clone());
    assert_eq!(left, expected, "{:?}", outcome.stats);
    assert_eq!((outcome.sizes, outcome.stats.swallowed), (vec![1, 1, 2, 1, 1, 1], 3));
}

#[test]
fn ack_with_the_number_of_a_data_segment_is_a_duplicate() {
    // The sender has seen that number already, on the data.
    let mut sender = tcp4();
    let mut packets = moving(&mut sender, 2);
    packets.push(acks(&mut sender, STEP, |_| {}));
    if let L4::Tcp(tcp) = &mut sender.next.l4 {
        tcp.ack += STEP;
    }
    packets.push(sender.send(100, 0).bytes());
    packets.push(ack(&mut sender, 0));
    packets.push(ack(&mut sender, 0));
    packets.extend(moving(&mut sender, 2));
    let outcome = Stream::new(packets).lro().run_unchecked().0;
    assert_eq!(
        (outcome.stats.swallowed, outcome.stats.alone.of(RefusalReason::AckDuplicate)),
        (1, 2),
        "{:?}",
        outcome.stats
    );
}

#[test]
fn three_duplicates_in_three_rounds_are_three_duplicates() {
    // An acknowledgment is a duplicate even if the original left long ago: fast retransmit counts it.
    let mut gro = Gro::new(Config { profile: Profile::Lro, acks: true, ..Config::default() });
    let mut pool = Pool::new(8);
    let mut sender = tcp4();
    let mut rounds = vec![moving(&mut sender, 3)];
    rounds.extend((0..3).map(|_| vec![ack(&mut sender, 0)]));
    rounds.push(moving(&mut sender, 3));
    let mut left = Vec::new();
    for round in &rounds {
        for bytes in round {
            let mut packet = pool.take();
            packet.load(Frag::all(bytes.clone()), Start::Ip, &Tunnels::NONE);
            gro.push(packet, Nanos(0), &mut pool);
        }
        gro.flush();
        left.extend(std::iter::from_fn(|| gro.pop()).map(|packet| packet.head.bytes().to_vec()));
    }
    let expected: Vec<_> = [&rounds[0][0], &rounds[0][2], &rounds[1][0], &rounds[2][0], &rounds[3][0], &rounds[4][0]]
        .into_iter()
        .chain([&rounds[4][2]])
        .cloned()
        .collect();
    assert_eq!(left, expected);
    assert_eq!(gro.stats().alone.of(RefusalReason::AckDuplicate), 3);
}

/// Tests that the last acknowledgments are known as long as they may collapse, also while other limits are taken.
#[test]
fn acknowledgments_collapse_from_when_they_may_and_the_last_ones_stay_known_under_other_limits() {
    let lro = Config { profile: Profile::Lro, acks: true, ..Config::default() };
    let (mut gro, mut pool, mut sender) = (Gro::new(Config { acks: false, ..lro }), Pool::new(8), tcp4());
    let mut swallowed = |gro: &mut Gro<Vec<u8>>| {
        for bytes in moving(&mut sender, 3) {
            let mut packet = pool.take();
            packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
            gro.push(packet, Nanos(0), &mut pool);
        }
        gro.flush();
        gro.stats().swallowed
    };
    assert_eq!(swallowed(&mut gro), 0);
    gro.reconfigure(lro);
    assert_eq!(swallowed(&mut gro), 1, "the first one stays alone");
    gro.reconfigure(Config { max_packets: 7, ..lro });
    assert_eq!(swallowed(&mut gro), 3, "no first one");
    gro.reconfigure(Config { acks: false, ..lro });
    assert_eq!(swallowed(&mut gro), 3);
    gro.reconfigure(lro);
    assert_eq!(swallowed(&mut gro), 4, "the first one stays alone again");
}

#[test]
fn acks_with_wrong_checksums_are_not_aggregated() {
    for bad in 0..5 {
        let mut packets = moving(&mut tcp4(), 5);
        packets[bad][36] ^= 0x40;
        let (outcome, left) = Stream::new(packets.clone()).lro().run_unchecked();
        assert!(left.contains(&packets[bad]), "{bad}");
        assert_eq!(outcome.stats.alone.of(RefusalReason::BadChecksum), 1);
        assert_eq!(outcome.stats.packets, outcome.stats.swallowed + left.len() as u64);
        assert_eq!(left.last(), packets.last());
    }
    // A wrong number in a wrong packet is not remembered.
    let mut packets = moving(&mut tcp4(), 5);
    packets[2][28] ^= 0x40;
    assert_eq!(Stream::new(packets).lro().run_unchecked().0.stats.alone.of(RefusalReason::AckOld), 0);
}

#[test]
fn no_more_than_the_most_collapse() {
    for (max_acks, sizes) in
        [(3, vec![0, 3, 6, 9]), (2, vec![0, 2, 4, 6, 8, 9]), (1, (0..10).collect()), (0, (0..10).collect())]
    {
        let packets = moving(&mut tcp4(), 10);
        let (outcome, left) = Stream::new(packets.clone()).lro().config(|c| c.max_acks = max_acks).run_unchecked();
        assert_eq!(left, sizes.iter().map(|&at: &usize| packets[at].clone()).collect::<Vec<_>>(), "{max_acks}");
        assert_eq!(outcome.stats.swallowed as usize, 10 - sizes.len());
    }
}

#[test]
fn aggregation_does_not_extend_the_hold_time_of_the_first_ack() {
    let packets = moving(&mut tcp4(), 8);
    let stream = Stream { step: 40, ..Stream::new(packets.clone()).lro().config(|c| c.hold = Nanos(100)) };
    let (outcome, left) = stream.run_unchecked();
    // Three in each hundred nanoseconds.
    assert_eq!(left, [0, 3, 6, 7].map(|at: usize| packets[at].clone()));
    assert_eq!(outcome.stats.flushes.of(Flush::Timeout), 2);
}

#[test]
fn padded_acknowledgments_collapse_whatever_the_padding_holds() {
    for (fill, sender) in [(0, tcp4()), (0xa5, tcp4()), (0x5a, stamped())] {
        let mut packets = frames(&Ethernet::default(), moving(&mut sender.clone(), 6));
        let bare = packets[0].len();
        packets.iter_mut().enumerate().for_each(|(i, p)| p.resize(60.max(bare), fill ^ i as u8));
        let (outcome, left) = Stream::new(packets.clone()).ethernet().lro().run_unchecked();
        assert_eq!((outcome.stats.swallowed, left.len()), (4, 2));
        assert_eq!((&left[1], outcome.stats.trimmed), (&packets[5], 0), "the newest as it came");
    }
}

#[test]
fn tagged_acknowledgments_collapse_from_the_second_on() {
    // The result is the same without tags and with one or two, padded or not.
    for tags in [vec![], vec![(0x8100, 5)], vec![(0x88a8, 7), (0x8100, 0xa005)]] {
        let link = Ethernet { tags, ..Ethernet::default() };
        for len in [0, 60, 64] {
            let mut packets = frames(&link, moving(&mut tcp4(), 6));
            packets.iter_mut().for_each(|packet| packet.resize(packet.len().max(len), 0));
            let outcome = Stream::new(packets).ethernet().lro().run_unchecked().0;
            assert_eq!(outcome.stats.swallowed, 4);
        }
    }
}

#[test]
fn another_vlan_is_another_flow_and_another_priority_starts_anew() {
    let link = |tci| Ethernet { tags: vec![(0x8100, tci)], ..Ethernet::default() };
    let bare = moving(&mut tcp4(), 4);
    let two = |a, b| Stream::new([a, a, b, b].iter().zip(&bare).map(|(&tci, p)| link(tci).wrap(p)).collect::<Vec<_>>());
    assert_eq!(two(5, 6).ethernet().lro().gives(&[1; 4]).stats.alone.of(RefusalReason::AckFirst), 2);
    let outcome = two(0x2005, 0x4005).ethernet().lro().run_unchecked().0;
    assert_eq!((outcome.stats.mismatches.of(Mismatch::Link), outcome.stats.swallowed), (1, 1));
}

#[test]
fn acknowledgments_in_tunnels_collapse() {
    for shim in [Shim::Fou, Shim::Gue(None), Shim::Gue(Some(Remcsum::Transport))] {
        let around = tunnel(Ip::V4(V4::new(0, 1, 2)), shim, None, &v4());
        let packets = wrap(&around, moving(&mut tcp4(), 6));
        let (outcome, left) = Stream::new(packets.clone()).lro().run_unchecked();
        assert_eq!((outcome.stats.swallowed, &left[1]), (4, &packets[5]), "{shim:?}");
    }
}

#[test]
fn acknowledgments_with_a_pending_checksum_collapse() {
    let packets: Vec<_> = moving(&mut tcp4(), 5).iter().map(|packet| prime(packet).unwrap()).collect();
    let stream = (0..5).fold(Stream::new(packets).lro(), |s, i| s.unit(i, Unit::Whole(Csum::Partial)));
    let outcome = stream.run_unchecked().0;
    assert_eq!((outcome.stats.swallowed, outcome.trains[1].offload.unit), (3, Unit::Whole(Csum::Partial)));
}

#[test]
fn many_flows_collapse_each_by_itself() {
    let mut senders: Vec<_> = (0..64).map(|flow| Sender::tcp(v4(), flow, 1, Vec::new())).collect();
    let packets: Vec<_> = (0..5).flat_map(|_| senders.iter_mut().map(|s| ack(s, STEP)).collect::<Vec<_>>()).collect();
    let outcome = Stream::new(packets).lro().run_unchecked().0;
    assert_eq!((outcome.stats.swallowed, outcome.sizes.len()), (64 * 3, 128));
}

#[test]
fn aggregated_acks_release_their_box_and_buffer() {
    // Frames as a receive ring has them, with padding that refers to the buffer.
    let mut gro = Gro::new(Config { profile: Profile::Lro, acks: true, ..Config::default() });
    let mut pool: Pool<Arc<[u8]>> = Pool::new(8);
    let mut sender = tcp4();
    let buffers: Vec<Arc<[u8]>> = (0..6)
        .map(|_| {
            let mut frame = Ethernet::default().wrap(&ack(&mut sender, STEP));
            frame.resize(60, 0);
            frame.into()
        })
        .collect();
    let (mut boxes, mut out) = (std::collections::BTreeSet::new(), 0);
    for buffer in &buffers {
        let mut packet = pool.take();
        boxes.insert(std::ptr::from_ref(&*packet) as usize);
        packet.load(Frag::all(buffer.clone()), Start::Ethernet, &Tunnels::NONE);
        gro.deliver(packet, Nanos(0), &mut pool, |packet, pool| {
            out += 1;
            pool.put(packet);
        });
    }
    gro.end_poll(Nanos(0), &mut pool, |packet, pool| {
        out += 1;
        pool.put(packet);
    });
    assert_eq!((out, gro.stats().swallowed, gro.held_packets()), (2, 4, 0));
    assert!(boxes.len() <= 2, "two boxes take turns");
    assert!(buffers.iter().all(|buffer| Arc::strong_count(buffer) == 1));
}
