//! Whole pipelines between ports in memory, of which this is a router with and without address translation.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::mpsc::sync_channel;

use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::{Board, Name};
use segue_datapath::gateway::PortConfig;
use segue_datapath::knobs::{Knobs, Values};
use segue_datapath::nat::{self, Nat};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::route::{Action, Hop, Routes, Table};
use segue_datapath::router::{
    FeedSender, InterfaceAddrs, Message, Neighbour, NeighbourEvent, Parts, Router, Tables, feed,
};
use segue_port::PagePool;

use crate::input::Input;
use crate::memory::{Carries, Memory, Wire};
use crate::resources::bounded;

/// Number of bytes that a pipeline may hold without input: pages, tables, and pools of packets.
pub(crate) const FREE: usize = 64 << 20;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Largest number of packets of one input.
pub(crate) const PACKETS: usize = 100;
/// Longest generated packet, bytes.
const LONGEST: usize = 9000;
/// Largest number of frames sent for one that is received: an error, a solicitation, and fragments of the smallest MTU.
const MOST_OUT: usize = 64;
/// Largest number of mappings of a router's address translation.
const MOST_MAPPINGS: usize = 64;

const OWN: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 2, 1]];
const CLIENT: [u8; 6] = [2, 0, 0, 0, 1, 2];
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 9);

/// Returns the next packet, which its length in two bytes precedes. A length with the highest bit set stands for the
/// packet before it, with the rest of its bytes laid over it from the offset that another byte names.
pub(crate) fn next(input: &mut Input<'_>, before: &[u8]) -> Vec<u8> {
    let len = input.u16();
    if len & 0x8000 == 0 {
        return input.take(usize::from(len).min(LONGEST)).to_vec();
    }
    let mut bytes = before.to_vec();
    let at = usize::from(input.u8());
    for (place, change) in bytes.iter_mut().skip(at).zip(input.take(usize::from(len & 0x3f))) {
        *place = *change;
    }
    bytes
}

/// Returns the sum of a pipeline's counters with such names. The board is the only one that the pipeline has: a bridge
/// writes what has changed since.
pub(crate) fn sum(board: &Board, pipeline: &dyn Pipeline, is_meant: impl Fn(&Name) -> bool) -> u64 {
    board.publish(|sink| pipeline.collect(sink));
    board.read().filter(|(name, _)| is_meant(name)).map(|(_, value)| value).sum()
}

/// Does what a worker does beside its rounds: it publishes the counters, waits and is woken, sets every setting and
/// sets it back, and closes the pipeline. Counters change with packets only, and nothing is received after the end.
pub(crate) fn attend(pipeline: &mut dyn Pipeline, now: u64) {
    let board = Board::new(|sink| pipeline.collect(sink));
    let values = |pipeline: &dyn Pipeline| -> Vec<u64> {
        board.publish(|sink| pipeline.collect(sink));
        board.read().map(|(_, value)| value).collect()
    };
    assert_eq!(values(pipeline), values(pipeline), "nothing has passed");
    let mut interests = 0;
    pipeline.each_interest(&mut |_| interests += 1);
    for place in 0..interests {
        pipeline.woken(place);
        pipeline.round(Nanos(now)).expect("ports without errors");
    }
    let numbers: Vec<(String, u32)> =
        pipeline.sequences().into_iter().map(|(name, next)| (name.to_owned(), next)).collect();
    for (name, next) in &numbers {
        pipeline.go_on(name, *next);
    }
    assert!(pipeline.sequences().into_iter().eq(numbers.iter().map(|(name, next)| (name.as_str(), *next))));

    let (knobs, mut seen) = (Knobs::of(|dial| pipeline.tune(dial)), 0);
    let all: Vec<(String, Values, u64)> = knobs
        .iter()
        .filter(|(knob, _)| knob.fixed.is_none())
        .map(|(knob, value)| (knob.name.clone(), knob.values, value))
        .collect();
    for is_back in [false, true] {
        for (name, values, value) in &all {
            let other = match values {
                Values::Switch => 1 - *value,
                Values::Number { min, .. } => *min,
                Values::Names(names) => (*value + 1) % names.len() as u64,
            };
            assert!(knobs.set(name, if is_back { *value } else { other }).is_some(), "{name}");
        }
        knobs.follow(&mut seen, |dial| pipeline.tune(dial));
        pipeline.round(Nanos(now)).expect("ports without errors");
    }
    let set = Knobs::of(|dial| pipeline.tune(dial));
    assert!(set.iter().map(|(_, value)| value).eq(knobs.iter().map(|(_, value)| value)), "all is set back");

    let _ = (pipeline.poll_policy(), pipeline.deadline());
    let (taken, sent) = (pipeline.taken(), pipeline.sent());
    pipeline.close();
    for later in 0..3 {
        pipeline.round(Nanos(now + later * SECOND)).expect("ports without errors");
    }
    assert_eq!(pipeline.taken(), taken, "closed");
    assert!(pipeline.sent() >= sent);
}

fn router(has_nat: bool) -> (Router, [Rc<RefCell<Wire>>; 2], FeedSender) {
    let [(first, a), (second, b)] = [(); 2].map(|()| Memory::port(Carries::Ethernet, Limits::NONE));
    let side = |name: &str, port| PortConfig {
        name: name.to_owned(),
        port,
        gro: Some(gro::Config::default()),
        fragments: None,
    };
    let (sender, feed) = feed().expect("a pipe");
    let nat = has_nat.then(|| {
        let config = nat::Config { most: MOST_MAPPINGS, most_per_host: 16, ..nat::Config::new(OUTSIDE, 7) };
        (Nat::new(config), OUTSIDE)
    });
    let ports = [side("in", first), side("out", second)];
    let parts = Parts { ports, budget: 64, pages: PagePool::new(256), feed, nat, key: Key([1, 2]) };
    let router = Router::new(parts);
    let mut routes = Routes::new(32);
    for port in 0..2u16 {
        let mtu = if port == 0 { 1500 } else { 1280 };
        let action = Action::Forward { port, via: None, mtu };
        let v6 = Ipv6Addr::from([0x2001, 0xdb8, 0, port + 1, 0, 0, 0, 0]);
        routes.insert(Table::Main, [198, 18, port as u8 + 1, 0].into(), 24, action).expect("room");
        routes.insert(Table::Main, v6.into(), 64, action).expect("room");
    }
    let via = Some(IpAddr::from([198, 18, 2, 254]));
    let beyond = Action::Forward { port: 1, via, mtu: 1280 };
    routes.insert(Table::Main, [198, 19, 0, 0].into(), 16, beyond).expect("room");
    routes.insert(Table::Main, [203, 0, 113, 0].into(), 24, Action::Blackhole).expect("room");
    routes.insert(Table::Main, [192, 0, 2, 0].into(), 24, Action::Unreachable).expect("room");
    routes.insert(Table::Main, [198, 51, 100, 0].into(), 24, Action::Prohibited).expect("room");
    routes.insert(Table::Main, [198, 51, 101, 0].into(), 24, Action::Encapsulated).expect("room");
    routes.insert(Table::Main, [198, 51, 102, 0].into(), 24, Action::Local).expect("room");
    let addrs = |port: u8| InterfaceAddrs {
        mac: OWN[usize::from(port)],
        mtu: if port == 0 { 1500 } else { 1280 },
        v4: vec![(Ipv4Addr::new(198, 18, port + 1, 1), 24)],
        v6: vec![
            (Ipv6Addr::from([0x2001, 0xdb8, 0, u16::from(port) + 1, 0, 0, 0, 1]), 64),
            (Ipv6Addr::from([0xfe80, 0, 0, 0, 0, 0, 0, u16::from(port) + 1]), 64),
        ],
    };
    let hop = Hop { port: 0, is_v4: true, address: Ipv4Addr::new(198, 18, 1, 2).to_bits().into() };
    let neighbours = vec![Neighbour { hop, mac: CLIENT, is_permanent: true }];
    let tables = Tables { routes, ports: [addrs(0), addrs(1)], neighbours };
    assert!(sender.send(Message::Tables(Box::new(tables))));
    (router, [a, b], sender)
}

/// Bits of the first byte of a router's input: the kernel reports neighbours too, each packet is routed by itself and
/// GRO is off, and sources are checked in another way.
const HAS_EVENTS: u8 = 1 << 1;
const IS_ALONE: u8 = 1 << 2;
const IS_LOOSE: u8 = 1 << 3;

/// Returns what the kernel reports after a frame, by the bits of the byte in front of it: the neighbour that is the
/// destination of its packet has the frame's source as its link address, for good or not, or has gone.
fn event(how: u8, frame: &[u8]) -> Option<NeighbourEvent> {
    let mac = *frame.get(6..)?.first_chunk()?;
    let is_v4 = frame.get(12..14)? == [8, 0];
    let address = if is_v4 {
        u32::from_be_bytes(*frame.get(30..)?.first_chunk()?).into()
    } else {
        u128::from_be_bytes(*frame.get(38..)?.first_chunk()?)
    };
    let hop = Hop { port: u16::from(how & 1 ^ 1), is_v4, address };
    match how >> 1 & 3 {
        1 => Some(NeighbourEvent::Set(Neighbour { hop, mac, is_permanent: how & 8 != 0 })),
        2 => Some(NeighbourEvent::Removed(hop)),
        _ => None,
    }
}

/// Passes arbitrary frames to both ports of a router at arbitrary times: neighbours, ICMP errors, address translation
/// and fragments included. It ends, the output is bounded by the input, each frame that leaves by a port has that
/// port's link address as its source, and no frame has a source address that no host can have.
///
/// The first byte says whether there is address translation (bit 0), whether the kernel reports neighbours (bit 1),
/// whether each packet is routed by itself (bit 2), and how sources are checked (bit 3). Before each frame a byte says
/// to which port it comes (bit 0), and how much time has passed (bits 5 to 7), and what the kernel reports (bits 1 to
/// 3), or whether the mappings are asked for (bit 4), where it does.
pub fn route(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    bounded(data.len(), FREE, || {
        let (mut router, wires, sender) = router(how & 1 != 0);
        let has_events = how & HAS_EVENTS != 0;
        if how & (IS_ALONE | IS_LOOSE) != 0 {
            let knobs = Knobs::of(|dial| router.tune(dial));
            let is_alone = how & IS_ALONE != 0;
            // Strict is the default; loose, and off.
            let mode = if is_alone { 0 } else { 2 };
            for (name, value, is_meant) in [
                ("net.route.groups", 0, is_alone),
                ("net.gro.dev.in.enable_gro", 0, is_alone),
                ("net.route.source_check", mode, how & IS_LOOSE != 0),
                ("net.nat.max_mappings", MOST_MAPPINGS as u64, how & 1 != 0),
            ] {
                assert!(!is_meant || knobs.set(name, value).is_some(), "{name}");
            }
            knobs.follow(&mut 0, |dial| router.tune(dial));
        }
        router.round(Nanos(0)).expect("ports without errors");
        let (mut now, mut before, mut came, mut left) = (0, Vec::new(), 0, 0);
        for _ in 0..PACKETS {
            if input.is_empty() {
                break;
            }
            let how = input.u8();
            now += [0, 1000, SECOND, 2 * SECOND, 31 * SECOND, 61 * SECOND, 601 * SECOND, 0][usize::from(how >> 5)];
            let frame = next(&mut input, &before);
            wires[usize::from(how & 1)].borrow_mut().waiting.push_back(frame.clone());
            came += 1;
            if has_events && let Some(event) = event(how, &frame) {
                assert!(sender.send(Message::Neighbours(vec![event])));
            }
            if has_events && how & 16 != 0 {
                let (reply, answer) = sync_channel(1);
                assert!(sender.send(Message::Mappings(reply)));
                router.round(Nanos(now)).expect("ports without errors");
                let (at, mappings) = answer.try_recv().expect("an answer");
                assert!(at == Nanos(now) && mappings.len() <= MOST_MAPPINGS);
            }
            before = frame;
            for _ in 0..3 {
                router.round(Nanos(now)).expect("ports without errors");
            }
            for (port, wire) in wires.iter().enumerate() {
                for frame in wire.borrow_mut().sent.drain(..) {
                    left += 1;
                    assert_eq!(frame[6..12], OWN[port], "{frame:02x?}");
                    if frame[12..14] == [8, 0] {
                        let source =
                            Ipv4Addr::from_bits(u32::from_be_bytes([frame[26], frame[27], frame[28], frame[29]]));
                        assert!(
                            !source.is_loopback() && !source.is_multicast() && !source.is_unspecified(),
                            "{source}"
                        );
                    }
                }
            }
        }
        // Announcements of the outside address and probes of neighbours come with time alone.
        assert!(left <= MOST_OUT * (came + 1), "{left} frames for {came}");
        attend(&mut router, now);
    });
}
