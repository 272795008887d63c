//! The state of the chip.

use std::collections::VecDeque;

use segue::time::Nanos;

use crate::regs;

use super::config::Config;
use super::faults::{Fault, Lies};
use super::fifo::{BulkIn, BulkOut};
use super::mac_state::Mac;
use super::memory::Memory;
use super::notes::Notes;
use super::phy::{LinkSpeed, Partner, Phy};
use super::transfer::Completion;

/// Words up to the end of the OTP block.
pub(super) const WORDS: usize = 0x1100 / 4;

/// The chip; see the module.
#[derive(Debug)]
pub struct Model {
    pub(super) config: Config,
    pub(super) lies: Lies,
    pub(super) faults: VecDeque<Fault>,
    pub(super) stuck: Vec<(u16, u32, u32)>,
    pub(super) now: Nanos,
    pub(super) gone: bool,
    pub(super) configured: bool,
    pub(super) words: Box<[u32; WORDS]>,
    /// What control requests touched, in order, where it is asked for.
    pub(super) trace: Option<Vec<Access>>,
    pub(super) table: [u32; regs::dp::VLAN_WORDS + regs::dp::HASH_WORDS],
    pub(super) memory: Memory,
    pub(super) phy: Phy,
    pub(super) phy_line: bool,
    pub(super) statistics: [u32; regs::STATISTICS.len()],
    pub(super) notes: Notes,
    /// Interrupts that were reported and not cleared since.
    pub(super) reported: u32,
    pub(super) interrupts: VecDeque<u32>,
    pub(super) interrupt_halted: bool,
    pub(super) next_interrupt: Nanos,
    pub(super) bulk_in: BulkIn,
    pub(super) bulk_out: BulkOut,
    pub(super) mac: Mac,
    pub(super) completions: VecDeque<Completion>,
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
}
