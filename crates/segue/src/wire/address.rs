//! Classes of IP addresses: those that may belong to one host, those that a router forwards to, and those that may be
//! the end of a tunnel.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns whether `address` may be that of one host on a network: not "this network" (0.0.0.0/8), loopback, multicast,
/// or the reserved range with the limited broadcast address (240.0.0.0/4). See RFC 1122, section 3.2.1.3, and RFC 1812,
/// section 5.3.7.
#[inline]
pub const fn is_host_v4(address: Ipv4Addr) -> bool {
    !matches!(address.to_bits() >> 24, 0 | 127 | 224..)
}

/// Returns whether `address` may be that of one host on a network: neither unspecified, nor loopback, nor multicast
/// (RFC 4291, sections 2.5.2, 2.5.3 and 2.7).
#[inline]
pub const fn is_host_v6(address: Ipv6Addr) -> bool {
    address.to_bits() > 1 && !address.is_multicast()
}

/// Returns whether `address` may be that of one host on a network; see [`is_host_v4`] and [`is_host_v6`].
#[inline]
pub const fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_host_v4(address),
        IpAddr::V6(address) => is_host_v6(address),
    }
}

/// Returns whether `address` may be the end of a tunnel, in the outer headers: that of one host, on any network.
///
/// Refused are 0.0.0.0/8 (RFC 1122, section 3.2.1.3), the limited broadcast address, multicast, the unspecified address
/// of IPv6, and IPv6 addresses with an IPv4 address in them, which no packet may carry (`::ffff:0:0/96`; RFC 4291,
/// section 2.5.5.2). Unlike [`is_host`] it accepts loopback, for both ends on one machine, and the reserved range
/// 240.0.0.0/4, which Linux routes and takes as the remote of a tunnel.
#[inline]
pub const fn is_endpoint(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.to_bits() >> 24 != 0 && !address.is_multicast() && !address.is_broadcast(),
        IpAddr::V6(address) => address.to_bits() != 0 && !address.is_multicast() && address.to_ipv4_mapped().is_none(),
    }
}

/// Returns whether a router forwards packets from and to `address`: that of one host, and not link-local (RFC 1812,
/// sections 5.3.4 and 5.3.7; RFC 3927, section 2.6.2).
#[inline]
pub const fn is_forwardable_v4(address: Ipv4Addr) -> bool {
    is_host_v4(address) && !address.is_link_local()
}

/// Returns whether a router forwards packets from and to `address`: that of one host, and not link-local (RFC 4291,
/// section 2.5.6).
#[inline]
pub const fn is_forwardable_v6(address: Ipv6Addr) -> bool {
    is_host_v6(address) && !address.is_unicast_link_local()
}

/// Returns the IPv4 address at the start of `bytes`, or `None` if there are fewer than 4.
#[inline]
pub(super) fn v4(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
}

/// Returns the IPv6 address at the start of `bytes`, or `None` if there are fewer than 16.
#[inline]
pub(super) fn v6(bytes: &[u8]) -> Option<Ipv6Addr> {
    bytes.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_what_is_forwarded_to() {
        for (address, host, forwardable) in [
            ("0.0.0.0", false, false),
            ("0.255.255.255", false, false),
            ("1.0.0.0", true, true),
            ("127.0.0.1", false, false),
            ("128.0.0.1", true, true),
            ("169.253.255.255", true, true),
            ("169.254.0.1", true, false),
            ("169.255.0.0", true, true),
            ("198.18.0.1", true, true),
            ("223.255.255.255", true, true),
            ("224.0.0.1", false, false),
            ("240.0.0.1", false, false),
            ("255.255.255.255", false, false),
            ("::", false, false),
            ("::1", false, false),
            ("::2", true, true),
            ("2001:db8::1", true, true),
            ("fe7f::1", true, true),
            ("fe80::1", true, false),
            ("febf::1", true, false),
            ("fec0::1", true, true),
            ("ff02::1", false, false),
        ] {
            let parsed: IpAddr = address.parse().unwrap();
            let found = match parsed {
                IpAddr::V4(parsed) => is_forwardable_v4(parsed),
                IpAddr::V6(parsed) => is_forwardable_v6(parsed),
            };
            assert_eq!((is_host(parsed), found), (host, forwardable), "{address}");
        }
    }

    #[test]
    fn the_ends_of_tunnels() {
        for (address, expected) in [
            ("0.0.0.0", false),
            ("0.0.0.1", false),
            ("0.255.255.255", false),
            ("1.0.0.0", true),
            ("127.0.0.1", true),
            ("169.254.0.1", true),
            ("198.18.0.1", true),
            ("223.255.255.255", true),
            ("224.0.0.0", false),
            ("239.255.255.255", false),
            ("240.0.0.1", true),
            ("255.255.255.254", true),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", true),
            ("::fffe:c612:1", true),
            ("::ffff:198.18.0.1", false),
            ("::ffff:0.0.0.0", false),
            ("::1:0:0:0", true),
            ("64:ff9b::c612:1", true),
            ("2001:db8::1", true),
            ("fe80::1", true),
            ("ff02::1", false),
        ] {
            assert_eq!(is_endpoint(address.parse().unwrap()), expected, "{address}");
        }
    }
}
