//! What a router reads of a packet, and where it keeps packets that wait.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use segue::packet::{Frag, Kind, Packet, Payload};
use segue::wire::{ipv4, ipv6, protocol};
use segue_port::{Page, PagePool};

/// Whether a packet is for its neighbours alone: IPv6 from or to a link-local address, or to a group, and neighbour discovery
/// with one of the port's `own` addresses, whose hop count no router has touched (RFC 4861, section 7.1).
pub(super) fn is_between_neighbours(packet: &Packet<Page>, own: &[(Ipv6Addr, u8)]) -> bool {
    let Some(header) = ip(packet).filter(|_| !is_v4(packet)) else { return false };
    let is_local =
        |range: Range<usize>| header.get(range).is_some_and(|a| a[0] == 0xff || a[0] == 0xfe && a[1] & 0xc0 == 0x80);
    let is_discovery = || {
        header.get(6..8) == Some(&[protocol::ICMPV6, 255])
            && header.get(ipv6::DST).is_some_and(|to| own.iter().any(|(own, _)| own.octets() == *to))
    };
    is_local(ipv6::DST) || is_local(ipv6::SRC) || is_discovery()
}

fn ip(packet: &Packet<Page>) -> Option<&[u8]> {
    let header = packet.layout.headers().iter().find(|header| header.is_ip())?;
    packet.head.bytes().get(header.start()..header.end())
}

pub(super) fn is_v4(packet: &Packet<Page>) -> bool {
    packet.layout.headers().iter().find(|header| header.is_ip()).is_some_and(|header| header.kind == Kind::Ipv4)
}

fn address_v4(packet: &Packet<Page>, range: Range<usize>) -> Option<Ipv4Addr> {
    let bytes: [u8; 4] = ip(packet).filter(|_| is_v4(packet))?.get(range)?.try_into().ok()?;
    Some(bytes.into())
}

pub(super) fn destination_v4(packet: &Packet<Page>) -> Option<Ipv4Addr> {
    address_v4(packet, ipv4::DST)
}

pub(super) fn source_v4(packet: &Packet<Page>) -> Option<Ipv4Addr> {
    address_v4(packet, ipv4::SRC)
}

/// Whose address a packet says that it comes from.
pub(super) fn source(packet: &Packet<Page>) -> Option<IpAddr> {
    let bytes = ip(packet)?;
    if is_v4(packet) {
        return source_v4(packet).map(IpAddr::V4);
    }
    let bytes: [u8; 16] = bytes.get(ipv6::SRC)?.try_into().ok()?;
    Some(IpAddr::from(bytes))
}

/// A page that begins with these bytes.
pub(super) fn page_of(pages: &mut PagePool, bytes: &[u8]) -> Option<Page> {
    let mut page = pages.take()?;
    page.bytes_mut().get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(page.freeze(bytes.len()))
}

/// Copies the payload to pages of ours: what waits must not keep a slot of a port's ring, behind which the ring would stand
/// still. `false` where no page is free.
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
