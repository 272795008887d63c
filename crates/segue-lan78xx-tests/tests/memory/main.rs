//! Tests with no memory for transfers, when the driver is opened and in operation. Small allocations and the pages of
//! packets are not refused here: the standard library aborts the program when one of them fails.

#[path = "../support/mod.rs"]
mod support;
mod sys;

use std::cell::Cell;
use std::rc::Rc;

use segue::packet::Csum;
use segue_lan78xx::driver::{Config, Driver, Error, LookupResult};
use segue_lan78xx::model::Model;
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::{self, Speed, Transport};
use segue_port::{Port, Sent};
use support::{Rig, chip, datagram, local};
use sys::{LEFT, Scarce};

#[global_allocator]
static ALLOCATOR: Scarce = Scarce;

/// Limits this thread to memory for `left` more transfers while `work` runs.
fn with_memory_for<R>(left: usize, work: impl FnOnce() -> R) -> R {
    LEFT.set(left);
    let result = work();
    LEFT.set(usize::MAX);
    result
}

#[test]
fn a_driver_without_memory_for_its_transfers_does_not_open_and_says_so() {
    for left in 0..=40 {
        let usb = local(chip(Speed::Super));
        let opened = with_memory_for(left, || Driver::open(usb, Config::napi(Speed::Super)).map(drop));
        let expected = if left < 40 { Err(Error::Usb(usb::Error::Memory)) } else { Ok(()) };
        assert_eq!(opened, expected, "{left} of 30 and 10");
    }
}

#[test]
fn a_driver_that_allocates_as_it_goes_counts_what_it_lacks_and_goes_on() {
    let mut rig = Rig::new(Speed::Super, Config::standard(Speed::Super));
    // Receiving: the allocation at a completion fails; the used memory goes back after the poll.
    rig.model().receive(datagram(true, 1, 100));
    let got = with_memory_for(0, || rig.frames().len());
    assert_eq!((got, rig.driver.numbers().no_memory, rig.driver.counters().drops.total()), (1, 1, 0));
    rig.model().receive(datagram(true, 2, 100));
    assert_eq!(rig.frames().len(), 1);
    // Sending: a failed allocation is like having no free transfer.
    let packet = rig.packet(&datagram(true, 3, 100), Csum::Unknown);
    rig.tx.push(packet, rig.driver.limits()).unwrap();
    assert_eq!(with_memory_for(0, || rig.flush()), Sent::Blocked);
    assert!(rig.driver.numbers().no_memory > 1);
    assert_eq!(rig.flush(), Sent::All);
    assert_eq!(rig.arrived().len(), 1);
}

#[test]
fn a_device_that_comes_back_while_there_is_no_memory_is_taken_once_there_is() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    let looks = Rc::new(Cell::new(0));
    let counted = looks.clone();
    rig.driver.on_gone(Box::new(move |_| {
        counted.set(counted.get() + 1);
        let clock = Clock::Still(segue::time::Nanos(counted.get() * 10_000_000_000));
        LookupResult::Back(Local::new(Model::new(chip(Speed::Super)), None, clock))
    }));
    rig.model().unplug();
    rig.until(|rig| rig.driver.is_gone());
    for (turn, left) in [0, 1, 29, 30, 39].into_iter().enumerate() {
        rig.driver.usb().sleep(2_000_000_000);
        with_memory_for(left, || rig.step());
        assert!(rig.driver.is_gone() && looks.get() == turn as u64 + 1, "{left} of 40");
    }
    rig.driver.usb().sleep(2_000_000_000);
    rig.until(|rig| rig.driver.link().up);
    rig.model().receive(datagram(true, 1, 100));
    assert_eq!(rig.frames().len(), 1);
    assert_eq!(rig.driver.numbers().unplugs, 1);
}
