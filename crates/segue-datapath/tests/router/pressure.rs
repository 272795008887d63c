//! Tests of what one host, or one port, may use up of a router, and of what is left to others.

use segue_datapath::nat::Protocol;
use segue_testkit::build::V6;

use super::*;

/// Returns a frame of the inside host `from` with `len` bytes of a datagram that has begun in another fragment.
fn later_fragment(from: [u8; 4], id: u16, len: usize) -> Vec<u8> {
    let ip = Ip::V4(V4 { src: from, dst: [198, 18, 2, 2], id, ..V4::new(0, 0, 0) });
    let l4 = L4::Udp(Udp { src_port: 7, dst_port: 9, checksum: true });
    let whole = Packet { ip, l4, data: vec![7; len] }.bytes();
    let mut frame = Ethernet { dst: OWN[0], src: CLIENT, tags: Vec::new() }.wrap(&whole);
    // More fragments, and an offset of eight bytes.
    set_field(&mut frame, 20, 0x2001);
    frame
}

/// Tests that fragments of any length whose first one never comes cost other hosts nothing (RFC 4787, REQ-14).
#[test]
fn long_fragments_without_a_first_one_leave_memory_for_those_of_other_hosts() {
    let (client, server_at) = (([198, 18, 1, 2], 7000), ([198, 18, 2, 2], 9));
    in_both_forms(|| {
        let mut here = Bench::with_nat(65_535, Some([198, 18, 2, 100].into()));
        here.tables(SECOND, &[server(OLD)]);
        // 64 of them occupy all memory.
        here.give(0, (0..70).map(|id| later_fragment([198, 18, 1, 9], id, 62_000)).collect());
        here.rounds(SECOND);
        assert_eq!(here.number("in", Group::Drops, "nat_fragment"), 6);
        here.give(0, datagram(0, client, server_at, 5));
        here.rounds(SECOND);
        let sent = here.sent(1).into_iter().filter(|frame| frame[12..14] == [8, 0]);
        assert_eq!(sent.count(), 3);
        assert_eq!(here.number("in", Group::Drops, "nat_fragment"), 7);
    });
}

/// Tests that a blocked port holds back the other one, by which its packets come, and not what comes by itself, nor the
/// neighbours of the other one. What would leave by a blocked port although it came by it is dropped and counted.
#[test]
fn a_blocked_port_holds_back_its_source_and_not_the_other_way() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[by_hand(OLD)]);
        here.sent(1);
        here.wires[1].borrow_mut().room = Some(3);
        here.give(0, (0..20).map(|flow| segment_from(7000 + flow, 64, 1, 100)).collect());
        here.round(0);
        assert_eq!(here.sent(1).len(), 3);
        let received = here.wires[0].borrow().receives;
        here.give(0, vec![segment(64, 101, 100)]);
        let from_server = |to, port| short(1, 64, ([198, 18, 2, 2], 9), (to, port));
        here.give(1, vec![from_server([198, 18, 1, 2], 7), from_server([198, 18, 1, 77], 7)]);
        here.round(1);
        assert_eq!(here.wires[0].borrow().receives, received, "nothing more is read for the blocked port");
        let sent = here.sent(0);
        let is_request = |frame: &&Vec<u8>| frame[12..14] == [8, 6];
        assert_eq!((sent.len(), sent.iter().filter(is_request).count()), (2, 1), "the other way is open");
        here.give(1, vec![short(1, 64, ([198, 19, 0, 5], 9), ([198, 18, 2, 2], 7))]);
        here.round(2);
        assert_eq!(here.number("out", Group::Drops, "route_blocked"), 1);
        let mut write = 0;
        here.router.each_interest(&mut |interest| write += usize::from(interest.write));
        assert_eq!(write, 1);
        here.wires[1].borrow_mut().room = None;
        here.rounds(3);
        assert_eq!(here.sent(1).len(), 18);
    });
}

/// Tests that each neighbour that is due is queried, however many of them are due at once.
#[test]
fn as_many_neighbours_as_may_be_in_resolution_are_all_queried_again() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[]);
        for sender in 0..4_u8 {
            let by_v4 = |host: u8| short(0, 64, ([198, 18, 1, 10 + sender], 7), ([198, 19, sender, host], 9));
            let by_v6 = |host: u8| {
                let (src, dst) =
                    (v6(1, 10 + u16::from(sender)), v6(2, u16::from(sender) << 8 | 0x1000 | u16::from(host)));
                let ip = Ip::V6(V6 { src: src.octets(), dst: dst.octets(), ..V6::new(1, 0, 0) });
                let l4 = L4::Udp(Udp { src_port: 7, dst_port: 9, checksum: true });
                let packet = Packet { ip, l4, data: vec![7; 10] };
                Ethernet { dst: OWN[0], src: CLIENT, tags: Vec::new() }.wrap(&packet.bytes())
            };
            here.give(0, (0..64).flat_map(|host| [by_v4(host), by_v6(host)]).collect());
        }
        here.rounds(0);
        assert_eq!(here.sent(1).len(), 512);
        here.round(5 * SECOND / 4);
        assert_eq!(here.sent(1).len(), 512);
    });
}

/// Tests that nothing is read for a port that the packets in front are found to block: those that waited for a
/// neighbour which the kernel reports.
#[test]
fn packets_that_waited_hold_back_those_behind_them_where_they_block_their_port() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[]);
        let flows = |flows: std::ops::Range<u16>| flows.map(|flow| segment_from(7000 + flow, 64, 1, 100)).collect();
        here.give(0, flows(0..3));
        here.round(1);
        assert_eq!(here.left(), [(true, BROADCAST)]);
        here.wires[1].borrow_mut().room = Some(1);
        here.give(0, flows(3..8));
        here.change(2, NeighbourEvent::Set(by_hand(OLD)));
        assert_eq!((here.left().len(), here.wires[0].borrow().waiting.len()), (1, 5));
        here.wires[1].borrow_mut().room = None;
        here.rounds(3);
        assert_eq!(here.left(), [(false, OLD); 7]);
        assert_eq!(here.number("out", Group::Drops, "route_blocked"), 0);
    });
}

/// Returns the ARP request of a host outside for the outside address of a NAT.
fn asks_for_outside(host: u8) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 3, host];
    let mut frame = [&BROADCAST[..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &mac, &[198, 18, 2, host]].concat();
    frame.extend([&[0; 6][..], &[198, 18, 2, 100]].concat());
    frame
}

/// Tests that answers for the outside address of a NAT, and its announcements, leave behind what a blocked port has not
/// taken yet. So do some queries, which leave room to answers.
#[test]
fn what_neighbours_are_told_and_asked_waits_for_a_blocked_port() {
    in_both_forms(|| {
        let mut here = Bench::with_nat(1500, Some([198, 18, 2, 100].into()));
        here.tables(0, &[by_hand(OLD)]);
        here.give(0, (0..50).map(|host| short(0, 64, ([198, 18, 1, 2], 7), ([198, 19, 0, host], 9))).collect());
        here.rounds(1);
        assert_eq!(here.sent(1).len(), 1 + 50, "an announcement, and queries");
        here.wires[1].borrow_mut().room = Some(0);
        here.give(0, vec![segment(64, 1, 100)]);
        here.rounds(2);
        // Now 50 neighbours are to be queried again.
        here.round(SECOND + 2);
        here.give(1, (1..100).map(asks_for_outside).collect());
        here.rounds(SECOND + 3);
        let (asked, announced) = ("neighbour_questions", "announcements");
        let number = |here: &Bench, key| here.number("out", Group::Port, key);
        assert_eq!((number(&here, asked), number(&here, "foreign")), (50 + 32, 99 - 32));
        // An announcement is due, and waits for a place.
        here.round(2 * SECOND + 3);
        assert_eq!((number(&here, announced), here.sent(1).len()), (1, 0));

        here.wires[1].borrow_mut().room = None;
        here.round(2 * SECOND + 4);
        let sent = here.sent(1);
        assert_eq!(sent[0][..6], OLD, "first what was there first");
        let is_answer = |frame: &&Vec<u8>| frame[12..14] == [8, 6] && frame[20..22] == [0, 2];
        let answered: Vec<u8> = sent.iter().filter(is_answer).map(|frame| frame[5]).collect();
        assert_eq!((sent.len(), answered), (1 + 32 + 32, (1..=32).collect()));
        here.round(3 * SECOND);
        assert_eq!(number(&here, announced), 2);
        assert!(here.sent(1).iter().any(|frame| frame[..6] == BROADCAST && frame[28..32] == [198, 18, 2, 100]));
    });
}

/// Tests that senders outside, whose addresses may be forged, do not use up the rate limit of errors to inside hosts.
#[test]
fn errors_to_one_side_are_not_limited_by_those_to_the_other() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[by_hand(OLD)]);
        for number in 0..2000_u16 {
            let [high, low] = number.to_be_bytes();
            here.give(1, vec![short(1, 1, ([10, 0, high, low], 7), ([198, 18, 1, 2], 9))]);
        }
        here.rounds(0);
        let told = |here: &Bench, port| here.number(port, Group::Port, "icmp_errors");
        assert_eq!((told(&here, "out"), here.sent(0).len()), (200, 0));
        here.give(0, vec![segment(1, 1, 100)]);
        here.round(0);
        here.round(1_000_000);
        assert_eq!((told(&here, "in"), here.sent(0).len()), (1, 1));
    });
}

/// Tests that a router has no timer for mappings that never end, and one as long as there are others.
#[test]
fn mappings_that_never_end_have_no_timer() {
    in_both_forms(|| {
        let outside = Ipv4Addr::new(198, 18, 2, 100);
        let mut nat = Nat::new(Config::new(outside, 77));
        nat.forward(Protocol::Udp, 53, ([198, 18, 1, 2].into(), 53)).unwrap();
        let mut here = Bench::with_translator(1500, Some((nat, outside)));
        here.tables(0, &[by_hand(OLD)]);
        assert!(here.router.deadline().is_some(), "a second announcement");
        here.round(2 * SECOND);
        assert_eq!(here.router.deadline(), None);
        // A forwarded port by its mapping, and another port by a new one.
        for (port, timed, mappings) in [(53, false, 1), (54, true, 2)] {
            here.give(0, vec![short(0, 64, ([198, 18, 1, 2], port), ([198, 18, 2, 2], 9))]);
            here.rounds(2 * SECOND);
            assert_eq!(here.router.deadline().is_some(), timed, "{port}");
            assert_eq!(here.number("", Group::Worker, "nat_mappings"), mappings);
        }
        here.round(303 * SECOND);
        assert_eq!((here.router.deadline(), here.number("", Group::Worker, "nat_mappings")), (None, 1));
    });
}

/// Tests that a neighbour is not given up for its silence while a port is blocked: what it says is not read, or what it
/// is asked has not left.
#[test]
fn a_neighbour_is_not_given_up_while_a_port_is_blocked() {
    let at = |second: u64| second * SECOND + 2;
    let inside = |host| short(1, 64, ([198, 18, 2, 2], 9), ([198, 18, 1, host], 7));
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[server(OLD), Neighbour { hop: hop(0, [1, 77]), mac: NEW, is_permanent: false }]);
        here.wires[1].borrow_mut().room = Some(0);
        here.give(0, vec![segment(64, 1, 100)]);
        here.round(1);
        here.give(1, vec![inside(77), inside(78)]);
        here.round(2);
        // A query and the packet for the known neighbour, and a query for the other one.
        assert_eq!(here.sent(0).len(), 3);
        let no_neighbour = |here: &Bench| here.number("out", Group::Drops, "route_no_neighbour");
        for second in 1..=5 {
            here.round(at(second));
            assert_eq!((here.sent(0).len(), no_neighbour(&here)), (2, 0), "{second}");
        }
        let leaves_to = |here: &mut Bench, second| {
            here.give(1, vec![inside(77)]);
            here.round(at(second));
            let sent = here.sent(0);
            let frame = sent.last().unwrap();
            (frame[12..14] == [8, 6], frame[..6].to_vec())
        };
        assert_eq!(leaves_to(&mut here, 5), (false, NEW.to_vec()));

        here.wires[1].borrow_mut().room = None;
        here.rounds(at(6));
        here.left();
        assert_eq!(here.sends(at(6), 64), [(false, OLD)]);
        // Now silence counts again, after a second for what was asked last.
        here.round(at(7));
        here.round(at(8));
        assert_eq!((leaves_to(&mut here, 9), no_neighbour(&here)), ((false, NEW.to_vec()), 0));
        here.left();
        here.round(at(10));
        // The packet that waited is dropped, and the error about it waits for the other neighbour that was given up.
        assert_eq!((no_neighbour(&here), here.left()), (1, vec![(true, BROADCAST)]));
        assert_eq!(leaves_to(&mut here, 10), (true, BROADCAST.to_vec()));
    });
}

#[test]
fn messages_in_the_place_of_those_that_leave_keep_no_packets_out() {
    in_both_forms(|| {
        let mut here = Bench::with_nat(1500, Some([198, 18, 2, 100].into()));
        here.tables(0, &[by_hand(OLD)]);
        here.wires[1].borrow_mut().room = Some(0);
        here.give(0, vec![segment(64, 1, 100)]);
        here.rounds(1);
        here.give(0, vec![segment(64, 101, 100)]);
        let requests = || (1..=64).map(asks_for_outside).collect();
        here.give(1, requests());
        here.round(2);
        for round in 3..40 {
            here.give(1, requests());
            here.wires[1].borrow_mut().room = Some(8);
            here.round(round);
        }
        assert!(here.wires[0].borrow().waiting.is_empty(), "it is read once the port has been open");
    });
}
