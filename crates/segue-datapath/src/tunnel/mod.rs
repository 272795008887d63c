//! The pipeline of tunnels: a packet port inside for each, and one datagram port outside for all of them.
//!
//! Outward: read trains inside, put the outer headers on, split for the datagram port. Inward: take bursts apart,
//! decapsulate, join what belongs together, write trains inside. Between the two ends nothing looks at single segments.
//!
//! What a round costs depends on the tunnels that have packets, not on how many there are: who is to be read is the kernel's
//! to say, whose a datagram is says a table, and counters of those with nothing new are left as they are.

mod common;
mod lookup;
mod member;
mod parts;
mod path_mtu;
mod pipeline;

pub use common::Dropped;
pub use parts::{Outside, Parts, knobs};
pub use pipeline::Tunnel;
