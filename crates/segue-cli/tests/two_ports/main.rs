//! Tests of two adapters with the gateway between them, one flooded with small frames: the other direction, the timers
//! of both and the loop continue, excess frames are counted, and memory stays within the pools. Everything is measured
//! in rounds and counts.

#[path = "../../../segue-lan78xx-tests/tests/support/mod.rs"]
mod support;
mod sys;

use std::cell::RefCell;
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use segue::gro;
use segue::time::Nanos;
use segue_datapath::board::{Board, Group, Sink};
use segue_datapath::gateway::{Gateway, Parts, PortConfig};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::{Interest, Pipeline, Round};
use segue_datapath::worker;
use segue_lan78xx::driver::{Config, Driver};
use segue_lan78xx::model::{self, LinkSpeed, Partner};
use segue_lan78xx::regs::stat;
use segue_lan78xx::usb::local::Local;
use segue_lan78xx::usb::{Speed, Transport};
use segue_port::PagePool;
use support::{Meddled, chip, datagram, local};

#[global_allocator]
static ALLOCATOR: sys::Counting = sys::Counting;
/// Lock for the tests, which share the allocator's counters.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Time between rounds in nanoseconds.
const STEP: u64 = 5_000_000;
/// Number of frames that the flooded adapter receives per round: far more than a budget or its FIFO holds.
const FLOOD: usize = 700;
/// Length of flood frames in bytes with their headers; those of the other direction are longer.
const SMALL: usize = 60;
const FLOODED: usize = 0;
const QUIET: usize = 1;
const NAMES: [&str; 2] = ["flooded", "quiet"];
const PAGES: usize = 64;

struct Bench {
    gateway: Gateway,
    models: [Rc<RefCell<Local>>; 2],
    now: u64,
    round: u64,
    small: Vec<Vec<u8>>,
    flood: bool,
    given: u64,
    arrived: u64,
    /// Round in which each frame was delivered to the quiet adapter, by frame number.
    sent: Vec<u64>,
    /// Number of rounds that each frame took to arrive.
    took: Vec<u64>,
    in_order: bool,
    /// Round in which the worker's loop ends.
    stop: Option<(u64, PipeWriter)>,
}

impl Bench {
    fn new(config: Config, hold: Option<u64>) -> Bench {
        let gro = hold.map(|hold| gro::Config { hold: Nanos(hold), ..gro::Config::default() });
        let mut models = Vec::new();
        let ports = NAMES.map(|name| {
            // The link partner of the flooded adapter ignores pause frames.
            let partner = Some(Partner { speed: LinkSpeed::M1000, pause: name == "quiet" });
            let usb = Meddled::new(local(model::Config { partner, ..chip(Speed::Super) }), ());
            models.push(usb.local.clone());
            let mut driver = Driver::open(usb, config).unwrap();
            driver.up().unwrap();
            PortConfig { name: name.to_owned(), port: Box::new(driver), gro, fragments: None }
        });
        let gateway = Gateway::new(Parts { ports, budget: 256, pages: PagePool::new(PAGES) });
        let mut bench = Bench {
            gateway,
            models: models.try_into().unwrap(),
            now: 1,
            round: 0,
            small: (0..64).map(|n| datagram(true, n, SMALL - 42)).collect(),
            flood: false,
            given: 0,
            arrived: 0,
            sent: Vec::new(),
            took: Vec::new(),
            in_order: true,
            stop: None,
        };
        for _ in 0..100 {
            bench.step();
        }
        assert_eq!(NAMES.map(|name| bench.number(name, "link_mbit")), [1000, 1000]);
        bench.flood = true;
        bench
    }

    fn step(&mut self) {
        self.round += 1;
        self.now += STEP;
        self.models.iter().for_each(|local| local.borrow_mut().sleep(STEP));
        if self.flood {
            let model = &mut self.models[FLOODED].borrow_mut().model;
            (0..FLOOD).for_each(|n| model.receive(self.small[n % self.small.len()].clone()));
            self.given += FLOOD as u64;
            let model = &mut self.models[QUIET].borrow_mut().model;
            if model.link().is_some() {
                model.receive(datagram(true, self.sent.len() as u16, 300));
                self.sent.push(self.round);
            }
        }
        self.gateway.round(Nanos(self.now)).unwrap();
        while let Some(frame) = self.models[FLOODED].borrow_mut().model.transmit() {
            assert_eq!(frame.len(), 342);
            let number = u16::from_be_bytes([frame[42], frame[43]]);
            let is_next = usize::from(number) == self.took.len();
            assert!(is_next || !self.in_order, "none is missing, and they come in order");
            self.took.push(self.round - self.sent[usize::from(number)]);
        }
        while let Some(frame) = self.models[QUIET].borrow_mut().model.transmit() {
            assert!(self.small.contains(&frame));
            self.arrived += 1;
        }
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    /// Runs rounds until a number of a port is `value`.
    #[track_caller]
    fn rounds_until(&mut self, name: &str, key: &str, value: u64) -> u64 {
        for rounds in 0..2000 {
            if self.number(name, key) == value {
                return rounds;
            }
            self.step();
        }
        panic!("{name} {key} never was {value}, but {}", self.number(name, key));
    }

    fn counter(&self, name: &str, group: Group, key: &str) -> u64 {
        let board = Board::new(|sink| self.gateway.collect(sink));
        board.publish(|sink| self.gateway.collect(sink));
        board.read().filter(|(n, _)| n.port == name && n.group == group && n.key == key).map(|(_, value)| value).sum()
    }

    fn number(&self, name: &str, key: &str) -> u64 {
        self.counter(name, Group::Port, key)
    }

    /// Unplugs the cable of an adapter and plugs it in again; both must be noticed in time.
    #[track_caller]
    fn flap(&mut self, name: &str, side: usize, speed: LinkSpeed) {
        self.models[side].borrow_mut().model.set_partner(None);
        let rounds = self.rounds_until(name, "link_mbit", 0);
        assert!(rounds <= 3, "{name}: {rounds} rounds until the link's end was seen");
        let pause = side == QUIET;
        self.models[side].borrow_mut().model.set_partner(Some(Partner { speed, pause }));
        // Negotiation takes 50 ms: ten rounds.
        let rounds = self.rounds_until(name, "link_mbit", u64::from(speed.mbit()));
        assert!(rounds <= 13, "{name}: {rounds} rounds until the link was seen");
    }

    /// Asserts that every frame of the flood has arrived or was counted.
    #[track_caller]
    fn settle(&mut self) {
        self.flood = false;
        self.steps(400);
        let [flooded, quiet] = self.models.each_ref().map(|local| {
            let local = local.borrow();
            (local.model.statistics(), local.model.notes())
        });
        let dropped = u64::from(flooded.0[stat::RX_DROPPED]) + flooded.1.partner_lost;
        let refused = self.counter("quiet", Group::Drops, "device_down") + u64::from(quiet.0[stat::TX_CARRIER]);
        assert_eq!(self.given, self.arrived + dropped + refused, "{dropped} dropped, {refused} refused");
        assert!(dropped > self.given / 4, "it was no overload: {dropped} of {}", self.given);
        assert_eq!(self.took.len(), self.sent.len());
        // What the chip dropped is in segue's counters.
        let seen = self.number("flooded", "rx_dropped_frames");
        assert_eq!(seen, u64::from(flooded.0[stat::RX_DROPPED]));
    }
}

impl Pipeline for Bench {
    fn round(&mut self, _now: Nanos) -> io::Result<Round> {
        self.step();
        if let Some((_, mut writer)) = self.stop.take_if(|(round, _)| *round == self.round) {
            writer.write_all(b"x")?;
        }
        // The flood never ends: each round adds more frames.
        Ok(Round::More)
    }

    fn each_interest(&self, _wait: &mut dyn FnMut(Interest<'_>)) {}

    fn deadline(&self) -> Option<Nanos> {
        None
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        self.gateway.collect(sink);
    }
}

fn forms() -> [(&'static str, Config); 2] {
    support::modes(Speed::Super)
}

#[test]
fn a_flood_holds_up_neither_the_other_way_nor_timers_and_what_is_too_much_is_counted() {
    let _guard = ONE_AT_A_TIME.lock();
    for (mode, config) in forms() {
        let mut bench = Bench::new(config, None);
        bench.steps(200);
        // One round for the chip to close its transfer, one for the frame.
        assert!(bench.took.iter().all(|rounds| *rounds <= 2), "{mode} {:?}", bench.took);
        assert!(bench.took.len() >= 198, "{mode}");
        // Statistics are read by a timer of one second: 200 rounds.
        bench.steps(200);
        assert!(bench.number("flooded", "rx_dropped_frames") > 0, "{mode}: the statistics' timer");
        bench.flap("quiet", QUIET, LinkSpeed::M100);
        bench.settle();
        bench.flood = true;
        // Frames sent to it while its link is down are lost.
        bench.in_order = false;
        bench.flap("flooded", FLOODED, LinkSpeed::M1000);
    }
}

#[test]
fn packets_held_for_joining_leave_in_time_under_a_flood() {
    const HOLD: u64 = 4 * STEP;
    let _guard = ONE_AT_A_TIME.lock();
    for (mode, config) in forms() {
        let mut bench = Bench::new(config, Some(HOLD));
        bench.steps(200);
        assert!(bench.took.len() >= 190, "{mode}");
        let (first, last) = (bench.took.iter().min(), bench.took.iter().max());
        assert!(first >= Some(&4) && last <= Some(&7), "{mode}: {first:?} to {last:?} rounds for a hold of 4");
        bench.settle();
    }
}

#[test]
fn a_port_that_takes_nothing_holds_back_its_source_and_not_the_other_way() {
    let _guard = ONE_AT_A_TIME.lock();
    for (mode, config) in forms() {
        let mut bench = Bench::new(config, None);
        // Pause frames of its partner, each good for 33 ms.
        let mut pause = vec![0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0x08, 0, 1, 0xff, 0xff];
        pause.resize(60, 0);
        for _ in 0..40 {
            bench.models[QUIET].borrow_mut().model.receive(pause.clone());
            bench.steps(5);
        }
        assert!(bench.number("quiet", "blocked") > 0, "{mode}: it never was blocked");
        assert!(bench.took.iter().all(|rounds| *rounds <= 2), "{mode} {:?}", bench.took);
        assert!(bench.took.len() >= 198, "{mode}");
        bench.settle();
    }
}

#[test]
fn memory_stays_where_it_is_while_the_flood_goes_on() {
    let _guard = ONE_AT_A_TIME.lock();
    for (mode, config) in forms() {
        let mut bench = Bench::new(config, Some(0));
        bench.steps(200);
        ALLOCATOR.most();
        bench.steps(200);
        let before = ALLOCATOR.most();
        bench.steps(600);
        let after = ALLOCATOR.most();
        assert!(after <= before + before / 100, "{mode}: {before}, then {after} bytes");
        // The sum of pages, the transfers of two adapters in both directions with their contents, and the models with
        // their partners.
        let pages = PAGES * PagePool::new(1).page_len();
        let transfers =
            2 * 2 * (config.rx_transfers * config.rx_transfer_len + config.tx_transfers * config.tx_transfer_len);
        assert!(after <= pages + transfers + (4 << 20), "{mode}: {after} bytes, pools {pages} and {transfers}");
    }
}

#[test]
fn the_loop_stops_and_shows_its_counters_under_a_flood() {
    let _guard = ONE_AT_A_TIME.lock();
    let mut bench = Bench::new(Config::napi(Speed::Super), None);
    let (stop, writer) = io::pipe().unwrap();
    let at = bench.round + 200;
    bench.stop = Some((at, writer));
    let (board, beat) = (worker::board(&bench), AtomicU64::new(0));
    worker::run(&mut bench, stop.as_fd(), &board, &Knobs::default(), &beat).unwrap();
    assert!(beat.into_inner() > 2, "the rounds were told");
    let late = bench.round - at;
    assert!(late <= 64, "{late} rounds until the signal was heard");
    let shown: u64 = (board.read())
        .filter(|(name, _)| name.port == "flooded" && name.group == Group::Receive && name.key == "packets")
        .map(|(_, value)| value)
        .sum();
    assert!(shown > 0 && shown == bench.counter("flooded", Group::Receive, "packets"));
}
