//! Tests of address resolution: what one sender may cost others, long answers, and an outside address that another host
//! has.

use std::net::Ipv6Addr;

use segue::checksum::{Field, pseudo_v6};
use segue::wire::ndisc::{Body, MAX_FRAME, Message as Discovery, OVERRIDE, SOLICITED};
use segue_datapath::board::Group;
use segue_testkit::build::V6;

use super::*;

/// Senders inside.
const ONE: [u8; 4] = [198, 18, 1, 3];
const OTHER: [u8; 4] = [198, 18, 1, 4];
/// A host outside that answers.
const HOST: [u8; 4] = [198, 19, 200, 1];

/// Returns a packet to an unused address outside, from a port of its own.
fn to_unused(number: u16, port: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    short(0, 64, (ONE, port), ([198, 19, high, low], 9))
}

/// Returns a packet with `len` bytes of data to an unused address outside.
fn long(number: u16, len: usize) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    let ip = Ip::V4(V4 { src: ONE, dst: [198, 19, high, low], ttl: 64, ..V4::new(0, 0, 0) });
    let packet = Packet { ip, l4: L4::Udp(Udp { src_port: 7, dst_port: 9, checksum: true }), data: vec![7; len] };
    Ethernet { dst: OWN[0], src: CLIENT, tags: Vec::new() }.wrap(&packet.bytes())
}

/// Returns whether one of the frames asks for the link address of `address`.
fn asks_for(frames: &[Vec<u8>], address: [u8; 4]) -> bool {
    frames.iter().any(|frame| frame[12..14] == [8, 6] && frame[38..42] == address)
}

/// Tests that a sender over its limit keeps no other one from a new neighbour (RFC 6583): neither by its number of
/// neighbours, nor by that of the packets that wait for them.
#[test]
fn a_scan_evicts_no_neighbour_that_another_sender_asked_for() {
    // Neighbours of the scan that are queried, the packets for each, and those that are not queried.
    for (queried, packets, more) in [(64, 1, 300), (8, 32, 0), (16, 32, 0), (64, 3, 300)] {
        in_both_forms(|| {
            let mut here = Bench::new(1500);
            here.tables(0, &[]);
            let scan = |from: u16, count: u16| -> Vec<Vec<u8>> {
                (from..from + count).flat_map(|number| (0..packets).map(move |port| to_unused(number, port))).collect()
            };
            here.give(0, vec![short(0, 64, (OTHER, 7), (HOST, 9))]);
            here.rounds(0);
            assert!(asks_for(&here.sent(1), HOST));
            here.give(0, scan(1, queried));
            here.rounds(1);
            assert_eq!(here.left(), vec![(true, BROADCAST); usize::from(queried)]);
            here.give(0, scan(1000, more));
            here.rounds(2);
            assert_eq!(here.left(), []);
            here.answers_from(3, NEW, HOST);
            assert_eq!(here.left(), [(false, NEW)], "{queried} with {packets}, and {more}");
        });
    }
}

/// Tests that packets that wait for neighbours occupy no buffers that others are received into, though there are fewer
/// of these, and that a neighbour is queried also where they occupy all memory that there is for them.
#[test]
fn a_scan_keeps_no_packets_from_being_received_and_no_neighbour_from_being_queried() {
    // Of the longer ones 128 occupy all memory, without a rest.
    for len in [1400, 32_768] {
        in_both_forms(|| {
            let mut here = Bench::new(50_000);
            here.tables(0, &[by_hand(OLD)]);
            here.give(0, (1..=300).map(|number| long(number, len)).collect());
            here.rounds(0);
            here.sent(1);
            assert_eq!(here.sends(0, 64), [(false, OLD)], "beside packets of {len} bytes that wait");
            here.give(0, vec![short(0, 64, (OTHER, 7), (HOST, 9))]);
            here.rounds(0);
            assert!(asks_for(&here.sent(1), HOST), "beside packets of {len} bytes that wait");
        });
    }
}

/// Tests that packets of another sender stay where those of one occupy all memory, though they are few.
#[test]
fn long_packets_that_wait_make_room_before_those_of_another_sender() {
    in_both_forms(|| {
        let mut here = Bench::new(65_535);
        here.tables(0, &[]);
        here.give(0, vec![short(0, 64, (OTHER, 7), (HOST, 9))]);
        here.rounds(0);
        assert!(asks_for(&here.sent(1), HOST));
        here.give(0, (1..=64).map(|number| long(number, 65_000)).collect());
        here.rounds(1);
        here.sent(1);
        here.answers_from(3, NEW, HOST);
        assert_eq!(here.left(), [(false, NEW)]);
    });
}

/// Tests that a neighbour is queried for the packet of another sender, although as many packets as may wait for it are
/// of one over its limit.
#[test]
fn a_neighbour_with_a_full_queue_is_queried_for_another_sender() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[]);
        here.give(0, (1..=64).map(|number| to_unused(number, 7)).collect());
        here.give(0, (1..=40).map(|port| short(0, 64, (ONE, port), (HOST, 9))).collect());
        here.rounds(0);
        assert!(!asks_for(&here.sent(1), HOST));
        here.give(0, vec![short(0, 64, (OTHER, 7), (HOST, 9))]);
        here.rounds(0);
        assert!(asks_for(&here.sent(1), HOST));
        here.answers_from(1, NEW, HOST);
        assert_eq!(here.left().len(), 32);
    });
}

/// Returns a frame of the outside host `from` to the router, which tells its link address after an unknown option of
/// `option` bytes.
fn advertisement(from: Ipv6Addr, option: usize) -> Vec<u8> {
    let body = Body::Advertisement { target: from, target_link: Some(NEW), flags: SOLICITED | OVERRIDE };
    let mut frame = vec![0; MAX_FRAME];
    let len = Discovery { source: from, destination: v6(2, 1), body }.frame(OWN[1], NEW, &mut frame).unwrap();
    frame.truncate(len);
    let mut unknown = vec![0; option];
    if let Some(header) = unknown.first_chunk_mut() {
        *header = [253, (option / 8) as u8];
    }
    frame.splice(78..78, unknown);
    let len = frame.len() - 54;
    frame[18..20].copy_from_slice(&(len as u16).to_be_bytes());
    frame[56..58].fill(0);
    let mut sum = pseudo_v6(from.octets(), v6(2, 1).octets(), 58, len);
    sum.add(&frame[54..]);
    frame[56..58].copy_from_slice(&Field::complete(sum).value().to_be_bytes());
    frame
}

/// Tests that a neighbour may send options that the router does not know (RFC 4861, section 9), as many as fit in its
/// MTU.
#[test]
fn an_answer_is_read_with_options_of_any_length() {
    for option in [0, 8, 256, 1368] {
        in_both_forms(|| {
            let mut here = Bench::new(1500);
            here.tables(0, &[]);
            let ip = Ip::V6(V6 { src: v6(1, 2).octets(), dst: v6(2, 7).octets(), ..V6::new(1, 0, 0) });
            let l4 = L4::Udp(Udp { src_port: 7, dst_port: 9, checksum: true });
            let packet = Packet { ip, l4, data: vec![7; 10] };
            here.give(0, vec![Ethernet { dst: OWN[0], src: CLIENT, tags: Vec::new() }.wrap(&packet.bytes())]);
            here.round(0);
            assert_eq!(here.sent(1).len(), 1, "the solicitation");
            here.give(1, vec![advertisement(v6(2, 7), option)]);
            here.round(1);
            assert_eq!(here.left(), [(false, NEW)], "{option}");
            assert_eq!(here.number("out", Group::Port, "neighbour_answers"), 1);
        });
    }
}

/// Returns an ARP message of a host at `mac` that has the outside address.
fn conflict(operation: u8, to: [u8; 6], mac: [u8; 6], target: [u8; 4]) -> Vec<u8> {
    let mut frame = [&to[..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    frame.extend([&mac[..], &[198, 18, 2, 100], &[0; 6], &target].concat());
    frame
}

/// Tests that another host with the outside address is counted, shown for a while, and answered by one announcement in
/// ten seconds (RFC 5227, section 2.4).
#[test]
fn another_host_with_the_outside_address_is_shown_and_the_address_is_defended() {
    in_both_forms(|| {
        let mut here = Bench::with_nat(1500, Some([198, 18, 2, 100].into()));
        here.tables(0, &[]);
        (0..10).for_each(|second| here.round(second * SECOND));
        let state = |here: &Bench| {
            ["address_conflicts", "address_conflict", "announcements"].map(|key| here.number("out", Group::Port, key))
        };
        assert_eq!((state(&here), here.sent(1).len()), ([0, 0, 2], 2), "it was announced at the start");
        // Its own message, which a loop returns, and one of an inside host.
        here.give(1, vec![conflict(1, BROADCAST, OWN[1], [198, 18, 2, 100])]);
        here.give(0, vec![conflict(1, BROADCAST, NEW, [198, 18, 2, 100])]);
        here.rounds(10 * SECOND);
        assert_eq!(state(&here), [0, 0, 2]);
        // A request, a gratuitous one and an answer.
        for (number, (second, sent)) in [(20, 1), (21, 0), (29, 0), (30, 1), (30, 0)].into_iter().enumerate() {
            let message = match number % 3 {
                0 => conflict(1, BROADCAST, NEW, [198, 18, 2, 7]),
                1 => conflict(1, BROADCAST, NEW, [198, 18, 2, 100]),
                _ => conflict(2, OWN[1], NEW, [198, 18, 2, 1]),
            };
            here.give(1, vec![message]);
            here.round(second * SECOND);
            let announced = here.sent(1);
            assert_eq!(announced.len(), sent, "{second} s");
            assert!(announced.iter().all(|frame| frame[6..12] == OWN[1] && asks_for(&announced, [198, 18, 2, 100])));
            assert_eq!(state(&here)[..2], [number as u64 + 1, 1]);
        }
        for (second, is_shown) in [(149, 1), (151, 0)] {
            here.round(second * SECOND);
            assert_eq!(state(&here), [5, is_shown, 4], "{second} s");
        }
    });
}

#[test]
fn an_outside_address_that_the_host_has_itself_is_shown() {
    let mut here = Bench::with_nat(1500, Some([198, 18, 2, 100].into()));
    for (local, is_shown) in [(None, 0), (Some([198, 18, 2, 99]), 0), (Some([198, 18, 2, 100]), 1), (None, 0)] {
        here.local = local.map(Ipv4Addr::from);
        here.tables(0, &[]);
        assert_eq!(here.number("out", Group::Port, "address_local"), is_shown, "{local:?}");
    }
}
