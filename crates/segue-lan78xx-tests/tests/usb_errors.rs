//! Tests of a device one of whose calls fails for a time: control requests, submissions, completed transfers, and the
//! end of a halt. The driver counts the errors, makes no more calls than usual, and moves frames again afterwards.

mod support;

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use segue::packet::Csum;
use segue::time::Nanos;
use segue_lan78xx::driver::{Config, Driver, LookupResult};
use segue_lan78xx::model::{self, Fault, LinkSpeed, Model, Partner};
use segue_lan78xx::regs::endpoint;
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::{self, Done, Lent, Setup, Speed, Transfer, Transport};
use segue_port::{Interest, PollSet, Polled, Port, RxBatch, TxBatch};
use support::{chip, datagram, load, local, modes};

/// Duration of the phases with and without a fault, milliseconds.
const STEPS: u32 = 1500;
/// Number of frames in each direction that prove that the adapter works.
const FRAMES: u32 = 50;

/// A call of a transport that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Control,
    Submit,
    Reap,
    ClearHalt,
}

/// The fault to inject, which the test shares with the device and with its replacement after a reconnect.
#[derive(Debug)]
struct Plan {
    call: Call,
    error: Cell<Option<usb::Error>>,
    /// Number of calls of the kind.
    made: Cell<u32>,
    /// Number of failed calls of the kind.
    failed: Cell<u32>,
    now: Cell<Nanos>,
}

impl Plan {
    fn judge(&self, call: Call) -> Result<(), usb::Error> {
        if call != self.call {
            return Ok(());
        }
        self.made.set(self.made.get() + 1);
        let Some(error) = self.error.get() else { return Ok(()) };
        self.failed.set(self.failed.get() + 1);
        Err(error)
    }
}

/// A model device with planned faults.
struct Failing {
    local: Local,
    plan: Rc<Plan>,
    refused: VecDeque<Transfer<Done>>,
}

impl Failing {
    fn new(local: Local, plan: &Rc<Plan>) -> Failing {
        Failing { local, plan: Rc::clone(plan), refused: VecDeque::new() }
    }
}

impl Transport for Failing {
    fn identity(&self) -> (u16, u16) {
        self.local.identity()
    }

    fn speed(&self) -> Speed {
        self.local.speed()
    }

    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, usb::Error> {
        self.plan.judge(Call::Control)?;
        self.local.control_in(setup, into)
    }

    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), usb::Error> {
        self.plan.judge(Call::Control)?;
        self.local.control_out(setup, data)
    }

    fn submit(&mut self, transfer: Transfer<Lent>) {
        match self.plan.judge(Call::Submit) {
            Ok(()) => self.local.submit(transfer),
            Err(error) => self.refused.push_back(transfer.complete(Err(error))),
        }
    }

    fn reap(&mut self) -> Option<Transfer<Done>> {
        if let Some(refused) = self.refused.pop_front() {
            return Some(refused);
        }
        let done = self.local.reap()?;
        // A transfer that the driver has cancelled has its result.
        if done.result() == Err(usb::Error::Cancelled) {
            return Some(done);
        }
        match self.plan.judge(Call::Reap) {
            Ok(()) => Some(done),
            Err(error) => {
                let request = done.request();
                Some(done.recycle().lend(request).complete(Err(error)))
            }
        }
    }

    fn cancel(&mut self, endpoint: u8) {
        self.local.cancel(endpoint);
    }

    fn clear_halt(&mut self, endpoint: u8) -> Result<(), usb::Error> {
        self.plan.judge(Call::ClearHalt)?;
        self.local.clear_halt(endpoint)
    }

    fn is_gone(&self) -> bool {
        self.local.is_gone()
    }

    fn now(&self) -> Nanos {
        self.local.now()
    }

    fn sleep(&mut self, nanos: u64) {
        self.local.sleep(nanos);
        self.plan.now.set(self.local.now());
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn deadline(&self) -> Option<Nanos> {
        self.local.deadline()
    }
}

/// A driver whose device may fail, under a load of a frame in each direction each millisecond.
struct Bench {
    driver: Driver<Failing>,
    plan: Rc<Plan>,
    rx: RxBatch,
    tx: TxBatch,
    received: u32,
    sent: u32,
}

impl Bench {
    fn new(config: Config, call: Call) -> Bench {
        let (error, made, failed) = (Cell::new(None), Cell::new(0), Cell::new(0));
        let plan = Rc::new(Plan { call, error, made, failed, now: Cell::new(Nanos(1)) });
        let mut driver = Driver::open(Failing::new(local(chip(Speed::Super)), &plan), config).unwrap();
        let same = Rc::clone(&plan);
        driver.on_gone(Box::new(move |_| {
            let device = Local::new(Model::new(chip(Speed::Super)), None, Clock::Still(same.now.get()));
            LookupResult::Back(Failing::new(device, &same))
        }));
        driver.up().unwrap();
        Bench { driver, plan, rx: RxBatch::new(256), tx: TxBatch::new(), received: 0, sent: 0 }
    }

    fn model(&mut self) -> &mut Model {
        &mut self.driver.usb().local.model
    }

    fn step(&mut self) {
        self.driver.usb().sleep(1_000_000);
        self.model().receive(datagram(true, 1, 900));
        if self.tx.is_empty() {
            let packet = load(&mut self.rx, &datagram(true, 2, 900), Csum::Unknown);
            self.tx.push(packet, self.driver.limits()).map_err(|(_, why)| why).unwrap();
        }
        let _ = self.driver.transmit(&mut self.tx).unwrap();
        self.tx.recycle(&mut self.rx.pool);
        self.driver.receive(&mut self.rx, 64).unwrap();
        self.received += self.rx.packets.len() as u32;
        self.rx.packets.clear();
        while self.model().transmit().is_some() {
            self.sent += 1;
        }
    }

    fn run(&mut self) {
        (0..STEPS).for_each(|_| self.step());
    }

    /// Returns whether frames pass in both directions within ten seconds.
    fn works(&mut self) -> bool {
        (self.received, self.sent) = (0, 0);
        (0..10_000).any(|_| {
            self.step();
            self.received >= FRAMES && self.sent >= FRAMES
        })
    }
}

#[test]
fn each_error_of_each_call_is_counted_costs_little_and_ends() {
    use usb::Error::{Gone, Memory, Overflow, Protocol, Stall, Timeout};
    for (mode, config) in modes(Speed::Super) {
        for call in [Call::Control, Call::Submit, Call::Reap, Call::ClearHalt] {
            for error in [Stall, Gone, Protocol, Overflow, Timeout, Memory] {
                // A device answers a transfer with a stall, which comes back with the transfer.
                if (call, error) == (Call::Submit, Stall) {
                    continue;
                }
                let what = format!("{mode} {call:?} {error:?}");
                let mut bench = Bench::new(config, call);
                assert!(bench.works(), "{what}: before");
                bench.plan.made.set(0);
                bench.run();
                let normal = bench.plan.made.replace(0);
                bench.plan.error.set(Some(error));
                // What makes the driver ask the chip, and what makes it end a halt.
                match call {
                    Call::Control => bench.model().set_partner(None),
                    Call::ClearHalt => bench.model().inject(Fault::BulkInStall),
                    Call::Submit | Call::Reap => {}
                }
                bench.run();
                let (made, failed) = (bench.plan.made.get(), bench.plan.failed.get());
                assert!(failed > 0, "{what}: it was not met");
                assert!(made <= 3 * normal.max(4 * STEPS), "{what}: {made} calls, {normal} without the fault");
                bench.plan.error.set(None);
                if call == Call::Control {
                    bench.model().set_partner(Some(Partner { speed: LinkSpeed::M1000, pause: true }));
                }
                assert!(bench.works(), "{what}: afterwards: {:?}", bench.driver.numbers());
                let n = bench.driver.numbers();
                let counted = n.rx_errors + n.tx_errors + n.control_errors + n.no_memory + n.unplugs;
                assert!(counted > 0, "{what}: {n:?}");
            }
        }
    }
}

/// Halts an endpoint of the model.
fn halt(model: &mut Model, address: u8) {
    const SET_FEATURE: u8 = 3;
    let setup = Setup { request_type: 2, request: SET_FEATURE, value: 0, index: u16::from(address), length: 0 };
    model.control(setup, &[]).unwrap();
}

#[test]
fn a_device_whose_halt_cannot_be_cleared_for_five_seconds_is_given_up() {
    for (mode, config) in modes(Speed::Super) {
        for address in [endpoint::BULK_IN, endpoint::BULK_OUT, endpoint::INTERRUPT] {
            let what = format!("{mode} {address:#x}");
            let mut bench = Bench::new(config, Call::ClearHalt);
            assert!(bench.works(), "{what}: before");
            bench.plan.error.set(Some(usb::Error::Stall));
            halt(bench.model(), address);
            (0..4900).for_each(|_| bench.step());
            let made = bench.plan.made.get();
            assert!((40..60).contains(&made), "{what}: {made} attempts");
            assert_eq!(bench.driver.numbers().unplugs, 0, "{what}");
            (0..300).for_each(|_| bench.step());
            assert_eq!((bench.driver.numbers().unplugs, bench.driver.numbers().halts), (1, 0), "{what}");
            assert!(bench.works(), "{what}: afterwards");
        }
    }
}

#[test]
fn a_device_that_halts_again_after_each_clearing_is_given_up_after_five_seconds() {
    for (mode, config) in modes(Speed::Super) {
        let mut bench = Bench::new(config, Call::Reap);
        assert!(bench.works(), "{mode}: before");
        bench.plan.error.set(Some(usb::Error::Stall));
        (0..4500).for_each(|_| bench.step());
        let numbers = bench.driver.numbers();
        // Two of them in the time of one pause, at most, and one after each.
        assert!((40..110).contains(&numbers.halts) && numbers.unplugs == 0, "{mode}: {numbers:?}");
        (0..1000).for_each(|_| bench.step());
        assert_eq!(bench.driver.numbers().unplugs, 1, "{mode}");
        bench.plan.error.set(None);
        assert!(bench.works(), "{mode}: afterwards");
    }
}

#[test]
fn a_driver_whose_endpoints_are_all_halted_is_idle_between_its_attempts_to_clear_them() {
    for (mode, config) in modes(Speed::Super) {
        let mut bench = Bench::new(config, Call::ClearHalt);
        assert!(bench.works(), "{mode}: before");
        bench.plan.error.set(Some(usb::Error::Stall));
        [endpoint::BULK_IN, endpoint::INTERRUPT].into_iter().for_each(|address| halt(bench.model(), address));
        let mut more = 0;
        for _ in 0..200 {
            bench.driver.usb().sleep(1_000_000);
            more += u32::from(bench.driver.receive(&mut bench.rx, 64).unwrap() == Polled::More);
        }
        assert!(more < 20, "{mode}: {more} times in 200 ms");
    }
}

#[test]
fn a_halt_that_could_not_be_cleared_wakes_the_driver_for_the_next_attempt() {
    const ATTEMPTS: u32 = 8;
    let (error, made, failed) = (Cell::new(Some(usb::Error::Stall)), Cell::new(0), Cell::new(0));
    let plan = Rc::new(Plan { call: Call::ClearHalt, error, made, failed, now: Cell::new(Nanos(1)) });
    let model = Model::new(model::Config { negotiation: 1_000_000, ..chip(Speed::Super) });
    let device = Failing::new(Local::new(model, None, Clock::System), &plan);
    let mut driver = Driver::open(device, Config::napi(Speed::Super)).unwrap();
    driver.up().unwrap();
    let mut rx = RxBatch::new(256);
    while !driver.link().up {
        driver.usb().sleep(1_000_000);
        driver.receive(&mut rx, 64).unwrap();
    }
    halt(&mut driver.usb().local.model, endpoint::BULK_IN);
    while plan.made.get() < ATTEMPTS && !driver.is_gone() {
        while driver.receive(&mut rx, 64).unwrap() != Polled::Idle {}
        let mut set = PollSet::default();
        set.add(&Interest::read(driver.fd()));
        set.wait(Some(Duration::from_secs(10))).unwrap();
    }
    assert_eq!(plan.made.get(), ATTEMPTS, "{:?}", driver.numbers());
}
