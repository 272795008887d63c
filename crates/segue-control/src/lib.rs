//! The control protocol of a running instance: one JSON request line and one JSON answer line over a socket that the
//! instance's owner and root can use; members of one group can read, if one is named ([`place::READERS`]).
//!
//! Both sides use this crate, the instances that answer and the commands that ask:
//!
//! - [`model`] and [`knobs`] are the documents of `segue.stat/1` and `segue.set/1`, [`mapping`] is a mapping of a NAT,
//!   [`peers`] is the peer table of a tunnel;
//! - [`protocol`] has the requests and the responses;
//! - [`client`] finds the sockets of this user, sends a request and reads the answer; [`services`] does so for
//!   services;
//! - [`place`] names the directories of the sockets, and [`lock`] is the lock of one;
//! - [`fleet`] is the state of the agent that feeds a tunnel its peers;
//! - [`confinement`] is the sandbox of a process that asks control sockets and reads from the network;
//! - [`health`] explains the codes of the problems that HEALTH names;
//! - [`json`] reads all of them, within a bound of memory;
//! - [`error`] is the error type of the programs: what failed, why, and what to try;
//! - [`suggest`] and [`units`] format suggestions and numbers for messages.
//!
//! # Lifecycle
//! A connection carries one request and one answer. [`client::one`] asks one instance for its state and its counters,
//! [`client::all`] all of them, [`client::set`] changes knobs, and [`client::peer_sync`] replaces a peer table. Rates
//! come from two states of the same instance: [`model::Instance::recent_since`].
//!
//! ```
//! use segue_control::protocol::{Request, Response, Topic};
//!
//! let request = Request::parse(br#"{"get":"stat"}"#).unwrap();
//! assert_eq!(request, Request::Get(Topic::Stat));
//!
//! let refusal = Request::parse(br#"{"get":"everything"}"#).unwrap_err();
//! assert_eq!(refusal.hint, r#"{"get":"stat"}"#);
//! assert!(Response::from(refusal).line().starts_with(r#"{"error":"#));
//! ```
//!
//! # Promises
//! - Keys are only ever added to a document, and a client reads the answer of an instance that lacks later keys.
//! - The knobs of a request are set together, or none of them.
//! - A request has at most [`protocol::REQUEST_LEN`] bytes, or [`protocol::TABLE_LEN`] where it changes a peer table,
//!   and an answer [`protocol::ANSWER_LEN`]. A client waits at most three seconds for the whole answer of an
//!   instance, or thirty for a peer table, and asks up to 64 instances at the same time.
//!
//! # Limits
//! It prints nothing and renders nothing for a terminal. It refuses a directory for sockets that a user other than
//! root and this one can write to, since a socket in it could be of another program. The server is not here: it
//! belongs to the process that moves packets.

pub mod client;
pub mod confinement;
pub mod error;
pub mod event;
mod exchange;
mod fastpath;
pub mod fleet;
pub mod fleet_health;
pub mod health;
pub mod json;
pub mod knobs;
pub mod lock;
pub mod mapping;
pub mod model;
pub mod peers;
pub mod place;
pub mod protocol;
pub mod services;
pub mod suggest;
pub mod units;
