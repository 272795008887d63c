//! Tests of guests that offer few buffers, or buffers in very many descriptors.

use segue_testkit::vhost::{Descriptor, GUEST_BASE, INDIRECT_TABLE, NEXT, WRITE, feature};

use super::*;

/// Offers chains of the receive queue, each with one table of `len` buffers of one byte. Returns the address of the
/// table, which all of them share.
fn offer_bytes(front: &mut Frontend, chains: u16, len: u16) -> u64 {
    let (slot, place) = (front.slot(0), GUEST_BASE + 0x1f_0000);
    let table: Vec<u8> = (0..len)
        .map(|n| Descriptor {
            address: slot + u64::from(n),
            len: 1,
            flags: WRITE | if n + 1 < len { NEXT } else { 0 },
            next: n + 1,
        })
        .flat_map(|descriptor| descriptor.bytes())
        .collect();
    front.write(place, &table);
    for head in 0..chains {
        let len = table.len() as u32;
        front.describe(TO_GUEST, head, &Descriptor { address: place, len, flags: INDIRECT_TABLE, next: 0 });
        front.offer(TO_GUEST, head);
    }
    place
}

#[test]
fn buffers_that_are_too_few_are_not_read_again_before_there_are_more() {
    let mut bench = Bench::ready(feature::USUAL);
    let table = offer_bytes(&mut bench.front, 1, 1023);
    let packet = testing::load_frame(&mut bench.pages, &frame(true, 1400, 0, Fill::Good));
    assert_eq!(bench.send(packet), Sent::Blocked);
    // The port would stop for a table within a table.
    let mut wrong = Descriptor { address: bench.front.slot(0), len: 1, flags: INDIRECT_TABLE, next: 0 };
    bench.front.write(table, &wrong.bytes());
    for _ in 0..1000 {
        bench.front.kick(TO_GUEST);
        assert_eq!(bench.transmit(), Sent::Blocked);
        assert!(!is_readable(bench.port.blocked_fd()), "the kick was for nothing");
    }
    wait_until_readable(bench.port.blocked_fd());
    assert_eq!(bench.transmit(), Sent::All);
    for n in 0..1000 {
        let packet = testing::load_frame(&mut bench.pages, &frame(true, 1100 + n % 300, 0, Fill::Good));
        assert_eq!(bench.send(packet), Sent::All);
    }
    assert_eq!((bench.port.guest_drops().of(GuestDrop::NoBuffers), bench.port.stops().total()), (1001, 0));
    // A packet for which they suffice takes them, and so does a longer one with another buffer.
    wrong.flags = WRITE | NEXT;
    wrong.next = 1;
    bench.front.write(table, &wrong.bytes());
    let short = frame(true, 900, 0, Fill::Good);
    let packet = testing::load_frame(&mut bench.pages, &short);
    assert_eq!(bench.send(packet), Sent::All);
    assert_eq!(bench.front.returned(TO_GUEST), [(0, 12 + short.len() as u32)]);
    bench.front.offer(TO_GUEST, 0);
    let long = frame(true, 1400, 0, Fill::Good);
    let packet = testing::load_frame(&mut bench.pages, &long);
    assert_eq!(bench.send(packet), Sent::Blocked);
    bench.front.offer(TO_GUEST, 0);
    bench.front.kick(TO_GUEST);
    assert!(is_readable(bench.port.blocked_fd()));
    assert_eq!(bench.transmit(), Sent::All);
    assert_eq!(bench.front.returned(TO_GUEST), [(0, 1023), (0, 12 + long.len() as u32 - 1023)]);
}

#[test]
fn buffers_of_very_many_descriptors_end_a_call_before_its_last_packet() {
    let mut bench = Bench::ready(feature::USUAL);
    offer_bytes(&mut bench.front, 20, 1023);
    for n in 0..12 {
        let packet = testing::load_frame(&mut bench.pages, &frame(true, 900, n, Fill::Good));
        bench.tx.push(packet, bench.port.limits()).unwrap();
    }
    let sent = |bench: &mut Bench| (bench.transmit(), bench.front.returned(TO_GUEST).len());
    for n in 1..3 {
        assert_eq!(sent(&mut bench), (Sent::Blocked, 4), "of a batch of 12");
        assert!(is_readable(bench.port.blocked_fd()), "it goes on at once");
        assert_eq!(bench.number("ring_stalls"), 0, "{n}");
    }
    assert_eq!(sent(&mut bench), (Sent::All, 4));
    assert!(!is_readable(bench.port.blocked_fd()));
    assert_eq!((bench.port.guest_drops().total(), bench.port.stops().total()), (0, 0));
}

#[test]
fn a_stall_ends_with_new_buffers_whether_or_not_there_are_packets() {
    for features in [feature::USUAL, feature::USUAL & !feature::EVENT_IDX] {
        let mut bench = Bench::ready(features);
        let stall = |bench: &mut Bench| {
            let packet = train(&mut bench.pages, true, 20_000, 1400);
            assert_eq!(bench.send(packet), Sent::Blocked);
            wait_until_readable(bench.port.blocked_fd());
            assert_eq!((bench.transmit(), bench.number(GUEST_STALLED)), (Sent::All, 1));
        };
        stall(&mut bench);
        assert!(!is_readable(bench.port.link_fd().unwrap()));
        bench.port.listen().unwrap();
        assert_eq!(bench.number(GUEST_STALLED), 1, "nothing has come");
        bench.front.offer_buffers(2048);
        bench.front.kick(TO_GUEST);
        wait_until_readable(bench.port.link_fd().unwrap());
        bench.port.listen().unwrap();
        assert_eq!((bench.number(GUEST_STALLED), bench.number("ring_stalls")), (0, 1));
        // Nothing is left that would wake it.
        bench.front.kick(TO_GUEST);
        assert!(!is_readable(bench.port.link_fd().unwrap()));
        let packet = train(&mut bench.pages, true, 20_000, 1400);
        assert_eq!(bench.send(packet), Sent::All);
        assert_eq!(bench.front.received().len(), 1);
    }
}
