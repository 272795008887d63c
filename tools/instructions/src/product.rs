//! Workloads of the program: its pipelines between ports in memory, so that everything except system calls is counted.
//!
//! Ports hand over what those of the program do: frames of a network card or of a host that is forwarded for, whose
//! checksum the card has verified; and packets and trains of this host, of a veth or of a guest, whose checksum the
//! stack has left to the device, parsed where the ports of the program parse them. The pipelines have the settings of
//! the daemon without any options. They are repeated here, with the place where the daemon has them: there they come of
//! a plan that was resolved on a host with interfaces and routes.

use std::cell::RefCell;
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use segue::encap::{Carrier, Config, Decapsulator, Df, Encapsulator, Mode, OuterCsum, Tos, Ttl};
use segue::gro;
use segue::gso::{Limits, prime, request_checksum};
use segue::hash::Key;
use segue::packet::{Csum, Frag, Frame, Packet, Start, Tunnels};
use segue::time::Nanos;
use segue::virtio::{self, Loaded, VirtioNet};
use segue::wire::{ethernet, ipv4, tcp, udp};
use segue_datapath::gateway::{self, Gateway, PortConfig};
use segue_datapath::nat::{self, Nat};
use segue_datapath::overlay::{
    self, Inside, Listener, ListenerConfig, Overlay, PeerConfig, Prefixes, Removed, Table as PeerTable,
};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::route::{Action, Hop, Routes, Table};
use segue_datapath::router::{self, InterfaceAddrs, Message, Neighbour, Router, Tables};
use segue_datapath::tunnel::{self, Tunnel};
use segue_port::{
    Burst, Counters, OffloadState, PAGE_LEN, Page, PagePool, Polled, Port, Received, RxBatch, Sent, TxBatch,
};

use crate::Workload;
use crate::engine::SEGMENTS;
use crate::frames::Flow;

/// Largest number of packets or bursts of one poll: `BUDGET` in crates/segue-service/src/gateway/start.rs and
/// crates/segue-service/src/tunnel/start.rs.
const BUDGET: usize = 64;
/// Number of pages of a tunnel: `PAGES` in crates/segue-service/src/tunnel/start.rs.
const PAGES: usize = 128;
/// Time from one round to the next, nanoseconds: 64 packets at some three million in a second. Trains of a gateway that
/// always has more end by time.
const ROUND: u64 = 20_000;
/// Key of hashes; the daemon has a random one.
const KEY: Key = Key([1, 2]);
/// Length of the IPv4 header and of a TCP header with timestamps, bytes.
const HEADERS: usize = ipv4::MIN_LEN + tcp::STAMPED_LEN;

/// The frames that a port in memory receives in the next rounds.
#[derive(Default)]
struct Waiting {
    frames: Vec<Page>,
    bursts: Vec<Burst>,
    at: usize,
}

/// The form in which a port hands over all that it receives.
#[derive(Clone, Copy)]
enum Gives {
    /// Unparsed frames with this state of the checksum.
    Frames(Csum),
    /// Packets or trains with this header: unparsed frames, or checked against it and parsed where the ports of the
    /// program have to do that.
    Described(VirtioNet),
}

impl Gives {
    /// Returns the form of packets over IPv4 whose transport checksum, at `field` of its header, the sender's stack has
    /// left to the device. `link_len` is the length of what precedes the IP header.
    fn owing(link_len: usize, field: usize) -> Gives {
        Gives::Described(owing(link_len, field))
    }
}

fn owing(link_len: usize, field: usize) -> VirtioNet {
    let (csum_start, csum_offset) = ((link_len + ipv4::MIN_LEN) as u16, field as u16);
    VirtioNet { flags: virtio::NEEDS_CSUM, csum_start, csum_offset, ..VirtioNet::default() }
}

/// A port that keeps packets in memory. What it receives is there already; what it sends is counted.
struct Memory {
    waiting: Rc<RefCell<Waiting>>,
    sent: Rc<RefCell<usize>>,
    start: Start,
    gives: Gives,
    limits: Limits,
    counters: Counters,
    file: File,
}

impl Memory {
    fn new(start: Start, gives: Gives, limits: Limits) -> Memory {
        let file = File::open("/dev/null").expect("there is a null device");
        let counters = Counters::default();
        Memory { waiting: Rc::default(), sent: Rc::default(), start, gives, limits, counters, file }
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
            let bytes = Frag::all(page.clone());
            let received = match &self.gives {
                Gives::Frames(csum) => Received::Frame(Frame { bytes, start: self.start, csum: *csum }),
                Gives::Described(header) => match virtio::frame(header, bytes, self.start) {
                    Ok(frame) => Received::Frame(frame),
                    Err(bytes) => {
                        let mut packet = into.pool.take();
                        let loaded = virtio::load(header, bytes, self.start, &mut packet);
                        assert_eq!(loaded, Ok(Loaded::Ready), "the header fits the packet");
                        Received::Packet(packet)
                    }
                },
            };
            into.packets.push_back(received);
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
            self.now += ROUND;
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

/// Returns packets whose transport checksums are left to the device, each with the sum of its pseudo header.
fn primed(mut packets: Vec<Vec<u8>>, start: Start) -> Vec<Vec<u8>> {
    packets.iter_mut().for_each(|packet| prime(packet, start).expect("it has a transport header"));
    packets
}

/// Returns a pipeline between two Ethernet ports in memory, the first of which receives these frames.
fn between(frames: Vec<Page>, gives: Gives, assemble: impl FnOnce([PortConfig; 2]) -> Box<dyn Pipeline>) -> Passage {
    let ports = [(); 2].map(|()| Memory::new(Start::Ethernet, gives, TRAINS));
    let (waiting, sent) = (Rc::clone(&ports[0].waiting), Rc::clone(&ports[1].sent));
    waiting.borrow_mut().frames = frames;
    Passage { pipeline: assemble(ports.map(joining)), waiting, sent, now: 0 }
}

/// Returns a port of a gateway or a router, with the GRO of `gro_config` in crates/segue-service/src/gateway/start.rs:
/// without options nothing is held when no more waits to be read.
fn joining(port: Memory) -> PortConfig {
    let gro = Some(gro::Config::default());
    PortConfig { name: "memory".to_owned(), port: Box::new(port), gro, fragments: None }
}

/// Returns a gateway between two ports in memory, which receives these frames. `csum` is what their port knows.
pub fn gateway(frames: Vec<Page>, csum: Csum) -> Passage {
    between(frames, Gives::Frames(csum), bump)
}

/// Assembles a gateway as crates/segue-service/src/gateway/start.rs does.
fn bump(ports: [PortConfig; 2]) -> Box<dyn Pipeline> {
    Box::new(Gateway::new(gateway::Parts { ports, budget: BUDGET, pages: PagePool::new(16) }))
}

/// Returns a router between two ports in memory, which receives these frames of [`Flow`] and has the routes and the
/// neighbour for them, assembled as crates/segue-service/src/gateway/route.rs does. `csum` is what their port knows.
fn router(frames: Vec<Page>, csum: Csum, nat: Option<(Nat, Ipv4Addr)>) -> Passage {
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
    let pages = PagePool::new(16);
    let mut passage = between(Vec::new(), Gives::Frames(csum), |ports| {
        Box::new(Router::new(router::Parts { ports, budget: BUDGET, pages, feed, nat, key: KEY }))
    });
    // The outside address of a NAT is announced twice, some seconds apart, before the first packet.
    for _ in 0..4 {
        passage.pipeline.round(Nanos(passage.now)).expect("ports in memory do not fail");
        passage.now += 10_000_000_000;
    }
    passage.waiting.borrow_mut().frames = frames;
    passage
}

/// Returns a NAT without forwards, as crates/segue-service/src/gateway/nat.rs makes it, and its outside address.
fn nat() -> (Nat, Ipv4Addr) {
    let outside = Ipv4Addr::new(198, 19, 0, 1);
    (Nat::new(nat::Config::new(outside, 7)), outside)
}

const ENDS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(198, 18, 1, 1)), IpAddr::V4(Ipv4Addr::new(198, 18, 1, 2))];

/// Returns the configuration of a tunnel over GUE between [`ENDS`], with what `engine_config` in
/// crates/segue-service/src/tunnel/engine.rs has without options, and `Rules::new` in
/// crates/segue-service/src/peers/rules.rs for peers.
fn config(mode: Mode, remcsum: bool) -> Config {
    let [local, remote] = ENDS;
    let usual = Config::new(mode, Carrier::Gue { remcsum }, local, remote);
    // Its own kernel may send to the daemon what it has not finished.
    let unfinished = Some(mtu(&usual) as u16);
    Config { ttl: Ttl::Inherit, tos: Tos::Fixed(0), df: Df::Set, unfinished, seed: [7; 16], ..usual }
}

/// Returns the MTU of a tunnel's interface on a link of Ethernet, bytes.
fn mtu(config: &Config) -> usize {
    1500 - config.overhead()
}

/// A function that assembles a tunnel of this configuration from its ports, inside and outside.
type Assemble = fn(Config, [Memory; 2]) -> Box<dyn Pipeline>;

/// Assembles a tunnel with one far end as crates/segue-service/src/tunnel/start.rs does.
fn tunnel(config: Config, [inside, outside]: [Memory; 2]) -> Box<dyn Pipeline> {
    Box::new(Tunnel::new(
        tunnel::Outside {
            name: "outside".to_owned(),
            port: Box::new(outside),
            csum: OuterCsum::Verified,
            budget: BUDGET,
            pages: PAGES,
            key: KEY,
            tunnels: None,
        },
        vec![tunnel::Parts {
            inside_name: "inside".to_owned(),
            inside: Box::new(inside),
            encap: Encapsulator::new(config).expect("the configuration is valid"),
            decap: Decapsulator::new(config).expect("the configuration is valid"),
            remotes: vec![config.remote],
            fdb: None,
            flood: Vec::new(),
            gro: Some(gro::Config::default()),
            probe: None,
        }],
    ))
}

/// Assembles a tunnel with a table of ten peers as crates/segue-service/src/tunnel/overlay.rs does. The first peer is
/// the far end of `config`, and has the addresses of [`Flow`].
fn overlay(config: Config, [inside, outside]: [Memory; 2]) -> Box<dyn Pipeline> {
    let peer = |number: u8| PeerConfig {
        inside: Inside::Prefix(IpAddr::from([198, 18, 2 * number, 0]), 24),
        listener: 0,
        encap: Config { remote: IpAddr::from([198, 18, 1, 2 + number]), ..config },
        mac: None,
        counters: Arc::default(),
    };
    let peers: Vec<PeerConfig> = (0..10).map(peer).collect();
    let listener = ListenerConfig { encap: Config { remote: config.local, ..config } };
    let mac = [2, 0, 0, 0, 0, 1];
    let table = PeerTable::new(1, &[listener], &peers, &Removed::default(), mac, KEY).expect("the peers are valid");
    // The table is never exchanged for another one.
    let (_, tables) = overlay::exchange();
    Box::new(Overlay::new(overlay::Parts {
        inside_name: "inside".to_owned(),
        inside: Box::new(inside),
        frames: false,
        listeners: vec![Listener { name: "gue".to_owned(), port: Box::new(outside), csum: OuterCsum::Verified }],
        table: Box::new(table),
        tables,
        mac,
        gro: Some(gro::Config::default()),
        remcsum: false,
        budget: BUDGET,
        pages: PAGES,
        key: KEY,
    }))
}

/// Returns the ports of a tunnel in memory, the interface and the socket. `gives` is what the interface hands over.
fn ends(gives: Gives) -> [Memory; 2] {
    let datagrams = Limits { outer_csum: true, ..Limits::NONE };
    [(gives, TRAINS), (Gives::Frames(Csum::Unknown), datagrams)]
        .map(|(gives, limits)| Memory::new(Start::Ip, gives, limits))
}

/// Returns the payloads of the UDP datagrams in which the far end of a tunnel sends these packets. With remote checksum
/// offload it leaves their checksums to this end.
fn datagrams(config: Config, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let is_left = matches!(config.carrier, Carrier::Gue { remcsum: true });
    let mut encap = Encapsulator::new(config).expect("the configuration is valid");
    let wrap = |bytes: &Vec<u8>| {
        let mut packet = Packet::default();
        packet.load(Frag::all(&bytes[..]), Start::Ip, &Tunnels::NONE);
        if is_left {
            request_checksum(&mut packet).expect("it has a transport header");
        }
        encap.push(&mut packet).expect("the tunnel takes IPv4");
        // The socket of the sender makes the headers of IP and UDP.
        let skip = packet.outer.map_or(0, |outer| usize::from(outer.skip));
        let mut datagram = packet.head.bytes()[skip..].to_vec();
        packet.payload.frags().iter().for_each(|frag| datagram.extend_from_slice(frag.bytes()));
        datagram
    };
    packets.iter().map(wrap).collect()
}

/// Returns a tunnel that delivers these packets of the far end, in bursts of equal datagrams.
fn inward(assemble: Assemble, config: Config, packets: &[Vec<u8>], at_once: usize) -> Passage {
    let [inside, outside] = ends(Gives::Frames(Csum::Unknown));
    let (waiting, sent) = (Rc::clone(&outside.waiting), Rc::clone(&inside.sent));
    let datagrams = datagrams(config, packets);
    let bytes: Vec<Vec<u8>> = datagrams.chunks(at_once).map(|burst| burst.concat()).collect();
    let burst = |page: Page| Burst {
        page,
        segment_len: datagrams[0].len(),
        peer: SocketAddr::new(config.remote, 50_000),
        local: None,
        tos: 0,
        ttl: None,
    };
    waiting.borrow_mut().bursts = pages(&bytes).into_iter().map(burst).collect();
    Passage { pipeline: assemble(config, [inside, outside]), waiting, sent, now: 0 }
}

/// Returns a tunnel that these packets enter. What the host forwards into it comes as frames, what it sends itself as
/// packets that owe their checksum.
fn outward(assemble: Assemble, config: Config, packets: &[Vec<u8>], gives: Gives) -> Passage {
    let ends = ends(gives);
    let (waiting, sent) = (Rc::clone(&ends[0].waiting), Rc::clone(&ends[1].sent));
    waiting.borrow_mut().frames = pages(packets);
    Passage { pipeline: assemble(config, ends), waiting, sent, now: 0 }
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

/// Returns the workloads of gateways and routers.
fn gateways() -> Vec<Workload> {
    let mut flows: Vec<Flow> = (0..8).map(Flow::new).collect();
    let data: Vec<Vec<u8>> = (0..512).map(|index| flows[index % 8].frame(1448, 0)).collect();
    let acks: Vec<Vec<u8>> = (0..512).map(|index| flows[index % 8].frame(0, 0)).collect();
    let count = data.len();
    let owed = pages(&primed(acks.clone(), Start::Ethernet));
    let of_stack = Gives::owing(ethernet::LEN, tcp::CHECKSUM);
    vec![
        gateway(pages(&data), Csum::Verified).workload("gateway, 8 flows", count),
        gateway(pages(&acks), Csum::Verified).workload("gateway, pure acknowledgments", count),
        between(owed, of_stack, bump).workload("gateway, acknowledgments of a veth", count),
        router(pages(&data), Csum::Verified, None).workload("router, 8 flows", count),
        router(pages(&acks), Csum::Verified, None).workload("router, pure acknowledgments", count),
        router(pages(&data), Csum::Verified, Some(nat())).workload("router with NAT, 8 flows", count),
    ]
}

/// Returns the workloads of tunnels into which packets come from the far end.
fn tunnels_inward() -> Vec<Workload> {
    let (plain, left) = (config(Mode::Ipip, false), config(Mode::Ipip, true));
    let mut one = Flow::new(1);
    let inner: Vec<Vec<u8>> = (0..512).map(|_| one.packet(1372, 0)).collect();
    let acks: Vec<Vec<u8>> = (0..512).map(|_| one.packet(0, 0)).collect();
    let full: Vec<Vec<u8>> = (0..512).map(|_| one.packet(mtu(&left) - HEADERS, 0)).collect();
    let udp: Vec<Vec<u8>> = (0..512).map(|_| one.datagram(mtu(&plain) - ipv4::MIN_LEN - udp::LEN)).collect();
    let count = inner.len();
    let remcsum = inward(tunnel, left, &full, 32);
    let peers = inward(overlay, config(Mode::Ip, false), &inner, 32);
    vec![
        inward(tunnel, plain, &inner, 32).workload("tunnel, inwards, 1 flow in bursts of 32", count),
        inward(tunnel, plain, &acks, 8).workload("tunnel, inwards, pure acknowledgments in bursts of 8", count),
        inward(tunnel, plain, &udp, 32).workload("tunnel, inwards, datagrams in bursts of 32", count),
        remcsum.workload("tunnel, inwards, 1 flow with remote checksum offload", count),
        peers.workload("overlay, inwards, 1 flow in bursts of 32", count),
    ]
}

/// Returns the workloads of tunnels into which packets go from this host.
fn tunnels_outward() -> Vec<Workload> {
    let plain = config(Mode::Ipip, false);
    let size = mtu(&plain) - HEADERS;
    let mut one = Flow::new(1);
    let acks: Vec<Vec<u8>> = (0..512).map(|_| one.packet(0, 0)).collect();
    let udp: Vec<Vec<u8>> = (0..512).map(|_| one.datagram(mtu(&plain) - ipv4::MIN_LEN - udp::LEN)).collect();
    // As many as a poll may bring without a queue by flows: below 128 KiB.
    let trains: Vec<Vec<u8>> = (0..2).map(|_| one.packet(SEGMENTS * size, 0)).collect();
    let (segments, count) = (trains.len() * SEGMENTS, acks.len());
    let (owed, udp, trains) = (primed(acks.clone(), Start::Ip), primed(udp, Start::Ip), primed(trains, Start::Ip));
    let train = VirtioNet { gso_type: virtio::GSO_TCPV4, gso_size: size as u16, ..owing(0, tcp::CHECKSUM) };
    let (of_tcp, of_udp) = (Gives::owing(0, tcp::CHECKSUM), Gives::owing(0, udp::CHECKSUM));
    // Packets of another host, which this one forwards into the tunnel: a card has verified their checksums.
    let forwarded = outward(tunnel, plain, &acks, Gives::Frames(Csum::Verified));
    let trains = outward(tunnel, plain, &trains, Gives::Described(train));
    let peers = outward(overlay, config(Mode::Ip, false), &owed, of_tcp);
    vec![
        forwarded.workload("tunnel, outwards, pure acknowledgments", count),
        trains.workload("tunnel, outwards, trains of 44 segments", segments),
        outward(tunnel, plain, &owed, of_tcp).workload("tunnel, outwards, acknowledgments of this host", count),
        outward(tunnel, plain, &udp, of_udp).workload("tunnel, outwards, datagrams of this host", count),
        peers.workload("overlay, outwards, acknowledgments of this host", count),
    ]
}

/// Returns every workload of the product.
///
/// The acknowledgments that a tunnel has outwards under the name of "pure acknowledgments" are forwarded ones; those
/// "of this host" are its own, which owe their checksum.
pub fn all() -> Vec<Workload> {
    let lookups = [lookups("peer table, lookups among 10", 10), lookups("peer table, lookups among 10000", 10_000)];
    [gateways(), tunnels_inward(), tunnels_outward()].into_iter().flatten().chain(lookups).collect()
}
