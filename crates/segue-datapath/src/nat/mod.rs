//! Network address and port translation for IPv4 (NAPT): TCP, UDP and ICMP, with one rewrite for a whole train.
//!
//! A mapping belongs to an inside address and port and serves all their peers (endpoint-independent mapping, RFC 4787
//! REQ-1, RFC 5382 REQ-1). Any host may send to the outside port (endpoint-independent filtering, REQ-8). The inside
//! port is kept where it is free, and no outside port belongs to two mappings (REQ-3). Two inside hosts reach each
//! other by outside addresses (hairpinning, REQ-9), ICMP errors included (RFC 5508, REQ-7). ICMP queries are mapped by
//! their identifier, and errors are translated in both directions with the packet that they quote (RFC 5508). Checksums
//! are updated, not computed: a wrong one stays wrong.
//!
//! The fragments of a datagram are translated as its first one was; a fragment that arrives before the first is for the
//! caller to keep ([`Done::FirstMissing`]).
//!
//! Tables are bounded, altogether and for each inside host. Where there is no room, mappings of ICMP, those of UDP
//! whose hosts have not sent again after an answer, and those whose TCP connections are not open give way to new ones.
//! Mappings end after a time without packets from inside: no outside host can keep them (RFC 4787, REQ-6). ICMP queries
//! come from inside alone. Protocols without ports are refused by name.

mod config;
mod connections;
mod fragment;
mod outcome;
mod ports;
mod random;
mod rewrite;
mod table;
mod translator;

pub use config::{Config, Protocol, Timeouts};
pub use connections::{Connections, TcpState};
pub use fragment::{Datagram, Part};
pub use outcome::{Done, Refusal};
pub use table::Mapping;
pub use translator::Nat;
