//! How a running instance is asked: one request line, one answer line of JSON, over a socket that only its owner can use.
//!
//! Here are the documents of `segue.stat/1` and `segue.set/1` ([`model`], [`knobs`]), the client's side of the socket
//! ([`client`]), where sockets are ([`place`]), and the one kind of failure that the program shows ([`error`]). It promises
//! that a key of a document is only ever added. It prints nothing and renders nothing for a terminal, and refuses
//! directories for sockets that somebody else can write to.

pub mod client;
pub mod error;
pub mod knobs;
pub mod mapping;
pub mod model;
pub mod place;
pub mod suggest;
pub mod units;

/// Longest request line, bytes.
pub const REQUEST_LEN: usize = 8192;
/// Longest answer line, bytes: room for the counters of as many tunnels as one port has at most.
pub const ANSWER_LEN: usize = 32 << 20;
