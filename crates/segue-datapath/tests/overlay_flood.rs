//! Tests of frames that a tunnel with a peer table sends to several peers, and of those that come back: what one frame
//! costs has a limit, whatever the number of peers.

mod memory;

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use memory::{Carries, Memory, Wire, counter};
use segue::encap::{Carrier, Config, Fdb, Mode, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::Group;
use segue_datapath::overlay::{
    Form, Inside, Listener, ListenerConfig, Overlay, Parts, PeerConfig, PeerCounters, Removed, Table, exchange, knobs,
};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::tunnel;
use segue_port::{Counters, OffloadState, Polled, Port, RxBatch, Sent, TxBatch};

const KEY: Key = Key([1, 2]);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
/// Ethernet addresses of this end, and of a station behind the first peer.
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 2];
const BROADCAST: [u8; 6] = [0xff; 6];
const SECOND: u64 = 1_000_000_000;
/// Most packets that wait for a socket: the copies, and one round of frames.
const MOST: usize = 1024 + 64;

/// A port in memory with an Ethernet address, which notes the longest batch that it was given.
struct Watched {
    port: Box<dyn Port>,
    longest: Rc<Cell<usize>>,
}

impl Port for Watched {
    fn limits(&self) -> &Limits {
        self.port.limits()
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        self.port.offloads()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }

    fn mac(&self) -> Option<[u8; 6]> {
        Some(OWN)
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        self.port.receive(into, budget)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        self.longest.set(self.longest.get().max(batch.len()));
        self.port.transmit(batch)
    }

    fn counters(&self) -> &Counters {
        self.port.counters()
    }
}

/// A tunnel of frames whose peers all take frames to unknown addresses.
struct Bench {
    overlay: Overlay,
    inside: Rc<std::cell::RefCell<Wire>>,
    outside: Rc<std::cell::RefCell<Wire>>,
    longest: Rc<Cell<usize>>,
}

/// Returns a frame of a protocol that is not IP.
fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    [&to[..], &from, &[0x88, 0xb5], &[0; 80]].concat()
}

fn remote(peer: u16) -> IpAddr {
    let [high, low] = (256 + peer).to_be_bytes();
    Ipv4Addr::new(198, 18, high, low).into()
}

impl Bench {
    fn new(peers: u16) -> Bench {
        let config = |remote| Config::new(Mode::Ethernet, Carrier::Gue { remcsum: false }, LOCAL, remote);
        let peer = |number| PeerConfig {
            inside: Inside::Flood,
            listener: 0,
            encap: config(remote(number)),
            mac: None,
            counters: Arc::<PeerCounters>::default(),
        };
        let peers: Vec<PeerConfig> = (0..peers).map(peer).collect();
        let listeners = [ListenerConfig { encap: config(remote(0)) }];
        let removed = Removed { prefixes: Vec::new(), remotes: Vec::new() };
        let table = Box::new(Table::new(1, &listeners, &peers, &removed, OWN, KEY).unwrap());
        let longest = Rc::new(Cell::new(0));
        let watched = |port| Box::new(Watched { port, longest: Rc::clone(&longest) });
        let (inside_port, inside) = Memory::port(Carries::Ethernet, Limits::NONE);
        let (outside_port, outside) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
        let (_, tables) = exchange();
        let overlay = Overlay::new(Parts {
            inside_name: "sg0".to_owned(),
            inside: watched(inside_port),
            frames: true,
            listeners: vec![Listener {
                name: "udp".to_owned(),
                port: watched(outside_port),
                csum: OuterCsum::Verified,
            }],
            table,
            tables,
            mac: OWN,
            gro: Some(gro::Config::default()),
            remcsum: false,
            budget: 64,
            pages: 256,
            key: KEY,
        });
        Bench { overlay, inside, outside, longest }
    }

    fn set(&mut self, limit: u64) {
        let form = Form { frames: true, gro: Some(gro::Config::default()), remcsum: false, budget: 64 };
        let knobs = knobs("sg0", &["udp"], form);
        knobs.set("net.peers.dev.sg0.flood_limit", limit).unwrap();
        knobs.follow(&mut 0, |dial| self.overlay.tune(dial));
    }

    /// Sends frames of the interface to this address, and returns how many datagrams that became.
    fn send(&mut self, to: [u8; 6], frames: usize, now: u64) -> usize {
        self.inside.borrow_mut().waiting.extend(vec![frame(to, OWN); frames]);
        for _ in 0..4 {
            self.overlay.round(Nanos(now)).unwrap();
        }
        self.outside.borrow_mut().sent.drain(..).count()
    }

    fn dropped(&self, reason: &str) -> usize {
        counter(&self.overlay, "sg0", Group::Drops, reason) as usize
    }
}

/// Tests that frames to very many peers take no more memory than the limit of what waits, and that each copy is sent or
/// counted, whether the socket has room or not.
#[test]
fn copies_for_very_many_peers_are_sent_in_parts_or_counted() {
    const PEERS: usize = 3000;
    for room in [usize::MAX, 5000, 0] {
        let mut here = Bench::new(PEERS as u16);
        here.set(100_000_000);
        here.outside.borrow_mut().room = Some(room);
        let sent = here.send(BROADCAST, 64, SECOND);
        assert_eq!(sent, room.min(64 * PEERS));
        assert!(here.longest.get() <= MOST, "{} at once", here.longest.get());
        here.outside.borrow_mut().room = None;
        let rest = here.send(BROADCAST, 0, SECOND);
        assert!(rest <= MOST, "{rest} waited");
        assert_eq!(sent + rest + here.dropped("flood_full"), 64 * PEERS, "{room}");
        assert_eq!(here.dropped("flood_limit"), 0);
    }
}

/// Tests the same of a tunnel without a peer table that has many remotes: what does not fit into the queue is counted.
#[test]
fn copies_for_the_remotes_of_a_tunnel_take_no_more_memory_than_their_limit() {
    const REMOTES: u16 = 300;
    let (inside_port, inside) = Memory::port(Carries::Ethernet, Limits::NONE);
    let (outside_port, outside) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
    let longest = Rc::new(Cell::new(0));
    let end = tunnel::Outside {
        name: "udp".to_owned(),
        port: Box::new(Watched { port: outside_port, longest: Rc::clone(&longest) }),
        csum: OuterCsum::Verified,
        budget: 64,
        pages: 256,
        key: KEY,
        tunnels: None,
    };
    let config = Config::new(Mode::Ethernet, Carrier::Gue { remcsum: false }, LOCAL, remote(0));
    let parts = tunnel::Parts {
        remotes: (0..REMOTES).map(remote).collect(),
        fdb: Some(Fdb::new(KEY, 8, SECOND, &[])),
        flood: (0..REMOTES).collect(),
        ..memory::parts("sg0", inside_port, config)
    };
    let mut tunnel = tunnel::Tunnel::new(end, vec![parts]);
    inside.borrow_mut().waiting.extend(vec![frame(BROADCAST, OWN); 64]);
    for _ in 0..4 {
        tunnel.round(Nanos(SECOND)).unwrap();
    }
    let sent = outside.borrow().sent.len();
    let full = counter(&tunnel, "udp", Group::Drops, "flood_full") as usize;
    assert_eq!(sent + full, 64 * usize::from(REMOTES));
    assert!(full > 0 && longest.get() <= 8192 + 64, "{full}, {} at once", longest.get());
}

#[test]
fn no_more_copies_than_the_limit_are_made_and_frames_with_one_destination_have_none() {
    let mut here = Bench::new(10);
    here.set(1000);
    // A tenth of a second at once, and then what the time has brought.
    assert_eq!(here.send(BROADCAST, 64, SECOND), 100);
    assert_eq!(here.dropped("flood_limit"), 54);
    assert_eq!(here.send([2, 0, 0, 0, 0, 99], 64, SECOND + SECOND / 20), 50);
    assert_eq!(here.dropped("flood_limit"), 54 + 59);
    here.set(0);
    assert_eq!(here.send(BROADCAST, 1, 9 * SECOND), 0);
    // A peer that alone has the unknown addresses is their destination.
    let mut only = Bench::new(1);
    only.set(0);
    assert_eq!((only.send(BROADCAST, 64, SECOND), only.dropped("flood_limit")), (64, 0));
}

#[test]
fn a_frame_that_this_end_has_sent_is_not_taken_when_a_peer_returns_it() {
    let mut here = Bench::new(2);
    here.outside.borrow_mut().peer = Some(SocketAddr::new(remote(1), 6080));
    let mut receive = |source| {
        here.outside.borrow_mut().waiting.push_back([&[0, 143, 0, 0][..], &frame(BROADCAST, source)].concat());
        here.overlay.round(Nanos(SECOND)).unwrap();
        here.inside.borrow_mut().sent.drain(..).count()
    };
    assert_eq!((receive(STATION), receive(OWN), receive(STATION)), (1, 0, 1));
    assert_eq!(counter(&here.overlay, "udp", Group::Drops, "peer_source"), 1);
}
