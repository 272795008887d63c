//! A LAN78xx that is made of software: what the chip shows at its USB side and at its cable.
//!
//! The model does no I/O and reads no clock. At the USB side it takes control requests ([`Model::control`]) and transfers
//! ([`Model::submit`], [`Model::cancel`]) and gives completions ([`Model::done`]); at the cable it takes frames from the
//! link partner ([`Model::receive`]) and gives frames ([`Model::transmit`]), both without FCS. [`Model::advance`] moves
//! everything along, and [`Model::deadline`] says when to do so at the latest.
//!
//! It is written from what drivers of two kernels rely on, and the unmodified Linux driver works with it; it was never
//! compared with silicon. What it does where neither driver settles the matter:
//! - a frame that does not fit the rest of a bulk-in transfer goes whole into the next one; one that is longer than the burst
//!   cap is dropped, and one that is longer than the host's transfer is lost with it: the transfer ends with an overflow, as
//!   that of a host whose device sends more than was asked for (both [`Notes::unfit`]);
//! - a bulk-out transfer may end inside a frame only where the next one goes on with it; a short packet in the middle of a
//!   frame, a command with reserved bits or without length is a loss of sync: the rest is dropped, INT_STS.TXE is set, and
//!   the endpoint is halted unless USB_CFG0 bit 0 forbids it;
//! - segmentation counts the IPv4 identification up by one for each segment;
//! - the checksum field of a frame whose tag was not taken out is worth nothing, as drivers know;
//! - the partner obeys pause frames and holds at most [`Config::partner_queue`] frames meanwhile.
//!
//! A soft reset (HW_CFG.SRST) resets all registers, but the device stays on the bus.

mod bulk;
pub mod descriptors;
mod faults;
mod mac;
mod memory;
mod offload;
mod phy;
mod registers;

use std::collections::VecDeque;

use segue::time::Nanos;

pub use faults::{Fault, Lies};
pub use phy::{LinkSpeed, Partner};

use crate::regs::{self, Chip, endpoint, request};
use crate::usb::{Error, Setup, Speed};

/// Where a driver can find the adapter's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// In the address registers, where firmware left it.
    Register,
    /// In an EEPROM.
    Eeprom,
    /// In the OTP memory, image at 0.
    OtpLow,
    /// In the OTP memory, image at 0x100.
    OtpHigh,
    /// Nowhere.
    None,
}

/// What kind of chip, and what it is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The chip.
    pub chip: Chip,
    /// The bus.
    pub speed: Speed,
    /// The address.
    pub mac: [u8; 6],
    /// Where it is.
    pub identity: Identity,
    /// The other end of the cable; `None` where there is no cable.
    pub partner: Option<Partner>,
    /// How long negotiation takes, nanoseconds.
    pub negotiation: u64,
    /// Whether frames take as long as they do on a wire of the link's speed. Otherwise they take no time.
    pub paced: bool,
    /// Most frames that the partner holds while it is paused or the wire is busy; what comes on top is lost.
    pub partner_queue: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            chip: Chip::Lan7800,
            speed: Speed::Super,
            mac: [0x02, 0x78, 0x00, 0x00, 0x00, 0x01],
            identity: Identity::Register,
            partner: Some(Partner { speed: LinkSpeed::M1000, pause: true }),
            negotiation: 50_000_000,
            paced: false,
            partner_queue: 1024,
        }
    }
}

/// What the chip has no counters for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Control requests answered.
    pub controls: u64,
    /// Bulk-in transfers given back.
    pub bulk_in: u64,
    /// Frames in them.
    pub bulk_in_frames: u64,
    /// Bytes of these frames, with their FCS where it was left on them.
    pub bulk_in_bytes: u64,
    /// Bulk-out transfers taken.
    pub bulk_out: u64,
    /// Frames in them.
    pub bulk_out_frames: u64,
    /// Bytes of these frames.
    pub bulk_out_bytes: u64,
    /// Frames that they became: several of one with segmentation.
    pub bulk_out_segments: u64,
    /// Frames with segmentation among those.
    pub lso_frames: u64,
    /// Bytes of the largest of them.
    pub lso_largest: u64,
    /// Frames with a VLAN tag to be put in.
    pub tags_inserted: u64,
    /// Frames with a checksum to be computed, those with segmentation included.
    pub csum_frames: u64,
    /// Losses of sync on bulk-out.
    pub lost_sync: u64,
    /// Bulk-out transfers that ended with a full packet and without a zero-length one.
    pub unterminated: u64,
    /// Received frames longer than the burst cap, or than the transfer that was there for them.
    pub unfit: u64,
    /// Frames with segmentation that were no TCP.
    pub bad_lso: u64,
    /// Frames from the host that said that they have their FCS, and it was wrong.
    pub bad_fcs: u64,
    /// Frames from the host while there was no link, or one of another speed than the MAC's.
    pub no_link: u64,
    /// Frames from the host that were lost because too many were on the wire already.
    pub wire_full: u64,
    /// Received frames that the filters kept out.
    pub filtered: u64,
    /// Frames that came while there was no device, no link or no receiver switched on.
    pub unheard: u64,
    /// Received frames longer than the MAC was told to take.
    pub too_long: u64,
    /// Received frames for which the FIFO had no room.
    pub fifo_full: u64,
    /// Frames lost by the partner because too many waited.
    pub partner_lost: u64,
    /// Received frames that were in the chip when its FIFO or all of it was reset, or when it was unplugged.
    pub flushed: u64,
    /// Received frames in transfers that were done, and whose host was not there any more.
    pub unclaimed: u64,
    /// Frames from the host that were still on their way out when the chip was unplugged.
    pub cut_off: u64,
    /// Frames from the host that are longer than the transmit FIFO, in which the chip has to have them as a whole.
    pub too_big: u64,
    /// Pause frames sent to the partner, those that end a pause included.
    pub pauses_sent: u64,
    /// Interrupt packets sent.
    pub interrupts: u64,
}

/// A transfer that is to be done.
#[derive(Debug)]
pub enum Wish {
    /// Receive at most so many bytes.
    In(usize),
    /// Send these, with a zero-length packet behind them or not.
    Out(Vec<u8>, bool),
}

/// A transfer that is done.
#[derive(Debug)]
pub struct Completion {
    /// Its number.
    pub id: u32,
    /// What was received, or how much was sent; or why not.
    pub result: Result<Outcome, Error>,
    /// Frames in what was received.
    pub frames: u64,
}

/// What a transfer did.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It received these.
    Received(Vec<u8>),
    /// It sent so many bytes.
    Sent(usize),
}

/// The chip; see the module.
#[derive(Debug)]
pub struct Model {
    config: Config,
    lies: Lies,
    faults: VecDeque<Fault>,
    stuck: Vec<(u16, u32, u32)>,
    now: Nanos,
    gone: bool,
    configured: bool,
    words: Box<[u32; registers::WORDS]>,
    /// What control requests touched, in order, where it is asked for.
    trace: Option<Vec<Access>>,
    table: [u32; regs::dp::VLAN_WORDS + regs::dp::HASH_WORDS],
    memory: memory::Memory,
    phy: phy::Phy,
    phy_line: bool,
    statistics: [u32; regs::STATISTICS.len()],
    notes: Notes,
    /// Interrupts that were reported and not cleared since.
    reported: u32,
    interrupts: VecDeque<u32>,
    interrupt_halted: bool,
    next_interrupt: Nanos,
    bulk_in: bulk::In,
    bulk_out: bulk::Out,
    mac: mac::Mac,
    completions: VecDeque<Completion>,
}

/// One access to a register by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read(u16),
    /// Written with this.
    Write(u16, u32),
    /// All statistics.
    Statistics,
}

impl Model {
    /// A chip that was just plugged in.
    pub fn new(config: Config) -> Model {
        let now = Nanos(0);
        let mut model = Model {
            config,
            lies: Lies::default(),
            faults: VecDeque::new(),
            stuck: Vec::new(),
            now,
            gone: false,
            configured: false,
            words: Box::new([0; registers::WORDS]),
            trace: None,
            table: [0; regs::dp::VLAN_WORDS + regs::dp::HASH_WORDS],
            memory: memory::Memory::new(&config),
            phy: phy::Phy::new(config.partner, config.negotiation, now),
            phy_line: false,
            statistics: [0; regs::STATISTICS.len()],
            notes: Notes::default(),
            reported: 0,
            interrupts: VecDeque::new(),
            interrupt_halted: false,
            next_interrupt: now,
            bulk_in: bulk::In::default(),
            bulk_out: bulk::Out::default(),
            mac: mac::Mac::default(),
            completions: VecDeque::new(),
        };
        model.reset_registers();
        model
    }

    /// What it is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What happened so far.
    pub fn notes(&self) -> Notes {
        self.notes
    }

    /// The chip's counters.
    pub fn statistics(&self) -> [u32; regs::STATISTICS.len()] {
        self.statistics
    }

    /// Sets a counter, such as one that is about to wrap.
    pub fn set_statistic(&mut self, place: usize, value: u32) {
        if let (Some(counter), Some(kind)) = (self.statistics.get_mut(place), regs::STATISTICS.get(place)) {
            *counter = value & kind.max;
        }
    }

    /// The link, once it is up.
    pub fn link(&self) -> Option<LinkSpeed> {
        self.phy.link()
    }

    /// Remembers what control requests touch from here on.
    pub fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// What was touched since the last call.
    pub fn take_trace(&mut self) -> Vec<Access> {
        self.trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A register as it is, without what reading it would do.
    pub fn register(&self, address: u16) -> u32 {
        self.words.get(usize::from(address) / 4).copied().unwrap_or(0)
    }

    /// Puts the cable in, or takes it out.
    pub fn set_partner(&mut self, partner: Option<Partner>) {
        self.phy.set_partner(partner, self.now);
    }

    /// What is wrong with this chip for good.
    pub fn set_lies(&mut self, lies: Lies) {
        self.lies = lies;
    }

    /// Answers a control request; `data` is what the host sends.
    ///
    /// # Errors
    /// [`Error::Stall`] for what the chip does not know, [`Error::Gone`] once it was unplugged.
    pub fn control(&mut self, setup: Setup, data: &[u8]) -> Result<Vec<u8>, Error> {
        if self.gone {
            return Err(Error::Gone);
        }
        self.notes.controls += 1;
        if self.take_fault(|fault| matches!(fault, Fault::ControlStall)).is_some() {
            return Err(Error::Stall);
        }
        let length = usize::from(setup.length);
        let mut answer = match (setup.request_type, setup.request) {
            (request::IN, request::READ_REGISTER) if length == 4 => {
                self.note_access(Access::Read(setup.index));
                self.read_register(setup.index).to_le_bytes().to_vec()
            }
            (request::OUT, request::WRITE_REGISTER) if length == 4 && data.len() == 4 => {
                let value = u32::from_le_bytes([data[0], data[1], data[2], data[3]]);
                self.note_access(Access::Write(setup.index, value));
                self.write_register(setup.index, value);
                Vec::new()
            }
            (request::IN, request::READ_STATISTICS) => {
                self.note_access(Access::Statistics);
                self.statistics.iter().flat_map(|word| word.to_le_bytes()).collect()
            }
            _ => self.standard(setup)?,
        };
        answer.truncate(length);
        Ok(answer)
    }

    fn note_access(&mut self, access: Access) {
        // A driver makes some thousands; a host that never reads the trace must not fill memory.
        if let Some(trace) = self.trace.as_mut().filter(|trace| trace.len() < 1 << 20) {
            trace.push(access);
        }
    }

    /// Standard requests (USB 3.2, 9.4).
    fn standard(&mut self, setup: Setup) -> Result<Vec<u8>, Error> {
        const GET_STATUS: u8 = 0;
        const CLEAR_FEATURE: u8 = 1;
        const SET_FEATURE: u8 = 3;
        const SET_ADDRESS: u8 = 5;
        const GET_DESCRIPTOR: u8 = 6;
        const GET_CONFIGURATION: u8 = 8;
        const SET_CONFIGURATION: u8 = 9;
        const GET_INTERFACE: u8 = 10;
        const SET_INTERFACE: u8 = 11;
        const SET_SEL: u8 = 0x30;
        const SET_ISOCH_DELAY: u8 = 0x31;
        const ENDPOINT_HALT: u16 = 0;
        match (setup.request_type, setup.request) {
            (0x80, GET_DESCRIPTOR) => {
                descriptors::find(self.config.chip, self.config.speed, setup.value).ok_or(Error::Stall)
            }
            // Self powered.
            (0x80, GET_STATUS) => Ok(vec![1, 0]),
            (0x81, GET_STATUS) => Ok(vec![0, 0]),
            (0x82, GET_STATUS) => Ok(vec![u8::from(self.is_halted(setup.index)?), 0]),
            (0x80, GET_CONFIGURATION) => Ok(vec![u8::from(self.configured)]),
            (0x81, GET_INTERFACE) => Ok(vec![0]),
            (0x00, SET_CONFIGURATION) if setup.value <= 1 => {
                self.configured = setup.value == 1;
                self.clear_halts();
                Ok(Vec::new())
            }
            (0x01, SET_INTERFACE) if setup.value == 0 && setup.index == 0 => {
                self.clear_halts();
                Ok(Vec::new())
            }
            (0x02, CLEAR_FEATURE) if setup.value == ENDPOINT_HALT => {
                self.set_halted(setup.index, false)?;
                Ok(Vec::new())
            }
            (0x02, SET_FEATURE) if setup.value == ENDPOINT_HALT => {
                self.set_halted(setup.index, true)?;
                Ok(Vec::new())
            }
            (0x00..=0x02, CLEAR_FEATURE | SET_FEATURE) | (0x00, SET_ADDRESS | SET_SEL | SET_ISOCH_DELAY) => {
                Ok(Vec::new())
            }
            _ => Err(Error::Stall),
        }
    }

    fn clear_halts(&mut self) {
        (self.bulk_in.halted, self.bulk_out.halted, self.interrupt_halted) = (false, false, false);
    }

    /// Whether an endpoint is halted. The control endpoint never is (USB 2.0, 9.4.5), and one that is not there stalls the
    /// request.
    fn is_halted(&self, index: u16) -> Result<bool, Error> {
        match u8::try_from(index) {
            Ok(endpoint::BULK_IN) => Ok(self.bulk_in.halted),
            Ok(endpoint::BULK_OUT) => Ok(self.bulk_out.halted),
            Ok(endpoint::INTERRUPT) => Ok(self.interrupt_halted),
            Ok(0x00 | 0x80) => Ok(false),
            _ => Err(Error::Stall),
        }
    }

    fn set_halted(&mut self, index: u16, halted: bool) -> Result<(), Error> {
        match u8::try_from(index) {
            Ok(endpoint::BULK_IN) => self.bulk_in.halted = halted,
            Ok(endpoint::BULK_OUT) => {
                self.bulk_out.halted = halted;
                self.bulk_out.restart();
            }
            Ok(endpoint::INTERRUPT) => self.interrupt_halted = halted,
            Ok(0x00 | 0x80) => {}
            _ => return Err(Error::Stall),
        }
        Ok(())
    }

    /// A halted endpoint answers every transfer with a stall (USB 2.0, 8.4.5), also those that wait for it already.
    fn stall_halted(&mut self) {
        let mut ids = Vec::new();
        if self.bulk_in.halted {
            ids.extend(self.bulk_in.pending.drain(..).map(|(id, _)| id));
        }
        if self.bulk_out.halted {
            ids.extend(self.bulk_out.pending.drain(..).map(|(id, _, _)| id));
        }
        if self.interrupt_halted {
            ids.extend(self.interrupts.drain(..));
        }
        for id in ids {
            self.complete(id, Err(Error::Stall));
        }
    }

    /// Takes a transfer for an endpoint; `id` is any number that no pending transfer has.
    pub fn submit(&mut self, id: u32, address: u8, wish: Wish) {
        self.count_down();
        if self.gone {
            return self.complete(id, Err(Error::Gone));
        }
        match (address, wish) {
            (endpoint::BULK_IN, Wish::In(len)) => self.bulk_in.pending.push_back((id, len)),
            (endpoint::BULK_OUT, Wish::Out(data, zero)) => self.bulk_out.pending.push_back((id, data, zero)),
            (endpoint::INTERRUPT, Wish::In(_)) => self.interrupts.push_back(id),
            _ => self.complete(id, Err(Error::Protocol)),
        }
    }

    /// Takes a transfer back; `false` where it is not pending. It is not completed then.
    pub fn cancel(&mut self, id: u32) -> bool {
        let before = self.pending();
        self.bulk_in.cancel(id);
        self.bulk_out.pending.retain(|(pending, _, _)| *pending != id);
        self.interrupts.retain(|pending| *pending != id);
        self.pending() < before
    }

    /// Takes all transfers back, and those that are done and were not fetched, whose frames are lost.
    pub fn cancel_all(&mut self) {
        self.bulk_in.pending.clear();
        self.bulk_out.pending.clear();
        self.interrupts.clear();
        while let Some(done) = self.completions.pop_front() {
            self.lose(&done);
        }
    }

    /// Nobody takes what was done any more: its frames are lost.
    pub fn lose(&mut self, done: &Completion) {
        self.notes.unclaimed += done.frames;
    }

    /// Transfers that wait.
    pub fn pending(&self) -> usize {
        self.bulk_in.pending.len() + self.bulk_out.pending.len() + self.interrupts.len()
    }

    /// A transfer that is done.
    pub fn done(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn complete(&mut self, id: u32, result: Result<Outcome, Error>) {
        self.completions.push_back(Completion { id, result, frames: 0 });
    }

    /// Moves everything along. Time never goes back.
    pub fn advance(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        if self.gone {
            return;
        }
        let line = self.phy.advance(self.now);
        if line && !self.phy_line {
            self.raise(regs::int::PHY);
        }
        self.phy_line = line;
        self.follow_link();
        self.pump_out();
        self.pump_wire();
        self.pump_in();
        // What left the FIFO may have ended a pause.
        self.pump_wire();
        self.pump_in();
        self.pump_interrupt();
        self.stall_halted();
    }

    /// When [`Model::advance`] has something to do even if nothing comes.
    pub fn deadline(&self) -> Option<Nanos> {
        if self.gone {
            return None;
        }
        let interrupt = (!self.interrupts.is_empty() && self.news() != 0).then_some(self.next_interrupt);
        [self.phy.deadline(), self.in_deadline(), self.wire_deadline(), interrupt].into_iter().flatten().min()
    }

    /// Sets bits of the interrupt status.
    fn raise(&mut self, bits: u32) {
        self.words[usize::from(regs::INT_STS) / 4] |= bits;
    }

    /// Interrupts that are enabled and were not reported.
    fn news(&self) -> u32 {
        self.register(regs::INT_STS) & self.register(regs::INT_EP_CTL) & regs::int::EVENTS & !self.reported
    }

    /// Reports on the rising edge only, and at the endpoint's interval at most: nothing paces a host over a network.
    fn pump_interrupt(&mut self) {
        if self.news() == 0 || self.now < self.next_interrupt || self.interrupt_halted {
            return;
        }
        let Some(id) = self.interrupts.pop_front() else { return };
        let status = self.register(regs::INT_STS);
        self.reported |= self.news();
        let interval = if self.config.speed == Speed::Super { 4_000_000 } else { 1_000_000 };
        self.next_interrupt = self.now.after(interval);
        self.notes.interrupts += 1;
        let mut packet = status.to_le_bytes().to_vec();
        if let Some(Fault::InterruptLength(len)) = self.take_fault(|fault| matches!(fault, Fault::InterruptLength(_))) {
            packet.resize(len.min(16), 0);
        }
        self.complete(id, Ok(Outcome::Received(packet)));
    }

    /// Takes the device off the bus: everything pending ends, and nothing is answered any more.
    pub fn unplug(&mut self) {
        self.gone = true;
        self.notes.flushed += self.bulk_in.flush();
        self.cut_cable();
        let ids: Vec<u32> = (self.bulk_in.pending.drain(..).map(|(id, _)| id))
            .chain(self.bulk_out.pending.drain(..).map(|(id, _, _)| id))
            .chain(self.interrupts.drain(..))
            .collect();
        for id in ids {
            self.complete(id, Err(Error::Gone));
        }
    }

    /// Puts it in again, fresh from power-on; the faults and the cable stay. One that is in is unplugged before.
    pub fn replug(&mut self) {
        if !self.gone {
            self.unplug();
        }
        let fresh = Model::new(self.config);
        let before = std::mem::replace(self, fresh);
        (self.lies, self.faults, self.now, self.notes) = (before.lies, before.faults, before.now, before.notes);
        self.completions = before.completions;
        self.mac.keep_arrived(before.mac);
        self.phy.set_partner(before.config.partner, self.now);
    }

    /// Whether it is off the bus.
    pub fn is_gone(&self) -> bool {
        self.gone
    }
}
