//! Checks of a layout, and sums that all stages of splitting use.

use super::refusal::Refusal;
use crate::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use crate::packet::{Header, Kind, Layout};
use crate::wire::gre::Gre;
use crate::wire::{ipv4, ipv6, protocol, tcp, udp};

/// Checks the assumptions of later stages: that the layout covers the head, that no header is shorter than its kind,
/// and that UDP and TCP headers directly follow an IP header.
pub(super) fn check(head: &[u8], layout: &Layout) -> Result<(), Refusal> {
    let mut after_ip = false;
    for header in layout.headers() {
        let fits = match header.kind {
            Kind::Ipv4 => usize::from(header.len) >= ipv4::MIN_LEN,
            Kind::Ipv6 => usize::from(header.len) >= ipv6::LEN,
            Kind::Tcp => after_ip && usize::from(header.len) >= tcp::MIN_LEN,
            Kind::Udp => after_ip && usize::from(header.len) == udp::LEN,
            Kind::Gre => head
                .get(header.start()..header.end())
                .and_then(Gre::parse)
                .is_some_and(|gre| gre.len() == usize::from(header.len)),
            _ => true,
        };
        if !fits || header.len % 2 != 0 {
            return Err(Refusal::Layout);
        }
        after_ip = header.is_ip();
    }
    if head.len() == layout.header_len() { Ok(()) } else { Err(Refusal::Layout) }
}

/// Returns the transport header, or why there is none.
pub(super) fn transport(layout: &Layout) -> Result<Header, Refusal> {
    layout.transport().copied().ok_or(match layout.stop() {
        crate::packet::Stop::Fragment => Refusal::Fragment,
        _ => Refusal::Transport,
    })
}

/// Returns the pseudo-header sum of a TCP or UDP header right after the IP header `ip`, for `len` bytes from that
/// header to the end.
pub(super) fn pseudo(head: &[u8], ip: &Header, kind: Kind, len: usize) -> Option<Sum> {
    let number = if kind == Kind::Tcp { protocol::TCP } else { protocol::UDP };
    let header = head.get(ip.start()..ip.end())?;
    if ip.kind == Kind::Ipv4 {
        let (src, dst) = (header.get(ipv4::SRC)?, header.get(ipv4::DST)?);
        return Some(pseudo_v4(src.try_into().ok()?, dst.try_into().ok()?, number, len));
    }
    let (src, dst) = (header.get(ipv6::SRC)?, header.get(ipv6::DST)?);
    Some(pseudo_v6(src.try_into().ok()?, dst.try_into().ok()?, number, len))
}

/// Returns whether the transport checksum covers an address that is not in the fixed part of the IP header.
pub(super) fn is_routed(head: &[u8], ip: &Header) -> bool {
    let is_routed = if ip.kind == Kind::Ipv4 { ipv4::is_routed } else { ipv6::is_routed };
    head.get(ip.start()..ip.end()).is_some_and(is_routed)
}

/// Returns a sum of one 16-bit word.
pub(super) fn word(value: u16) -> Sum {
    let mut sum = Sum::ZERO;
    sum.add_u16(value);
    sum
}

pub(super) fn complete(sum: Sum, udp: bool) -> Field {
    if udp { Field::complete_udp(sum) } else { Field::complete(sum) }
}
