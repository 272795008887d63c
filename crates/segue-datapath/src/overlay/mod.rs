//! The parts of a tunnel with a peer table.

mod prefixes;

pub use prefixes::Prefixes;
