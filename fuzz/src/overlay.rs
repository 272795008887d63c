//! Tunnels with a peer table between ports in memory.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use segue::encap::{Carrier, Config, GreOptions, Mode, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::{Board, Group, Name, Stage};
use segue_datapath::knobs::Knobs;
use segue_datapath::overlay::{
    Inside, Listener, ListenerConfig, Overlay, Parts, PeerConfig, PeerCounters, Removed, Table, TableSender, exchange,
};
use segue_datapath::pipeline::Pipeline;

use crate::input::Input;
use crate::memory::{Carries, Gives, Memory, Wire};
use crate::pipelines::{FREE, PACKETS, SECOND, attend, next, sum};
use crate::resources::bounded;

/// Bits of the first byte, above those of the form: the paths to the peers are narrow, ports block and packets come in
/// crowds, GRO is off, the interface delivers trains, and the outer family is IPv6.
const IS_NARROW: u8 = 1 << 3;
const IS_BUSY: u8 = 1 << 4;
const NO_GRO: u8 = 1 << 5;
const HAS_TRAINS: u8 = 1 << 6;
const IS_V6: u8 = 1 << 7;
/// Bits of the second byte: outer checksums of which nothing is known, parsed packets from the interface, joined
/// packets that the ports outside may deliver unmarked, an interface that soon takes no trains, no peer to flood to,
/// rounds that a port has begun, and remote checksum offload switched off.
const UNKNOWN_CSUM: u8 = 1;
const IS_PARSED: u8 = 1 << 1;
const IS_UNFINISHED: u8 = 1 << 2;
const NARROWS: u8 = 1 << 3;
const NO_FLOOD: u8 = 1 << 4;
const IS_WOKEN: u8 = 1 << 5;
const NO_REMCSUM: u8 = 1 << 6;
/// Bits of the byte in front of each packet: it comes from the interface, or by the second listener; there is another
/// table after it; of a busy tunnel the ports outside and the interface take nothing, and the packet comes many times.
const FROM_INSIDE: u8 = 1;
const IS_SECOND: u8 = 1 << 1;
const HAS_TABLE: u8 = 1 << 5;
const BLOCKS_OUTSIDE: u8 = 1 << 2;
const BLOCKS_INSIDE: u8 = 1 << 3;
const IS_CROWD: u8 = 1 << 4;

const NARROW_MTU: usize = 1400;
/// Number of times that a packet of a crowd arrives.
const CROWD: usize = 16;
/// Payload of the segments of TCP trains that the interface delivers, bytes.
const SEGMENT: u16 = 100;
const KEY: Key = Key([1, 2]);
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const NAMES: [&str; 2] = ["udp", "gue"];
/// Last bytes of the outer addresses that datagrams come from: three peers, one that was removed, and one that never
/// was.
const SENDERS: [u8; 8] = [2, 3, 4, 8, 9, 2, 3, 4];

/// A tunnel with the other ends of its ports.
struct Bench {
    overlay: Overlay,
    board: Board,
    inside: Rc<RefCell<Wire>>,
    outsides: Vec<Rc<RefCell<Wire>>>,
    tables: TableSender,
    form: Form,
    counters: Vec<Arc<PeerCounters>>,
}

/// The form of a tunnel, from which its tables are made.
#[derive(Clone, Copy)]
struct Form {
    how: u8,
    settings: u8,
    /// Whether the interface carries frames.
    frames: bool,
    listeners: [(Mode, Carrier); 2],
}

impl Form {
    fn new(how: u8, settings: u8) -> Form {
        let vxlan = |remcsum| (Mode::Ethernet, Carrier::Vxlan { vni: 5, remcsum, takes_remcsum: true });
        let (gue, geneve) = (Carrier::Gue { remcsum: true }, (Mode::Ethernet, Carrier::Geneve { vni: 5 }));
        let gre = GreOptions { iseq: true, oseq: true, ..GreOptions::default() };
        let (frames, listeners) = match how & 7 {
            0 => (false, [(Mode::Ip, gue), (Mode::Gre(gre), gue)]),
            1 => (false, [vxlan(false), (Mode::Ip, gue)]),
            2 => (true, [vxlan(false), geneve]),
            3 => (true, [geneve, (Mode::Ethernet, gue)]),
            4 => (false, [geneve, (Mode::Ethernet, Carrier::Fou)]),
            5 => (false, [vxlan(true), (Mode::GreTap(gre), gue)]),
            6 => (true, [vxlan(true), (Mode::Ethernet, Carrier::Fou)]),
            _ => (true, [(Mode::GreTap(gre), gue), vxlan(true)]),
        };
        Form { how, settings, frames, listeners }
    }

    fn address(self, last: u8) -> IpAddr {
        match self.how & IS_V6 {
            0 => Ipv4Addr::new(198, 18, 0, last).into(),
            _ => Ipv6Addr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()]).into(),
        }
    }

    /// Returns the encapsulation towards a peer, or that of a listener. Of VXLAN the second peer has another network.
    fn encap(self, listener: usize, last: u8) -> Config {
        let (mode, carrier) = match self.listeners[listener] {
            (mode, Carrier::Vxlan { remcsum, takes_remcsum, .. }) if last == 3 => {
                (mode, Carrier::Vxlan { vni: 6, remcsum, takes_remcsum })
            }
            other => other,
        };
        let unfinished = (self.settings & IS_UNFINISHED != 0).then_some(1500);
        Config { port: 6080, unfinished, ..Config::new(mode, carrier, self.address(1), self.address(last)) }
    }

    /// Returns the number of peers that frames are flooded to.
    fn floods(self) -> u64 {
        if self.frames && self.settings & NO_FLOOD == 0 { 2 } else { 0 }
    }

    /// Returns whether a frame is flooded: to a group, to a station that the table with this number does not have, or
    /// without a whole header.
    fn is_flooded(self, frame: &[u8], generation: u64) -> bool {
        let to = frame.first_chunk::<14>().and_then(|header| header.first_chunk()).copied().unwrap_or([0xff; 6]);
        let is_known =
            to[0] & 1 == 0 && self.peers(generation).iter().any(|(inside, ..)| *inside == Inside::Station(to));
        self.floods() > 0 && !is_known
    }

    /// Returns the least and the largest number of packets that are flooded of so many copies of a frame, of which so
    /// many packets came at once, with the table of this number in force.
    fn flooded(self, frame: &[u8], copies: u64, arrived: u64, generation: u64) -> [u64; 2] {
        if self.how & IS_BUSY == 0 {
            return [if self.is_flooded(frame, generation) { arrived } else { 0 }; 2];
        }
        // What waits for a busy tunnel may be flooded by a later table.
        let by = [0, 1].map(|generation| self.is_flooded(frame, generation));
        let segments = if self.how & HAS_TRAINS == 0 { 1 } else { frame.len() as u64 / u64::from(SEGMENT) + 1 };
        [if by[0] && by[1] { copies } else { 0 }, if by[0] || by[1] { copies * segments } else { 0 }]
    }

    /// Returns the inner addresses of each peer: the last byte of its outer address, and its listener. A table with an
    /// odd number has no peer 3.
    fn peers(self, generation: u64) -> Vec<(Inside, u8, usize)> {
        let station = |last: u8| Inside::Station([2, 0, 0, 0, 0, last]);
        let prefix = |net: [u8; 4], len| Inside::Prefix(net.into(), len);
        let v6 = Inside::Prefix("2001:db8:1::".parse().expect("an address"), 48);
        let mut peers = if self.frames {
            vec![(station(2), 2, 0), (station(3), 3, 0), (station(4), 4, 1)]
        } else {
            vec![
                (prefix([198, 18, 1, 0], 24), 2, 0),
                (v6, 2, 0),
                (prefix([198, 18, 3, 0], 24), 3, 0),
                (prefix([198, 19, 0, 0], 16), 4, 1),
                (prefix([198, 18, 1, 9], 32), 4, 1),
            ]
        };
        if self.floods() > 0 {
            peers.extend([(Inside::Flood, 2, 0), (Inside::Flood, 4, 1)]);
        }
        peers.retain(|(_, last, _)| *last != 3 || generation.is_multiple_of(2));
        peers
    }

    fn table(self, generation: u64, counters: &[Arc<PeerCounters>]) -> Box<Table> {
        let made = |(inside, last, listener): (Inside, u8, usize)| PeerConfig {
            inside,
            listener,
            encap: self.encap(listener, last),
            mac: (!self.frames).then_some([2, 0, 0, 0, 0, last]),
            counters: Arc::clone(&counters[usize::from(last)]),
        };
        let peers: Vec<PeerConfig> = self.peers(generation).into_iter().map(made).collect();
        let listeners = [0, 1].map(|at| ListenerConfig { encap: self.encap(at, 1) });
        let gone =
            if self.frames { Inside::Station([2, 0, 0, 0, 0, 8]) } else { Inside::Prefix([198, 18, 8, 0].into(), 24) };
        let prefixes = gone.prefix().into_iter().collect();
        let removed = Removed { prefixes, remotes: vec![self.address(8)] };
        Box::new(Table::new(generation, &listeners, &peers, &removed, OWN, KEY).expect("a table"))
    }
}

fn bench(form: Form) -> Bench {
    let Form { how, settings, frames, .. } = form;
    let trains = Limits { csum: true, tso4: true, tso6: true, uso: true, max_segs: 1000, ..Limits::NONE };
    let trains = Limits { max_udp_segs: 64, max_bytes: 65_549, max_pieces: 1000, ..trains };
    let (port, inside) = Memory::port(if frames { Carries::Ethernet } else { Carries::Ip }, trains);
    inside.borrow_mut().train = (how & HAS_TRAINS != 0).then_some(SEGMENT);
    inside.borrow_mut().gives = if settings & IS_PARSED == 0 { Gives::Frames } else { Gives::Packets };
    inside.borrow_mut().narrow = settings & NARROWS != 0;
    let csum = if settings & UNKNOWN_CSUM == 0 { OuterCsum::Verified } else { OuterCsum::Unknown };
    let (mut listeners, mut outsides) = (Vec::new(), Vec::new());
    for name in NAMES {
        let (port, wire) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
        wire.borrow_mut().path_mtu = (how & IS_NARROW != 0).then_some(NARROW_MTU);
        listeners.push(Listener { name: name.to_owned(), port, csum });
        outsides.push(wire);
    }
    let counters: Vec<Arc<PeerCounters>> = (0..5).map(|_| Arc::default()).collect();
    let (sender, tables) = exchange();
    let mut overlay = Overlay::new(Parts {
        inside_name: "sg0".to_owned(),
        inside: port,
        frames,
        listeners,
        table: form.table(0, &counters),
        tables,
        mac: OWN,
        gro: (how & NO_GRO == 0).then(gro::Config::default),
        remcsum: settings & NO_REMCSUM == 0,
        budget: 64,
        pages: 256,
        key: KEY,
    });
    assert!(format!("{overlay:?}").contains('2'));
    // Each copy of what is flooded is expected, however short the time.
    let knobs = Knobs::of(|dial| overlay.tune(dial));
    let _ = knobs.set("net.peers.dev.sg0.flood_limit", 100_000_000);
    knobs.follow(&mut 0, |dial| overlay.tune(dial));
    let board = Board::new(|sink| overlay.collect(sink));
    Bench { overlay, board, inside, outsides, tables: sender, form, counters }
}

impl Bench {
    /// Returns the numbers of datagrams and of packets that have left by the ports, and takes these.
    fn sent(&mut self) -> [u64; 2] {
        let mut left = 0;
        for wire in &self.outsides {
            let mut wire = wire.borrow_mut();
            assert_eq!(wire.sent.len(), wire.sent_to.len(), "every datagram has a destination");
            assert!(wire.sent_to.drain(..).all(|to| usize::from(to) < SENDERS.len()));
            left += wire.sent.drain(..).count() as u64;
        }
        [left, self.inside.borrow_mut().sent.drain(..).count() as u64]
    }

    /// Returns the number of packets that have come from the interface, the segments of a train as so many.
    fn entered(&self) -> u64 {
        let is_meant =
            |name: &Name| name.port == "sg0" && name.group == Group::Stage(Stage::Ingress) && name.key == "segments";
        sum(&self.board, &self.overlay, is_meant)
    }

    /// Checks that no packet was lost without a counter: `came` datagrams and packets of the interface, of which the
    /// others have left, and at least and at most so many of which were flooded.
    fn balance(&self, [datagrams, packets]: [u64; 2], [left, delivered]: [u64; 2], flooded: [u64; 2]) {
        let of =
            |group: Group, key: &str| sum(&self.board, &self.overlay, |name| name.group == group && name.key == key);
        let inside = |group: Group, key: &str| {
            sum(&self.board, &self.overlay, |name| name.port == "sg0" && name.group == group && name.key == key)
        };
        let drops_outside = sum(&self.board, &self.overlay, |name| name.port != "sg0" && name.group == Group::Drops);
        let unwrapped = of(Group::Stage(Stage::Decap), "packets");
        assert_eq!(datagrams, drops_outside + unwrapped, "datagrams");
        assert_eq!(unwrapped, self.counters.iter().map(|peer| peer.received()[0]).sum::<u64>(), "peers");
        let Form { how, settings, .. } = self.form;
        let entered = self.entered();
        if how & HAS_TRAINS == 0 {
            assert_eq!(entered, packets, "packets of the interface");
        }
        // What is joined, or was joined on the way here, is one packet for many.
        if how & NO_GRO != 0 && settings & IS_UNFINISHED == 0 {
            let came = entered + unwrapped + inside(Group::Port, "icmp_errors");
            let out = left
                + delivered
                + sum(&self.board, &self.overlay, |name| name.port == "sg0" && name.group == Group::Drops);
            let others = self.form.floods().saturating_sub(1);
            let [least, most] = flooded.map(|count| came + others * count);
            assert!((least..=most).contains(&out), "{came} have come, {flooded:?} were flooded, and {out} have gone");
        }
    }
}

/// Passes arbitrary datagrams to a tunnel with a peer table, by both of its listeners, and arbitrary packets or frames
/// to its interface: every one leaves or has a counter, those of a tunnel without GRO exactly, whatever table comes
/// into force meanwhile.
///
/// The first byte chooses the form (bits 0 to 2) and has the bits from [`IS_NARROW`] on, the second one those from
/// [`UNKNOWN_CSUM`] on. Before each packet a byte has the bits from [`FROM_INSIDE`] on, the sender of a datagram (bits
/// 2 to 4), and how much time passes (bits 6 and 7).
pub fn overlay(data: &[u8]) {
    let mut input = Input::new(data);
    let (how, settings) = (input.u8(), input.u8());
    bounded(data.len(), FREE, || {
        let mut bench = bench(Form::new(how, settings));
        let (mut came, mut gone) = ([0; 2], [0; 2]);
        let (mut before, mut now, mut generation) = (Vec::new(), 0, 0);
        let (mut flooded, mut entered) = ([0; 2], 0);
        for _ in 0..PACKETS {
            if input.is_empty() {
                break;
            }
            let each = input.u8();
            let bytes = next(&mut input, &before);
            let from_inside = each & FROM_INSIDE != 0;
            let is_busy = how & IS_BUSY != 0 && from_inside;
            let copies = match bytes.is_empty() && !from_inside {
                // The ports drop and count empty datagrams.
                true => 0,
                false if is_busy && each & IS_CROWD != 0 => CROWD,
                false => 1,
            };
            let listener = usize::from(each & IS_SECOND != 0);
            if is_busy {
                let room = |is_blocked: bool| is_blocked.then_some(0);
                bench.outsides.iter().for_each(|wire| wire.borrow_mut().room = room(each & BLOCKS_OUTSIDE != 0));
                bench.inside.borrow_mut().room = room(each & BLOCKS_INSIDE != 0);
            }
            let wire = if from_inside { &bench.inside } else { &bench.outsides[listener] };
            let sender = bench.form.address(SENDERS[usize::from(each >> 2 & 7)]);
            wire.borrow_mut().peer = Some((sender, 6080).into());
            wire.borrow_mut().waiting.extend(std::iter::repeat_n(bytes.clone(), copies));
            came[usize::from(from_inside)] += copies as u64;
            before = bytes;
            now += [1000, SECOND / 1000, SECOND, 0][usize::from(each >> 6)];
            for _ in 0..2 {
                if settings & IS_WOKEN != 0 {
                    bench.overlay.woken(if from_inside { 0 } else { 1 + listener });
                }
                bench.overlay.round(Nanos(now)).expect("ports without errors");
            }
            if from_inside && bench.form.floods() > 0 {
                let arrived = bench.entered() - entered;
                entered += arrived;
                let more = bench.form.flooded(&before, copies as u64, arrived, generation);
                flooded = [flooded[0] + more[0], flooded[1] + more[1]];
            }
            if each & HAS_TABLE != 0 {
                let _changing = bench.tables.changing();
                generation += 1;
                bench.tables.replace(bench.form.table(generation, &bench.counters));
                bench.overlay.round(Nanos(now)).expect("ports without errors");
            }
            // Else another sender's address would be that of a datagram that waits.
            while how & IS_BUSY == 0 && bench.outsides.iter().any(|wire| !wire.borrow().waiting.is_empty()) {
                bench.overlay.round(Nanos(now)).expect("ports without errors");
            }
            let sent = bench.sent();
            gone = [gone[0] + sent[0], gone[1] + sent[1]];
        }
        bench.outsides.iter().chain([&bench.inside]).for_each(|wire| wire.borrow_mut().room = None);
        for number in 1..=PACKETS as u64 {
            bench.overlay.round(Nanos(now + number * SECOND)).expect("ports without errors");
        }
        let sent = bench.sent();
        gone = [gone[0] + sent[0], gone[1] + sent[1]];
        assert_eq!(bench.tables.in_force(), generation);
        bench.balance(came, gone, flooded);
        attend(&mut bench.overlay, now + PACKETS as u64 * SECOND);
    });
}
