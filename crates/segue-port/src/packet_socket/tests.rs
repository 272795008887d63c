use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use segue::packet::{Csum, Gso, Kind, Packet, Pool, TrainCsum, Unit};
use segue_lab::{Family, Host, LinkForm, Peer};

use super::*;
use crate::page::PagePool;
use crate::testing::{self, Fill, bytes};

mod stopped_ring;

const PATIENCE: Duration = Duration::from_secs(30);
const ENDS: [(&str, &str); 2] = [("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")];

fn ends((from, to): (&str, &str)) -> (IpAddr, IpAddr) {
    (from.parse().unwrap(), to.parse().unwrap())
}

/// Creates a veth pair in a namespace of its own, on which no other process sends.
#[track_caller]
fn cable(nic: bool) -> Option<()> {
    testing::namespace()?;
    testing::ip("link add v0 type veth peer name v1");
    for end in ["v0", "v1"] {
        testing::ip(&format!("link set dev {end} addrgenmode none"));
        testing::ip(&format!("link set dev {end} up"));
        if nic {
            let features = ["-K", end, "tso", "off", "gso", "off", "tx", "off", "gro", "on"];
            let output = std::process::Command::new("ethtool").args(features).output().expect("ethtool is installed");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    Some(())
}

fn open(name: &str) -> PacketPort {
    PacketPort::open(&PacketConfig::new(name)).unwrap()
}

fn transmit(port: &mut PacketPort, packets: impl IntoIterator<Item = Box<Packet<Page>>>) {
    let mut batch = TxBatch::new();
    for packet in packets {
        batch.push(packet, port.limits()).unwrap();
    }
    let end = Instant::now() + PATIENCE;
    loop {
        match port.transmit(&mut batch).unwrap() {
            Sent::All => break,
            Sent::Blocked => std::thread::sleep(Duration::from_millis(1)),
            Sent::Narrowed => batch.resplit(port.limits(), |_, reason| panic!("{reason:?}")),
        }
        assert!(Instant::now() < end, "it stays blocked");
    }
    batch.recycle(&mut Pool::new(0));
}

/// Returns the offload state and the bytes of the next `count` packets.
fn receive(port: &mut PacketPort, count: usize) -> Vec<(Unit, Vec<u8>)> {
    let mut into = RxBatch::new(16);
    let (mut got, end) = (Vec::new(), Instant::now() + PATIENCE);
    while got.len() < count {
        assert!(Instant::now() < end, "{} of {count} came: {:?}", got.len(), port.counters());
        if port.receive(&mut into, 16).unwrap() == Polled::Idle {
            std::thread::sleep(Duration::from_millis(1));
        }
        while let Some(packet) = into.pop_packet() {
            got.push((packet.offload.unit, testing::flat(&packet)));
            into.pool.put(packet);
        }
    }
    got
}

fn udp_frame(tags: &[(u16, u16)], addresses: (&str, &str), payload: &[u8], fill: Fill) -> Vec<u8> {
    testing::ethernet(tags, &testing::ip_packet(ends(addresses), 17, 6, &testing::udp(9, 7, payload), fill))
}

fn with_unit(pages: &mut PagePool, frame: &[u8], unit: Unit) -> Box<Packet<Page>> {
    let mut packet = testing::load_frame(pages, frame);
    packet.offload.unit = unit;
    packet
}

fn uso(size: u16) -> Unit {
    Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind: GsoKind::Udp, size, fixed_ids: 0 } }
}

/// Returns whether the state of a good checksum is a permitted one: unknown, or verified by the kernel's GRO.
fn is_honest(unit: Unit) -> bool {
    matches!(unit, Unit::Whole(Csum::Unknown | Csum::Verified))
}

/// Stacks of VLAN tags: none, one, one of zeros, one of the highest priority, two, and a service tag alone.
const TAGS: [&[(u16, u16)]; 6] = [
    &[],
    &[(0x8100, 0x2005)],
    &[(0x8100, 0)],
    &[(0x8100, 0xf001)],
    &[(0x88a8, 0x0007), (0x8100, 0x2009)],
    &[(0x88a8, 0x0007)],
];

#[test]
fn frames_cross_with_their_tags_and_the_state_of_their_checksum() {
    for nic in [false, true] {
        let Some(()) = cable(nic) else { return };
        let (mut from, mut to) = (open("v0"), open("v1"));
        let mut pages = PagePool::new(8);
        for (tags, addresses) in TAGS.into_iter().flat_map(|tags| ENDS.map(|ends| (tags, ends))) {
            let good = udp_frame(tags, addresses, &bytes(999, 1), Fill::Good);
            let primed = udp_frame(tags, addresses, &bytes(999, 1), Fill::Primed);
            let mut bad = good.clone();
            *bad.last_mut().unwrap() ^= 1;
            transmit(
                &mut from,
                [
                    with_unit(&mut pages, &good, Unit::Whole(Csum::Unknown)),
                    with_unit(&mut pages, &primed, Unit::Whole(Csum::Partial)),
                    with_unit(&mut pages, &bad, Unit::Whole(Csum::Unknown)),
                ],
            );
            let got = receive(&mut to, 3);
            assert!(nic && is_honest(got[0].0) || got[0].0 == Unit::Whole(Csum::Unknown), "{:?}", got[0].0);
            assert!(got[0].1 == good, "{tags:x?} {:x?}", &got[0].1[..60]);
            // Where the sender's interface computes no checksums, the kernel has done it on the way.
            let owed = if nic { good } else { primed };
            assert!(got[1].1 == owed, "{tags:x?} {:x?}", &got[1].1[..60]);
            assert!(if nic { is_honest(got[1].0) } else { got[1].0 == Unit::Whole(Csum::Partial) }, "{:?}", got[1].0);
            assert!(got[2] == (Unit::Whole(Csum::Unknown), bad), "{tags:x?} {:?}", got[2].0);
        }
        assert_eq!((to.counters().drops.total(), from.counters().drops.total()), (0, 0));
        assert_eq!(to.counters().rx.packets, 36);
        // What it sends itself it does not see.
        let mut into = RxBatch::new(4);
        assert_eq!(from.receive(&mut into, 16).unwrap(), Polled::Idle);
        assert!(into.packets.is_empty());
    }
}

#[test]
fn a_train_crosses_whole_or_as_what_the_kernel_cuts_it_into_tags_included() {
    for nic in [false, true] {
        let Some(()) = cable(nic) else { return };
        let (mut from, mut to) = (open("v0"), open("v1"));
        let mut pages = PagePool::new(8);
        for (tags, addresses) in TAGS.into_iter().flat_map(|tags| ENDS.map(|ends| (tags, ends))) {
            let frame = udp_frame(tags, addresses, &bytes(20_500, 2), Fill::Primed);
            transmit(&mut from, [with_unit(&mut pages, &frame, uso(1000))]);
            if !nic {
                assert!(receive(&mut to, 1) == [(uso(1000), frame)], "{tags:x?}");
                continue;
            }
            for (index, (unit, bytes_of)) in receive(&mut to, 21).into_iter().enumerate() {
                let payload = &bytes(20_500, 2)[index * 1000..20_500.min((index + 1) * 1000)];
                let mut expected = udp_frame(tags, addresses, payload, Fill::Good);
                let ip = 14 + 4 * tags.len();
                if expected[ip] >> 4 == 4 {
                    // The identification counts up from that of the train, which is 1.
                    expected[ip + 5] = 1 + index as u8;
                    expected[ip + 10..ip + 12].fill(0);
                    let sum = !testing::sum16(&[&expected[ip..ip + 20]]);
                    expected[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
                }
                assert!(is_honest(unit), "{unit:?}");
                assert!(bytes_of == expected, "{tags:x?} segment {index}: {:x?}", &bytes_of[..60]);
            }
        }
        assert_eq!((to.counters().drops.total(), from.counters().drops.total()), (0, 0));
        assert_eq!((from.counters().tx.trains, from.counters().fallbacks.total()), (12, 0));
    }
}

#[test]
fn frames_of_the_ring_and_of_the_queue_come_in_the_order_of_the_wire() {
    let Some(()) = cable(false) else { return };
    let (mut from, mut to) = (open("v0"), open("v1"));
    let mut pages = PagePool::new(64);
    let mut sent = Vec::new();
    for index in 0..60 {
        let long = index % 3 == 1;
        let len = if long { 1_600 + 1_000 * index } else { 10 + index };
        let frame = udp_frame(&[], ENDS[index % 2], &bytes(len, index), Fill::Primed);
        let unit = if long { uso(1400) } else { Unit::Whole(Csum::Partial) };
        sent.push((unit, frame));
    }
    transmit(&mut from, sent.iter().map(|(unit, frame)| with_unit(&mut pages, frame, *unit)).collect::<Vec<_>>());
    assert!(from.counters().tx.calls <= 2, "sixty units in one call");
    assert!(receive(&mut to, sent.len()) == sent);
    assert_eq!(to.counters().drops.total(), 0);
    assert_eq!(to.counters().rx.calls, 20, "only the long ones cost a call");
}

/// Returns every arrangement of frames in memory: in the ring and in the queue.
fn memories() -> Vec<(Buffers, PagePool)> {
    let pages = [4, 8, 16, 32].map(|kilo| kilo << 10);
    let mut all: Vec<_> =
        pages.map(|len| (Buffers::Pages(len), PagePool::with_page_len((4 << 20) / len, len))).into_iter().collect();
    all.push((Buffers::Frames, PagePool::of_frames(64)));
    all
}

#[test]
fn frames_of_every_size_arrive_whatever_the_pages_are() {
    for (buffers, pool) in memories() {
        let Some(()) = cable(false) else { return };
        for end in ["v0", "v1"] {
            testing::ip(&format!("link set dev {end} mtu 9000"));
        }
        let mut from = open("v0");
        let mut to = PacketPort::open(&PacketConfig { buffers, ..PacketConfig::new("v1") }).unwrap();
        let mut pages = PagePool::new(64);
        let (mut into, mut got) = (RxBatch::over(pool), Vec::new());
        for round in 0..3 {
            let mut sent = Vec::new();
            for (index, len) in [9, 60_000, 1_472, 8_940, 100, 3_000, 4_500, 1_900, 8_000, 65_000, 1].iter().enumerate()
            {
                let (tags, addresses) = (TAGS[(index + round) % TAGS.len()], ENDS[index % 2]);
                let frame = udp_frame(tags, addresses, &bytes(*len, index), Fill::Primed);
                let unit = if *len > 8_940 { uso(1400) } else { Unit::Whole(Csum::Partial) };
                sent.push((unit, frame));
            }
            transmit(
                &mut from,
                sent.iter().map(|(unit, frame)| with_unit(&mut pages, frame, *unit)).collect::<Vec<_>>(),
            );
            let end = Instant::now() + PATIENCE;
            while got.len() < sent.len() {
                assert!(Instant::now() < end, "{buffers:?}: {} came: {:?}", got.len(), to.counters());
                to.receive(&mut into, 16).unwrap();
                while let Some(packet) = into.pop_packet() {
                    got.push((packet.offload.unit, testing::flat(&packet)));
                    into.pool.put(packet);
                }
            }
            assert!(got == sent, "{buffers:?}");
            got.clear();
        }
        assert_eq!(to.counters().drops.total(), 0);
        let calls = to.counters().rx.calls;
        match buffers {
            // Frames of 9000 bytes fit the ring's larger pages.
            Buffers::Frames | Buffers::Pages(16_384..) => assert_eq!(calls, 6, "{buffers:?}"),
            Buffers::Pages(_) => assert!(calls > 6, "{buffers:?}: {calls}"),
        }
    }
}

#[test]
fn a_page_holds_as_many_frames_as_fit_and_a_buffer_of_its_own_one() {
    let Some(()) = cable(false) else { return };
    for (buffers, frames) in [
        (Buffers::Pages(4 << 10), 2),
        (Buffers::Pages(8 << 10), 5),
        (Buffers::Pages(16 << 10), 10),
        (Buffers::Pages(32 << 10), 20),
        (Buffers::Frames, 1),
    ] {
        let port = PacketPort::open(&PacketConfig { buffers, ..PacketConfig::new("v0") }).unwrap();
        let page = match buffers {
            Buffers::Pages(len) => len,
            Buffers::Frames => 4 << 10,
        };
        assert_eq!(port.ring_frames(), (8 << 20) / page * frames, "{buffers:?}");
    }
}

#[test]
fn a_full_ring_is_counted_and_drains_in_order() {
    let Some(()) = cable(false) else { return };
    let mut from = open("v0");
    let mut to = PacketPort::open(&PacketConfig { ring_bytes: 1, ..PacketConfig::new("v1") }).unwrap();
    let room = to.ring_frames();
    let mut pages = PagePool::new(4);
    let frame = |index: usize| udp_frame(&[], ENDS[0], &bytes(100 + index % 7, index), Fill::Good);
    for round in 0..3 {
        for index in 0..room + 33 {
            transmit(&mut from, [with_unit(&mut pages, &frame(index), Unit::Whole(Csum::Unknown))]);
        }
        let got = receive(&mut to, room);
        assert!(got.iter().enumerate().all(|(index, (_, bytes))| *bytes == frame(index)));
        let mut into = RxBatch::new(4);
        assert_eq!(to.receive(&mut into, 1).unwrap(), Polled::Idle);
        assert_eq!(to.counters().drops.of(Drop::SocketOverflow), 33 * (round + 1));
    }
}

#[test]
fn a_slot_that_is_still_in_use_is_not_filled_again() {
    let Some(()) = cable(false) else { return };
    let mut from = open("v0");
    let mut to = PacketPort::open(&PacketConfig { ring_bytes: 1, ..PacketConfig::new("v1") }).unwrap();
    let room = to.ring_frames();
    let (mut pages, mut into) = (PagePool::new(4), RxBatch::new(4));
    let frame = |index: usize| udp_frame(&[], ENDS[1], &bytes(1000, index), Fill::Good);
    transmit(&mut from, [with_unit(&mut pages, &frame(0), Unit::Whole(Csum::Unknown))]);
    to.receive(&mut into, 16).unwrap();
    let held = into.pop_packet().unwrap();
    // All others go round; the one that is held stays, and the kernel stops in front of it.
    for index in 1..2 * room {
        transmit(&mut from, [with_unit(&mut pages, &frame(index), Unit::Whole(Csum::Unknown))]);
        to.receive(&mut into, 16).unwrap();
        while let Some(packet) = into.pop_packet() {
            assert!(testing::flat(&packet) == frame(index));
            into.pool.put(packet);
        }
    }
    assert!(testing::flat(&held) == frame(0), "nobody wrote over it");
    assert_eq!(to.counters().rx.packets as usize, room);
    into.pool.put(held);
    transmit(&mut from, [with_unit(&mut pages, &frame(7), Unit::Whole(Csum::Unknown))]);
    assert!(receive(&mut to, 1)[0].1 == frame(7));
    assert_eq!(to.counters().drops.of(Drop::SocketOverflow) as usize, room);
}

#[test]
fn a_frame_that_is_held_is_asked_back_before_it_stops_the_ring() {
    let Some(()) = cable(false) else { return };
    let config = PacketConfig { ring_bytes: 1 << 18, ..PacketConfig::new("v1") };
    let (mut from, mut to) = (open("v0"), PacketPort::open(&config).unwrap());
    let (mut pages, mut into) = (PagePool::new(8), RxBatch::new(16));
    let (slots, frame) = (to.ring_frames(), udp_frame(&[], ENDS[0], &bytes(200, 1), Fill::Good));
    let (mut held, mut asked, mut came) = (None, 0, 0);
    let end = Instant::now() + PATIENCE;
    for number in 0..5 * slots {
        transmit(&mut from, [testing::load_frame(&mut pages, &frame)]);
        while came <= number {
            assert!(Instant::now() < end, "{came} of {number}: {:?}", to.counters());
            if to.receive(&mut into, 16).unwrap() == Polled::Starved {
                asked += 1;
                held = None;
            }
            while let Some(packet) = into.pop_packet() {
                came += 1;
                // The first frame, and after it was asked back, the next one.
                if held.is_none() { held = Some(packet) } else { into.pool.put(packet) }
            }
        }
    }
    assert!((5..=11).contains(&asked), "{asked} times in five rounds");
    assert_eq!(to.counters().drops.total(), 0);
}

#[test]
fn an_interface_that_is_down_costs_frames_and_one_that_is_gone_ends_the_port() {
    let Some(()) = cable(false) else { return };
    let (mut from, mut to) = (open("v0"), open("v1"));
    let mut pages = PagePool::new(4);
    let frame = udp_frame(&[], ENDS[0], &bytes(3_000, 0), Fill::Primed);
    testing::ip("link set dev v0 down");
    transmit(&mut from, [with_unit(&mut pages, &frame, uso(1000))]);
    assert_eq!((from.counters().drops.of(Drop::DeviceDown), from.counters().drops.total()), (3, 3));
    let mut into = RxBatch::new(4);
    for _ in 0..3 * CHECK_AFTER {
        assert_eq!(from.receive(&mut into, 16).unwrap(), Polled::Idle);
    }
    testing::ip("link set dev v0 up");
    transmit(&mut from, [with_unit(&mut pages, &frame, uso(1000))]);
    assert!(receive(&mut to, 1) == [(uso(1000), frame.clone())]);
    testing::ip("link del dev v0");
    let mut batch = TxBatch::new();
    batch.push(with_unit(&mut pages, &frame, uso(1000)), from.limits()).unwrap();
    assert!(from.transmit(&mut batch).is_err_and(|error| error.raw_os_error() == Some(libc::ENXIO)));
    let ended = (0..3 * CHECK_AFTER).any(|_| to.receive(&mut into, 16).is_err());
    assert!(ended, "the other end of the cable is gone as well");
}

#[test]
fn trains_that_wait_while_the_interface_goes_down_and_up_arrive_as_they_are() {
    let Some(()) = cable(false) else { return };
    let (mut from, mut to) = (open("v0"), open("v1"));
    let mut pages = PagePool::new(4);
    // Of one length, so that one could be taken for the other.
    let [first, second] = [1, 2].map(|fill| udp_frame(&[], ENDS[0], &bytes(5_000, fill), Fill::Primed));
    transmit(&mut from, [&first, &second].map(|frame| with_unit(&mut pages, frame, uso(1000))));
    testing::ip("link set dev v1 down");
    testing::ip("link set dev v1 up");
    assert!(receive(&mut to, 2) == [(uso(1000), first), (uso(1000), second)]);
    assert_eq!(to.counters().drops.total(), 0);
}

#[test]
fn the_first_frame_after_the_interface_was_down_is_sent() {
    let Some(()) = cable(false) else { return };
    let (mut from, mut to) = (open("v0"), open("v1"));
    let mut pages = PagePool::new(4);
    let frame = udp_frame(&[], ENDS[0], &bytes(3_000, 0), Fill::Primed);
    testing::ip("link set dev v0 down");
    testing::ip("link set dev v0 up");
    transmit(&mut from, [with_unit(&mut pages, &frame, uso(1000))]);
    assert!(receive(&mut to, 1) == [(uso(1000), frame)]);
    assert_eq!(from.counters().drops.total(), 0);
}

#[test]
fn a_frame_above_the_mtu_is_counted_as_too_big() {
    let Some(()) = cable(false) else { return };
    let (mut from, mut to) = (open("v0"), open("v1"));
    let mut pages = PagePool::new(4);
    let frames: Vec<_> =
        [1_472, 1_473, 3].map(|len| udp_frame(&[], ENDS[0], &bytes(len, len), Fill::Good)).into_iter().collect();
    transmit(
        &mut from,
        frames.iter().map(|f| with_unit(&mut pages, f, Unit::Whole(Csum::Unknown))).collect::<Vec<_>>(),
    );
    let got = receive(&mut to, 2);
    assert!(got[0].1 == frames[0] && got[1].1 == frames[2]);
    assert_eq!((from.counters().drops.of(Drop::TooBig), from.counters().drops.total()), (1, 1));
}

/// Tests that an outer 802.1ad tag counts towards the MTU (`packet_extra_vlan_len_allowed`).
#[test]
fn tags_count_of_a_train_as_the_kernel_counts_them_of_a_single_frame() {
    let Some(()) = cable(false) else { return };
    let (mut from, mut to) = (open("v0"), open("v1"));
    from.listen().unwrap();
    let mut pages = PagePool::new(4);
    let any = Limits { csum: true, ..Limits::NONE };
    for (tags, counted) in [
        (&[(0x8100, 7)][..], 0),
        (&[(0x88a8, 7)], 4),
        (&[(0x8100, 7), (0x8100, 5)], 4),
        (&[(0x8100, 7), (0x88a8, 5)], 4),
        (&[(0x88a8, 7), (0x8100, 5)], 8),
    ] {
        for size in [1_472 - counted, 1_473 - counted] {
            let fits = size + counted == 1_472;
            let [single, train] = [size, 3 * size].map(|len| udp_frame(tags, ENDS[0], &bytes(len, len), Fill::Primed));
            let unit = uso(u16::try_from(size).unwrap());
            let before = from.counters().drops.of(Drop::TooBig);
            // The kernel judges the single frame, these limits the train.
            let mut batch = TxBatch::new();
            let taken = batch.push(with_unit(&mut pages, &train, unit), from.limits()).is_ok();
            assert_eq!(taken, fits, "{tags:04x?} {size}");
            assert!(batch.push(with_unit(&mut pages, &single, Unit::Whole(Csum::Partial)), &any).is_ok());
            from.transmit(&mut batch).unwrap();
            let expected = if fits { 2 } else { 0 };
            assert_eq!(receive(&mut to, expected).len(), expected, "{tags:04x?} {size}");
            assert_eq!(from.counters().drops.of(Drop::TooBig) - before, u64::from(!fits), "{tags:04x?} {size}");
        }
    }
}

#[test]
fn a_refused_train_narrows_the_port_and_crosses_all_the_same() {
    let Some(()) = cable(false) else { return };
    let (mut from, mut to) = (open("v0"), open("v1"));
    from.refuse_trains = Some(libc::EINVAL);
    let mut pages = PagePool::new(4);
    let frame = udp_frame(&[], ENDS[1], &bytes(3_500, 2), Fill::Primed);
    transmit(&mut from, [with_unit(&mut pages, &frame, uso(1000))]);
    let got = receive(&mut to, 4);
    let payload: Vec<u8> = got.iter().flat_map(|(_, bytes)| bytes[62..].to_vec()).collect();
    assert!(payload == bytes(3_500, 2));
    assert_eq!((from.counters().fallbacks.of(Fallback::PacketUdpTrain), from.counters().drops.total()), (1, 0));
    assert!(from.offloads().contains(&("packet_uso", OffloadState::Refused(libc::EINVAL))));
    assert!(from.limits().tso4 && !from.limits().uso);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let Some(()) = cable(false) else { return };
    let error = |name: &str| PacketPort::open(&PacketConfig::new(name)).unwrap_err();
    for name in ["none", "", "much-too-long-a-name"] {
        assert!(matches!(error(name), OpenError::NoInterface(_)), "{name}");
    }
    assert_eq!(error("none").to_string(), "there is no interface none");
    testing::ip("tuntap add dev sg0 mode tun");
    assert!(matches!(error("sg0"), OpenError::NotEthernet(_)));
}

#[test]
fn after_warm_up_nothing_is_allocated() {
    let Some(()) = cable(false) else { return };
    let (mut from, mut to) = (open("v0"), open("v1"));
    let (mut there, mut back) = (RxBatch::new(8), TxBatch::new());
    let mut pages = PagePool::new(4);
    let frame = udp_frame(&[(0x8100, 5)], ENDS[0], &bytes(500, 1), Fill::Good);
    let long = udp_frame(&[], ENDS[0], &bytes(5_000, 1), Fill::Primed);
    transmit(
        &mut from,
        [with_unit(&mut pages, &frame, Unit::Whole(Csum::Unknown)), with_unit(&mut pages, &long, uso(1000))],
    );
    // The two frames go to and fro.
    let mut at_to = true;
    let mut turn = || {
        let port = if at_to { &mut to } else { &mut from };
        at_to = !at_to;
        let (mut seen, end) = (0, Instant::now() + PATIENCE);
        while seen < 2 && Instant::now() < end {
            port.receive(&mut there, 16).unwrap();
            while let Some(packet) = there.pop_packet() {
                seen += 1;
                back.push(packet, port.limits()).unwrap();
            }
        }
        assert_eq!(seen, 2);
        while port.transmit(&mut back).unwrap() != Sent::All {}
        back.recycle(&mut there.pool);
    };
    (0..6).for_each(|_| turn());
    let before = testing::allocations();
    (0..6).for_each(|_| turn());
    assert_eq!(testing::allocations() - before, 0);
}

/// Creates two hosts with a link between them.
#[track_caller]
fn hosts(form: LinkForm) -> Option<[Host; 2]> {
    if let Some(reason) = segue_lab::unavailable() {
        segue_lab::skip_this_test(&reason);
        return None;
    }
    let hosts = [Host::new("a").unwrap(), Host::new("b").unwrap()];
    segue_lab::connect(&hosts[0], &hosts[1], form).unwrap();
    Some(hosts)
}

#[test]
fn a_connection_of_two_kernels_is_seen_whole_with_states_that_hold() {
    let forms = [LinkForm::Nic, LinkForm::Veth].into_iter();
    for (form, family) in forms.flat_map(|form| Family::ALL.iter().map(move |family| (form, *family))) {
        let Some([a, b]) = hosts(form) else { return };
        let data = bytes(400_000, 3);
        let address = SocketAddr::new(Peer::B.address(0, family), 5001);
        b.enter(|| {
            let mut port = open(segue_lab::DEVICE);
            let listener = TcpListener::bind(address).unwrap();
            let mut client = a.enter(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
            let (mut server, _) = listener.accept().unwrap();
            server.set_read_timeout(Some(PATIENCE)).unwrap();
            let reader = std::thread::spawn(move || {
                let mut all = Vec::new();
                server.read_to_end(&mut all).unwrap();
                all
            });
            let writer = std::thread::spawn({
                let data = data.clone();
                move || client.write_all(&data).unwrap()
            });
            let seen = watch(&mut port, data.len());
            writer.join().unwrap();
            assert!(reader.join().unwrap() == data, "the connection itself");
            let mut stream = Vec::new();
            for (at, part) in seen {
                // Retransmissions overlap with what was seen already.
                let fresh = stream.len().checked_sub(at).unwrap_or_else(|| panic!("a hole in front of {at}"));
                stream.extend_from_slice(part.get(fresh..).unwrap_or(&[]));
            }
            assert!(stream == data, "{form:?} {family}: the bytes differ");
            assert_eq!(port.counters().drops.total(), 0, "{:?}", port.counters());
            assert!(port.counters().rx.trains > 0, "{form:?}: this kernel makes trains on both");
        })
        .unwrap();
    }
}

/// Captures a stream of `len` bytes to port 5001 until it is complete; returns its segments by offset. Every packet's
/// claim is checked.
fn watch(port: &mut PacketPort, len: usize) -> BTreeMap<usize, Vec<u8>> {
    let mut into = RxBatch::new(32);
    let (mut seen, mut first, mut have) = (BTreeMap::new(), None, 0);
    let end = Instant::now() + PATIENCE;
    while have < len {
        assert!(Instant::now() < end, "{have} of {len} bytes were seen");
        if port.receive(&mut into, 64).unwrap() == Polled::Idle {
            std::thread::sleep(Duration::from_micros(50));
        }
        while let Some(packet) = into.pop_packet() {
            let Some((Kind::Tcp, header)) = packet.transport() else {
                into.pool.put(packet);
                continue;
            };
            assert!(testing::is_good_once_complete(&packet), "{:?}", packet.offload.unit);
            let seq = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            if header[13] & 2 != 0 {
                first = Some(seq.wrapping_add(1));
            }
            if let (Some(first), false) = (first, packet.payload.is_empty()) {
                let at = seq.wrapping_sub(first) as usize;
                let part = testing::flat(&packet)[packet.head.len()..].to_vec();
                have = have.max(at + part.len());
                let longest: &mut Vec<u8> = seen.entry(at).or_default();
                if part.len() > longest.len() {
                    *longest = part;
                }
            }
            into.pool.put(packet);
        }
    }
    seen
}

#[test]
fn a_flow_arrives_at_one_of_several_sockets_once_and_in_order() {
    const FLOWS: u16 = 64;
    const EACH: u8 = 4;
    if cable(false).is_none() {
        return;
    }
    let mut from = open("v0");
    let mut ports: Vec<PacketPort> = PacketSocket::open_spread(&PacketConfig::new("v1"), 2, None)
        .unwrap()
        .into_iter()
        .map(|socket| socket.map().unwrap())
        .collect();
    let mut pages = PagePool::new(64);
    let frame = |flow: u16, number: u8| {
        let body = testing::udp(9 + flow, 7, &[number; 20]);
        testing::ethernet(&[], &testing::ip_packet(ends(ENDS[0]), 17, 6, &body, Fill::Good))
    };
    let mut seen: BTreeMap<(usize, u16), Vec<u8>> = BTreeMap::new();
    let (mut into, begin) = (RxBatch::new(16), Instant::now());
    for number in 0..EACH {
        let all: Vec<_> = (0..FLOWS).map(|flow| testing::load_frame(&mut pages, &frame(flow, number))).collect();
        transmit(&mut from, all);
        // The next ones follow when all are there: from another processor they could overtake these in the kernel.
        while seen.values().map(Vec::len).sum::<usize>() < usize::from(FLOWS) * usize::from(number + 1) {
            assert!(begin.elapsed() < 2 * PATIENCE, "{seen:?}");
            for (at, port) in ports.iter_mut().enumerate() {
                port.receive(&mut into, 64).unwrap();
                while let Some(packet) = into.pop_packet() {
                    let bytes = testing::flat(&packet);
                    let flow = u16::from_be_bytes([bytes[34], bytes[35]]) - 9;
                    seen.entry((at, flow)).or_default().push(bytes[42]);
                    into.pool.put(packet);
                }
            }
        }
    }
    assert_eq!(seen.len(), usize::from(FLOWS), "a flow has one socket");
    assert!(seen.values().all(|numbers| numbers.iter().copied().eq(0..EACH)), "{seen:?}");
    // With 64 flows it is once in 2^63 that one of two gets none.
    assert!((0..2).all(|at| seen.keys().any(|(port, _)| *port == at)), "{seen:?}");
    // What a socket of the group sends, none of them receives.
    let back = testing::load_frame(&mut pages, &frame(0, 9));
    transmit(&mut ports[0], [back]);
    assert_eq!(receive(&mut from, 1).len(), 1);
    for port in &mut ports {
        assert_eq!(port.receive(&mut into, 64).unwrap(), Polled::Idle);
        assert!(into.pop_packet().is_none());
    }
}
