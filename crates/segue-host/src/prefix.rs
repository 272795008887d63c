//! Addresses with a prefix length.

use std::net::IpAddr;

/// An address with the length of its network part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address, host bits kept.
    pub address: IpAddr,
    /// Bits of the network part.
    pub len: u8,
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}
