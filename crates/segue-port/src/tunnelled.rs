//! Trains inside a tunnel, as a packet socket receives them from a sender on the same machine.
//!
//! A kernel hands a train in VXLAN, Geneve or GRE whole to an interface that could cut it. The virtio-net header has
//! the same fields as for a plain train: inner type, inner size, the place of the inner checksum. The start of the
//! inner packet follows from that place: its IP header ends there, and its length reaches to the last byte.

use segue::packet::{Csum, Gso, GsoKind, Kind, Layer, LayerCsum, Layout, Offload, Packet, Stop, TrainCsum, Unit};
use segue::wire::virtio::{self, VirtioNet};
use segue::wire::{ipv4, ipv6, protocol, read_u16, tcp, udp};

use crate::page::Page;

/// Converts `packet`, which begins with the bytes `front` and whose outer headers were parsed, to the tunnelled train
/// that `header` describes. Returns its offload state, or `None` with the packet unchanged where the two contradict
/// each other.
pub(crate) fn load(header: &VirtioNet, front: &[u8], packet: &mut Packet<Page>) -> Option<Unit> {
    let all = packet.len();
    let kind = match header.gso_type & !virtio::GSO_ECN {
        virtio::GSO_TCPV4 | virtio::GSO_TCPV6 => Kind::Tcp,
        virtio::GSO_UDP_L4 => Kind::Udp,
        _ => return None,
    };
    let field = if kind == Kind::Tcp { tcp::CHECKSUM } else { udp::CHECKSUM };
    let owed = header.flags & virtio::NEEDS_CSUM != 0 && usize::from(header.csum_offset) == field;
    if !owed || header.gso_size == 0 || header.gso_size == u16::MAX {
        return None;
    }
    let start = usize::from(header.csum_start);
    let inside = packet.layout.ip_levels() == 2 && packet.layout.is_exact();
    let (layout, layers) = match packet.layout.transport()? {
        // The parser followed the tunnel: IP or GRE in IP.
        found if inside && found.kind == kind && found.start() == start => (packet.layout, packet.offload),
        found if packet.layout.ip_levels() == 1 && found.kind == Kind::Udp && found.end() < start => {
            let layout = behind_udp((front, all), &packet.layout, start, kind)?;
            let mut layers = Offload::UNKNOWN;
            let none = read_u16(front, found.start() + udp::CHECKSUM) == Some(0);
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
        _ => Unit::Train { csum: TrainCsum::Partial, gso },
    };
    let more = len.checked_sub(packet.head.len())?;
    packet.head.set(front.get(..len)?);
    packet.payload.advance(more);
    (packet.layout, packet.offload) = (layout, layers);
    packet.offload.unit = unit;
    Some(unit)
}

/// Returns the layout of a packet whose innermost transport header, of this kind, is at `start`, behind the UDP header
/// at the end of `outer`. The bytes between that and the inner IP header are listed as one GUE header: segmentation
/// repeats them unchanged, which is right for every tunnel format.
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use segue::gso::{self, Arena, Limits};
    use segue::packet::Start;
    use segue::wire::virtio::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM};

    use super::*;
    use crate::batch::RxBatch;
    use crate::page::PagePool;
    use crate::port::Counters;
    use crate::testing::{self, Fill, bytes, sum16};
    use crate::vnet;

    fn ends(v4: bool) -> (IpAddr, IpAddr) {
        let parse = |text: &str| text.parse().unwrap();
        if v4 { (parse("198.18.0.1"), parse("198.18.0.2")) } else { (parse("2001:db8::1"), parse("2001:db8::2")) }
    }

    /// A train in a UDP tunnel.
    #[derive(Clone, Copy)]
    struct Case {
        /// Whether the outer and the inner packet are IPv4.
        v4: [bool; 2],
        tcp: bool,
        /// Whether the outer UDP header has a checksum.
        checksum: bool,
    }

    /// Returns the frame of a case, with this shim, and its virtio-net header.
    fn tunnelled(Case { v4: [outer, inner], tcp, checksum }: Case, shim: &[u8]) -> (Vec<u8>, VirtioNet) {
        let data = bytes(5_000, 3);
        let packet = if tcp {
            testing::ip_packet(ends(inner), 6, 16, &testing::tcp((1, 2), 7, 8, 0x18, &data), Fill::Primed)
        } else {
            testing::ip_packet(ends(inner), 17, 6, &testing::udp(1, 2, &data), Fill::Primed)
        };
        let payload = [shim, &packet].concat();
        let mut around = testing::ip_packet(ends(outer), 17, 6, &testing::udp(9, 4789, &payload), Fill::Primed);
        let udp = if outer { 20 } else { 40 };
        if !checksum {
            around[udp + 6..udp + 8].fill(0);
        }
        let start = 14 + udp + 8 + shim.len() + if inner { 20 } else { 40 };
        let header = VirtioNet {
            flags: NEEDS_CSUM,
            gso_type: if !tcp {
                GSO_UDP_L4
            } else if inner {
                GSO_TCPV4
            } else {
                GSO_TCPV6
            },
            gso_size: 1200,
            csum_start: start as u16,
            csum_offset: if tcp { 16 } else { 6 },
            ..VirtioNet::default()
        };
        (testing::ethernet(&[], &around), header)
    }

    fn taken(frame: &[u8], header: &VirtioNet) -> Option<Box<Packet<Page>>> {
        let mut pages = PagePool::new(1);
        let mut packet = testing::load_frame(&mut pages, frame);
        let is_taken = load(header, frame, &mut packet).is_some();
        // In ranges it is the same train.
        for len in [7, 64, 999] {
            let (mut into, mut counters) = (RxBatch::new(1), Counters::default());
            let ranges = testing::ranges(&mut PagePool::new(1), frame, len);
            vnet::deliver(header, ranges.into_iter(), Start::Ethernet, &mut into, &mut counters);
            let other = into.pop_packet();
            if is_taken && header.gso_type != virtio::GSO_NONE {
                let other = other.unwrap_or_else(|| panic!("in ranges of {len}: {:?}", counters.drops));
                assert_eq!(other.offload, packet.offload);
                assert_eq!(other.layout.headers(), packet.layout.headers());
                assert!(testing::flat(&other) == testing::flat(&packet));
            }
        }
        is_taken.then_some(packet)
    }

    /// Returns the tunnel headers to test: VXLAN, and Geneve with an option, both with an inner Ethernet header; and an
    /// empty one.
    fn shims() -> [Vec<u8>; 3] {
        let ethernet = |inner: [u8; 2]| [&[2; 12][..], &inner].concat();
        [
            [&[8, 0, 0, 0, 0, 0, 5, 0][..], &ethernet([8, 0])].concat(),
            [&[1, 0, 0x65, 0x58, 0, 0, 5, 0, 1, 2, 3, 0][..], &ethernet([0x86, 0xdd])].concat(),
            vec![0, 4, 0, 0],
        ]
    }

    #[test]
    fn a_train_in_a_udp_tunnel_is_cut_into_packets_that_are_right_outside_and_inside() {
        for case in 0..48 {
            let v4 @ [outer, _] = [case & 1 == 0, case & 2 == 0];
            let (tcp, checksum) = (case & 4 == 0, case & 8 == 0);
            let shim = &shims()[case / 16];
            let (frame, header) = tunnelled(Case { v4, tcp, checksum }, shim);
            let packet = taken(&frame, &header).unwrap_or_else(|| panic!("case {case}"));
            assert_eq!(testing::flat(&packet), frame);
            let mut arena = Arena::new();
            assert_eq!(gso::split(&packet, &Limits::NONE, &mut arena), Ok(5), "case {case}");
            let mut data = Vec::new();
            for (index, segment) in arena.segments().iter().enumerate() {
                let mut bytes = arena.head(segment).to_vec();
                let part = segment.payload.start as usize..segment.payload.end as usize;
                packet.payload.pieces(part.clone()).for_each(|piece| bytes.extend_from_slice(piece));
                data.extend_from_slice(&bytes[bytes.len() - part.len()..]);
                let around = &bytes[14..];
                let udp = if outer { 20 } else { 40 };
                if checksum {
                    assert!(testing::checksum_is_good(around), "case {case} segment {index}: outside");
                } else {
                    assert_eq!(around[udp + 6..udp + 8], [0, 0]);
                }
                assert_eq!(usize::from(read_u16(around, udp + 4).unwrap()), around.len() - udp);
                assert_eq!(around[udp + 8..udp + 8 + shim.len()], shim[..]);
                let inside = &around[udp + 8 + shim.len()..];
                assert!(testing::checksum_is_good(inside), "case {case} segment {index}: inside");
                for ip in [around, inside].into_iter().filter(|ip| ip[0] >> 4 == 4) {
                    assert_eq!((sum16(&[&ip[..20]]), usize::from(read_u16(ip, 2).unwrap())), (0xffff, ip.len()));
                }
            }
            assert!(data == bytes(5_000, 3), "case {case}");
        }
    }

    #[test]
    fn what_does_not_fit_its_header_is_no_tunnelled_train() {
        let case = Case { v4: [true, true], tcp: true, checksum: true };
        let (frame, header) = tunnelled(case, &shims()[0]);
        assert!(taken(&frame, &header).is_some());
        for wrong in [
            VirtioNet { flags: 0, ..header },
            VirtioNet { csum_start: header.csum_start + 2, ..header },
            VirtioNet { csum_start: 34, ..header },
            VirtioNet { csum_start: u16::MAX, ..header },
            VirtioNet { csum_offset: 6, ..header },
            VirtioNet { gso_size: 0, ..header },
            VirtioNet { gso_type: GSO_UDP_L4, csum_offset: 6, ..header },
            VirtioNet { gso_type: 3, ..header },
        ] {
            assert!(taken(&frame, &wrong).is_none(), "{wrong:?}");
        }
        let start = usize::from(header.csum_start);
        // Another length, another protocol, a data offset past the end, RST.
        for (at, value) in [(start - 18, 0xff), (start - 11, 50), (start + 13, 0x14)] {
            let mut frame = frame.clone();
            frame[at] = value;
            assert!(taken(&frame, &header).is_none(), "{at}");
        }
        for len in 0..frame.len().min(120) {
            assert!(taken(&frame[..len], &header).is_none(), "{len}");
        }
    }
}
