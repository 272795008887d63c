use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use segue::packet::{Frag, Outer, Packet};

use super::*;
use crate::batch::{Burst, RxBatch, TxBatch};
use crate::page::{Page, PagePool};
use crate::port::{Drop, Fallback, OffloadState, Polled, Port, Sent};
use crate::testing::{self, bytes};

mod adopt;
mod pending;
mod zero_checksum;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
/// Number of bytes before a packet in place of the outer IP and UDP headers, which are never sent.
const SKIP: usize = 28;

/// First bytes of a GUE datagram with IPv4 inside.
const GUE: [u8; 4] = [0x00, 0x04, 0x00, 0x00];
/// First bytes of a GUE datagram with the remote checksum option.
const GUE_REMCSUM: [u8; 12] = [0x02, 0x04, 0x00, 0x01, 0x80, 0, 0, 0, 0, 20, 0, 36];

fn receiver(ip: IpAddr, change: impl Fn(&mut UdpConfig)) -> UdpPort {
    // A receiver sends nothing; its peer only has to be routable.
    let mut config = UdpConfig::new(ip, 0, SocketAddr::new(ip, 9));
    config.source = Source::Fixed(0);
    change(&mut config);
    UdpPort::open(config).unwrap()
}

fn sender(to: &UdpPort, change: impl Fn(&mut UdpConfig)) -> UdpPort {
    let mut config = UdpConfig::new(to.listen().ip(), 0, to.listen());
    change(&mut config);
    UdpPort::open(config).unwrap()
}

fn outer(slot: u16, tos: u8) -> Outer {
    Outer { slot, to: 0, tos, ttl: 64, df: true, skip: SKIP as u16 }
}

/// Builds a packet whose datagram is `head` and `payload`.
fn packet(pages: &mut PagePool, head: &[u8], payload: &[u8], outer: Outer) -> Box<Packet<Page>> {
    let mut packet = Box::new(Packet::default());
    packet.head.set(&[&[0xee; SKIP], head].concat());
    let mut page = pages.take().unwrap();
    page.bytes_mut()[..payload.len()].copy_from_slice(payload);
    packet.payload.push(Frag::all(page.freeze(payload.len())));
    packet.outer = Some(outer);
    packet
}

fn send_all(port: &mut UdpPort, batch: &mut TxBatch) {
    let end = Instant::now() + Duration::from_secs(5);
    while !batch.is_empty() {
        port.transmit(batch).unwrap();
        assert!(Instant::now() < end, "nothing was taken for 5 s");
    }
    batch.recycle(&mut segue::packet::Pool::new(0));
}

/// Receives until `count` datagrams have arrived or none arrives for a while.
fn collect(port: &mut UdpPort, into: &mut RxBatch, count: usize) -> VecDeque<(Vec<u8>, Burst)> {
    let mut seen = VecDeque::new();
    let end = Instant::now() + Duration::from_secs(3);
    while seen.len() < count && Instant::now() < end {
        port.receive(into, 64).unwrap();
        if into.bursts.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        for burst in into.bursts.drain(..) {
            let pages: Vec<Page> = burst.datagrams().collect();
            seen.extend(pages.iter().map(|page| (page.as_ref().to_vec(), burst.clone())));
        }
    }
    seen
}

/// Returns the runs that datagrams of these lengths form by the rule of UDP_SEGMENT: equal lengths, except that the
/// last may be shorter.
fn expected_runs(lens: &[usize], most: usize, bytes: usize) -> usize {
    let (mut runs, mut at) = (0, 0);
    while at < lens.len() {
        let (first, mut sum, mut n) = (lens[at], 0, 0);
        while at < lens.len() && n < most && lens[at] <= first && sum + lens[at] <= bytes {
            (sum, n) = (sum + lens[at], n + 1);
            at += 1;
            if lens[at - 1] < first {
                break;
            }
        }
        runs += 1;
    }
    runs
}

#[test]
fn mixed_datagrams_arrive_in_order_with_their_bytes_and_tos_over_both_families() {
    let lens: Vec<usize> =
        [vec![1200; 70], vec![300], vec![1200; 3], vec![1201, 1201, 17, 17, 17, 5, 9000, 1400, 1400, 1]].concat();
    for ip in [V4, V6] {
        let mut rx = receiver(ip, |_| {});
        let mut tx = sender(&rx, |_| {});
        let (mut pages, mut batch, mut into) = (PagePool::new(256), TxBatch::new(), RxBatch::new(256));
        for (seed, len) in lens.iter().enumerate() {
            let packet = packet(&mut pages, &GUE, &bytes(len - 1, seed), outer(0, 0x8a));
            assert_eq!(batch.push(packet, tx.limits()).unwrap(), 1);
        }
        send_all(&mut tx, &mut batch);
        let seen = collect(&mut rx, &mut into, lens.len());
        assert_eq!(seen.len(), lens.len(), "{ip}");
        for (seed, (got, burst)) in seen.iter().enumerate() {
            assert_eq!(got[..4], GUE);
            assert_eq!(got[4..], bytes(lens[seed] - 1, seed), "{ip}: datagram {seed}");
            assert_eq!((burst.tos, burst.peer), (0x8a, tx.path(0, 0).unwrap().source));
        }
        let datagram_lens: Vec<usize> = lens.iter().map(|len| len + 3).collect();
        let most_bytes = if ip.is_ipv4() { 65_507 } else { 65_527 };
        let runs = expected_runs(&datagram_lens, tx.max_segments, most_bytes) as u64;
        let out = tx.counters().tx;
        assert_eq!((out.packets, out.segments, out.calls), (runs, lens.len() as u64, 1), "{ip}");
        assert_eq!(out.bytes, datagram_lens.iter().sum::<usize>() as u64);
        assert_eq!(rx.counters().rx.segments, lens.len() as u64);
        assert!(rx.counters().rx.packets < lens.len() as u64 / 2, "runs arrive as bursts");
        assert_eq!(rx.counters().drops.total() + tx.counters().drops.total(), 0);
    }
}

#[test]
fn a_train_that_was_split_for_the_port_leaves_in_one_message() {
    use segue::checksum::{Field, pseudo_v4};
    use segue::packet::{Csum, Gso, GsoKind, Start, TrainCsum, Tunnels, Unit};
    let mut rx = receiver(V4, |config| config.carries = Carries::Other);
    let mut tx = sender(&rx, |_| {});
    let (mut batch, mut into, mut pages) = (TxBatch::new(), RxBatch::new(8), PagePool::new(2));
    // A plain UDP/IPv4 train; nothing is skipped, so that whole inner packets come out.
    let data = bytes(10_500, 3);
    let mut packet_bytes = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    let length = (28 + data.len()) as u16;
    packet_bytes[2..4].copy_from_slice(&length.to_be_bytes());
    packet_bytes.extend([0, 7, 0, 9]);
    packet_bytes.extend((length - 20).to_be_bytes());
    let sum = pseudo_v4([198, 18, 0, 1], [198, 18, 0, 2], 17, usize::from(length) - 20);
    packet_bytes.extend(Field::primed(sum).value().to_be_bytes());
    packet_bytes.extend(&data);
    let mut page = pages.take().unwrap();
    page.bytes_mut()[..packet_bytes.len()].copy_from_slice(&packet_bytes);
    let mut train = Box::new(Packet::default());
    train.load(Frag::all(page.freeze(packet_bytes.len())), Start::Ip, &Tunnels::NONE);
    assert_eq!(train.offload.unit, Unit::Whole(Csum::Unknown));
    let gso = Gso { kind: GsoKind::Udp, size: 1000, fixed_ids: 0 };
    train.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
    train.outer = Some(Outer { skip: 0, ..outer(0, 0) });
    assert_eq!(batch.push(train, tx.limits()).unwrap(), 11);
    assert_eq!(batch.take_checksummed(), 10_500);
    send_all(&mut tx, &mut batch);
    let seen = collect(&mut rx, &mut into, 11);
    let joined: Vec<u8> = seen.iter().flat_map(|(datagram, _)| datagram[28..].to_vec()).collect();
    assert_eq!(joined, data);
    assert_eq!((tx.counters().tx.calls, tx.counters().tx.packets), (1, 1));
    assert_eq!((rx.counters().rx.packets, rx.counters().rx.trains), (1, 1));
}

#[test]
fn slots_have_ports_of_their_own_and_each_keeps_its_order() {
    let mut rx = receiver(V4, |_| {});
    let mut tx = sender(&rx, |_| {});
    assert_eq!(tx.slots(), AUTO_SLOTS);
    let (mut pages, mut batch, mut into) = (PagePool::new(128), TxBatch::new(), RxBatch::new(64));
    for seed in 0..96u16 {
        let packet = packet(&mut pages, &GUE, &bytes(500, seed.into()), outer(seed * 5, 0));
        batch.push(packet, tx.limits()).unwrap();
    }
    send_all(&mut tx, &mut batch);
    let seen = collect(&mut rx, &mut into, 96);
    assert_eq!(seen.len(), 96);
    for slot in 0..16u16 {
        let source = tx.path(slot, 0).unwrap().source;
        let ours: Vec<&Vec<u8>> = seen.iter().filter(|(_, burst)| burst.peer == source).map(|(got, _)| got).collect();
        let seeds = (0..96u16).filter(|seed| seed * 5 % 16 == slot);
        let expected: Vec<Vec<u8>> = seeds.map(|seed| [&GUE[..], &bytes(500, seed.into())].concat()).collect();
        assert_eq!(ours, expected.iter().collect::<Vec<_>>(), "slot {slot}");
    }
    assert_eq!((tx.counters().tx.calls, tx.counters().tx.packets), (16, 16));
}

#[test]
fn remcsum_without_an_outer_checksum_is_kept_out_and_counted() {
    for ip in [V4, V6] {
        let mut rx = receiver(ip, |config| config.zero_checksum_v6 = true);
        let mut zero = sender(&rx, |config| config.checksum = Checksum::Zero);
        let mut full = sender(&rx, |_| {});
        assert_eq!(zero.offloads()[0], ("udp_segment", OffloadState::Off));
        let (mut pages, mut batch, mut into) = (PagePool::new(64), TxBatch::new(), RxBatch::new(64));
        let remcsum = [&GUE_REMCSUM[..], &bytes(300, 1)].concat();
        let private = [&[0x01, 4, 0, 1, 0, 0, 0, 0][..], &bytes(40, 2)].concat();
        let version_1 = [&[0x45, 4, 0, 1, 0x80, 0, 0, 0][..], &bytes(40, 3)].concat();
        let passes = [
            [&GUE[..], &bytes(300, 4)].concat(),
            private,
            version_1,
            // Too short for the private flags: not filtered, and not lost to a load past the end.
            GUE_REMCSUM[..7].to_vec(),
            GUE.to_vec(),
            GUE[..3].to_vec(),
            GUE_REMCSUM[..2].to_vec(),
        ];
        for datagram in [&remcsum, &remcsum].into_iter().chain(&passes).chain([&remcsum]) {
            batch.push(packet(&mut pages, &[], datagram, outer(0, 0)), zero.limits()).unwrap();
        }
        send_all(&mut zero, &mut batch);
        let seen = collect(&mut rx, &mut into, passes.len());
        let got: Vec<&Vec<u8>> = seen.iter().map(|(datagram, _)| datagram).collect();
        assert_eq!(got, passes.iter().collect::<Vec<_>>(), "{ip}");
        assert_eq!(zero.counters().tx.packets, passes.len() as u64 + 3, "one datagram a message");

        batch.push(packet(&mut pages, &[], &remcsum, outer(0, 0)), full.limits()).unwrap();
        batch.push(packet(&mut pages, &[], &remcsum, outer(0, 0)), full.limits()).unwrap();
        send_all(&mut full, &mut batch);
        let seen = collect(&mut rx, &mut into, 2);
        assert_eq!(seen.iter().map(|(datagram, _)| datagram).collect::<Vec<_>>(), [&remcsum, &remcsum], "{ip}");
        assert_eq!(rx.counters().drops.of(Drop::RemcsumNoOuterCsum), 3, "{ip}");
        assert_eq!(rx.counters().drops.total(), 3, "{ip}");
    }
}

#[test]
fn a_real_datagram_of_the_markers_length_is_not_taken_for_one() {
    for ip in [V4, V6] {
        let mut rx = receiver(ip, |_| {});
        let plain = UdpSocket::bind(SocketAddr::new(ip, 0)).unwrap();
        plain.send_to(&[0x02], rx.listen()).unwrap();
        plain.send_to(&[], rx.listen()).unwrap();
        plain.send_to(&GUE, rx.listen()).unwrap();
        let seen = collect(&mut rx, &mut RxBatch::new(8), 1);
        assert_eq!(seen[0].0, GUE);
        assert_eq!((rx.counters().drops.of(Drop::Empty), rx.counters().drops.total()), (2, 2));
    }
}

#[test]
fn a_refused_run_is_resent_plainly_at_once_and_runs_are_given_up() {
    for (errno, fallback) in [(libc::EIO, Fallback::UdpSegmentIo), (libc::EINVAL, Fallback::UdpSegmentInvalid)] {
        let mut rx = receiver(V4, |_| {});
        let mut tx = sender(&rx, |_| {});
        tx.inject = match errno {
            libc::EIO => Some(|attempt| (attempt.segments > 1).then_some(libc::EIO)),
            _ => Some(|attempt| (attempt.segments > 1).then_some(libc::EINVAL)),
        };
        let (mut pages, mut batch, mut into) = (PagePool::new(64), TxBatch::new(), RxBatch::new(64));
        // Two runs, of which the second is scheduled before the first is refused.
        for seed in 0..40 {
            let len = if seed < 20 { 700 } else { 900 };
            batch.push(packet(&mut pages, &GUE, &bytes(len, seed), outer(0, 0)), tx.limits()).unwrap();
        }
        send_all(&mut tx, &mut batch);
        let seen = collect(&mut rx, &mut into, 40);
        assert_eq!(seen.len(), 40);
        for (seed, (got, _)) in seen.iter().enumerate() {
            assert_eq!(got[4..], bytes(if seed < 20 { 700 } else { 900 }, seed), "in order");
        }
        assert_eq!(tx.counters().fallbacks.of(fallback), 1);
        assert_eq!((tx.counters().fallbacks.total(), tx.counters().drops.total()), (1, 0));
        assert_eq!(tx.offloads()[0], ("udp_segment", OffloadState::Refused(errno)));
        assert_eq!(tx.counters().tx.calls, 41, "one refused, forty plain");
    }
}

#[test]
fn an_error_that_plain_sends_meet_too_is_not_blamed_on_runs() {
    let rx = receiver(V4, |_| {});
    let mut tx = sender(&rx, |_| {});
    tx.inject = Some(|_| Some(libc::EINVAL));
    let (mut pages, mut batch) = (PagePool::new(8), TxBatch::new());
    for seed in 0..4 {
        batch.push(packet(&mut pages, &GUE, &bytes(100, seed), outer(0, 0)), tx.limits()).unwrap();
    }
    send_all(&mut tx, &mut batch);
    assert_eq!(tx.counters().drops.of(Drop::Refused), 4);
    assert_eq!(tx.counters().fallbacks.total(), 0);
    assert_eq!(tx.offloads()[0], ("udp_segment", OffloadState::On));
}

#[test]
fn what_the_kernel_lost_is_counted_and_not_tried_again() {
    for (errno, reason) in [(libc::ENOBUFS, Drop::QueueFull), (libc::ENOMEM, Drop::NoMemory)] {
        let mut rx = receiver(V4, |_| {});
        let mut tx = sender(&rx, |_| {});
        let (mut pages, mut batch, mut into) = (PagePool::new(64), TxBatch::new(), RxBatch::new(64));
        let mut push = |batch: &mut TxBatch, tx: &UdpPort, seeds: std::ops::Range<usize>| {
            for seed in seeds {
                // Two runs and a single datagram.
                let len = [700, 900, 1000][seed / 10 % 3];
                batch.push(packet(&mut pages, &GUE, &bytes(len, seed), outer(0, 0)), tx.limits()).unwrap();
            }
        };
        push(&mut batch, &tx, 0..21);
        tx.inject = match errno {
            libc::ENOBUFS => Some(|_| Some(libc::ENOBUFS)),
            _ => Some(|_| Some(libc::ENOMEM)),
        };
        // The socket stays writable, so waiting for it would not end.
        assert_eq!(tx.transmit(&mut batch).unwrap(), Sent::All, "{reason:?}");
        assert_eq!((batch.len(), tx.counters().blocked, tx.counters().tx.calls), (0, 0, 3));
        assert_eq!((tx.counters().drops.of(reason), tx.counters().drops.total()), (21, 21));
        tx.inject = None;
        push(&mut batch, &tx, 0..21);
        send_all(&mut tx, &mut batch);
        assert_eq!(collect(&mut rx, &mut into, 21).len(), 21);
        assert_eq!(tx.offloads()[0], ("udp_segment", OffloadState::On), "{reason:?}");
    }
}

#[test]
fn a_full_queue_blocks_and_loses_nothing() {
    let mut rx = receiver(V4, |_| {});
    let mut tx = sender(&rx, |_| {});
    let (mut pages, mut batch, mut into) = (PagePool::new(64), TxBatch::new(), RxBatch::new(64));
    for seed in 0..20 {
        batch.push(packet(&mut pages, &GUE, &bytes(100 + seed, seed), outer(3, 0)), tx.limits()).unwrap();
    }
    tx.inject = Some(|_| Some(libc::EAGAIN));
    assert_eq!(tx.transmit(&mut batch).unwrap(), Sent::Blocked);
    assert_eq!((batch.len(), tx.counters().blocked), (20, 1));
    tx.inject = None;
    assert_eq!(tx.transmit(&mut batch).unwrap(), Sent::All);
    assert_eq!(collect(&mut rx, &mut into, 20).len(), 20);
}

#[test]
fn datagrams_too_long_for_runs_are_fragmented_and_df_ones_counted() {
    let Some(()) = testing::namespace() else { return };
    testing::ip("link set lo mtu 1500");
    for (ip, is_older) in [(V4, false), (V6, false), (V4, true), (V6, true)] {
        let mut rx = receiver(ip, |_| {});
        let mut tx = sender(&rx, |_| {});
        if is_older {
            tx.inject = Some(|attempt| (attempt.segments > 1).then_some(libc::EINVAL));
        }
        let (mut pages, mut batch, mut into) = (PagePool::new(64), TxBatch::new(), RxBatch::new(64));
        for round in 0..2 {
            for seed in 0..6 {
                let outer = Outer { df: false, ..outer(0, 0) };
                batch.push(packet(&mut pages, &GUE, &bytes(2000, seed), outer), tx.limits()).unwrap();
            }
            send_all(&mut tx, &mut batch);
            let seen = collect(&mut rx, &mut into, 6);
            assert_eq!(seen.len(), 6, "{ip}");
            for (seed, (got, _)) in seen.iter().enumerate() {
                assert_eq!(got[4..], bytes(2000, seed));
            }
            let counters = tx.counters();
            assert_eq!(counters.fallbacks.of(Fallback::UdpSegmentSize), 1, "{ip}: not tried again in round {round}");
            assert_eq!((counters.fallbacks.total(), counters.drops.total()), (1, 0), "{ip}");
        }
        assert_eq!(tx.offloads()[0], ("udp_segment", OffloadState::On));
        for seed in 0..3 {
            batch.push(packet(&mut pages, &GUE, &bytes(2000, seed), outer(0, 0)), tx.limits()).unwrap();
        }
        batch.push(packet(&mut pages, &GUE, &bytes(1000, 9), outer(0, 0)), tx.limits()).unwrap();
        send_all(&mut tx, &mut batch);
        assert_eq!(collect(&mut rx, &mut into, 1)[0].0[4..], bytes(1000, 9));
        assert_eq!((tx.counters().drops.of(Drop::TooBig), tx.counters().drops.total()), (3, 3), "{ip}");
    }
}

#[test]
fn a_socket_that_sends_nothing_does_not_keep_the_path_mtu_of_a_route_that_is_gone() {
    let Some(()) = testing::namespace() else { return };
    for (near, rest, far) in [("198.18.0.1", "/32", "198.18.0.2"), ("2001:db8::1", "/64 nodad", "2001:db8::2")] {
        testing::ip(&format!("addr add dev lo {near}{rest}"));
        testing::ip(&format!("route add {far} dev lo mtu 1300"));
        let near: IpAddr = near.parse().unwrap();
        if let IpAddr::V6(near) = near {
            testing::wait_for_local(near);
        }
        let port = UdpPort::open(UdpConfig::new(near, 0, SocketAddr::new(far.parse().unwrap(), 9))).unwrap();
        for mtu in [1300, 1400, 1350] {
            testing::ip(&format!("route change {far} dev lo mtu {mtu}"));
            assert_eq!(port.path_mtu(0), Some(mtu), "{far}");
        }
    }
}

#[test]
fn the_error_of_an_earlier_datagram_costs_no_datagram() {
    let target = receiver(V4, |_| {});
    let mut tx = sender(&target, |_| {});
    let address = target.listen();
    drop(target);
    let (mut pages, mut batch) = (PagePool::new(8), TxBatch::new());
    batch.push(packet(&mut pages, &GUE, &bytes(10, 1), outer(0, 0)), tx.limits()).unwrap();
    send_all(&mut tx, &mut batch);
    // The port-unreachable message for the first datagram waits on the socket; the receiver is back.
    assert!(testing::wait_for_error(tx.slots[0].fd.as_fd(), Duration::from_secs(20)).unwrap());
    let back = UdpSocket::bind(address).unwrap();
    back.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    batch.push(packet(&mut pages, &GUE, &bytes(10, 2), outer(0, 0)), tx.limits()).unwrap();
    send_all(&mut tx, &mut batch);
    let mut got = [0; 64];
    assert_eq!(back.recv(&mut got).unwrap(), 14);
    assert_eq!(got[4..14], bytes(10, 2));
    assert_eq!((tx.counters().fallbacks.of(Fallback::PendingError), tx.counters().drops.total()), (1, 0));
}

#[test]
fn an_exhausted_page_pool_stops_reading_and_loses_nothing() {
    let mut rx = receiver(V4, |_| {});
    let mut tx = sender(&rx, |_| {});
    let (mut pages, mut batch, mut into) = (PagePool::new(8), TxBatch::new(), RxBatch::new(1));
    for seed in 0..4 {
        // Different lengths, so that each is a receive of its own, and long enough for two to fill a page.
        batch.push(packet(&mut pages, &GUE, &bytes(60_000 + seed, seed), outer(0, 0)), tx.limits()).unwrap();
    }
    send_all(&mut tx, &mut batch);
    assert_eq!(rx.receive(&mut into, 64).unwrap(), Polled::Starved);
    let first = into.bursts.len();
    assert!((1..4).contains(&first), "{first}");
    assert_eq!(into.pages.exhausted(), 1);
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for _ in 0..4 {
        seen.extend(into.bursts.drain(..).map(|burst| burst.page.as_ref().to_vec()));
        rx.receive(&mut into, 64).unwrap();
    }
    let expected: Vec<Vec<u8>> = (0..4).map(|seed| [&GUE[..], &bytes(60_000 + seed, seed)].concat()).collect();
    assert_eq!(seen, expected);
}

#[test]
fn small_datagrams_of_many_lengths_share_system_calls() {
    let mut rx = receiver(V6, |_| {});
    let mut tx = sender(&rx, |_| {});
    let (mut pages, mut batch, mut into) = (PagePool::new(256), TxBatch::new(), RxBatch::new(64));
    for seed in 0..120 {
        batch.push(packet(&mut pages, &GUE, &bytes(20 + seed, seed), outer(0, 0)), tx.limits()).unwrap();
    }
    send_all(&mut tx, &mut batch);
    let seen = collect(&mut rx, &mut into, 120);
    for (seed, (got, _)) in seen.iter().enumerate() {
        assert_eq!(got[4..], bytes(20 + seed, seed));
    }
    drop(seen);
    assert!(rx.counters().rx.calls < 30, "{}", rx.counters().rx.calls);
    assert!(tx.counters().tx.calls <= 2, "{}", tx.counters().tx.calls);
    assert_eq!(into.pages.in_use(), rx.receiver_pages(), "only what the port keeps ready");
}

#[test]
fn a_burst_that_comes_alone_is_received_with_one_call() {
    for ip in [V4, V6] {
        let mut rx = receiver(ip, |_| {});
        let mut tx = sender(&rx, |_| {});
        let (mut pages, mut batch, mut into) = (PagePool::new(40), TxBatch::new(), RxBatch::new(8));
        for at in 0..20 {
            batch.push(packet(&mut pages, &[], &bytes(1000, at), outer(0, 0)), tx.limits()).unwrap();
        }
        send_all(&mut tx, &mut batch);
        assert!(testing::wait_for_input(rx.fd(), Duration::from_secs(20)).unwrap());
        assert_eq!(rx.receive(&mut into, 64).unwrap(), Polled::Idle);
        let datagrams: usize = into.bursts.iter().map(Burst::segments).sum();
        assert_eq!((into.bursts.len(), datagrams, rx.counters().rx.calls), (1, 20, 1), "{ip}");
    }
}

#[test]
fn plain_mode_makes_one_system_call_for_each_datagram() {
    let mut rx = receiver(V4, |config| config.offloads = UdpOffloads::None);
    let mut tx = sender(&rx, |config| config.offloads = UdpOffloads::None);
    let (mut pages, mut batch, mut into) = (PagePool::new(64), TxBatch::new(), RxBatch::new(64));
    for seed in 0..30 {
        batch.push(packet(&mut pages, &GUE, &bytes(800, seed), outer(0, 0)), tx.limits()).unwrap();
    }
    send_all(&mut tx, &mut batch);
    assert_eq!(collect(&mut rx, &mut into, 30).len(), 30);
    assert_eq!((tx.counters().tx.calls, tx.counters().tx.packets, tx.counters().tx.trains), (30, 30, 0));
    assert!(rx.counters().rx.calls >= 30);
    assert_eq!((rx.counters().rx.packets, rx.counters().rx.trains), (30, 0));
}

#[test]
fn what_the_kernel_drops_on_a_full_socket_is_counted() {
    let mut rx = receiver(V4, |config| config.buffer_len = 20_000);
    let mut tx = sender(&rx, |_| {});
    let (mut pages, mut batch, mut into) = (PagePool::new(256), TxBatch::new(), RxBatch::new(64));
    for seed in 0..200 {
        batch.push(packet(&mut pages, &GUE, &bytes(1000 + seed, seed), outer(0, 0)), tx.limits()).unwrap();
    }
    send_all(&mut tx, &mut batch);
    let seen = collect(&mut rx, &mut into, 200).len();
    assert!(seen < 200, "the buffer was meant to overflow");
    assert_eq!(rx.counters().drops.of(Drop::SocketOverflow), 200 - seen as u64);
}

#[test]
fn the_receiving_port_can_be_the_sending_one() {
    let mut far = receiver(V4, |_| {});
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut near = sender(&far, |config| {
        config.port = probe;
        config.source = Source::Fixed(probe);
    });
    assert_eq!(near.path(0, 0).unwrap().source, near.listen());
    let (mut pages, mut batch, mut into) = (PagePool::new(8), TxBatch::new(), RxBatch::new(8));
    batch.push(packet(&mut pages, &GUE, &bytes(10, 1), outer(0, 0)), near.limits()).unwrap();
    send_all(&mut near, &mut batch);
    assert_eq!(collect(&mut far, &mut into, 1)[0].1.peer, near.listen());
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.send_to(&GUE, near.listen()).unwrap();
    assert_eq!(collect(&mut near, &mut into, 1)[0].0, GUE);
}

#[test]
fn sending_sockets_keep_nothing_that_is_sent_to_them() {
    let far = receiver(V4, |_| {});
    let near = sender(&far, |config| config.source = Source::Fixed(0));
    let source = near.path(0, 0).unwrap().source;
    let peer = UdpSocket::from(far.rx.try_clone().unwrap());
    peer.send_to(b"unasked", source).unwrap();
    // The last field of a socket's line counts its drops (proc(5), net/udp).
    let local = format!(":{:04X}", source.port());
    let begin = Instant::now();
    let is_dropped = |table: String| {
        let mut lines = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        lines.any(|fields| fields[1].ends_with(&local) && fields.last() == Some(&"1"))
    };
    while !is_dropped(std::fs::read_to_string("/proc/thread-self/net/udp").unwrap()) {
        assert!(begin.elapsed() < Duration::from_secs(20), "the datagram was not dropped");
        std::thread::sleep(Duration::from_millis(1));
    }
    let socket = UdpSocket::from(near.slots[0].fd.try_clone().unwrap());
    assert_eq!(socket.recv(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let held = receiver(V4, |_| {});
    let config = UdpConfig::new(V4, held.listen().port(), SocketAddr::new(V4, 9));
    let error = UdpPort::open(config).unwrap_err();
    assert!(matches!(error, OpenError::InUse(address) if address == held.listen()), "{error}");
    let error = UdpPort::open(UdpConfig::new(V4, 0, SocketAddr::new(V6, 9))).unwrap_err();
    assert!(matches!(error, OpenError::Families), "{error}");
    let elsewhere: IpAddr = "198.18.255.254".parse().unwrap();
    let error = UdpPort::open(UdpConfig::new(elsewhere, 0, SocketAddr::new(V4, 9))).unwrap_err();
    assert!(matches!(error, OpenError::NotLocal(_)), "{error}");
}

#[test]
fn a_listener_on_every_address_says_where_a_burst_went() {
    let mut rx = receiver(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |config| {
        config.peer = SocketAddr::new(V4, 9);
        config.want_ttl = true;
    });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_ttl(17).unwrap();
    socket.send_to(&GUE, ("127.0.0.1", rx.listen().port())).unwrap();
    let seen = collect(&mut rx, &mut RxBatch::new(4), 1);
    assert_eq!((seen[0].1.local, seen[0].1.ttl), (Some(V4), Some(17)));
}

#[test]
fn ttl_and_tos_of_a_packet_go_with_it() {
    for ip in [V4, V6] {
        let mut rx = receiver(ip, |config| config.want_ttl = true);
        let mut tx = sender(&rx, |config| config.tos = 0x10);
        let (mut pages, mut batch, mut into) = (PagePool::new(8), TxBatch::new(), RxBatch::new(8));
        let fields = [(0x10, 64), (0x10, 9), (0x03, 9), (0x03, 0), (0x10, 64)];
        for (tos, ttl) in fields {
            let outer = Outer { ttl, ..outer(0, tos) };
            batch.push(packet(&mut pages, &GUE, &bytes(50, 0), outer), tx.limits()).unwrap();
        }
        send_all(&mut tx, &mut batch);
        let seen = collect(&mut rx, &mut into, fields.len());
        let got: Vec<(u8, u8)> = seen.iter().map(|(_, burst)| (burst.tos, burst.ttl.unwrap())).collect();
        assert_eq!(got, fields.map(|(tos, ttl)| (tos, if ttl == 0 { 64 } else { ttl })), "{ip}");
        assert_eq!((tx.counters().tx.packets, tx.counters().tx.calls), (5, 1), "five runs, one call");
    }
}

#[test]
fn after_warm_up_nothing_is_allocated() {
    let mut rx = receiver(V4, |_| {});
    let mut tx = sender(&rx, |_| {});
    let (mut batch, mut into) = (TxBatch::new(), RxBatch::new(64));
    let data = bytes(1400, 1);
    let mut round = |large: bool| {
        for seed in 0..60u16 {
            let mut packet = into.pool.take();
            packet.head.set(&[0xee; SKIP]);
            let mut page = into.pages.take().unwrap();
            let len = if large { data.len() } else { 40 + usize::from(seed) };
            page.bytes_mut()[..len].copy_from_slice(&data[..len]);
            packet.payload.push(Frag::all(page.freeze(len)));
            packet.outer = Some(outer(seed % 3, (seed % 2) as u8));
            batch.push(packet, tx.limits()).unwrap();
        }
        while tx.transmit(&mut batch).unwrap() != Sent::All {}
        batch.recycle(&mut into.pool);
        let (end, mut seen) = (Instant::now() + Duration::from_secs(3), 0);
        while seen < 60 && Instant::now() < end {
            rx.receive(&mut into, 64).unwrap();
            seen += into.bursts.drain(..).map(|burst| burst.segments()).sum::<usize>();
        }
        assert_eq!(seen, 60);
    };
    for large in [true, false, true, false, true, false] {
        round(large);
    }
    let before = testing::allocations();
    for large in [true, false, false, true] {
        round(large);
    }
    assert_eq!(testing::allocations() - before, 0);
}

#[test]
fn source_ports_of_a_range_are_spread_over_it_and_step_over_those_in_use() {
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let far = UdpSocket::bind((ip, 0)).unwrap();
    let open = |first, last| {
        let mut config = UdpConfig::new(ip, 0, far.local_addr().unwrap());
        config.source = Source::Range(first, last);
        UdpPort::open(config)
    };
    let ports = |port: &UdpPort| -> Vec<u16> {
        (0..port.slots()).map(|slot| port.path(slot, 0).unwrap().source.port()).collect()
    };
    // Other processes of this host may use any port for a moment: one of the ranges is free of them.
    let ranges = (0..50).map(|at| 20_000 + at * 200);
    let free = |first: &u16| {
        open(*first, *first + 159).is_ok_and(|port| {
            let found = ports(&port);
            found.len() == 16 && found.iter().zip(0..).all(|(port, part)| *port == first + part * 10)
        })
    };
    let first = ranges.into_iter().find(free).expect("16 ports, each the first of its part");
    let taken = UdpSocket::bind((ip, first + 10)).unwrap();
    assert_eq!(ports(&open(first, first + 159).unwrap())[1], first + 11);
    assert_eq!(ports(&open(first, first + 2).unwrap()), [first, first + 1, first + 2]);
    assert!(matches!(open(first + 10, first + 10), Err(OpenError::InUse(_))));
    drop(taken);
}
