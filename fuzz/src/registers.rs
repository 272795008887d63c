use std::cell::Cell;
use std::rc::Rc;

use segue::packet::Csum;
use segue_lan78xx::driver::{Config, Driver, Error, LinkState};
use segue_lan78xx::frame::{MAX_MTU, MIN_MTU, is_awkward_mtu};
use segue_lan78xx::model::{self, Fault, Identity, LinkSpeed, Model, Partner};
use segue_lan78xx::regs::{self, Chip, e2p, request};
use segue_lan78xx::usb::{self, Lent, Setup, Speed, Transfer, Transport};
use segue_port::{Port, RxBatch, TxBatch};

use crate::adapter_support::{Meddled, Meddler, PEER, chip, datagram, ethernet, load, local, segment};
use crate::resources::bounded;

/// Number of bytes that a driver with the model of its chip may hold: transfers, memory of the chip, pages.
const FREE: usize = 8 << 20;
/// Last byte of an input that says more than answers; see [`Plan`].
const MARK: u8 = 0xc5;
/// Length in bytes of an entry of a plan.
const ENTRY: usize = 6;
/// Number of pages for received packets.
const PAGES: usize = 16;
/// Place of the chip's counters among the registers of a plan.
const COUNTERS: u16 = 0x1ffc;

/// The end of an input that ends in [`MARK`], besides its answers: which adapter it is, what happens to it, and what is
/// said about single registers. In front of the mark is the number of entries, in front of that are four bytes of
/// choices, and in front of those the entries: two bytes with a register, whose three highest bits are a [`Kind`], and
/// a value of four bytes.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Chip (bits 0 and 1), speed of the bus (2 and 3), source of the address (4 to 6), no partner (7).
    chip: u8,
    /// Form of the driver (bit 0), EEE (1), no pause (2), tags left in frames (3), an address of the user (4) or of the
    /// platform (5), the partner's speed (6 and 7).
    config: u8,
    /// Faults: see [`FAULTS`]. With bit 6 the partner comes back.
    faults: u8,
    /// Suspended (bit 0), without power (1), odd MTUs (2), frames of the partner (3), frames to it (4), the cable stays
    /// (5), transfers that are refused (6), a partner that pauses (7).
    steps: u8,
    entries: Vec<Entry>,
}

/// A statement of a plan about a register.
#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    register: u16,
    value: u32,
}

/// The kind of an entry. Entries of the first four and of the last happen in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A read gives the value.
    Reads,
    /// A read fails with the error of this number.
    ReadFails,
    /// A write fails with the error of this number.
    WriteFails,
    /// A read gives half of the bytes.
    Short,
    /// The bits of the value always read as set.
    Sets,
    /// The bits of the value always read as clear.
    Clears,
    /// The byte of the EEPROM with the register's number has the value.
    Eeprom,
    /// As many reads and writes as the value says are answered by the model.
    Passes,
}

const KINDS: [Kind; 8] =
    [Kind::Reads, Kind::ReadFails, Kind::WriteFails, Kind::Short, Kind::Sets, Kind::Clears, Kind::Eeprom, Kind::Passes];

const ERRORS: [usb::Error; 7] = [
    usb::Error::Stall,
    usb::Error::Timeout,
    usb::Error::Gone,
    usb::Error::Protocol,
    usb::Error::Memory,
    usb::Error::Overflow,
    usb::Error::Cancelled,
];

/// Faults of the bits of a plan.
const FAULTS: [(u8, Fault); 7] = [
    (1, Fault::BulkInStall),
    (2, Fault::EmptyTransfer),
    (4, Fault::InterruptLength(2)),
    (8, Fault::ShortTransfer(9)),
    (16, Fault::UnplugAfter(6)),
    (32, Fault::ControlStall),
    (128, Fault::BulkOutStall),
];

impl Plan {
    /// Splits an input into the answers and the plan.
    fn of(data: &[u8]) -> (&[u8], Plan) {
        let [front @ .., chip, config, faults, steps, count, MARK] = data else { return (data, Plan::default()) };
        let Some(at) = front.len().checked_sub(usize::from(*count) * ENTRY) else { return (data, Plan::default()) };
        let (answers, entries) = front.split_at(at);
        let entries = entries.chunks_exact(ENTRY).map(|bytes| {
            let word = u16::from_be_bytes([bytes[0], bytes[1]]);
            let kind = KINDS[usize::from(word >> 13)];
            Entry {
                kind,
                register: if kind == Kind::Eeprom { word & 0x1ff } else { word & 0x1ffc },
                value: u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]),
            }
        });
        let plan = Plan { chip: *chip, config: *config, faults: *faults, steps: *steps, entries: entries.collect() };
        (answers, plan)
    }

    fn speed(&self) -> Speed {
        match self.chip >> 2 & 3 {
            1 => Speed::High,
            2 => Speed::Full,
            _ => Speed::Super,
        }
    }

    fn partner(&self) -> Partner {
        let speed =
            [LinkSpeed::M1000, LinkSpeed::M100, LinkSpeed::M10, LinkSpeed::M1000][usize::from(self.config >> 6)];
        Partner { speed, pause: self.config >> 6 != 3 }
    }

    fn chip(&self) -> model::Config {
        model::Config {
            chip: [Chip::Lan7800, Chip::Lan7801, Chip::Lan7850, Chip::Lan7800][usize::from(self.chip & 3)],
            identity: match self.chip >> 4 & 7 {
                1 => Identity::Eeprom,
                2 => Identity::OtpLow,
                3 => Identity::OtpHigh,
                4 => Identity::None,
                _ => Identity::Register,
            },
            partner: (self.chip & 128 == 0).then(|| self.partner()),
            ..chip(self.speed())
        }
    }

    fn config(&self) -> Config {
        let form = if self.config & 1 == 0 { Config::napi(self.speed()) } else { Config::standard(self.speed()) };
        Config {
            eee: self.config & 2 != 0,
            pause: self.config & 4 == 0,
            strip_tags: self.config & 8 == 0,
            mac: (self.config & 16 != 0).then_some([2, 0x78, 0, 0, 0, 9]),
            platform_mac: (self.config & 32 != 0).then_some([2, 0x78, 0, 0, 0, 8]),
            ..form
        }
    }

    /// Prepares the device before it is opened.
    fn prepare(&self, usb: &Meddled<Answers>) {
        let mut local = usb.local.borrow_mut();
        let mut write = |index: u16, value: u32| {
            let (request_type, request) = (request::OUT, request::WRITE_REGISTER);
            let setup = Setup { request_type, request, value: 0, index, length: 4 };
            local.control_out(setup, &value.to_le_bytes()).expect("a model without faults");
        };
        if self.entries.iter().any(|entry| entry.kind == Kind::Eeprom) {
            write(regs::E2P_CMD, e2p::EWEN);
        }
        for Entry { kind, register, value } in &self.entries {
            if *kind == Kind::Eeprom {
                write(regs::E2P_DATA, *value);
                write(regs::E2P_CMD, e2p::WRITE | u32::from(*register));
            }
        }
        for Entry { kind, register, value } in &self.entries {
            match kind {
                Kind::Sets => local.model.stick(*register, *value, 0),
                Kind::Clears => local.model.stick(*register, 0, *value),
                _ => {}
            }
        }
    }

    /// Lets the partner send.
    fn arrive(&self, turn: u16, model: &mut Model) {
        if self.steps & 8 != 0 {
            // More than the budget of a poll, once.
            for number in 0..if turn == 6 { 80 } else { 1 } {
                model.receive(datagram(true, number, 40));
            }
            model.receive(segment(false, 100, 0x10));
            model.receive(ethernet(&[(0x8100, 7), (0x8100, 9)]).wrap(&datagram(true, turn, 50)[14..]));
        }
        if self.steps & 128 != 0 {
            // A pause frame of the longest time (IEEE 802.3, annex 31B).
            let mut pause = [&[1_u8, 0x80, 0xc2, 0, 0, 1][..], &PEER, &[0x88, 8, 0, 1, 0xff, 0xff]].concat();
            pause.resize(60, 0);
            model.receive(pause);
        }
    }
}

/// Answers of a device, read from the input.
struct Answers {
    bytes: Vec<u8>,
    at: usize,
    entries: Vec<Entry>,
    /// Register of the request in progress, and whether its entries wait for a later one.
    register: u16,
    passes: bool,
    /// Number of transfers that are refused.
    refused: u32,
}

impl Answers {
    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte
    }

    /// Returns the index of what the plan says next about the register of the request.
    fn entry(&self) -> Option<usize> {
        let is_always = |kind: Kind| matches!(kind, Kind::Sets | Kind::Clears | Kind::Eeprom);
        self.entries.iter().position(|entry| entry.register == self.register && !is_always(entry.kind))
    }

    /// Returns whether the request is one of those that the model answers.
    fn pass(&mut self) -> bool {
        let Some(at) = self.entry().filter(|at| self.entries[*at].kind == Kind::Passes) else { return false };
        self.entries[at].value = self.entries[at].value.saturating_sub(1);
        if self.entries[at].value == 0 {
            self.entries.remove(at);
        }
        true
    }

    /// Takes what the plan says next about the register of the request, if it is of this kind.
    fn take(&mut self, kind: Kind) -> Option<u32> {
        let at = self.entry().filter(|at| !self.passes && self.entries[*at].kind == kind)?;
        Some(self.entries.remove(at).value)
    }
}

impl Meddler for Answers {
    fn before(&mut self, _model: &mut Model, setup: Setup) -> Result<(), usb::Error> {
        self.register = if setup.request == request::READ_STATISTICS { COUNTERS } else { setup.index };
        self.passes = self.pass();
        if let Some(number) = self.take(if setup.is_in() { Kind::ReadFails } else { Kind::WriteFails }) {
            return Err(ERRORS[number as usize % ERRORS.len()]);
        }
        match self.next() {
            Some(0xff) if !setup.is_in() => Err(usb::Error::Timeout),
            _ => Ok(()),
        }
    }

    fn answer(&mut self, bytes: &mut [u8], len: usize) -> Result<usize, usb::Error> {
        if let Some(value) = self.take(Kind::Reads) {
            bytes.iter_mut().zip(value.to_le_bytes()).for_each(|(byte, value)| *byte = value);
            return Ok(len);
        }
        if self.take(Kind::Short).is_some() {
            return Ok(len / 2);
        }
        match self.next() {
            Some(0xff) => Err(usb::Error::Stall),
            Some(0xfe) => Ok(len / 2),
            Some(0xfd) => {
                for byte in &mut bytes[..len] {
                    *byte = self.next().unwrap_or(0);
                }
                Ok(len)
            }
            _ => Ok(len),
        }
    }

    fn submit(&mut self, _transfer: &Transfer<Lent>) -> Result<(), usb::Error> {
        let is_refused = self.refused > 0;
        self.refused = self.refused.saturating_sub(1);
        if is_refused { Err(usb::Error::Memory) } else { Ok(()) }
    }
}

/// Checks that the error of a step can be shown.
fn note(done: Result<(), Error>) {
    if let Err(error) = done {
        assert!(!error.to_string().is_empty(), "{error:?}");
    }
}

/// Tests a driver whose device answers register requests with arbitrary bytes or errors: the driver refuses the device
/// or works with it, and ends in bounded time.
pub fn registers(data: &[u8]) {
    bounded(data.len(), FREE, || {
        let (answers, plan) = Plan::of(data);
        let refused = if plan.steps & 64 != 0 { 3 } else { 0 };
        // Nothing is wrong with this device until it runs.
        let is_right = plan.entries.is_empty() && answers.iter().all(|byte| *byte < 0xfd);
        let (bytes, entries) = (answers.to_vec(), plan.entries.clone());
        let answers = Answers { bytes, at: 0, entries, register: 0, passes: false, refused };
        let usb = Meddled::new(local(plan.chip()), answers);
        plan.prepare(&usb);
        let mut driver = match Driver::open(usb, plan.config()) {
            Ok(driver) => driver,
            Err(error) => {
                assert!(!is_right, "{error}");
                return note(Err(error));
            }
        };
        let seen = Rc::new(Cell::new(LinkState::default()));
        let listener = Rc::clone(&seen);
        driver.on_link(Box::new(move |link| listener.set(*link)));
        let started = driver.up();
        note(started);
        assert!(started.is_ok() || !is_right, "{started:?}");
        if started.is_ok() {
            assert_eq!(driver.up(), Ok(()), "a driver that is up");
        }
        for (bit, fault) in FAULTS {
            if plan.faults & bit != 0 {
                driver.usb().local.borrow_mut().model.inject(fault);
            }
        }
        let (mut rx, mut tx) = (RxBatch::new(PAGES), TxBatch::new());
        for turn in 0..10 {
            if turn % 7 == 3 && plan.steps & 32 == 0 {
                driver.usb().local.borrow_mut().model.set_partner(None);
            }
            if turn == 5 && plan.faults & 64 != 0 {
                driver.usb().local.borrow_mut().model.set_partner(Some(plan.partner()));
            }
            plan.arrive(turn, &mut driver.usb().local.borrow_mut().model);
            driver.usb().sleep(if plan.steps & 128 != 0 { 1_000_000_000 } else { 30_000_000 });
            let _ = driver.receive(&mut rx, 64);
            rx.packets.clear();
            if plan.steps & 16 != 0 {
                if tx.len() < 4 && rx.pages.in_use() < PAGES {
                    let packet = load(&mut rx, &datagram(true, turn, 100), Csum::Unknown);
                    let _ = tx.push(packet, driver.limits());
                }
                let _ = driver.transmit(&mut tx);
                tx.recycle(&mut rx.pool);
            }
        }
        note(driver.read_statistics());
        note(driver.set_mac([2, 0, 0, 0, 0, 1]));
        note(driver.set_mtu(1500));
        if plan.steps & 4 != 0 {
            let packet = plan.speed().max_packet();
            for mtu in [0, MIN_MTU - 1, MIN_MTU, 8 * packet - 18, MAX_MTU, MAX_MTU + 1] {
                let done = driver.set_mtu(mtu);
                let is_wrong = !(MIN_MTU..=MAX_MTU).contains(&mtu) || is_awkward_mtu(mtu, packet);
                assert!(!is_wrong || matches!(done, Err(Error::Setting(_))), "MTU {mtu}: {done:?}");
                note(done);
            }
        }
        if plan.steps & 1 != 0 {
            note(driver.suspend());
            if plan.steps & 2 != 0 {
                driver.usb().local.borrow_mut().model.replug();
            }
            note(driver.resume());
            for _ in 0..3 {
                driver.usb().sleep(30_000_000);
                let _ = driver.receive(&mut rx, 64);
                rx.packets.clear();
            }
        }
        note(driver.down());
        assert_eq!((driver.link(), seen.get()), (LinkState::default(), LinkState::default()), "it is down");
        assert_eq!(driver.down(), Ok(()), "a driver that is down");
    });
}
