//! Tests of the cable of a model: frames sent into one end arrive at the other, and lost ones are counted.

mod support;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use segue::gso::Limits;
use segue::packet::Csum;
use segue::time::Nanos;
use segue_lan78xx::driver::{Config, Driver};
use segue_lan78xx::model::{self, Model};
use segue_lan78xx::regs::stat;
use segue_lan78xx::usb::Speed;
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::usbip::serve::Wire;
use segue_port::{Counters, Extra, OffloadState, PageMut, Polled, Port, Received, RxBatch, Sent, TxBatch};
use support::{Rig, chip, datagram, load};

/// The remote side of the cable.
#[derive(Default)]
struct CableSide {
    /// Frames to be sent from the remote side.
    sends: VecDeque<Vec<u8>>,
    /// Frames that reached the remote side.
    got: Vec<Vec<u8>>,
    /// Number of frames that the remote side's queue accepts at a time.
    room: Option<usize>,
    /// Whether the interface on the remote side was deleted.
    deleted: bool,
}

/// A port that behaves like a TAP device: it keeps a receive page from one poll to the next.
struct Tap {
    end: Rc<RefCell<CableSide>>,
    kept: Option<PageMut>,
    own: RxBatch,
    fd: (UnixStream, UnixStream),
    counters: Counters,
}

impl Tap {
    fn wire(end: &Rc<RefCell<CableSide>>) -> Wire {
        let fd = UnixStream::pair().unwrap();
        let (own, counters) = (RxBatch::new(256), Counters::default());
        Wire::new(Box::new(Tap { end: end.clone(), kept: None, own, fd, counters }))
    }
}

impl Port for Tap {
    fn limits(&self) -> &Limits {
        &Limits::NONE
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        Vec::new()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.0.as_fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        if self.end.borrow().deleted {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if self.kept.is_none() {
            self.kept = into.pages.take();
        }
        for _ in 0..budget {
            let Some(frame) = self.end.borrow_mut().sends.pop_front() else { return Ok(Polled::Idle) };
            let packet = load(&mut self.own, &frame, Csum::Unknown);
            into.packets.push_back(Received::Packet(packet));
        }
        Ok(Polled::More)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let mut end = self.end.borrow_mut();
        let taken: Vec<Vec<u8>> = batch
            .units()
            .take(end.room.unwrap_or(usize::MAX))
            .map(|unit| unit.head().iter().chain(unit.pieces().flatten()).copied().collect())
            .collect();
        batch.sent(taken.len());
        end.got.extend(taken);
        Ok(if batch.is_empty() { Sent::All } else { Sent::Blocked })
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// A driver on a model with a cable.
struct Cabled {
    driver: Driver<Local>,
    rx: RxBatch,
    end: Rc<RefCell<CableSide>>,
}

impl Cabled {
    fn new() -> Cabled {
        let end = Rc::new(RefCell::new(CableSide::default()));
        let local = Local::new(Model::new(chip(Speed::Super)), Some(Tap::wire(&end)), Clock::Still(Nanos(1)));
        let mut driver = Driver::open(local, Config::napi(Speed::Super)).unwrap();
        driver.up().unwrap();
        let mut cabled = Cabled { driver, rx: RxBatch::new(1024), end };
        for _ in 0..2000 {
            cabled.step();
        }
        assert!(cabled.driver.link().up);
        cabled
    }

    fn step(&mut self) {
        use segue_lan78xx::usb::Transport;
        self.driver.usb().sleep(100_000);
        self.driver.receive(&mut self.rx, 256).unwrap();
    }

    /// Sends frames without delay, with as many transfers as needed.
    fn send(&mut self, count: u16) {
        let mut tx = TxBatch::new();
        for number in 0..count {
            let packet = load(&mut self.rx, &datagram(true, number, 60), Csum::Unknown);
            tx.push(packet, self.driver.limits()).map_err(|(_, why)| why).unwrap();
        }
        for _ in 0..50 {
            self.driver.transmit(&mut tx).unwrap();
            self.step();
        }
        assert!(tx.is_empty());
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        let mut drops = Vec::new();
        self.driver.extras(&mut |kind, name, value| {
            if kind == Extra::Drop && value > 0 {
                drops.push((name, value));
            }
        });
        drops
    }
}

#[test]
fn a_burst_of_any_length_leaves_the_cable_whole() {
    for count in [1, 63, 64, 65, 130, 400] {
        let mut cabled = Cabled::new();
        cabled.send(count);
        let got: Vec<Vec<u8>> = std::mem::take(&mut cabled.end.borrow_mut().got);
        let sent: Vec<Vec<u8>> = (0..count).map(|number| datagram(true, number, 60)).collect();
        assert_eq!(got.len(), sent.len());
        assert!(got == sent, "{count}: in order, and unchanged");
        assert_eq!(cabled.drops(), []);
    }
}

#[test]
fn what_the_far_end_does_not_take_is_counted_at_the_adapter() {
    let mut cabled = Cabled::new();
    cabled.end.borrow_mut().room = Some(10);
    cabled.send(400);
    let got = cabled.end.borrow().got.len() as u64;
    assert!((10..400).contains(&got), "{got}");
    assert_eq!(cabled.drops(), [("cable_lost", 400 - got)]);
}

/// Returns a model on a paced wire of 1000 Mbit/s.
fn paced() -> Rig {
    let mut rig = Rig::of(model::Config { paced: true, ..chip(Speed::Super) }, Config::napi(Speed::Super));
    for _ in 0..100 {
        rig.step();
    }
    rig
}

/// Time of a frame of 1514 bytes at 1000 Mbit/s, nanoseconds.
const SLOT: u64 = (1514 + 4 + 8 + 12) * 8;

fn received(rig: &mut Rig) -> u64 {
    let statistics = rig.model().statistics();
    (0..3).map(|class| u64::from(statistics[stat::RX_FRAMES + class])).sum()
}

#[test]
fn paced_wire_catches_up_after_a_late_poll() {
    let mut rig = paced();
    let before = received(&mut rig);
    for number in 0..1000 {
        rig.model().receive(datagram(true, number, 1472));
    }
    // The model is advanced every 100 us, while a frame begins every 12 us.
    for _ in 0..100 {
        rig.step();
    }
    let (frames, due) = (received(&mut rig) - before, 100 * 100_000 / SLOT);
    assert!(frames.abs_diff(due) < 20, "{frames} frames in the time of {due}");

    let (mut tx, mut memory) = (TxBatch::new(), RxBatch::new(900));
    for number in 0..900 {
        let packet = load(&mut memory, &datagram(true, number, 1472), Csum::Unknown);
        tx.push(packet, rig.driver.limits()).map_err(|(_, why)| why).unwrap();
    }
    let mut sent = 0;
    for _ in 0..10 {
        use segue_lan78xx::usb::Transport;
        rig.driver.transmit(&mut tx).unwrap();
        rig.driver.usb().sleep(1_000_000);
        rig.driver.receive(&mut rig.rx, 256).unwrap();
        while rig.model().transmit().is_some() {
            sent += 1;
        }
    }
    let due = 10 * 1_000_000 / SLOT;
    assert!(u64::abs_diff(sent, due) < 50, "{sent} frames in the time of {due}");
}

#[test]
fn a_wire_makes_up_for_some_milliseconds_and_for_no_pause_or_idle_time() {
    use segue_lan78xx::usb::Transport;
    let mut rig = paced();
    let before = received(&mut rig);
    // After a long idle time the first frame goes at once, the others at the wire's rate.
    rig.driver.usb().sleep(1_000_000_000);
    for number in 0..1000 {
        rig.model().receive(datagram(true, number, 1472));
    }
    rig.driver.usb().sleep(0);
    assert_eq!(received(&mut rig) - before, 1);
    // The model is not advanced for a second.
    rig.driver.usb().sleep(1_000_000_000);
    let frames = received(&mut rig) - before;
    assert!(frames.abs_diff(5_000_000 / SLOT) < 5, "{frames}");
}

#[test]
fn a_partner_that_is_full_leaves_the_rest_at_the_far_end() {
    let end = Rc::new(RefCell::new(CableSide::default()));
    let mut wire = Tap::wire(&end);
    // A partner queue that is no multiple of the frames read at a time, and a chip that takes nothing from it.
    let mut model = Model::new(model::Config { partner_queue: 100, paced: true, ..chip(Speed::Super) });
    end.borrow_mut().sends = (0..300).map(|number| datagram(true, number, 1000)).collect();
    for _ in 0..10 {
        wire.read(&mut model).unwrap();
    }
    assert_eq!((model.notes().partner_lost, model.room()), (0, 0));
    assert_eq!(end.borrow().sends.len(), 200);
}

/// Reads a counter of a driver on a model in this process.
fn extra(driver: &Driver<Local>, name: &str) -> u64 {
    let mut found = None;
    driver.extras(&mut |_, key, value| found = if key == name { Some(value) } else { found });
    found.unwrap()
}

#[test]
fn a_cable_whose_interface_was_deleted_is_an_error_of_the_driver_and_no_spin() {
    let end = Rc::new(RefCell::new(CableSide::default()));
    let local = Local::new(Model::new(chip(Speed::Super)), Some(Tap::wire(&end)), Clock::Still(Nanos(1)));
    let mut driver = Driver::open(local, Config::napi(Speed::Super)).unwrap();
    driver.up().unwrap();
    let (mut rx, mut tx) = (RxBatch::new(64), TxBatch::new());
    driver.receive(&mut rx, 64).unwrap();
    end.borrow_mut().deleted = true;
    assert_eq!(driver.receive(&mut rx, 64).unwrap_err().kind(), io::ErrorKind::NotConnected);
    assert_eq!(driver.transmit(&mut tx).unwrap_err().kind(), io::ErrorKind::NotConnected);
}

#[test]
fn what_a_model_without_a_cable_sends_is_lost_and_counted_and_holds_nothing_up() {
    use segue_lan78xx::usb::Transport;
    const FRAMES: u64 = 70_000;
    let local = Local::alone(Model::new(chip(Speed::Super)), Clock::Still(Nanos(1)));
    let mut driver = Driver::open(local, Config::napi(Speed::Super)).unwrap();
    let (mut rx, mut tx) = (RxBatch::new(256), TxBatch::new());
    driver.up().unwrap();
    while !driver.link().up {
        driver.usb().sleep(1_000_000);
        driver.receive(&mut rx, 64).unwrap();
    }
    for number in 0..FRAMES {
        let packet = load(&mut rx, &datagram(true, (number % 1000) as u16, 64), Csum::Unknown);
        tx.push(packet, driver.limits()).map_err(|(_, why)| why).unwrap();
        assert_eq!(driver.transmit(&mut tx).unwrap(), Sent::All, "frame {number}");
        tx.recycle(&mut rx.pool);
    }
    driver.receive(&mut rx, 64).unwrap();
    assert_eq!((extra(&driver, "cable_lost"), extra(&driver, "wire_full")), (FRAMES, 0));
}
