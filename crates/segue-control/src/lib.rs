//! The control protocol of a running instance: one request line and one answer line of JSON, over a socket that only
//! the owner of the instance and root can use.
//!
//! The crate has the documents of `segue.stat/1` and `segue.set/1` ([`model`], [`knobs`]), the requests and responses
//! ([`protocol`]), the client ([`client`]), the directories of the sockets ([`place`]), and the error type of the
//! program ([`error`]).
//!
//! It promises that keys are only ever added to a document. It prints nothing and renders nothing for a terminal, and
//! it refuses a directory for sockets that another user can write to.

pub mod client;
pub mod error;
pub mod knobs;
pub mod mapping;
pub mod model;
pub mod place;
pub mod protocol;
pub mod suggest;
pub mod units;
