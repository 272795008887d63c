//! Transfers of the transmit side, and frames that wait for a transfer.

use segue::gso::Frames;
use segue::time::Nanos;

use crate::usb::{Idle, Transfer};

use super::{Config, Error, Numbers};

/// The bulk-out transfer that is being filled.
#[derive(Debug)]
pub(super) struct OpenTransfer {
    pub(super) memory: Transfer<Idle>,
    pub(super) len: usize,
    pub(super) frames: u32,
    /// Whether the transfer takes no further frame because it holds a train.
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) struct Transmitter {
    pub(super) total: usize,
    pub(super) idle: Vec<Transfer<Idle>>,
    pub(super) open: Option<OpenTransfer>,
    /// Tags of the transfers under way, and the number of frames in each.
    pub(super) lent: Vec<(u32, u32)>,
    pub(super) since: Option<Nanos>,
    /// Whether sending has timed out and no transfer has succeeded since.
    pub(super) timed_out: bool,
    pub(super) halted: bool,
    /// Number of attempts to clear a halt since a transfer has succeeded.
    pub(super) clears: u32,
    pub(super) next_tag: u32,
    /// Buffer for a unit in one piece, to be processed in software.
    pub(super) scratch: Vec<u8>,
    pub(super) cut: Frames,
    /// Index in `cut` of the first frame without room.
    pub(super) left: usize,
    /// Whether an allocation failed and no transfer is under way whose completion would trigger a retry.
    pub(super) starved: bool,
}

impl Transmitter {
    pub(super) fn new(config: &Config) -> Result<Transmitter, Error> {
        let mut idle = Vec::new();
        if !config.tx_fresh {
            for _ in 0..config.tx_transfers {
                idle.push(Transfer::allocate(config.tx_transfer_len)?);
            }
        }
        Ok(Transmitter {
            total: config.tx_transfers,
            idle,
            open: None,
            lent: Vec::new(),
            since: None,
            timed_out: false,
            halted: false,
            clears: 0,
            next_tag: 0,
            scratch: Vec::new(),
            cut: Frames::default(),
            left: 0,
            starved: false,
        })
    }

    pub(super) fn is_home(&self) -> bool {
        self.lent.is_empty()
    }

    /// Discards the transfers under way; returns their number of frames.
    pub(super) fn forget(&mut self) -> u64 {
        self.lent.drain(..).map(|(_, frames)| u64::from(frames)).sum()
    }

    /// Returns the time since which no transfer under way has completed.
    pub(super) fn stuck_since(&self, _now: Nanos) -> Option<Nanos> {
        self.since.filter(|_| !self.lent.is_empty())
    }

    /// Restarts the timeout of sending when it has passed; returns whether it has passed before and no transfer has
    /// succeeded since.
    pub(super) fn time_out(&mut self, now: Nanos) -> bool {
        self.since = Some(now);
        std::mem::replace(&mut self.timed_out, true)
    }

    pub(super) fn is_starved(&self) -> bool {
        self.starved
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.stuck_since(Nanos(0))
    }

    /// Drops the frames in an unsent transfer, and those of a train that have no room in it.
    pub(super) fn drop_unsent(&mut self, numbers: &mut Numbers) {
        numbers.tx_errors += self.cut.frames().len().saturating_sub(self.left) as u64;
        self.cut.clear();
        self.left = 0;
        if let Some(open) = self.open.take() {
            numbers.tx_errors += u64::from(open.frames);
            self.idle.push(open.memory);
        }
        self.idle.truncate(self.total);
    }

    /// Drops all unsent frames of a device that is down or gone.
    pub(super) fn lose(&mut self, numbers: &mut Numbers) {
        self.drop_unsent(numbers);
        self.halted = false;
    }

    /// Returns memory for a transfer, or `None` if the limit of transfers is reached or the allocation fails.
    pub(super) fn memory(&mut self, config: &Config, needed: usize) -> Option<Transfer<Idle>> {
        if self.lent.len() >= self.total {
            return None;
        }
        if !config.tx_fresh {
            return self.idle.pop();
        }
        let memory = Transfer::allocate(needed.max(config.tx_transfer_len)).ok();
        self.starved = memory.is_none() && self.lent.is_empty();
        memory
    }
}
