//! Ports around other ports: a trace of all packets, and seeded faults. For tests and for finding faults; other ports
//! are not slowed down by them.

mod backlog;
mod faults;
mod trace;

pub use faults::{FaultCounts, Faults, Odds};
pub use trace::Trace;

#[cfg(test)]
mod tests;
