//! Test ports that keep packets in memory.
#![allow(dead_code, reason = "each test file uses a part")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, PipeReader};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use segue::checksum::{Field, pseudo_v4};
use segue::encap::{Config, Decapsulator, Encapsulator};
use segue::gro;
use segue::gso::Limits;
use segue::packet::{Csum, Frag, Frame, Gso, GsoKind, Kind, Packet, Start, TrainCsum, Tunnels, Unit};
use segue_datapath::board::{Board, Group};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::tunnel::Parts;
use segue_datapath::tunnel::probe::Probe;
use segue_port::{Burst, Counters, OffloadState, Page, Polled, Port, Received, RxBatch, Sent, TxBatch};

/// Returns the parts of a tunnel with this interface, whose probe is off.
pub(crate) fn parts(name: &str, inside: Box<dyn Port>, config: Config) -> Parts {
    Parts {
        inside_name: name.to_owned(),
        inside,
        encap: Encapsulator::new(config).unwrap(),
        decap: Decapsulator::new(config).unwrap(),
        remotes: vec![config.remote],
        fdb: None,
        flood: Vec::new(),
        gro: Some(gro::Config::default()),
        probe: Some(Arc::new(Probe::new(0))),
    }
}

/// Content of the packets that a port carries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carries {
    Ip,
    Ethernet,
    Datagrams,
}

/// Form in which a port hands over single packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Gives {
    /// Unparsed frames, as real ports deliver them.
    #[default]
    Frames,
    /// The port hands over parsed packets.
    Packets,
}

/// State that a memory port shares with the test.
#[derive(Default)]
pub(crate) struct Wire {
    /// Packets to be received: whole packets inside, datagrams outside.
    pub(crate) waiting: VecDeque<Vec<u8>>,
    /// Packets that were sent, without the headers that the port does not send.
    pub(crate) sent: Vec<Vec<u8>>,
    /// Number of the peer to which each packet was sent, where there are peers.
    pub(crate) sent_to: Vec<u16>,
    /// Number of packets and trains that the port accepts before it is blocked; `None` for no limit.
    pub(crate) room: Option<usize>,
    /// Whether the next batch is refused, and no trains are accepted from then on.
    pub(crate) narrow: bool,
    pub(crate) peer: Option<SocketAddr>,
    /// The path MTU to every peer, and to single ones.
    pub(crate) path_mtu: Option<usize>,
    pub(crate) path_mtus: BTreeMap<u16, usize>,
    pub(crate) receives: usize,
    /// Whether the port always has packets, each of which it drops.
    pub(crate) drops_all: bool,
    /// Whether the port is down, and whether it goes down when it transmits next.
    pub(crate) is_down: bool,
    pub(crate) stops: bool,
    /// Whether no poll set takes the port's descriptor.
    pub(crate) is_unpollable: bool,
    /// A received packet with more payload than this becomes a TCP train over IPv4 of such segments, with a pending
    /// checksum, as a TUN device delivers it.
    pub(crate) train: Option<u16>,
    /// The form in which packets other than trains are delivered.
    pub(crate) gives: Gives,
}

thread_local! {
    static FORM: Cell<Gives> = const { Cell::new(Gives::Frames) };
}

/// Runs a test twice: with ports that deliver parsed packets, and with ports that deliver frames, as those of the
/// program do.
pub(crate) fn in_both_forms(test: impl Fn()) {
    for form in [Gives::Packets, Gives::Frames] {
        FORM.set(form);
        test();
    }
}

pub(crate) struct Memory {
    wire: Rc<RefCell<Wire>>,
    limits: Limits,
    carries: Carries,
    fd: PipeReader,
    /// A descriptor that epoll refuses.
    unpollable: File,
    counters: Counters,
}

impl Memory {
    pub(crate) fn port(carries: Carries, limits: Limits) -> (Box<dyn Port>, Rc<RefCell<Wire>>) {
        let wire = Rc::new(RefCell::new(Wire { gives: FORM.get(), ..Wire::default() }));
        let (fd, _) = io::pipe().unwrap();
        let (unpollable, counters) = (File::open("/dev/null").unwrap(), Counters::default());
        let port = Memory { wire: Rc::clone(&wire), limits, carries, fd, unpollable, counters };
        (Box::new(port), wire)
    }

    fn page(into: &mut RxBatch, bytes: &[u8]) -> Option<Page> {
        let mut page = into.pages.take()?;
        page.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        Some(page.freeze(bytes.len()))
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
        if self.wire.borrow().is_unpollable { self.unpollable.as_fd() } else { self.fd.as_fd() }
    }

    fn is_up(&self) -> bool {
        !self.wire.borrow().is_down
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let mut wire = self.wire.borrow_mut();
        wire.receives += 1;
        if wire.drops_all {
            return Ok(Polled::More);
        }
        for _ in 0..budget {
            let Some(bytes) = wire.waiting.pop_front() else { return Ok(Polled::Idle) };
            let Some(page) = Memory::page(into, &bytes) else {
                wire.waiting.push_front(bytes);
                return Ok(Polled::Starved);
            };
            if self.carries == Carries::Datagrams {
                let peer = wire.peer.unwrap_or_else(|| "198.18.0.2:6080".parse().unwrap());
                into.bursts.push_back(Burst { segment_len: bytes.len(), page, peer, local: None, tos: 0, ttl: None });
            } else {
                let start = if self.carries == Carries::Ip { Start::Ip } else { Start::Ethernet };
                let frame = Frame { bytes: Frag::all(page), start, csum: Csum::Unknown };
                if wire.train.is_none() && wire.gives == Gives::Frames {
                    into.packets.push_back(Received::Frame(frame));
                    continue;
                }
                let mut packet = frame.parse(&Tunnels::NONE, &mut into.pool);
                if let Some(size) = wire.train.filter(|&size| packet.payload.len() > usize::from(size))
                    && is_tcp_v4(&packet)
                {
                    owe(&mut packet, size);
                }
                into.packets.push_back(Received::Packet(packet));
            }
        }
        Ok(Polled::More)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let mut wire = self.wire.borrow_mut();
        if std::mem::take(&mut wire.narrow) {
            self.limits = Limits::NONE;
            return Ok(Sent::Narrowed);
        }
        wire.is_down |= wire.stops;
        let room = wire.room.unwrap_or(usize::MAX);
        let mut taken = 0;
        for unit in batch.units().take(room) {
            let skip = unit.outer().map_or(0, |outer| usize::from(outer.skip));
            let mut bytes = unit.head()[skip..].to_vec();
            unit.pieces().for_each(|piece| bytes.extend_from_slice(piece));
            wire.sent.push(bytes);
            wire.sent_to.extend(unit.outer().map(|outer| outer.to));
            taken += 1;
        }
        batch.sent(taken);
        wire.room = wire.room.map(|room| room - taken);
        Ok(if batch.is_empty() { Sent::All } else { Sent::Blocked })
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn path_mtu(&self, to: u16) -> Option<usize> {
        let wire = self.wire.borrow();
        wire.path_mtus.get(&to).copied().or(wire.path_mtu)
    }
}

/// Returns whether a kernel could deliver the packet as a TCP train over IPv4.
fn is_tcp_v4(packet: &Packet<Page>) -> bool {
    let layout = &packet.layout;
    layout.is_exact()
        && layout.ip_levels() == 1
        && layout.transport().is_some_and(|header| header.kind == Kind::Tcp)
        && layout.inner_ip().is_some_and(|header| header.kind == Kind::Ipv4)
}

fn owe(packet: &mut Packet<Page>, size: u16) {
    let (tcp, ip) = (packet.layout.transport().unwrap().start(), packet.layout.inner_ip().unwrap().start());
    let len = packet.len() - tcp;
    let head = packet.head.bytes_mut();
    let address = |at: usize| <[u8; 4]>::try_from(&head[ip + at..][..4]).unwrap();
    let field = Field::primed(pseudo_v4(address(12), address(16), 6, len));
    head[tcp + 16..][..2].copy_from_slice(&field.value().to_be_bytes());
    let gso = Gso { kind: GsoKind::Tcp, size, fixed_ids: 0 };
    packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
}

/// Returns all counters of a pipeline, by port, group and key.
pub(crate) fn counters(pipeline: &dyn Pipeline) -> BTreeMap<(String, Group, &'static str), u64> {
    let board = Board::new(|sink| pipeline.collect(sink));
    board.publish(|sink| pipeline.collect(sink));
    board.read().map(|(n, v)| ((n.port.clone(), n.group, n.key), v)).collect()
}

/// Returns one counter of a pipeline.
pub(crate) fn counter(pipeline: &dyn Pipeline, port: &str, group: Group, key: &str) -> u64 {
    let values = counters(pipeline);
    *values.iter().find(|((p, g, k), _)| p == port && *g == group && *k == key).expect("the counter exists").1
}
