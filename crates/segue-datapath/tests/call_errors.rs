//! Tests of a gateway and a tunnel between ports whose calls fail with each error, or return short packets: each packet
//! arrives or is counted as dropped, once, and the loop makes no rounds in vain.

mod memory;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use memory::{Carries, Memory, Wire, in_both_forms, parts};
use segue::encap::{Carrier, Config, Encapsulator, GreOptions, Mode, OuterCsum};
use segue::gro;
use segue::gso::Limits;
use segue::hash::Key;
use segue::packet::{Frag, Packet, Start, Tunnels};
use segue::time::Nanos;
use segue_datapath::board::{Board, Group};
use segue_datapath::gateway::{self, Gateway, PortConfig};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::{Pipeline, Round};
use segue_datapath::tunnel::{self, Outside, Tunnel};
use segue_datapath::worker;
use segue_port::wrap::{Calls, Failure, Faults, Odds};
use segue_port::{PagePool, Port};
use segue_testkit::build::{Ethernet, Ip, V4};
use segue_testkit::flow::Sender;

/// Errors that pass, with the reason under which a packet port counts a packet that it could not send for one.
const ERRORS: [(i32, Option<&str>); 8] = [
    (libc::EAGAIN, None),
    (libc::EINTR, None),
    (libc::ENOBUFS, Some("queue_full")),
    (libc::ENOMEM, Some("no_memory")),
    (libc::EMSGSIZE, Some("too_big")),
    (libc::EPERM, Some("refused")),
    (libc::ENETDOWN, Some("device_down")),
    (libc::EIO, Some("device_down")),
];
/// Number of packets at each end.
const PACKETS: usize = 20;
/// Number of payload bytes of each packet.
const LEN: usize = 1000;
/// Largest number of packets that a round takes from each port.
const WEIGHT: usize = 4;
/// Largest number of rounds in which everything must have left.
const MOST: usize = 1000;
/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);

type Failing = Faults<Box<dyn Port>>;

/// A pipeline between two wires with packets at both ends.
struct Subject {
    name: &'static str,
    pipeline: Box<dyn Pipeline>,
    wires: [Rc<RefCell<Wire>>; 2],
    /// Number of bytes of headers of what leaves at each end, which may be a train; `None` where nothing is one.
    headers: [Option<usize>; 2],
    rounds: u64,
}

impl Subject {
    /// Returns a pipeline of each kind, whose ports `fail`.
    fn both(joins: bool, fail: &dyn Fn(Failing) -> Failing) -> [Subject; 2] {
        [gateway(joins, fail), tunnel(joins, fail)]
    }

    fn round(&mut self) -> Round {
        self.rounds += 1;
        self.pipeline.round(Nanos(self.rounds * 1_000_000)).unwrap()
    }

    /// Returns the number of packets that have left, those of trains included.
    fn left(&self) -> usize {
        let packets = |(wire, header): (&Rc<RefCell<Wire>>, Option<usize>)| {
            let sent = &wire.borrow().sent;
            let of = |unit: &Vec<u8>| header.map_or(1, |header| unit.len().saturating_sub(header).div_ceil(LEN).max(1));
            sent.iter().map(of).sum::<usize>()
        };
        self.wires.iter().zip(self.headers).map(packets).sum()
    }

    /// Returns the sums of the counters of a group over all ports, by key, without those that are 0.
    fn sums(&self, group: Group) -> BTreeMap<&'static str, u64> {
        let board = Board::new(|sink| self.pipeline.collect(sink));
        board.publish(|sink| self.pipeline.collect(sink));
        let mut sums = BTreeMap::new();
        for (name, value) in board.read().filter(|(name, value)| name.group == group && *value > 0) {
            *sums.entry(name.key).or_default() += value;
        }
        sums
    }

    fn dropped(&self) -> u64 {
        self.sums(Group::Drops).values().sum()
    }

    /// Returns the number of packets that no port has received yet.
    fn waiting(&self) -> usize {
        self.wires.iter().map(|wire| wire.borrow().waiting.len()).sum()
    }

    /// Makes rounds until each packet has left or is counted as dropped, and none after. Returns their number.
    #[track_caller]
    fn settle(&mut self) -> usize {
        let all = |here: &Subject| here.left() as u64 + here.dropped();
        let rounds = (1..=MOST).find(|_| {
            self.round();
            all(self) >= 2 * PACKETS as u64
        });
        for _ in 0..10 {
            assert_eq!(self.round(), Round::Idle, "{}: nothing is left to do", self.name);
        }
        let (left, drops) = (self.left(), self.sums(Group::Drops));
        assert_eq!(all(self), 2 * PACKETS as u64, "{}: {left} left, and {drops:?}", self.name);
        rounds.expect("everything was accounted for after these rounds")
    }
}

fn port(carries: Carries, limits: Limits, fail: &dyn Fn(Failing) -> Failing) -> (Box<dyn Port>, Rc<RefCell<Wire>>) {
    let (inner, wire) = Memory::port(carries, limits);
    (Box::new(fail(Faults::new(inner, Odds::default(), 1))), wire)
}

/// Returns the limits of a port for whole trains, or for none.
fn limits(joins: bool) -> Limits {
    let count = Limits { max_segs: 1000, max_udp_segs: 64, max_bytes: 65_535, max_pieces: 1000, ..Limits::NONE };
    if joins { Limits { csum: true, tso4: true, tso6: true, uso: true, ..count } } else { Limits::NONE }
}

fn segments() -> Vec<Vec<u8>> {
    let mut sender = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1000, Vec::new());
    (0..PACKETS).map(|_| sender.send(LEN, 0).bytes()).collect()
}

fn gateway(joins: bool, fail: &dyn Fn(Failing) -> Failing) -> Subject {
    let [(first, a), (second, b)] = [limits(joins); 2].map(|limits| port(Carries::Ethernet, limits, fail));
    let gro = joins.then(gro::Config::default);
    let side = |name: &str, port| PortConfig { name: name.to_owned(), port, gro, fragments: None };
    let ports = [side("in", first), side("out", second)];
    let pipeline = Box::new(Gateway::new(gateway::Parts { ports, budget: WEIGHT, pages: PagePool::new(256) }));
    for wire in [&a, &b] {
        let frame = |packet: &Vec<u8>| Ethernet { dst: [2; 6], src: [4; 6], tags: Vec::new() }.wrap(packet);
        wire.borrow_mut().waiting.extend(segments().iter().map(frame));
    }
    Subject { name: "gateway", pipeline, wires: [a, b], headers: [Some(54); 2], rounds: 0 }
}

fn config() -> Config {
    let [local, remote] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(198, 18, 0, last)));
    Config::new(Mode::Gre(GreOptions::default()), Carrier::Gue { remcsum: true }, local, remote)
}

fn tunnel(joins: bool, fail: &dyn Fn(Failing) -> Failing) -> Subject {
    let (inside, a) = port(Carries::Ip, limits(joins), fail);
    let (outside, b) = port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE }, fail);
    let parts = tunnel::Parts { gro: joins.then(gro::Config::default), ..parts("sg0", inside, config()) };
    let (name, csum, key) = ("udp".to_owned(), OuterCsum::Verified, Key([1, 2]));
    let outside = Outside { name, port: outside, csum, budget: WEIGHT, pages: 256, key, tunnels: None };
    let pipeline = Box::new(Tunnel::new(outside, vec![parts]));
    a.borrow_mut().waiting.extend(segments());
    b.borrow_mut().waiting.extend(datagrams(&segments()));
    Subject { name: "tunnel", pipeline, wires: [a, b], headers: [Some(40), None], rounds: 0 }
}

/// Returns the packets as the other end of the tunnel sends them, from behind the UDP header on.
fn datagrams(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut encap = Encapsulator::new(config()).unwrap();
    let wrap = |bytes: &Vec<u8>| {
        let mut packet = Packet::default();
        packet.load(Frag::all(bytes.clone()), Start::Ip, &Tunnels::NONE);
        encap.push(&mut packet).unwrap();
        let mut all = packet.head.bytes()[usize::from(packet.outer.unwrap().skip)..].to_vec();
        packet.payload.frags().iter().for_each(|frag| all.extend_from_slice(frag.bytes()));
        all
    };
    packets.iter().map(wrap).collect()
}

/// Returns the numbers of rounds without failures.
fn usual(joins: bool) -> [usize; 2] {
    Subject::both(joins, &|port| port).map(|mut subject| subject.settle())
}

#[test]
fn packets_leave_or_are_counted_while_every_nth_call_fails_in_both_directions() {
    in_both_forms(|| {
        for joins in [false, true] {
            let usual = usual(joins);
            for ((errno, reason), nth) in ERRORS.into_iter().flat_map(|error| (2..=5).map(move |nth| (error, nth))) {
                let failing = |port: Failing| {
                    let calls = Calls::Every(nth);
                    port.failing_receives(Failure::Error(errno), calls).failing_sends(errno, calls)
                };
                for (mut here, usual) in Subject::both(joins, &failing).into_iter().zip(usual) {
                    let case = format!("{}, error {errno} at each call {nth}, joins: {joins}", here.name);
                    let rounds = here.settle();
                    // A failed call costs a round at most, and the next one of the port succeeds.
                    assert!(rounds <= 4 * usual + 8, "{case}: {rounds} rounds, else {usual}");
                    let numbers = here.sums(Group::Port);
                    let number = |key: &str| numbers.get(key).copied().unwrap_or(0);
                    let (receives, sends) = (number("fault_receive_errors"), number("fault_send_errors"));
                    assert!(receives > 0 && (joins || sends > 0), "{case}: {numbers:?}");
                    // Each of these sends loses a packet, or a whole train.
                    let drops = here.sums(Group::Drops);
                    match reason.filter(|_| sends > 0) {
                        None => assert!(drops.is_empty(), "{case}: {drops:?}"),
                        Some(reason) => {
                            assert!(drops.len() == 1 && drops.contains_key(reason), "{case}: {drops:?}");
                            assert!(drops[reason] >= sends && (joins || drops[reason] == sends), "{case}: {drops:?}");
                        }
                    }
                    assert_eq!(number("blocked"), if reason.is_none() { sends } else { 0 }, "{case}");
                    let failed = here.sums(Group::Fallbacks).get("read_failed").copied().unwrap_or(0);
                    assert_eq!(failed, if errno == libc::EAGAIN { 0 } else { receives }, "{case}");
                }
            }
        }
    });
}

#[test]
fn calls_that_all_fail_move_nothing_and_leave_nothing_to_do() {
    in_both_forms(|| {
        for (errno, reason) in ERRORS {
            let failing = |port: Failing| port.failing_receives(Failure::Error(errno), Calls::Every(1));
            for mut here in Subject::both(false, &failing) {
                assert!((0..100).all(|_| here.round() == Round::Idle), "{}: error {errno}", here.name);
                assert_eq!((here.waiting(), here.left() as u64 + here.dropped()), (2 * PACKETS, 0), "{}", here.name);
            }
            let failing = |port: Failing| port.failing_sends(errno, Calls::Every(1));
            for mut here in Subject::both(false, &failing) {
                if reason.is_some() {
                    here.settle();
                    continue;
                }
                // A blocked port holds back the other one, so that packets wait there and not here.
                assert!((0..100).all(|_| here.round() == Round::Idle), "{}: error {errno}", here.name);
                assert_eq!((here.left() as u64 + here.dropped(), here.waiting()), (0, 2 * (PACKETS - WEIGHT)));
            }
        }
    });
}

#[test]
fn packets_that_are_cut_short_leave_or_are_counted() {
    in_both_forms(|| {
        for len in [0, 1, 3, 4, 8, 14, 20, 27, 34, 40, 54, 60, 1000, 9000] {
            for nth in 1..=3 {
                let failing = |port: Failing| port.failing_receives(Failure::Short(len), Calls::Every(nth));
                for mut here in Subject::both(false, &failing) {
                    // Without trains all that leaves is one packet.
                    here.headers = [None; 2];
                    here.settle();
                    assert!(here.sums(Group::Port)["fault_short_receives"] > 0, "{}: {len} bytes", here.name);
                    if len == 0 {
                        let drops = here.sums(Group::Drops);
                        assert!(drops.keys().all(|key| ["vnet_short", "empty"].contains(key)), "{drops:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_device_that_is_gone_ends_the_pipeline_with_its_error() {
    let receive = |port: Failing| port.failing_receives(Failure::Error(libc::ENODEV), Calls::Every(2));
    let send = |port: Failing| port.failing_sends(libc::ENODEV, Calls::Every(2));
    for fail in [&receive as &dyn Fn(Failing) -> Failing, &send] {
        for mut here in Subject::both(false, fail) {
            let error = (0..MOST).find_map(|now| here.pipeline.round(Nanos(now as u64)).err());
            assert_eq!(error.and_then(|error| error.raw_os_error()), Some(libc::ENODEV), "{}", here.name);
        }
    }
}

/// Tests the loop with ports whose descriptors are always ready, as they are while a call fails for lack of memory.
#[test]
fn a_loop_pauses_while_all_calls_of_ready_ports_fail_and_goes_on_when_they_succeed() {
    const FAILURES: u64 = 30;
    let receives = ERRORS.into_iter().map(|(errno, _)| (errno, true));
    let sends = ERRORS.into_iter().filter(|(_, reason)| reason.is_none()).map(|(errno, _)| (errno, false));
    for (errno, is_receive) in receives.chain(sends) {
        let calls = Calls::First(FAILURES);
        let failing = |port: Failing| match is_receive {
            true => port.failing_receives(Failure::Error(errno), calls),
            false => port.failing_sends(errno, calls),
        };
        for mut here in Subject::both(false, &failing) {
            let case = format!("{}, error {errno} of receives: {is_receive}", here.name);
            let board = worker::board(&*here.pipeline);
            let knobs = Knobs::of(|dial| here.pipeline.tune(dial));
            let (end, mut stop) = std::io::pipe().unwrap();
            let shown = Arc::clone(&board);
            let watcher = thread::spawn(move || {
                let key = if is_receive { "fault_receive_errors" } else { "fault_send_errors" };
                let until = Instant::now() + PATIENCE;
                let wait_for = |is_so: &dyn Fn() -> bool| {
                    while !is_so() && Instant::now() < until {
                        thread::sleep(Duration::from_millis(1));
                    }
                };
                wait_for(&|| sum(&shown, key) == 2 * FAILURES);
                // The rounds that take the packets, and some more.
                let rounds = of_loop(&shown, "polls") + 12;
                wait_for(&|| of_loop(&shown, "polls") >= rounds);
                let failed = sum(&shown, key);
                stop.write_all(b"x").unwrap();
                failed
            });
            let begin = Instant::now();
            worker::run(&mut *here.pipeline, end.as_fd(), &board, &knobs, &AtomicU64::new(0)).unwrap();
            let took = begin.elapsed();
            assert_eq!(watcher.join().unwrap(), 2 * FAILURES, "{case}");
            assert_eq!((here.left(), here.dropped()), (2 * PACKETS, 0), "{case}");
            // Sixteen rounds are free, as many again after each pause of more than 50 ms, and then each is a pause.
            let (polls, pauses) = (of_loop(&board, "polls"), of_loop(&board, "pauses"));
            assert!(pauses > 0, "{case}: {polls} rounds");
            assert!(u128::from(polls) <= 100 + took.as_millis(), "{case}: {polls} rounds in {took:?}");
        }
    }
}

/// Returns the sum of the published counters of all ports with this key.
fn sum(board: &Board, key: &str) -> u64 {
    board.read().filter(|(name, _)| name.group == Group::Port && name.key == key).map(|(_, value)| value).sum()
}

/// Returns a published counter of the loop.
fn of_loop(board: &Board, key: &str) -> u64 {
    let mut found = board.read().filter(|(name, _)| name.group == Group::Worker && name.key == key);
    found.next().expect("a counter of the loop").1
}
