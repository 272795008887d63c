//! Tests of packets and trains in both directions, with features, chains and rings of every shape.

use std::sync::Barrier;

use segue_testkit::vhost::{Descriptor, GUEST_BASE, INDIRECT_TABLE, NEXT, WRITE, feature, message, state};

use super::*;
use crate::testing::checksum_is_good;

/// Number of trains for a guest that accepts none.
const COUNT: u64 = 100_000;

/// Returns the payload bytes of TCP in frames that a guest received, after checking the checksum of each.
fn payload(v4: bool, features: u64, got: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let start = usize::from(transport(v4));
    for (header, frame) in got {
        assert_eq!(u16::from_le_bytes([frame[12], frame[13]]), if v4 { 0x0008 } else { 0xdd86 });
        if header[0] & 1 == 0 {
            assert!(checksum_is_good(&frame[14..]), "a whole checksum is right");
        } else {
            assert!(features & feature::GUEST_CSUM != 0, "a partial checksum that the guest takes");
        }
        let trains = if v4 { feature::GUEST_TSO4 } else { feature::GUEST_TSO6 };
        assert!(header[1] == 0 || features & trains != 0, "a train that the guest takes");
    }
    got.iter().flat_map(|(_, frame)| frame[start + 20..].to_vec()).collect()
}

/// Sends a single packet and a train of each kind from the guest, and checks that they arrive unchanged.
#[track_caller]
fn assert_taken(bench: &mut Bench, v4: bool) {
    let (single, tcp) = (frame(v4, 100, 1, Fill::Good), frame(v4, 20_000, 2, Fill::Primed));
    let (ecn, udp) = (congested(v4, 20_000), datagram(v4, 20_000));
    let mut ecn_header = header(v4, 1400);
    ecn_header[1] |= 0x80;
    let mut udp_header = header(v4, 1200);
    udp_header[1] = 5;
    udp_header[2..4].copy_from_slice(&(transport(v4) + 8).to_le_bytes());
    udp_header[8] = 6;
    bench.front.send_packet(0, &PLAIN, &single, &[]);
    bench.front.send_packet(1, &header(v4, 1400), &tcp, &[60]);
    bench.front.send_packet(4, &ecn_header, &ecn, &[60]);
    bench.front.send_packet(8, &udp_header, &udp, &[60]);
    bench.front.kick(FROM_GUEST);
    let got = bench.receive();
    let flat: Vec<Vec<u8>> = got.iter().map(|one| one.pieces().flatten().copied().collect()).collect();
    assert_eq!(flat, [single, tcp, ecn, udp]);
    assert!(got[0].unit().is_none(), "a plain frame is not parsed");
    for one in &got[1..3] {
        assert!(matches!(one.unit(), Some(Unit::Train { gso: Gso { kind: GsoKind::Tcp, size: 1400, .. }, .. })));
    }
    assert!(matches!(got[3].unit(), Some(Unit::Train { gso: Gso { kind: GsoKind::Udp, size: 1200, .. }, .. })));
    assert_eq!(bench.front.returned(FROM_GUEST), [(0, 0), (1, 0), (4, 0), (8, 0)]);
}

/// Sends a train of UDP to the guest, and expects it unsplit if the guest accepts trains.
#[track_caller]
fn assert_datagrams(bench: &mut Bench, v4: bool, features: u64) {
    let packet = train_of(&mut bench.pages, &datagram(v4, 20_000), GsoKind::Udp, 1200);
    assert_eq!(bench.send(packet), Sent::All);
    let got = bench.front.received();
    let start = usize::from(transport(v4)) + 8;
    assert_eq!(got.iter().flat_map(|(_, frame)| frame[start..].to_vec()).collect::<Vec<_>>(), bytes(20_000, 0));
    for (header, frame) in &got {
        let is_partial = header[0] & 1 != 0;
        assert!(if is_partial { features & feature::GUEST_CSUM != 0 } else { checksum_is_good(&frame[14..]) });
    }
    let needs = feature::GUEST_CSUM | feature::GUEST_USO4 | feature::GUEST_USO6;
    let whole = features & needs == needs;
    assert_eq!((got.len(), got[0].0[1]), if whole { (1, 5) } else { (17, 0) });
}

#[test]
fn each_feature_may_be_missing() {
    let offered = super::super::feature::OFFERED;
    let bits = (0..64).map(|bit| 1u64 << bit).filter(|bit| offered & bit != 0);
    // Without protocol features a queue is enabled at once.
    for missing in bits.chain([0, feature::MRG_RXBUF | feature::VERSION_1, !0]) {
        let features = offered & !missing;
        let mut bench = Bench::ready(features);
        assert_eq!(bench.front.header_len(), if features & (1 << 32 | 1 << 15) == 0 { 10 } else { 12 });
        for v4 in [true, false] {
            assert_taken(&mut bench, v4);
        }
        // To the guest. Without mergeable buffers a train needs a large one, as a driver knows.
        let large = features & feature::MRG_RXBUF == 0;
        if large {
            bench.front.offer_some(65_562, 32);
        } else {
            bench.front.offer_buffers(1600);
        }
        let is_whole = |v4: bool| {
            let needs = feature::GUEST_CSUM | if v4 { feature::GUEST_TSO4 } else { feature::GUEST_TSO6 };
            features & needs == needs
        };
        for v4 in [true, false] {
            let packet = train(&mut bench.pages, v4, 20_000, 1400);
            assert_eq!(bench.send(packet), Sent::All);
            let got = bench.front.received();
            assert_eq!(payload(v4, features, &got), bytes(20_000, 0), "{missing:#x}");
            assert_eq!(got.len(), if is_whole(v4) { 1 } else { 15 }, "{missing:#x}");
            if is_whole(v4) {
                let buffers = if large { 1 } else { 13 };
                assert_eq!(got[0].0.get(10).map(|low| u16::from(*low)), (got[0].0.len() == 12).then_some(buffers));
                assert_eq!(got[0].0[..2], [1, if v4 { 1 } else { 4 }]);
            }
            assert_datagrams(&mut bench, v4, features);
        }
        // A train with CWR comes last: a guest that does not take it takes none from then on.
        for v4 in [true, false] {
            let packet = train_of(&mut bench.pages, &congested(v4, 20_000), GsoKind::Tcp, 1400);
            assert_eq!(bench.send(packet), Sent::All);
            let got = bench.front.received();
            assert_eq!(payload(v4, features, &got), bytes(20_000, 0), "{missing:#x}");
            let whole = is_whole(v4) && features & feature::GUEST_ECN != 0;
            assert_eq!(got.len(), if whole { 1 } else { 15 }, "{missing:#x}");
            assert_eq!(got[0].0[1], if whole { 0x80 | if v4 { 1 } else { 4 } } else { 0 }, "{missing:#x}");
        }
        assert_eq!(bench.port.stops().total(), 0);
        assert_eq!((bench.number("guest_ready"), bench.port.counters().drops.total()), (1, 0));
    }
}

#[test]
fn chains_of_every_shape_give_the_same_packet() {
    for features in [feature::USUAL, feature::USUAL & !(feature::VERSION_1 | feature::MRG_RXBUF)] {
        let mut bench = Bench::ready(features);
        let long = frame(false, 65_000, 3, Fill::Primed);
        let shapes: [&[usize]; 9] =
            [&[], &[10], &[12], &[1; 30], &[4, 3, 2, 1], &[12, 14], &[9000; 8], &[1, 70_000], &[4096; 16]];
        for (n, lens) in shapes.iter().enumerate() {
            let first = 40 * n as u16 % 200;
            bench.front.send_packet(first, &header(false, 1440), &long, lens);
            bench.front.send_indirect(first + 35, &header(false, 1440), &long, lens);
            bench.front.kick(FROM_GUEST);
            assert_eq!(bench.received(), [long.clone(), long.clone()], "{lens:?}");
            let back = bench.front.returned(FROM_GUEST);
            assert_eq!(back, [(u32::from(first), 0), (u32::from(first) + 35, 0)], "in order");
        }
        // Buffers of every size, down to one that ends inside of the header.
        for len in [1514u32, 4096, 20, 65_562, 13, 256].into_iter().filter(|_| features == feature::USUAL) {
            let mut bench = Bench::ready(features);
            bench.front.offer_buffers(len.min(60_000));
            let size = if len < 256 { 900 } else { 20_000 };
            let packet = train(&mut bench.pages, true, size, 100);
            assert_eq!(bench.send(packet), Sent::All);
            let got = bench.front.received();
            assert_eq!(payload(true, features, &got), bytes(size, 0), "{len}");
        }
    }
}

#[test]
fn a_buffer_in_several_descriptors_is_filled_in_order() {
    let mut bench = Bench::ready(feature::USUAL);
    let lens = [1u32, 11, 20, 3, 5000];
    let start = bench.front.slot(0);
    let mut at = start;
    for (n, len) in (0..).zip(lens) {
        let flags = WRITE | if n < 4 { NEXT } else { 0 };
        bench.front.describe(TO_GUEST, n, &Descriptor { address: at, len, flags, next: n + 1 });
        at += u64::from(len) + 7;
    }
    bench.front.offer(TO_GUEST, 0);
    let sent = frame(true, 1000, 4, Fill::Good);
    let packet = testing::load_frame(&mut bench.pages, &sent);
    assert_eq!(bench.send(packet), Sent::All);
    assert_eq!(bench.front.returned(TO_GUEST), [(0, 12 + sent.len() as u32)]);
    let mut got = Vec::new();
    let mut at = start;
    for len in lens {
        got.extend(bench.front.read(at, len as usize));
        at += u64::from(len) + 7;
    }
    assert_eq!(&got[12..12 + sent.len()], sent);
}

#[test]
fn rings_wrap_around_many_times() {
    for (size, features) in [(1u16, feature::USUAL), (16, feature::USUAL), (16, feature::USUAL & !feature::EVENT_IDX)] {
        let mut bench = Bench::new(features);
        bench.front.size = size;
        for queue in [TO_GUEST, FROM_GUEST] {
            bench.front.begin_at(queue, 65_530);
        }
        bench.front.start();
        bench.port.listen().unwrap();
        bench.front.offer_buffers(2048);
        for n in 0..200usize {
            let sent = frame(n % 2 == 0, 100 + n, n, Fill::Good);
            bench.front.send_packet(n as u16 % size, &PLAIN, &sent, &[]);
            bench.front.kick(FROM_GUEST);
            assert_eq!(bench.received(), std::slice::from_ref(&sent), "{n}");
            assert_eq!(bench.front.returned(FROM_GUEST).len(), 1);
            let packet = testing::load_frame(&mut bench.pages, &sent);
            assert_eq!(bench.send(packet), Sent::All, "{n}");
            let got = bench.front.received();
            assert_eq!(got.iter().map(|one| one.1.clone()).collect::<Vec<_>>(), [sent], "{n}");
        }
        assert_eq!(bench.front.used_index(TO_GUEST), 65_530u16.wrapping_add(200));
    }
}

#[test]
fn neither_side_is_woken_where_it_asked_for_nothing() {
    for event_idx in [true, false] {
        let features = if event_idx { feature::USUAL } else { feature::USUAL & !feature::EVENT_IDX };
        let mut bench = Bench::ready(features);
        bench.front.offer_buffers(2048);
        // An idle port asks for a kick with the next chain.
        assert!(bench.receive().is_empty());
        assert_eq!(bench.front.suppression(FROM_GUEST), (0, 0));
        for n in 0..3 {
            bench.front.send_packet(n, &PLAIN, &frame(true, 10, 0, Fill::Good), &[]);
        }
        let mut batch = RxBatch::new(8);
        assert_eq!(bench.port.receive(&mut batch, 2).unwrap(), Polled::More);
        let (flags, event) = bench.front.suppression(FROM_GUEST);
        assert_eq!((flags, event), if event_idx { (0, 0) } else { (1, 0) }, "a busy port asks for none");
        assert_eq!(bench.receive().len(), 1);
        let (flags, event) = bench.front.suppression(FROM_GUEST);
        assert_eq!((flags, event), if event_idx { (0, 3) } else { (0, 0) });
        bench.front.calls(FROM_GUEST);
        // The guest's side: no call, then one where it is asked for.
        for (n, (flags, event, called)) in
            [(1, 1000, false), (0, 1, true), (1, 1000, false), (0, 3, true)].into_iter().enumerate()
        {
            bench.front.set_suppression(TO_GUEST, flags, event);
            bench.front.calls(TO_GUEST);
            let packet = testing::load_frame(&mut bench.pages, &frame(true, 100, n, Fill::Good));
            assert_eq!(bench.send(packet), Sent::All);
            assert_eq!(bench.front.calls(TO_GUEST) > 0, called, "{event_idx} {n}");
        }
    }
}

#[test]
fn a_kick_makes_the_port_readable_until_it_is_read() {
    let mut bench = Bench::ready(feature::USUAL);
    assert!(bench.receive().is_empty());
    let waits = |bench: &Bench| is_readable(bench.port.fd());
    assert!(!waits(&bench));
    bench.front.send_packet(0, &PLAIN, &frame(true, 10, 0, Fill::Good), &[]);
    bench.front.kick(FROM_GUEST);
    assert!(waits(&bench) && waits(&bench));
    assert_eq!(bench.receive().len(), 1);
    assert!(!waits(&bench));
}

#[test]
fn packets_wait_for_buffers_and_are_dropped_by_name_after_a_while() {
    let mut bench = Bench::ready(feature::USUAL);
    bench.front.offer_some(2048, 2);
    for n in 0..3 {
        let packet = testing::load_frame(&mut bench.pages, &frame(true, 100, n, Fill::Good));
        bench.tx.push(packet, bench.port.limits()).unwrap();
    }
    assert_eq!(bench.transmit(), Sent::Blocked);
    assert_eq!((bench.tx.len(), bench.port.blocked_event()), (1, Blocked::Readable));
    assert_eq!(bench.front.received().len(), 2);
    // The buffers are offered again; the kick wakes.
    bench.front.kick(TO_GUEST);
    assert!(is_readable(bench.port.blocked_fd()));
    assert_eq!(bench.transmit(), Sent::All);
    assert_eq!(bench.front.received().len(), 1);
    assert_eq!(bench.number("ring_stalls"), 0);
    // A train that needs more buffers than there are takes none of them.
    let mut bench = Bench::ready(feature::USUAL);
    bench.front.offer_some(2048, 3);
    let packet = train(&mut bench.pages, true, 20_000, 1400);
    assert_eq!(bench.send(packet), Sent::Blocked);
    assert_eq!(bench.front.used_index(TO_GUEST), 0);
    // The guest offers nothing: the wait ends by itself.
    wait_until_readable(bench.port.blocked_fd());
    assert_eq!(bench.transmit(), Sent::All);
    assert_eq!(bench.port.guest_drops().of(GuestDrop::NoBuffers), 15);
    assert_eq!((bench.number(GUEST_STALLED), bench.number("ring_stalls")), (1, 1));
    // From now on nothing waits, until there are buffers.
    let packet = train(&mut bench.pages, true, 20_000, 1400);
    assert_eq!(bench.send(packet), Sent::All);
    assert_eq!(bench.port.guest_drops().of(GuestDrop::NoBuffers), 30);
    let packet = testing::load_frame(&mut bench.pages, &frame(true, 100, 0, Fill::Good));
    assert_eq!(bench.send(packet), Sent::All);
    assert_eq!((bench.front.received().len(), bench.number(GUEST_STALLED)), (1, 0));
}

#[test]
fn a_guest_without_buffers_costs_no_memory_however_long_it_offers_none() {
    let mut bench = Bench::ready(feature::USUAL);
    let long = frame(true, 20_000, 0, Fill::Primed);
    let packet = train_of(&mut bench.pages, &long, GsoKind::Tcp, 1400);
    assert_eq!(bench.send(packet), Sent::Blocked);
    let held = bench.pages.in_use();
    wait_until_readable(bench.port.blocked_fd());
    assert_eq!(bench.transmit(), Sent::All);
    assert!(held > 0 && bench.pages.in_use() == 0, "what waited is dropped, and its pages are free");
    for _ in 0..COUNT {
        let packet = train_of(&mut bench.pages, &long, GsoKind::Tcp, 1400);
        assert_eq!(bench.send(packet), Sent::All);
        assert_eq!((bench.pages.in_use(), bench.tx.len()), (0, 0));
    }
    assert_eq!(bench.port.guest_drops().of(GuestDrop::NoBuffers), 15 * (COUNT + 1));
    assert_eq!((bench.number(GUEST_STALLED), bench.number("ring_stalls")), (1, 1));
    // The guest goes on in the end.
    bench.front.offer_buffers(2048);
    let packet = train_of(&mut bench.pages, &long, GsoKind::Tcp, 1400);
    assert_eq!(bench.send(packet), Sent::All);
    assert_eq!(payload(true, feature::USUAL, &bench.front.received()), bytes(20_000, 0));
    assert_eq!((bench.number(GUEST_STALLED), bench.port.stops().total()), (0, 0));
}

#[test]
fn buffers_that_come_while_the_port_looks_for_them_wake_it() {
    const ROUNDS: u16 = 5000;
    let mut bench = Bench::ready(feature::USUAL);
    bench.front.offer_some(2048, 0);
    let Bench { port, front, tx, pages, .. } = &mut bench;
    let (begin, end) = (Barrier::new(2), Barrier::new(2));
    let mut unnoticed = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..ROUNDS {
                begin.wait();
                (0..n % 200).for_each(|_| std::hint::spin_loop());
                front.offer_buffer(n % 256);
                front.kick(TO_GUEST);
                end.wait();
            }
        });
        for n in 0..ROUNDS {
            let packet = testing::load_frame(pages, &frame(true, 100, usize::from(n), Fill::Good));
            tx.push(packet, port.limits()).unwrap();
            begin.wait();
            let first = port.transmit(tx).unwrap();
            end.wait();
            if first == Sent::Blocked {
                unnoticed += usize::from(!is_readable(port.blocked_fd()));
                port.transmit(tx).unwrap();
            }
            tx.recycle(&mut Pool::new(0));
        }
    });
    assert_eq!(unnoticed, 0, "a packet waits although there is a buffer and a kick");
}

#[test]
fn a_train_that_the_whole_ring_cannot_hold_is_cut() {
    let mut bench = Bench::new(feature::USUAL);
    bench.front.size = 16;
    bench.front.start();
    bench.port.listen().unwrap();
    bench.front.offer_buffers(1000);
    let packet = train(&mut bench.pages, true, 20_000, 1400);
    let mut sent = bench.send(packet);
    let mut got = bench.front.received();
    while sent == Sent::Blocked {
        assert!(got.len() < 15);
        sent = bench.transmit();
        got.extend(bench.front.received());
    }
    assert_eq!((got.len(), payload(true, feature::USUAL, &got)), (15, bytes(20_000, 0)));
    assert_eq!((bench.port.guest_drops().total(), bench.port.stops().total()), (0, 0));
    // A single packet cannot be cut.
    let mut bench = Bench::new(feature::USUAL);
    bench.front.size = 1;
    bench.front.start();
    bench.port.listen().unwrap();
    bench.front.offer_buffers(1000);
    let packet = testing::load_frame(&mut bench.pages, &frame(true, 1400, 0, Fill::Good));
    assert_eq!(bench.send(packet), Sent::All);
    assert_eq!(bench.front.returned(TO_GUEST), [(0, 0)]);
    assert_eq!(bench.port.guest_drops().of(GuestDrop::BufferTooSmall), 1);
}

#[test]
fn chains_of_very_many_descriptors_end_a_call_before_its_budget() {
    let mut bench = Bench::ready(feature::USUAL);
    let sent = frame(true, 958, 0, Fill::Good);
    let (slot, place) = (bench.front.slot(0), GUEST_BASE + 0x1f_0000);
    bench.front.write(slot, &[&[0u8; 12][..], &sent].concat());
    // A byte in each descriptor.
    let byte = |n: u16| Descriptor {
        address: slot + u64::from(n),
        len: 1,
        flags: if n < 1023 { NEXT } else { 0 },
        next: n + 1,
    };
    let table: Vec<u8> = (0..1024).flat_map(|n| byte(n).bytes()).collect();
    bench.front.write(place, &table);
    for head in 0..8 {
        let len = table.len() as u32;
        bench.front.describe(FROM_GUEST, head, &Descriptor { address: place, len, flags: INDIRECT_TABLE, next: 0 });
        bench.front.offer(FROM_GUEST, head);
    }
    assert_eq!(bench.port.receive(&mut bench.rx, 64).unwrap(), Polled::More);
    assert_eq!(bench.rx.packets.len(), 4, "of a budget of 64");
    assert_eq!(bench.received(), vec![sent; 8]);
}

#[test]
fn a_guest_cannot_vouch_for_its_checksums() {
    for v4 in [true, false] {
        let mut bench = Bench::ready(feature::USUAL);
        let mut wrong = frame(v4, 100, 0, Fill::Good);
        *wrong.last_mut().unwrap() ^= 1;
        let mut tagged = header(v4, 0);
        tagged[0] = 3;
        bench.front.send_packet(0, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0], &wrong, &[]);
        bench.front.send_packet(1, &tagged, &frame(v4, 100, 1, Fill::Primed), &[]);
        let csums: Vec<Csum> = bench
            .receive()
            .into_iter()
            .map(|one| match one {
                Received::Frame(frame) => frame.csum,
                Received::Packet(packet) => panic!("it was parsed: {:?}", packet.offload.unit),
            })
            .collect();
        assert_eq!(csums, [Csum::Unknown, Csum::Partial]);
    }
}

#[test]
fn a_driver_that_verifies_no_checksums_gets_no_flags() {
    for (features, flags) in [(feature::USUAL, 2), (feature::USUAL & !feature::GUEST_CSUM, 0)] {
        let mut bench = Bench::ready(features);
        bench.front.offer_buffers(2048);
        let sent = frame(true, 100, 0, Fill::Good);
        let mut packet = testing::load_frame(&mut bench.pages, &sent);
        packet.offload.unit = Unit::Whole(Csum::Verified);
        assert_eq!(bench.send(packet), Sent::All);
        let got = bench.front.received();
        assert_eq!((got[0].0[0], &got[0].1), (flags, &sent));
    }
}

#[test]
fn a_driver_that_was_stopped_is_not_stalled_and_has_the_whole_time_again() {
    let mut bench = Bench::ready(feature::USUAL);
    let packet = train(&mut bench.pages, true, 20_000, 1400);
    assert_eq!(bench.send(packet), Sent::Blocked);
    wait_until_readable(bench.port.blocked_fd());
    assert_eq!((bench.transmit(), bench.number(GUEST_STALLED)), (Sent::All, 1));
    bench.front.send(message::GET_VRING_BASE, &state(TO_GUEST, 0));
    bench.port.listen().unwrap();
    assert_eq!((bench.number(GUEST_READY), bench.number(GUEST_STALLED)), (0, 0));
    bench.front.start_queue(TO_GUEST);
    bench.port.listen().unwrap();
    let packet = train(&mut bench.pages, true, 20_000, 1400);
    assert_eq!((bench.send(packet), bench.number(GUEST_STALLED)), (Sent::Blocked, 0));
}

#[test]
fn packets_without_a_guest_are_dropped_by_name() {
    let mut bench = Bench::new(feature::USUAL);
    let packet = train(&mut bench.pages, true, 20_000, 1400);
    assert_eq!(bench.send(packet), Sent::All);
    assert_eq!(bench.port.guest_drops().of(GuestDrop::NotReady), 15);
}

#[test]
fn a_train_that_waits_is_cut_for_a_guest_that_takes_none() {
    let mut bench = Bench::ready(feature::USUAL);
    let packet = train(&mut bench.pages, true, 20_000, 1400);
    assert_eq!(bench.send(packet), Sent::Blocked, "no buffers");
    // The guest restarts with another driver.
    let (near, far) = UnixStream::pair().unwrap();
    bench.port.stop(Stop::Ended);
    bench.port.connect(near).unwrap();
    bench.front = Frontend::over(far, feature::VERSION_1 | feature::PROTOCOL);
    bench.front.start();
    bench.port.listen().unwrap();
    bench.front.offer_buffers(2048);
    assert_eq!(bench.transmit(), Sent::All);
    let got = bench.front.received();
    assert_eq!((got.len(), payload(true, 0, &got)), (15, bytes(20_000, 0)));
}

#[test]
fn a_packet_that_contradicts_its_header_is_dropped_alone() {
    let mut bench = Bench::ready(feature::USUAL);
    let good = frame(true, 100, 0, Fill::Good);
    let wrong: [([u8; 10], &[u8], Drop); 4] = [
        (header(true, 0), &good[..30], Drop::ChecksumBounds),
        ([1, 7, 0, 0, 1, 0, 34, 0, 16, 0], &good, Drop::GsoType),
        ([0, 1, 0, 0, 9, 0, 34, 0, 16, 0], &good, Drop::GsoChecksumPlace),
        (PLAIN, &[], Drop::VnetShort),
    ];
    for (n, (header, packet, reason)) in (0..).zip(wrong) {
        bench.front.send_packet(2 * n, &header, packet, &[]);
        bench.front.send_packet(2 * n + 1, &PLAIN, &good, &[]);
        bench.front.kick(FROM_GUEST);
        assert_eq!(bench.received(), std::slice::from_ref(&good));
        assert_eq!(bench.port.counters().drops.of(reason), 1, "{reason:?}");
    }
    // Longer than any packet: the chain comes back, and the next packet is taken.
    let long = vec![0; 66_000];
    bench.front.send_packet(100, &PLAIN, &long, &[30_000, 30_000]);
    bench.front.send_packet(110, &PLAIN, &good, &[]);
    assert_eq!(bench.received(), [good]);
    assert_eq!(bench.port.guest_drops().of(GuestDrop::ChainLength), 1);
    assert_eq!(bench.port.stops().total(), 0);
}

#[test]
fn a_buffer_too_small_without_mergeable_ones_comes_back_empty() {
    let mut bench = Bench::ready(feature::VERSION_1 | feature::PROTOCOL);
    bench.front.offer_some(200, 2);
    let packet = testing::load_frame(&mut bench.pages, &frame(true, 1000, 0, Fill::Good));
    assert_eq!(bench.send(packet), Sent::All);
    assert_eq!(bench.front.returned(TO_GUEST), [(0, 0)]);
    assert_eq!(bench.port.guest_drops().of(GuestDrop::BufferTooSmall), 1);
    // A train is cut for them.
    let features = feature::USUAL & !feature::MRG_RXBUF;
    let mut bench = Bench::ready(features);
    bench.front.offer_buffers(1600);
    let packet = train(&mut bench.pages, true, 20_000, 1400);
    assert_eq!(bench.send(packet), Sent::All);
    let got = bench.front.received();
    assert_eq!((got.len(), payload(true, features, &got)), (15, bytes(20_000, 0)));
    assert_eq!(bench.port.guest_drops().total(), 0);
}

#[test]
fn pages_of_every_size_hold_the_same_packets() {
    for pages in [PagePool::of_frames(64), PagePool::new(64), PagePool::with_page_len(600, 4096)] {
        let mut bench = Bench::ready(feature::USUAL);
        bench.rx = RxBatch::over(pages);
        let frames: Vec<Vec<u8>> = (0..20).map(|n| frame(true, 10 + 3000 * (n % 5), n, Fill::Good)).collect();
        for (n, sent) in (0..).zip(&frames) {
            bench.front.send_packet(5 * n, &PLAIN, sent, &[5, 100, 1000]);
        }
        assert_eq!(bench.received(), frames);
    }
}

#[test]
fn without_a_page_the_guest_waits() {
    let mut bench = Bench::ready(feature::USUAL);
    bench.rx = RxBatch::over(PagePool::of_frames(2));
    let sent: Vec<Vec<u8>> = (0..3).map(|n| frame(true, 50, n, Fill::Good)).collect();
    (0..).zip(&sent).for_each(|(n, one)| bench.front.send_packet(n, &PLAIN, one, &[]));
    assert_eq!(bench.port.receive(&mut bench.rx, 64).unwrap(), Polled::Starved);
    assert_eq!(bench.rx.packets.drain(..).count(), 2);
    assert_eq!(bench.received(), sent[2..]);
}
