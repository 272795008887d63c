//! The frames by which a router asks for link addresses and answers for its NAT: ARP (RFC 826), neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use segue::checksum::{Field, pseudo_v6};
use segue::wire::protocol;

use super::tables::Facts;
use crate::route::Hop;

const ARP: [u8; 2] = [8, 6];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// ICMPv6 types.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Bytes of a frame that are read: an advertisement with its option.
pub(super) const LOOK: usize = 128;

/// Something learned from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// This address has this link address.
    Answer(IpAddr, [u8; 6]),
    /// Somebody wants the link address of this one.
    Asked { target: Ipv4Addr, by: Ipv4Addr, mac: [u8; 6] },
}

/// The frame that asks for a neighbour's link address.
pub(super) fn question(hop: &Hop, port: &Facts) -> Vec<u8> {
    if hop.is_v4 {
        let target = Ipv4Addr::from_bits(hop.address as u32);
        arp(REQUEST, (port.mac, source_v4(port, target)), ([0; 6], target), [0xff; 6])
    } else {
        solicitation(port, Ipv6Addr::from_bits(hop.address))
    }
}

/// The answer to a question for an address that is this router's.
pub(super) fn answer(mac: [u8; 6], target: Ipv4Addr, by: Ipv4Addr, to: [u8; 6]) -> Vec<u8> {
    arp(REPLY, (mac, target), (to, by), to)
}

/// The port's address in the net of `target`, its first one otherwise.
fn source_v4(port: &Facts, target: Ipv4Addr) -> Ipv4Addr {
    let is_near = |(own, len): &&(Ipv4Addr, u8)| {
        (own.to_bits() ^ target.to_bits()).checked_shr(32 - u32::from(*len)).unwrap_or(0) == 0
    };
    let near = port.v4.iter().find(is_near).or(port.v4.first());
    near.map_or(Ipv4Addr::UNSPECIFIED, |(own, _)| *own)
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

fn solicitation(port: &Facts, target: Ipv6Addr) -> Vec<u8> {
    let source = port.v6.iter().find(|(own, _)| own.is_unicast_link_local()).or(port.v6.first());
    let source = source.map_or(Ipv6Addr::UNSPECIFIED, |(own, _)| *own);
    let tail = [target.octets()[13], target.octets()[14], target.octets()[15]];
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&tail);
    let mut body = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    body.extend(target.octets());
    if !source.is_unspecified() {
        body.extend([1, 1]);
        body.extend(port.mac);
    }
    let mut sum = pseudo_v6(source.octets(), group, protocol::ICMPV6, body.len());
    sum.add(&body);
    body[2..4].copy_from_slice(&Field::complete(sum).value().to_be_bytes());
    let mut bytes = vec![0x33, 0x33, 0xff];
    bytes.extend(tail);
    bytes.extend(port.mac);
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, body.len() as u8, protocol::ICMPV6, 255]);
    bytes.extend(source.octets());
    bytes.extend(group);
    bytes.extend(body);
    bytes
}

/// What the first bytes of a frame tell; a frame that came to `mac` or to everybody.
pub(super) fn hear(frame: &[u8]) -> Option<Heard> {
    let kind = frame.get(12..14)?;
    if kind == ARP {
        let arp = frame.get(14..42)?;
        let ip = |at: usize| Ipv4Addr::new(arp[at], arp[at + 1], arp[at + 2], arp[at + 3]);
        let mac: [u8; 6] = arp[8..14].try_into().ok()?;
        if arp[..6] != [0, 1, 8, 0, 6, 4] || mac[0] & 1 != 0 {
            return None;
        }
        return match arp[7] {
            REPLY => Some(Heard::Answer(ip(14).into(), mac)),
            REQUEST => Some(Heard::Asked { target: ip(24), by: ip(14), mac }),
            _ => None,
        };
    }
    // An advertisement: no extension headers, and a hop limit that no router has touched (RFC 4861, section 7.1.2).
    let ip = frame.get(14..).filter(|_| kind == [0x86, 0xdd])?;
    let (header, body) = (ip.get(..40)?, ip.get(40..)?);
    if header[6] != protocol::ICMPV6
        || header[7] != 255
        || body.first() != Some(&ADVERTISEMENT)
        || body.get(1) != Some(&0)
    {
        return None;
    }
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let body = body.get(..len)?;
    let mut sum = pseudo_v6(header[8..24].try_into().ok()?, header[24..40].try_into().ok()?, protocol::ICMPV6, len);
    sum.add(body);
    let target: [u8; 16] = body.get(8..24)?.try_into().ok()?;
    if Field::complete(sum).value() != 0 {
        return None;
    }
    let mut options = &body[24..];
    while let [kind, units, ..] = *options {
        let len = usize::from(units) * 8;
        let option = options.get(..len).filter(|option| !option.is_empty())?;
        if kind == 2 {
            let mac: [u8; 6] = option.get(2..8)?.try_into().ok()?;
            return (mac[0] & 1 == 0).then_some(Heard::Answer(Ipv6Addr::from(target).into(), mac));
        }
        options = &options[len..];
    }
    None
}
