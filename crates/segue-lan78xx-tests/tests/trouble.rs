//! Tests under load of a bus that refuses transfers, a device that goes away, and a cable that is disconnected: lost
//! frames are counted.

mod support;

use std::cell::Cell;
use std::rc::Rc;

use segue::gso::Limits;
use segue::packet::{Csum, Gso, GsoKind, TrainCsum, Unit};
use segue_lan78xx::driver::{Config, Driver, Error, LookupResult};
use segue_lan78xx::model::{Fault, LinkSpeed, Model, Partner};
use segue_lan78xx::regs::{self, mii, request, stat};
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::{self, Done, Lent, Speed, Transfer, Transport};
use segue_port::{Drop, Polled, Port, RxBatch, Sent, TxBatch};
use support::{Meddled, Meddler, Rig, chip, datagram, load, local, modes, primed, unpadded};

/// A transport that refuses every transfer while it is switched on, and counts them.
struct Refusing {
    error: Rc<Cell<Option<usb::Error>>>,
    asked: Rc<Cell<usize>>,
}

impl Meddler for Refusing {
    fn submit(&mut self, _transfer: &Transfer<Lent>) -> Result<(), usb::Error> {
        self.asked.set(self.asked.get() + 1);
        assert!(self.asked.get() < 10_000, "the driver asks again and again");
        self.error.get().map_or(Ok(()), Err)
    }
}

#[test]
fn a_bus_that_refuses_transfers_is_left_alone_for_a_while_and_used_again() {
    for (mode, config) in modes(Speed::Super) {
        for error in [usb::Error::Memory, usb::Error::Protocol, usb::Error::Timeout, usb::Error::Overflow] {
            let (refuse, asked) = (Rc::new(Cell::new(Some(error))), Rc::new(Cell::new(0)));
            let meddler = Refusing { error: refuse.clone(), asked: asked.clone() };
            let mut driver = Driver::open(Meddled::new(local(chip(Speed::Super)), meddler), config).unwrap();
            let mut rx = RxBatch::new(64);
            driver.up().unwrap();
            for _ in 0..100 {
                driver.receive(&mut rx, 64).unwrap();
            }
            let all = config.rx_transfers + 1;
            assert!(asked.get() <= 2 * all, "{mode} {error:?}: {} times without any time passing", asked.get());
            let first = asked.get();
            for _ in 0..10 {
                driver.usb().sleep(11_000_000);
                driver.receive(&mut rx, 64).unwrap();
            }
            assert!(asked.get() > first, "{mode} {error:?}: it is tried again");
            let numbers = driver.numbers();
            assert_eq!(numbers.no_memory > 0, error == usb::Error::Memory, "{mode} {numbers:?}");
            assert!(numbers.rx_errors > 0, "{mode} {error:?}");

            refuse.set(None);
            for _ in 0..100 {
                driver.usb().sleep(1_000_000);
                driver.receive(&mut rx, 64).unwrap();
            }
            assert!(driver.link().up, "{mode} {error:?}");
            driver.usb().local.borrow_mut().model.receive(datagram(true, 1, 100));
            for _ in 0..3 {
                driver.usb().sleep(1_000_000);
                driver.receive(&mut rx, 64).unwrap();
            }
            assert_eq!(rx.packets.len(), 1, "{mode} {error:?}");
            rx.packets.clear();
        }
    }
}

/// Account of the sent frames and their fates.
#[derive(Debug, Default, PartialEq)]
struct Account {
    given: u64,
    arrived: u64,
    in_flight: u64,
    link_down: u64,
    no_carrier: u64,
}

impl Account {
    fn is_even(&self) -> bool {
        self.given == self.arrived + self.in_flight + self.link_down + self.no_carrier
    }
}

/// A load of one frame in each direction per step.
struct Load {
    rig: Rig,
    tx: Account,
    rx_given: u64,
    rx_got: u64,
    number: u16,
}

impl Load {
    fn new(config: Config) -> Load {
        let mut rig = Rig::new(Speed::Super, config);
        rig.driver.on_gone(Box::new(|_| {
            let clock = Clock::Still(segue::time::Nanos(20_000_000_000));
            LookupResult::Back(Local::new(Model::new(chip(Speed::Super)), None, clock))
        }));
        Load { rig, tx: Account::default(), rx_given: 0, rx_got: 0, number: 0 }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.number += 1;
            let packet = self.rig.packet(&datagram(true, self.number, 900), Csum::Unknown);
            self.rig.send(packet);
            self.tx.given += 1;
            // A device that is gone receives nothing from its cable.
            if !self.rig.model().is_gone() && self.rig.model().link().is_some() && self.rig.driver.link().up {
                self.rig.model().receive(datagram(true, self.number, 900));
                self.rx_given += 1;
            }
            self.rig.step();
            self.rx_got += self.rig.rx.packets.len() as u64;
            self.rig.rx.packets.clear();
            while self.rig.model().transmit().is_some() {
                self.tx.arrived += 1;
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..50 {
            self.rig.step();
            self.rig.flush();
            self.rx_got += self.rig.rx.packets.len() as u64;
            self.rig.rx.packets.clear();
            while self.rig.model().transmit().is_some() {
                self.tx.arrived += 1;
            }
        }
        self.rig.driver.read_statistics().unwrap();
        self.tx.in_flight = self.rig.driver.numbers().tx_errors;
        self.tx.link_down = self.rig.driver.counters().drops.of(Drop::DeviceDown);
        self.tx.no_carrier = self.rig.driver.statistics()[stat::TX_CARRIER];
    }
}

#[test]
fn a_stall_under_load_loses_what_was_on_its_way_and_nothing_else() {
    for (mode, config) in modes(Speed::Super) {
        let mut load = Load::new(config);
        load.run(50);
        for _ in 0..5 {
            load.rig.model().inject(Fault::BulkOutStall);
            load.rig.model().inject(Fault::BulkInStall);
            load.run(50);
        }
        load.settle();
        let tx = &load.tx;
        assert!(tx.is_even() && tx.in_flight == 5 && tx.link_down == 0, "{mode} {tx:?}");
        assert_eq!(load.rx_got, load.rx_given, "{mode}: what was received waits in the chip");
        assert_eq!(load.rig.driver.numbers().halts, 10, "{mode}");
    }
}

#[test]
fn a_cable_that_comes_loose_under_load_is_noticed_and_what_is_sent_meanwhile_is_counted() {
    for (mode, config) in modes(Speed::Super) {
        let mut load = Load::new(config);
        load.run(50);
        for speed in [LinkSpeed::M100, LinkSpeed::M10, LinkSpeed::M1000] {
            load.rig.model().set_partner(None);
            load.run(100);
            assert!(!load.rig.driver.link().up, "{mode}: noticed");
            load.rig.model().set_partner(Some(Partner { speed, pause: true }));
            load.run(1000);
            assert_eq!(load.rig.driver.link().mbit, speed.mbit(), "{mode}");
        }
        load.settle();
        let tx = &load.tx;
        assert!(tx.is_even() && tx.in_flight == 0 && tx.link_down > 200, "{mode} {tx:?}");
        // The chip reports the loss of its link before it is polled.
        assert!(tx.no_carrier <= 3 * 40, "{mode} {tx:?}");
        assert_eq!((load.rx_got, load.rig.driver.numbers().link_ups), (load.rx_given, 4), "{mode}");
    }
}

#[test]
fn a_device_unplugged_under_load_comes_back_by_itself_and_what_was_sent_meanwhile_is_counted() {
    for (mode, config) in modes(Speed::Super) {
        for after in [0, 1, 7] {
            let mut load = Load::new(config);
            load.run(50);
            load.rig.model().inject(Fault::UnplugAfter(after));
            load.run(100);
            assert!(load.rig.driver.is_gone() && !load.rig.driver.link().up, "{mode} {after}");
            load.rig.driver.usb().sleep(1_100_000_000);
            load.run(2000);
            assert!(load.rig.driver.link().up, "{mode} {after}");
            load.settle();
            let tx = &load.tx;
            assert!(tx.is_even() && tx.link_down > 0, "{mode} {after} {tx:?}");
            assert!(tx.in_flight <= 1, "{mode} {after}: one frame a step {tx:?}");
            // A partly filled transfer was lost with the device.
            let lost = load.rx_given - load.rx_got;
            assert!(lost <= config.rx_transfer_len as u64 / 900, "{mode} {after}: {lost} of {}", load.rx_given);
            assert_eq!(load.rig.driver.numbers().unplugs, 1);
        }
    }
}

/// A hook that truncates the reply to the request for statistics.
struct Cutting(Rc<Cell<bool>>, bool);

impl Meddler for Cutting {
    fn before(&mut self, _model: &mut Model, setup: usb::Setup) -> Result<(), usb::Error> {
        self.1 = setup.request == request::READ_STATISTICS;
        Ok(())
    }

    fn answer(&mut self, _bytes: &mut [u8], len: usize) -> Result<usize, usb::Error> {
        Ok(if self.0.get() && self.1 { len - 1 } else { len })
    }
}

#[test]
fn statistics_that_come_short_are_an_error_and_change_nothing() {
    let cuts = Rc::new(Cell::new(false));
    let usb = Meddled::new(local(chip(Speed::High)), Cutting(cuts.clone(), false));
    let mut driver = Driver::open(usb, Config::napi(Speed::High)).unwrap();
    driver.usb().local.borrow_mut().model.set_statistic(stat::RX_FCS, 5);
    driver.read_statistics().unwrap();
    driver.usb().local.borrow_mut().model.set_statistic(stat::RX_FCS, 9);
    cuts.set(true);
    assert_eq!(driver.read_statistics(), Err(Error::Short("the statistics")));
    assert_eq!(driver.statistics()[stat::RX_FCS], 5);
    cuts.set(false);
    driver.read_statistics().unwrap();
    assert_eq!(driver.statistics()[stat::RX_FCS], 9);
}

/// A device at the other end of a network. While `keeps` is set, it gives no sent transfer back, and of those that are
/// stalled or cancelled only the first; while `is_busy` is, its PHY is never ready; while `echoes` is, it answers each
/// interrupt transfer at once.
#[derive(Clone, Default)]
struct Far {
    keeps: Rc<Cell<bool>>,
    is_busy: Rc<Cell<bool>>,
    /// Time that each request takes, nanoseconds.
    late: Rc<Cell<u64>>,
    /// Time that the submission of each transfer takes, nanoseconds.
    slow: Rc<Cell<u64>>,
    echoes: Rc<Cell<bool>>,
    echoed: u32,
    is_phy: bool,
    has_stalled: bool,
}

impl Meddler for Far {
    fn before(&mut self, _model: &mut Model, setup: usb::Setup) -> Result<(), usb::Error> {
        self.is_phy = setup.request == request::READ_REGISTER && setup.index == regs::MII_ACC;
        Ok(())
    }

    fn answer(&mut self, bytes: &mut [u8], len: usize) -> Result<usize, usb::Error> {
        if self.is_phy && self.is_busy.get() {
            bytes[0] |= mii::BUSY as u8;
        }
        Ok(len)
    }

    fn delay(&self) -> u64 {
        if self.is_busy.get() { 20_000_000 } else { self.late.get() }
    }

    fn submission(&self) -> u64 {
        self.slow.get()
    }

    fn answers(&mut self, transfer: &Transfer<Lent>) -> bool {
        let answers = self.echoes.get() && transfer.request().endpoint == regs::endpoint::INTERRUPT;
        self.echoed += u32::from(answers);
        assert!(self.echoed < 1000, "the driver asks again and again");
        answers
    }

    fn keeps(&mut self, transfer: &Transfer<Done>) -> bool {
        let is_sent = transfer.request().endpoint == regs::endpoint::BULK_OUT;
        let is_later = transfer.result().is_err() && std::mem::replace(&mut self.has_stalled, self.keeps.get());
        self.keeps.get() && (is_sent || is_later)
    }
}

/// Returns a driver of a device far away whose link is up.
fn far(config: Config, far: &Far) -> (Driver<Meddled<Far>>, RxBatch) {
    let mut driver = Driver::open(Meddled::new(local(chip(Speed::Super)), far.clone()), config).unwrap();
    let mut rx = RxBatch::new(64);
    driver.up().unwrap();
    for _ in 0..1000 {
        driver.usb().sleep(1_000_000);
        driver.receive(&mut rx, 64).unwrap();
    }
    assert!(driver.link().up);
    (driver, rx)
}

/// Checks that the driver gives up its device within ten calls, none of which takes 40 seconds.
#[track_caller]
fn assert_given_up(driver: &mut Driver<Meddled<Far>>, rx: &mut RxBatch, mode: &str) {
    const SECOND: u64 = 1_000_000_000;
    for _ in 0..10 {
        let before = driver.usb().now();
        driver.usb().sleep(SECOND / 10);
        driver.receive(rx, 64).unwrap();
        let took = driver.usb().now().0 - before.0;
        assert!(took < 40 * SECOND, "{mode}: {took} ns");
    }
    assert!(driver.is_gone(), "{mode}: {:?}", driver.numbers());
}

/// Returns what [`far`] does, with a frame in a transfer that the device does not give back.
fn far_with_a_frame(config: Config) -> (Driver<Meddled<Far>>, RxBatch) {
    let it = Far::default();
    let (mut driver, mut rx) = far(config, &it);
    it.keeps.set(true);
    let mut tx = TxBatch::new();
    let packet = load(&mut rx, &datagram(true, 1, 900), Csum::Unknown);
    assert!(tx.push(packet, driver.limits()).is_ok());
    driver.transmit(&mut tx).unwrap();
    (driver, rx)
}

#[test]
fn a_phy_that_is_never_ready_blocks_for_a_second_at_a_time_and_is_given_up() {
    for (mode, config) in modes(Speed::Super) {
        let it = Far::default();
        let (mut driver, mut rx) = far(config, &it);
        it.is_busy.set(true);
        driver.usb().local.borrow_mut().model.set_partner(None);
        let begin = driver.usb().now();
        for _ in 0..100 {
            let before = driver.usb().now();
            driver.usb().sleep(100_000_000);
            driver.receive(&mut rx, 64).unwrap();
            let took = driver.usb().now().0 - before.0;
            assert!(took < 3_000_000_000, "{mode}: {took} ns");
        }
        assert!(driver.is_gone(), "{mode}: {:?} in {} ns", driver.numbers(), driver.usb().now().0 - begin.0);
    }
}

/// Tests that a device whose answers come just in time holds its driver up for less than the time after which an
/// instance is ended, both with a change of its link and while it is set up again.
#[test]
fn a_device_that_answers_just_in_time_is_given_up() {
    const SECOND: u64 = 1_000_000_000;
    const AGAIN: segue::time::Nanos = segue::time::Nanos(10_000 * SECOND);
    for (mode, config) in modes(Speed::Super) {
        let it = Far::default();
        let (mut driver, mut rx) = far(config, &it);
        it.late.set(49 * SECOND / 10);
        driver.usb().local.borrow_mut().model.set_partner(None);
        assert_given_up(&mut driver, &mut rx, mode);
        let slow = Far { late: Rc::new(Cell::new(SECOND)), ..Far::default() };
        driver.on_gone(Box::new(move |_| {
            let local = Local::new(Model::new(chip(Speed::Super)), None, Clock::Still(AGAIN));
            LookupResult::Back(Meddled::new(local, slow.clone()))
        }));
        while driver.usb().now() < AGAIN {
            driver.usb().sleep(11 * SECOND / 10);
            driver.receive(&mut rx, 64).unwrap();
        }
        let took = driver.usb().now().0 - AGAIN.0;
        assert!(driver.is_gone() && took < 70 * SECOND, "{mode}: {took} ns");
    }
}

/// Tests that transfers that a slow network takes just in time hold the driver up for less than the time after which an
/// instance is ended: those for which there is no time wait for the next call, and nothing is lost.
#[test]
fn transfers_that_are_taken_just_in_time_leave_in_later_calls() {
    const SECOND: u64 = 1_000_000_000;
    const GIVEN: u16 = 30;
    for (mode, config) in modes(Speed::Super) {
        let it = Far::default();
        let (mut driver, mut rx) = far(Config { rx_transfers: usize::from(GIVEN), ..config }, &it);
        let mut tx = TxBatch::new();
        for number in 0..GIVEN {
            let packet = load(&mut rx, &datagram(true, number, 8900), Csum::Unknown);
            assert!(tx.push(packet, driver.limits()).is_ok());
            // Each received frame has a transfer of its own.
            driver.usb().local.borrow_mut().model.receive(datagram(true, number, 100));
            (0..2).for_each(|_| driver.usb().sleep(1_000_000));
        }
        it.slow.set(49 * SECOND / 10);
        let (mut received, mut frames) = (0, Vec::new());
        for _ in 0..30 {
            let before = driver.usb().now();
            driver.receive(&mut rx, 64).unwrap();
            let between = driver.usb().now();
            driver.transmit(&mut tx).unwrap();
            tx.recycle(&mut rx.pool);
            let took = [between.0 - before.0, driver.usb().now().0 - between.0];
            assert!(took.iter().all(|took| *took < 25 * SECOND), "{mode}: {took:?} ns");
            received += rx.packets.len();
            rx.packets.clear();
            let local = Rc::clone(&driver.usb().local);
            frames.extend(std::iter::from_fn(|| local.borrow_mut().model.transmit()));
        }
        let all: Vec<_> = (0..GIVEN).map(|number| datagram(true, number, 8900)).collect();
        let sent: Vec<_> = frames.iter().map(|frame| unpadded(frame)).collect();
        assert!(sent == all && received == all.len(), "{mode}: {} and {received}", sent.len());
        assert_eq!(driver.numbers().unplugs, 0, "{mode}: {:?}", driver.numbers());
    }
}

/// Tests that requests have their time, whatever a slow network takes for the transfers of frames that were received
/// before: a change of the link at that moment costs no device.
#[test]
fn requests_have_their_time_beside_transfers_that_are_taken_just_in_time() {
    const SECOND: u64 = 1_000_000_000;
    const FRAMES: u16 = 30;
    for (mode, config) in modes(Speed::Super) {
        let it = Far::default();
        let (mut driver, mut rx) = far(Config { rx_transfers: usize::from(FRAMES), ..config }, &it);
        for number in 0..FRAMES {
            // Each received frame has a transfer of its own.
            driver.usb().local.borrow_mut().model.receive(datagram(true, number, 100));
            (0..2).for_each(|_| driver.usb().sleep(1_000_000));
        }
        // The link goes and comes again, which the device reports by its interrupt transfer.
        driver.usb().local.borrow_mut().model.set_partner(chip(Speed::Super).partner);
        driver.usb().sleep(SECOND);
        it.slow.set(49 * SECOND / 10);
        driver.receive(&mut rx, 64).unwrap();
        let numbers = driver.numbers();
        assert_eq!((numbers.unplugs, numbers.control_errors), (0, 0), "{mode}: {numbers:?}");
        assert!(driver.link().up && rx.packets.len() == usize::from(FRAMES), "{mode}: {}", rx.packets.len());
    }
}

/// Tests that a device that answers each interrupt transfer while it is being sent, just in time, takes no call more
/// than its time, and has its link followed.
#[test]
fn a_device_that_answers_each_interrupt_transfer_just_in_time_holds_no_call_up() {
    const SECOND: u64 = 1_000_000_000;
    for (mode, config) in modes(Speed::Super) {
        let it = Far::default();
        let (mut driver, mut rx) = far(config, &it);
        it.slow.set(49 * SECOND / 10);
        it.echoes.set(true);
        driver.usb().local.borrow_mut().model.set_partner(None);
        for _ in 0..10 {
            let before = driver.usb().now();
            driver.usb().sleep(SECOND / 10);
            driver.receive(&mut rx, 64).unwrap();
            let took = driver.usb().now().0 - before.0;
            assert!(took < 25 * SECOND, "{mode}: {took} ns");
        }
        assert!(!driver.is_gone() && !driver.link().up, "{mode}: {:?}", driver.numbers());
    }
}

#[test]
fn a_halted_endpoint_whose_transfers_do_not_come_back_is_no_device_any_more() {
    for (mode, config) in modes(Speed::Super) {
        let it = Far::default();
        let (mut driver, mut rx) = far(config, &it);
        it.keeps.set(true);
        driver.usb().local.borrow_mut().model.inject(Fault::BulkInStall);
        for number in 0..100 {
            driver.usb().local.borrow_mut().model.receive(datagram(true, number, 100));
            driver.usb().sleep(100_000_000);
            driver.receive(&mut rx, 64).unwrap();
            rx.packets.clear();
        }
        assert!(driver.is_gone() && driver.numbers().halts == 0, "{mode}: {:?}", driver.numbers());
        // Set down meanwhile, it comes back without any work to do.
        driver.down().unwrap();
        driver.on_gone(Box::new(|_| {
            let clock = Clock::Still(segue::time::Nanos(60_000_000_000));
            LookupResult::Back(Meddled::new(Local::new(Model::new(chip(Speed::Super)), None, clock), Far::default()))
        }));
        for _ in 0..3 {
            driver.usb().sleep(1_100_000_000);
            driver.receive(&mut rx, 64).unwrap();
        }
        assert!(!driver.is_gone(), "{mode}");
        assert_eq!(driver.receive(&mut rx, 64).unwrap(), Polled::Idle, "{mode}: it wants to be polled again at once");
    }
}

#[test]
fn frames_of_a_batch_during_which_the_device_goes_away_are_all_counted() {
    const GIVEN: u16 = 100;
    for (mode, config) in modes(Speed::Super) {
        let mut load = Load::new(config);
        for number in 0..GIVEN {
            let packet = load.rig.packet(&datagram(true, number, 8900), Csum::Unknown);
            assert!(load.rig.tx.push(packet, load.rig.driver.limits()).is_ok());
        }
        // All transfers are under way before the first one comes back, which reports that the device is gone.
        load.rig.model().inject(Fault::UnplugAfter(3));
        assert_eq!(load.rig.flush(), Sent::All, "{mode}");
        assert!(load.rig.driver.is_gone(), "{mode}");
        load.rig.driver.usb().sleep(1_100_000_000);
        load.rig.until(|rig| rig.driver.link().up);
        load.tx.given = u64::from(GIVEN);
        load.settle();
        let tx = &load.tx;
        assert!(tx.is_even() && tx.link_down > 0 && tx.in_flight > 0, "{mode} {tx:?}");
    }
}

#[test]
fn each_frame_of_a_train_that_is_lost_with_its_device_is_counted() {
    for (mode, config) in modes(Speed::Super) {
        let it = Far::default();
        let (mut driver, mut rx) = far(config, &it);
        driver.on_gone(Box::new(|_| LookupResult::Back(Meddled::new(local(chip(Speed::Super)), Far::default()))));
        it.keeps.set(true);
        // Trains of datagrams are cut here. They fill the transfers, of which none comes back, and the rest waits.
        let frame = primed(&datagram(true, 1, 60_000));
        let gso = Gso { kind: GsoKind::Udp, size: 1000, fixed_ids: 0 };
        let any = Limits { csum: true, uso: true, max_udp_segs: 64, ..Limits::NONE };
        let mut tx = TxBatch::new();
        let mut is_blocked = false;
        for _ in 0..1000 {
            let mut packet = load(&mut rx, &frame, Csum::Partial);
            packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
            assert!(tx.push(packet, &any).is_ok());
            is_blocked = driver.transmit(&mut tx).unwrap() == Sent::Blocked;
            tx.recycle(&mut rx.pool);
            if is_blocked {
                break;
            }
        }
        assert!(is_blocked, "{mode}");
        // None has come back, so that all are lost with the device.
        let given = driver.counters().tx.segments;
        driver.usb().local.borrow_mut().model.unplug();
        for _ in 0..2000 {
            driver.usb().sleep(1_000_000);
            driver.receive(&mut rx, 64).unwrap();
        }
        assert!(!driver.is_gone() && driver.link().up, "{mode}");
        assert_eq!(driver.numbers().tx_errors, given, "{mode}");
        let next = load(&mut rx, &datagram(true, 7, 900), Csum::Unknown);
        assert!(tx.push(next, &any).is_ok());
        let mut frames = Vec::new();
        for _ in 0..20 {
            driver.transmit(&mut tx).unwrap();
            driver.usb().sleep(1_000_000);
            driver.receive(&mut rx, 64).unwrap();
            frames.extend(driver.usb().local.borrow_mut().model.transmit());
        }
        assert!(frames.len() == 1 && unpadded(&frames[0]) == datagram(true, 7, 900), "{mode}: {}", frames.len());
    }
}

#[test]
fn an_adapter_that_is_down_is_not_polled_again_and_again_for_what_it_does_not_give_back() {
    for (mode, config) in modes(Speed::Super) {
        let (mut driver, mut rx) = far_with_a_frame(config);
        driver.down().unwrap();
        driver.usb().sleep(6_000_000_000);
        for _ in 0..3 {
            let polled = driver.receive(&mut rx, 64).unwrap();
            driver.usb().sleep(1_000_000);
            assert_eq!(polled, Polled::Idle, "{mode}");
        }
    }
}

#[test]
fn a_device_that_gives_no_transfer_back_is_given_up_at_the_second_timeout_of_sending() {
    for (mode, config) in modes(Speed::Super) {
        let (mut driver, mut rx) = far_with_a_frame(config);
        for (number, is_gone) in [(1, false), (2, true)] {
            for _ in 0..51 {
                driver.usb().sleep(100_000_000);
                driver.receive(&mut rx, 64).unwrap();
            }
            assert_eq!((driver.numbers().tx_timeouts, driver.is_gone()), (number, is_gone), "{mode}");
        }
    }
}

#[test]
fn the_interrupt_endpoint_is_restarted_after_a_halt() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        const SET_FEATURE: u8 = 3;
        let index = u16::from(regs::endpoint::INTERRUPT);
        let halt = usb::Setup { request_type: 2, request: SET_FEATURE, value: 0, index, length: 0 };
        rig.model().control(halt, &[]).unwrap();
        rig.until(|rig| rig.driver.numbers().halts == 1);
        // The event that was lost with a failed transfer is looked for once.
        rig.driver.usb().sleep(200_000_000);
        rig.step();
        let before = rig.model().notes();
        rig.model().set_partner(None);
        rig.until(|rig| !rig.driver.link().up);
        let after = rig.model().notes();
        assert_eq!((after.interrupts, rig.driver.numbers().halts), (before.interrupts + 1, 1), "{mode}");
    }
}
