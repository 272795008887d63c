//! The frames by which a router asks for link addresses and answers for its NAT: ARP (RFC 826), neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use segue::checksum::{Field, pseudo_v6};
use segue::wire::protocol;

use super::tables::InterfaceAddrs;
use crate::route::Hop;

const ARP: [u8; 2] = [8, 6];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// ICMPv6 types.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options with the link address of a solicitation's sender, and of whom an advertisement is about.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// Flags of an advertisement.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Bytes of a frame that are read: an advertisement with its option.
pub(super) const MAX_LEN: usize = 128;

/// What somebody says of his own link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advertisement {
    /// Whose it is; none that can be one where the sender has no address yet.
    pub(super) address: IpAddr,
    /// The link address, that of one host. An answer by neighbour discovery may leave it out.
    pub(super) mac: Option<[u8; 6]>,
    /// It answers a question of ours, so that its sender is within reach.
    pub(super) is_solicited: bool,
    /// It counts where another link address is known.
    pub(super) is_override: bool,
}

/// Something heard from a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeighbourMessage {
    /// Of itself.
    pub(super) advertisement: Advertisement,
    /// The address whose link address it wants.
    pub(super) target: Option<IpAddr>,
}

/// The frame that asks for a neighbour's link address: at the one that is known (RFC 1122, section 2.3.2.1; RFC 4861, section
/// 7.3.3), or everybody.
pub(super) fn solicitation_for(hop: &Hop, port: &InterfaceAddrs, at: Option<[u8; 6]>) -> Vec<u8> {
    if hop.is_v4 {
        let target = Ipv4Addr::from_bits(hop.address as u32);
        let source = port.v4_towards(target).unwrap_or(Ipv4Addr::UNSPECIFIED);
        arp(REQUEST, (port.mac, source), ([0; 6], target), at.unwrap_or([0xff; 6]))
    } else {
        solicitation(port, Ipv6Addr::from_bits(hop.address), at)
    }
}

/// What tells everybody that an address is at this link address now (RFC 5227, section 2.3).
pub(super) fn announcement(mac: [u8; 6], own: Ipv4Addr) -> Vec<u8> {
    arp(REQUEST, (mac, own), ([0; 6], own), [0xff; 6])
}

/// The answer to a question for an address that is this router's.
pub(super) fn answer(mac: [u8; 6], target: Ipv4Addr, by: Ipv4Addr, to: [u8; 6]) -> Vec<u8> {
    arp(REPLY, (mac, target), (to, by), to)
}

fn arp(operation: u8, from: ([u8; 6], Ipv4Addr), to: ([u8; 6], Ipv4Addr), frame_to: [u8; 6]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(42);
    bytes.extend(frame_to);
    bytes.extend(from.0);
    bytes.extend(ARP);
    // Ethernet, IPv4, and the lengths of their addresses.
    bytes.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    for (mac, ip) in [from, to] {
        bytes.extend(mac);
        bytes.extend(ip.octets());
    }
    bytes
}

fn solicitation(port: &InterfaceAddrs, target: Ipv6Addr, at: Option<[u8; 6]>) -> Vec<u8> {
    let source = port.v6.iter().find(|(own, _)| own.is_unicast_link_local()).or(port.v6.first());
    let source = source.map_or(Ipv6Addr::UNSPECIFIED, |(own, _)| *own);
    let tail = [target.octets()[13], target.octets()[14], target.octets()[15]];
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&tail);
    let (to, frame_to) = match at {
        Some(mac) => (target.octets(), mac),
        None => (group, [0x33, 0x33, 0xff, tail[0], tail[1], tail[2]]),
    };
    let mut body = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    body.extend(target.octets());
    if !source.is_unspecified() {
        body.extend([1, 1]);
        body.extend(port.mac);
    }
    let mut sum = pseudo_v6(source.octets(), to, protocol::ICMPV6, body.len());
    sum.add(&body);
    body[2..4].copy_from_slice(&Field::complete(sum).value().to_be_bytes());
    let mut bytes = frame_to.to_vec();
    bytes.extend(port.mac);
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, body.len() as u8, protocol::ICMPV6, 255]);
    bytes.extend(source.octets());
    bytes.extend(to);
    bytes.extend(body);
    bytes
}

/// What the first bytes of a frame tell that came to this port or to a group.
pub(super) fn parse(frame: &[u8]) -> Option<NeighbourMessage> {
    let is_for_one = frame.first()? & 1 == 0;
    match frame.get(12..14)? {
        kind if *kind == ARP => parse_arp(frame.get(14..)?, is_for_one),
        [0x86, 0xdd] => parse_discovery(frame.get(14..)?, is_for_one),
        _ => None,
    }
}

/// A link address that may be one host's.
fn unicast(bytes: &[u8]) -> Option<[u8; 6]> {
    let mac: [u8; 6] = bytes.try_into().ok()?;
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

fn parse_arp(bytes: &[u8], is_for_one: bool) -> Option<NeighbourMessage> {
    let arp = bytes.get(..28)?;
    let ip = |at: usize| IpAddr::from([arp[at], arp[at + 1], arp[at + 2], arp[at + 3]]);
    let (address, mac, target) = (ip(14), unicast(&arp[8..14])?, ip(24));
    let is_reply = arp[7] == REPLY;
    if arp[..7] != [0, 1, 8, 0, 6, 4, 0] || !is_reply && arp[7] != REQUEST {
        return None;
    }
    // Who speaks of himself to everybody, or without having been asked, has not heard a question.
    let is_solicited = is_reply && is_for_one && address != target;
    let advertisement = Advertisement { address, mac: Some(mac), is_solicited, is_override: true };
    Some(NeighbourMessage { advertisement, target: (!is_reply).then_some(target) })
}

/// A solicitation or an advertisement: no extension headers, and what RFC 4861, section 7.1 demands.
fn parse_discovery(ip: &[u8], is_for_one: bool) -> Option<NeighbourMessage> {
    let (header, body) = (ip.get(..40)?, ip.get(40..)?);
    let body = body.get(..usize::from(u16::from_be_bytes([header[4], header[5]])))?;
    let [kind @ (SOLICITATION | ADVERTISEMENT), 0, _, _, flags, ..] = *body else { return None };
    let (source, to): ([u8; 16], [u8; 16]) = (header[8..24].try_into().ok()?, header[24..40].try_into().ok()?);
    let mut sum = pseudo_v6(source, to, protocol::ICMPV6, body.len());
    sum.add(body);
    let target: [u8; 16] = body.get(8..24)?.try_into().ok()?;
    if header[6..8] != [protocol::ICMPV6, 255] || target[0] == 0xff || Field::complete(sum).value() != 0 {
        return None;
    }
    let is_advertisement = kind == ADVERTISEMENT;
    let wanted = if is_advertisement { TARGET_LINK } else { SOURCE_LINK };
    let mut mac = None;
    let mut options = &body[24..];
    while let [kind, units, ..] = *options {
        let len = usize::from(units) * 8;
        let option = options.get(..len).filter(|option| !option.is_empty())?;
        if kind == wanted {
            mac = Some(unicast(option.get(2..8)?)?);
        }
        options = &options[len..];
    }
    if is_advertisement {
        let is_solicited = flags & SOLICITED != 0;
        if is_solicited && (to[0] == 0xff || !is_for_one) {
            return None;
        }
        let is_override = flags & OVERRIDE != 0;
        return Some(NeighbourMessage {
            advertisement: Advertisement { address: target.into(), mac, is_solicited, is_override },
            target: None,
        });
    }
    let advertisement =
        Advertisement { address: source.into(), mac: Some(mac?), is_solicited: false, is_override: true };
    Some(NeighbourMessage { advertisement, target: Some(target.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn v4(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, 2, last)
    }

    fn v6(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, last)
    }

    #[test]
    fn of_arp_a_reply_to_one_host_answers_and_anything_else_tells() {
        let reply = |to| arp(REPLY, (OTHER, v4(7)), (OWN, v4(1)), to);
        let request = |target| arp(REQUEST, (OTHER, v4(7)), ([0; 6], target), [0xff; 6]);
        let gratuitous = arp(REPLY, (OTHER, v4(7)), (OTHER, v4(7)), OWN);
        for (frame, is_solicited, target) in [
            (reply(OWN), true, None),
            (reply([0xff; 6]), false, None),
            (gratuitous, false, None),
            (request(v4(1)), false, Some(v4(1).into())),
            (request(v4(7)), false, Some(v4(7).into())),
        ] {
            let advertisement =
                Advertisement { address: v4(7).into(), mac: Some(OTHER), is_solicited, is_override: true };
            assert_eq!(parse(&frame), Some(NeighbourMessage { advertisement, target }), "{frame:x?}");
            assert!((0..frame.len()).all(|len| parse(&frame[..len]).is_none()));
        }
        for mac in [[0; 6], [0xff; 6], [0x33, 0x33, 0, 0, 0, 1]] {
            assert_eq!(parse(&arp(REPLY, (mac, v4(7)), (OWN, v4(1)), OWN)), None, "{mac:x?}");
        }
    }

    /// An advertisement of 2001:db8:2::7 with these flags and this link address.
    fn advertisement(to: Ipv6Addr, frame_to: [u8; 6], flags: u8, mac: Option<[u8; 6]>) -> Vec<u8> {
        let mut body = vec![ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
        body.extend(v6(7).octets());
        if let Some(mac) = mac {
            body.extend([TARGET_LINK, 1]);
            body.extend(mac);
        }
        let mut sum = pseudo_v6(v6(7).octets(), to.octets(), protocol::ICMPV6, body.len());
        sum.add(&body);
        body[2..4].copy_from_slice(&Field::complete(sum).value().to_be_bytes());
        let head = [&frame_to[..], &OTHER, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, body.len() as u8, protocol::ICMPV6, 255]];
        [&head.concat()[..], &v6(7).octets(), &to.octets(), &body].concat()
    }

    #[test]
    fn advertisements_say_by_their_flags_what_they_are() {
        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let group = [0x33, 0x33, 0, 0, 0, 1];
        for (to, frame_to, flags, mac) in [
            (all, group, OVERRIDE, Some(OTHER)),
            (all, group, 0, Some(OTHER)),
            (v6(1), OWN, OVERRIDE | SOLICITED, Some(OTHER)),
            // Who was asked at his link address may leave it out (RFC 4861, section 7.2.4).
            (v6(1), OWN, SOLICITED, None),
        ] {
            let frame = advertisement(to, frame_to, flags, mac);
            let (is_solicited, is_override) = (flags & SOLICITED != 0, flags & OVERRIDE != 0);
            let advertisement = Advertisement { address: v6(7).into(), mac, is_solicited, is_override };
            assert_eq!(parse(&frame), Some(NeighbourMessage { advertisement, target: None }));
            assert!((0..frame.len()).all(|len| parse(&frame[..len]).is_none()));
            for at in 18..frame.len() {
                let mut spoiled = frame.clone();
                spoiled[at] ^= 0x55;
                assert_eq!(parse(&spoiled), None, "byte {at}");
            }
        }
        for (to, frame_to, mac) in [(all, group, OTHER), (v6(1), OWN, [0; 6]), (v6(1), OWN, group)] {
            assert_eq!(parse(&advertisement(to, frame_to, SOLICITED, Some(mac))), None);
        }
    }

    #[test]
    fn questions_go_to_everybody_or_to_one_and_tell_who_asks() {
        let mut port = InterfaceAddrs { mac: OTHER, mtu: 1500, v4: vec![(v4(7), 24)], v6: vec![(v6(7), 64)] };
        let (four, six) = (Hop::new(1, Some(v4(1).into()), 0, true), Hop::new(1, Some(v6(1).into()), 0, false));
        for (hop, source, target, group) in [
            (four, IpAddr::from(v4(7)), IpAddr::from(v4(1)), [0xff; 6]),
            (six, v6(7).into(), v6(1).into(), [0x33, 0x33, 0xff, 0, 0, 1]),
        ] {
            let advertisement =
                Advertisement { address: source, mac: Some(OTHER), is_solicited: false, is_override: true };
            for (at, to) in [(None, group), (Some(OWN), OWN)] {
                let frame = solicitation_for(&hop, &port, at);
                assert_eq!(frame[..6], to);
                assert_eq!(parse(&frame), Some(NeighbourMessage { advertisement, target: Some(target) }));
            }
        }
        // Without an address of its own, nobody is told of a link address.
        port.v6.clear();
        assert_eq!(parse(&solicitation_for(&six, &port, None)), None);
    }
}
