//! The chip's counters, extended to 64 bits, and the driver's own counters.

use segue::time::Nanos;

use crate::regs::STATISTICS;

/// Shortest interval between two readings, nanoseconds.
const SHORTEST: u64 = 1_000_000_000;
/// Longest interval between two readings, nanoseconds.
const LONGEST: u64 = 50 * SHORTEST;
/// Number of segments after which the counters are read at once: half the range of the narrow counters.
const MANY: u64 = 1 << 19;

/// Statistics counters of the chip. Most of them wrap at 20 bits. A value below the last one is taken for one wrap, so
/// that a counter that wraps twice between two readings undercounts.
#[derive(Clone, Debug)]
pub(super) struct ChipCounters {
    last: [u32; STATISTICS.len()],
    wraps: [u64; STATISTICS.len()],
    /// Counts of the chip before it was lost.
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

    /// Updates the counters with a reading; `active` says whether packets were moved since the last one.
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

    /// Brings the next reading forward if `moved` segments were moved since the last one: the narrow counters could
    /// wrap unnoticed during an interval that has grown in an idle time. Linux rearms its timer likewise.
    pub(super) fn traffic(&mut self, moved: u64, now: Nanos) {
        let Some(due) = self.due.filter(|_| moved > 0) else { return };
        self.interval = SHORTEST;
        let latest = if moved >= MANY { now } else { now.after(SHORTEST) };
        self.due = Some(due.min(latest));
    }

    /// Keeps the counts of a chip that was lost: its counters restart from zero.
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

/// The driver's own counters, besides those of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Number of polls of the receive side.
    pub polls: u64,
    /// Number of polls that exhausted their budget.
    pub full_budgets: u64,
    /// Number of packets delivered by a later poll than the one that parsed their transfer.
    pub overflows: u64,
    /// Number of bulk-in transfers received that were not empty.
    pub rx_transfers: u64,
    /// Number of bulk-in transfers that failed.
    pub rx_errors: u64,
    /// Number of bulk-out transfers sent.
    pub tx_transfers: u64,
    /// Number of frames in bulk-out transfers that failed or were cancelled, and of those that waited for a transfer
    /// when the link or the device was lost.
    pub tx_errors: u64,
    /// Number of trains that the chip segmented.
    pub lso: u64,
    /// Number of checksums that the chip computed, those of trains included.
    pub tx_csum: u64,
    /// Number of packets whose checksum or segmentation was done in software because the chip cannot.
    pub software: u64,
    /// Number of received packets with a usable checksum of the chip.
    pub rx_csum: u64,
    /// Number of endpoints that were restarted: after a halt, or because sending made no progress.
    pub halts: u64,
    /// Number of restarts of sending after five seconds without progress.
    pub tx_timeouts: u64,
    /// Number of failed allocations of memory for a transfer.
    pub no_memory: u64,
    /// Number of interrupt packets of a wrong length.
    pub bad_interrupts: u64,
    /// Number of times that the link came up.
    pub link_ups: u64,
    /// Number of times that the device was lost.
    pub unplugs: u64,
    /// Number of register accesses that failed during operation.
    pub control_errors: u64,
}
