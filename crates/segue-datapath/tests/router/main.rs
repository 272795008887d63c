//! Tests of a router between two ports in memory: next hops, solicitations, and the order in which packets leave.

mod forwarding;
#[path = "../memory/mod.rs"]
mod memory;
mod pressure;
mod resolution;

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use memory::{Carries, Memory, Wire, counter, counters, in_both_forms};
use segue::checksum::Field;
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::{Group, Stage};
use segue_datapath::gateway::PortConfig;
use segue_datapath::nat::{Config, Nat};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::route::{Action, Hop, Routes, Table};
use segue_datapath::router::{
    FeedSender, InterfaceAddrs, Message, Neighbour, NeighbourEvent, Parts, Router, Tables, feed,
};
use segue_port::PagePool;
use segue_testkit::Rng;
use segue_testkit::build::{Ethernet, Ip, L4, Packet, Tcp, Udp, V4};
use segue_testkit::fragment::{fragments, reassemble};

const SECOND: u64 = 1_000_000_000;
/// Link addresses of the router's ports.
const OWN: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 2, 1]];
/// Link address of the client.
const CLIENT: [u8; 6] = [2, 0, 0, 0, 1, 2];
/// Link address of the server at first.
const OLD: [u8; 6] = [2, 0, 0, 0, 2, 2];
/// Link address of the server later.
const NEW: [u8; 6] = [2, 0, 0, 0, 2, 0x77];
/// Broadcast link address.
const BROADCAST: [u8; 6] = [0xff; 6];
/// Largest number of learned neighbours of one family on one port.
const MAX_NEIGHBOURS: u32 = 8192;

struct Bench {
    router: Router,
    wires: [Rc<RefCell<Wire>>; 2],
    sender: FeedSender,
    mtu: u32,
    /// An address of the host, besides those of the ports.
    local: Option<Ipv4Addr>,
}

fn hop(port: u16, last: [u8; 2]) -> Hop {
    Hop { port, is_v4: true, address: Ipv4Addr::new(198, 18, last[0], last[1]).to_bits().into() }
}

fn v6(net: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host)
}

fn server(mac: [u8; 6]) -> Neighbour {
    Neighbour { hop: hop(1, [2, 2]), mac, is_permanent: false }
}

fn by_hand(mac: [u8; 6]) -> Neighbour {
    Neighbour { is_permanent: true, ..server(mac) }
}

impl Bench {
    /// Creates a router with 198.18.1.0/24 and 10.1.0.0/16 inside, and 198.18.2.0/24 and 198.19.0.0/16 outside, behind
    /// a link with the given MTU. 10.2.0.0/16 is behind the inside host 198.18.1.9. The client is a known neighbour.
    /// 2001:db8:1::/64 is inside, and 2001:db8:2::/64 outside.
    fn new(mtu: u32) -> Bench {
        Bench::with_nat(mtu, None)
    }

    /// Creates a router like [`Bench::new`] that translates to the given outside address.
    fn with_nat(mtu: u32, outside: Option<Ipv4Addr>) -> Bench {
        Bench::with_translator(mtu, outside.map(|address| (Nat::new(Config::new(address, 77)), address)))
    }

    /// Creates a router like [`Bench::new`] with the given translator and its outside address.
    fn with_translator(mtu: u32, nat: Option<(Nat, Ipv4Addr)>) -> Bench {
        let [(first, a), (second, b)] = [(); 2].map(|()| Memory::port(Carries::Ethernet, Limits::NONE));
        let side = |name: &str, port| PortConfig {
            name: name.to_owned(),
            port,
            gro: Some(gro::Config::default()),
            fragments: None,
        };
        let (sender, feed) = feed().unwrap();
        let ports = [side("in", first), side("out", second)];
        let parts = Parts { ports, budget: 64, pages: PagePool::new(128), feed, nat, key: Key([1, 2]) };
        Bench { router: Router::new(parts), wires: [a, b], sender, mtu, local: None }
    }

    /// Sends the kernel's tables to the router, with the client and the given neighbours.
    fn tables(&mut self, now: u64, neighbours: &[Neighbour]) {
        let mut routes = Routes::new(12);
        for (port, mtu) in [(0, 1500), (1, self.mtu)] {
            let action = Action::Forward { port, via: None, mtu };
            routes.insert(Table::Main, [198, 18, port as u8 + 1, 0].into(), 24, action).unwrap();
            routes.insert(Table::Main, v6(port + 1, 0).into(), 64, action).unwrap();
            // The directed broadcast, and the anycast address of the routers.
            routes.insert(Table::Local, [198, 18, port as u8 + 1, 255].into(), 32, Action::Local).unwrap();
            routes.insert(Table::Local, v6(port + 1, 0).into(), 128, Action::Local).unwrap();
        }
        if let Some(own) = self.local {
            routes.insert(Table::Local, own.into(), 32, Action::Local).unwrap();
        }
        for (prefix, port, via) in
            [([198, 19], 1, None), ([10, 1], 0, None), ([10, 2], 0, Some([198, 18, 1, 9].into()))]
        {
            let action = Action::Forward { port, via, mtu: if port == 0 { 1500 } else { self.mtu } };
            routes.insert(Table::Main, [prefix[0], prefix[1], 0, 0].into(), 16, action).unwrap();
        }
        let addrs = |port: u8, mtu| InterfaceAddrs {
            mac: OWN[usize::from(port)],
            mtu,
            v4: vec![(Ipv4Addr::new(198, 18, port + 1, 1), 24)],
            v6: vec![(v6(u16::from(port) + 1, 1), 64)],
        };
        let client = Neighbour { hop: hop(0, [1, 2]), mac: CLIENT, is_permanent: true };
        let neighbours = [&[client], neighbours].concat();
        let tables = Tables { routes, ports: [addrs(0, 1500), addrs(1, self.mtu)], neighbours };
        assert!(self.sender.send(Message::Tables(Box::new(tables))));
        self.round(now);
    }

    fn change(&mut self, now: u64, change: NeighbourEvent) {
        assert!(self.sender.send(Message::Neighbours(vec![change])));
        self.round(now);
    }

    fn round(&mut self, now: u64) {
        self.router.round(Nanos(now)).unwrap();
    }

    /// Makes rounds until all frames are read and have left GRO.
    fn rounds(&mut self, now: u64) {
        while self.wires.iter().any(|wire| !wire.borrow().waiting.is_empty()) {
            self.round(now);
        }
        self.round(now);
    }

    fn give(&self, port: usize, frames: Vec<Vec<u8>>) {
        self.wires[port].borrow_mut().waiting.extend(frames);
    }

    /// Returns the frames sent since the last call.
    fn sent(&self, port: usize) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wires[port].borrow_mut().sent)
    }

    /// Returns the destinations of frames sent outside since the last call, and whether each was an ARP request.
    fn left(&self) -> Vec<(bool, [u8; 6])> {
        self.sent(1).iter().map(|frame| (frame[12..14] == [8, 6], frame[..6].try_into().unwrap())).collect()
    }

    /// Sends one packet from the client to the server, and returns the destinations of the resulting frames.
    fn sends(&mut self, now: u64, ttl: u8) -> Vec<(bool, [u8; 6])> {
        self.give(0, vec![segment(ttl, 1, 100)]);
        self.round(now);
        self.left()
    }

    /// Passes the server's answer to a request to the router.
    fn answers(&mut self, now: u64, mac: [u8; 6]) {
        self.answers_from(now, mac, [198, 18, 2, 2]);
    }

    /// Passes the answer of the host at `address` outside to the router.
    fn answers_from(&mut self, now: u64, mac: [u8; 6], address: [u8; 4]) {
        let mut frame = [&OWN[1][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
        frame.extend([&mac[..], &address, &OWN[1], &[198, 18, 2, 1]].concat());
        self.give(1, vec![frame]);
        self.round(now);
    }

    fn number(&self, port: &str, group: Group, key: &str) -> u64 {
        counter(&self.router, port, group, key)
    }
}

/// Returns a packet from the client to the server.
fn segment(ttl: u8, seq: u32, len: usize) -> Vec<u8> {
    segment_from(7000, ttl, seq, len)
}

/// Returns a packet from `src_port` of the client to the server.
fn segment_from(src_port: u16, ttl: u8, seq: u32, len: usize) -> Vec<u8> {
    let ip = Ip::V4(V4 { src: [198, 18, 1, 2], dst: [198, 18, 2, 2], ttl, ..V4::new(0, 0, 0) });
    let tcp = Tcp { src_port, dst_port: 9, seq, ack: 1, flags: 0x10, window: 9, urgent: 0, options: vec![] };
    let packet = Packet { ip, l4: L4::Tcp(tcp), data: vec![7; len] };
    Ethernet { dst: OWN[0], src: CLIENT, tags: Vec::new() }.wrap(&packet.bytes())
}

/// Replaces a 16-bit field of the IPv4 header in a frame, and updates the header checksum.
fn set_field(frame: &mut [u8], at: usize, value: u16) {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let field = Field::from_wire(word(24)).update(word(at), value).value();
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    frame[24..26].copy_from_slice(&field.to_be_bytes());
}

/// Returns the next segment of one of three flows, whose sequence numbers are `seqs`, or a frame that was made from it
/// and that is padded, damaged, fragmented, tagged, for another station or of another protocol, or a message of a
/// neighbour.
fn any_frame(rng: &mut Rng, seqs: &mut [u32; 3]) -> Vec<u8> {
    let (flow, len) = (rng.below(3), [0, 0, 1, 100, 100, 1400][rng.below(6)]);
    let mut frame = segment_from(7000 + flow as u16, 64, seqs[flow], len);
    seqs[flow] += len as u32;
    match rng.below(24) {
        0 => frame[..6].copy_from_slice(&[NEW, BROADCAST][rng.below(2)]),
        1 => drop(frame.splice(12..12, [0x81, 0, 0, 5])),
        2 => set_field(&mut frame, 20, [0x2000, 0x00b9][rng.below(2)]),
        3 => set_field(&mut frame, 16, rng.below(200) as u16),
        // TTL and protocol: a TTL that runs out, ICMP, UDP, and IPv4 in IPv4.
        4 => set_field(&mut frame, 22, [0x0106, 0x4001, 0x4011, 0x4004][rng.below(4)]),
        // Another destination.
        5 => set_field(&mut frame, 32, 0x0200 + rng.below(5) as u16),
        6 => frame[14 + rng.below(40)] ^= 1 << rng.below(8),
        7 => frame.truncate(1 + rng.below(60)),
        8 => {
            frame = [&BROADCAST[..], &NEW, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &NEW, &[198, 18, 1, 7]].concat();
            frame.extend([&[0u8; 6][..], &[198, 18, 1, 1]].concat());
        }
        9..14 => frame.resize(frame.len().max(60), 0),
        _ => {}
    }
    frame
}

/// Tests that frames, most of which go to GRO unparsed, leave like the packets that a port has parsed: the same bytes
/// in the same order, and under the same counters.
#[test]
fn frames_leave_like_parsed_packets() {
    const ROUNDS: u64 = 200;
    let runs = RefCell::new(Vec::new());
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[by_hand(OLD)]);
        let (mut rng, mut seqs) = (Rng::new(11), [1, 1_000_000, 2_000_000]);
        let mut left = Vec::new();
        // Less time than the interval of solicitations, whose order is not fixed.
        for round in 0..ROUNDS {
            here.give(0, (0..24).map(|_| any_frame(&mut rng, &mut seqs)).collect());
            here.round(round * 1_000_000);
            left.push([here.sent(0), here.sent(1)]);
        }
        runs.borrow_mut().push((left, counters(&here.router)));
    });
    let runs = runs.into_inner();
    let [(packets, counted), (frames, expected)] = &runs[..] else { panic!("{} runs", runs.len()) };
    for (round, (packets, frames)) in packets.iter().zip(frames).enumerate() {
        assert_eq!(packets, frames, "round {round}");
    }
    assert_eq!(counted, expected);
    assert_eq!(frames.len() as u64, ROUNDS);
    // Most of them are routed, many in trains.
    let routed: usize = frames.iter().map(|[_, outside]| outside.len()).sum();
    assert!(routed > 2500, "{routed}");
    assert!(expected[&("in".to_owned(), Group::Stage(Stage::Route), "trains")] > 50, "{expected:?}");
}

/// Tests that a packet in a broadcast or multicast frame causes no ICMP error (RFC 1812, section 4.3.2.7; RFC 4443,
/// section 2.4 (e)), and is not routed.
#[test]
fn packets_in_broadcast_and_multicast_frames_are_neither_routed_nor_answered() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[by_hand(OLD)]);
        let mut second = 0;
        for to in [BROADCAST, [1, 0, 0x5e, 0, 0, 1], OWN[0]] {
            here.give(0, [1, 64].into_iter().map(|ttl| [&to[..], &segment(ttl, 1, 100)[6..]].concat()).collect());
            for _ in 0..2 {
                second += 1;
                here.round(second * SECOND);
            }
            // In a frame to the router the first one causes an error, and the other one is routed.
            let is_own = to == OWN[0];
            assert_eq!((here.sent(0).len(), here.left().len()), if is_own { (1, 1) } else { (0, 0) }, "{to:x?}");
        }
        assert_eq!(here.number("in", Group::Port, "foreign"), 4);
    });
}

/// Tests that a packet whose header checksum is wrong causes no ICMP error (RFC 1812, section 4.3.2.7), and uses up
/// none of the rate limit.
#[test]
fn packets_with_a_wrong_header_checksum_leave_the_rate_limit_to_others() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[by_hand(OLD)]);
        // More than the errors that one sender gets at once.
        for _ in 0..3 {
            let mut wrong = segment(1, 1, 100);
            wrong[24] ^= 1;
            here.give(0, vec![wrong; 32]);
            here.round(0);
            here.round(1_000_000);
        }
        assert_eq!((here.sent(0).len(), here.number("in", Group::Drops, "route_hop_limit")), (0, 96));
        here.give(0, vec![segment(1, 1, 100)]);
        here.round(1_000_000);
        here.round(2_000_000);
        assert_eq!((here.sent(0).len(), here.number("in", Group::Port, "icmp_errors_limited")), (1, 0));
    });
}

/// Tests that a neighbour that has not answered three unicast solicitations is resolved anew by broadcast (RFC 4861,
/// section 7.3.3). A change of another route does not count as a confirmation.
#[test]
fn repeated_kernel_entry_does_not_restore_a_failed_neighbour() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[server(OLD)]);
        // The neighbour is probed at its first use, and does not answer.
        assert_eq!(here.sends(0, 64), [(true, OLD), (false, OLD)]);
        for second in 1..=3 {
            here.round(second * SECOND);
            here.tables(second * SECOND + 1, &[server(OLD)]);
        }
        assert_eq!(here.left(), [(true, OLD), (true, OLD)]);
        for second in 4..=6 {
            here.tables(second * SECOND, &[server(OLD)]);
            if second == 4 {
                assert_eq!(here.sends(second * SECOND, 64), [(true, BROADCAST)]);
            }
            here.tables(second * SECOND + 1, &[server(OLD)]);
            here.change(second * SECOND + 2, NeighbourEvent::Set(server(OLD)));
        }
        assert_eq!(here.left(), [(true, BROADCAST), (true, BROADCAST)]);
        here.round(7 * SECOND);
        assert_eq!(here.number("in", Group::Drops, "route_no_neighbour"), 1);
        assert_eq!(here.left(), []);
        // The neighbour answers from another address, and the kernel's older report does not override it.
        assert_eq!(here.sends(8 * SECOND, 64), [(true, BROADCAST)]);
        here.answers(8 * SECOND, NEW);
        here.tables(8 * SECOND, &[server(OLD)]);
        here.change(8 * SECOND, NeighbourEvent::Set(server(OLD)));
        assert_eq!(here.left(), [(false, NEW)]);
        assert_eq!(here.sends(9 * SECOND, 64), [(false, NEW)]);
    });
}

/// Tests that a first report of the kernel, or one that differs from the last, updates the cache.
#[test]
fn new_kernel_entry_completes_a_pending_resolution() {
    in_both_forms(|| {
        for changes in [[Some(NEW), None], [None, Some(OLD)]] {
            let mut here = Bench::new(1500);
            here.tables(0, &[server(OLD)]);
            here.sends(0, 64);
            (1..=3).for_each(|second| here.round(second * SECOND));
            here.left();
            assert_eq!(here.sends(4 * SECOND, 64), [(true, BROADCAST)]);
            for change in changes {
                here.change(
                    4 * SECOND,
                    change.map_or(NeighbourEvent::Removed(hop(1, [2, 2])), |mac| NeighbourEvent::Set(server(mac))),
                );
            }
            let mac = changes.iter().flatten().next().unwrap();
            assert_eq!(here.left().last(), Some(&(false, *mac)));
        }
    });
}

#[test]
fn the_pieces_of_a_train_that_is_too_long_leave_where_it_stood() {
    in_both_forms(|| {
        let mut here = Bench::new(1400);
        here.tables(0, &[by_hand(OLD)]);
        let mut seq = 1;
        let frames = [1430, 1430, 1430, 200, 100, 100].map(|len| {
            seq += len;
            segment(64, seq - len, len as usize)
        });
        here.give(0, frames.to_vec());
        here.round(0);
        let left: Vec<u32> =
            here.sent(1).iter().map(|frame| u32::from_be_bytes(frame[38..42].try_into().unwrap())).collect();
        assert_eq!(left, [4291, 4491, 4591]);
        assert_eq!(here.number("in", Group::Drops, "route_too_big"), 3);
    });
}

/// Tests that no probe is sent until a packet leaves for the neighbour, and that the entry is deleted 600 s after the
/// last one (docs/gateway.md).
#[test]
fn dropped_packets_neither_keep_an_entry_nor_cause_a_probe() {
    in_both_forms(|| {
        let mut here = Bench::new(1400);
        here.tables(0, &[]);
        here.sends(0, 64);
        here.answers(0, OLD);
        here.left();
        for second in [31, 300, 590] {
            assert_eq!(here.sends(second * SECOND, 1), [], "a hop count that runs out");
            here.give(0, vec![segment(64, 1, 1430)]);
            here.round(second * SECOND + 1);
            assert_eq!(here.left(), [], "one that is too long");
        }
        here.round(601 * SECOND);
        assert_eq!(here.sends(602 * SECOND, 64), [(true, BROADCAST)]);
        here.answers(602 * SECOND, OLD);
        here.left();
        // One packet leaves among others that do not.
        here.give(0, vec![segment(1, 1, 100), segment(64, 5000, 100), segment(1, 9000, 100)]);
        here.round(640 * SECOND);
        assert_eq!(here.left(), [(true, OLD), (false, OLD)]);
    });
}

#[test]
fn former_permanent_neighbour_is_resolved_again_when_the_cache_is_full() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        let others = |host: u32| Neighbour {
            hop: Hop { address: 0xc613_0000 + u128::from(host), ..hop(1, [0, 0]) },
            ..server(NEW)
        };
        let full: Vec<Neighbour> = (0..MAX_NEIGHBOURS).map(others).chain([by_hand(OLD)]).collect();
        here.tables(0, &full);
        assert_eq!(here.sends(0, 64), [(false, OLD)]);
        here.change(0, NeighbourEvent::Set(server(OLD)));
        assert_eq!(here.sends(0, 64), [(true, BROADCAST)]);
        here.answers(0, NEW);
        assert_eq!(here.left(), [(false, NEW)]);
    });
}

#[test]
fn a_listing_of_all_neighbours_leaves_routes_and_replaces_what_the_kernel_has_said() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[by_hand(OLD)]);
        assert_eq!(here.sends(0, 64), [(false, OLD)]);
        assert!(here.sender.send(Message::AllNeighbours(vec![by_hand(NEW)])));
        assert_eq!(here.sends(0, 64), [(false, NEW)]);
        assert!(here.sender.send(Message::AllNeighbours(Vec::new())));
        assert_eq!(here.sends(0, 64), [(true, BROADCAST)]);
    });
}

#[test]
fn permanent_neighbour_with_invalid_link_address_is_solicited() {
    in_both_forms(|| {
        for mac in [BROADCAST, [0; 6]] {
            let mut here = Bench::new(1500);
            here.tables(0, &[by_hand(OLD)]);
            assert_eq!(here.sends(0, 64), [(false, OLD)]);
            here.change(0, NeighbourEvent::Set(server(mac)));
            assert_eq!(here.sends(0, 64), [(true, BROADCAST)]);
        }
    });
}

#[test]
fn invalid_sender_addresses_create_no_neighbour_and_get_no_reply() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[server(OLD)]);
        let known = here.number("", Group::Worker, "neighbours");
        for sender in [[127, 0, 0, 5], [224, 0, 0, 5], [240, 0, 0, 5], [0, 0, 0, 5]] {
            // The kernel has heard of it, and it asks for the router and answers an unasked question.
            let hop = Hop { port: 1, is_v4: true, address: Ipv4Addr::from(sender).to_bits().into() };
            here.change(0, NeighbourEvent::Set(Neighbour { hop, mac: NEW, is_permanent: false }));
            for (operation, to) in [(1, BROADCAST), (2, OWN[1])] {
                let mut frame = [&to[..], &NEW, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
                frame.extend([&NEW[..], &sender, &[0; 6], &[198, 18, 2, 1]].concat());
                here.give(1, vec![frame]);
                here.round(0);
            }
            assert_eq!(here.number("", Group::Worker, "neighbours"), known, "{sender:?}");
            assert_eq!(here.left(), []);
        }
    });
}

/// Returns the frame of a UDP datagram for the router's `port`.
fn short(port: usize, ttl: u8, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
    let ip = Ip::V4(V4 { src: from.0, dst: to.0, ttl, ..V4::new(0, 0, 0) });
    let l4 = L4::Udp(Udp { src_port: from.1, dst_port: to.1, checksum: true });
    let packet = Packet { ip, l4, data: vec![7; 10] };
    Ethernet { dst: OWN[port], src: [CLIENT, OLD][port], tags: Vec::new() }.wrap(&packet.bytes())
}

/// Tests that no source that a router does not forward makes a mapping, also not towards another inside host by the
/// outside address, where each would count as a host of its own.
#[test]
fn sources_that_no_router_forwards_make_no_mapping() {
    const OUTSIDE: [u8; 4] = [198, 18, 2, 100];
    for source in [[127, 0, 0, 5], [0, 0, 0, 5], [169, 254, 0, 5], [224, 0, 0, 5], [240, 0, 0, 5]] {
        in_both_forms(|| {
            let mut here = Bench::with_nat(1500, Some(OUTSIDE.into()));
            here.tables(SECOND, &[server(OLD)]);
            here.give(0, vec![short(0, 64, ([198, 18, 1, 2], 7000), ([198, 18, 2, 2], 9))]);
            here.round(SECOND);
            here.left();
            for to in [OUTSIDE, [198, 18, 2, 2]] {
                here.give(0, vec![short(0, 64, (source, 5), (to, 7000))]);
                here.round(SECOND);
            }
            assert_eq!(here.number("in", Group::Drops, "route_source"), 2, "{source:?}");
            assert_eq!(here.number("", Group::Worker, "nat_mappings"), 1, "{source:?}");
            assert_eq!((here.sent(0).len(), here.left().len()), (0, 0), "{source:?}");
        });
    }
}

/// Tests that packets of one sender to unused addresses do not become as many solicitations (RFC 1122, section
/// 2.3.2.1), but 64 at once and 100 a second.
#[test]
fn packets_to_unused_addresses_cause_a_limited_number_of_solicitations() {
    for addresses in [300, 10_000] {
        in_both_forms(|| {
            let mut here = Bench::new(1500);
            here.tables(0, &[]);
            let asked = |here: &Bench| here.number("out", Group::Port, "neighbour_questions");
            for number in 0..10_000_u32 {
                let [high, low] = ((number % addresses) as u16 + 1).to_be_bytes();
                here.give(0, vec![short(0, 64, ([198, 18, 1, 2], 7000), ([198, 19, high, low], 9))]);
                here.round(u64::from(number) * SECOND / 10_000);
            }
            assert!((150..=164).contains(&asked(&here)), "{} for {addresses}", asked(&here));
            // Those that wait are solicited later.
            (3..=9).for_each(|second| here.round(second * SECOND));
            let failed = here.number("in", Group::Drops, "route_no_neighbour");
            assert_eq!((failed, asked(&here) > 164 + 64), (10_000, true), "{}", asked(&here));
        });
    }
}

/// Tests that neither a scan nor forged senders on one side keep other senders from new neighbours (RFC 6583).
#[test]
fn a_scan_leaves_first_solicitations_to_other_senders() {
    const CALLER: [u8; 4] = [192, 0, 2, 1];
    const CLIENT: [u8; 4] = [198, 18, 1, 2];
    // Whether each packet is from a sender of its own, how many are asked for, and the packets that are not limited.
    let one = (false, 164, vec![(1, CALLER, [198, 18, 1, 77]), (1, [203, 0, 113, 0], [10, 2, 0, 1])]);
    let forged = (true, 2512, vec![(0, CLIENT, [198, 18, 1, 77]), (1, CALLER, [10, 2, 0, 1])]);
    for (is_forged, most, others) in [one, forged] {
        in_both_forms(|| {
            let mut here = Bench::new(1500);
            here.tables(0, &[]);
            for number in 0..10_000_u32 {
                let [.., high, low] = number.to_be_bytes();
                let from = if is_forged { [203, 1, high, low] } else { [203, 0, 113, 0] };
                here.give(1, vec![short(1, 64, (from, 7), ([10, 1, high, low], 9))]);
                here.round(u64::from(number) * SECOND / 10_000);
            }
            let asked = here.number("in", Group::Port, "neighbour_questions");
            assert!((most - 20..=most).contains(&asked), "{asked}");
            for (port, from, to) in &others {
                here.sent(0);
                here.give(*port, vec![short(*port, 64, (*from, 7), (*to, 9))]);
                here.round(SECOND);
                let hop = if to[0] == 10 { [198, 18, 1, 9] } else { *to };
                let is_request = |frame: &Vec<u8>| frame[12..14] == [8, 6] && frame[38..42] == hop;
                assert!(here.sent(0).iter().any(is_request), "{from:?} {to:?}");
            }
        });
    }
}

#[test]
fn packets_that_waited_for_a_neighbour_are_counted_once() {
    in_both_forms(|| {
        let mut here = Bench::new(1500);
        here.tables(0, &[]);
        here.give(0, vec![segment_from(7000, 64, 1, 100), segment_from(7001, 64, 1, 100)]);
        here.round(0);
        here.answers(0, NEW);
        assert_eq!(here.left(), [(true, BROADCAST), (false, NEW), (false, NEW)]);
        assert_eq!(here.number("in", Group::Stage(Stage::Route), "packets"), 2);
    });
}

/// Returns the frames of a UDP datagram of 3,000 bytes in three fragments, the last one first, for the router's `port`.
fn datagram(port: usize, from: ([u8; 4], u16), to: ([u8; 4], u16), id: u16) -> Vec<Vec<u8>> {
    let ip = Ip::V4(V4 { src: from.0, dst: to.0, id, df: false, ..V4::new(0, 0, 0) });
    let l4 = L4::Udp(Udp { src_port: from.1, dst_port: to.1, checksum: true });
    let whole = Packet { ip, l4, data: vec![7; 3000] }.bytes();
    let station = Ethernet { dst: OWN[port], src: [CLIENT, OLD][port], tags: Vec::new() };
    fragments(&whole, 1200, 0).iter().rev().map(|packet| station.wrap(packet)).collect()
}

/// Tests that fragments whose first one never comes cost other hosts nothing (RFC 4787, REQ-14): neither those of one
/// host, nor those whose sources are forged. Each of them is counted once.
#[test]
fn fragments_without_a_first_one_leave_room_for_those_of_other_hosts() {
    const FLOOD: usize = 300;
    let outside = [198, 18, 2, 100];
    let (client, server_at) = (([198, 18, 1, 2], 7000), ([198, 18, 2, 2], 9));
    // One host inside keeps to its share; forged sources outside replace the oldest of all.
    for (port, waiting, replaced) in [(0, 64, 0), (1, 256, 2)] {
        in_both_forms(|| {
            let mut here = Bench::with_nat(1500, Some(outside.into()));
            here.tables(SECOND, &[server(OLD)]);
            for n in 0..FLOOD as u16 {
                let [high, low] = n.to_be_bytes();
                let (from, to) = match port {
                    0 => ([198, 18, 1, 9], server_at),
                    _ => ([198, 18, 3 + high, low], (outside, 7000)),
                };
                here.give(port, datagram(port, (from, 5), to, n)[..1].to_vec());
            }
            here.rounds(SECOND);
            let name = ["in", "out"][port];
            here.give(0, datagram(0, client, server_at, 5));
            here.rounds(SECOND);
            // Besides announcements of the outside address.
            let sent = here.sent(1).into_iter().filter(|frame| frame[12..14] == [8, 0]);
            let sent: Vec<Vec<u8>> = sent.map(|frame| frame[14..].to_vec()).collect();
            assert_eq!(sent.len(), 3, "to the server, from {name}");
            let whole = reassemble(&sent).unwrap();
            assert_eq!((&whole[12..16], whole.len()), (&outside[..], 3028));
            let mapped = u16::from_be_bytes([whole[20], whole[21]]);
            here.give(1, datagram(1, server_at, (outside, mapped), 6));
            here.rounds(SECOND);
            assert_eq!(here.sent(0).len(), 3, "to the client, from {name}");

            let dropped = |here: &Bench| here.number(name, Group::Drops, "nat_fragment") as usize;
            assert_eq!(dropped(&here), FLOOD - waiting + replaced, "from {name}");
            here.round(4 * SECOND);
            assert_eq!(dropped(&here), FLOOD, "from {name}");
        });
    }
}
