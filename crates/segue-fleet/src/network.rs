//! IPv4 networks, and the rules for addresses of hosts.

use std::fmt;
use std::net::Ipv4Addr;

use segue_host::address::is_host_v4;

/// An IPv4 network without host bits, such as `198.19.59.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: u32,
    len: u8,
}

impl Network {
    /// Returns the network of `address` with a prefix of `len` bits; `None` where host bits are set or `len` is above
    /// 32.
    pub fn new(address: Ipv4Addr, len: u8) -> Option<Network> {
        let made = Network::around(address, len)?;
        (made.address == u32::from(address)).then_some(made)
    }

    /// Returns the network with a prefix of `len` bits that contains `address`; `None` where `len` is above 32.
    pub fn around(address: Ipv4Addr, len: u8) -> Option<Network> {
        let mask = u32::MAX.checked_shl(32u32.checked_sub(u32::from(len))?).unwrap_or(0);
        Some(Network { address: u32::from(address) & mask, len })
    }

    /// Parses `ADDRESS/LEN`. Host bits are cleared, as Go's `net.ParseCIDR` does.
    pub fn parse(text: &str) -> Option<Network> {
        let (address, len) = text.split_once('/')?;
        Network::around(address.parse().ok()?, decimal(len)?)
    }

    /// Returns the first address of the network.
    pub fn first(self) -> Ipv4Addr {
        self.address.into()
    }

    /// Returns the last address of the network.
    pub fn last(self) -> Ipv4Addr {
        u32::try_from(u64::from(self.address) + self.size() - 1).unwrap_or(u32::MAX).into()
    }

    /// Returns the address after the first one, which flannel gives to the bridge of a host.
    pub fn host(self) -> Ipv4Addr {
        self.address.saturating_add(1).into()
    }

    /// Returns the length of the network's prefix in bits.
    pub fn prefix_len(self) -> u8 {
        self.len
    }

    /// Returns the number of addresses in the network.
    pub fn size(self) -> u64 {
        1 << (32 - u32::from(self.len))
    }

    /// Returns whether `address` is in this network.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        (self.first()..=self.last()).contains(&address)
    }

    /// Returns whether the two networks have an address in common.
    pub fn overlaps(self, other: Network) -> bool {
        self.contains(other.first()) || other.contains(self.first())
    }

    /// Returns whether all of `other` is in this network.
    pub fn holds(self, other: Network) -> bool {
        self.len <= other.len && self.contains(other.first())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), self.len)
    }
}

/// Parses a number of decimal digits without sign and without leading zeros.
pub(crate) fn decimal(text: &str) -> Option<u8> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

/// Returns whether a datagram can be sent to `address` as that of one host: not 0/8, loopback, link-local, multicast or
/// 240/4 (RFC 6890).
pub(crate) fn is_host(address: Ipv4Addr) -> bool {
    is_host_v4(address) && !address.is_link_local()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    #[test]
    fn networks_know_their_borders() {
        let net24 = net("198.19.59.0/24");
        assert_eq!((net24.first(), net24.last()), ([198, 19, 59, 0].into(), [198, 19, 59, 255].into()));
        assert_eq!(net("0.0.0.0/0").last(), Ipv4Addr::BROADCAST);
        assert_eq!(net("255.255.255.255/32").last(), Ipv4Addr::BROADCAST);
        assert!(net24.overlaps(net("198.19.0.0/16")) && net("198.19.0.0/16").overlaps(net24));
        assert!(!net24.overlaps(net("198.19.60.0/24")));
        assert!(net("198.19.0.0/16").holds(net24) && !net24.holds(net("198.19.0.0/16")));
        assert_eq!(net("198.19.59.7/24"), net24);
        assert_eq!(Network::new([198, 19, 59, 7].into(), 24), None);
        for wrong in
            ["198.19.59.0", "198.19.59.0/33", "198.19.59.0/024", "198.19.59.0/+4", "198.19.59/24", "::/0", "/8"]
        {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }
}
