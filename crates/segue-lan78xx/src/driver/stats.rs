//! The chip's counters, made 64 bits wide, and those of the driver itself.

use segue::time::Nanos;

use crate::regs::STATISTICS;

/// First and longest time between two readings, nanoseconds.
const SHORTEST: u64 = 1_000_000_000;
const LONGEST: u64 = 50 * SHORTEST;
/// Segments after which a reading does not wait: half of what the narrow counters hold.
const MANY: u64 = 1 << 19;

/// The chip's counters. They wrap, most of them at 20 bits; a reading below the last one is taken for one wrap, so that two
/// wraps between readings are one too few.
#[derive(Clone, Debug)]
pub(super) struct ChipCounters {
    last: [u32; STATISTICS.len()],
    wraps: [u64; STATISTICS.len()],
    /// What chips counted that are gone.
    base: [u64; STATISTICS.len()],
    interval: u64,
    due: Option<Nanos>,
}

impl Default for ChipCounters {
    fn default() -> ChipCounters {
        ChipCounters {
            last: [0; STATISTICS.len()],
            wraps: [0; STATISTICS.len()],
            base: [0; STATISTICS.len()],
            interval: SHORTEST,
            due: None,
        }
    }
}

impl ChipCounters {
    pub(super) fn start(&mut self, now: Nanos) {
        self.interval = SHORTEST;
        self.due = Some(now.after(self.interval));
    }

    pub(super) fn stop(&mut self) {
        self.due = None;
    }

    pub(super) fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// Takes a reading. `active` says whether anything moved since the last.
    pub(super) fn update(&mut self, raw: &[u32; STATISTICS.len()], active: bool, now: Nanos) {
        for (at, value) in raw.iter().enumerate() {
            self.wraps[at] += u64::from(*value < self.last[at]);
            self.last[at] = *value;
        }
        self.interval = if active { SHORTEST } else { (self.interval * 2).min(LONGEST) };
        if self.due.is_some() {
            self.due = Some(now.after(self.interval));
        }
    }

    /// Hears of `moved` segments since the last reading: an interval that grew while nothing moved would now let the narrow
    /// counters wrap unseen, so that the next reading comes forward, as Linux arms its timer anew.
    pub(super) fn traffic(&mut self, moved: u64, now: Nanos) {
        let Some(due) = self.due.filter(|_| moved > 0) else { return };
        self.interval = SHORTEST;
        let latest = if moved >= MANY { now } else { now.after(SHORTEST) };
        self.due = Some(due.min(latest));
    }

    /// A chip that came back counts from zero: what it had counted is kept.
    pub(super) fn rebase(&mut self) {
        for at in 0..STATISTICS.len() {
            self.base[at] = self.value(at);
            (self.last[at], self.wraps[at]) = (0, 0);
        }
    }

    pub(super) fn value(&self, at: usize) -> u64 {
        self.base[at] + u64::from(self.last[at]) + self.wraps[at] * (u64::from(STATISTICS[at].max) + 1)
    }
}

/// What the driver counts besides packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Polls.
    pub polls: u64,
    /// Polls that used their budget up.
    pub full_budgets: u64,
    /// Packets delivered by a later poll than that which parsed their transfer.
    pub overflows: u64,
    /// Bulk-in transfers with something in them.
    pub rx_transfers: u64,
    /// Bulk-in transfers that failed.
    pub rx_errors: u64,
    /// Bulk-out transfers sent.
    pub tx_transfers: u64,
    /// Frames in bulk-out transfers that failed or were taken back.
    pub tx_errors: u64,
    /// Trains that the chip cut.
    pub lso: u64,
    /// Checksums that the chip computed, those of trains included.
    pub tx_csum: u64,
    /// Frames whose checksum or cutting the chip cannot do, done in software.
    pub software: u64,
    /// Received packets that came with a sum of the chip.
    pub rx_csum: u64,
    /// Halted endpoints set going again.
    pub halts: u64,
    /// Times that sending was stuck for five seconds and begun anew.
    pub tx_timeouts: u64,
    /// Times that there was no memory for a transfer.
    pub no_memory: u64,
    /// Interrupt packets of a wrong length.
    pub bad_interrupts: u64,
    /// Times that the link came up.
    pub link_ups: u64,
    /// Times that the device went away.
    pub unplugs: u64,
    /// Register accesses that failed while it ran.
    pub control_errors: u64,
}
