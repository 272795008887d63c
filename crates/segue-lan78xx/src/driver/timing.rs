//! Timeouts and retry intervals.

/// Interval before reading the link's state again after a failure, nanoseconds.
pub(super) const LINK_RETRY: u64 = 100_000_000;
/// Interval before submitting again after an allocation failed or the bus refused a transfer, nanoseconds: an immediate
/// retry would fail too.
pub(super) const TRANSFER_RETRY: u64 = 10_000_000;
/// Time without progress after which sending is restarted, nanoseconds, as in Linux.
pub(super) const TX_PATIENCE: u64 = 5_000_000_000;
