//! Test support of segue: packet builders, an oracle and traffic generators, written naively and without any code of
//! the engine, so that the two cannot share an error.
//!
//! - [`build`]: plain structures to bytes, with right lengths and checksums, tunnels of every supported form included.
//! - [`oracle`]: walks a frame and checks every length and checksum in it.
//! - [`conformance`]: the list of cases that GRO is judged by, for the engine and for kernels alike.
//! - [`flow`]: streams as a network carries them, with loss, duplicates, reordering and damage, each marked.
//! - [`fragment`]: IP fragments, cut and put together.
//! - [`vhost`]: a front end of vhost-user without a guest: memory, rings and messages, right and wrong ones.
//! - [`strategy`]: the builders' inputs for proptest.
//!
//! # Promises
//! - No code of the engine is used, not even a checksum, so a test that compares both compares two implementations.
//! - The same seed gives the same packets on every machine ([`Rng`]).
//! - The oracle never panics, whatever the bytes are.
//!
//! # Limits
//! The crate is for tests: it is slow, and the product uses it in tests only. Builders panic where they are
//! asked for something that cannot be written, such as a packet over 65535 bytes.

pub mod build;
pub mod conformance;
pub mod flow;
pub mod fragment;
pub mod oracle;
mod rng;
pub mod strategy;
pub mod sum;
pub mod vhost;

pub use rng::Rng;

/// Returns whether an environment variable is `1`: `SEGUE_FULL` asks for the sizes of `make test-full`, `SEGUE_SOAK`
/// for those of `make soak`, `SEGUE_QUICK` for those that an emulated machine has time for.
pub fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}
