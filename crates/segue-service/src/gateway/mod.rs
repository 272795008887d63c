//! Gateways: a bump in the wire between two interfaces, or a router.

mod claim;
pub mod config;
pub mod daemon;
pub mod endpoint;
mod nat;
pub mod plan;
mod route;
pub mod start;
