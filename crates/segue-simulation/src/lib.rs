//! A simulated computer with a LAN78xx adapter, in simulated time. It shows what each form of the driver is worth on
//! machines whose processors and USB host controllers are slower than the one it runs on.
//!
//! The driver is [`segue_lan78xx::driver`], the chip is [`segue_lan78xx::model`] on a paced wire, and packets are
//! merged by `segue`'s GRO. All three run unmodified, and their work is counted. Around them the simulation has a USB
//! host controller with the bandwidth of a SuperSpeed pipe and moderated interrupts, two processor cores, those parts
//! of a network stack that cost time or queue packets, one program, and a peer host. Every piece of work has a cost
//! ([`cost::COSTS`]), divided by the target's speed; only the cost of a USB transfer belongs to the target's host
//! controller and is not scaled.
//!
//! # The loop
//! [`run`] builds the computer of a [`Case`], lets it settle for 50 ms, and moves simulated time from event to event
//! for the time of the case. The [`Outcome`] is the difference of all counters before and after. [`fit::fit`] looks
//! for the cost of a transfer with which the model gives a published figure.
//!
//! # Promises
//! - Nothing reads a clock or does I/O: the same case gives the same figures on every machine.
//! - Driver, chip and GRO are the product's own code, so a change of them changes the figures.
//!
//! # Limits
//! The figures are a model's: they compare forms of the driver and predict no machine. It refuses a case that the
//! driver cannot set up, with the driver's error. Not simulated: caches, memory bandwidth, the scheduler beyond one
//! cost for a wake-up, other processes, the peer's processor, TCP slow start. A core is used in steps of known
//! length that nothing interrupts.
#![deny(missing_docs)]

mod bus;
mod case;
pub mod cost;
pub mod fit;
mod form;
mod frames;
mod host;
mod outcome;
mod peer;
mod run;
mod stack;
#[cfg(test)]
mod tests;

pub use case::{Case, Traffic};
pub use cost::Target;
pub use form::Form;
pub use outcome::{Bursts, Outcome};
pub use run::run;
