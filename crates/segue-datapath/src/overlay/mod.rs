//! The peer table of a tunnel.
//!
//! The worker owns its [`Table`]. A new one is built by another thread ([`Table::new`]) and put into force between two
//! rounds ([`exchange`]).

mod prefixes;
#[allow(dead_code, reason = "the worker's end is for its pipeline")]
mod swap;
#[allow(dead_code, reason = "the worker's part is for its pipeline")]
mod table;

pub use prefixes::Prefixes;
pub use swap::{TableReceiver, TableSender, exchange};
pub use table::{ListenerConfig, PeerConfig, PeerCounters, Removed, Table};
