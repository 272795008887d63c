//! What the fuzz targets do, as plain functions: libFuzzer calls them through `fuzz_targets/`, and a test replays the
//! committed corpus through them on every run.
//!
//! A target takes any bytes, and panics if the engine breaks a promise on them. To add one: a file here, a line in
//! [`TARGETS`], a file in `fuzz_targets/` with its `[[bin]]`, and seeds in `corpus/NAME/`.

mod checksum;
mod input;
mod parse;
mod vnet;

pub use checksum::checksum;
pub use parse::parse;
pub use vnet::vnet;

/// A target's body.
pub type Target = fn(&[u8]);

/// Every target, by the name of its file and its corpus.
pub const TARGETS: &[(&str, Target)] = &[("checksum", checksum), ("parse", parse), ("vnet", vnet)];
