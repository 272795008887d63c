//! Ports around ports: a trace of everything that crosses, and seeded faults. For tests and for finding faults; nothing
//! else pays for them.

mod faults;
mod trace;

pub use faults::{FaultCounts, Faults, Odds};
pub use trace::Trace;

#[cfg(test)]
mod tests;
