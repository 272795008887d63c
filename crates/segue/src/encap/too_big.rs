//! Telling the sender inside that a packet does not fit the way: ICMP "fragmentation needed" (RFC 1191, section 4) and ICMPv6
//! "packet too big" (RFC 4443, section 3.2).

use crate::checksum::{Field, Sum, pseudo_v6};
use crate::packet::{Kind, Packet};
use crate::wire::{ethernet, ipv4, ipv6, protocol, read_u16, write_u16, write_u32};

/// Most bytes of an ICMP error for IPv4 (RFC 1122, section 3.2.2 leaves more to the host; routers send 576) and for IPv6.
const MOST: [usize; 2] = [576, 1280];
/// Bytes of an ICMP header.
const ICMP_LEN: usize = 8;
const UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const PACKET_TOO_BIG: u8 = 2;
/// In ICMPv6, types from here on are no errors.
const INFORMATIONAL: u8 = 128;
/// Types of ICMP that are no errors: echo reply and request, timestamp and its reply.
const QUERIES: [u8; 4] = [0, 8, 13, 14];
/// Smallest MTU of an IPv6 link.
const IPV6_MIN_MTU: usize = 1280;

/// What a way of an MTU of `mtu` bytes (of inner IP) means for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It fits, or is no IP.
    Fits,
    /// It does not, but may be fragmented: the outside has to be, without Don't Fragment.
    Fragment,
    /// It does not and must not be fragmented: its sender is to be told this MTU.
    TooBig(usize),
}

/// Whether `packet`, or each segment of a train, fits in `mtu` bytes of IP. IPv6 is never told less than 1280 bytes.
pub fn fit<B: AsRef<[u8]>>(packet: &Packet<B>, mtu: usize) -> Fit {
    let Some(ip) = packet.layout.outer_ip() else { return Fit::Fits };
    let size = match packet.offload.unit {
        crate::packet::Unit::Train { gso, .. } => packet.layout.header_len() - ip.start() + usize::from(gso.size),
        crate::packet::Unit::Whole(_) => packet.layout.end().saturating_sub(ip.start()),
    };
    if size <= mtu {
        return Fit::Fits;
    }
    if ip.kind == Kind::Ipv6 {
        let told = mtu.max(IPV6_MIN_MTU);
        return if size <= told { Fit::Fragment } else { Fit::TooBig(told) };
    }
    let df = read_u16(packet.head.bytes(), ip.start() + ipv4::FRAGMENT).is_some_and(|word| word & ipv4::DF != 0);
    if df { Fit::TooBig(mtu) } else { Fit::Fragment }
}

/// Writes the error for `packet` to `out`, with the link headers of the packet turned round in front of it, and returns its
/// length; `None` where there must be none (RFC 1122, section 3.2.2; RFC 4443, section 2.4): for an error, a group, a later
/// fragment, a source that nobody is, or where `out` is too short.
///
/// It comes from the packet's own destination, which is the one address that is sure to be beyond the tunnel.
pub fn too_big<B: AsRef<[u8]>>(packet: &Packet<B>, mtu: usize, out: &mut [u8]) -> Option<usize> {
    let index = packet.layout.headers().iter().position(|header| header.is_ip())?;
    let ip = packet.layout.headers().get(index)?;
    let (head, l3) = (packet.head.bytes(), ip.start());
    let header = head.get(l3..ip.end())?;
    let is_v4 = ip.kind == Kind::Ipv4;
    let (ip_len, most) = if is_v4 { (ipv4::MIN_LEN, MOST[0]) } else { (ipv6::LEN, MOST[1]) };

    // The first bytes of what is quoted, for as long as they are asked.
    let quoted_len = (head.len() - l3 + packet.payload.len()).min(most - ip_len - ICMP_LEN);
    let quote_at = l3 + ip_len + ICMP_LEN;
    let quote = out.get_mut(quote_at..quote_at + quoted_len)?;
    let in_head = quoted_len.min(head.len() - l3);
    quote[..in_head].copy_from_slice(&head[l3..l3 + in_head]);
    packet.payload.copy_to(0..quoted_len - in_head, &mut quote[in_head..]);

    let kind = quote.get(ip.len as usize).copied();
    let (src, dst) = if is_v4 {
        if read_u16(header, ipv4::FRAGMENT)? & ipv4::OFFSET != 0 {
            return None;
        }
        let is_error = header[ipv4::PROTOCOL] == protocol::ICMP && !kind.is_some_and(|kind| QUERIES.contains(&kind));
        let group = header[ipv4::DST.start] >= 224 || header[ipv4::SRC.start] >= 224 || header[ipv4::SRC.start] == 0;
        if is_error || group {
            return None;
        }
        (ipv4::SRC, ipv4::DST)
    } else {
        let is_error = header[ipv6::NEXT_HEADER] == protocol::ICMPV6 && kind.is_none_or(|kind| kind < INFORMATIONAL);
        let group = header[ipv6::DST.start] == 0xff || header[ipv6::SRC.start] == 0xff;
        if is_error || group || header[ipv6::SRC] == [0; 16] {
            return None;
        }
        (ipv6::SRC, ipv6::DST)
    };
    let total = ip_len + ICMP_LEN + quoted_len;
    out[..l3].copy_from_slice(&head[..l3]);
    if l3 >= ethernet::LEN {
        out[ethernet::DST].copy_from_slice(&head[ethernet::SRC]);
        out[ethernet::SRC].copy_from_slice(&head[ethernet::DST]);
    }
    let (reply, _) = out[l3..].split_at_mut(total);
    reply[..ip_len + ICMP_LEN].fill(0);
    reply[src.clone()].copy_from_slice(&header[dst.clone()]);
    reply[dst].copy_from_slice(&header[src]);
    if is_v4 {
        reply[ipv4::VERSION_IHL] = 0x45;
        // At most 576.
        write_u16(reply, ipv4::TOTAL_LEN, total as u16);
        reply[ipv4::TTL] = 64;
        reply[ipv4::PROTOCOL] = protocol::ICMP;
        let field = Field::complete(Sum::of(&reply[..ip_len]));
        write_u16(reply, ipv4::CHECKSUM, field.value());
        reply[ip_len..ip_len + 2].copy_from_slice(&[UNREACHABLE, FRAGMENTATION_NEEDED]);
        write_u16(reply, ip_len + 6, u16::try_from(mtu).unwrap_or(u16::MAX));
        let field = Field::complete(Sum::of(&reply[ip_len..]));
        write_u16(reply, ip_len + 2, field.value());
    } else {
        reply[0] = 0x60;
        write_u16(reply, ipv6::PAYLOAD_LEN, (total - ip_len) as u16);
        (reply[ipv6::NEXT_HEADER], reply[ipv6::HOP_LIMIT]) = (protocol::ICMPV6, 64);
        reply[ip_len] = PACKET_TOO_BIG;
        write_u32(reply, ip_len + 4, u32::try_from(mtu).unwrap_or(u32::MAX));
        let at = |range: core::ops::Range<usize>| reply.get(range)?.first_chunk().copied();
        let mut sum = pseudo_v6(at(ipv6::SRC)?, at(ipv6::DST)?, protocol::ICMPV6, total - ip_len);
        sum.add(&reply[ip_len..]);
        write_u16(reply, ip_len + 2, Field::complete(sum).value());
    }
    Some(l3 + total)
}
