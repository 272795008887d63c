//! Tests of flushing: each reason by itself; limits and time.

use std::collections::VecDeque;

use segue::gro::{Config, Flush, Gro};
use segue::packet::{Frag, Pool, Start, Tunnels, Unit};
use segue::time::Nanos;
use segue_testkit::build::{Ethernet, Ip, Tcp, V4};
use segue_testkit::flow::Sender;

use crate::bench::{Stream, between, complete, frames, run, tcp4, tcp6, udp4, udp6, v4};

/// Declares a test for each scenario, with the expected trains and flush counters, and a table of all scenarios.
macro_rules! flush {
    ($($name:ident: $reason:ident = $scenario:expr, $sizes:expr, $counts:expr;)+) => {
        const FLUSHES: &[(Flush, fn() -> Stream)] = &[$((Flush::$reason, || $scenario)),+];
        $(#[test] fn $name() {
            use Flush::*;
            let outcome = Stream::gives(&$scenario, &$sizes);
            assert_eq!(outcome.stats.flushes.iter().filter(|f| f.1 != 0).collect::<Vec<_>>(), $counts);
        })+
    };
}

flush! {
    a_train_of_the_most_packets_comes_out: Full =
        Stream::new(run(&mut tcp4(), 5)).config(|c| c.max_packets = 2), [2, 2, 1], [(Full, 2), (PollEnd, 1)];
    the_most_datagrams_are_64: Full = Stream::new(run(&mut udp4(), 65)), [64, 1], [(Full, 1), (PollEnd, 1)];
    a_train_that_the_next_would_overfill_comes_out: Full =
        Stream::new(run(&mut tcp6(), 5)).config(|c| c.max_bytes = 60 + 299), [2, 2, 1], [(Full, 2), (PollEnd, 1)];
    a_packet_with_no_room_for_another_is_not_held: Full =
        Stream::new(run(&mut tcp6(), 2)).config(|c| c.max_bytes = 60 + 100), [1, 1], [(Full, 2)];
    a_packet_with_room_for_a_shorter_one_is_held: Full =
        Stream::new(run(&mut tcp6(), 2)).config(|c| c.max_bytes = 60 + 199), [1, 1], [(Full, 1), (PollEnd, 1)];
    with_a_most_of_one_nothing_is_joined: Full =
        Stream::new(run(&mut udp6(), 2)).config(|c| c.max_udp_packets = 1), [1, 1], [(Full, 2)];
    a_short_segment_ends_the_train: Short = {
        let mut sender = tcp4();
        Stream::new([100, 100, 99, 100].map(|len| sender.send(len, 0).bytes()))
    }, [3, 1], [(Short, 1), (PollEnd, 1)];
    a_short_datagram_ends_the_train: Short = {
        let mut sender = udp6();
        Stream::new([100, 1, 100].map(|len| sender.send(len, 0).bytes()))
    }, [2, 1], [(Short, 1), (PollEnd, 1)];
    psh_closes_the_train: Push = ended(0x08), [3, 1], [(Push, 1), (PollEnd, 1)];
    fin_closes_the_train: Fin = ended(0x01), [3, 1], [(Fin, 1), (PollEnd, 1)];
    psh_on_the_first_packet_lets_nothing_join: Push = {
        let mut sender = tcp4();
        Stream::new([0x08, 0].map(|flags| sender.send(100, flags).bytes()))
    }, [1, 1], [(Push, 1), (PollEnd, 1)];
    fin_and_psh_together_are_a_fin: Fin = ended(0x09), [3, 1], [(Fin, 1), (PollEnd, 1)];
    what_does_not_fit_flushes: Mismatch = {
        let mut sender = tcp4();
        let first = sender.send(100, 0).bytes();
        sender.send(100, 0);
        Stream::new([first, sender.send(100, 0).bytes()])
    }, [1, 1], [(Mismatch, 1), (PollEnd, 1)];
    what_must_not_overtake_flushes: Order = between(tcp4(), |p| p.data.clear()), [1, 1, 1], [(Order, 1), (PollEnd, 1)];
    a_first_packet_with_a_wrong_checksum_is_found_late: BadChecksum = {
        let mut packets = run(&mut tcp4(), 3);
        packets[0][80] ^= 1;
        Stream::new(packets)
    }, [1, 2], [(BadChecksum, 1), (PollEnd, 1)];
    the_end_of_a_round_flushes: PollEnd = Stream::new(run(&mut tcp4(), 3)), [3], [(PollEnd, 1)];
    what_was_held_too_long_comes_out: Timeout =
        Stream { step: 60, ..Stream::new(run(&mut tcp4(), 5)).config(|c| c.hold = Nanos(100)) },
        [2, 2, 1], [(PollEnd, 1), (Timeout, 2)];
    a_full_table_lets_the_oldest_go: Evicted = {
        let flows = (1..4).flat_map(|flow| run(&mut Sender::tcp(v4(), flow, 1, Vec::new()), 2));
        Stream::new(flows).config(|c| c.max_flows = 2)
    }, [2, 2, 2], [(PollEnd, 2), (Evicted, 1)];
    with_too_much_held_the_oldest_goes: Pressure = {
        let mut senders = [1, 2, 3].map(|flow| Sender::tcp(v4(), flow, 1, Vec::new()));
        let frames = [0, 1, 1, 2, 0, 1].map(|flow: usize| senders[flow].send(100, 0).bytes());
        Stream::new(frames).config(|c| c.max_held_packets = 3)
    }, [1, 2, 1, 1, 1], [(PollEnd, 3), (Pressure, 2)];
}

#[test]
fn every_flush_is_provoked() {
    complete(FLUSHES.iter().map(|(reason, _)| *reason));
    for (reason, scenario) in FLUSHES {
        assert_ne!(scenario().run().stats.flushes.of(*reason), 0);
    }
}

#[test]
fn the_limit_on_bytes_counts_from_the_ip_header() {
    let bare = Stream::new(run(&mut tcp4(), 3)).config(|config| config.max_bytes = 40 + 300);
    bare.gives(&[3]);
    let link = Ethernet { tags: vec![(0x8100, 1)], ..Ethernet::default() };
    let framed = Stream::new(frames(&link, run(&mut tcp4(), 3))).ethernet();
    framed.config(|config| config.max_bytes = 40 + 300).gives(&[3]);
}

#[test]
fn colliding_flows_hold_no_more_than_the_table() {
    // One flow too many, repeatedly: each evicts the oldest.
    let packets: Vec<_> = (0..600).flat_map(|flow| run(&mut Sender::udp(v4(), flow), 1)).collect();
    let config = Config { max_flows: 5, ..Config::default() };
    let mut gro = Gro::new(config);
    let mut pool = Pool::new(8);
    for bytes in packets {
        let mut packet = pool.take();
        packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
        gro.push(packet, Nanos(0), &mut pool);
        assert!(gro.held() <= 5);
        while let Some(packet) = gro.pop() {
            pool.put(packet);
        }
    }
    assert_eq!(gro.stats().flushes.of(Flush::Evicted), 595);
}

#[test]
fn the_deadline_is_that_of_the_oldest_and_is_kept() {
    let mut gro = Gro::new(Config { hold: Nanos(100), ..Config::default() });
    let mut pool = Pool::new(8);
    let mut push = |gro: &mut Gro<Vec<u8>>, flow, now| {
        let mut packet = pool.take();
        let bytes = Sender::tcp(v4(), flow, 1, Vec::new()).send(100, 0).bytes();
        packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
        gro.push(packet, Nanos(now), &mut pool);
    };
    assert_eq!(gro.deadline(), None);
    push(&mut gro, 1, 1000);
    push(&mut gro, 2, 1050);
    assert_eq!(gro.deadline(), Some(Nanos(1100)));
    gro.expire(Nanos(1099));
    assert!(gro.pop().is_none());
    gro.expire(Nanos(1100));
    assert!(gro.pop().is_some() && gro.pop().is_none());
    assert_eq!(gro.deadline(), Some(Nanos(1150)));
    // A late timer, or a clock that jumped, releases everything.
    gro.expire(Nanos(u64::MAX));
    assert!(gro.pop().is_some());
    assert_eq!((gro.deadline(), gro.held()), (None, 0));
}

#[test]
fn one_hot_flow_keeps_no_other_from_leaving() {
    // A thousand packets of one flow between two of another, which leaves in time whatever the limits are.
    for (max_flows, max_held_packets) in [(256, 8192), (256, 16), (1, 8192), (2, 40)] {
        let mut gro = Gro::new(Config { hold: Nanos(5000), max_flows, max_held_packets, ..Config::default() });
        let mut pool = Pool::new(8);
        let (mut hot, mut cold) = (tcp4(), Sender::tcp(v4(), 2, 1, Vec::new()));
        let (mut waiting, mut left) = (VecDeque::new(), 0);
        for now in 0..20_000 {
            let is_cold = now % 1000 == 0;
            let sender = if is_cold { &mut cold } else { &mut hot };
            let mut packet = pool.take();
            packet.load(Frag::all(sender.send(100, 0).bytes()), Start::Ip, &Tunnels::NONE);
            waiting.extend(is_cold.then_some(now));
            gro.expire(Nanos(now));
            gro.push(packet, Nanos(now), &mut pool);
            assert!(gro.held_packets() <= max_held_packets);
            while let Some(packet) = gro.pop() {
                // The idle flow sends from port 40002.
                if packet.head.bytes()[21] == 0x42 {
                    left += packet.payload.len() / 100;
                    waiting.drain(..packet.payload.len() / 100);
                }
                pool.put(packet);
            }
            assert!(waiting.front().is_none_or(|&since| now - since <= 5000), "since {waiting:?} at {now}");
        }
        assert_eq!(left + waiting.len(), 20);
    }
}

#[test]
fn frames_of_1500_bytes_join_by_bytes_whatever_the_mtu_of_the_receiver() {
    // The Ethernet MTU of the receiver is no part of the configuration: 43 and more frames fit in 64 KiB.
    let packets = |count| run_of(&mut Sender::tcp(v4(), 1, 1, Tcp::timestamps(1, 2)), 1448, count);
    assert_eq!(Stream::new(packets(90)).run().sizes, [45, 45]);
    // A limit of packets derived from an MTU of 9000, as in inet_lro, closes a train after 7 and loses most of the
    // gain: six times as many trains, and so headers that a stack has to process.
    let most = 65_535 / 9000;
    let limited = Stream::new(packets(90)).config(|config| config.max_packets = most).run();
    assert_eq!((most, limited.sizes.len()), (7, 13));
    assert!(limited.sizes.iter().all(|&size| size <= 7));
    // Mixed sizes: room is kept for another segment of the same size, so that none is refused for lack of it.
    let mixed = Stream::new(run_of(&mut Sender::tcp(v4(), 1, 1, Vec::new()), 8960, 14)).run();
    assert_eq!(mixed.sizes, [7, 7]);
}

fn run_of(sender: &mut Sender, size: usize, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| sender.send(size, 0).bytes()).collect()
}

#[test]
fn a_packet_that_joins_does_not_prolong_the_hold() {
    let stream = Stream { step: 40, ..Stream::new(run(&mut tcp4(), 4)).config(|config| config.hold = Nanos(100)) };
    assert_eq!(stream.gives(&[3, 1]).stats.flushes.of(Flush::Timeout), 1);
}

#[test]
fn with_no_hold_time_everything_is_due_at_once() {
    let mut gro = Gro::new(Config::default());
    let mut pool = Pool::new(8);
    let mut packet = pool.take();
    packet.load(Frag::all(tcp4().send(100, 0).bytes()), Start::Ip, &Tunnels::NONE);
    gro.push(packet, Nanos(5), &mut pool);
    assert_eq!(gro.deadline(), None);
    gro.expire(Nanos(5));
    assert!(gro.pop().is_some_and(|packet| matches!(packet.offload.unit, Unit::Whole(_))));
    assert_eq!(gro.stats().flushes.of(Flush::PollEnd), 1);
}

#[test]
fn other_limits_begin_with_the_next_packet_and_what_is_held_comes_out_first() {
    let mut gro = Gro::new(Config { hold: Nanos(1000), ..Config::default() });
    let (mut pool, mut sender) = (Pool::new(8), tcp4());
    let mut push = |gro: &mut Gro<Vec<u8>>| {
        let mut packet = pool.take();
        packet.load(Frag::all(sender.send(100, 0).bytes()), Start::Ip, &Tunnels::NONE);
        gro.push(packet, Nanos(5), &mut pool);
    };
    let sizes = |gro: &mut Gro<Vec<u8>>| std::iter::from_fn(|| gro.pop()).map(|p| p.payload.len()).collect::<Vec<_>>();
    (0..3).for_each(|_| push(&mut gro));
    gro.reconfigure(Config { max_packets: 2, hold: Nanos(1000), ..Config::default() });
    assert_eq!((sizes(&mut gro), gro.held()), (vec![300], 0));
    (0..5).for_each(|_| push(&mut gro));
    assert_eq!((sizes(&mut gro), gro.held()), (vec![200, 200], 1));
    assert_eq!(gro.stats().packets, 8, "what was counted stays");
    // No configuration may be accepted here that a new engine would not accept, and the table keeps its size.
    gro.reconfigure(Config { max_packets: usize::MAX, max_flows: 7, acks: true, ..Config::default() });
    let Config { max_packets, max_flows, acks, .. } = *gro.config();
    assert_eq!((max_packets, max_flows, acks), (65_535, 256, false));
}

#[test]
fn a_flow_that_comes_back_after_eviction_stays_in_order() {
    let mut senders: Vec<_> = (0..3).map(|flow| Sender::tcp(Ip::V4(V4::new(1, 1, 2)), flow, 1, Vec::new())).collect();
    let packets: Vec<_> = [0, 1, 2, 0, 1, 2, 0].map(|flow| senders[flow].send(100, 0).bytes()).to_vec();
    let stream = Stream::new(packets.clone()).config(|config| config.max_flows = 2);
    let (_, left) = stream.run_unchecked();
    for flow in 0..3_u8 {
        let of_flow =
            |packets: &[Vec<u8>]| packets.iter().filter(|p| p[21] == 0x40 + flow).cloned().collect::<Vec<_>>();
        assert_eq!(of_flow(&left), of_flow(&packets), "flow {flow}");
    }
}

fn ended(flags: u8) -> Stream {
    let mut sender = tcp4();
    let mut packets: Vec<_> = [0, 0, flags].map(|flags| sender.send(100, flags).bytes()).to_vec();
    if flags & 1 != 0 {
        // A segment after a FIN begins another connection; the sequence number does not matter, since nothing is held.
        sender = Sender::tcp(v4(), 1, 1000, Vec::new());
    }
    packets.push(sender.send(100, 0).bytes());
    Stream::new(packets)
}
