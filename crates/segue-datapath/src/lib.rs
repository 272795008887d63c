//! The data path: the poll loop, the pipelines of tunnels, gateways and routers, and counters that other threads read
//! meanwhile.
//!
//! A [`worker`](worker::run) owns everything it touches: ports, page pool, GRO table, counters. Workers share nothing;
//! other threads read a [`board::Board`] of relaxed atomics that the worker alone writes, once a round. A round
//! receives at most a weight from each port and a budget from all, sends what was left over first, flushes GRO, and
//! sleeps ([`napi`]) only when no port has more.
//!
//! The crate names no concrete port: the program chooses them.

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
