//! Gateways between two interfaces: a bump in the wire, or a router with `--route`.

mod advertisements;
mod claim;
pub mod config;
pub mod daemon;
pub mod endpoint;
mod nat;
pub mod plan;
mod route;
pub mod start;
