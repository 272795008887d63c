//! The pipeline of a router between two packet ports: `segue gateway --route`.
//!
//! Packets of frames to a port's own link address are joined by GRO, translated if they are for the outside address,
//! routed in batches ([`forward`](crate::forward)), translated if they leave by the outside port, and split in front of
//! the egress port. A train stays one packet in between. Packets for the host itself are ignored: the host's stack has
//! its own copy of every frame.
//!
//! Routes, addresses and neighbours come from the kernel, through a [`Feed`]. The router resolves other neighbours
//! itself, by ARP or neighbour discovery, while a bounded number of packets wait, and probes those in use from time to
//! time (RFC 4861, section 7.3).

mod feed;
#[cfg(test)]
mod feed_tests;
mod fields;
mod fragment_queue;
mod messages;
mod neighbour_cache;
mod neighbours;
mod output;
mod pipeline;
mod resolver;
mod solicit_limits;
mod source_check;
mod state;
mod stats;
mod tables;
mod translate;

pub use feed::{Feed, FeedSender, feed};
pub use state::{OUTSIDE, Parts, Router, knobs};
pub use tables::{InterfaceAddrs, Mappings, Message, Neighbour, NeighbourEvent, Tables};
