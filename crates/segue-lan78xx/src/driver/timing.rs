//! How long things take and how often they are tried.

/// How long to wait when the link could not be looked at, nanoseconds.
pub(super) const LINK_RETRY: u64 = 100_000_000;
/// How long to wait where there is no memory for a transfer or the bus refused one: the next would fail as well.
pub(super) const TRANSFER_RETRY: u64 = 10_000_000;
/// How long sending may be stuck, as in Linux.
pub(super) const TX_PATIENCE: u64 = 5_000_000_000;
