//! Tests of the settings of the host's interface, and of a device that no longer answers.

mod support;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use segue_lan78xx::driver::{AddressSource, Config, Driver, Host, Interface, LookupResult};
use segue_lan78xx::model::{Fault, Model};
use segue_lan78xx::regs::{self, Chip, mac_rx, request, rfe};
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::{self, Setup, Speed, Transport};
use segue_port::{Port, RxBatch};
use support::{MAC, Meddled, Meddler, PEER, Rig, chip, datagram, ethernet, ip, local, modes};

const OTHER: [u8; 6] = [2, 9, 9, 9, 9, 9];
const USUAL: Interface = Interface { up: true, mtu: 1500, mac: MAC, promiscuous: false };

/// A host interface whose settings the test chooses.
struct ChangeQueue {
    said: Rc<RefCell<VecDeque<Interface>>>,
    bell: PipeReader,
}

impl Host for ChangeQueue {
    fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn next_change(&mut self) -> Option<Interface> {
        let change = self.said.borrow_mut().pop_front()?;
        self.bell.read_exact(&mut [0]).unwrap();
        Some(change)
    }
}

struct Hosted {
    rig: Rig,
    said: Rc<RefCell<VecDeque<Interface>>>,
    bell: PipeWriter,
}

impl Hosted {
    fn new() -> Hosted {
        let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
        let (reader, bell) = std::io::pipe().unwrap();
        let said = Rc::new(RefCell::new(VecDeque::new()));
        rig.driver.follow(Box::new(ChangeQueue { said: Rc::clone(&said), bell: reader })).unwrap();
        Hosted { rig, said, bell }
    }

    fn say(&mut self, wanted: Interface) {
        self.said.borrow_mut().push_back(wanted);
        self.bell.write_all(b"!").unwrap();
        self.rig.step();
    }

    /// Returns whether a frame to `dst` arrives that is full for an MTU of `len` bytes.
    fn takes(&mut self, dst: [u8; 6], len: usize) -> bool {
        let packet = segue_testkit::flow::Sender::udp(ip(true), 1).send(len - 28, 0).bytes();
        let frame = segue_testkit::build::Ethernet { dst, src: PEER, ..ethernet(&[]) }.wrap(&packet);
        self.rig.model().receive(frame);
        !self.rig.frames().is_empty()
    }

    fn number(&self, name: &str) -> u64 {
        let mut found = None;
        self.rig.driver.extras(&mut |_, key, value| found = if key == name { Some(value) } else { found });
        found.unwrap()
    }
}

#[test]
fn the_adapter_becomes_what_the_hosts_interface_is() {
    let mut hosted = Hosted::new();
    hosted.say(USUAL);
    assert!(hosted.takes(MAC, 1500) && !hosted.takes(MAC, 9000) && !hosted.takes(OTHER, 100));
    hosted.say(Interface { mtu: 9000, ..USUAL });
    assert!(hosted.takes(MAC, 9000) && !hosted.takes(OTHER, 100));
    hosted.say(Interface { mac: OTHER, ..USUAL });
    assert!(hosted.takes(OTHER, 100) && !hosted.takes(MAC, 100) && !hosted.takes(OTHER, 9000));
    assert_eq!((hosted.rig.driver.mac(), hosted.rig.driver.address_source()), (OTHER, AddressSource::User));
    hosted.say(Interface { promiscuous: true, ..USUAL });
    assert!(hosted.takes(OTHER, 100) && hosted.takes(MAC, 100));
    hosted.say(Interface { up: false, ..USUAL });
    assert_eq!(hosted.rig.model().register(regs::MAC_RX) & mac_rx::RXEN, 0);
    assert_eq!((hosted.rig.driver.link().up, hosted.rig.model().pending()), (false, 0));
    assert!(!hosted.takes(MAC, 100));
    hosted.say(USUAL);
    hosted.rig.until(|rig| rig.driver.link().up);
    assert!(hosted.takes(MAC, 100) && !hosted.takes(OTHER, 100));
}

#[test]
fn an_mtu_that_the_chip_does_not_take_is_shown_and_the_nearest_one_taken() {
    let mut hosted = Hosted::new();
    for (wanted, taken) in [(9001, 9000), (60_000, 9000), (1024 - 18, 1007), (1500, 1500)] {
        hosted.say(Interface { mtu: wanted, ..USUAL });
        let refused = if wanted == taken { 0 } else { wanted as u64 };
        assert_eq!((hosted.number("mtu"), hosted.number("refused_mtu")), (taken as u64, refused));
        assert!(hosted.takes(MAC, taken) && !hosted.takes(MAC, taken + 20));
    }
}

#[test]
fn a_setting_that_fails_is_tried_again_and_one_for_a_device_that_is_away_waits_for_it() {
    for wanted in [
        Interface { mtu: 9000, ..USUAL },
        Interface { mac: OTHER, ..USUAL },
        Interface { promiscuous: true, ..USUAL },
        Interface { up: false, ..USUAL },
    ] {
        let is_so = |rig: &mut Rig| {
            let model = rig.model();
            let mtu = (model.register(regs::MAC_RX) >> 16) as usize - 22;
            let runs = model.register(regs::MAC_RX) & mac_rx::RXEN != 0;
            let promiscuous = model.register(regs::RFE_CTL) & rfe::UCAST_EN != 0;
            let [a, b, c, d] = model.register(regs::RX_ADDRL).to_le_bytes();
            let [e, f, ..] = model.register(regs::RX_ADDRH).to_le_bytes();
            Interface { up: runs, mtu, mac: [a, b, c, d, e, f], promiscuous } == wanted
        };
        let mut hosted = Hosted::new();
        hosted.rig.model().inject(Fault::ControlStall);
        hosted.say(wanted);
        assert_eq!(hosted.rig.driver.numbers().control_errors, 1);
        hosted.rig.until(is_so);
        let mut hosted = Hosted::new();
        hosted.rig.driver.on_gone(Box::new(|_| {
            let clock = Clock::Still(segue::time::Nanos(10_000_000_000));
            LookupResult::Back(Local::new(Model::new(chip(Speed::Super)), None, clock))
        }));
        hosted.rig.model().unplug();
        hosted.rig.until(|rig| rig.driver.is_gone());
        assert_eq!(hosted.number("gone"), 1);
        hosted.say(wanted);
        hosted.rig.driver.usb().sleep(1_100_000_000);
        hosted.rig.until(|rig| !rig.driver.is_gone());
        assert!(is_so(&mut hosted.rig), "{wanted:?}");
        assert_eq!(hosted.number("gone"), 0);
    }
}

#[test]
fn a_device_that_does_not_answer_one_request_is_given_up_and_looked_for() {
    /// A device that no longer answers requests, and counts them.
    #[derive(Default)]
    struct Silent(Rc<RefCell<(bool, u32)>>);
    impl Meddler for Silent {
        fn before(&mut self, _model: &mut Model, setup: Setup) -> Result<(), usb::Error> {
            let (silent, requests) = &mut *self.0.borrow_mut();
            *requests += u32::from(*silent && setup.request_type != 0);
            if *silent { Err(usb::Error::Timeout) } else { Ok(()) }
        }
    }
    assert_eq!(request::READ_STATISTICS, 0xa2);
    let state = Rc::new(RefCell::new((false, 0)));
    let usb = Meddled::new(local(chip(Speed::Super)), Silent(Rc::clone(&state)));
    let mut driver = Driver::open(usb, Config::napi(Speed::Super)).unwrap();
    let link_up = Rc::new(RefCell::new(false));
    let carrier = Rc::clone(&link_up);
    driver.on_link(Box::new(move |link| *carrier.borrow_mut() = link.up));
    let looked = Rc::clone(&state);
    driver.on_gone(Box::new(move |_| {
        looked.borrow_mut().0 = false;
        let clock = Clock::Still(segue::time::Nanos(100_000_000_000));
        let fresh = Local::new(Model::new(chip(Speed::Super)), None, clock);
        LookupResult::Back(Meddled::new(fresh, Silent(Rc::clone(&looked))))
    }));
    driver.up().unwrap();
    let mut rx = RxBatch::new(256);
    let mut until = |driver: &mut Driver<Meddled<Silent>>, done: &dyn Fn(&Driver<Meddled<Silent>>) -> bool| {
        for _ in 0..200_000 {
            if done(driver) {
                return;
            }
            driver.usb().sleep(100_000);
            driver.receive(&mut rx, 64).unwrap();
        }
        panic!("it never came");
    };
    until(&mut driver, &|driver| driver.link().up);
    state.borrow_mut().0 = true;
    // The counters are read within a few seconds.
    until(&mut driver, &|driver| driver.is_gone());
    assert_eq!((state.borrow().1, *link_up.borrow()), (1, false), "one request, and no carrier");
    assert_eq!((driver.numbers().unplugs, driver.numbers().control_errors), (1, 1));
    until(&mut driver, &|driver| !driver.is_gone() && driver.link().up);
    assert!(*link_up.borrow());
    driver.usb().local.borrow_mut().model.receive(datagram(true, 1, 100));
}

#[test]
fn an_mtu_that_is_awkward_on_another_bus_keeps_no_adapter_away() {
    const AWKWARD: usize = 512 - 18;
    let mut hosted = Hosted::new();
    let speeds = Rc::new(RefCell::new(vec![Speed::Super, Speed::High]));
    let next = Rc::clone(&speeds);
    hosted.rig.driver.on_gone(Box::new(move |_| {
        let Some(speed) = next.borrow_mut().pop() else { return LookupResult::Nothing };
        let clock = Clock::Still(segue::time::Nanos(10_000_000_000 * (2 - next.borrow().len() as u64)));
        LookupResult::Back(Local::new(Model::new(chip(speed)), None, clock))
    }));
    hosted.say(Interface { mtu: AWKWARD, ..USUAL });
    assert_eq!((hosted.number("mtu"), hosted.number("refused_mtu")), (AWKWARD as u64, 0));
    // The device moves to a bus where its full frames end at a packet boundary, and back.
    for (mtu, refused) in [(AWKWARD + 1, AWKWARD), (AWKWARD, 0)] {
        hosted.rig.model().unplug();
        hosted.rig.until(|rig| rig.driver.is_gone());
        hosted.rig.driver.usb().sleep(1_100_000_000);
        hosted.rig.until(|rig| !rig.driver.is_gone() && rig.driver.link().up);
        assert_eq!((hosted.number("mtu"), hosted.number("refused_mtu")), (mtu as u64, refused as u64));
        assert_eq!((hosted.rig.model().register(regs::MAC_RX) >> 16) as usize - 22, mtu);
    }
}

#[test]
fn another_device_in_the_adapters_place_is_shown_as_long_as_it_is_there() {
    const CHIP: (u16, u16) = (0x0424, 0x7850);
    const KEYBOARD: (u16, u16) = (0x046d, 0xc31c);
    let mut hosted = Hosted::new();
    let now = Rc::new(RefCell::new(LookupResult::Unknown));
    let found = Rc::clone(&now);
    hosted.rig.driver.on_gone(Box::new(move |chip| {
        assert_eq!(chip, Chip::Lan7800);
        std::mem::replace(&mut *found.borrow_mut(), LookupResult::Unknown)
    }));
    hosted.rig.model().unplug();
    hosted.rig.until(|rig| rig.driver.is_gone());
    for (look, stranger) in [
        (LookupResult::Unknown, 0),
        (LookupResult::Other(CHIP), 0x0424_7850),
        // An unknown result changes nothing.
        (LookupResult::Unknown, 0x0424_7850),
        (LookupResult::Other(KEYBOARD), 0x046d_c31c),
        (LookupResult::Nothing, 0),
        (LookupResult::Unknown, 0),
        (LookupResult::Other(CHIP), 0x0424_7850),
        (LookupResult::Nothing, 0),
    ] {
        *now.borrow_mut() = look;
        hosted.rig.driver.usb().sleep(1_100_000_000);
        hosted.rig.step();
        assert_eq!((hosted.number("gone"), hosted.number("stranger")), (1, stranger));
    }
}

#[test]
fn another_chip_that_was_taken_all_the_same_is_given_back_and_shown() {
    let mut hosted = Hosted::new();
    let now = Rc::new(RefCell::new((Chip::Lan7850, 0)));
    let found = Rc::clone(&now);
    hosted.rig.driver.on_gone(Box::new(move |_| {
        let (kind, looked) = &mut *found.borrow_mut();
        *looked += 1;
        let config = segue_lan78xx::model::Config { chip: *kind, ..chip(Speed::High) };
        LookupResult::Back(Local::new(Model::new(config), None, Clock::Still(segue::time::Nanos(100_000_000_000))))
    }));
    hosted.rig.model().unplug();
    hosted.rig.until(|rig| rig.driver.is_gone());
    assert_eq!(hosted.number("stranger"), 0);
    for looked in 1..4 {
        hosted.rig.driver.usb().sleep(1_100_000_000);
        hosted.rig.step();
        assert_eq!((now.borrow().1, hosted.number("gone"), hosted.number("stranger")), (looked, 1, 0x0424_7850));
    }
    now.borrow_mut().0 = Chip::Lan7800;
    hosted.rig.driver.usb().sleep(1_100_000_000);
    hosted.rig.until(|rig| !rig.driver.is_gone());
    assert_eq!((hosted.number("gone"), hosted.number("stranger")), (0, 0));
}

#[test]
fn a_faster_bus_gets_no_more_at_a_time_than_a_transfer_holds() {
    for (from, to, packets) in [(Speed::High, Speed::Super, 16), (Speed::Super, Speed::High, 64)] {
        let mut rig = Rig::of(chip(from), Config::napi(from));
        assert_eq!(rig.model().register(regs::BURST_CAP), 32);
        rig.driver.on_gone(Box::new(move |_| {
            LookupResult::Back(Local::new(Model::new(chip(to)), None, Clock::Still(segue::time::Nanos(10_000_000_000))))
        }));
        rig.model().unplug();
        rig.until(|rig| rig.driver.is_gone());
        rig.driver.usb().sleep(1_100_000_000);
        rig.until(|rig| rig.driver.link().up);
        assert_eq!(rig.model().register(regs::BURST_CAP), packets);
    }
}

#[test]
fn the_largest_frames_still_arrive_on_a_slower_bus() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::of(chip(Speed::Super), Config { mtu: 9000, ..config });
        rig.driver.on_gone(Box::new(|_| {
            let clock = Clock::Still(segue::time::Nanos(10_000_000_000));
            LookupResult::Back(Local::new(Model::new(chip(Speed::Full)), None, clock))
        }));
        rig.model().unplug();
        rig.until(|rig| rig.driver.is_gone());
        rig.driver.usb().sleep(1_100_000_000);
        rig.until(|rig| rig.driver.link().up);
        let frame = datagram(true, 1, 9000 - 28);
        rig.model().receive(frame.clone());
        assert!(rig.frames() == [frame], "{mode}: {:?}", rig.model().notes());
    }
}
