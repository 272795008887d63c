//! Support for the driver's tests: a model in this process with a clock that only the test moves, and frames.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use segue::packet::{Csum, Frag, Gso, GsoKind, Packet, Start, TrainCsum, Tunnels, Unit};
use segue_lan78xx::driver::{Config, Driver};
use segue_lan78xx::model::{self, Model};
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::{self, Done, Lent, Setup, Speed, Transfer, Transport};
use segue_port::{Page, Port, RxBatch, Sent, TxBatch};
use segue_testkit::build::{Ethernet, Ip, L4, Tcp, V4, V6};
use segue_testkit::flow::Sender;

pub const MAC: [u8; 6] = [0x02, 0x78, 0, 0, 0, 1];
pub const PEER: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
pub const SPEEDS: [Speed; 3] = [Speed::Full, Speed::High, Speed::Super];

pub fn chip(speed: Speed) -> model::Config {
    model::Config { speed, ..model::Config::default() }
}

pub fn local(config: model::Config) -> Local {
    Local::new(Model::new(config), None, Clock::Still(segue::time::Nanos(1)))
}

/// Returns both forms of the driver.
pub fn modes(speed: Speed) -> [(&'static str, Config); 2] {
    [("napi", Config::napi(speed)), ("standard", Config::standard(speed))]
}

/// A driver whose link is up, and the batch that it receives into.
pub struct Rig {
    pub driver: Driver<Local>,
    pub rx: RxBatch,
    pub tx: TxBatch,
}

impl Rig {
    pub fn new(speed: Speed, config: Config) -> Rig {
        Rig::of(chip(speed), config)
    }

    pub fn of(chip: model::Config, config: Config) -> Rig {
        let driver = Driver::open(local(chip), config).unwrap();
        let mut rig = Rig { driver, rx: RxBatch::new(256), tx: TxBatch::new() };
        rig.driver.up().unwrap();
        rig.until(|rig| rig.driver.link().up);
        rig
    }

    pub fn model(&mut self) -> &mut Model {
        &mut self.driver.usb().model
    }

    /// Waits for a tenth of a millisecond and polls once.
    pub fn step(&mut self) {
        use segue_lan78xx::usb::Transport;
        self.driver.usb().sleep(100_000);
        self.driver.receive(&mut self.rx, 64).unwrap();
    }

    #[track_caller]
    pub fn until(&mut self, done: impl Fn(&mut Rig) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("it never came: {:?} {:?}", self.driver.link(), self.driver.numbers());
    }

    /// Returns the packets received in the next two milliseconds.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        self.packets().iter().map(|packet| bytes(packet)).collect()
    }

    #[expect(clippy::vec_box, reason = "the boxes go back to their pool")]
    pub fn packets(&mut self) -> Vec<Box<Packet<Page>>> {
        for _ in 0..20 {
            self.step();
        }
        std::iter::from_fn(|| self.rx.pop_packet()).collect()
    }

    /// Sends a packet with the given offload state.
    #[track_caller]
    pub fn send(&mut self, packet: Box<Packet<Page>>) -> Sent {
        self.tx.push(packet, self.driver.limits()).map_err(|(_, why)| why).unwrap();
        self.flush()
    }

    pub fn flush(&mut self) -> Sent {
        let sent = self.driver.transmit(&mut self.tx).unwrap();
        self.tx.recycle(&mut self.rx.pool);
        sent
    }

    /// Returns the frames that have reached the partner after a while.
    pub fn arrived(&mut self) -> Vec<Vec<u8>> {
        for _ in 0..20 {
            self.step();
            self.flush();
        }
        let mut frames = Vec::new();
        while let Some(frame) = self.model().transmit() {
            frames.push(frame);
        }
        frames
    }

    /// Makes a packet of a frame.
    pub fn packet(&mut self, frame: &[u8], csum: Csum) -> Box<Packet<Page>> {
        load(&mut self.rx, frame, csum)
    }

    /// Makes a TCP train of a frame whose checksum field is primed.
    pub fn train(&mut self, frame: &[u8], size: u16) -> Box<Packet<Page>> {
        let mut packet = self.packet(frame, Csum::Partial);
        packet.offload.unit =
            Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind: GsoKind::Tcp, size, fixed_ids: 0 } };
        packet
    }
}

/// Makes a packet of a frame, in the pages and boxes of a batch.
pub fn load(rx: &mut RxBatch, frame: &[u8], csum: Csum) -> Box<Packet<Page>> {
    let mut page = rx.pages.take().unwrap();
    page.bytes_mut()[..frame.len()].copy_from_slice(frame);
    let mut packet = rx.pool.take();
    packet.load(Frag::all(page.freeze(frame.len())), Start::Ethernet, &Tunnels::NONE);
    packet.offload.unit = Unit::Whole(csum);
    packet
}

pub fn bytes(packet: &Packet<Page>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    packet.payload.frags().iter().for_each(|frag| bytes.extend_from_slice(frag.bytes()));
    bytes
}

pub fn ethernet(tags: &[(u16, u16)]) -> Ethernet {
    Ethernet { dst: MAC, src: PEER, tags: tags.to_vec() }
}

pub fn ip(v4: bool) -> Ip {
    if v4 { Ip::V4(V4::new(1, 1, 2)) } else { Ip::V6(V6::new(1, 1, 2)) }
}

/// Builds a UDP datagram to the adapter with `number` in its payload.
pub fn datagram(v4: bool, number: u16, len: usize) -> Vec<u8> {
    let mut packet = Sender::udp(ip(v4), number).send(len, 0);
    let count = packet.data.len().min(2);
    packet.data[..count].copy_from_slice(&number.to_be_bytes()[..count]);
    ethernet(&[]).wrap(&packet.bytes())
}

/// Builds a TCP segment of `len` bytes.
pub fn segment(v4: bool, len: usize, flags: u8) -> Vec<u8> {
    let mut packet = Sender::tcp(ip(v4), 1, 0xffff_ff00, Tcp::timestamps(1, 2)).send(len, flags);
    if let (Ip::V4(ip), L4::Tcp(_)) = (&mut packet.ip, &packet.l4) {
        ip.id = 0xfffe;
    }
    ethernet(&[]).wrap(&packet.bytes())
}

/// Builds a TCP segment whose checksum field is primed.
pub fn primed(frame: &[u8]) -> Vec<u8> {
    let l3 = frame.len() - frame[14..].len();
    [&frame[..l3], &segue_testkit::build::prime(&frame[l3..]).unwrap()].concat()
}

/// Returns a frame without Ethernet padding and FCS: its Ethernet header and the IP packet.
pub fn unpadded(frame: &[u8]) -> Vec<u8> {
    let len = match frame[14] >> 4 {
        4 => usize::from(u16::from_be_bytes([frame[16], frame[17]])),
        _ => 40 + usize::from(u16::from_be_bytes([frame[18], frame[19]])),
    };
    frame[..14 + len].to_vec()
}

/// Hooks that change a device's answers.
pub trait Meddler {
    /// Hook that runs before a control request.
    fn before(&mut self, model: &mut Model, setup: Setup) -> Result<(), usb::Error> {
        let _ = (model, setup);
        Ok(())
    }
    /// Receives the answer to a control request; returns its length.
    fn answer(&mut self, bytes: &mut [u8], len: usize) -> Result<usize, usb::Error> {
        let _ = bytes;
        Ok(len)
    }
    /// Returns the number of nanoseconds that a control request takes.
    fn delay(&self) -> u64 {
        0
    }
    /// Returns whether the device keeps a transfer that has completed.
    fn keeps(&mut self, transfer: &Transfer<Done>) -> bool {
        let _ = transfer;
        false
    }
    /// Returns the number of nanoseconds that the submission of a transfer takes.
    fn submission(&self) -> u64 {
        0
    }
    /// Returns whether the device answers a transfer before its submission ends.
    fn answers(&mut self, transfer: &Transfer<Lent>) -> bool {
        let _ = transfer;
        false
    }
    /// Receives a transfer that is to be submitted.
    fn submit(&mut self, transfer: &Transfer<Lent>) -> Result<(), usb::Error> {
        let _ = transfer;
        Ok(())
    }
}

impl Meddler for () {}

/// A model that the test can access, with hooks between the model and the driver.
pub struct Meddled<M> {
    pub local: Rc<RefCell<Local>>,
    pub meddler: M,
    /// Transfers that were refused or answered without the model.
    returned: Vec<Transfer<Done>>,
}

impl<M> Meddled<M> {
    pub fn new(local: Local, meddler: M) -> Meddled<M> {
        Meddled { local: Rc::new(RefCell::new(local)), meddler, returned: Vec::new() }
    }
}

impl<M: Meddler> Transport for Meddled<M> {
    fn identity(&self) -> (u16, u16) {
        self.local.borrow().identity()
    }

    fn speed(&self) -> Speed {
        self.local.borrow().speed()
    }

    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, usb::Error> {
        let mut local = self.local.borrow_mut();
        local.sleep(self.meddler.delay());
        self.meddler.before(&mut local.model, setup)?;
        let len = local.control_in(setup, into)?;
        self.meddler.answer(into, len)
    }

    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), usb::Error> {
        let mut local = self.local.borrow_mut();
        local.sleep(self.meddler.delay());
        self.meddler.before(&mut local.model, setup)?;
        local.control_out(setup, data)
    }

    fn submit(&mut self, transfer: Transfer<Lent>) {
        let took = self.meddler.submission();
        if took > 0 {
            self.local.borrow_mut().sleep(took);
        }
        match self.meddler.submit(&transfer) {
            Ok(()) if self.meddler.answers(&transfer) => {
                let len = transfer.request().len;
                self.returned.push(transfer.complete(Ok(len)));
            }
            Ok(()) => self.local.borrow_mut().submit(transfer),
            Err(error) => self.returned.push(transfer.complete(Err(error))),
        }
    }

    fn reap(&mut self) -> Option<Transfer<Done>> {
        if let Some(returned) = self.returned.pop() {
            return Some(returned);
        }
        let Meddled { local, meddler, .. } = self;
        std::iter::from_fn(|| local.borrow_mut().reap()).find(|done| !meddler.keeps(done))
    }

    fn cancel(&mut self, endpoint: u8) {
        self.local.borrow_mut().cancel(endpoint);
    }

    fn clear_halt(&mut self, endpoint: u8) -> Result<(), usb::Error> {
        self.local.borrow_mut().clear_halt(endpoint)
    }

    fn is_gone(&self) -> bool {
        self.local.borrow().is_gone()
    }

    fn now(&self) -> segue::time::Nanos {
        self.local.borrow().now()
    }

    fn sleep(&mut self, nanos: u64) {
        self.local.borrow_mut().sleep(nanos);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn deadline(&self) -> Option<segue::time::Nanos> {
        self.local.borrow().deadline()
    }
}
