//! Tunnels: what [`Encapsulator`] puts around a packet or train, and what [`Decapsulator`] takes off again.
//!
//! A tunnel is a [`Config`]: what may be inside ([`Mode`]: IPv4, IPv6, either, or Ethernet, with or without GRE), what carries
//! that ([`Carrier`]: nothing but IP, or UDP with GUE, VXLAN, Geneve or nothing), and the addresses, ports and header rules
//! of the outside. Encapsulation writes all outer headers once, in front of a whole train, and leaves what depends on a
//! segment (lengths, identification, sequence numbers, checksums over the payload) to [`gso`](crate::gso). Decapsulation
//! looks at every datagram by itself, before anything is merged, since the ECN field of each counts.
//!
//! Remote checksum offload is on the way out a matter of twelve header bytes, on the way in a matter of trust: the option
//! is believed only under an outer checksum that was present and right, where it names a checksum field that the parser
//! found, and where that field holds the pseudo-header sum of the packet that is there. Neither way touches payload.
//!
//! One thing is taken on trust, and only where [`Config::unfinished`] says that the receiving port is a kernel's socket of the
//! kind: a transport checksum field that holds exactly the pseudo-header sum is taken for one that this host's kernel left
//! unfinished, since such a socket does not say. A packet that was damaged into just that value is then delivered.
//!
//! What it refuses to do: it answers no GUE control message, follows no GRE routing, and never makes a checksum right that
//! came in wrong.

mod config;
mod ecn;
mod entropy;
mod fdb;
mod identity;
mod inner;
mod receive;
mod send;
mod too_big;

pub use config::{Carrier, Config, ConfigError, Df, GreOptions, Mode, SourcePorts, Tos, Ttl};
pub use ecn::combine as combine_ecn;
pub use fdb::{Destination, Fdb, Mac};
pub use identity::Identity;
pub use receive::{DecapRefusal, Decapsulator, OuterCsum, Received};
pub use send::{EncapRefusal, Encapsulator};
pub use too_big::{Fit, fit, too_big};

#[cfg(test)]
mod tests;
