//! Checksum requests for packets whose transport checksum was never computed, and verification of received ones.

use super::check::pseudo;
use super::refusal::Refusal;
use crate::checksum::Field;
use crate::packet::remote::field_offset;
use crate::packet::{Buffer, Csum, Kind, Layout, Packet, Start, Tunnels, Unit};
use crate::wire::{self, read_u16, udp, write_u16};

/// Primes the transport checksum of a packet whose field is undefined, such as one of a stack that leaves checksums to
/// its device: the field gets the pseudo-header sum, and the packet then has a partial checksum ([`Csum::Partial`]). A
/// train, whose checksum state says so already, is primed for its whole length.
///
/// # Errors
/// [`Refusal::Transport`] or [`Refusal::Fragment`] for a packet without a TCP or UDP header; [`Refusal::Layout`] where
/// the header is not after an IP header; [`Refusal::Trailing`] for a single packet that ends before the IP packet
/// around it, since a device would sum what is behind it too. The packet is then unchanged.
pub fn request_checksum<B: Buffer>(packet: &mut Packet<B>) -> Result<(), Refusal> {
    let (head, layout) = (packet.head.bytes(), &packet.layout);
    let len = layout.end().max(head.len());
    // The length fields of a train need not be those of the whole.
    if matches!(packet.offload.unit, Unit::Whole(_)) {
        no_trailer(head, layout, len)?;
    }
    let (field, value) = primed(head, layout, len)?;
    write_u16(packet.head.bytes_mut(), field, value.value());
    if let Unit::Whole(csum) = &mut packet.offload.unit {
        *csum = Csum::Partial;
    }
    Ok(())
}

/// Requests the checksum, as [`request_checksum`] does, of a packet in contiguous memory, which begins with the header
/// that `start` names: then its checksum is [`Csum::Partial`].
///
/// ```
/// use segue::gso;
/// use segue::packet::Start;
///
/// // A UDP datagram without payload and without checksum.
/// let mut packet = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2,
///     0, 1, 0, 2, 0, 8, 0, 0,
/// ];
/// gso::prime(&mut packet, Start::Ip)?;
/// assert_eq!(packet[26..], [0x8c, 0x41]); // c612 + 0001 + c612 + 0002 + 17 + 8
/// # Ok::<(), gso::Refusal>(())
/// ```
///
/// # Errors
/// As for [`request_checksum`].
pub fn prime(packet: &mut [u8], start: Start) -> Result<(), Refusal> {
    let layout = wire::parse(packet, start, &Tunnels::NONE);
    no_trailer(packet, &layout, layout.end())?;
    let (field, value) = primed(packet, &layout, layout.end())?;
    write_u16(packet, field, value.value());
    Ok(())
}

/// Computes the transport checksum of a packet in contiguous memory whose field has no meaning yet, for an interface
/// that computes none.
///
/// ```
/// use segue::gso;
/// use segue::packet::Start;
///
/// // A UDP datagram without payload and without checksum.
/// let mut packet = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2,
///     0, 1, 0, 2, 0, 8, 0, 0,
/// ];
/// gso::fill(&mut packet, Start::Ip)?;
/// assert_eq!(packet[26..], [0x73, 0xb3]); // the complement of the pseudo header's 8c41 + 0001 + 0002 + 0008
/// # Ok::<(), gso::Refusal>(())
/// ```
///
/// # Errors
/// As for [`request_checksum`], but for [`Refusal::Trailing`].
pub fn fill(packet: &mut [u8], start: Start) -> Result<(), Refusal> {
    let layout = wire::parse(packet, start, &Tunnels::NONE);
    let end = transport_end(packet, &layout).unwrap_or(layout.end());
    let (field, value) = primed(packet, &layout, end)?;
    let (kind, from) = layout.transport().map(|header| (header.kind, header.start())).ok_or(Refusal::Transport)?;
    write_u16(packet, field, value.value());
    let sum = crate::checksum::Sum::of(packet.get(from..end).ok_or(Refusal::Layout)?);
    let value = if kind == Kind::Udp { Field::complete_udp(sum) } else { Field::complete(sum) };
    write_u16(packet, field, value.value());
    Ok(())
}

/// Verifies the transport checksum of a received single packet, and returns its state: [`Csum::Absent`] for UDP over
/// IPv4 without one; [`Csum::Unknown`] where none covers this packet alone, as in a fragment or a tunnel.
pub(crate) fn verify<B: Buffer>(packet: &Packet<B>) -> Csum {
    let (head, layout) = (packet.head.bytes(), &packet.layout);
    let (Some(transport), Some(ip), 1) = (layout.transport(), layout.inner_ip(), layout.ip_levels()) else {
        return Csum::Unknown;
    };
    let word = |offset: usize| read_u16(head, transport.start() + offset).unwrap_or(0);
    let is_udp = transport.kind == Kind::Udp;
    if is_udp && word(udp::CHECKSUM) == 0 {
        // Over IPv6 a receiver must discard it (RFC 8200, section 8.1).
        return if ip.kind == Kind::Ipv4 { Csum::Absent } else { Csum::Bad };
    }
    // A datagram may end before its IP packet does.
    let end = if is_udp { transport.start() + usize::from(word(udp::LENGTH)) } else { layout.end() };
    let (Some(payload), false) = (end.checked_sub(head.len()), super::check::is_routed(head, ip)) else {
        return Csum::Unknown;
    };
    let Some(mut sum) = pseudo(head, ip, transport.kind, end - transport.start()) else { return Csum::Unknown };
    sum.add(head.get(transport.start()..).unwrap_or(&[]));
    sum.append(packet.payload.sum(0..payload), payload);
    if sum.fold() == 0xffff { Csum::Verified } else { Csum::Bad }
}

/// Returns the end of the segment or datagram, as length fields state it: it may lie before that of the IP packet
/// around it (RFC 9868), which may lie before that of a tunnel. `None` where they state none, as in a train that is too
/// long.
fn transport_end(head: &[u8], layout: &Layout) -> Option<usize> {
    let transport = layout.transport()?;
    let end = match transport.kind {
        Kind::Udp => transport.start() + usize::from(read_u16(head, transport.start() + udp::LENGTH)?),
        _ => wire::ip_end(head, layout.inner_ip()?)?,
    };
    (end >= transport.end()).then_some(end)
}

/// Checks that the segment or datagram ends at `end`.
fn no_trailer(head: &[u8], layout: &Layout, end: usize) -> Result<(), Refusal> {
    if transport_end(head, layout).is_none_or(|found| found == end) { Ok(()) } else { Err(Refusal::Trailing) }
}

/// Returns the offset of the transport checksum in a packet with the given headers that ends at `end`, and its primed
/// value.
fn primed(head: &[u8], layout: &Layout, end: usize) -> Result<(usize, Field), Refusal> {
    let transport = super::check::transport(layout)?;
    let ip = layout.inner_ip().ok_or(Refusal::Layout)?;
    if super::check::is_routed(head, ip) {
        return Err(Refusal::Routing);
    }
    let len = end.checked_sub(transport.start()).ok_or(Refusal::Layout)?;
    let sum = pseudo(head, ip, transport.kind, len).ok_or(Refusal::Layout)?;
    let field = transport.start() + field_offset(transport.kind).ok_or(Refusal::Transport)?;
    Ok((field, Field::primed(sum)))
}
