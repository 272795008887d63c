//! Tunnels over UDP: what [`Encapsulator`] puts around a packet or train, and what [`Decapsulator`] takes off again.
//!
//! A tunnel is a [`Config`]: what may be inside ([`Mode`]: IPv4, IPv6, either, or GRE), what stands between UDP and that
//! ([`Carrier`]: GUE or nothing), and the addresses, ports and header rules of the outside. Encapsulation writes all outer
//! headers once, in front of a whole train, and leaves what depends on a segment (lengths, identification, sequence
//! numbers, checksums over the payload) to [`gso`](crate::gso). Decapsulation looks at every datagram by itself, before
//! anything is merged, since the ECN field of each counts.
//!
//! Remote checksum offload is on the way out a matter of twelve header bytes, on the way in a matter of trust: the option
//! is believed only under an outer checksum that was present and right, where it names a checksum field that the parser
//! found, and where that field holds the pseudo-header sum of the packet that is there. Neither way touches payload.
//!
//! What it refuses to do: it answers no GUE control message, follows no GRE routing, and never makes a checksum right that
//! came in wrong.

mod config;
mod ecn;
mod entropy;
mod inner;
mod receive;
mod send;

pub use config::{Carrier, Config, ConfigError, GreOptions, Mode, SourcePorts, Tos, Ttl};
pub use ecn::combine as combine_ecn;
pub use receive::{Decapsulator, OuterCsum, Received, Refusal as DecapRefusal};
pub use send::{Encapsulator, Refusal as EncapRefusal};

#[cfg(test)]
mod tests;
