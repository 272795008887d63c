//! The parser: it turns bytes into a [`Layout`] with the offsets of all headers, tunnels included.
//!
//! Later stages use the layout and never derive an offset again. Parsing stops at the first header that it cannot read
//! and gives the reason as a [`Stop`]; the headers found until then remain valid.

use super::common;
use super::gre::Gre;
use super::tunnels::Carried;
use super::{Next, Unread, ethernet, ethertype, ipv4, ipv6, protocol, read_u16, tcp, udp};

pub use super::format::Kind;
pub use super::layout::{Header, Layout, MAX_HEADER_BYTES, MAX_HEADERS, Start, Stop};
pub use super::tunnels::Tunnels;

/// Returns the offset of the end of the packet with the IP header `ip` in `head`, as its length field states it; `None`
/// for a header of another kind, or one that is truncated.
pub(crate) fn ip_end(head: &[u8], ip: &Header) -> Option<usize> {
    let (field, from) = match ip.kind {
        Kind::Ipv4 => (ipv4::TOTAL_LEN, ip.start()),
        Kind::Ipv6 => (ipv6::PAYLOAD_LEN, ip.start() + ipv6::LEN),
        _ => return None,
    };
    Some(from + usize::from(read_u16(head, ip.start() + field)?))
}

/// Finds every header of the packet in `bytes`, which must hold the whole packet and may have padding after it.
///
/// Lengths are checked against the bytes present at every level; no header is listed whose bytes are not all there.
/// Checksums are not verified.
///
/// A train may exceed what its length field can state, which is then zero: IPv4 and IPv6 followed by TCP, in more than
/// 65,535 bytes (Linux: BIG TCP; no packet on a wire is that long). Such a train ends where the bytes end.
///
/// ```
/// use segue::packet::{Start, Tunnels};
/// use segue::wire::{self, parse::Kind};
///
/// let bytes = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0];
/// let layout = wire::parse(&bytes, Start::Ip, &Tunnels::NONE);
/// assert!(layout.headers().iter().map(|header| header.kind).eq([Kind::Ipv4, Kind::Udp]));
/// ```
pub fn parse(bytes: &[u8], start: Start, tunnels: &Tunnels) -> Layout {
    parse_front(bytes, bytes.len(), start, tunnels)
}

/// Parses, as [`parse()`] does, a packet of `len` bytes of which `bytes` are the first; [`MAX_HEADER_BYTES`] are
/// always enough.
pub fn parse_front(bytes: &[u8], len: usize, start: Start, tunnels: &Tunnels) -> Layout {
    let len = len.max(bytes.len());
    match common::parse(bytes, len, start, tunnels) {
        Some(common) => common.layout.ending(common.end, len),
        None => parse_any(bytes, len, start, tunnels),
    }
}

/// Parses a packet like [`parse()`] into `layout`; of the usual forms only the headers that they have are copied there.
pub(crate) fn parse_into(layout: &mut Layout, bytes: &[u8], start: Start, tunnels: &Tunnels) {
    let len = bytes.len();
    match common::parse(bytes, len, start, tunnels) {
        Some(common) => {
            layout.set_short(common.layout, common.end, len);
        }
        None => *layout = parse_any(bytes, len, start, tunnels),
    }
}

/// Parses a packet of any form, header by header.
#[inline(never)]
pub(super) fn parse_any(bytes: &[u8], len: usize, start: Start, tunnels: &Tunnels) -> Layout {
    let mut layout = Layout::empty(Stop::Malformed);
    layout.exact = true;
    layout.end = u32::try_from(len).unwrap_or(u32::MAX);
    let mut next = match start {
        Start::Ip => match bytes.first().map(|b| b >> 4) {
            Some(4) => Next::Type(ethertype::IPV4),
            Some(6) => Next::Type(ethertype::IPV6),
            _ => return layout,
        },
        Start::Ethernet => {
            let Some(kind) = read_u16(bytes, ethernet::TYPE) else { return layout };
            layout.push(Kind::Ethernet, ethernet::LEN);
            Next::Type(kind)
        }
    };
    // The end of the current level: each length field reduces it.
    let mut limit = len;
    let mut tags = 0;
    loop {
        let off = layout.header_len();
        let Some(rest) = bytes.get(off..limit.min(bytes.len())) else { return layout.stopped(Stop::Malformed) };
        let have = limit - off;
        let found = match next {
            Next::Type(ethertype::VLAN | ethertype::QINQ) => {
                tags += 1;
                if tags > ethernet::MAX_TAGS {
                    return layout.stopped(Stop::TooDeep);
                }
                read_u16(rest, ethernet::VLAN_TYPE).map(|kind| (Kind::Vlan, ethernet::VLAN_LEN, Some(Next::Type(kind))))
            }
            Next::Type(ethertype::IPV4) | Next::Protocol(protocol::IPV4) => match ipv4_header(rest, have) {
                Ok(ip) => {
                    limit = shorten(&mut layout, off + ip.total_len, limit);
                    if let Some(stop) = ip.stop {
                        let listed = layout.push(Kind::Ipv4, ip.len);
                        return layout.stopped(if listed { stop } else { Stop::TooDeep });
                    }
                    Some((Kind::Ipv4, ip.len, Some(Next::Protocol(ip.protocol))))
                }
                Err(stop) => return layout.stopped(stop),
            },
            Next::Type(ethertype::IPV6) | Next::Protocol(protocol::IPV6) => match ipv6_header(rest, have) {
                Ok(ip) => {
                    limit = shorten(&mut layout, off + ip.total_len, limit);
                    if let Some(stop) = ip.stop {
                        let listed = layout.push(Kind::Ipv6, ip.len);
                        return layout.stopped(if listed { stop } else { Stop::TooDeep });
                    }
                    Some((Kind::Ipv6, ip.len, Some(Next::Protocol(ip.protocol))))
                }
                Err(stop) => return layout.stopped(stop),
            },
            Next::Type(ethertype::TEB) | Next::Protocol(protocol::ETHERNET) => {
                tags = 0;
                read_u16(rest, ethernet::TYPE).map(|kind| (Kind::Ethernet, ethernet::LEN, Some(Next::Type(kind))))
            }
            Next::Protocol(protocol::TCP) => tcp_header(rest).map(|len| (Kind::Tcp, len, None)),
            Next::Protocol(protocol::UDP) => match udp_header(rest, have) {
                Some((port, length)) => {
                    limit = shorten(&mut layout, off + length, limit);
                    match tunnels.carried(port) {
                        Carried::Data => Some((Kind::Udp, udp::LEN, None)),
                        Carried::Protocol(protocol) => Some((Kind::Udp, udp::LEN, Some(Next::Protocol(protocol)))),
                        Carried::Shim(kind) => {
                            if !layout.push(Kind::Udp, udp::LEN) {
                                return layout.stopped(Stop::TooDeep);
                            }
                            let inside = bytes.get(layout.header_len()..limit.min(bytes.len())).unwrap_or(&[]);
                            match kind.format().map(|format| (format.read)(inside)) {
                                Some(Ok(shim)) => Some((kind, shim.len, Some(shim.next))),
                                Some(Err(Unread::Foreign)) => return layout.stopped(Stop::Foreign),
                                Some(Err(Unread::Malformed)) | None => None,
                            }
                        }
                    }
                }
                None => None,
            },
            Next::Protocol(protocol::GRE) => match Gre::parse(rest) {
                Some(gre) => Some((Kind::Gre, gre.len(), Some(Next::Type(gre.protocol)))),
                None => return layout.stopped(Gre::unread(rest)),
            },
            Next::Type(_) | Next::Protocol(_) => return layout.stopped(Stop::Protocol),
        };
        let Some((kind, len, following)) = found else { return layout.stopped(Stop::Malformed) };
        if !layout.push(kind, len) {
            return layout.stopped(Stop::TooDeep);
        }
        match following {
            Some(following) => next = following,
            None => return layout.stopped(Stop::Transport),
        }
    }
}

/// Reduces the end of the current level; a length below the bytes present makes the layout inexact.
fn shorten(layout: &mut Layout, end: usize, limit: usize) -> usize {
    if end != limit {
        if layout.ip_levels() == 0 {
            layout.end = end as u32;
            layout.padded = true;
        } else {
            layout.exact = false;
        }
    }
    end
}

struct Ip {
    len: usize,
    total_len: usize,
    protocol: u8,
    /// The reason for which this header is the last one.
    stop: Option<Stop>,
}

/// Reads an IPv4 header; the packet has `have` bytes, the first of which are `bytes`.
fn ipv4_header(bytes: &[u8], have: usize) -> Result<Ip, Stop> {
    let header: &[u8; ipv4::MIN_LEN] = bytes.first_chunk().ok_or(Stop::Malformed)?;
    let len = ipv4::header_len(header[0]);
    let mut total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if total_len == 0 && have > ipv4::MAX_TOTAL_LEN && header[ipv4::PROTOCOL] == protocol::TCP {
        total_len = have;
    }
    if header[0] >> 4 != 4 || len < ipv4::MIN_LEN || total_len < len || total_len > have || len > bytes.len() {
        return Err(Stop::Malformed);
    }
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & (ipv4::MF | ipv4::OFFSET) != 0;
    Ok(Ip { len, total_len, protocol: header[ipv4::PROTOCOL], stop: is_fragment.then_some(Stop::Fragment) })
}

fn ipv6_header(bytes: &[u8], have: usize) -> Result<Ip, Stop> {
    let header: &[u8; ipv6::LEN] = bytes.first_chunk().ok_or(Stop::Malformed)?;
    let mut total_len = ipv6::LEN + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if total_len == ipv6::LEN && have > ipv6::LEN + ipv6::MAX_PAYLOAD_LEN && header[ipv6::NEXT_HEADER] == protocol::TCP
    {
        total_len = have;
    }
    if header[0] >> 4 != 6 || total_len > have {
        return Err(Stop::Malformed);
    }
    let next = header[ipv6::NEXT_HEADER];
    let fixed = |stop| Ok(Ip { len: ipv6::LEN, total_len, protocol: next, stop: Some(stop) });
    match ipv6::chain(next, &bytes[ipv6::LEN..total_len.min(bytes.len())]) {
        ipv6::Chain::End { next, len } => Ok(Ip { len: ipv6::LEN + len, total_len, protocol: next, stop: None }),
        ipv6::Chain::Fragment => fixed(Stop::Fragment),
        ipv6::Chain::Truncated => Err(Stop::Malformed),
        // The fixed header is enough for a router (RFC 8200, section 4; RFC 7045).
        ipv6::Chain::TooLong => fixed(Stop::TooDeep),
    }
}

fn tcp_header(bytes: &[u8]) -> Option<usize> {
    let header: &[u8; tcp::MIN_LEN] = bytes.first_chunk()?;
    let len = tcp::header_len(header[tcp::OFFSET]);
    (len >= tcp::MIN_LEN && len <= bytes.len()).then_some(len)
}

/// Returns destination port and length field of a UDP header.
fn udp_header(bytes: &[u8], have: usize) -> Option<(u16, usize)> {
    let header: &[u8; udp::LEN] = bytes.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    (length >= udp::LEN && length <= have).then(|| (u16::from_be_bytes([header[2], header[3]]), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an IPv4 packet with `payload` of this protocol.
    fn ip(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
        packet.extend(payload);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet
    }

    /// Returns an IPv4 packet with a UDP datagram to `port`.
    fn udp_to(port: u16, payload: &[u8]) -> Vec<u8> {
        let len = (udp::LEN + payload.len()) as u16;
        let header = [[0, 53], port.to_be_bytes(), len.to_be_bytes(), [0, 0]].concat();
        ip(protocol::UDP, &[&header, payload].concat())
    }

    /// Tests that only the fixed header is listed where the chain of extension headers is too long, in a tunnel too,
    /// and that padding is told apart.
    #[test]
    fn an_ipv6_header_whose_chain_is_too_long_is_the_last_one() {
        for (units, headers, stop) in [(11, 2, Stop::Transport), (12, 1, Stop::TooDeep)] {
            let mut v6 = vec![0x60, 0, 0, 0, 0, 0, protocol::HOP_BY_HOP, 64];
            v6.resize(ipv6::LEN, 0);
            v6.extend([protocol::UDP, units]);
            v6.resize(ipv6::LEN + 8 + usize::from(units) * 8, 0);
            v6.extend([0, 1, 0, 2, 0, 8, 0, 0]);
            v6[5] = (v6.len() - ipv6::LEN) as u8;
            let padded = [&v6[..], &[0; 3]].concat();
            for (packet, outer) in [(padded, 0), (ip(protocol::IPV6, &v6), 1)] {
                let layout = parse(&packet, Start::Ip, &Tunnels::NONE);
                assert_eq!((layout.headers().len(), layout.stop()), (outer + headers, stop), "{units}");
                assert!(headers == 2 || layout.headers()[outer].end() == ipv6::LEN + 20 * outer);
                assert_eq!((layout.is_padded(), layout.end()), (outer == 0, 20 * outer + v6.len()));
            }
        }
    }

    #[test]
    fn an_unsupported_tunnel_header_is_distinguished_from_contradictory_lengths() {
        let tunnels = Tunnels::NONE.with_gue(6080).with(4789, Kind::Vxlan).with(6081, Kind::Geneve).with_fou(5547, 47);
        let stop = |packet: &[u8]| {
            let layout = parse(packet, Start::Ip, &tunnels);
            let last = layout.headers().last().unwrap().kind;
            assert!(matches!(last, Kind::Ipv4 | Kind::Udp), "{layout:?}");
            if last == Kind::Udp {
                let plain = layout.or_plain();
                assert_eq!((plain.stop(), plain.headers()), (Stop::Transport, layout.headers()));
            }
            layout.stop()
        };
        // PPTP (RFC 2637) with data and without; routing, recursion control and other reserved bits of RFC 1701.
        let foreign_gre: [(&[u8], Stop); 5] = [
            (&[0x30, 0x81, 0x88, 0x0b, 0, 4, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 3, 0, 0x21], Stop::Protocol),
            (&[0x20, 0x81, 0x88, 0x0b, 0, 0, 0, 5, 0, 0, 0, 2], Stop::Protocol),
            (&[0x40, 0, 8, 0, 0, 0, 0, 0], Stop::Foreign),
            (&[1, 0, 8, 0], Stop::Foreign),
            (&[0, 0x80, 8, 0], Stop::Foreign),
        ];
        for (gre, expected) in foreign_gre {
            assert_eq!(stop(&ip(protocol::GRE, gre)), expected, "{gre:02x?}");
            assert_eq!(stop(&udp_to(5547, gre)), expected, "{gre:02x?}");
        }
        for gre in [&[][..], &[0x30, 0x81, 0x88], &[0x80, 0, 8, 0, 0, 0, 0], &[0xb0, 0, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8]] {
            assert_eq!(stop(&ip(protocol::GRE, gre)), Stop::Malformed, "{gre:02x?}");
            assert_eq!(stop(&udp_to(5547, gre)), Stop::Malformed, "{gre:02x?}");
        }
        // Unknown versions, control messages and flags of each format; then wrong lengths.
        let foreign: [(u16, &[u8]); 8] = [
            (6080, &[0x80, 4, 0, 0]),
            (6080, &[0x50]),
            (6080, &[0x20, 1, 0, 0]),
            (6080, &[0, 4, 2, 0]),
            (4789, &[0; 8]),
            (4789, &[0x0c, 0, 0, 4, 0, 0, 5, 0]),
            (6081, &[0x40, 0, 0x65, 0x58, 0, 0, 5, 0]),
            (6081, &[0, 0x80, 0x65, 0x58, 0, 0, 5, 0]),
        ];
        for (port, bytes) in foreign {
            assert_eq!(stop(&udp_to(port, bytes)), Stop::Foreign, "{port} {bytes:02x?}");
        }
        let malformed: [(u16, &[u8]); 6] = [
            (6080, &[]),
            (6080, &[0x1f, 4, 0, 0]),
            (6080, &[0, 4, 0, 1]),
            (4789, &[8, 0, 0, 0, 0, 0, 5]),
            (6081, &[0x3f, 0, 0x65, 0x58, 0, 0, 5, 0]),
            (6081, &[1, 0, 0x65, 0x58, 0, 0, 5, 0, 0, 0, 0, 1]),
        ];
        for (port, bytes) in malformed {
            assert_eq!(stop(&udp_to(port, bytes)), Stop::Malformed, "{port} {bytes:02x?}");
        }
    }

    /// Returns why the general parser ended on the first `bytes` of a packet of `len` bytes, and the number of headers.
    fn end_of(bytes: &[u8], len: usize, start: Start) -> (Stop, usize) {
        let layout = parse_any(bytes, len, start, &Tunnels::NONE);
        (layout.stop(), layout.headers().len())
    }

    /// Returns an Ethernet frame of this type.
    fn frame(kind: u16, content: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &kind.to_be_bytes(), content].concat()
    }

    #[test]
    fn version_and_lengths_of_an_ip_header_are_held_against_the_bytes() {
        // First byte, stated length, and bytes that are there, of a protocol that is not followed.
        let v4 = |first: u8, total: u16, have: usize| {
            let mut bytes = ip(50, &[0; 20]);
            bytes[0] = first;
            bytes[2..4].copy_from_slice(&total.to_be_bytes());
            frame(ethertype::IPV4, &bytes[..have])
        };
        let v6 = |first: u8, payload: u16, have: usize| {
            let mut bytes = [0; 48];
            (bytes[0], bytes[ipv6::NEXT_HEADER]) = (first, 50);
            bytes[4..6].copy_from_slice(&payload.to_be_bytes());
            frame(ethertype::IPV6, &bytes[..have])
        };
        let (good, bad) = ((Stop::Protocol, 2), (Stop::Malformed, 1));
        for (bytes, expected) in [
            (v4(0x45, 20, 20), good),
            (v4(0x45, 24, 24), good),
            (v4(0x45, 20, 24), good),
            (v4(0x46, 24, 24), good),
            (v4(0x55, 20, 20), bad),
            (v4(0x44, 20, 20), bad),
            (v4(0x45, 19, 20), bad),
            (v4(0x46, 23, 24), bad),
            (v4(0x45, 21, 20), bad),
            (v4(0x45, 20, 19), bad),
            (v6(0x60, 0, 40), good),
            (v6(0x60, 8, 48), good),
            (v6(0x60, 0, 48), good),
            (v6(0x50, 0, 40), bad),
            (v6(0x60, 1, 40), bad),
            (v6(0x60, 0, 39), bad),
        ] {
            assert_eq!(end_of(&bytes, bytes.len(), Start::Ethernet), expected, "{bytes:02x?}");
        }
        // Of a longer packet, the first bytes: with the whole header, and without its last option.
        assert_eq!(end_of(&v4(0x46, 100, 24), 14 + 100, Start::Ethernet), good);
        assert_eq!(end_of(&v4(0x46, 100, 22), 14 + 100, Start::Ethernet), bad);
    }

    #[test]
    fn lengths_of_a_transport_header_are_held_against_the_bytes() {
        for (offset, len, expected) in [
            (0x50, 20, (Stop::Transport, 2)),
            (0x60, 24, (Stop::Transport, 2)),
            (0x40, 20, (Stop::Malformed, 1)),
            (0x60, 23, (Stop::Malformed, 1)),
            (0x50, 19, (Stop::Malformed, 1)),
        ] {
            let mut segment = vec![0; len];
            segment[tcp::OFFSET] = offset;
            let packet = ip(protocol::TCP, &segment);
            assert_eq!(end_of(&packet, packet.len(), Start::Ip), expected, "{offset:#x} of {len}");
        }
        for (stated, len, expected) in [
            (8, 8, (Stop::Transport, 2)),
            (8, 12, (Stop::Transport, 2)),
            (7, 8, (Stop::Malformed, 1)),
            (9, 8, (Stop::Malformed, 1)),
        ] {
            let mut packet = udp_to(9, &vec![0; len - udp::LEN]);
            packet[25] = stated;
            assert_eq!(end_of(&packet, packet.len(), Start::Ip), expected, "{stated} of {len}");
        }
    }

    /// Tests that a length of zero stands for a train only where its length does not fit the field.
    #[test]
    fn a_train_without_length_is_longer_than_its_field_can_say() {
        let mut v4 = ip(protocol::TCP, &[0; 20]);
        v4[2..4].fill(0);
        let mut v6 = vec![0; 60];
        (v6[0], v6[ipv6::NEXT_HEADER]) = (0x60, protocol::TCP);
        for (bytes, offset_at, most, bad) in [(v4, 32, 65_535, 0), (v6, 52, 40 + 65_535, 1)] {
            let mut bytes = bytes;
            bytes[offset_at] = 0x50;
            assert_eq!(end_of(&bytes, most, Start::Ip), (Stop::Malformed, bad));
            assert_eq!(end_of(&bytes, most + 1, Start::Ip), (Stop::Transport, 2));
            let layout = parse_any(&bytes, most + 1, Start::Ip, &Tunnels::NONE);
            assert!(layout.is_exact() && layout.end() == most + 1);
            bytes[if bad == 0 { ipv4::PROTOCOL } else { ipv6::NEXT_HEADER }] = protocol::UDP;
            assert_eq!(end_of(&bytes, most + 1, Start::Ip), (Stop::Malformed, bad), "of UDP there are none");
        }
    }

    /// Tests that bytes behind the outermost packet are padding, and that other lengths that disagree are none.
    #[test]
    fn a_layout_says_whether_the_packet_is_padded_or_inexact() {
        let exact = udp_to(9, &[1; 4]);
        let padded = [&exact[..], &[0; 3]].concat();
        let mut short = exact.clone();
        short[25] -= 1;
        let both = [&short[..], &[0; 3]].concat();
        for (bytes, expected) in
            [(exact, (true, false)), (padded, (false, true)), (short, (false, false)), (both, (false, false))]
        {
            for layout in
                [parse(&bytes, Start::Ip, &Tunnels::NONE), parse_any(&bytes, bytes.len(), Start::Ip, &Tunnels::NONE)]
            {
                assert_eq!((layout.is_exact(), layout.is_padded(), layout.end()), (expected.0, expected.1, 32));
            }
        }
    }

    #[test]
    fn the_end_of_an_ip_packet_is_what_its_length_field_says() {
        for off in [0, 14] {
            let mut head = vec![0; off + 40];
            head[off + 2..off + 6].copy_from_slice(&[1, 44, 2, 88]);
            let end = |kind, len| ip_end(&head, &Header { kind, off: off as u16, len });
            assert_eq!(end(Kind::Ipv4, 20), Some(off + 300));
            assert_eq!(end(Kind::Ipv6, 40), Some(off + 40 + 600));
            assert_eq!((end(Kind::Udp, 8), end(Kind::Ethernet, 14)), (None, None));
            let cut = |kind, len| ip_end(&head[..off + len], &Header { kind, off: off as u16, len: 20 });
            assert_eq!((cut(Kind::Ipv4, 3), cut(Kind::Ipv6, 5)), (None, None));
        }
    }
}
