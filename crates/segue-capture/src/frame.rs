//! One parsed record of a capture: the offsets of its headers, and the length of its outermost IP packet.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use segue::packet::{Frag, Header, Kind, Layout, Offload, Packet, Start, Stop, Tunnels};
use segue::wire::{self, ethernet, ethertype, ipv4, ipv6, protocol, read_u16, read_u32, write_u16};

use crate::file::link;

/// Usual MTU in bytes. An IP packet is longer only if it was joined, or the link allows jumbo frames.
pub const USUAL_MTU: usize = 1500;
/// IPv6 jumbo payload option (RFC 2675): type and length.
const JUMBO: [u8; 2] = [0xc2, 4];

/// A parsed record that holds IP.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    /// Length of the link header in bytes.
    pub(crate) prefix: usize,
    /// Bytes after the link header. An IP length of 0 (packet too long for the field) is filled in up to its maximum,
    /// and a jumbo payload option is removed.
    pub(crate) bytes: Cow<'a, [u8]>,
    /// Offsets and kinds of the headers.
    pub(crate) layout: Layout,
    /// Offset of the end of the outermost IP packet in `bytes`; padding follows.
    pub(crate) total: usize,
    /// Whether the length field of the outermost IP header was 0.
    pub(crate) is_unsized: bool,
}

impl<'a> Frame<'a> {
    /// Parses a record of link type `number`; `None` if it is not IP. In an IP packet of more than `mtu` bytes a
    /// length of 0 means all bytes of the record.
    pub(crate) fn open(number: u16, data: &'a [u8], tunnels: &Tunnels, mtu: usize) -> Option<Frame<'a>> {
        let (prefix, start) = link::start(number, data)?;
        let bytes = &data[prefix..];
        let l3 = network(bytes, start)?;
        let Some(sized) = with_length(bytes, l3, mtu) else {
            let layout = wire::parse(bytes, start, tunnels).or_plain();
            let total = if layout.ip_levels() == 0 { bytes.len() } else { layout.end() };
            return Some(Frame { prefix, bytes: Cow::Borrowed(bytes), layout, total, is_unsized: false });
        };
        // The parser checks the length field, which holds at most its maximum here.
        let stated = match sized[l3] >> 4 {
            4 => l3 + usize::from(read_u16(&sized, l3 + ipv4::TOTAL_LEN)?),
            _ => l3 + ipv6::LEN + usize::from(read_u16(&sized, l3 + ipv6::PAYLOAD_LEN)?),
        };
        let layout = wire::parse(&sized[..stated.min(sized.len())], start, tunnels).or_plain();
        let total = sized.len();
        Some(Frame { prefix, bytes: Cow::Owned(sized), layout, total, is_unsized: true })
    }

    /// Returns the offset of the outermost IP header.
    pub(crate) fn l3(&self) -> usize {
        self.layout.outer_ip().map_or(0, Header::start)
    }

    /// Returns the length of the outermost IP packet in bytes.
    pub(crate) fn ip_len(&self) -> usize {
        self.total.saturating_sub(self.l3())
    }

    /// Returns whether lengths in the headers contradict each other or the bytes present.
    pub(crate) fn is_malformed(&self) -> bool {
        self.layout.stop() == Stop::Malformed
    }

    /// Returns whether the record has an IP header.
    pub(crate) fn is_ip(&self) -> bool {
        self.layout.ip_levels() > 0
    }

    /// Returns the packet for the engine, without padding and with unverified checksums.
    pub(crate) fn packet(&self) -> Packet<&[u8]> {
        let mut packet = Packet::default();
        let header_len = self.layout.header_len();
        packet.layout = self.layout;
        packet.head.set(&self.bytes[..header_len]);
        packet.offload = Offload::received(&packet.head, &self.layout);
        packet.payload.push(Frag::all(&self.bytes[header_len..self.total.max(header_len)]));
        packet
    }

    /// Returns a copy that owns its bytes, so that checksum fields can be changed.
    pub(crate) fn copied(&self) -> Frame<'a> {
        Frame { bytes: Cow::Owned(self.bytes.to_vec()), ..*self }
    }

    /// Returns source and destination address of the IP header `ip`; `None` if its bytes are missing.
    pub(crate) fn addresses(&self, ip: &Header) -> Option<(IpAddr, IpAddr)> {
        let part = |range: Range<usize>| self.bytes.get(ip.start() + range.start..ip.start() + range.end);
        if ip.kind == Kind::Ipv4 {
            let address = |range| part(range)?.first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes).into());
            return Some((address(ipv4::SRC)?, address(ipv4::DST)?));
        }
        let address = |range| part(range)?.first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes).into());
        Some((address(ipv6::SRC)?, address(ipv6::DST)?))
    }
}

/// Returns the offset of the outermost IP header, after VLAN tags; `None` for another EtherType.
fn network(bytes: &[u8], start: Start) -> Option<usize> {
    if start == Start::Ip {
        return Some(0);
    }
    let mut at = ethernet::LEN;
    for _ in 0..=ethernet::MAX_TAGS {
        match read_u16(bytes, at - 2)? {
            ethertype::VLAN | ethertype::QINQ => at += ethernet::VLAN_LEN,
            ethertype::IPV4 | ethertype::IPV6 => return Some(at),
            _ => return None,
        }
    }
    None
}

/// Copies the bytes with the IP length filled in, if it is 0 and more than `mtu` bytes are present. Linux writes 0
/// above 65,535 bytes, other systems in every packet that the card is to segment.
fn with_length(bytes: &[u8], l3: usize, mtu: usize) -> Option<Vec<u8>> {
    let packet = bytes.get(l3..).filter(|packet| packet.len() > mtu)?;
    match packet.first()? >> 4 {
        4 if read_u16(packet, ipv4::TOTAL_LEN) == Some(0) => {
            let mut sized = bytes.to_vec();
            write_u16(&mut sized, l3 + ipv4::TOTAL_LEN, packet.len().min(65_535) as u16);
            Some(sized)
        }
        6 if read_u16(packet, ipv6::PAYLOAD_LEN) == Some(0) => {
            let mut sized = bytes.to_vec();
            let option = packet.get(ipv6::LEN..ipv6::LEN + 8)?;
            if packet[ipv6::NEXT_HEADER] == protocol::HOP_BY_HOP && option[1] == 0 && option[2..4] == JUMBO {
                let stated = usize::try_from(read_u32(option, 4)?).ok()?;
                let next = option[0];
                // A packet whose option states more bytes than there are, or fewer than its own header has, keeps its
                // length of 0.
                sized.get(..l3 + ipv6::LEN + stated).filter(|_| stated >= option.len())?;
                sized.truncate(l3 + ipv6::LEN + stated);
                sized.drain(l3 + ipv6::LEN..l3 + ipv6::LEN + 8);
                sized[l3 + ipv6::NEXT_HEADER] = next;
            }
            let payload = (sized.len() - l3 - ipv6::LEN).min(65_535) as u16;
            write_u16(&mut sized, l3 + ipv6::PAYLOAD_LEN, payload);
            Some(sized)
        }
        _ => None,
    }
}
