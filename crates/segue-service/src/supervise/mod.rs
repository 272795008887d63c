//! Several instances as one service, and the specification of each.

mod child;
mod notify;
mod reload;
pub mod service;
pub mod spec;
