//! State of the chip's model.

use std::collections::VecDeque;

use segue::time::Nanos;

use crate::regs;

use super::config::Config;
use super::faults::{Defects, Fault};
use super::fifo::{BulkIn, BulkOut};
use super::mac_state::Mac;
use super::memory::Memory;
use super::notes::Notes;
use super::phy::{LinkSpeed, Partner, Phy};
use super::transfer::Completion;

/// Number of registers of four bytes up to the end of the OTP block.
pub(super) const WORDS: usize = 0x1100 / 4;

/// The model of one chip; see the [module](super).
#[derive(Debug)]
pub struct Model {
    pub(super) config: Config,
    pub(super) defects: Defects,
    pub(super) faults: VecDeque<Fault>,
    pub(super) stuck: Vec<(u16, u32, u32)>,
    pub(super) now: Nanos,
    pub(super) gone: bool,
    pub(super) configured: bool,
    pub(super) words: Box<[u32; WORDS]>,
    /// The register accesses by control requests, in order, while tracing is on.
    pub(super) trace: Option<Vec<Access>>,
    pub(super) table: [u32; regs::dp::VLAN_WORDS + regs::dp::HASH_WORDS],
    pub(super) memory: Memory,
    pub(super) phy: Phy,
    pub(super) phy_line: bool,
    pub(super) statistics: [u32; regs::STATISTICS.len()],
    pub(super) notes: Notes,
    /// Interrupts that were reported and are not cleared yet.
    pub(super) reported: u32,
    pub(super) interrupts: VecDeque<u32>,
    pub(super) interrupt_halted: bool,
    pub(super) next_interrupt: Nanos,
    pub(super) bulk_in: BulkIn,
    pub(super) bulk_out: BulkOut,
    pub(super) mac: Mac,
    pub(super) completions: VecDeque<Completion>,
}

/// An access of the host to registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read of the register with this address.
    Read(u16),
    /// A write of the register with this address, with the value.
    Write(u16, u32),
    /// A read of all statistics.
    Statistics,
}

impl Model {
    /// Creates a chip that was just plugged in.
    pub fn new(config: Config) -> Model {
        let now = Nanos(0);
        let mut model = Model {
            config,
            defects: Defects::default(),
            faults: VecDeque::new(),
            stuck: Vec::new(),
            now,
            gone: false,
            configured: false,
            words: Box::new([0; WORDS]),
            trace: None,
            table: [0; regs::dp::VLAN_WORDS + regs::dp::HASH_WORDS],
            memory: Memory::new(&config),
            phy: Phy::new(config.partner, config.negotiation, now),
            phy_line: false,
            statistics: [0; regs::STATISTICS.len()],
            notes: Notes::default(),
            reported: 0,
            interrupts: VecDeque::new(),
            interrupt_halted: false,
            next_interrupt: now,
            bulk_in: BulkIn::default(),
            bulk_out: BulkOut::default(),
            mac: Mac::default(),
            completions: VecDeque::new(),
        };
        model.reset_registers();
        model
    }

    /// Returns the model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the model's own counters.
    pub fn notes(&self) -> Notes {
        self.notes
    }

    /// Returns the chip's counters.
    pub fn statistics(&self) -> [u32; regs::STATISTICS.len()] {
        self.statistics
    }

    /// Sets a counter of the chip, for example to a value about to wrap.
    pub fn set_statistic(&mut self, place: usize, value: u32) {
        if let (Some(counter), Some(kind)) = (self.statistics.get_mut(place), regs::STATISTICS.get(place)) {
            *counter = value & kind.max;
        }
    }

    /// Returns the link's speed, or `None` while the link is down.
    pub fn link(&self) -> Option<LinkSpeed> {
        self.phy.link()
    }

    /// Starts recording the register accesses of control requests.
    pub fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// Returns the register accesses since tracing began or since the last call.
    pub fn take_trace(&mut self) -> Vec<Access> {
        self.trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns a register's value without the side effects of a read.
    pub fn register(&self, address: u16) -> u32 {
        self.words.get(usize::from(address) / 4).copied().unwrap_or(0)
    }

    /// Connects a link partner, or disconnects the cable.
    pub fn set_partner(&mut self, partner: Option<Partner>) {
        self.phy.set_partner(partner, self.now);
    }

    /// Sets the permanent defects of this chip.
    pub fn set_defects(&mut self, defects: Defects) {
        self.defects = defects;
    }
}
