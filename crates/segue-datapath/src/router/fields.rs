//! Fields that a router reads of a packet, and copies of packets that have to wait.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use segue::packet::{Frag, Kind, Packet, Payload};
use segue::wire::{ipv4, ipv6, ndisc, protocol};
use segue_port::{Page, PagePool};

/// Returns whether a packet must not be forwarded because it is for neighbours only: IPv6 from or to a link-local
/// address, or to a multicast one, and neighbour discovery to one of the port's `own` addresses with hop limit 255,
/// which shows that no router has forwarded it (RFC 4861, section 7.1).
pub(super) fn is_between_neighbours(packet: &Packet<Page>, own: &[(Ipv6Addr, u8)]) -> bool {
    let Some(header) = ip(packet).filter(|_| !is_v4(packet)) else { return false };
    let Some(destination) = ipv6::destination(header) else { return false };
    let is_discovery = header.get(ipv6::NEXT_HEADER) == Some(&protocol::ICMPV6)
        && header.get(ipv6::HOP_LIMIT) == Some(&ndisc::HOP_LIMIT)
        && own.iter().any(|(own, _)| *own == destination);
    is_link_local(header) || is_discovery
}

/// Whether a packet that begins with this IP header is IPv6 from or to a link-local address, or to a group.
pub(super) fn is_link_local(header: &[u8]) -> bool {
    let is_local = |address: Ipv6Addr| address.is_multicast() || address.is_unicast_link_local();
    let (Some(source), Some(destination)) = (ipv6::source(header), ipv6::destination(header)) else { return false };
    header[0] >> 4 == 6 && (is_local(destination) || is_local(source))
}

fn ip(packet: &Packet<Page>) -> Option<&[u8]> {
    let header = packet.layout.outer_ip()?;
    packet.head.bytes().get(header.start()..header.end())
}

pub(super) fn is_v4(packet: &Packet<Page>) -> bool {
    packet.layout.outer_ip().is_some_and(|header| header.kind == Kind::Ipv4)
}

pub(super) fn destination_v4(packet: &Packet<Page>) -> Option<Ipv4Addr> {
    ip(packet).filter(|_| is_v4(packet)).and_then(ipv4::destination)
}

pub(super) fn source_v4(packet: &Packet<Page>) -> Option<Ipv4Addr> {
    ip(packet).filter(|_| is_v4(packet)).and_then(ipv4::source)
}

/// Returns the source address of a packet.
pub(super) fn source(packet: &Packet<Page>) -> Option<IpAddr> {
    let header = ip(packet)?;
    if is_v4(packet) { ipv4::source(header).map(IpAddr::V4) } else { ipv6::source(header).map(IpAddr::V6) }
}

/// Returns a page that begins with `bytes`, or `None` where no page is free.
pub(super) fn page_of(pages: &mut PagePool, bytes: &[u8]) -> Option<Page> {
    let mut page = pages.take()?;
    page.bytes_mut().get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(page.freeze(bytes.len()))
}

/// Copies the payload to pages of the pool: a waiting packet must not keep a slot of a port's receive ring, which would
/// stop the ring. Returns `false` where no page is free.
pub(super) fn keep(packet: &mut Packet<Page>, pages: &mut PagePool) -> bool {
    let (mut kept, mut at) = (Payload::default(), 0);
    while at < packet.payload.len() {
        let Some(mut page) = pages.take() else { return false };
        let len = packet.payload.copy_to(at..at + page.bytes_mut().len(), page.bytes_mut());
        kept.push(Frag::all(page.freeze(len)));
        at += len;
    }
    packet.payload = kept;
    true
}
