//! The addresses of the two hosts on their link and in their tunnels.

use std::net::IpAddr;

use crate::keywords::keywords;

keywords! {
    /// An IP version to measure.
    Family {
        /// IP version 4 (IPv4).
        V4 = "4",
        /// IP version 6 (IPv6).
        V6 = "6",
    }
}

impl Family {
    /// Returns the version number, 4 or 6.
    pub const fn number(self) -> u8 {
        match self {
            Family::V4 => 4,
            Family::V6 => 6,
        }
    }
}

/// One of the two hosts. The load goes from A to B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Host A, the sender.
    A,
    /// Host B, the receiver.
    B,
}

impl Peer {
    /// Returns the other host.
    pub const fn other(self) -> Peer {
        match self {
            Peer::A => Peer::B,
            Peer::B => Peer::A,
        }
    }

    /// Returns this host's address in lab network `net`: 198.18.0.{1,2} and 2001:db8::{1,2} for net 0 (the link),
    /// 198.19.N.{1,2} and 2001:db8:N::{1,2} for the inside of tunnel N. Prefix lengths are 24 and 64.
    pub fn address(self, net: u8, family: Family) -> IpAddr {
        let host = match self {
            Peer::A => 1,
            Peer::B => 2,
        };
        match family {
            Family::V4 => IpAddr::from([198, if net == 0 { 18 } else { 19 }, net, host]),
            Family::V6 => IpAddr::from([0x2001, 0xdb8, u16::from(net), 0, 0, 0, 0, u16::from(host)]),
        }
    }

    /// Returns [`Peer::address`] with its prefix length, as `ip addr add` and segue's `addr` take it.
    pub fn prefix(self, net: u8, family: Family) -> String {
        let length = match family {
            Family::V4 => 24,
            Family::V6 => 64,
        };
        format!("{}/{length}", self.address(net, family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lie_in_the_ranges_for_benchmarks_and_documentation() {
        assert_eq!(Peer::A.prefix(0, Family::V4), "198.18.0.1/24");
        assert_eq!(Peer::B.prefix(0, Family::V6), "2001:db8::2/64");
        assert_eq!(Peer::B.prefix(3, Family::V4), "198.19.3.2/24");
        assert_eq!(Peer::A.prefix(3, Family::V6), "2001:db8:3::1/64");
    }
}
