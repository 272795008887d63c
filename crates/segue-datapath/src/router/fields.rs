//! Readers of packet fields for a router, and copies of packets that must wait.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use segue::packet::{Frag, Frame, Kind, Packet, Start};
use segue::wire::address::{is_forwardable_v4, is_forwardable_v6};
use segue::wire::{ethernet, ethertype, ipv4, ipv6, ndisc, protocol, read_u16};
use segue_port::{Page, PagePool};

/// Returns whether a received frame is for the link address `own` and holds an IP packet that may be forwarded, where a
/// few bytes tell what `Router::accept` finds by the layout: TCP or ICMP over IPv4 without options, or TCP and UDP that
/// [`Frame::plain_ip`] recognises. Any other frame is parsed for that.
#[inline]
pub(super) fn is_routed(frame: &Frame<Page>, own: &[u8; 6]) -> bool {
    let bytes = frame.bytes.bytes();
    if frame.start != Start::Ethernet || bytes.get(ethernet::DST) != Some(&own[..]) {
        return false;
    }
    is_plain_v4(bytes) || frame.plain_ip() == Some(ethernet::LEN) && !is_link_local(&bytes[ethernet::LEN..])
}

/// Returns whether the frame in `bytes` holds TCP or ICMP over an IPv4 header without options, which directly follows
/// the Ethernet header and which the parser lists. It may be padded, or a fragment. No tunnel header can follow: its
/// layout does not depend on the UDP ports of tunnels.
#[inline]
fn is_plain_v4(bytes: &[u8]) -> bool {
    const IP: usize = ethernet::LEN;
    let Some(front) = bytes.first_chunk::<{ IP + ipv4::MIN_LEN }>() else { return false };
    let word = |at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
    word(ethernet::TYPE) == ethertype::IPV4
        && front[IP + ipv4::VERSION_IHL] == 0x45
        && matches!(front[IP + ipv4::PROTOCOL], protocol::TCP | protocol::ICMP)
        && (ipv4::MIN_LEN..=bytes.len() - IP).contains(&usize::from(word(IP + ipv4::TOTAL_LEN)))
}

/// Returns whether a packet must not be forwarded because it is only for neighbours: IPv6 from or to a link-local
/// address, or to a multicast one, and neighbour discovery to one of the port's `own` addresses with hop limit 255,
/// which shows that no router has forwarded it (RFC 4861, section 7.1).
pub(super) fn is_between_neighbours(packet: &Packet<Page>, own: &[(Ipv6Addr, u8)]) -> bool {
    let (Some(ip), Some(AddressPair::V6(_, destination))) = (packet.layout.outer_ip(), ends(packet)) else {
        return false;
    };
    let header = &packet.head.bytes()[ip.start()..ip.end()];
    let is_discovery = header.get(ipv6::NEXT_HEADER) == Some(&protocol::ICMPV6)
        && header.get(ipv6::HOP_LIMIT) == Some(&ndisc::HOP_LIMIT)
        && own.iter().any(|(own, _)| *own == destination);
    is_link_local(header) || is_discovery
}

/// Returns whether a packet with the given IP header is IPv6 from or to a link-local or multicast address.
fn is_link_local(header: &[u8]) -> bool {
    let is_local = |address: Ipv6Addr| address.is_multicast() || address.is_unicast_link_local();
    let (Some(source), Some(destination)) = (ipv6::source(header), ipv6::destination(header)) else { return false };
    header[0] >> 4 == 6 && (is_local(destination) || is_local(source))
}

/// Returns whether a frame for an IP stack has no IP header that could be read: its length exceeds the frame, for
/// example.
pub(super) fn is_malformed_ip(packet: &Packet<Page>) -> bool {
    let kind = read_u16(packet.head.bytes(), ethernet::TYPE);
    packet.layout.outer_ip().is_none() && matches!(kind, Some(ethertype::IPV4 | ethertype::IPV6))
}

/// Copies the first bytes of a packet to `into`. Returns those that were copied.
pub(super) fn copy_front<'a>(packet: &Packet<Page>, into: &'a mut [u8]) -> &'a [u8] {
    let headers = packet.head.len().min(into.len());
    into[..headers].copy_from_slice(&packet.head.bytes()[..headers]);
    let len = headers + packet.payload.copy_to(0..into.len() - headers, &mut into[headers..]);
    &into[..len]
}

/// Source and destination of the outermost IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressPair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

/// Returns source and destination address of a packet, or `None` for a frame without an IP header.
pub(super) fn ends(packet: &Packet<Page>) -> Option<AddressPair> {
    let ip = packet.layout.outer_ip()?;
    let header = packet.head.bytes().get(ip.start()..ip.end())?;
    Some(match ip.kind {
        Kind::Ipv4 => AddressPair::V4(ipv4::source(header)?, ipv4::destination(header)?),
        _ => AddressPair::V6(ipv6::source(header)?, ipv6::destination(header)?),
    })
}

/// Returns the source address of a packet.
pub(super) fn source(packet: &Packet<Page>) -> Option<IpAddr> {
    Some(match ends(packet)? {
        AddressPair::V4(source, _) => source.into(),
        AddressPair::V6(source, _) => source.into(),
    })
}

/// Returns whether a router forwards packets from the given address.
pub(super) fn is_forwardable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_forwardable_v4(address),
        IpAddr::V6(address) => is_forwardable_v6(address),
    }
}

/// Returns a page filled with `bytes` at its start, or `None` if no page is free.
pub(super) fn page_of(pages: &mut PagePool, bytes: &[u8]) -> Option<Page> {
    let mut page = pages.take()?;
    page.bytes_mut().get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(page.freeze(bytes.len()))
}

/// Returns a page like [`page_of`], of the second pool where the first one has none.
pub(super) fn page_of_either([first, second]: [&mut PagePool; 2], bytes: &[u8]) -> Option<Page> {
    page_of(first, bytes).or_else(|| page_of(second, bytes))
}

/// Copies the payload to pages of the pool, because a waiting packet must not occupy a buffer of a port, or a slot of
/// its receive ring, which would stop the ring. Returns `false` where no page is free.
pub(super) fn keep(packet: &mut Packet<Page>, pages: &mut PagePool) -> bool {
    // The copies are appended, and what they are of is dropped then: the packet keeps its memory for ranges.
    let payload = &mut packet.payload;
    let (len, mut at) = (payload.len(), 0);
    while at < len {
        let Some(mut page) = pages.take() else {
            payload.truncate(len);
            return false;
        };
        let copied = payload.copy_to(at..len.min(at + page.bytes_mut().len()), page.bytes_mut());
        payload.push(Frag::all(page.freeze(copied)));
        at += copied;
    }
    payload.advance(len);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_copied_to_short_pages_while_there_are_any() {
        let (mut short, mut long) = (PagePool::with_page_len(2, 4096), PagePool::new(1));
        let mut pages = Vec::new();
        for used in [(1, 0), (2, 0), (2, 1)] {
            let page = page_of_either([&mut short, &mut long], b"header").unwrap();
            assert_eq!(page.as_ref(), b"header");
            pages.push(page);
            assert_eq!((short.in_use(), long.in_use()), used);
        }
        assert!(page_of_either([&mut short, &mut long], b"header").is_none());
    }
}
