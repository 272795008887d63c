//! The pipeline of a tunnel with a peer table: one interface that carries IP or Ethernet frames, and any number of
//! peers, each with an encapsulation of its own.
//!
//! Outbound: read trains inside, find the peer by the destination, encapsulate for it, split for the port of its
//! encapsulation. Inbound: take bursts apart, decapsulate, check that the table gives the inner source to the sender,
//! join with GRO, write trains inside.
//!
//! With Ethernet frames the peer is found by the destination address of the frame. Frames to groups and to addresses
//! that no peer has go to all peers that the table has for that; nothing is learned.
//!
//! The worker owns its [`Table`]. A new one is built by another thread ([`Table::new`]) and put into force between two
//! rounds ([`exchange`]): packets go by the one or the other, and the swap costs the worker two pointers, however many
//! peers there are. It waits until no packet waits for a full socket, since such packets name their destination by its
//! number in the table.

mod counts;
mod inward;
mod outward;
mod pipeline;
mod prefixes;
mod swap;
mod table;

pub use counts::Dropped;
pub use pipeline::{Form, Listener, Overlay, Parts, knobs};
pub use prefixes::Prefixes;
pub use swap::{Changing, TableReceiver, TableSender, exchange};
pub use table::{Inside, ListenerConfig, PeerConfig, PeerCounters, Removed, Table};
