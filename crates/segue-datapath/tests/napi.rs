//! Tests of the poll loop: weights, the budget of a round, packets beyond them, and the loop's sleep.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue::gso::Limits;
use segue::packet::{Frag, Start, Tunnels};
use segue::time::Nanos;
use segue_datapath::board::{Board, Group};
use segue_datapath::gateway::{Gateway, Parts, PortConfig};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::{Pipeline, Round};
use segue_datapath::worker;
use segue_port::{
    Blocked, Counters, Interest, OffloadState, PagePool, PollSet, Polled, Port, Received, RxBatch, Sent, TxBatch,
};

/// A port over a socket that delivers all queued frames regardless of its budget, like a device with large transfers.
struct Greedy {
    socket: UnixDatagram,
    counters: Counters,
    asked: Rc<RefCell<Vec<usize>>>,
    sent: Rc<RefCell<VecDeque<Vec<u8>>>>,
}

impl Port for Greedy {
    fn limits(&self) -> &Limits {
        &Limits::NONE
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        Vec::new()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        self.asked.borrow_mut().push(budget);
        loop {
            let Some(mut page) = into.pages.take() else { return Ok(Polled::Starved) };
            let Ok(len) = self.socket.recv(page.bytes_mut()) else { return Ok(Polled::Idle) };
            let mut packet = into.pool.take();
            packet.load(Frag::all(page.freeze(len)), Start::Ethernet, &Tunnels::NONE);
            into.packets.push_back(Received::Packet(packet));
            self.counters.rx.packets += 1;
        }
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let sent: Vec<Vec<u8>> = batch.units().map(|unit| unit.head().to_vec()).collect();
        batch.sent(sent.len());
        self.sent.borrow_mut().extend(sent);
        Ok(Sent::All)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// The peer of a port under test, with the budgets given to the port and the frames that it sent.
struct RemotePort {
    far: UnixDatagram,
    asked: Rc<RefCell<Vec<usize>>>,
    sent: Rc<RefCell<VecDeque<Vec<u8>>>>,
}

fn port() -> (Box<dyn Port>, RemotePort) {
    let (socket, far) = UnixDatagram::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let (asked, sent) = (Rc::default(), Rc::default());
    let end = RemotePort { far, asked: Rc::clone(&asked), sent: Rc::clone(&sent) };
    (Box::new(Greedy { socket, counters: Counters::default(), asked, sent }), end)
}

fn gateway(weight: usize) -> (Gateway, [RemotePort; 2]) {
    let (ports, ends): (Vec<_>, Vec<_>) = [port(), port()].into_iter().unzip();
    let mut names = ["in", "out"].into_iter();
    let ports: Vec<PortConfig> = ports
        .into_iter()
        .map(|port| PortConfig { name: names.next().unwrap().to_owned(), port, gro: None, fragments: None })
        .collect();
    let ports = ports.try_into().unwrap_or_else(|_| panic!("two ports"));
    let made = Gateway::new(Parts { ports, budget: weight, pages: PagePool::new(1024) });
    (made, ends.try_into().unwrap_or_else(|_| panic!("two ends")))
}

/// Returns a frame with a number that GRO does not join.
fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![number; 60];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn numbers(end: &RemotePort) -> Vec<u8> {
    end.sent.borrow().iter().map(|frame| frame[0]).collect()
}

fn counter(pipeline: &dyn Pipeline, port: &str, key: &str) -> u64 {
    let board = Board::new(|sink| pipeline.collect(sink));
    board.publish(|sink| pipeline.collect(sink));
    read(&board, port, Group::Napi, key)
}

fn read(board: &Board, port: &str, group: Group, key: &str) -> u64 {
    let mut found = board.read().filter(|(name, _)| name.port == port && name.group == group && name.key == key);
    found.next().map(|(_, value)| value).unwrap_or_else(|| panic!("{port} {group:?} {key}"))
}

fn set(pipeline: &mut Gateway, assignments: &[(&str, u64)]) -> Knobs {
    let knobs = Knobs::of(|dial| pipeline.tune(dial));
    for (name, value) in assignments {
        knobs.set(name, *value).unwrap();
    }
    knobs.follow(&mut 0, |dial| pipeline.tune(dial));
    knobs
}

#[test]
fn packets_beyond_the_weight_are_processed_first_in_the_next_poll() {
    let (mut gateway, [inside, outside]) = gateway(4);
    for n in 0..10 {
        inside.far.send(&frame(n)).unwrap();
    }
    let mut rounds = Vec::new();
    while {
        let round = gateway.round(Nanos(1)).unwrap();
        rounds.push(numbers(&outside).len());
        round == Round::More
    } {
        if rounds.len() == 1 {
            inside.far.send(&frame(10)).unwrap();
        }
        assert!(rounds.len() < 9, "{rounds:?}");
    }
    assert_eq!(numbers(&outside), (0..=10).collect::<Vec<_>>(), "in order, none lost");
    assert_eq!(rounds[..3], [4, 8, 11]);
    // What waits counts against the weight: the third poll asks for the rest only.
    assert_eq!(inside.asked.borrow()[..2], [4, 2]);
    assert_eq!(["overflows", "full_budgets"].map(|key| counter(&gateway, "in", key)), [6, 2]);
    assert_eq!(counter(&gateway, "out", "overflows"), 0);
}

#[test]
fn a_flood_at_one_port_leaves_the_other_its_turn_whatever_the_budget() {
    for budget in [2, 8, 64] {
        let (mut gateway, [inside, outside]) = gateway(4);
        set(&mut gateway, &[("net.napi.budget", budget)]);
        let mut from_outside = 0;
        for round in 0..100_u32 {
            // As much as the port gives in a round, and more.
            (0..5).for_each(|n| drop(inside.far.send(&frame(n))));
            if round % 10 == 0 {
                outside.far.send(&frame(99)).unwrap();
                from_outside += 1;
            }
            let moved = || numbers(&inside).len() + numbers(&outside).len();
            let before = moved();
            gateway.round(Nanos(u64::from(round))).unwrap();
            assert!(moved() - before <= (budget as usize).min(8), "budget {budget}, round {round}");
            if round % 10 == 2 {
                assert_eq!(numbers(&inside).len(), from_outside, "budget {budget}, round {round}");
            }
            inside.asked.borrow_mut().clear();
        }
        let weight = 4.min(budget as usize);
        assert!(numbers(&outside).len() >= 49 * weight, "and the flood has the rest: {}", numbers(&outside).len());
    }
}

/// Runs a loop in this thread while another thread sends frames, each after the preceding one was received. Returns the
/// loop's counters.
fn run(assignments: &[(&str, u64)]) -> [u64; 4] {
    const FRAMES: u64 = 10;
    let (mut gateway, [inside, outside]) = gateway(64);
    let knobs = set(&mut gateway, assignments);
    let board = worker::board(&gateway);
    let (stop, end) = UnixDatagram::pair().unwrap();
    let shown = Arc::clone(&board);
    let sender = thread::spawn(move || {
        let patience = Instant::now() + Duration::from_secs(60);
        for n in 0..FRAMES {
            inside.far.send(&frame(n as u8)).unwrap();
            while read(&shown, "in", Group::Receive, "packets") <= n && Instant::now() < patience {
                thread::sleep(Duration::from_millis(1));
            }
        }
        stop.send(&[1]).unwrap();
        (inside.far, stop)
    });
    worker::run(&mut gateway, end.as_fd(), &board, &knobs, &AtomicU64::new(0)).unwrap();
    sender.join().unwrap();
    assert_eq!(numbers(&outside), (0..FRAMES as u8).collect::<Vec<_>>());
    let of_loop = |key| read(&board, "", Group::Worker, key);
    assert!(read(&board, "in", Group::Napi, "wake_ups") <= of_loop("wake_ups"));
    [of_loop("wake_ups"), of_loop("deferrals"), of_loop("busy_polls"), read(&board, "in", Group::Napi, "wake_ups")]
}

#[test]
fn an_idle_loop_is_woken_by_each_packet() {
    let [wake_ups, deferrals, busy, of_port] = run(&[]);
    assert_eq!((deferrals, busy), (0, 0));
    assert!(wake_ups >= 9 && of_port >= 9, "{wake_ups} {of_port}");
}

#[test]
fn deferral_takes_packets_by_its_timer_without_a_wake_up() {
    let [wake_ups, deferrals, _, of_port] =
        run(&[("net.napi.defer_wakeups", 1000), ("net.napi.flush_timeout_us", 20_000)]);
    assert!(wake_ups <= 1 && of_port <= 1, "{wake_ups} {of_port}");
    assert!(deferrals >= 9, "{deferrals}");
}

/// A port that takes packets once a byte is in its pipe, like a guest without buffers.
struct Guest {
    idle: UnixDatagram,
    room: PipeReader,
    is_blocked: Arc<AtomicBool>,
    counters: Counters,
}

impl Port for Guest {
    fn limits(&self) -> &Limits {
        &Limits::NONE
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        Vec::new()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.idle.as_fd()
    }

    fn blocked_fd(&self) -> BorrowedFd<'_> {
        self.room.as_fd()
    }

    fn blocked_event(&self) -> Blocked {
        Blocked::Readable
    }

    fn receive(&mut self, _: &mut RxBatch, _: usize) -> io::Result<Polled> {
        Ok(Polled::Idle)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let mut set = PollSet::default();
        set.add(&Interest::read(self.room.as_fd()));
        if set.wait(Some(Duration::ZERO))? == 0 {
            self.is_blocked.store(true, Ordering::Relaxed);
            return Ok(Sent::Blocked);
        }
        self.counters.tx.packets += batch.len() as u64;
        batch.sent(batch.len());
        Ok(Sent::All)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Tests that deferral holds back packets that come, and not those that a port takes again.
#[test]
fn a_guest_that_takes_packets_again_wakes_a_loop_that_defers() {
    let (inside, RemotePort { far, .. }) = port();
    let (idle, _peer) = UnixDatagram::pair().unwrap();
    let (room, mut fill) = io::pipe().unwrap();
    let is_blocked = Arc::new(AtomicBool::new(false));
    let guest = Guest { idle, room, is_blocked: Arc::clone(&is_blocked), counters: Counters::default() };
    let ports: [(&str, Box<dyn Port>); 2] = [("in", inside), ("out", Box::new(guest))];
    let ports = ports.map(|(name, port)| PortConfig { name: name.to_owned(), port, gro: None, fragments: None });
    let mut gateway = Gateway::new(Parts { ports, budget: 64, pages: PagePool::new(64) });
    let knobs = set(&mut gateway, &[("net.napi.defer_wakeups", 1000), ("net.napi.flush_timeout_us", 1_000_000)]);
    let board = worker::board(&gateway);
    let (stop, end) = UnixDatagram::pair().unwrap();
    let shown = Arc::clone(&board);
    // The first round takes it.
    far.send(&frame(1)).unwrap();
    let driver = thread::spawn(move || {
        let patience = Instant::now() + Duration::from_secs(60);
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() && Instant::now() < patience {
                thread::sleep(Duration::from_millis(1));
            }
        };
        wait_until(&|| is_blocked.load(Ordering::Relaxed));
        fill.write_all(&[1]).unwrap();
        wait_until(&|| read(&shown, "out", Group::Transmit, "packets") == 1);
        stop.send(&[1]).unwrap();
        (stop, fill)
    });
    worker::run(&mut gateway, end.as_fd(), &board, &knobs, &AtomicU64::new(0)).unwrap();
    driver.join().unwrap();
    assert_eq!(read(&board, "out", Group::Transmit, "packets"), 1);
    assert_eq!(read(&board, "", Group::Worker, "wake_ups"), 1, "by the guest");
}

#[test]
fn busy_polling_takes_packets_without_sleeping() {
    let [wake_ups, _, busy, _] = run(&[("net.napi.busy_poll_us", 1_000_000)]);
    assert!(wake_ups < 9 && busy > 100, "{wake_ups} {busy}");
}
