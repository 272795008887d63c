//! Supervision: several instances as one service, their restart, and the reload of their configuration.

mod child;
mod notify;
mod reload;
mod requests;
pub mod service;
pub mod spec;
mod tables;
