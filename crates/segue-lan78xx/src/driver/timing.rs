//! Timeouts and retry intervals.

/// Interval before reading the link's state again after a failure, nanoseconds.
pub(super) const LINK_RETRY: u64 = 100_000_000;
/// Interval before submitting again after an allocation failed or the bus refused a transfer, nanoseconds: an immediate
/// retry would fail too.
pub(super) const TRANSFER_RETRY: u64 = 10_000_000;
/// Number of failures in a row to read the link's state after which a device that answers is given up and set up
/// again.
pub(super) const LINK_FAILURES: u32 = 5;
/// Interval before clearing the halt of an endpoint again after a failure, or after it has halted again, nanoseconds.
pub(super) const CLEAR_RETRY: u64 = 100_000_000;
/// Number of attempts to clear the halt of an endpoint of which no transfer succeeds, after which the device is given
/// up: it takes as long as [`HALT_PATIENCE`].
pub(super) const MOST_CLEARS: u32 = (HALT_PATIENCE / CLEAR_RETRY) as u32;
/// Time for which an endpoint may be halted, nanoseconds, before the device is given up: its transfers do not come
/// back, or the halt cannot be cleared.
pub(super) const HALT_PATIENCE: u64 = 5_000_000_000;
/// Time without progress after which sending is restarted, nanoseconds, as in Linux.
pub(super) const TX_PATIENCE: u64 = 5_000_000_000;
/// Longest time of one call of the driver, nanoseconds, which begins no further request or transfer then: the last one
/// may take five seconds to be sent, and a request as long again for its answer. The loop makes up to three calls in a
/// round, and an instance that makes no round for 90 seconds is ended.
pub(super) const SERVICE_TIME: u64 = 20_000_000_000;
/// Time of a call of the driver, nanoseconds, after which completed transfers are submitted again only once its
/// requests were made: over a slow network they may take all the time that requests have.
pub(super) const REAP_TIME: u64 = 100_000_000;
/// Longest time to set up a device that was found again, nanoseconds.
pub(super) const SETUP_TIME: u64 = 60_000_000_000;
