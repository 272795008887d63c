//! The data path: the poll loop, the pipelines of tunnels, gateways and routers, and counters that other threads read
//! meanwhile.
//!
//! # The loop
//! [`worker::run`] runs one [`Pipeline`](pipeline::Pipeline), a [`tunnel`], an [`overlay`], a [`gateway`], a [`bridge`]
//! or a [`router`], on the thread of its caller until a descriptor tells it to stop:
//! 1. It applies settings that have changed ([`knobs`]).
//! 2. It runs one round: packets that a blocked port did not take are sent first; then at most a weight of packets is
//!    received from each port and a budget from all, joined by GRO, forwarded and sent.
//! 3. It publishes the counters, and sleeps until a port is ready or a deadline has come ([`napi`]), unless a port has
//!    more.
//!
//! When it is to stop, it sends the packets that it holds, for at most 200 ms.
//!
//! # Promises
//! - A worker owns everything it touches: ports, page pool, GRO table, counters. Workers share nothing; other threads
//!   read a [`board::Board`] of relaxed atomics that the worker alone writes.
//! - Every packet that was received is sent or counted under a named reason.
//! - The packets of a flow leave in the order in which they arrived.
//! - A blocked port holds back its source: that one is not read. In a bridge, where that would hold back other ports,
//!   the queue of a blocked port is bounded. Queues of a tunnel by flow, where they are on, are bounded in bytes.
//!   Packets that wait for a neighbour or for a first fragment are bounded in number and time.
//! - A round is bounded, so that no port and no counter waits for long.
//!
//! # Limits
//! The crate names no concrete port and opens no descriptor of one: the caller chooses them. A fault of a packet is
//! counted; an error ends the loop only where waiting fails or a port has become useless, as when its device is gone.

pub mod board;
pub mod boards;
pub mod bridge;
mod endpoint;
mod flood;
pub mod forward;
mod fq;
pub mod gateway;
pub mod group;
pub mod icmp;
mod ingress;
pub mod knobs;
pub mod napi;
pub mod nat;
pub mod overlay;
pub mod pipeline;
mod port_pair;
pub mod route;
pub mod router;
mod slots;
mod stall;
mod sync;
mod sys;
mod tuning;
pub mod tunnel;
pub mod worker;
