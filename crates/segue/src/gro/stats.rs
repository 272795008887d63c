//! Counters of GRO.

use super::rules::{Alone, Flush, Mismatch};
use crate::reason::Counts;

/// What a [`Gro`] has done, since it was made.
///
/// When nothing is held, every packet pushed is in exactly one of: `alone`, `segments`, `swallowed`, and the flushes that were
/// no train.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Packets pushed.
    pub packets: u64,
    /// Trains of at least two packets that came out.
    pub trains: u64,
    /// Packets inside those trains.
    pub segments: u64,
    /// Pure acknowledgments that gave way to a newer one of their flow.
    pub swallowed: u64,
    /// Packets whose padding was cut off.
    pub trimmed: u64,
    /// Why packets were passed on without being held: one count for each such packet.
    pub alone: Counts<Alone>,
    /// Why what was good for a train came out: one count for each train, and one for each packet that stayed single,
    /// whether it was held for a while or nothing could have followed it.
    pub flushes: Counts<Flush>,
    /// What differed when a packet did not fit the train held of its flow.
    pub mismatches: Counts<Mismatch>,
    /// Payload bytes summed to verify checksums.
    pub checksummed_bytes: u64,
}
