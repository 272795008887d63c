//! The pipeline of tunnels: one inside packet port for each, and one outside datagram port shared by all.
//!
//! Outbound: read trains inside, encapsulate, split for the datagram port. Inbound: take bursts apart, decapsulate,
//! join with GRO, write trains inside. Between the two ports no stage looks at single segments.
//!
//! A round costs as much as there are tunnels with packets, however many there are: the kernel says which interfaces
//! are readable, a hash table which tunnel a datagram belongs to, and counters that have not changed are skipped.

mod common;
mod dropped;
mod lookup;
mod member;
mod parts;
mod path_mtu;
mod pipeline;
pub mod probe;
mod queue;

pub use dropped::Dropped;
pub use member::{RECEIVED, REFUSED, REFUSED_FOR};
pub use parts::{Outside, Parts, knobs};
pub use pipeline::Tunnel;
