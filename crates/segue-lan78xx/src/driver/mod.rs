//! The driver: brings the chip up, follows its link, and moves packets between its USB endpoints and a
//! [`Port`](segue_port::Port).
//!
//! [`Driver::open`] resets and sets up the chip, [`Driver::up`] starts it. From then on the user calls the two halves
//! of the port, [`receive`](segue_port::Port::receive) and [`transmit`](segue_port::Port::transmit), when its
//! descriptor is readable. Everything else is handled inside: interrupts, the link, statistics, halted endpoints, a
//! device that goes away and comes back. [`Config::napi`] and [`Config::standard`] are the two forms that Linux's
//! driver had.
//!
//! Merging received frames is left to the caller of `receive`. The chip cuts trains of up to [`Config::lso`] bytes;
//! larger ones are split into trains of that size in front of the port ([`Limits::max_bytes`](segue::gso::Limits)).
//!
//! Differences from Linux: the queue of pending frames is the caller's batch, so that the stack is not stopped and
//! woken but held back ([`Sent::Blocked`](segue_port::Sent::Blocked)). Where Linux's old form passed the transfers'
//! memory itself to the stack, [`Copying::WholeTransfer`] copies each transfer once as a whole.

mod address;
mod chip;
mod config;
mod filter;
mod follower;
mod host;
mod link;
mod link_state;
mod lookup;
mod port;
mod receiver;
mod replug;
mod rx;
mod service;
mod set_address;
mod set_filter;
mod setup;
mod state;
mod stats;
mod timing;
mod transmitter;
mod tx;

pub use address::AddressSource;
pub use chip::Error;
pub use config::{Config, Copying, Kick, Resubmit};
pub use filter::Filter;
pub use follower::{Host, Interface};
pub use link_state::LinkState;
pub use lookup::{Finder, Listener, LookupResult};
pub use state::Driver;
pub use stats::Numbers;
