//! The pipeline of a router between two packet ports: `segue gateway --route`.
//!
//! Frames to a port's own link address are joined, translated where they are for the outside address, routed in batches
//! ([`forward`](crate::forward)), translated where they leave by the outside port, and cut in front of the port. A
//! train is one packet all the way. What is for the host itself is left to the host's stack, which has its own copy of
//! every frame.
//!
//! Routes, addresses and neighbours come from the kernel, through a [`Feed`]. A neighbour that it does not know is
//! asked for here, by ARP or a neighbour solicitation, while a bounded number of packets wait; one that is used is
//! asked again from time to time.

mod fields;
mod fragment_queue;
mod messages;
mod neighbour_cache;
mod neighbours;
mod output;
mod pipeline;
mod resolver;
mod state;
mod stats;
mod tables;
mod translate;

pub use state::{OUTSIDE, Parts, Router, knobs};
pub use tables::{Feed, FeedSender, InterfaceAddrs, Mappings, Message, Neighbour, NeighbourEvent, Tables, feed};
