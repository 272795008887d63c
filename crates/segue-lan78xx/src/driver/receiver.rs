//! Transfers of the receive side, and received packets that were not delivered yet.

use std::collections::VecDeque;

use segue_port::Received;

use crate::frame::rx::{ChecksumErrors, Frames};
use crate::usb::{Done, Idle, Transfer};

use super::{Config, Error};

#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) total: usize,
    pub(super) idle: Vec<Transfer<Idle>>,
    pub(super) done: VecDeque<Transfer<Done>>,
    /// Frames taken out of a transfer by an earlier poll beyond its budget.
    pub(super) overflow: VecDeque<Received>,
    pub(super) lent: usize,
    pub(super) halted: bool,
    /// Number of attempts to clear a halt since a transfer has succeeded.
    pub(super) clears: u32,
    pub(super) next_tag: u32,
}

impl Receiver {
    pub(super) fn new(config: &Config) -> Result<Receiver, Error> {
        let mut idle = Vec::new();
        for _ in 0..config.rx_transfers {
            idle.push(Transfer::allocate(config.rx_transfer_len)?);
        }
        let total = config.rx_transfers;
        let (done, overflow) = (VecDeque::new(), VecDeque::new());
        Ok(Receiver { total, idle, done, overflow, lent: 0, halted: false, clears: 0, next_tag: 0 })
    }

    /// Returns whether no transfer is lent to the chip.
    pub(super) fn is_home(&self) -> bool {
        self.lent == 0
    }

    /// Drops received frames that were not delivered yet, and returns their number.
    pub(super) fn forget(&mut self, errors: ChecksumErrors) -> u64 {
        let count = |transfer: &Transfer<Done>| Frames::new(transfer.received(), errors).flatten().count();
        let dropped = self.overflow.len() + self.done.iter().map(count).sum::<usize>();
        self.overflow.clear();
        self.idle.extend(self.done.drain(..).map(Transfer::recycle));
        self.idle.truncate(self.total);
        self.halted = false;
        dropped as u64
    }

    pub(super) fn waiting(&self) -> bool {
        !self.overflow.is_empty() || !self.done.is_empty()
    }
}
