//! Gateways with more than two ports, between ports in memory.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;

use segue::gro;
use segue::gso::Limits;
use segue::time::Nanos;
use segue_datapath::board::{Board, Group, Stage};
use segue_datapath::bridge::{Bridge, BridgePort, Parts};
use segue_datapath::gateway::PortConfig;
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_port::PagePool;

use crate::input::Input;
use crate::memory::{Carries, Gives, Memory, Wire};
use crate::pipelines::{FREE, PACKETS, SECOND, attend, next, sum};
use crate::resources::bounded;

/// Bits of the first byte, above those of the number of ports: GRO is off, the first port delivers trains, ports
/// deliver parsed packets, all limits are small, there is little memory, and a port soon takes no trains.
const NO_GRO: u8 = 1 << 2;
const HAS_TRAINS: u8 = 1 << 3;
const IS_PARSED: u8 = 1 << 4;
const IS_TIGHT: u8 = 1 << 5;
const IS_POOR: u8 = 1 << 6;
const NARROWS: u8 = 1 << 7;
/// Bits of the byte in front of each frame, above those of its port: the port takes nothing from now on, or again; its
/// link goes down, or up; and the frame comes many times.
const BLOCKS: u8 = 1 << 2;
const IS_DOWN: u8 = 1 << 3;
const IS_CROWD: u8 = 1 << 4;

/// Number of times that a frame of a crowd arrives.
const CROWD: usize = 64;
/// Number of turns after which a port has paid for all that it can have sent: a round of a crowd of the largest frames
/// to four other ports, by quanta of a frame.
const MOST_TURNS: usize = 64 * 4 * 65_536 / 1514;
/// Payload of the segments of TCP trains that the first port delivers, bytes.
const SEGMENT: u16 = 100;
const MS: u64 = SECOND / 1000;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Address of the interface of this host at the first port.
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 200];
/// Largest number of stations of a port, and of flooded packets per second, with small limits.
const FEW: u64 = 3;

fn bridge(how: u8) -> (Bridge, Vec<Rc<RefCell<Wire>>>) {
    let trains = Limits { csum: true, tso4: true, tso6: true, uso: true, max_segs: 1000, ..Limits::NONE };
    let trains = Limits { max_udp_segs: 64, max_bytes: 65_549, max_pieces: 1000, ..trains };
    let (mut ports, mut wires) = (Vec::new(), Vec::new());
    for (at, name) in NAMES.iter().take(2 + usize::from(how & 3)).enumerate() {
        // The second port takes no trains.
        let (port, wire) = Memory::port(Carries::Ethernet, if at == 1 { Limits::NONE } else { trains });
        wire.borrow_mut().train = (how & HAS_TRAINS != 0 && at == 0).then_some(SEGMENT);
        wire.borrow_mut().gives = if how & IS_PARSED == 0 { Gives::Frames } else { Gives::Packets };
        wire.borrow_mut().narrow = how & NARROWS != 0 && at == 0;
        let gro = (how & NO_GRO == 0).then(gro::Config::default);
        let config = PortConfig { name: (*name).to_owned(), port, gro, fragments: None };
        ports.push(BridgePort { config, own: (at == 0).then_some(OWN) });
        wires.push(wire);
    }
    let pages = PagePool::new(if how & IS_POOR == 0 { 512 } else { 32 });
    let mut bridge = Bridge::new(Parts { ports, budget: 64, pages }).expect("a poll set");
    if how & IS_TIGHT != 0 {
        let knobs = Knobs::of(|dial| bridge.tune(dial));
        assert!(knobs.set("net.bridge.ageing_s", 1).is_some());
        for name in &NAMES[..wires.len()] {
            for (key, value) in
                [("bridge.dev.X.max_learned", FEW), ("bridge.dev.X.flood_limit", FEW), ("napi.dev.X.quantum", 1514)]
            {
                assert!(knobs.set(&format!("net.{}", key.replace('X', name)), value).is_some(), "{name}, {key}");
            }
        }
        knobs.follow(&mut 0, |dial| bridge.tune(dial));
    }
    assert!(format!("{bridge:?}").contains(&wires.len().to_string()));
    (bridge, wires)
}

/// Passes arbitrary frames to the ports of a bridge, which block, go down and come back: every frame leaves, is flooded
/// or has a counter, and no port has more stations than it may.
///
/// The first byte has the number of ports beyond two (bits 0 and 1), and the bits from [`NO_GRO`] on. Before each frame
/// a byte has its port (bits 0 and 1), the bits from [`BLOCKS`] on, and how much time passes (bits 5 to 7).
pub fn bridge_frames(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    bounded(data.len(), FREE, || {
        let (mut bridge, wires) = bridge(how);
        let board = Board::new(|sink| bridge.collect(sink));
        let (mut came, mut sent, mut now, mut before) = (0, 0, 0, Vec::new());
        let mut was_down = false;
        let take = || -> u64 { wires.iter().map(|wire| wire.borrow_mut().sent.drain(..).count() as u64).sum() };
        for _ in 0..PACKETS {
            if input.is_empty() {
                break;
            }
            let each = input.u8();
            let frame = next(&mut input, &before);
            let from = usize::from(each & 3) % wires.len();
            {
                let mut wire = wires[from].borrow_mut();
                if each & BLOCKS != 0 {
                    wire.room = if wire.room.is_some() { None } else { Some(0) };
                }
                wire.is_down ^= each & IS_DOWN != 0;
                was_down |= wire.is_down;
                let copies = if each & IS_CROWD == 0 { 1 } else { CROWD };
                wire.waiting.extend(std::iter::repeat_n(frame.clone(), copies));
                came += copies as u64;
            }
            before = frame;
            now += [0, 1000, 60 * MS, 100 * MS, 500 * MS, SECOND, 2 * SECOND, 301 * SECOND][usize::from(each >> 5)];
            for _ in 0..3 {
                bridge.round(Nanos(now)).expect("ports without errors");
            }
            let mut interests = 0;
            bridge.each_interest(&mut |_| interests += 1);
            // The last one is that of a blocked port, if there is one.
            bridge.woken(interests - 1);
            sent += take();
            check_stations(&board, &bridge, how);
        }
        wires.iter().for_each(|wire| wire.borrow_mut().room = None);
        while wires.iter().any(|wire| !wire.borrow().waiting.is_empty()) {
            now += SECOND;
            bridge.round(Nanos(now)).expect("ports without errors");
        }
        // A port that has overdrawn waits for its turn with the trains that it holds.
        let mut left = MOST_TURNS;
        while bridge.deadline().is_some() && left > 0 {
            left -= 1;
            now += SECOND;
            bridge.round(Nanos(now)).expect("ports without errors");
        }
        assert!(left > 0, "a train is held for ever");
        for _ in 0..10 {
            now += SECOND;
            bridge.round(Nanos(now)).expect("ports without errors");
        }
        sent += take();
        let others = wires.len() as u64 - 1;
        let copies = if was_down { 0..=others } else { others..=others };
        balance(&board, &bridge, how, copies, [came, sent]);
        attend(&mut bridge, now);
    });
}

/// Checks that no port has more stations than it may.
fn check_stations(board: &Board, bridge: &Bridge, how: u8) {
    let most = if how & IS_TIGHT == 0 { 1024 } else { FEW };
    for port in NAMES {
        let count =
            sum(board, bridge, |name| name.port == port && name.group == Group::Port && name.key == "fdb_entries");
        assert!(count <= most, "{count} stations at {port}");
    }
}

/// Checks that no frame was lost without a counter: `came` have come, and `sent` have left; `copies` is the number of
/// ports that a flooded frame can have gone to.
fn balance(board: &Board, bridge: &Bridge, how: u8, copies: RangeInclusive<u64>, [came, sent]: [u64; 2]) {
    // The segments of a train are not counted where it comes in.
    if how & HAS_TRAINS != 0 {
        return;
    }
    let of = |group: Group, key: &str| sum(board, bridge, |name| name.group == group && name.key == key);
    let (flooded, swallowed) = (of(Group::Port, "flooded"), of(Group::Port, "swallowed"));
    let queued = of(Group::Stage(Stage::Gso), "segments");
    let of_bridge = sum(board, bridge, |name| name.group == Group::Drops && name.key.starts_with("bridge_"));
    // These were queued before.
    let later = of(Group::Drops, "bridge_memory");
    let decided = queued + of_bridge - later;
    let alone = came - swallowed - flooded;
    let (least, most) = (alone + copies.start() * flooded, alone + copies.end() * flooded);
    assert!((least..=most).contains(&decided), "{came} have come, {flooded} flooded, and {decided} have gone");
    if how & NO_GRO != 0 {
        let refused = sum(board, bridge, |name| name.group == Group::Drops && !name.key.starts_with("bridge_"));
        assert_eq!(queued, sent + later + refused, "queued");
    }
}
