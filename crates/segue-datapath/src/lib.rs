//! Moves packets: the poll loop, the pipelines of a tunnel and of a gateway, and the counters that others may read meanwhile.
//!
//! A [`worker`](worker::run) owns everything it touches: ports, page pool, GRO table, counters. Workers share nothing;
//! what others see of them is a [`board::Board`] of relaxed atomics that the worker alone writes, once a round. A round
//! takes at most a weight from each port and a budget from all, serves what was left over first, flushes what GRO holds,
//! and rests ([`napi`]) only when no port has more.
//!
//! The crate names no concrete port: the program wires them.

pub mod board;
mod endpoint;
pub mod forward;
pub mod gateway;
pub mod group;
pub mod icmp;
mod ingress;
pub mod knobs;
pub mod napi;
pub mod nat;
pub mod pipeline;
mod port_pair;
pub mod route;
pub mod router;
mod sys;
mod tuning;
pub mod tunnel;
pub mod worker;
