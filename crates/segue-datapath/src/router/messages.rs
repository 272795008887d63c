//! ARP packets (RFC 826) and neighbour discovery messages (RFC 4861) that a router sends and reads, in one common form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use segue::wire::arp::{Arp, Operation};
use segue::wire::ndisc::{self, Body, Message, OVERRIDE, SOLICITED, multicast_mac, solicited_node};
use segue::wire::{ethernet, ethertype, ipv6, protocol, read_u16};

use super::tables::InterfaceAddrs;
use crate::route::Hop;

/// Number of bytes at the start of a frame that [`parse`] needs of nearly all messages.
pub(super) const MAX_LEN: usize = 128;

/// The link-layer address that a neighbour advertises as its own, with the flags of the message (RFC 4861, section
/// 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advertisement {
    /// IP address of the neighbour; unspecified where the sender has none yet.
    pub(super) address: IpAddr,
    /// Unicast link-layer address of the neighbour. An answer by neighbour discovery may leave it out.
    pub(super) mac: Option<[u8; 6]>,
    /// Whether the message answers a solicitation of this router, which proves that the neighbour is reachable both
    /// ways.
    pub(super) is_solicited: bool,
    /// Whether the message has the override flag, which replaces a cached link-layer address.
    pub(super) is_override: bool,
}

/// A neighbour message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeighbourMessage {
    /// The link-layer address of the sender.
    pub(super) advertisement: Advertisement,
    /// Target address of a solicitation or an ARP request; `None` for other messages.
    pub(super) target: Option<IpAddr>,
}

/// Returns a request for a neighbour's link-layer address: unicast to the known address in `mac` (RFC 1122, section
/// 2.3.2.1; RFC 4861, section 7.3.3), or else broadcast or multicast.
pub(super) fn solicitation_for(hop: &Hop, port: &InterfaceAddrs, mac: Option<[u8; 6]>) -> Vec<u8> {
    if hop.is_v4 {
        let target_ip = Ipv4Addr::from_bits(hop.address as u32);
        let sender_ip = port.v4_towards(target_ip).unwrap_or(Ipv4Addr::UNSPECIFIED);
        request(port.mac, sender_ip, target_ip, mac.unwrap_or(ethernet::BROADCAST))
    } else {
        neighbour_solicitation(port, Ipv6Addr::from_bits(hop.address), mac)
    }
}

/// Returns the ARP announcement that `own` is at `mac` (RFC 5227, section 2.3).
pub(super) fn announcement(mac: [u8; 6], own: Ipv4Addr) -> Vec<u8> {
    request(mac, own, own, ethernet::BROADCAST)
}

/// Returns the ARP reply to a request for `own`, an address of this router, from `asker` at `asker_mac`.
pub(super) fn reply(mac: [u8; 6], own: Ipv4Addr, asker: Ipv4Addr, asker_mac: [u8; 6]) -> Vec<u8> {
    let (sender_mac, sender_ip, target_mac, target_ip) = (mac, own, asker_mac, asker);
    Arp { operation: Operation::Reply, sender_mac, sender_ip, target_mac, target_ip }.frame(asker_mac).into()
}

fn request(sender_mac: [u8; 6], sender_ip: Ipv4Addr, target_ip: Ipv4Addr, to: [u8; 6]) -> Vec<u8> {
    Arp { operation: Operation::Request, sender_mac, sender_ip, target_mac: [0; 6], target_ip }.frame(to).into()
}

fn neighbour_solicitation(port: &InterfaceAddrs, target: Ipv6Addr, mac: Option<[u8; 6]>) -> Vec<u8> {
    let source = port.v6.iter().find(|(own, _)| own.is_unicast_link_local()).or(port.v6.first());
    let source = source.map_or(Ipv6Addr::UNSPECIFIED, |(own, _)| *own);
    let group = solicited_node(target);
    let (destination, to) = mac.map_or((group, multicast_mac(group)), |mac| (target, mac));
    let source_link = (!source.is_unspecified()).then_some(port.mac);
    let message = Message { source, destination, body: Body::Solicitation { target, source_link } };
    let mut bytes = vec![0; ndisc::MAX_FRAME];
    let len = message.frame(to, port.mac, &mut bytes).unwrap_or(0);
    bytes.truncate(len);
    bytes
}

/// Returns whether a frame of which `front` is the start may be a neighbour solicitation or advertisement, which may
/// have any number of options.
pub(super) fn is_discovery(front: &[u8]) -> bool {
    let Some(ip) = front.get(ethernet::LEN..) else { return false };
    read_u16(front, ethernet::TYPE) == Some(ethertype::IPV6)
        && ip.get(ipv6::NEXT_HEADER) == Some(&protocol::ICMPV6)
        && matches!(ip.get(ipv6::LEN), Some(&(ndisc::SOLICITATION | ndisc::ADVERTISEMENT)))
}

/// Parses a frame to this port or to a group; `None` for anything but an ARP packet, a neighbour solicitation or an
/// advertisement.
pub(super) fn parse(frame: &[u8]) -> Option<NeighbourMessage> {
    let is_unicast = !ethernet::is_group(*frame.first_chunk()?);
    let rest = frame.get(ethernet::LEN..)?;
    match read_u16(frame, ethernet::TYPE)? {
        ethertype::ARP => from_arp(&Arp::parse(rest)?, is_unicast),
        ethertype::IPV6 => from_ndisc(&Message::parse(rest)?, is_unicast),
        _ => None,
    }
}

fn from_arp(arp: &Arp, is_unicast: bool) -> Option<NeighbourMessage> {
    let (address, target) = (IpAddr::V4(arp.sender_ip), IpAddr::V4(arp.target_ip));
    let mac = Some(arp.sender_mac).filter(|mac| ethernet::is_station(*mac))?;
    let is_reply = arp.operation == Operation::Reply;
    // A broadcast or gratuitous reply does not show that the sender has received a request.
    let is_solicited = is_reply && is_unicast && address != target;
    let advertisement = Advertisement { address, mac: Some(mac), is_solicited, is_override: true };
    Some(NeighbourMessage { advertisement, target: (!is_reply).then_some(target) })
}

fn from_ndisc(message: &Message, is_unicast: bool) -> Option<NeighbourMessage> {
    let is_station = |mac: &[u8; 6]| ethernet::is_station(*mac);
    match message.body {
        Body::Solicitation { target, source_link } => {
            let (address, mac) = (message.source.into(), source_link.filter(is_station)?);
            let advertisement = Advertisement { address, mac: Some(mac), is_solicited: false, is_override: true };
            Some(NeighbourMessage { advertisement, target: Some(target.into()) })
        }
        Body::Advertisement { target, target_link, flags } => {
            let (is_solicited, is_override) = (flags & SOLICITED != 0, flags & OVERRIDE != 0);
            if is_solicited && !is_unicast || !target_link.is_none_or(|mac| is_station(&mac)) {
                return None;
            }
            let advertisement = Advertisement { address: target.into(), mac: target_link, is_solicited, is_override };
            Some(NeighbourMessage { advertisement, target: None })
        }
        Body::Redirect { .. } => None,
    }
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

    /// Builds an ARP reply from `sender_mac` at 198.18.2.7, in a frame to `to`.
    fn arp_reply(sender_mac: [u8; 6], (target_mac, target_ip): ([u8; 6], Ipv4Addr), to: [u8; 6]) -> Vec<u8> {
        Arp { operation: Operation::Reply, sender_mac, sender_ip: v4(7), target_mac, target_ip }.frame(to).into()
    }

    #[test]
    fn an_arp_reply_to_one_host_is_solicited_and_nothing_else_is() {
        let reply = |to| arp_reply(OTHER, (OWN, v4(1)), to);
        let request = |target| request(OTHER, v4(7), target, [0xff; 6]);
        let gratuitous = arp_reply(OTHER, (OTHER, v4(7)), OWN);
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
            assert_eq!(parse(&arp_reply(mac, (OWN, v4(1)), OWN)), None, "{mac:x?}");
        }
    }

    /// Builds an advertisement of 2001:db8:2::7 with the given flags and link address.
    fn advertisement(to: Ipv6Addr, frame_to: [u8; 6], flags: u8, mac: Option<[u8; 6]>) -> Vec<u8> {
        let body = Body::Advertisement { target: v6(7), target_link: mac, flags };
        let mut bytes = vec![0; ndisc::MAX_FRAME];
        let len = Message { source: v6(7), destination: to, body }.frame(frame_to, OTHER, &mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn the_flags_of_an_advertisement_are_read() {
        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let group = [0x33, 0x33, 0, 0, 0, 1];
        for (to, frame_to, flags, mac) in [
            (all, group, OVERRIDE, Some(OTHER)),
            (all, group, 0, Some(OTHER)),
            (v6(1), OWN, OVERRIDE | SOLICITED, Some(OTHER)),
            // The answer to a unicast solicitation may leave the link address out (RFC 4861, section 7.2.4).
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
    fn solicitations_go_to_all_or_to_one_with_the_senders_address() {
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
        // A solicitation from the unspecified address has no link address.
        port.v6.clear();
        assert_eq!(parse(&solicitation_for(&six, &port, None)), None);
    }
}
