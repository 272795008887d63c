//! How a running instance is asked: one request line, one answer line, over a socket that only its owner can use.

pub(crate) mod client;
pub(crate) mod knobs;
pub(crate) mod model;
pub(crate) mod place;
pub(crate) mod server;

/// Longest request line, bytes.
pub(crate) const REQUEST_LEN: usize = 8192;
/// Longest answer line, bytes: room for the counters of as many tunnels as one port has at most.
pub(crate) const ANSWER_LEN: usize = 32 << 20;
