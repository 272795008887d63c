//! The fast path of [`split`](super::split()): a train that passes unsplit with its own headers.

use super::check::{check, pseudo};
use super::limits::{Limits, MAX_IP_LEN, MAX_SEGS, MIN_TCP_SIZE};
use crate::checksum::{Field, Sum};
use crate::packet::{Buffer, Gso, GsoKind, Kind, Packet, Unit};
use crate::wire::{ipv4, ipv6, read_u16, tcp};

/// Returns the segmentation that the port must do for a TCP train that it accepts unsplit and whose headers already
/// describe the whole train, as after GRO. `None` for any other, of which a plan finds out the same in more steps.
pub(super) fn gso_of<B: Buffer>(packet: &Packet<B>, limits: &Limits) -> Option<Gso> {
    let gso = gso_if_taken(packet, limits)?;
    let (head, layout) = (packet.head.bytes(), &packet.layout);
    check(head, layout).ok()?;
    let [.., ip, transport] = layout.headers() else { return None };
    let (header, whole) = (head.get(ip.start()..ip.end())?, packet.len());
    let is_whole = if ip.kind == Kind::Ipv4 {
        usize::from(read_u16(header, ipv4::TOTAL_LEN)?) == whole - ip.start()
            && read_u16(header, ipv4::CHECKSUM) != Some(0xffff)
            && Sum::of(header).fold() == 0xffff
    } else {
        usize::from(read_u16(header, ipv6::PAYLOAD_LEN)?) == whole - ip.end()
    };
    let primed = Field::primed(pseudo(head, ip, Kind::Tcp, whole - transport.start())?).value();
    (is_whole && read_u16(head, transport.start() + tcp::CHECKSUM) == Some(primed)).then_some(gso)
}

/// Returns the segmentation like [`gso_of`] for a train just joined by GRO, whose headers describe it.
pub(super) fn gso_of_joined<B: Buffer>(packet: &Packet<B>, limits: &Limits) -> Option<Gso> {
    let gso = gso_if_taken(packet, limits)?;
    debug_assert_eq!(gso_of(packet, limits), Some(gso), "{:?}", packet.head);
    Some(gso)
}

/// Returns the segmentation of a TCP train under one IP header, without options or extension headers, that the port
/// accepts unsplit if the headers describe the whole train.
#[inline(always)]
fn gso_if_taken<B: Buffer>(packet: &Packet<B>, limits: &Limits) -> Option<Gso> {
    let Unit::Train { gso, .. } = packet.offload.unit else { return None };
    let (head, layout, payload) = (packet.head.bytes(), &packet.layout, packet.payload.len());
    let [.., ip, transport] = layout.headers() else { return None };
    let takes = if ip.kind == Kind::Ipv4 { limits.tso4 } else { limits.tso6 };
    let (size, whole) = (usize::from(gso.size), head.len() + payload);
    let is_taken = takes
        && limits.csum
        && payload > size
        && payload <= size.saturating_mul(limits.max_segs.min(MAX_SEGS))
        && payload <= limits.max_piece
        && whole <= limits.max_bytes.min(ip.start() + MAX_IP_LEN)
        && head.len() <= limits.max_head
        && head.len() + size <= limits.mtu
        && packet.payload.frags().len() < limits.max_pieces;
    let is_plain = gso.kind == GsoKind::Tcp
        && gso.size >= MIN_TCP_SIZE
        && !gso.is_cwr_on_all()
        && layout.transport()?.kind == Kind::Tcp
        && matches!((ip.kind, usize::from(ip.len)), (Kind::Ipv4, ipv4::MIN_LEN) | (Kind::Ipv6, ipv6::LEN))
        && layout.ip_levels() == 1
        && packet.offload.layers().is_empty();
    let flags = *head.get(transport.start() + tcp::FLAGS)?;
    let uncut = tcp::SYN | tcp::RST | if limits.ecn { 0 } else { tcp::CWR };
    (is_taken && is_plain && flags & uncut == 0).then_some(gso)
}
