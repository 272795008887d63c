//! The inner IP header: the fields that both directions need.

use crate::checksum::{Sum, pseudo_v4, pseudo_v6};
use crate::packet::{Head, Header, Kind, Layout, Packet, Stop};
use crate::wire::{ethernet, ipv4, ipv6, protocol, read_u16, read_u32};

/// Number of bytes after the fixed IPv6 header in which the ports of a first fragment are found.
const REACH: usize = 2 * ipv6::MAX_EXTENSION_LEN;

/// The part of a packet that a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    /// Identification of the packet among those between its addresses, for IPv4 with the protocol (RFC 791, section
    /// 2.3).
    pub(super) id: u64,
    pub(super) is_first: bool,
}

/// The fields of an inner IP header that matter to a tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inner {
    /// IP version, 4 or 6; 0 for a frame without IP.
    pub(super) version: u8,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// Don't Fragment flag; never set for IPv6, which has no such flag.
    pub(super) df: bool,
    /// Length of the packet in bytes, as the header states it.
    pub(super) total_len: usize,
    /// Protocol and both ports, if TCP or UDP follows the header.
    pub(super) ports: Option<(u8, u32)>,
    /// Which fragment it is, if it is one.
    pub(super) fragment: Option<Fragment>,
    addresses: [u8; 32],
    addresses_len: usize,
}

impl Inner {
    /// Reads the header at the start of `bytes`; `None` if its fixed part is truncated.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Inner> {
        let mut addresses = [0; 32];
        match bytes.first()? >> 4 {
            4 => {
                let header: &[u8; ipv4::MIN_LEN] = bytes.first_chunk()?;
                let total_len = usize::from(read_u16(header, ipv4::TOTAL_LEN)?);
                let len = ipv4::header_len(header[0]);
                if len < ipv4::MIN_LEN {
                    return None;
                }
                addresses[..8].copy_from_slice(&header[ipv4::SRC.start..ipv4::DST.end]);
                Some(Inner {
                    version: 4,
                    tos: header[ipv4::TOS],
                    ttl: header[ipv4::TTL],
                    df: read_u16(header, ipv4::FRAGMENT)? & ipv4::DF != 0,
                    total_len,
                    ports: None,
                    fragment: None,
                    addresses,
                    addresses_len: 8,
                })
            }
            6 => {
                let header: &[u8; ipv6::LEN] = bytes.first_chunk()?;
                addresses.copy_from_slice(&header[ipv6::SRC.start..ipv6::DST.end]);
                Some(Inner {
                    version: 6,
                    tos: ipv6::traffic_class(header[0], header[1]),
                    ttl: header[ipv6::HOP_LIMIT],
                    df: false,
                    total_len: ipv6::LEN + usize::from(read_u16(header, ipv6::PAYLOAD_LEN)?),
                    ports: None,
                    fragment: None,
                    addresses,
                    addresses_len: 32,
                })
            }
            _ => None,
        }
    }

    /// Reads the outermost IP header of a packet; the header is in the payload if the parser listed none.
    pub(super) fn of<B: AsRef<[u8]>>(packet: &Packet<B>) -> Option<Inner> {
        let Some(first) = packet.layout.headers().first() else {
            let mut bytes = [0; ipv6::LEN];
            let len = packet.payload.copy_to(0..ipv6::LEN, &mut bytes);
            return Inner::read(&bytes[..len]);
        };
        if !first.is_ip() {
            return None;
        }
        let mut inner = Inner::read(packet.head.bytes())?;
        inner.read_flow(packet, 0);
        Some(inner)
    }

    /// Reads the inner header like [`Inner::of`], for a packet that may begin with an Ethernet header, if the parser
    /// found an IP header. Otherwise the flow is that of the MAC addresses and the EtherType.
    pub(super) fn of_frame<B: AsRef<[u8]>>(packet: &Packet<B>) -> Option<Inner> {
        let bytes = packet.head.bytes();
        let frame: &[u8; ethernet::LEN] = bytes.first_chunk()?;
        let at = packet.layout.outer_ip_index();
        if let Some((at, header)) = at.and_then(|at| Some((at, packet.layout.headers().get(at)?))) {
            let mut inner = Inner::read(bytes.get(header.start()..)?)?;
            inner.read_flow(packet, at);
            return Some(inner);
        }
        let mut addresses = [0; 32];
        addresses[..ethernet::LEN].copy_from_slice(frame);
        let total_len = packet.len();
        Some(Inner {
            version: 0,
            tos: 0,
            ttl: 64,
            df: false,
            total_len,
            ports: None,
            fragment: None,
            addresses,
            addresses_len: 16,
        })
    }

    /// Reads what follows the IP header at `index`: the ports, or which fragment it is.
    #[inline]
    fn read_flow<B: AsRef<[u8]>>(&mut self, packet: &Packet<B>, index: usize) {
        self.ports = ports(packet, index + 1);
        if packet.layout.stop() == Stop::Fragment
            && let [ip] = &packet.layout.headers()[index..]
        {
            self.fragment = self.read_fragment(packet, ip);
        }
    }

    /// Reads which fragment a packet is whose last header is `ip`, and the ports if it is a first one. An atomic
    /// fragment of IPv6 (RFC 6946) is a whole packet.
    #[cold]
    fn read_fragment<B: AsRef<[u8]>>(&mut self, packet: &Packet<B>, ip: &Header) -> Option<Fragment> {
        let header = packet.head.bytes().get(ip.start()..)?;
        let mut bytes = [0; REACH];
        let len = packet.payload.copy_to(0..REACH, &mut bytes);
        let bytes = &bytes[..len];
        let (number, at, fragment) = if self.version == 4 {
            let number = *header.get(ipv4::PROTOCOL)?;
            let id = u64::from(number) << 32 | u64::from(read_u16(header, ipv4::ID)?);
            let is_first = read_u16(header, ipv4::FRAGMENT)? & ipv4::OFFSET == 0;
            (number, 0, Some(Fragment { id, is_first }))
        } else {
            let found = ipv6::fragment(*header.get(ipv6::NEXT_HEADER)?, bytes)?;
            let fragment = (!found.is_atomic()).then(|| Fragment { id: found.id.into(), is_first: found.offset == 0 });
            match ipv6::chain(found.next, bytes.get(found.end..)?) {
                ipv6::Chain::End { next, len } => (next, found.end + len, fragment),
                _ => return fragment,
            }
        };
        if fragment.is_none_or(|fragment| fragment.is_first) && matches!(number, protocol::TCP | protocol::UDP) {
            self.ports = read_u32(bytes, at).map(|ports| (number, ports));
        }
        fragment
    }

    /// Returns source and destination address: 8 or 32 bytes, or 16 for a frame without IP.
    pub(super) fn addresses(&self) -> &[u8] {
        &self.addresses[..self.addresses_len]
    }

    /// Returns the first eight bytes of the addresses, which are both of IPv4.
    #[inline]
    pub(super) fn addresses_begin(&self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.addresses;
        [a, b, c, d, e, f, g, h]
    }

    /// Returns whether the source address is a martian, which no packet from another host may have: multicast,
    /// broadcast or loopback (RFC 1122, section 3.2.1.3; RFC 4291, sections 2.5.3 and 2.7).
    pub(super) fn source_is_martian(&self) -> bool {
        match self.version {
            4 => matches!(self.addresses[0], 127 | 224..=239) || self.addresses[..4] == [255; 4],
            _ => self.addresses[0] == 0xff || (self.addresses[..15] == [0; 15] && self.addresses[15] == 1),
        }
    }
}

/// Returns protocol and both ports of the header at `index`, if it is TCP or UDP.
fn ports<B: AsRef<[u8]>>(packet: &Packet<B>, index: usize) -> Option<(u8, u32)> {
    let header = packet.layout.headers().get(index)?;
    let protocol = match header.kind {
        Kind::Tcp => protocol::TCP,
        Kind::Udp => protocol::UDP,
        _ => return None,
    };
    Some((protocol, read_u32(packet.head.bytes(), header.start())?))
}

/// Returns the pseudo-header sum of the innermost transport header of a packet of `end` bytes, and the value of its
/// checksum field, which holds that sum if it is primed; `None` without a transport header.
///
/// With an IPv6 routing header with segments left the final destination would be needed here; the sums then differ, and
/// neither direction uses remote checksum offload for the packet.
pub(super) fn primed(head: &Head, layout: &Layout, end: usize) -> Option<(Sum, u16)> {
    let transport = layout.transport()?;
    let (number, field) = match transport.kind {
        Kind::Tcp => (protocol::TCP, crate::wire::tcp::CHECKSUM),
        Kind::Udp => (protocol::UDP, crate::wire::udp::CHECKSUM),
        _ => return None,
    };
    let ip = layout.inner_ip()?;
    let bytes = head.bytes().get(ip.start()..)?;
    let upper_len = end.checked_sub(transport.start())?;
    let sum = match ip.kind {
        Kind::Ipv4 => {
            let at = |range: core::ops::Range<usize>| bytes.get(range)?.first_chunk().copied();
            pseudo_v4(at(ipv4::SRC)?, at(ipv4::DST)?, number, upper_len)
        }
        _ => {
            let at = |range: core::ops::Range<usize>| bytes.get(range)?.first_chunk().copied();
            pseudo_v6(at(ipv6::SRC)?, at(ipv6::DST)?, number, upper_len)
        }
    };
    Some((sum, read_u16(head.bytes(), transport.start() + field)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(source: [u8; 4]) -> [u8; ipv4::MIN_LEN] {
        let mut header = [0; ipv4::MIN_LEN];
        (header[0], header[ipv4::TOS], header[ipv4::TTL], header[3]) = (0x45, 0xb9, 63, 84);
        header[ipv4::SRC].copy_from_slice(&source);
        header[ipv4::DST].copy_from_slice(&[198, 18, 0, 2]);
        header
    }

    fn v6(source: [u8; 16]) -> [u8; ipv6::LEN] {
        let mut header = [0; ipv6::LEN];
        (header[0], header[1], header[ipv6::HOP_LIMIT], header[5]) = (0x6b, 0x90, 62, 60);
        header[ipv6::SRC].copy_from_slice(&source);
        header[ipv6::DST].fill(9);
        header
    }

    /// Tests that multicast, broadcast and loopback sources are martian, at the edges of each range (RFC 1122, section
    /// 3.2.1.3; RFC 4291, sections 2.5.3 and 2.7).
    #[test]
    fn multicast_broadcast_and_loopback_are_martian_sources() {
        for (source, expected) in [
            ([126, 255, 255, 255], false),
            ([127, 0, 0, 0], true),
            ([127, 255, 255, 255], true),
            ([128, 0, 0, 0], false),
            ([223, 255, 255, 255], false),
            ([224, 0, 0, 0], true),
            ([239, 255, 255, 255], true),
            ([240, 0, 0, 0], false),
            ([255, 255, 255, 254], false),
            ([255, 255, 255, 255], true),
        ] {
            assert_eq!(Inner::read(&v4(source)).unwrap().source_is_martian(), expected, "{source:?}");
        }
        let with = |first: u8, before_last: u8, last: u8| {
            let mut source = [0; 16];
            (source[0], source[14], source[15]) = (first, before_last, last);
            source
        };
        for (source, expected) in [
            (with(0xff, 0, 0), true),
            (with(0xfe, 0, 1), false),
            (with(0, 0, 1), true),
            (with(0, 0, 0), false),
            (with(0, 0, 2), false),
            (with(0, 1, 1), false),
            (with(0x20, 0, 1), false),
        ] {
            assert_eq!(Inner::read(&v6(source)).unwrap().source_is_martian(), expected, "{source:?}");
        }
    }

    /// Tests that the fields are read at their places in a header (RFC 791, section 3.1; RFC 8200, section 3), and that
    /// a shorter header is refused.
    #[test]
    fn the_fields_of_an_inner_header_are_read_and_a_shorter_one_is_not() {
        let mut header = v4([198, 18, 0, 1]);
        for (word, df) in [(0, false), (ipv4::DF, true), (ipv4::MF, false), (0x8000, false)] {
            header[ipv4::FRAGMENT..][..2].copy_from_slice(&u16::to_be_bytes(word));
            let inner = Inner::read(&header).unwrap();
            assert_eq!((inner.version, inner.tos, inner.ttl, inner.df, inner.total_len), (4, 0xb9, 63, df, 84));
            assert_eq!(inner.addresses(), [198, 18, 0, 1, 198, 18, 0, 2]);
        }
        let long = v6([7; 16]);
        let inner = Inner::read(&long).unwrap();
        assert_eq!((inner.version, inner.tos, inner.ttl, inner.df, inner.total_len), (6, 0xb9, 62, false, 100));
        assert_eq!(inner.addresses(), [[7; 16], [9; 16]].concat());
        assert!((0..header.len()).all(|len| Inner::read(&header[..len]).is_none()));
        assert!((0..long.len()).all(|len| Inner::read(&long[..len]).is_none()));
        for (first, is_read) in [(0x44, false), (0x45, true), (0x4f, true), (0x35, false), (0x55, false)] {
            header[0] = first;
            assert_eq!(Inner::read(&header).is_some(), is_read, "{first:#x}");
        }
    }

    #[test]
    fn the_ports_of_tcp_and_udp_belong_to_the_flow() {
        use crate::packet::{Frag, Start, Tunnels};
        for (number, expected) in [(6, Some((6, 0x0001_0002))), (17, Some((17, 0x0001_0002))), (1, None)] {
            let mut bytes = v4([198, 18, 0, 1]).to_vec();
            (bytes[3], bytes[ipv4::PROTOCOL]) = (40, number);
            // Of UDP the third word is the length, of TCP the sequence number; TCP has its own length behind.
            bytes.extend([0, 1, 0, 2, 0, 20, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
            let frame = [&[2; 12][..], &[8, 0], &bytes].concat();
            let mut packet = Packet::default();
            packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
            assert_eq!(Inner::of(&packet).unwrap().ports, expected, "{number}");
            packet.load(Frag::all(frame), Start::Ethernet, &Tunnels::NONE);
            assert_eq!(Inner::of_frame(&packet).unwrap().ports, expected, "{number} in a frame");
        }
    }
}
