//! A computer with an adapter, in a time of its own: what the forms of the driver are worth where processors and USB host
//! controllers are slower than here.
//!
//! The driver is [`segue_lan78xx::driver`], the chip is [`segue_lan78xx::model`] on a paced wire, joining is `segue`'s
//! GRO: they run as they are, and what they did is counted. Around them are a USB host controller with a pipe of SuperSpeed's bandwidth and
//! moderated interrupts, two processor cores, as much of a network stack as costs or queues something, a program, and a far
//! end. Every piece of work has a price ([`cost::COSTS`]), divided by the target's speed; only the price of a USB transfer
//! belongs to the target's controller and is not. Nothing reads a clock: the same case gives the same figures everywhere.
//!
//! What is left out: caches, memory bandwidth, the scheduler beyond one price for a wake-up, other work, the far end's
//! processor, slow start. A core is used by steps of known length that nothing interrupts.
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
