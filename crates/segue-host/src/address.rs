//! Addresses with a port, as users write them: `198.18.0.1:80`, `[2001:db8::1]:80`, `host:80`, or without a port; and
//! the addresses that one host may have.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Returns whether `address` may be that of one host on a network: not "this network" (0.0.0.0/8), loopback, multicast,
/// or the reserved range with the limited broadcast address (240.0.0.0/4). See RFC 1122, section 3.2.1.3; the rule of
/// the engine, for programs that know no packets.
pub const fn is_host_v4(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// A host, which may be an address, and the text of its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPort<'a> {
    /// A host, name or address, without brackets.
    pub host: &'a str,
    /// Whether the host was in brackets, as an IPv6 address before a port is (RFC 3986, section 3.2.2).
    pub has_brackets: bool,
    /// The text of the port, after the colon; `None` without one.
    pub port: Option<&'a str>,
}

/// A fault of brackets around a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BracketFault {
    /// The closing bracket is missing.
    Open,
    /// The closing bracket is not followed by a colon or the end.
    Followed,
}

impl<'a> HostPort<'a> {
    /// Divides a text into host and port. One with several colons and no brackets is a host alone: an IPv6 address.
    pub fn split(text: &'a str) -> Result<HostPort<'a>, BracketFault> {
        if let Some(rest) = text.strip_prefix('[') {
            let (host, behind) = rest.split_once(']').ok_or(BracketFault::Open)?;
            let port = behind.strip_prefix(':');
            return match port.is_none() && !behind.is_empty() {
                true => Err(BracketFault::Followed),
                false => Ok(HostPort { host, has_brackets: true, port }),
            };
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (text, None),
        };
        Ok(HostPort { host, has_brackets: false, port })
    }

    /// Returns the number of the port, or `default` where there is none; `None` where it is no port.
    pub fn port_or(&self, default: u16) -> Option<u16> {
        let Some(text) = self.port else { return Some(default) };
        // The standard library takes a sign too.
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
    }
}

/// Parses an IP address with an optional port, whose default is `port`; an IPv6 address may have brackets even without
/// a port. Names are not looked up.
pub fn parse(text: &str, port: u16) -> Option<SocketAddr> {
    // A scope id after an IPv6 address is part of this form only.
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let parts = HostPort::split(text).ok()?;
    let host: IpAddr = parts.host.parse().ok()?;
    (host.is_ipv6() || !parts.has_brackets).then_some(())?;
    Some(SocketAddr::new(host, parts.port_or(port)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_divided_from_their_ports() {
        for (text, host, port) in [
            ("198.18.0.1", "198.18.0.1", None),
            ("198.18.0.1:80", "198.18.0.1", Some("80")),
            ("host:usbip", "host", Some("usbip")),
            ("host:", "host", Some("")),
            (":80", "", Some("80")),
            ("2001:db8::1", "2001:db8::1", None),
            ("[2001:db8::1]", "2001:db8::1", None),
            ("[2001:db8::1]:80", "2001:db8::1", Some("80")),
            ("[fe80::1%2]:80", "fe80::1%2", Some("80")),
        ] {
            let parts = HostPort::split(text).unwrap();
            assert_eq!((parts.host, parts.port, parts.has_brackets), (host, port, text.starts_with('[')), "{text}");
        }
        assert_eq!(HostPort::split("[::1"), Err(BracketFault::Open));
        assert_eq!(HostPort::split("[::1]80"), Err(BracketFault::Followed));
        let number = |text| HostPort::split(text).unwrap().port_or(7);
        assert_eq!([number("a"), number("a:0"), number("a:65535")], [Some(7), Some(0), Some(65_535)]);
        assert_eq!([number("a:65536"), number("a:"), number("a:+5"), number("a:x")], [None; 4]);
    }

    #[test]
    fn addresses_have_the_port_that_is_written_or_the_usual_one() {
        for (text, expected) in [
            ("127.0.0.1:9000", "127.0.0.1:9000"),
            ("127.0.0.1", "127.0.0.1:7"),
            ("::1", "[::1]:7"),
            ("[::1]", "[::1]:7"),
            ("[::1]:9", "[::1]:9"),
            ("[fe80::1%2]:9", "[fe80::1%2]:9"),
        ] {
            assert_eq!(parse(text, 7).map(|address| address.to_string()).as_deref(), Some(expected));
        }
        for wrong in
            ["", "host", "host:9", ":9", "127.0.0.1:", "127.0.0.1:+9", "127.0.0.1:70000", "[127.0.0.1]", "[::1"]
        {
            assert_eq!(parse(wrong, 7), None, "{wrong}");
        }
    }
}
