//! Tests of the bridge between ports in memory: stations are learned, trains stay whole where the port accepts them,
//! and no port takes more than its share of the loop.

mod memory;

use std::cell::RefCell;
use std::rc::Rc;

use memory::{Carries, Memory, Wire, in_both_forms};
use segue::gro;
use segue::gso::Limits;
use segue::time::Nanos;
use segue_datapath::board::{Board, Group, Name, Stage};
use segue_datapath::bridge::{Bridge, BridgePort, Parts, knobs};
use segue_datapath::gateway::PortConfig;
use segue_datapath::pipeline::{Pipeline, Round};
use segue_port::PagePool;
use segue_testkit::build::{Ethernet, Ip, V4};
use segue_testkit::flow::Sender;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const BROADCAST: [u8; 6] = [0xff; 6];
const MS: u64 = 1_000_000;

struct Bench {
    bridge: Bridge,
    wires: Vec<Rc<RefCell<Wire>>>,
    now: u64,
    board: Board,
}

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

fn trains() -> Limits {
    let count = Limits { max_segs: 1000, max_udp_segs: 64, max_bytes: 65_549, max_pieces: 1000, ..Limits::NONE };
    Limits { csum: true, tso4: true, tso6: true, uso: true, ..count }
}

/// Creates a bridge whose first port belongs to an interface with the address of station 200.
fn bench(limits: &[Limits], pages: usize) -> Bench {
    let (mut ports, mut wires) = (Vec::new(), Vec::new());
    for (at, limits) in limits.iter().enumerate() {
        let (port, wire) = Memory::port(Carries::Ethernet, *limits);
        let config =
            PortConfig { name: NAMES[at].to_owned(), port, gro: Some(gro::Config::default()), fragments: None };
        ports.push(BridgePort { config, own: (at == 0).then_some(mac(200)) });
        wires.push(wire);
    }
    let bridge = Bridge::new(Parts { ports, budget: 64, pages: PagePool::new(pages) }).unwrap();
    let board = Board::new(|sink| bridge.collect(sink));
    Bench { bridge, wires, now: 0, board }
}

impl Bench {
    fn default() -> Bench {
        bench(&[trains(); 4], 4096)
    }

    fn give(&self, port: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.wires[port].borrow_mut().waiting.extend(frames);
    }

    /// Runs a round after a pause long enough to unmute all ports, which in these tests wake the loop all the time.
    fn round(&mut self) -> Round {
        self.now += 60 * MS;
        self.bridge.round(Nanos(self.now)).unwrap()
    }

    /// Passes one frame to a port and returns the number of frames that each port has sent after a round.
    fn pass(&mut self, port: usize, to: [u8; 6], from: [u8; 6]) -> Vec<usize> {
        self.give(port, [frame(to, from, 100, 0)]);
        self.round();
        self.sent().iter().map(Vec::len).collect()
    }

    fn sent(&self) -> Vec<Vec<Vec<u8>>> {
        self.wires.iter().map(|wire| std::mem::take(&mut wire.borrow_mut().sent)).collect()
    }

    fn count(&self, port: usize, group: Group, key: &str) -> u64 {
        self.board.publish(|sink| self.bridge.collect(sink));
        let is_meant = |name: &Name| name.port == NAMES[port] && name.group == group && name.key == key;
        self.board.read().find(|(name, _)| is_meant(name)).expect("the counter exists").1
    }

    fn set(&mut self, name: &str, value: u64) {
        let knobs = knobs(&NAMES[..self.wires.len()], Some(gro::Config::default()), 64);
        knobs.set(name, value).unwrap();
        knobs.follow(&mut 0, |dial| self.bridge.tune(dial));
    }
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize, flow: u16) -> Vec<u8> {
    let packet = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), flow, 7, Vec::new()).send(len, 0).bytes();
    Ethernet { dst: to, src: from, tags: Vec::new() }.wrap(&packet)
}

fn segments(to: [u8; 6], from: [u8; 6], count: usize) -> Vec<Vec<u8>> {
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 9, 1000, Vec::new());
    (0..count).map(|_| Ethernet { dst: to, src: from, tags: Vec::new() }.wrap(&sender.send(1000, 0).bytes())).collect()
}

#[test]
fn frames_go_where_their_destination_was_seen_and_else_everywhere() {
    in_both_forms(|| {
        let mut here = Bench::default();
        assert_eq!(here.pass(0, mac(2), mac(1)), [0, 1, 1, 1], "unknown");
        assert_eq!(here.pass(1, mac(1), mac(2)), [1, 0, 0, 0]);
        assert_eq!(here.pass(0, mac(2), mac(1)), [0, 1, 0, 0]);
        assert_eq!(here.pass(0, mac(2), mac(1)), [0, 1, 0, 0], "by the last decision");
        assert_eq!(here.pass(2, BROADCAST, mac(3)), [1, 1, 0, 1]);
        // The station moves: the last decision of the others does not hold any longer.
        assert_eq!(here.pass(3, BROADCAST, mac(2)), [1, 1, 1, 0]);
        assert_eq!(here.pass(0, mac(2), mac(1)), [0, 0, 0, 1]);
        assert_eq!((here.count(3, Group::Port, "fdb_moved"), here.count(3, Group::Port, "fdb_entries")), (1, 1));
        assert_eq!((here.count(1, Group::Port, "fdb_learned"), here.count(1, Group::Port, "fdb_entries")), (1, 0));
        assert_eq!((here.count(0, Group::Port, "flooded"), here.count(2, Group::Port, "flooded")), (1, 1));
        // After the ageing time it is unknown again.
        here.now += 300_000 * MS;
        assert_eq!(here.pass(0, mac(2), mac(1)), [0, 1, 1, 1]);
    });
}

#[test]
fn what_no_bridge_forwards_is_dropped_by_name() {
    in_both_forms(|| {
        let mut here = Bench::default();
        let none = [0; 4];
        here.pass(1, BROADCAST, mac(2));
        for (to, from, reason) in [
            (mac(9), [3, 0, 0, 0, 0, 2], "bridge_source"),
            (mac(9), [0; 6], "bridge_source"),
            (mac(9), mac(200), "bridge_own_source"),
            ([0x01, 0x80, 0xc2, 0, 0, 0x0e], mac(2), "bridge_reserved"),
            (mac(2), mac(5), "bridge_same_port"),
        ] {
            assert_eq!(here.pass(1, to, from), none, "{reason}");
            assert!(here.count(1, Group::Drops, reason) > 0, "{reason}");
        }
        here.give(1, [vec![2; 13]]);
        here.round();
        assert_eq!((here.sent().concat().len(), here.count(1, Group::Drops, "bridge_runt")), (0, 1));
        // The address of this host's interface stays where it is, and the spanning tree protocol passes.
        assert_eq!(here.pass(1, mac(200), mac(2)), [1, 0, 0, 0]);
        assert_eq!(here.pass(0, mac(2), mac(200)), [0, 1, 0, 0]);
        assert_eq!(here.pass(1, [0x01, 0x80, 0xc2, 0, 0, 0], mac(2)), [1, 0, 1, 1]);
    });
}

#[test]
fn a_train_is_whole_for_ports_that_take_it_and_cut_for_the_others() {
    in_both_forms(|| {
        let mut here = bench(&[trains(), trains(), Limits::NONE, trains()], 256);
        let frames = segments(BROADCAST, mac(1), 20);
        here.give(0, frames.clone());
        here.round();
        let sent = here.sent();
        assert_eq!([1, 2, 3].map(|port| sent[port].len()), [1, 20, 1]);
        assert!(sent[2] == frames && sent[1] == sent[3]);
        assert_eq!(sent[1][0].len(), frames.iter().map(|frame| frame.len() - 54).sum::<usize>() + 54);
        let gso = |port, key| here.count(port, Group::Gso, key);
        assert_eq!(
            [1, 2, 3].map(|port| (gso(port, "trains_whole"), gso(port, "trains_cut"))),
            [(1, 0), (0, 1), (1, 0)]
        );
        // To a known station, and with GSO off for its port.
        here.pass(3, BROADCAST, mac(4));
        here.set("net.gso.dev.d.enable_gso", 0);
        here.give(0, segments(mac(4), mac(1), 5));
        here.round();
        assert_eq!(here.sent().iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 0, 5]);
        assert_eq!(here.count(3, Group::Gso, "cut_on_entry"), 1);
    });
}

#[test]
fn a_port_that_takes_nothing_costs_no_other_and_its_queue_is_bounded() {
    in_both_forms(|| {
        let mut here = Bench::default();
        here.pass(1, BROADCAST, mac(2));
        here.pass(2, BROADCAST, mac(3));
        here.wires[1].borrow_mut().room = Some(0);
        let mixed = |n: u16| [frame(mac(2), mac(1), 1400, 2 * n), frame(mac(3), mac(1), 1400, 2 * n + 1)];
        for n in 0..1000 {
            here.give(0, mixed(n));
            here.round();
        }
        assert_eq!(here.sent()[2].len(), 1000, "the same source, another destination");
        let dropped = here.count(1, Group::Drops, "bridge_queue") as usize;
        assert!((200..300).contains(&dropped), "{dropped} dropped behind a megabyte");
        let mut write = 0;
        here.bridge.each_interest(&mut |interest| write += usize::from(interest.write));
        assert_eq!(write, 1);
        here.wires[1].borrow_mut().room = None;
        here.round();
        let sent = here.sent();
        assert_eq!(sent[1].len(), 1000 - dropped);
        assert_eq!(sent[1][..2], [frame(mac(2), mac(1), 1400, 0), frame(mac(2), mac(1), 1400, 2)], "in order");
    });
}

#[test]
fn what_waits_for_blocked_ports_is_dropped_when_others_need_the_memory() {
    let mut here = bench(&[trains(); 3], 64);
    here.pass(1, BROADCAST, mac(2));
    here.pass(2, BROADCAST, mac(3));
    here.wires[1].borrow_mut().room = Some(0);
    here.give(0, (0..63).map(|flow| frame(mac(2), mac(1), 100, flow)));
    here.round();
    assert_eq!(here.count(1, Group::Drops, "bridge_memory"), 0);
    here.give(0, (0..200).map(|flow| frame(mac(3), mac(1), 100, flow)));
    while here.round() == Round::More {}
    assert_eq!((here.sent()[2].len(), here.count(1, Group::Drops, "bridge_memory")), (200, 63));
}

/// Tests that what waits for a port that was blocked a moment ago stays, where another one was blocked before.
#[test]
fn lack_of_memory_costs_the_port_that_was_blocked_for_longest() {
    let mut here = bench(&[trains(); 4], 128);
    for (port, station) in [(1, mac(2)), (2, mac(3)), (3, mac(4))] {
        here.pass(port, BROADCAST, station);
    }
    [1, 2].iter().for_each(|port: &usize| here.wires[*port].borrow_mut().room = Some(0));
    for (count, to) in [(120, mac(2)), (4, mac(3)), (200, mac(4))] {
        here.give(0, (0..count).map(|flow| frame(to, mac(1), 100, flow)));
        while here.round() == Round::More {}
    }
    let dropped = [1, 2].map(|port| here.count(port, Group::Drops, "bridge_memory"));
    assert_eq!((here.sent()[3].len(), dropped), (200, [120, 0]));
}

#[test]
fn ports_share_by_bytes_and_what_is_flooded_costs_its_source_the_copies() {
    let mut here = Bench::default();
    here.pass(3, BROADCAST, mac(4));
    here.set("net.bridge.dev.c.flood_limit", 1_000_000);
    // One sends large frames, one small ones, and one has all of its frames flooded.
    here.give(0, (0..20_000).map(|n| frame(mac(4), mac(1), 1400, n)));
    here.give(1, (0..20_000).map(|n| frame(mac(4), mac(2), 400, n)));
    here.give(2, (0..20_000).map(|n| frame(BROADCAST, mac(3), 400, n)));
    for _ in 0..40 {
        assert_eq!(here.round(), Round::More);
    }
    let sent = here.sent();
    let count = |source: u8| sent[3].iter().filter(|frame| frame[11] == source).count() as f64;
    let cost = |payload: f64| payload + 54.0 + 512.0;
    let (large, small) = (count(1) * cost(1400.0), count(2) * cost(400.0));
    let flooded = count(3) * 3.0 * cost(400.0);
    assert!(count(1) > 100.0 && (0.8..1.25).contains(&(small / large)), "{large} {small}");
    assert!((0.8..1.25).contains(&(flooded / large)), "{large} {flooded}");
}

#[test]
fn a_train_of_short_segments_costs_its_source_each_of_them() {
    in_both_forms(|| {
        let mut here = bench(&[trains(), trains(), trains(), Limits::NONE], 4096);
        here.pass(3, BROADCAST, mac(4));
        // One sends trains that the other port does not take, one large frames.
        here.wires[0].borrow_mut().train = Some(8);
        here.give(0, (0..20_000).map(|n| frame(mac(4), mac(1), 1024, n)));
        here.give(1, (0..20_000).map(|n| frame(mac(4), mac(2), 1400, n)));
        for _ in 0..40 {
            assert_eq!(here.round(), Round::More);
        }
        let sent = here.sent();
        let cost = |source: u8| {
            let frames = sent[3].iter().filter(|frame| frame[11] == source);
            frames.map(|frame| frame.len() as f64 + 512.0).sum::<f64>()
        };
        let (short, large) = (cost(1), cost(2));
        assert!(sent[3].len() > 1000 && (0.8..1.25).contains(&(short / large)), "{short} {large}");
        assert!(sent[3].iter().all(|frame| frame[11] == 2 || frame.len() == 62), "trains are cut");
    });
}

#[test]
fn the_segments_of_a_train_count_in_the_budget_of_a_round() {
    let mut here = bench(&[trains(), trains(), Limits::NONE], 4096);
    here.pass(2, BROADCAST, mac(3));
    here.set("net.napi.budget", 64);
    let give = |here: &Bench, count| {
        for port in 0..2 {
            here.wires[port].borrow_mut().train = Some(8);
            here.give(port, (0..count).map(|n| frame(mac(3), mac(port as u8 + 1), 1024, n)));
        }
    };
    // What a train costs is known from the first one.
    give(&here, 1);
    while here.round() == Round::More {}
    here.sent();
    give(&here, 100);
    let mut sources = Vec::new();
    for _ in 0..4 {
        here.round();
        let sent = here.sent();
        assert_eq!(sent[2].len(), 128, "one train");
        sources.push(sent[2][0][11]);
    }
    sources.sort_unstable();
    assert_eq!(sources, [1, 1, 2, 2]);
}

#[test]
fn flooding_is_limited() {
    let mut here = Bench::default();
    here.set("net.bridge.dev.b.flood_limit", 100);
    here.give(1, (0..50).map(|n| frame(BROADCAST, mac(2), 100, n)));
    here.round();
    assert_eq!(here.sent()[0].len(), 10);
    assert_eq!(here.count(1, Group::Drops, "bridge_flood"), 40);
    assert_eq!(here.pass(0, mac(2), mac(1)), [0, 1, 0, 0], "it was learned all the same");
}

#[test]
fn what_is_flooded_while_no_other_port_is_up_is_dropped_by_name() {
    in_both_forms(|| {
        let mut here = Bench::default();
        here.wires[1..].iter().for_each(|wire| wire.borrow_mut().is_down = true);
        for (to, dropped) in [(BROADCAST, 1), (mac(9), 2)] {
            assert_eq!(here.pass(0, to, mac(1)), [0; 4]);
            assert_eq!(here.count(0, Group::Drops, "bridge_no_port"), dropped);
        }
        assert_eq!(here.count(0, Group::Port, "flooded"), 0);
        here.wires[3].borrow_mut().is_down = false;
        assert_eq!(here.pass(0, BROADCAST, mac(1)), [0, 0, 0, 1]);
        assert_eq!((here.count(0, Group::Drops, "bridge_no_port"), here.count(0, Group::Port, "flooded")), (2, 1));
    });
}

#[test]
fn a_port_learns_a_limited_number_of_stations() {
    let mut here = Bench::default();
    here.set("net.bridge.dev.b.max_learned", 2);
    for n in 1..=5 {
        here.pass(1, BROADCAST, mac(n));
    }
    let numbers = ["fdb_entries", "fdb_learned", "fdb_full"].map(|key| here.count(1, Group::Port, key));
    assert_eq!(numbers, [2, 2, 3]);
    assert_eq!(here.pass(0, mac(2), mac(9)), [0, 1, 0, 0]);
    assert_eq!(here.pass(0, mac(5), mac(9)), [0, 1, 1, 1]);
}

/// Tests that a port that keeps waking the loop without a packet is polled rarely, and that another one is served at
/// once.
#[test]
fn a_port_that_calls_without_packets_is_left_alone_for_a_while() {
    let mut here = Bench::default();
    here.pass(1, BROADCAST, mac(2));
    let mut late = 0;
    for n in 0..2000 {
        // The ports in memory are readable all the time. Those without packets are not asked in most rounds.
        here.give(0, [frame(mac(2), mac(1), 100, n)]);
        here.now += MS / 10;
        here.bridge.round(Nanos(here.now)).unwrap();
        late += usize::from(here.sent()[1].len() != 1);
    }
    assert_eq!(late, 0);
    assert!(here.wires[2].borrow().receives < 100, "{} times", here.wires[2].borrow().receives);
    assert!(here.count(2, Group::Port, "pauses") > 5 && here.count(0, Group::Port, "pauses") == 0);
    assert!(here.bridge.deadline().is_some_and(|due| due.0 <= here.now + 16 * MS));
    // It is heard again when the pause is over.
    here.give(2, [frame(mac(2), mac(3), 100, 0)]);
    here.now += 17 * MS;
    here.bridge.round(Nanos(here.now)).unwrap();
    assert_eq!(here.sent()[1].len(), 1);
}

#[test]
fn a_port_that_no_poll_set_takes_for_a_moment_comes_back_and_stops_no_other() {
    let mut here = Bench::default();
    here.pass(1, BROADCAST, mac(2));
    for _ in 0..100 {
        here.now += MS / 10;
        here.bridge.round(Nanos(here.now)).unwrap();
    }
    let pauses = here.count(2, Group::Port, "pauses");
    assert!(pauses > 0);
    here.wires[2].borrow_mut().is_unpollable = true;
    here.give(2, [frame(mac(2), mac(3), 100, 0)]);
    assert_eq!(here.pass(0, mac(2), mac(1)), [0, 1, 0, 0], "the muted one is not asked");
    assert_eq!(here.count(2, Group::Port, "pauses"), pauses + 1);
    assert!(here.bridge.deadline().is_some_and(|due| due.0 <= here.now + 16 * MS));
    here.wires[2].borrow_mut().is_unpollable = false;
    here.round();
    assert_eq!(here.sent()[1], [frame(mac(2), mac(3), 100, 0)]);
}

#[test]
fn the_stations_of_a_port_that_stops_while_it_sends_are_forgotten_at_once() {
    in_both_forms(|| {
        let mut here = Bench::default();
        here.set("net.napi.dev.a.weight", 1);
        // Of a protocol that no train has: GRO holds neither of them.
        let other = [&mac(2)[..], &mac(1), &[0x88, 0xb5], &[7; 60]].concat();
        here.pass(1, BROADCAST, mac(2));
        here.wires[1].borrow_mut().stops = true;
        here.give(0, [other.clone(), other]);
        here.round();
        assert_eq!(here.sent().iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 1, 1]);
        // Also where it sends what had waited.
        let port = |change: fn(&mut Wire)| change(&mut here.wires[1].borrow_mut());
        port(|wire| (wire.stops, wire.is_down, wire.room) = (false, false, Some(0)));
        assert_eq!(here.pass(1, BROADCAST, mac(2)), [1, 0, 1, 1]);
        assert_eq!(here.pass(0, mac(2), mac(1)), [0; 4], "it waits");
        here.wires[1].borrow_mut().stops = true;
        assert_eq!(here.pass(0, mac(2), mac(1)), [0, 0, 1, 1]);
    });
}

#[test]
fn a_port_whose_packets_are_all_dropped_holds_no_other_up() {
    in_both_forms(|| {
        let mut here = Bench::default();
        here.pass(1, BROADCAST, mac(2));
        here.wires[2].borrow_mut().drops_all = true;
        for n in 0..100 {
            here.give(0, [frame(mac(2), mac(1), 100, n)]);
            assert_eq!(here.round(), Round::More);
            assert_eq!(here.sent()[1].len(), 1, "round {n}");
        }
        assert_eq!(here.wires[2].borrow().receives, 101, "one poll in each round, and one before");
        // Its packets are taken again as soon as there are any.
        here.wires[2].borrow_mut().drops_all = false;
        assert_eq!(here.pass(2, mac(2), mac(3)), [0, 1, 0, 0]);
    });
}

#[test]
fn counters_of_ports_at_rest_are_not_written_again_and_none_is_stale() {
    let mut here = Bench::default();
    for n in 1..=3 {
        here.pass(0, BROADCAST, mac(n));
        here.pass(1, BROADCAST, mac(n + 10));
        assert_eq!(here.count(0, Group::Port, "fdb_entries"), u64::from(n));
        assert_eq!(here.count(3, Group::Stage(Stage::Gso), "packets"), u64::from(2 * n));
    }
    // A station that goes to another port is no more at this one, which has sent nothing.
    here.pass(1, BROADCAST, mac(1));
    assert_eq!(here.count(0, Group::Port, "fdb_entries"), 2);
}

#[test]
fn at_the_end_everything_that_was_received_is_sent() {
    let mut here = Bench::default();
    here.set("net.gro.dev.a.hold_us", 900_000);
    here.give(0, segments(BROADCAST, mac(1), 5));
    here.round();
    assert_eq!(here.sent().concat().len(), 0, "held");
    assert!(here.bridge.deadline().is_some());
    assert!(here.bridge.close());
    here.round();
    assert_eq!(here.sent().iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 1, 1]);
}
