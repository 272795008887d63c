//! The header for a packet or train to be sent.

use super::{DATA_VALID, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, UDP_TUNNEL_CSUM, VirtioNet};
use super::{GSO_UDP_TUNNEL_IPV4, GSO_UDP_TUNNEL_IPV6};
use crate::gso::{Frame, Segment, SegmentCsum};
use crate::packet::remote::field_offset;
use crate::packet::{Gso, GsoKind, Kind, Layout};
use crate::wire::{read_u16, tcp, udp};

/// Returns the header for `segment`, whose headers are `head` ([`Arena::head`](crate::gso::Arena::head)) at the offsets
/// in `layout`, the layout of the packet that was split. `None` where the packet owes a checksum but has no transport
/// header within 64 kB, which is so of no segment of [`split`](crate::gso::split()).
///
/// A train inside a UDP tunnel, which only a port with [`Limits::udp_tunnel`](crate::gso::Limits::udp_tunnel) takes,
/// needs a header of the form [`Form::Tunnel`](super::Form::Tunnel).
///
/// The number of buffers is 1, as virtio 1.x wants it of a device; a kernel ignores it.
///
/// ```
/// use segue::gso::{Arena, split};
/// use segue::packet::Packet;
/// use segue::virtio::{Form, describe};
/// # fn train() -> Packet<Vec<u8>> { Packet::default() }
/// let (train, mut arena) = (train(), Arena::new());
/// split(&train, &segue::gso::Limits::tun(segue::virtio::TUN_OFFLOADS[0]), &mut arena)?;
/// for segment in arena.segments() {
///     let head = arena.head(segment);
///     let header = describe(segment, head, &train.layout).expect("made by split").emit(Form::Basic);
///     // Write header[..10], head, and segment.pieces(&train) at once (writev).
/// }
/// # Ok::<(), segue::gso::Refusal>(())
/// ```
pub fn describe(segment: &Segment, head: &[u8], layout: &Layout) -> Option<VirtioNet> {
    fields(segment.csum, segment.gso, head, layout)
}

/// Describes a frame of the linear form, as [`describe`] does a segment; `bytes` are the whole frame.
pub fn describe_frame(frame: &Frame, bytes: &[u8], layout: &Layout) -> Option<VirtioNet> {
    fields(frame.csum, frame.gso, bytes.get(..layout.header_len())?, layout)
}

fn fields(csum: SegmentCsum, gso: Option<Gso>, head: &[u8], layout: &Layout) -> Option<VirtioNet> {
    let mut header = VirtioNet { num_buffers: 1, ..VirtioNet::default() };
    match csum {
        SegmentCsum::AsIs => {}
        SegmentCsum::Verified => header.flags = DATA_VALID,
        SegmentCsum::Partial => {
            let transport = layout.transport()?;
            header.flags = NEEDS_CSUM;
            header.csum_start = u16::try_from(transport.start()).ok()?;
            header.csum_offset = u16::try_from(field_offset(transport.kind)?).ok()?;
        }
    }
    if let Some(gso) = gso {
        header.gso_type = match gso.kind {
            GsoKind::Udp => GSO_UDP_L4,
            GsoKind::Tcp => {
                let version = if layout.inner_ip()?.kind == Kind::Ipv4 { GSO_TCPV4 } else { GSO_TCPV6 };
                let congested = head.get(layout.transport()?.start() + tcp::FLAGS)? & tcp::CWR != 0;
                version | if congested { GSO_ECN } else { 0 }
            }
        };
        header.gso_size = gso.size;
        header.hdr_len = u16::try_from(head.len()).ok()?;
        if layout.ip_levels() > 1 {
            let (outer, inner) = (layout.outer_ip()?, layout.inner_ip()?);
            header.gso_type |= if outer.kind == Kind::Ipv4 { GSO_UDP_TUNNEL_IPV4 } else { GSO_UDP_TUNNEL_IPV6 };
            header.outer_th = u16::try_from(outer.end()).ok()?;
            header.inner_nh = u16::try_from(inner.start()).ok()?;
            if read_u16(head, outer.end() + udp::CHECKSUM)? != 0 {
                header.flags |= UDP_TUNNEL_CSUM;
            }
        }
    }
    Some(header)
}
