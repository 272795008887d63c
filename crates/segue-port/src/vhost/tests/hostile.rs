//! Tests of rings and messages that no valid driver or front end would write: each stops the port for its own reason.

use std::fs::File;
use std::os::fd::AsFd;

use segue_testkit::vhost::{
    Descriptor, GUEST_BASE, INDIRECT_TABLE, MEMORY_LEN, NEXT, USER_BASE, WRITE, addresses, feature, message, region,
    state,
};

use super::*;

/// Offers one chain of the given descriptors to a port, and expects it to stop.
#[track_caller]
fn stops(queue: u16, reason: Stop, features: u64, descriptors: &[Descriptor]) {
    let mut bench = Bench::ready(features);
    for (n, descriptor) in (0..).zip(descriptors) {
        bench.front.describe(queue, n, descriptor);
    }
    bench.front.offer(queue, 0);
    bench.drive(queue);
    bench.assert_stopped(reason);
    assert!(bench.rx.pages.in_use() <= 1, "no page stays but the one for the next read");
    assert_eq!(bench.pages.in_use(), 0, "what was for the guest is dropped");
}

impl Bench {
    /// Makes the port process a queue.
    fn drive(&mut self, queue: u16) {
        if queue == FROM_GUEST {
            assert!(self.received().is_empty());
        } else {
            let packet = testing::load_frame(&mut self.pages, &frame(true, 100, 0, Fill::Good));
            assert_eq!(self.send(packet), Sent::All);
        }
    }
}

fn at(offset: u64, len: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { address: GUEST_BASE + offset, len, flags, next }
}

#[test]
fn loops_and_numbers_outside_of_the_table_stop_the_port() {
    for (queue, write) in [(FROM_GUEST, 0), (TO_GUEST, WRITE)] {
        let piece = |flags, next| at(0x50_0000, 64, flags | write, next);
        stops(queue, Stop::RingLoop, feature::USUAL, &[piece(NEXT, 0)]);
        stops(queue, Stop::RingLoop, feature::USUAL, &[piece(NEXT, 1), piece(NEXT, 2), piece(NEXT, 1)]);
        stops(queue, Stop::RingHead, feature::USUAL, &[piece(NEXT, 256)]);
        stops(queue, Stop::RingHead, feature::USUAL, &[piece(NEXT, 1), piece(NEXT, 65_535)]);
    }
    let mut bench = Bench::ready(feature::USUAL);
    bench.front.offer(FROM_GUEST, 256);
    bench.drive(FROM_GUEST);
    bench.assert_stopped(Stop::RingHead);
}

/// Tests that the guest has each packet that counts as sent, also where the next one stops its port.
#[test]
fn what_counts_as_sent_is_shown_to_the_guest_although_the_next_packet_stops_the_port() {
    let mut bench = Bench::ready(feature::USUAL);
    for (n, offset) in [(0, 0x50_0000), (1, MEMORY_LEN)] {
        bench.front.describe(TO_GUEST, n, &at(offset, 2048, WRITE, 0));
        bench.front.offer(TO_GUEST, n);
    }
    for seed in 0..2 {
        let packet = testing::load_frame(&mut bench.pages, &frame(true, 100, seed, Fill::Good));
        bench.tx.push(packet, bench.port.limits()).unwrap();
    }
    assert_eq!(bench.transmit(), Sent::All);
    assert_eq!((bench.front.returned(TO_GUEST).len(), bench.port.counters().tx.packets), (1, 1));
    bench.assert_stopped(Stop::RingAddress);
}

#[test]
fn addresses_outside_of_memory_stop_the_port() {
    for (queue, write) in [(FROM_GUEST, 0), (TO_GUEST, WRITE)] {
        let end = MEMORY_LEN;
        for bad in [
            at(end - 10, 64, write, 0),
            at(end, 64, write, 0),
            Descriptor { address: 0, len: 64, flags: write, next: 0 },
            Descriptor { address: u64::MAX - 10, len: 64, flags: write, next: 0 },
            Descriptor { address: GUEST_BASE - 1, len: 64, flags: write, next: 0 },
            at(0, u32::MAX, write, 0),
        ] {
            stops(queue, Stop::RingAddress, feature::USUAL, &[bad]);
            stops(queue, Stop::RingAddress, feature::USUAL, &[at(0x50_0000, 20, NEXT | write, 1), bad]);
        }
    }
    // A ring of buffers without bytes is not read to its end.
    stops(TO_GUEST, Stop::RingAddress, feature::USUAL, &[at(0x50_0000, 0, WRITE, 0)]);
}

#[test]
fn descriptors_in_the_wrong_direction_stop_the_port() {
    stops(FROM_GUEST, Stop::RingDirection, feature::USUAL, &[at(0x50_0000, 64, WRITE, 0)]);
    stops(TO_GUEST, Stop::RingDirection, feature::USUAL, &[at(0x50_0000, 2048, 0, 0)]);
}

#[test]
fn wrong_indirect_tables_stop_the_port() {
    let none = feature::USUAL & !feature::INDIRECT;
    stops(FROM_GUEST, Stop::RingIndirect, none, &[at(0x1f_0000, 16, INDIRECT_TABLE, 0)]);
    for len in [0, 15, 17, (65_536 + 1) * 16] {
        stops(FROM_GUEST, Stop::RingIndirect, feature::USUAL, &[at(0x1f_0000, len, INDIRECT_TABLE, 0)]);
    }
    stops(FROM_GUEST, Stop::RingIndirect, feature::USUAL, &[at(0x1f_0000, 16, INDIRECT_TABLE | NEXT, 0)]);
    stops(FROM_GUEST, Stop::RingAddress, feature::USUAL, &[at(MEMORY_LEN - 8, 16, INDIRECT_TABLE, 0)]);
    let tables: [(&[Descriptor], Stop); 4] = [
        (&[at(0x50_0000, 16, INDIRECT_TABLE, 0)], Stop::RingIndirect),
        (&[at(0x50_0000, 16, NEXT, 0)], Stop::RingLoop),
        (&[at(0x50_0000, 16, NEXT, 9)], Stop::RingHead),
        (&[at(0x50_0000, 16, NEXT, 1), at(0x50_0000, 16, NEXT, 0)], Stop::RingLoop),
    ];
    for (table, reason) in tables {
        let mut bench = Bench::ready(feature::USUAL);
        let bytes: Vec<u8> = table.iter().flat_map(Descriptor::bytes).collect();
        bench.front.write(GUEST_BASE + 0x1f_0000, &bytes);
        bench.front.describe(FROM_GUEST, 0, &at(0x1f_0000, bytes.len() as u32, INDIRECT_TABLE, 0));
        bench.front.offer(FROM_GUEST, 0);
        bench.drive(FROM_GUEST);
        bench.assert_stopped(reason);
    }
    // A long table without a loop is a chain with too many descriptors.
    let mut bench = Bench::ready(feature::USUAL);
    let table: Vec<u8> = (0..2000).flat_map(|n| at(0x50_0000, 1, NEXT, n + 1).bytes()).collect();
    bench.front.write(GUEST_BASE + 0x1f_0000, &table);
    bench.front.describe(FROM_GUEST, 0, &at(0x1f_0000, table.len() as u32, INDIRECT_TABLE, 0));
    bench.front.offer(FROM_GUEST, 0);
    bench.drive(FROM_GUEST);
    bench.assert_stopped(Stop::RingLoop);
}

#[test]
fn indexes_that_jump_stop_the_port() {
    for queue in [FROM_GUEST, TO_GUEST] {
        for index in [257, 30_000, 65_535] {
            let mut bench = Bench::ready(feature::USUAL);
            bench.front.set_offered(queue, index);
            bench.drive(queue);
            bench.assert_stopped(Stop::RingIndex);
        }
    }
}

#[test]
fn a_file_that_becomes_shorter_stops_the_port_and_no_other() {
    let mut other = Bench::ready(feature::USUAL);
    other.front.offer_buffers(2048);
    for queue in [FROM_GUEST, TO_GUEST] {
        // The rings themselves go, or the buffers.
        for len in [0, 0x20_0000] {
            let mut bench = Bench::ready(feature::USUAL);
            bench.front.offer_buffers(2048);
            bench.front.send_packet(0, &PLAIN, &frame(true, 1000, 0, Fill::Good), &[]);
            bench.front.memory.set_len(len).unwrap();
            bench.drive(queue);
            let _ = bench.received();
            assert_eq!(bench.port.stops().of(Stop::MemoryLost), 1, "{queue} {len} {:?}", bench.port.stops());
            // A ring that is gone looks empty.
            let lost = u64::from(queue == TO_GUEST || len > 0);
            let drops = bench.port.guest_drops();
            assert_eq!((drops.of(GuestDrop::Reset), drops.total()), (lost, lost), "{queue} {len}");
            let sent = frame(true, 10, 0, Fill::Good);
            other.front.send_packet(0, &PLAIN, &sent, &[]);
            assert_eq!(other.received(), [sent]);
        }
    }
    assert_eq!(other.port.stops().total(), 0);
}

#[test]
fn chains_that_change_under_way_give_wrong_payload_at_most() {
    let mut bench = Bench::ready(feature::USUAL);
    let memory = bench.front.memory.try_clone().unwrap();
    let ends = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_over = std::sync::Arc::clone(&ends);
    // Another thread rewrites the descriptor, its length and the header all the time, between two legal values.
    let writer = std::thread::spawn(move || {
        use std::os::unix::fs::FileExt;
        let mut seed = 1u64;
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = 12 + (seed >> 40) as u32 % 60_000;
            let descriptor = at(0x50_0000 + (seed >> 33) % 1000, len, 0, 0);
            memory.write_all_at(&descriptor.bytes(), 0x10_0000).unwrap();
            let header: Vec<u8> = (0..12).map(|n| (seed >> (n % 8)) as u8 & 0x87).collect();
            memory.write_all_at(&header, 0x50_0000 + (seed >> 33) % 1000).unwrap();
        }
    });
    bench.front.describe(FROM_GUEST, 0, &at(0x50_0000, 100, 0, 0));
    for _ in 0..300 {
        bench.front.offer(FROM_GUEST, 0);
        for received in bench.receive() {
            // Of two lengths the bytes may be mixed.
            assert!(received.len() <= 61_000);
        }
    }
    ends.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    assert_eq!(bench.port.stops().total(), 0);
    assert_eq!(bench.front.returned(FROM_GUEST).len(), 300 - 256 + 256);
}

/// Sends messages with `send` to a port with a ready guest, and expects it to stop.
#[track_caller]
fn refused(reason: Stop, send: impl FnOnce(&mut Frontend)) {
    let mut bench = Bench::ready(feature::USUAL);
    send(&mut bench.front);
    bench.port.listen().unwrap();
    // The front end may have ended before the port answered.
    bench.port.listen().unwrap();
    bench.assert_stopped(reason);
}

#[test]
fn what_was_not_offered_is_refused_by_name() {
    let with = |feature: u64| (feature::USUAL | feature).to_le_bytes();
    refused(Stop::Migration, |front| front.send(message::SET_FEATURES, &with(feature::LOG_ALL)));
    refused(Stop::Iommu, |front| front.send(message::SET_FEATURES, &with(feature::ACCESS_PLATFORM)));
    refused(Stop::Features, |front| front.send(message::SET_FEATURES, &with(1 << 34)));
    refused(Stop::Features, |front| front.send(message::SET_PROTOCOL_FEATURES, &(1u64 << 4).to_le_bytes()));
    refused(Stop::Migration, |front| front.send(message::SET_LOG_BASE, &[0; 16]));
    refused(Stop::Migration, |front| {
        let mut payload = addresses(0, [USER_BASE, USER_BASE + 0x10_000, USER_BASE + 0x8000]);
        payload[4] = 1;
        front.send(message::SET_VRING_ADDR, &payload);
    });
    refused(Stop::Iommu, |front| front.send(message::IOTLB_MSG, &[0; 32]));
    for number in [0, 19, 20, 24, 25, 31, 35, 39, 41, u32::MAX] {
        refused(Stop::MessageUnknown, |front| front.send(number, &[0; 8]));
    }
}

#[test]
fn queues_past_those_offered_are_refused() {
    for number in [message::SET_VRING_NUM, message::SET_VRING_BASE, message::GET_VRING_BASE, message::SET_VRING_ENABLE]
    {
        for queue in [2, 3, 255, u16::MAX] {
            refused(Stop::QueueIndex, |front| front.send(number, &state(queue, 256)));
        }
    }
    refused(Stop::QueueIndex, |front| front.send(message::SET_VRING_ADDR, &addresses(2, [USER_BASE; 3])));
    for number in [message::SET_VRING_KICK, message::SET_VRING_CALL, 14] {
        let null = File::open("/dev/null").unwrap();
        refused(Stop::QueueIndex, |front| front.send_with(number, 1, &7u64.to_le_bytes(), &[null.as_fd()]));
    }
}

#[test]
fn wrong_sizes_addresses_and_kicks_are_refused() {
    for size in [0, 3, 255, 65_536, u32::MAX] {
        refused(Stop::QueueSize, |front| front.send(message::SET_VRING_NUM, &state(0, size)));
    }
    for parts in [
        [USER_BASE + 8, USER_BASE + 0x1000, USER_BASE + 0x2000],
        [USER_BASE, USER_BASE + 2, USER_BASE + 0x2000],
        [USER_BASE, USER_BASE + 0x1000, USER_BASE + 1],
        [USER_BASE + MEMORY_LEN - 16, USER_BASE, USER_BASE],
        [0, USER_BASE, USER_BASE],
        [!15, USER_BASE, USER_BASE],
    ] {
        refused(Stop::QueueAddress, |front| front.send(message::SET_VRING_ADDR, &addresses(0, parts)));
    }
    // A queue to be polled, and a kick that cannot be polled.
    refused(Stop::QueueKick, |front| front.send(message::SET_VRING_KICK, &(1u64 | 1 << 8).to_le_bytes()));
    let file = File::open("/proc/self/exe").unwrap();
    refused(Stop::QueueKick, |front| {
        front.send_with(message::SET_VRING_KICK, 1, &1u64.to_le_bytes(), &[file.as_fd()]);
    });
    // A call may be missing: the guest polls.
    let mut bench = Bench::ready(feature::USUAL);
    bench.front.send(message::SET_VRING_CALL, &(1 << 8 | 1u64).to_le_bytes());
    bench.port.listen().unwrap();
    assert!(bench.port.is_ready());
}

#[test]
fn wrong_regions_of_memory_are_refused() {
    let add = |front: &mut Frontend, region: Vec<u8>| {
        let memory = front.memory.try_clone().unwrap();
        front.send_with(message::ADD_MEM_REG, 1, &[vec![0; 8], region].concat(), &[memory.as_fd()]);
    };
    let (guest, user) = (0x9000_0000, USER_BASE + (1 << 41));
    refused(Stop::MemoryLength, |front| add(front, region(guest, 0, user, 0)));
    refused(Stop::MemoryLength, |front| add(front, region(u64::MAX - 4095, 8192, user, 0)));
    refused(Stop::MemoryLength, |front| add(front, region(guest, 4096, u64::MAX, 0)));
    refused(Stop::MemoryLength, |front| add(front, region(guest, 4096, user, u64::MAX)));
    // A file without content may have any length; all regions together may not.
    refused(Stop::MemoryLength, |front| {
        front.memory.set_len(1 << 45).unwrap();
        add(front, region(1 << 44, 1 << 45, 1 << 50, 0));
    });
    refused(Stop::MemoryLength, |front| {
        front.memory.set_len(1 << 40).unwrap();
        add(front, region(1 << 41, 1 << 39, 1 << 50, 0));
        add(front, region(1 << 42, 1 << 39, 1 << 51, 0));
    });
    refused(Stop::MemoryRegions, |front| add(front, region(GUEST_BASE + 4096, 4096, user, 0)));
    refused(Stop::MemoryRegions, |front| add(front, region(guest, 4096, USER_BASE + 4096, 0)));
    refused(Stop::MemoryMapping, |front| add(front, region(guest, 4096, user, 1)));
    refused(Stop::MemoryRegions, |front| {
        front.send(message::REM_MEM_REG, &[vec![0; 8], region(guest, 4096, user, 0)].concat());
    });
    // The rings lie in a region that goes while another one stays.
    let mut bench = Bench::ready(feature::USUAL);
    add(&mut bench.front, region(guest, 4096, user, 0));
    let payload = [vec![0; 8], region(GUEST_BASE, MEMORY_LEN, USER_BASE, 0)].concat();
    bench.front.send(message::REM_MEM_REG, &payload);
    bench.port.listen().unwrap();
    bench.assert_stopped(Stop::QueueAddress);
    // As many as are offered, and one more.
    let mut bench = Bench::ready(feature::USUAL);
    for n in 0..64 {
        assert_eq!(bench.port.stops().total(), 0, "{n}");
        add(&mut bench.front, region(guest + n * 4096, 4096, user + n * 4096, 0));
        bench.port.listen().unwrap();
    }
    bench.assert_stopped(Stop::MemoryRegions);
    // A file that cannot be mapped.
    let null = File::open("/dev/null").unwrap();
    refused(Stop::MemoryMapping, |front| {
        let payload = [vec![0; 8], region(guest, 4096, user, 0)].concat();
        front.send_with(message::ADD_MEM_REG, 1, &payload, &[null.as_fd()]);
    });
    // A region past the end of its file is noticed when it is used.
    let mut bench = Bench::ready(feature::USUAL);
    add(&mut bench.front, region(guest, 4096, user, MEMORY_LEN));
    bench.port.listen().unwrap();
    bench.front.describe(FROM_GUEST, 0, &Descriptor { address: guest, len: 100, flags: 0, next: 0 });
    bench.front.offer(FROM_GUEST, 0);
    bench.drive(FROM_GUEST);
    bench.assert_stopped(Stop::MemoryLost);
}

#[test]
fn messages_of_a_wrong_length_or_with_wrong_descriptors_are_refused() {
    let null = || File::open("/dev/null").unwrap();
    for number in (1..19).filter(|number| ![6, 7].contains(number)) {
        refused(Stop::MessageLength, |front| front.send(number, &[0; 7]));
    }
    refused(Stop::MessageLength, |front| front.send_raw(&[1, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255]));
    refused(Stop::MessageLength, |front| front.send_raw(&[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]));
    refused(Stop::MessageLength, |front| front.send_with(1, 1 | 4, &[], &[]));
    refused(Stop::MessageLength, |front| {
        front.send(message::SET_MEM_TABLE, &[&9u32.to_le_bytes()[..], &[0; 4 + 8 * 32]].concat());
    });
    refused(Stop::MessageDescriptors, |front| {
        let payload = [&1u32.to_le_bytes()[..], &[0; 4], &region(GUEST_BASE, 4096, USER_BASE, 0)].concat();
        front.send(message::SET_MEM_TABLE, &payload);
    });
    refused(Stop::MessageDescriptors, |front| front.send_with(1, 1, &[], &[null().as_fd()]));
    refused(Stop::MessageDescriptors, |front| front.send(message::SET_VRING_KICK, &0u64.to_le_bytes()));
    let many = [null(), null()];
    let many: Vec<_> = many.iter().map(AsFd::as_fd).cycle().take(20).collect();
    refused(Stop::MessageDescriptors, |front| front.send_with(1, 1, &[], &many));
}

#[test]
fn three_bytes_and_silence_hold_nothing_up_and_end_by_name() {
    let mut bench = Bench::ready(feature::USUAL);
    bench.front.send_raw(&[1, 0, 0]);
    bench.port.listen().unwrap();
    // Packets go on meanwhile.
    let sent = frame(true, 10, 0, Fill::Good);
    bench.front.send_packet(0, &PLAIN, &sent, &[]);
    assert_eq!(bench.received(), [sent]);
    let begin = Instant::now();
    while bench.port.stops().total() == 0 {
        wait_until_readable(bench.port.link_fd().unwrap());
        bench.port.listen().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
    bench.assert_stopped(Stop::MessageIncomplete);
    // The same where the front end ends instead.
    let mut bench = Bench::new(feature::USUAL);
    bench.front.send_raw(&[1, 0, 0]);
    let (_, far) = UnixStream::pair().unwrap();
    bench.front = Frontend::over(far, 0);
    bench.port.listen().unwrap();
    assert_eq!(bench.port.stops().of(Stop::MessageIncomplete), 1);
}

#[test]
fn a_front_end_that_reads_no_reply_is_stopped() {
    let mut bench = Bench::ready(feature::USUAL);
    let mut asked = 0;
    while bench.port.stops().total() == 0 {
        (0..50).for_each(|_| bench.front.send(message::GET_FEATURES, &[]));
        bench.port.listen().unwrap();
        asked += 50;
        assert!(asked < 1_000_000);
    }
    assert_eq!(bench.port.stops().of(Stop::ReplyBlocked), 1, "{:?}", bench.port.stops());
}
