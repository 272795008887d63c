//! Decapsulation: the receiving half of a tunnel.

mod decapsulator;
mod headers;
mod inner;
mod outer;
mod plain;
mod pull;
mod received;
mod refusal;
mod remcsum;

pub use decapsulator::Decapsulator;
pub(super) use inner::set_tos;
pub use received::{OuterCsum, Received};
pub use refusal::DecapRefusal;
