//! Tests of the order of packets of several flows (RFC 8290); time passes only where a test advances it.

use super::*;

const TIMES: Times = Times { target: Nanos(5_000), interval: Nanos(100_000) };

fn queues(limit: usize) -> FlowQueues<(u64, u32)> {
    FlowQueues::new(Config { times: TIMES, limit })
}

fn never(packet: (u64, u32)) -> Signalled<(u64, u32)> {
    panic!("{packet:?} is signalled")
}

#[test]
fn a_flow_that_begins_passes_those_that_wait_until_it_has_sent_as_much() {
    let mut queues = queues(1 << 20);
    for number in 0..10 {
        queues.push((1, number), 1, 65_000, Nanos(0));
    }
    assert_eq!(queues.pop(Nanos(0), never), Some((1, 0)));
    queues.push((2, 0), 2, 84, Nanos(0));
    assert_eq!(queues.pop(Nanos(0), never), Some((2, 0)), "a ping passes the trains");
    // It does so until it has sent as much as the others in their turn; a flow that is newer comes before it then.
    for (flow, number, bytes) in [(2, 1, 50_000), (2, 2, 84), (3, 0, 84)] {
        queues.push((flow, number), flow, bytes, Nanos(0));
    }
    let order: Vec<_> = std::iter::from_fn(|| queues.pop(Nanos(0), never)).collect();
    assert_eq!(order[..4], [(2, 1), (3, 0), (1, 1), (2, 2)]);
    assert_eq!(order.len(), 12);
    assert!(queues.is_empty() && !queues.is_full());
}

#[test]
fn short_trains_of_a_flow_go_together_and_long_ones_alternate() {
    for (bytes, expected) in [(30_000, [1, 1, 2, 2, 1, 1, 2, 2]), (60_000, [1, 2, 1, 2, 1, 2, 1, 2])] {
        let mut queues = queues(usize::MAX);
        for number in 0..10 {
            for flow in [1, 2] {
                queues.push((flow, number), flow, bytes, Nanos(0));
            }
        }
        let order = [(); 8].map(|()| queues.pop(Nanos(0), never).map_or(0, |(flow, _)| flow));
        assert_eq!(order, expected, "{bytes} bytes");
    }
}

#[test]
fn flows_send_as_many_bytes_whatever_the_length_of_their_packets() {
    let mut queues = queues(usize::MAX);
    let lens = [(1, 64_000, 40), (2, 1_500, 500), (3, 9_000, 200)];
    for (flow, bytes, count) in lens {
        for number in 0..count {
            queues.push((flow, number), flow, bytes, Nanos(0));
        }
    }
    let mut sent = [0_i64; 4];
    for _ in 0..300 {
        let (flow, _) = queues.pop(Nanos(0), never).expect("all have more");
        sent[flow as usize] += lens[flow as usize - 1].1 as i64;
        if sent[1..].iter().all(|bytes| *bytes > 0) {
            let (most, least) = (sent[1..].iter().max().unwrap(), sent[1..].iter().min().unwrap());
            assert!(most - least <= 64_000 + QUANTUM, "{sent:?}");
        }
    }
    assert!(sent[1] > 256_000, "{sent:?}");
}

#[test]
fn packets_of_a_flow_keep_their_order_and_none_is_lost() {
    let mut queues = queues(1 << 20);
    let mut random = 7_u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut pushed, mut popped, mut signals) = ([0_u32; 40], [0_u32; 40], 0);
    let (mut waiting, mut bytes) = (0_usize, 0);
    for now in 0..200_000 {
        let now = Nanos(now * 500);
        if draw(100) < 52 && !queues.is_full() {
            let flow = draw(40);
            let len = [60, 1_500, 64_000][draw(3) as usize];
            queues.push((flow, pushed[flow as usize]), flow * 977, len, now);
            pushed[flow as usize] += 1;
            waiting += 1;
        } else {
            // Whatever is dropped or marked, the rest comes in order.
            let mut dropped = Vec::new();
            let signal = |packet: (u64, u32)| {
                signals += 1;
                if packet.1.is_multiple_of(2) {
                    return Signalled::Sent(packet);
                }
                dropped.push(packet);
                Signalled::Dropped
            };
            let sent = queues.pop(now, signal);
            for (flow, number) in dropped.into_iter().chain(sent) {
                assert_eq!(number, popped[flow as usize], "flow {flow}");
                popped[flow as usize] += 1;
                waiting -= 1;
            }
        }
        assert_eq!(queues.is_empty(), waiting == 0);
        bytes = bytes.max(queues.bytes);
    }
    while let Some((flow, number)) = queues.pop(Nanos(200_000 * 500), Signalled::Sent) {
        assert_eq!(number, popped[flow as usize]);
        popped[flow as usize] += 1;
    }
    assert_eq!(pushed, popped);
    assert!(signals > 100, "{signals}");
    assert!(bytes > 1 << 19 && bytes < (1 << 20) + 64_000, "{bytes}");
}

#[test]
fn no_memory_is_taken_before_packets_wait_nor_after_the_first_time() {
    let mut queues = queues(usize::MAX);
    assert_eq!((queues.flows.capacity(), queues.places.capacity()), (0, 0));
    for round in 0..10 {
        for number in 0..MOST_PACKETS as u64 {
            assert!(!queues.is_full());
            queues.push((number, 0), number, 100, Nanos(round));
        }
        assert!(queues.is_full(), "by the number of packets");
        assert_eq!((queues.flows.capacity(), queues.places.capacity()), (FLOWS, MOST_PACKETS));
        while queues.pop(Nanos(round), never).is_some() {}
    }
}

#[test]
fn the_flow_that_fills_the_queues_is_signalled_at_once_and_a_short_one_never() {
    let mut queues = queues(640_000);
    queues.push((2, 0), 2, 1_000, Nanos(0));
    for number in 0..11 {
        queues.push((1, number), 1, 64_000, Nanos(0));
    }
    assert!(queues.is_full());
    let mut signalled = Vec::new();
    let now = Nanos(TIMES.target.0);
    for _ in 0..3 {
        queues.pop(now, |packet| {
            signalled.push(packet);
            Signalled::Sent(packet)
        });
    }
    assert_eq!(signalled, [(1, 0)], "the interval is not over, but memory is");
}

/// Takes `count` packets when all have waited for the target, and `count` an interval later. Returns those that were
/// signalled.
fn signalled(queues: &mut FlowQueues<(u64, u32)>, count: usize) -> Vec<(u64, u32)> {
    let mut signalled = Vec::new();
    for now in [TIMES.target.0, TIMES.target.0 + TIMES.interval.0] {
        for _ in 0..count {
            queues.pop(Nanos(now), |packet| {
                signalled.push(packet);
                Signalled::Sent(packet)
            });
        }
    }
    signalled
}

#[test]
fn a_flow_is_not_signalled_as_long_as_its_window_is_a_few_trains() {
    for (trains, is_signalled) in [(TRAINS + 1, false), (TRAINS + 3, true)] {
        let mut queues = queues(usize::MAX);
        for number in 0..trains as u32 {
            queues.push((1, number), 1, 64_000, Nanos(0));
        }
        assert_eq!(!signalled(&mut queues, 1).is_empty(), is_signalled, "{trains} trains");
    }
}

#[test]
fn of_many_flows_one_is_signalled_that_has_more_than_its_share_of_the_limit() {
    // Three quarters of it are 4.5 trains for each of 16 flows.
    let mut queues = queues(16 * 6 * 64_000);
    for flow in 1..=16 {
        let trains = if flow == 1 { 8 } else { 4 };
        for number in 0..trains {
            queues.push((flow, number), flow, 64_000, Nanos(0));
        }
    }
    assert!(!queues.is_full());
    assert_eq!(signalled(&mut queues, 16), [(1, 1)]);
}

#[test]
fn a_flow_that_fills_the_queues_with_short_packets_is_signalled_at_once() {
    let mut queues = queues(usize::MAX);
    queues.push((9, 0), 9, 64_000, Nanos(0));
    queues.pop(Nanos(0), |_| unreachable!());
    for number in 0..MOST_PACKETS as u32 {
        queues.push((1, number), 1, 300, Nanos(0));
    }
    assert!(queues.is_full());
    assert_eq!(signalled(&mut queues, 1)[..1], [(1, 0)]);
}

#[test]
fn a_flow_of_a_few_trains_is_signalled_where_they_wait_for_long() {
    for (waited, is_signalled) in [(LATE * TIMES.target.0, true), (TIMES.target.0, false)] {
        let mut queues = queues(usize::MAX);
        for number in 0..4 {
            queues.push((1, number), 1, 64_000, Nanos(0));
        }
        let mut signalled = 0;
        for now in [waited, waited + TIMES.interval.0] {
            queues.pop(Nanos(now), |packet| {
                signalled += 1;
                Signalled::Sent(packet)
            });
        }
        assert_eq!(signalled == 1, is_signalled, "{waited}");
    }
}
