//! Ports that wrap other ports: a trace of all packets, seeded faults, and calls that fail. For tests and for finding
//! faults; other ports are not slowed down by them.

mod backlog;
mod failing;
mod faults;
#[cfg(feature = "capture")]
mod trace;

pub use failing::{Calls, Failure};
pub use faults::{FaultCounts, Faults, Odds};
#[cfg(feature = "capture")]
pub use trace::{Trace, TraceFile};

#[cfg(test)]
mod tests;
