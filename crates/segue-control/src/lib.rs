//! How a running instance is asked: one request line, one answer line of JSON, over a socket that only its owner can use.
//!
//! Here are the documents of `segue.stat/1` and `segue.set/1` ([`model`], [`knobs`]), what goes over the socket
//! ([`protocol`]), the client's side of the socket
//! ([`client`]), where sockets are ([`place`]), and the one kind of failure that the program shows ([`error`]). It promises
//! that a key of a document is only ever added. It prints nothing and renders nothing for a terminal, and refuses
//! directories for sockets that somebody else can write to.

pub mod client;
pub mod error;
pub mod knobs;
pub mod mapping;
pub mod model;
pub mod place;
pub mod protocol;
pub mod suggest;
pub mod units;
