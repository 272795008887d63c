//! UDP sockets as a datagram port. Runs of datagrams are sent by one UDP_SEGMENT send and received by one UDP_GRO
//! receive.
//!
//! One socket receives, or one for each of several threads on the same port. Datagrams are sent through *slots*: 16
//! sockets on ephemeral ports of their own, so that a tunnel's flows spread over source ports, or one with a fixed
//! port. A packet says in its [`Outer`](segue::packet::Outer) which slot it takes.

mod config;
mod filter;
mod own;
mod port;
mod probe;
mod raw;
mod receive;
mod receiver;
mod schedule;
mod send;
mod sockets;
mod spread;
#[cfg(test)]
mod tests;

pub use config::{AUTO_SLOTS, Carries, Checksum, OpenError, Source, UdpConfig, UdpOffloads};
pub use own::{Datagrams, Receiver, Sender};
pub use port::{UDP_SEGMENT_ON, UdpPort};
pub use raw::{RawConfig, RawPort};
pub use sockets::Sockets;
