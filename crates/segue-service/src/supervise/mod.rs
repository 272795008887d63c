//! Supervision: several instances as one service, their restart, the reload of their configuration, and the change to a
//! newer program.

mod child;
mod down;
pub mod file;
mod handle;
mod knobs;
mod lookup;
mod names;
mod notify;
mod placeholder;
mod reload;
mod requests;
pub mod said;
pub mod service;
pub mod spec;
mod succession;
mod tables;
pub mod upgrade;
mod watch;
