//! Virtio headers of trains inside a tunnel.
//!
//! A kernel hands a train in VXLAN, Geneve or GRE whole to a packet socket, and with tunnel offloads to a TUN or TAP
//! device. The virtio-net header has the same fields as for a plain train: inner type, inner size, the offset of the
//! inner checksum. The start of the inner packet follows from that offset: its IP header ends there, and its length
//! reaches to the last byte. With the types of a UDP tunnel the header also names the outer UDP header and the inner IP
//! header, and says whether the outer checksum is in use; all of that must agree.

use super::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, UDP_TUNNEL_CSUM, VirtioNet};
use super::{GSO_UDP_TUNNEL_IPV4, GSO_UDP_TUNNEL_IPV6, MAX_UDP_SEGMENTS};
use crate::packet::{
    Buffer, Csum, Gso, GsoKind, Kind, Layer, LayerCsum, Layout, Offload, Packet, Stop, TrainCsum, Unit,
};
use crate::wire::{ipv4, ipv6, protocol, read_u16, tcp, udp};

/// Bytes at the start of a tunnelled train that must contain all of its headers.
const MAX_HEADER_AREA: usize = 1024;

/// Makes `packet`, whose outer headers were parsed, the tunnelled train that `header` describes. Returns its offload
/// state, or `None` with the packet unchanged where the two contradict each other.
pub(super) fn load<B: Buffer>(header: &VirtioNet, packet: &mut Packet<B>) -> Option<Unit> {
    let (head, mut front) = (packet.head.bytes(), [0; MAX_HEADER_AREA]);
    front[..head.len()].copy_from_slice(head);
    let len = head.len() + packet.payload.copy_to(0..MAX_HEADER_AREA - head.len(), &mut front[head.len()..]);
    let front = &front[..len];
    let all = packet.len();
    let tunnel = header.gso_type & (GSO_UDP_TUNNEL_IPV4 | GSO_UDP_TUNNEL_IPV6);
    let kind = match header.gso_type & !GSO_ECN & !tunnel {
        GSO_TCPV4 | GSO_TCPV6 => Kind::Tcp,
        GSO_UDP_L4 => Kind::Udp,
        _ => return None,
    };
    let field = if kind == Kind::Tcp { tcp::CHECKSUM } else { udp::CHECKSUM };
    let owed = header.flags & NEEDS_CSUM != 0 && usize::from(header.csum_offset) == field;
    if !owed || header.gso_size == 0 || header.gso_size == u16::MAX {
        return None;
    }
    let start = usize::from(header.csum_start);
    let inside = packet.layout.ip_levels() == 2 && packet.layout.is_exact();
    let (layout, layers) = match packet.layout.transport()? {
        // The parser followed the tunnel: IP or GRE in IP.
        found if inside && tunnel == 0 && found.kind == kind && found.start() == start => {
            (packet.layout, packet.offload)
        }
        found if packet.layout.ip_levels() == 1 && found.kind == Kind::Udp && found.end() < start => {
            let layout = behind_udp((front, all), &packet.layout, start, kind)?;
            let mut layers = Offload::UNKNOWN;
            let none = read_u16(front, found.start() + udp::CHECKSUM) == Some(0);
            if tunnel != 0 && !agrees(header, &layout, none) {
                return None;
            }
            // The field holds the sum of the pseudo header.
            let udp = if none { LayerCsum::Absent } else { LayerCsum::Owed };
            layers.push_outer(Layer { udp, ..Layer::NONE });
            (layout, layers)
        }
        _ => return None,
    };
    let flags = front.get(start + tcp::FLAGS).copied();
    if kind == Kind::Tcp && flags.is_none_or(|flags| flags & (tcp::SYN | tcp::RST) != 0) {
        return None;
    }
    let len = layout.header_len();
    let gso =
        Gso { kind: if kind == Kind::Tcp { GsoKind::Tcp } else { GsoKind::Udp }, size: header.gso_size, fixed_ids: 0 };
    let unit = match gso.segs(all.checked_sub(len)?) {
        1 => Unit::Whole(Csum::Partial),
        segs if kind == Kind::Udp && segs > MAX_UDP_SEGMENTS => return None,
        _ => Unit::Train { csum: TrainCsum::Partial, gso },
    };
    let more = len.checked_sub(packet.head.len())?;
    packet.head.set(front.get(..len)?);
    packet.payload.advance(more);
    (packet.layout, packet.offload) = (layout, layers);
    packet.offload.unit = unit;
    Some(unit)
}

/// Returns whether the fields of a UDP tunnel in `header` match `layout`, which has one; `none` says that the outer UDP
/// header has no checksum.
fn agrees(header: &VirtioNet, layout: &Layout, none: bool) -> bool {
    let (Some(outer), Some(inner)) = (layout.outer_ip(), layout.inner_ip()) else { return false };
    let version = if outer.kind == Kind::Ipv4 { GSO_UDP_TUNNEL_IPV4 } else { GSO_UDP_TUNNEL_IPV6 };
    header.gso_type & (GSO_UDP_TUNNEL_IPV4 | GSO_UDP_TUNNEL_IPV6) == version
        && usize::from(header.outer_th) == outer.end()
        && usize::from(header.inner_nh) == inner.start()
        && (header.flags & UDP_TUNNEL_CSUM == 0) == none
}

/// Returns the layout of a packet whose innermost transport header, of the given kind, is at `start`, after the UDP
/// header at the end of `outer`. The bytes between that and the inner IP header are listed as one GUE header:
/// segmentation repeats them unchanged, which is right for every tunnel format.
fn behind_udp((bytes, all): (&[u8], usize), outer: &Layout, start: usize, kind: Kind) -> Option<Layout> {
    let (ip, at) = inner_ip((bytes, all), outer.header_len(), start, kind)?;
    let len = match kind {
        Kind::Tcp => tcp::header_len(*bytes.get(start + tcp::OFFSET)?),
        _ => udp::LEN,
    };
    let fits = len >= if kind == Kind::Tcp { tcp::MIN_LEN } else { udp::LEN } && start + len <= bytes.len();
    let mut layout = Layout::empty(Stop::Transport);
    let pushed = outer.headers().iter().all(|header| layout.push(header.kind, usize::from(header.len)))
        && layout.push(Kind::Gue, at - outer.header_len())
        && layout.push(ip, start - at)
        && layout.push(kind, len);
    (fits && pushed).then_some(layout)
}

/// Returns the kind and the offset of an IP header in `bytes[from..]` that ends at `end`, carries `kind`, and whose
/// packet ends with the last of the `all` bytes.
fn inner_ip((bytes, all): (&[u8], usize), from: usize, end: usize, kind: Kind) -> Option<(Kind, usize)> {
    let number = if kind == Kind::Tcp { protocol::TCP } else { protocol::UDP };
    let fits_v4 = |at: usize, header: &[u8]| {
        header[0] == 0x40 | (header.len() / 4) as u8
            && header[ipv4::PROTOCOL] == number
            && read_u16(header, ipv4::TOTAL_LEN).map(usize::from) == Some(all - at)
    };
    // Without extension headers: a kernel makes no trains with them in a tunnel.
    let fits_v6 = |at: usize, header: &[u8]| {
        header[0] >> 4 == 6
            && header[ipv6::NEXT_HEADER] == number
            && read_u16(header, ipv6::PAYLOAD_LEN).map(usize::from) == Some(all - at - ipv6::LEN)
    };
    let place = |len: usize| end.checked_sub(len).filter(|at| *at >= from && end <= bytes.len());
    let v4 = (ipv4::MIN_LEN..=60).step_by(4).filter_map(place).find(|at| fits_v4(*at, &bytes[*at..end]));
    let v6 = place(ipv6::LEN).filter(|at| fits_v6(*at, &bytes[*at..end]));
    v4.map(|at| (Kind::Ipv4, at)).or(v6.map(|at| (Kind::Ipv6, at)))
}
