//! Several instances as one service, and what its configuration says of each.

mod child;
mod notify;
mod reload;
pub mod service;
pub mod spec;
