//! Ports that wrap other ports: a trace of all packets, and seeded faults. For tests and for finding faults; other
//! ports are not slowed down by them.

mod backlog;
mod faults;
#[cfg(feature = "capture")]
mod trace;

pub use faults::{FaultCounts, Faults, Odds};
#[cfg(feature = "capture")]
pub use trace::{Trace, TraceFile};

#[cfg(test)]
mod tests;
