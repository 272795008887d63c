//! Tests of the loop beside a port that takes no packets for a while: the other direction goes on, nothing is
//! forgotten, and the loop sleeps.

mod far_end;
mod memory;

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use far_end::{config, wrapped};
use memory::Carries;
use segue::encap::OuterCsum;
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::packet::{Csum, Frag, Frame, Start};
use segue::time::Nanos;
use segue_datapath::board::{Board, Group};
use segue_datapath::gateway::{self, Gateway, PortConfig};
use segue_datapath::knobs::Knobs;
use segue_datapath::overlay::{self, Inside, Listener, ListenerConfig, Overlay, PeerConfig, Removed, Table, exchange};
use segue_datapath::pipeline::Pipeline;
use segue_datapath::tunnel::{self, Tunnel};
use segue_datapath::worker;
use segue_port::{
    Blocked, Burst, Counters, Interest, OffloadState, PagePool, PollSet, Polled, Port, Received, RxBatch, Sent, TxBatch,
};
use segue_testkit::build::{Ethernet, Ip, V4};
use segue_testkit::flow::Sender;

const KEY: Key = Key([1, 2]);
/// Number of packets of the guest, more than one poll takes.
const PACKETS: usize = 100;
/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port with packets from the beginning. Like a guest it calls only after it was emptied, and as no more come, never.
struct Silent {
    calls: (PipeReader, PipeWriter),
    waiting: VecDeque<Vec<u8>>,
    carries: Carries,
    /// Readable once the port takes packets; `None` for a port that always does.
    room: Option<PipeReader>,
    counters: Counters,
}

impl Silent {
    fn port(carries: Carries, waiting: Vec<Vec<u8>>, room: Option<PipeReader>) -> Box<dyn Port> {
        let (calls, counters) = (io::pipe().unwrap(), Counters::default());
        Box::new(Silent { calls, waiting: waiting.into(), carries, room, counters })
    }
}

impl Port for Silent {
    fn limits(&self) -> &Limits {
        &Limits::NONE
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        Vec::new()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.calls.0.as_fd()
    }

    fn blocked_fd(&self) -> BorrowedFd<'_> {
        self.room.as_ref().map_or(self.fd(), PipeReader::as_fd)
    }

    fn blocked_event(&self) -> Blocked {
        Blocked::Readable
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        for _ in 0..budget {
            let Some(bytes) = self.waiting.front() else { return Ok(Polled::Idle) };
            let Some(mut page) = into.pages.take() else { return Ok(Polled::Starved) };
            page.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            let (len, page) = (bytes.len(), page.freeze(bytes.len()));
            self.waiting.pop_front();
            self.counters.rx.packets += 1;
            let start = match self.carries {
                Carries::Ip => Start::Ip,
                Carries::Ethernet => Start::Ethernet,
                Carries::Datagrams => {
                    let peer = "198.18.0.2:6080".parse().unwrap();
                    into.bursts.push_back(Burst { segment_len: len, page, peer, local: None, tos: 0, ttl: None });
                    continue;
                }
            };
            let frame = Frame { bytes: Frag::all(page), start, csum: Csum::Unknown };
            into.packets.push_back(Received::Frame(frame));
        }
        Ok(Polled::More)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        if let Some(room) = &self.room {
            let mut set = PollSet::default();
            set.add(&Interest::read(room.as_fd()));
            if set.wait(Some(Duration::ZERO))? == 0 {
                self.counters.blocked += 1;
                return Ok(Sent::Blocked);
            }
        }
        self.counters.tx.packets += batch.len() as u64;
        batch.sent(batch.len());
        Ok(Sent::All)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// The kinds of pipelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Gateway,
    Tunnel,
    PeerTable,
}

/// Returns a pipeline between a guest, `in`, which takes packets once `room` is readable, and another port, `out`.
/// `comes` are the packets from there.
fn pipeline(
    form: Form,
    comes: Vec<Vec<u8>>,
    gro: Option<gro::Config>,
    pages: usize,
    room: PipeReader,
) -> Box<dyn Pipeline> {
    let from_guest = lone(PACKETS);
    let (name, budget) = ("out".to_owned(), 64);
    if form == Form::Gateway {
        let frames = |packets: Vec<Vec<u8>>| {
            let stations = Ethernet { dst: [2; 6], src: [4; 6], tags: Vec::new() };
            packets.iter().map(|packet| stations.wrap(packet)).collect()
        };
        let ports = [
            ("in".to_owned(), Silent::port(Carries::Ethernet, frames(from_guest), Some(room))),
            (name, Silent::port(Carries::Ethernet, frames(comes), None)),
        ];
        let ports = ports.map(|(name, port)| PortConfig { name, port, gro, fragments: None });
        return Box::new(Gateway::new(gateway::Parts { ports, budget, pages: PagePool::new(pages) }));
    }
    let inside = Silent::port(Carries::Ip, from_guest, Some(room));
    let (port, csum) = (Silent::port(Carries::Datagrams, wrapped(comes), None), OuterCsum::Verified);
    if form == Form::Tunnel {
        let outside = tunnel::Outside { name, port, csum, budget, pages, key: KEY, tunnels: None };
        return Box::new(Tunnel::new(outside, vec![tunnel::Parts { gro, ..memory::parts("in", inside, config()) }]));
    }
    let everything = Inside::Prefix(IpAddr::from([0, 0, 0, 0]), 0);
    let peer = PeerConfig { inside: everything, listener: 0, encap: config(), mac: None, counters: Arc::default() };
    let listeners = [ListenerConfig { encap: config() }];
    let table = Table::new(1, &listeners, &[peer], &Removed::default(), [2; 6], KEY).unwrap();
    let (_, tables) = exchange();
    Box::new(Overlay::new(overlay::Parts {
        inside_name: "in".to_owned(),
        inside,
        frames: false,
        listeners: vec![Listener { name, port, csum }],
        table: Box::new(table),
        tables,
        mac: [2; 6],
        gro,
        remcsum: false,
        budget,
        pages,
        key: KEY,
    }))
}

/// Returns packets, each of a flow of its own.
fn lone(count: usize) -> Vec<Vec<u8>> {
    (0..count as u16).map(|flow| Sender::udp(Ip::V4(V4::new(1, 1, 2)), flow).send(100, 0).bytes()).collect()
}

fn read(board: &Board, port: &str, group: Group, key: &str) -> u64 {
    let mut found = board.read().filter(|(name, _)| name.port == port && name.group == group && name.key == key);
    found.next().map(|(_, value)| value).unwrap_or_else(|| panic!("{port} {group:?} {key}"))
}

/// Runs a pipeline whose guest takes no packets until `before` packets have gone to the other port and 50 ms more have
/// passed, to the end: all packets of the guest have left, and `to_guest` have arrived there. Returns the number of
/// rounds in these 50 ms.
#[track_caller]
fn run(pipeline: &mut dyn Pipeline, mut room: PipeWriter, before: usize, to_guest: usize) -> u64 {
    let board = worker::board(pipeline);
    let knobs = Knobs::of(|dial| pipeline.tune(dial));
    let (end, mut stop) = io::pipe().unwrap();
    let shown = Arc::clone(&board);
    let driver = thread::spawn(move || {
        let until = Instant::now() + PATIENCE;
        let wait_for = |is_so: &dyn Fn() -> bool| {
            while !is_so() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
        };
        let sent = |port| read(&shown, port, Group::Transmit, "packets");
        wait_for(&|| sent("out") == before as u64 && read(&shown, "in", Group::Port, "blocked") > 0);
        // What is held is due meanwhile.
        thread::sleep(Duration::from_millis(10));
        let polls = || read(&shown, "", Group::Worker, "polls");
        let first = polls();
        thread::sleep(Duration::from_millis(50));
        let rounds = polls() - first;
        room.write_all(b"x").unwrap();
        wait_for(&|| (sent("out"), sent("in")) == (PACKETS as u64, to_guest as u64));
        stop.write_all(b"x").unwrap();
        // The pipe stays open.
        (rounds, room)
    });
    worker::run(pipeline, end.as_fd(), &board, &knobs, &AtomicU64::new(0)).unwrap();
    let (rounds, _room) = driver.join().unwrap();
    let sent = |port| read(&board, port, Group::Transmit, "packets");
    assert_eq!((sent("out"), sent("in")), (PACKETS as u64, to_guest as u64));
    assert_eq!(read(&board, "", Group::Worker, "pauses"), 0, "no rounds in vain");
    rounds
}

#[test]
fn a_guest_that_takes_nothing_goes_on_sending() {
    for form in [Form::Gateway, Form::Tunnel] {
        let (end, room) = io::pipe().unwrap();
        let mut pipeline = pipeline(form, lone(1), None, 256, end);
        let rounds = run(&mut *pipeline, room, PACKETS, 1);
        assert!(rounds < 10, "{form:?}: {rounds} rounds");
    }
}

#[test]
fn what_a_guest_has_left_is_read_once_packets_that_wait_for_it_give_memory_back() {
    const PAGES: usize = 32;
    for form in [Form::Gateway, Form::Tunnel] {
        let (end, room) = io::pipe().unwrap();
        let mut pipeline = pipeline(form, lone(PAGES), None, PAGES, end);
        let rounds = run(&mut *pipeline, room, PAGES, PAGES);
        assert!(rounds < 10, "{form:?}: {rounds} rounds");
    }
}

#[test]
fn packets_held_for_a_port_that_takes_nothing_do_not_keep_the_loop_awake() {
    for form in [Form::Gateway, Form::Tunnel, Form::PeerTable] {
        let (end, room) = io::pipe().unwrap();
        let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1000, Vec::new());
        // The first one, a RST, leaves at once and blocks the port.
        let packets = [(0, 4), (1000, 0)].map(|(len, flags)| sender.send(len, flags).bytes());
        let gro = gro::Config { hold: Nanos(2_000_000), ..gro::Config::default() };
        let mut pipeline = pipeline(form, packets.into(), Some(gro), 256, end);
        // A tunnel with a peer table has no guests: its interface would call as long as it has packets.
        let before = if form == Form::PeerTable { 64 } else { PACKETS };
        let rounds = run(&mut *pipeline, room, before, 2);
        assert!(rounds < 10, "{form:?}: {rounds} rounds");
    }
}
