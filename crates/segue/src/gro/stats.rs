//! Counters of GRO.

use super::rules::{Flush, Mismatch, RefusalReason};
use crate::reason::Counts;

/// Counters of a [`Gro`](super::Gro) since its creation.
///
/// When nothing is held, every packet pushed is in exactly one of `alone`, `segments`, `swallowed`, and the flushes
/// that were no train.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Number of packets pushed.
    pub packets: u64,
    /// Number of trains of at least two packets that were released.
    pub trains: u64,
    /// Number of packets in the released trains.
    pub segments: u64,
    /// Number of pure acknowledgments that were replaced by a newer one of their flow.
    pub swallowed: u64,
    /// Number of packets whose padding was removed.
    pub trimmed: u64,
    /// Packets passed on without being held, by reason.
    pub alone: Counts<RefusalReason>,
    /// Released trains, and released packets that could have begun a train but stayed single, by reason: no packet
    /// joined while they were held, or none could have.
    pub flushes: Counts<Flush>,
    /// Number of packets that did not fit the train of their flow, by differing field.
    pub mismatches: Counts<Mismatch>,
    /// Number of payload bytes summed to verify checksums.
    pub checksummed_bytes: u64,
}
