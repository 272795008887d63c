//! Workloads of the program: its pipelines between ports in memory, so that everything except system calls is counted.

use std::cell::RefCell;
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use segue::encap::{Carrier, Config, Decapsulator, Encapsulator, Mode, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::packet::{Csum, Frag, Frame, Start};
use segue::time::Nanos;
use segue_datapath::gateway::{self, Gateway, PortConfig};
use segue_datapath::overlay::Prefixes;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::route::{Action, Hop, Routes, Table};
use segue_datapath::router::{self, InterfaceAddrs, Message, Neighbour, Router, Tables};
use segue_datapath::tunnel::{self, Tunnel};
use segue_port::{
    Burst, Counters, OffloadState, PAGE_LEN, Page, PagePool, Polled, Port, Received, RxBatch, Sent, TxBatch,
};

use crate::Workload;
use crate::frames::Flow;

/// The frames that a port in memory receives in the next rounds.
#[derive(Default)]
struct Waiting {
    frames: Vec<Page>,
    bursts: Vec<Burst>,
    at: usize,
}

/// A port that keeps packets in memory. What it receives is there already; what it sends is counted.
struct Memory {
    waiting: Rc<RefCell<Waiting>>,
    sent: Rc<RefCell<usize>>,
    start: Start,
    csum: Csum,
    limits: Limits,
    counters: Counters,
    file: File,
}

impl Memory {
    fn new(start: Start, csum: Csum, limits: Limits) -> Memory {
        let file = File::open("/dev/null").expect("there is a null device");
        Memory { waiting: Rc::default(), sent: Rc::default(), start, csum, limits, counters: Counters::default(), file }
    }
}

impl Port for Memory {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        Vec::new()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let Waiting { frames, bursts, at } = &mut *self.waiting.borrow_mut();
        let first = *at;
        for page in frames.iter().skip(first).take(budget) {
            let frame = Frame { bytes: Frag::all(page.clone()), start: self.start, csum: self.csum };
            into.packets.push_back(Received::Frame(frame));
        }
        into.bursts.extend(bursts.iter().skip(first).take(budget).cloned());
        *at = (first + budget).min(frames.len().max(bursts.len()));
        Ok(if *at - first == budget { Polled::More } else { Polled::Idle })
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let mut bytes = 0;
        for unit in batch.units() {
            bytes += unit.head().len() + unit.pieces().map(<[u8]>::len).sum::<usize>();
            *self.sent.borrow_mut() += unit.segments();
        }
        std::hint::black_box(bytes);
        let units = batch.len();
        batch.sent(units);
        Ok(Sent::All)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// The limits of a port that takes every train.
const TRAINS: Limits = Limits { csum: true, tso4: true, tso6: true, uso: true, max_bytes: 65_600, ..Limits::NONE };

/// Returns packets in the layout of ports: consecutive in pages, each at the start of a cache line.
pub fn pages<P: AsRef<[u8]>>(packets: &[P]) -> Vec<Page> {
    // The pages outlive their pool.
    let mut pool = PagePool::new(packets.len());
    let (mut made, mut rest) = (Vec::with_capacity(packets.len()), packets);
    while !rest.is_empty() {
        let mut page = pool.take().expect("the pool is large enough");
        let (mut at, mut ranges) = (0, Vec::new());
        while let Some((packet, more)) = rest.split_first() {
            let packet = packet.as_ref();
            let Some(room) = page.bytes_mut().get_mut(at..at + packet.len()) else { break };
            room.copy_from_slice(packet);
            ranges.push(at..at + packet.len());
            (at, rest) = ((at + packet.len()).next_multiple_of(64), more);
        }
        let page = page.freeze(at.min(PAGE_LEN));
        made.extend(ranges.into_iter().map(|range| page.slice(range)));
    }
    made
}

/// A pipeline between ports in memory, and its output.
pub struct Passage {
    pipeline: Box<dyn Pipeline>,
    waiting: Rc<RefCell<Waiting>>,
    sent: Rc<RefCell<usize>>,
    now: u64,
}

impl Passage {
    /// Runs the pipeline until it has handled all queued packets, `packets` of which leave by the other port. It waits
    /// again the next time.
    pub fn run(&mut self, packets: usize) {
        self.waiting.borrow_mut().at = 0;
        *self.sent.borrow_mut() = 0;
        while *self.sent.borrow() < packets {
            self.now += 1_000_000;
            self.pipeline.round(Nanos(self.now)).expect("ports in memory do not fail");
        }
        assert_eq!(*self.sent.borrow(), packets);
    }

    /// Exchanges the queued frames for others.
    pub fn exchange(&mut self, frames: &mut Vec<Page>) {
        std::mem::swap(&mut self.waiting.borrow_mut().frames, frames);
    }

    fn workload(mut self, name: &'static str, packets: usize) -> Workload {
        Workload { name, packets, run: Box::new(move || self.run(packets)) }
    }
}

/// Returns a gateway between two ports in memory, which receives these frames. `csum` is what their port knows.
pub fn gateway(frames: Vec<Page>, csum: Csum) -> Passage {
    let ports = [(); 2].map(|()| Memory::new(Start::Ethernet, csum, TRAINS));
    let (waiting, sent) = (Rc::clone(&ports[0].waiting), Rc::clone(&ports[1].sent));
    waiting.borrow_mut().frames = frames;
    let gateway = Gateway::new(gateway::Parts { ports: ports.map(joining), budget: 256, pages: PagePool::new(16) });
    Passage { pipeline: Box::new(gateway), waiting, sent, now: 0 }
}

/// Returns a port of a gateway or a router, with GRO.
fn joining(port: Memory) -> PortConfig {
    let gro = Some(gro::Config::default());
    PortConfig { name: "memory".to_owned(), port: Box::new(port), gro, fragments: None }
}

/// Returns a router between two ports in memory, which receives these frames of [`Flow`] and has the routes and the
/// neighbour for them. `csum` is what their port knows.
fn router(frames: Vec<Page>, csum: Csum) -> Passage {
    let ports = [(); 2].map(|()| Memory::new(Start::Ethernet, csum, TRAINS));
    let (waiting, sent) = (Rc::clone(&ports[0].waiting), Rc::clone(&ports[1].sent));
    waiting.borrow_mut().frames = frames;
    let hosts = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(198, 18, 0, last)));
    let mut routes = Routes::new(hosts.len());
    for (port, host) in (0..).zip(hosts) {
        let action = Action::Forward { port, via: None, mtu: 1500 };
        routes.insert(Table::Main, host, 32, action).expect("the table has room");
    }
    let mac = |last| [2, 0, 0, 0, 0, last];
    let addrs = |last| InterfaceAddrs { mac: mac(last), mtu: 1500, v4: Vec::new(), v6: Vec::new() };
    let neighbour = Neighbour { hop: Hop::new(1, Some(hosts[1]), 0, true), mac: mac(4), is_permanent: true };
    let tables = Tables { routes, ports: [addrs(2), addrs(3)], neighbours: vec![neighbour] };
    let (sender, feed) = router::feed().expect("there is a pipe");
    assert!(sender.send(Message::Tables(Box::new(tables))), "the router has ended");
    let (ports, pages) = (ports.map(joining), PagePool::new(16));
    let router = Router::new(router::Parts { ports, budget: 256, pages, feed, nat: None, key: Key([1, 2]) });
    Passage { pipeline: Box::new(router), waiting, sent, now: 0 }
}

/// Returns a tunnel of GUE between ports in memory.
fn tunnel(inside: Memory, outside: Memory) -> Tunnel {
    let [local, remote] = ENDS;
    // As the daemon has it, to which its own kernel may send what it has not finished.
    let config =
        Config { unfinished: Some(1468), ..Config::new(Mode::Ipip, Carrier::Gue { remcsum: false }, local, remote) };
    Tunnel::new(
        tunnel::Outside {
            name: "outside".to_owned(),
            port: Box::new(outside),
            csum: OuterCsum::Verified,
            budget: 64,
            pages: 64,
            key: Key([1, 2]),
            tunnels: None,
        },
        vec![tunnel::Parts {
            inside_name: "inside".to_owned(),
            inside: Box::new(inside),
            encap: Encapsulator::new(config).expect("the configuration is valid"),
            decap: Decapsulator::new(config).expect("the configuration is valid"),
            remotes: vec![remote],
            fdb: None,
            flood: Vec::new(),
            gro: Some(gro::Config::default()),
            probe: None,
        }],
    )
}

const ENDS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(198, 18, 1, 1)), IpAddr::V4(Ipv4Addr::new(198, 18, 1, 2))];

/// Returns a tunnel that delivers these packets, in bursts of equal datagrams.
pub fn inward(packets: &[Vec<u8>], at_once: usize) -> Passage {
    let inside = Memory::new(Start::Ip, Csum::Unknown, TRAINS);
    let outside = Memory::new(Start::Ip, Csum::Unknown, Limits { outer_csum: true, ..Limits::NONE });
    let (waiting, sent) = (Rc::clone(&outside.waiting), Rc::clone(&inside.sent));
    let datagrams = |packets: &[Vec<u8>]| -> Vec<u8> {
        packets.iter().flat_map(|packet| [&[0, 4, 0, 0][..], packet].concat()).collect()
    };
    let bytes: Vec<Vec<u8>> = packets.chunks(at_once).map(datagrams).collect();
    let burst = |page: Page| Burst {
        page,
        segment_len: packets[0].len() + 4,
        peer: SocketAddr::new(ENDS[1], 50_000),
        local: None,
        tos: 0,
        ttl: None,
    };
    waiting.borrow_mut().bursts = pages(&bytes).into_iter().map(burst).collect();
    Passage { pipeline: Box::new(tunnel(inside, outside)), waiting, sent, now: 0 }
}

/// Returns a tunnel that these packets enter.
fn outward(packets: &[Vec<u8>]) -> Passage {
    let inside = Memory::new(Start::Ip, Csum::Verified, TRAINS);
    let outside = Memory::new(Start::Ip, Csum::Unknown, Limits { outer_csum: true, ..Limits::NONE });
    let (waiting, sent) = (Rc::clone(&inside.waiting), Rc::clone(&outside.sent));
    waiting.borrow_mut().frames = pages(packets);
    Passage { pipeline: Box::new(tunnel(inside, outside)), waiting, sent, now: 0 }
}

/// Returns a workload of lookups in a peer table of `count` prefixes, each with one looked-up address.
fn lookups(name: &'static str, count: u32) -> Workload {
    // As a fleet has them: prefixes of 24 bits, and a host route for each eighth.
    let prefix = |number: u32| match number % 8 {
        7 => (0x0a00_0000 + number, 32),
        _ => (0x0b00_0000 + (number << 8), 24),
    };
    let of = |number: u32| {
        let (bits, len) = prefix(number);
        (IpAddr::V4(bits.into()), len, number)
    };
    let table = Prefixes::new(Key([3, 5]), (0..count).map(of));
    let addresses: Vec<IpAddr> = (0..1000)
        .map(|index| {
            let (bits, len) = prefix(index % count);
            IpAddr::V4((if len == 24 { bits + 1 + index % 200 } else { bits }).into())
        })
        .collect();
    let run = move || {
        for address in &addresses {
            assert!(black_box(&table).lookup(black_box(*address)).is_some());
        }
    };
    Workload { name, packets: 1000, run: Box::new(run) }
}

/// Returns every workload of the product.
pub fn all() -> Vec<Workload> {
    let mut flows: Vec<Flow> = (0..8).map(Flow::new).collect();
    let data: Vec<Vec<u8>> = (0..512).map(|index| flows[index % 8].frame(1448, 0)).collect();
    let acks: Vec<Vec<u8>> = (0..512).map(|index| flows[index % 8].frame(0, 0)).collect();
    let mut one = Flow::new(1);
    let inner: Vec<Vec<u8>> = (0..512).map(|_| one.packet(1372, 0)).collect();
    let inner_acks: Vec<Vec<u8>> = (0..512).map(|_| one.packet(0, 0)).collect();
    vec![
        gateway(pages(&data), Csum::Verified).workload("gateway, 8 flows", data.len()),
        gateway(pages(&acks), Csum::Verified).workload("gateway, pure acknowledgments", acks.len()),
        router(pages(&data), Csum::Verified).workload("router, 8 flows", data.len()),
        router(pages(&acks), Csum::Verified).workload("router, pure acknowledgments", acks.len()),
        inward(&inner, 32).workload("tunnel, inwards, 1 flow in bursts of 32", inner.len()),
        inward(&inner_acks, 8).workload("tunnel, inwards, pure acknowledgments in bursts of 8", inner_acks.len()),
        outward(&inner_acks).workload("tunnel, outwards, pure acknowledgments", inner_acks.len()),
        lookups("peer table, lookups among 10", 10),
        lookups("peer table, lookups among 10000", 10_000),
    ]
}
