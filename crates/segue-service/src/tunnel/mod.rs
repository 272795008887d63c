//! Tunnels: their plans, the resolution on this system, and the start of interfaces, sockets and the datapath.

pub mod daemon;
pub mod engine;
pub mod group;
pub mod kinds;
mod overlay;
pub mod plan;
mod queues;
pub mod resolve;
pub mod show;
pub mod start;
pub mod traces;
