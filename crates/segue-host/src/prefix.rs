//! IP addresses with a prefix length, such as `198.18.0.1/24`.

use std::net::IpAddr;

/// An IP address with the length of its network part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address, with its host bits.
    pub address: IpAddr,
    /// The length of the network part, bits.
    pub len: u8,
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}
