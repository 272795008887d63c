//! The virtio-net header on both ways: what a kernel claims about a packet, checked against its bytes, and what we
//! claim of ours.

use segue::checksum::{Field, Sum};
use segue::gso::SegmentCsum;
use segue::packet::remote::field_offset;
use segue::packet::{Csum, Gso, GsoKind, Kind, Packet, TrainCsum, Unit};
use segue::wire::virtio::{self, VirtioNet};
use segue::wire::{tcp, udp, write_u16};

use crate::page::Page;
use crate::port::Drop;
use crate::tun::MAX_UDP_SEGMENTS;

/// What a header says about its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// A packet or train in one of our states.
    Unit(Unit),
    /// A single packet that owes a checksum in a place that is not its innermost transport header's, for instance that
    /// of a header inside a tunnel the parser was not told of. It is owed from `start` to the end, at `field`.
    Foreign { start: usize, field: usize },
}

/// Checks a header against the parsed packet that came with it.
///
/// `hdr_len` is not looked at: Linux puts 0, the right value or the length of the whole packet there. A train must be
/// one plain TCP or UDP packet whose owed checksum is that of its transport header (virtio 1.2, section 5.1.6.4;
/// the checks are those of Linux `virtio_net_hdr_to_skb`, made strict).
pub(super) fn check(header: &VirtioNet, packet: &Packet<Page>) -> Result<Claim, Drop> {
    if header.gso_type == virtio::GSO_NONE { check_single(header, packet) } else { check_train(header, packet) }
}

fn check_single(header: &VirtioNet, packet: &Packet<Page>) -> Result<Claim, Drop> {
    let received = packet.offload.unit;
    if header.flags & virtio::NEEDS_CSUM != 0 {
        let start = usize::from(header.csum_start);
        let field = start + usize::from(header.csum_offset);
        if field + 2 > packet.len() {
            return Err(Drop::ChecksumBounds);
        }
        return Ok(if packet.layout.is_exact() && transport_place(packet) == Some((start, field)) {
            Claim::Unit(Unit::Whole(Csum::Partial))
        } else {
            Claim::Foreign { start, field }
        });
    }
    // The mark speaks of the outermost checksum only, so under a tunnel it says nothing of the innermost.
    let verified = header.flags & virtio::DATA_VALID != 0
        && received == Unit::Whole(Csum::Unknown)
        && packet.layout.ip_levels() == 1
        && packet.layout.transport().is_some();
    Ok(Claim::Unit(if verified { Unit::Whole(Csum::Verified) } else { received }))
}

fn check_train(header: &VirtioNet, packet: &Packet<Page>) -> Result<Claim, Drop> {
    let layout = &packet.layout;
    let (Some(transport), Some(ip)) = (layout.transport(), layout.inner_ip()) else { return Err(Drop::GsoHeaders) };
    if layout.ip_levels() != 1 || !layout.is_exact() {
        return Err(Drop::GsoHeaders);
    }
    let kind = match (header.gso_type, ip.kind, transport.kind) {
        (t, Kind::Ipv4, Kind::Tcp) if t & !virtio::GSO_ECN == virtio::GSO_TCPV4 => GsoKind::Tcp,
        (t, Kind::Ipv6, Kind::Tcp) if t & !virtio::GSO_ECN == virtio::GSO_TCPV6 => GsoKind::Tcp,
        (virtio::GSO_UDP_L4, _, Kind::Udp) => GsoKind::Udp,
        _ => return Err(Drop::GsoType),
    };
    let start = usize::from(header.csum_start);
    let place = (start, start + usize::from(header.csum_offset));
    if header.flags & virtio::NEEDS_CSUM == 0 || transport_place(packet) != Some(place) {
        return Err(Drop::GsoChecksumPlace);
    }
    if header.gso_size == 0 || header.gso_size == u16::MAX {
        return Err(Drop::GsoSize);
    }
    let flags = packet.head.bytes().get(transport.start() + tcp::FLAGS).copied();
    if kind == GsoKind::Tcp && flags.is_none_or(|flags| flags & (tcp::SYN | tcp::RST) != 0) {
        return Err(Drop::GsoHeaders);
    }
    let gso = Gso { kind, size: header.gso_size, fixed_ids: 0 };
    match gso.segs(packet.payload.len()) {
        1 => Ok(Claim::Unit(Unit::Whole(Csum::Partial))),
        segs if kind == GsoKind::Udp && segs > MAX_UDP_SEGMENTS => Err(Drop::GsoSegments),
        _ => Ok(Claim::Unit(Unit::Train { csum: TrainCsum::Partial, gso })),
    }
}

/// Start of the innermost transport header and the place of its checksum field.
fn transport_place(packet: &Packet<Page>) -> Option<(usize, usize)> {
    let header = packet.layout.transport()?;
    Some((header.start(), header.start() + field_offset(header.kind)?))
}

/// Computes an owed checksum in place, from `start` to the end of `bytes`, whose field at `field` is primed.
///
/// A computed zero is written as all ones, as Linux does for every such field (`skb_checksum_help`): both mean the same
/// except for UDP, where zero would mean that there is none (RFC 768).
pub(super) fn finish(bytes: &mut [u8], start: usize, field: usize) {
    let sum = bytes.get(start..).map_or(Sum::ZERO, Sum::of);
    write_u16(bytes, field, Field::complete_udp(sum).value());
}

/// The header for a unit of ours: `place` is where its transport header starts and where in it the checksum is,
/// `head_len` the bytes of all headers.
pub(super) fn describe(
    csum: SegmentCsum,
    gso: Option<Gso>,
    head: &[u8],
    place: Option<(usize, usize)>,
) -> Option<VirtioNet> {
    let mut header = VirtioNet::default();
    match csum {
        SegmentCsum::AsIs => {}
        SegmentCsum::Verified => header.flags = virtio::DATA_VALID,
        SegmentCsum::Partial => {
            let (start, offset) = place?;
            header.flags = virtio::NEEDS_CSUM;
            header.csum_start = u16::try_from(start).ok()?;
            header.csum_offset = u16::try_from(offset).ok()?;
        }
    }
    if let Some(gso) = gso {
        let (start, _) = place?;
        header.gso_type = match gso.kind {
            GsoKind::Udp => virtio::GSO_UDP_L4,
            GsoKind::Tcp => {
                let version = if head.first()? >> 4 == 4 { virtio::GSO_TCPV4 } else { virtio::GSO_TCPV6 };
                let congested = head.get(start + tcp::FLAGS)? & tcp::CWR != 0;
                version | if congested { virtio::GSO_ECN } else { 0 }
            }
        };
        header.gso_size = gso.size;
        header.hdr_len = u16::try_from(head.len()).ok()?;
    }
    Some(header)
}

const _: () = assert!(tcp::CHECKSUM == 16 && udp::CHECKSUM == 6);
