//! Tunnels of the engine: [`Encapsulator`] adds the outer headers to a packet or train, [`Decapsulator`] removes them.
//!
//! A tunnel is described by a [`Config`]: the inner protocol ([`Mode`]: IPv4, IPv6, either, or Ethernet, with or
//! without GRE), what carries it ([`Carrier`]: IP alone, or UDP with GUE, VXLAN, Geneve or nothing), and the addresses,
//! ports and header rules of the outside. Encapsulation writes all outer headers once, in front of a whole train, and
//! leaves the fields that depend on a segment (lengths, identification, sequence numbers, checksums over the payload)
//! to [`gso`](crate::gso). Decapsulation examines every datagram by itself, before anything is merged, since the ECN
//! field of each counts.
//!
//! Remote checksum offload costs twelve header bytes when sending; when receiving it is a matter of trust: the option
//! is accepted only under an outer checksum that was present and right, if it names a checksum field that the parser
//! found, and if that field holds the pseudo-header sum of the packet. Neither direction touches payload.
//!
//! One thing is taken on trust, and only if [`Config::unfinished`] says that the receiving port is a kernel socket of
//! that kind: a transport checksum field that holds exactly the pseudo-header sum counts as left unfinished by this
//! host's kernel, since such a socket does not say. A packet that was damaged into just that value is then delivered.
//!
//! The module answers no GUE control message, follows no GRE routing, and never makes a wrong checksum right.

mod config;
mod ecn;
mod entropy;
mod fdb;
mod fragments;
mod identity;
mod inner;
mod receive;
mod send;
mod too_big;

pub use config::{Carrier, Config, ConfigError, Df, GreOptions, Mode, SourcePorts, Tos, Ttl};
pub use ecn::{combine as combine_ecn, mark as mark_congestion};
pub use entropy::Flows;
pub use fdb::{Destination, Fdb, Mac};
pub use identity::Identity;
pub use receive::{DecapRefusal, Decapsulator, OuterCsum, Received};
pub use send::{EncapRefusal, Encapsulator};
pub use too_big::{Fit, fit, is_to_group, too_big};

#[cfg(test)]
mod tests;
