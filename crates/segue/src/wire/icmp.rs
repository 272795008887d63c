//! ICMP for IPv4 (RFC 792) and for IPv6 (RFC 4443): the header that all messages share, message types, which messages
//! are errors, and about which packets an error may be sent.
//!
//! Every message begins with 8 bytes: type, code, checksum, and 4 bytes whose meaning depends on the type. In an error
//! message the packet that it is about follows them.

use core::net::Ipv6Addr;

use super::address::{is_host_v4, is_host_v6};
use super::{ipv4, ipv6, protocol, read_u16};
use crate::checksum::{Field, Sum, pseudo_v6};

/// Length in bytes of the header that all messages share.
pub const LEN: usize = 8;
/// Offset of the message type.
pub const TYPE: usize = 0;
/// Offset of the code, which divides a type.
pub const CODE: usize = 1;
/// Checksum of the message; for IPv6 it covers a pseudo-header too (RFC 4443, section 2.3).
pub const CHECKSUM: usize = 2;
/// The 4 bytes whose meaning depends on the type.
pub const REST: usize = 4;
/// Identifier of an IPv4 query and of its reply (RFC 792), and of an IPv6 echo (RFC 4443, section 4).
pub const IDENTIFIER: usize = 4;
/// Next-hop MTU in an IPv4 "fragmentation needed" (RFC 1191, section 4).
pub const NEXT_HOP_MTU: usize = 6;
/// The packet that an error message is about.
pub const QUOTED: usize = LEN;

/// Largest IPv4 packet with an ICMP error that a router sends, bytes (RFC 1812, section 4.3.2.3).
pub const MOST_V4: usize = 576;
/// Largest IPv6 packet with an ICMPv6 error, bytes: the smallest MTU of a link (RFC 4443, section 2.4 (c)).
pub const MOST_V6: usize = 1280;

/// Message types and codes of ICMP for IPv4 (IANA "ICMP Parameters").
pub mod v4 {
    /// Type of an echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Type of destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Source quench (deprecated by RFC 6633).
    pub const SOURCE_QUENCH: u8 = 4;
    /// Type of a redirect.
    pub const REDIRECT: u8 = 5;
    /// Type of an echo request.
    pub const ECHO: u8 = 8;
    /// Type of a router advertisement (RFC 1256).
    pub const ROUTER_ADVERTISEMENT: u8 = 9;
    /// Type of a router solicitation (RFC 1256).
    pub const ROUTER_SOLICITATION: u8 = 10;
    /// Type of time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Type of parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
    /// Type of a timestamp request.
    pub const TIMESTAMP: u8 = 13;
    /// Type of a timestamp reply.
    pub const TIMESTAMP_REPLY: u8 = 14;
    /// Information request (deprecated by RFC 6918).
    pub const INFORMATION: u8 = 15;
    /// Information reply (deprecated by RFC 6918).
    pub const INFORMATION_REPLY: u8 = 16;
    /// Address mask request (deprecated by RFC 6918).
    pub const ADDRESS_MASK: u8 = 17;
    /// Address mask reply (deprecated by RFC 6918).
    pub const ADDRESS_MASK_REPLY: u8 = 18;
    /// Type of an extended echo request (RFC 8335).
    pub const EXTENDED_ECHO: u8 = 42;
    /// Type of an extended echo reply (RFC 8335).
    pub const EXTENDED_ECHO_REPLY: u8 = 43;

    /// Code of "destination unreachable": no route to the network.
    pub const NET_UNREACHABLE: u8 = 0;
    /// Code of "destination unreachable": the host does not answer.
    pub const HOST_UNREACHABLE: u8 = 1;
    /// Code of "destination unreachable": fragmentation is needed, and Don't Fragment is set.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Code of "destination unreachable": filtered by an administrator (RFC 1812, section 5.2.7.1).
    pub const PROHIBITED: u8 = 13;
    /// Code of "destination unreachable": communication with the destination network is prohibited.
    pub const NET_PROHIBITED: u8 = 9;
    /// Code of "destination unreachable": communication with the destination host is prohibited.
    pub const HOST_PROHIBITED: u8 = 10;

    /// Returns whether a message of this type counts as an error, about which no error may be sent (RFC 1122, section
    /// 3.2.2).
    ///
    /// Errors are unreachable, source quench, redirect, time exceeded and parameter problem. The queries of RFC 1122,
    /// router discovery (RFC 1256) and extended echo (RFC 8335) are not. Any other type may be an error that is not
    /// known here, and counts as one, as in Linux (`icmp_send`).
    pub const fn is_error(kind: u8) -> bool {
        !has_identifier(kind)
            && !matches!(kind, ROUTER_ADVERTISEMENT | ROUTER_SOLICITATION | EXTENDED_ECHO | EXTENDED_ECHO_REPLY)
    }

    /// Returns whether a message of the given type is one of RFC 1122's queries or a reply to one, with an
    /// [`IDENTIFIER`](super::IDENTIFIER) that the reply repeats.
    pub const fn has_identifier(kind: u8) -> bool {
        matches!(kind, ECHO_REPLY | ECHO | TIMESTAMP..=ADDRESS_MASK_REPLY)
    }
}

/// Message types and codes of ICMP for IPv6 (IANA "ICMPv6 Parameters"); those of neighbour discovery are in
/// [`ndisc`](super::ndisc).
pub mod v6 {
    /// Type of destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Type of packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Type of time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Type of parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Type of an echo request.
    pub const ECHO: u8 = 128;
    /// Type of an echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Type of a redirect (RFC 4861, section 4.5).
    pub const REDIRECT: u8 = 137;

    /// Code of "destination unreachable": no route.
    pub const NO_ROUTE: u8 = 0;
    /// Code of "destination unreachable": filtered by an administrator.
    pub const PROHIBITED: u8 = 1;
    /// Code of "destination unreachable": the address does not answer.
    pub const ADDRESS_UNREACHABLE: u8 = 3;

    /// The bit of an ICMPv6 type that marks informational messages.
    const INFORMATIONAL: u8 = 0x80;

    /// Returns whether a message of this type counts as an error, about which no error may be sent: the types below 128
    /// (RFC 4443, section 2.1), and redirect (section 2.4 (e.2)).
    pub const fn is_error(kind: u8) -> bool {
        kind & INFORMATIONAL == 0 || kind == REDIRECT
    }
}

/// Returns whether the IPv4 packet in `bytes` is an ICMP error ([`v4::is_error`]), or is truncated before its ICMP
/// type. A later fragment is judged by its first byte and must be recognised by the caller.
pub fn is_error_v4(bytes: &[u8]) -> bool {
    let Some(&first) = bytes.first() else { return false };
    bytes.get(ipv4::PROTOCOL) == Some(&protocol::ICMP)
        && bytes.get(ipv4::header_len(first) + TYPE).is_none_or(|kind| v4::is_error(*kind))
}

/// Returns whether the IPv6 packet in `bytes` is an ICMPv6 error ([`v6::is_error`]), or its type is unreadable: the
/// packet is truncated before it, or has more than [`ipv6::MAX_EXTENSIONS`] extension headers.
///
/// The first fragment of an error counts as one. A later fragment does not: errors fit every link (RFC 4443, section
/// 2.4 (c)) and are not fragmented.
pub fn is_error_v6(bytes: &[u8]) -> bool {
    let Some(&first) = bytes.get(ipv6::NEXT_HEADER) else { return true };
    let (mut next, mut at) = (first, ipv6::LEN);
    // One more than there may be, for the fragment header.
    for _ in 0..=ipv6::MAX_EXTENSIONS + 1 {
        let Some(rest) = bytes.get(at..) else { return true };
        match next {
            protocol::ICMPV6 => return rest.get(TYPE).is_none_or(|kind| v6::is_error(*kind)),
            protocol::FRAGMENT => {
                let (Some(&following), Some(word)) = (rest.first(), read_u16(rest, ipv6::FRAGMENT)) else {
                    return true;
                };
                if word & ipv6::OFFSET != 0 {
                    return false;
                }
                (next, at) = (following, at + ipv6::FRAGMENT_LEN);
            }
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => {
                let Some(&[following, units]) = rest.first_chunk() else { return true };
                (next, at) = (following, at + 8 + usize::from(units) * 8);
            }
            _ => return false,
        }
    }
    true
}

/// Returns whether an ICMP error may be sent about the IPv4 packet in `bytes` (RFC 1122, section 3.2.2; RFC 1812,
/// section 4.3.2.7): it is no error and no later fragment, and goes from one host to one host. `bytes` may end after
/// the first bytes of an ICMP message.
pub fn may_answer_v4(bytes: &[u8]) -> bool {
    let is_first = read_u16(bytes, ipv4::FRAGMENT).is_some_and(|word| word & ipv4::OFFSET == 0);
    is_first
        && !is_error_v4(bytes)
        && ipv4::source(bytes).is_some_and(is_host_v4)
        && ipv4::destination(bytes).is_some_and(is_host_v4)
}

/// Returns whether an ICMPv6 error may be sent about the IPv6 packet in `bytes` (RFC 4443, section 2.4 (e)): it is no
/// error, and goes from one host to one host. `bytes` may end after the first bytes of an ICMPv6 message.
///
/// That section allows "packet too big" about multicast as well; it is not sent, since no multicast is forwarded.
pub fn may_answer_v6(bytes: &[u8]) -> bool {
    !is_error_v6(bytes)
        && ipv6::source(bytes).is_some_and(is_host_v6)
        && ipv6::destination(bytes).is_some_and(is_host_v6)
}

/// Writes the header of an ICMP message for IPv4 into the first [`LEN`] bytes of `message`, whose other bytes already
/// hold its data, and completes the checksum. `rest` is what follows the checksum. `None`, and nothing is written,
/// where `message` is shorter than [`LEN`].
pub fn emit_v4(message: &mut [u8], kind: u8, code: u8, rest: u32) -> Option<()> {
    emit(message, kind, code, rest, Sum::ZERO)
}

/// Writes the header of an ICMPv6 message as [`emit_v4`] does; the checksum covers the pseudo-header of `source` and
/// `destination` as well.
pub fn emit_v6(
    message: &mut [u8],
    (source, destination): (Ipv6Addr, Ipv6Addr),
    kind: u8,
    code: u8,
    rest: u32,
) -> Option<()> {
    let pseudo = pseudo_v6(source.octets(), destination.octets(), protocol::ICMPV6, message.len());
    emit(message, kind, code, rest, pseudo)
}

fn emit(message: &mut [u8], kind: u8, code: u8, rest: u32, pseudo: Sum) -> Option<()> {
    let header: &mut [u8; LEN] = message.first_chunk_mut()?;
    let [a, b, c, d] = rest.to_be_bytes();
    *header = [kind, code, 0, 0, a, b, c, d];
    let mut sum = pseudo;
    sum.add(message);
    let field = Field::complete(sum).value().to_be_bytes();
    message[CHECKSUM..CHECKSUM + 2].copy_from_slice(&field);
    Some(())
}

/// Returns whether the checksum of an ICMPv6 message between two addresses is right.
pub fn is_sum_right_v6(message: &[u8], source: Ipv6Addr, destination: Ipv6Addr) -> bool {
    let mut sum = pseudo_v6(source.octets(), destination.octets(), protocol::ICMPV6, message.len());
    sum.add(message);
    Field::complete(sum).value() == 0
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_errors_of_ipv4_are_those_that_are_no_known_query() {
        // RFC 1122, section 3.2.2; RFC 1256; RFC 8335.
        let informational: Vec<u8> = (0..=u8::MAX).filter(|kind| !v4::is_error(*kind)).collect();
        assert_eq!(informational, [0, 8, 9, 10, 13, 14, 15, 16, 17, 18, 42, 43]);
        let identified: Vec<u8> = (0..=u8::MAX).filter(|kind| v4::has_identifier(*kind)).collect();
        assert_eq!(identified, [0, 8, 13, 14, 15, 16, 17, 18]);
        use v4::*;
        for kind in [UNREACHABLE, SOURCE_QUENCH, REDIRECT, TIME_EXCEEDED, PARAMETER_PROBLEM] {
            assert!(is_error(kind), "{kind}");
        }
    }

    #[test]
    fn the_errors_of_ipv6_are_the_lower_half_and_redirect() {
        let errors: Vec<u8> = (0..=u8::MAX).filter(|kind| v6::is_error(*kind)).collect();
        assert_eq!(errors, [(0..128).collect(), vec![137]].concat());
    }

    /// Builds an IPv4 packet with options of `options` bytes.
    fn packet_v4(options: usize, number: u8, kind: u8) -> Vec<u8> {
        let mut bytes = vec![0; ipv4::MIN_LEN + options];
        bytes[0] = 0x45 + (options / 4) as u8;
        bytes[ipv4::PROTOCOL] = number;
        bytes.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn an_ipv4_packet_that_ends_before_its_type_counts_as_an_error() {
        for options in [0, 8] {
            for (kind, expected) in [(v4::UNREACHABLE, true), (v4::ECHO, false), (v4::ROUTER_ADVERTISEMENT, false)] {
                let packet = packet_v4(options, protocol::ICMP, kind);
                assert_eq!(is_error_v4(&packet), expected, "{kind}");
                for len in ipv4::MIN_LEN..packet.len() - 7 {
                    assert!(is_error_v4(&packet[..len]), "{len}");
                }
            }
            let packet = packet_v4(options, protocol::UDP, v4::UNREACHABLE);
            assert!((0..packet.len()).all(|len| !is_error_v4(&packet[..len])));
        }
    }

    /// Builds an IPv6 packet with these extension headers of 8 bytes.
    fn packet_v6(kinds: &[u8], last: u8, kind: u8) -> Vec<u8> {
        let mut bytes = vec![0; ipv6::LEN];
        let mut next_at = ipv6::NEXT_HEADER;
        for &extension in kinds {
            bytes[next_at] = extension;
            next_at = bytes.len();
            bytes.extend([0; 8]);
        }
        bytes[next_at] = last;
        bytes.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn ipv6_errors_are_found_behind_extension_headers() {
        use protocol::{DESTINATION, FRAGMENT, HOP_BY_HOP, ICMPV6, ROUTING};
        for kinds in [&[][..], &[HOP_BY_HOP], &[FRAGMENT], &[HOP_BY_HOP, ROUTING, DESTINATION, FRAGMENT]] {
            for (kind, expected) in [(1, true), (128, false), (137, true)] {
                let packet = packet_v6(kinds, ICMPV6, kind);
                assert_eq!(is_error_v6(&packet), expected, "{kinds:?} {kind}");
                for len in 0..packet.len() - 7 {
                    assert!(is_error_v6(&packet[..len]), "{len}: it cannot be read far enough");
                }
            }
            assert!(!is_error_v6(&packet_v6(kinds, protocol::UDP, 1)));
        }
        let mut later = packet_v6(&[FRAGMENT], ICMPV6, 1);
        later[ipv6::LEN + 3] = 8;
        assert!(!is_error_v6(&later));
        assert!(is_error_v6(&packet_v6(&[DESTINATION; ipv6::MAX_EXTENSIONS + 2], ICMPV6, 128)), "too many to follow");
    }

    #[test]
    fn an_error_is_sent_about_packets_between_two_hosts_that_are_no_errors_or_later_fragments() {
        let v4_of = |source: &str, destination: &str, number, kind, fragment: u16| {
            let mut packet = packet_v4(0, number, kind);
            packet[ipv4::FRAGMENT..ipv4::FRAGMENT + 2].copy_from_slice(&fragment.to_be_bytes());
            packet[ipv4::SRC].copy_from_slice(&source.parse::<Ipv4Addr>().unwrap().octets());
            packet[ipv4::DST].copy_from_slice(&destination.parse::<Ipv4Addr>().unwrap().octets());
            packet
        };
        let (a, b) = ("198.18.0.1", "198.18.1.1");
        for (source, destination, number, kind, fragment, expected) in [
            (a, b, protocol::UDP, 0, 0, true),
            (a, b, protocol::UDP, 0, ipv4::DF, true),
            (a, b, protocol::UDP, 0, ipv4::MF, true),
            (a, b, protocol::UDP, 0, ipv4::MF | 1, false),
            (a, b, protocol::UDP, 0, 1, false),
            (a, b, protocol::ICMP, v4::ECHO, 0, true),
            (a, b, protocol::ICMP, v4::UNREACHABLE, 0, false),
            ("0.0.0.0", b, protocol::UDP, 0, 0, false),
            ("127.0.0.1", b, protocol::UDP, 0, 0, false),
            ("239.0.0.1", b, protocol::UDP, 0, 0, false),
            ("240.0.0.1", b, protocol::UDP, 0, 0, false),
            ("255.255.255.254", b, protocol::UDP, 0, 0, false),
            ("255.255.255.255", b, protocol::UDP, 0, 0, false),
            (a, "0.0.0.0", protocol::UDP, 0, 0, false),
            (a, "239.0.0.1", protocol::UDP, 0, 0, false),
            (a, "240.0.0.1", protocol::UDP, 0, 0, false),
            (a, "255.255.255.255", protocol::UDP, 0, 0, false),
        ] {
            let packet = v4_of(source, destination, number, kind, fragment);
            assert_eq!(may_answer_v4(&packet), expected, "{source} {destination} {number} {kind} {fragment:#x}");
            assert!((0..ipv4::MIN_LEN).all(|len| !may_answer_v4(&packet[..len])), "cut short");
        }
        let v6_of = |source: &str, destination: &str, number, kind| {
            let mut packet = packet_v6(&[], number, kind);
            packet[ipv6::SRC].copy_from_slice(&source.parse::<Ipv6Addr>().unwrap().octets());
            packet[ipv6::DST].copy_from_slice(&destination.parse::<Ipv6Addr>().unwrap().octets());
            packet
        };
        let (a, b) = ("2001:db8::1", "2001:db8:1::1");
        for (source, destination, number, kind, expected) in [
            (a, b, protocol::UDP, 0, true),
            (a, b, protocol::ICMPV6, v6::ECHO, true),
            (a, b, protocol::ICMPV6, v6::UNREACHABLE, false),
            (a, b, protocol::ICMPV6, v6::REDIRECT, false),
            ("fe80::1", b, protocol::UDP, 0, true),
            ("::", b, protocol::UDP, 0, false),
            ("::1", b, protocol::UDP, 0, false),
            ("ff02::1", b, protocol::UDP, 0, false),
            (a, "::", protocol::UDP, 0, false),
            (a, "ff02::1", protocol::UDP, 0, false),
        ] {
            let packet = v6_of(source, destination, number, kind);
            assert_eq!(may_answer_v6(&packet), expected, "{source} {destination} {number} {kind}");
            assert!((0..ipv6::LEN).all(|len| !may_answer_v6(&packet[..len])), "cut short");
        }
    }

    #[test]
    fn messages_are_written_with_their_checksum() {
        let mut message = [0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 1, 2, 3];
        emit_v4(&mut message, v4::UNREACHABLE, v4::FRAGMENTATION_NEEDED, 1400).unwrap();
        assert_eq!(message[..2], [3, 4]);
        assert_eq!(read_u16(&message, NEXT_HOP_MTU), Some(1400));
        assert_eq!(Field::complete(Sum::of(&message)).value(), 0);
        let (source, destination) = (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::LOCALHOST);
        emit_v6(&mut message, (source, destination), v6::PACKET_TOO_BIG, 0, 70_000).unwrap();
        assert!(is_sum_right_v6(&message, source, destination));
        assert_eq!(message[4..8], 70_000_u32.to_be_bytes());
        message[9] ^= 1;
        assert!(!is_sum_right_v6(&message, source, destination));
        for len in 0..LEN {
            let mut short = vec![7; len];
            assert_eq!(emit_v4(&mut short, 3, 1, 0), None);
            assert_eq!(emit_v6(&mut short, (source, destination), 1, 0, 0), None);
            assert!(short.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn extension_headers_are_followed_by_their_lengths_and_up_to_the_most() {
        use protocol::{DESTINATION, FRAGMENT, ICMPV6};
        // One header of 24 bytes.
        let mut long = packet_v6(&[DESTINATION; 3], ICMPV6, v6::ECHO);
        (long[ipv6::LEN], long[ipv6::LEN + 1]) = (ICMPV6, 2);
        assert!(!is_error_v6(&long));
        for (count, expected) in [(ipv6::MAX_EXTENSIONS, false), (ipv6::MAX_EXTENSIONS + 1, true)] {
            let kinds = [vec![DESTINATION; count], vec![FRAGMENT]].concat();
            assert_eq!(is_error_v6(&packet_v6(&kinds, ICMPV6, v6::ECHO)), expected, "{count} and a fragment header");
        }
    }
}
