//! ICMP errors for packets that are too big for the path through a tunnel: "fragmentation needed" (RFC 1191, section 4)
//! and ICMPv6 "packet too big" (RFC 4443, section 3.2).

use crate::checksum::{Field, Sum};
use crate::packet::{Kind, Packet};
use crate::wire::icmp::v4::{FRAGMENTATION_NEEDED, UNREACHABLE};
use crate::wire::icmp::v6::PACKET_TOO_BIG;
use crate::wire::icmp::{self, emit_v4, emit_v6, may_answer_v4, may_answer_v6};
use crate::wire::{ethernet, ipv4, ipv6, protocol, read_u16, write_u16};

/// Smallest MTU of an IPv6 link.
const IPV6_MIN_MTU: usize = 1280;

/// The relation of a packet to a path whose MTU for inner IP is `mtu` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The packet fits, or is not IP.
    Fits,
    /// The packet does not fit but may be fragmented: the outer packet is to be sent without Don't Fragment.
    Fragment,
    /// The packet does not fit and must not be fragmented: its sender gets an ICMP error with the given MTU.
    TooBig(usize),
}

/// Checks whether `packet`, or each segment of a train, fits in `mtu` bytes of IP, less the VLAN tags in front of it.
/// An IPv6 sender is never told less than 1280 bytes.
pub fn fit<B: AsRef<[u8]>>(packet: &Packet<B>, mtu: usize) -> Fit {
    let Some(ip) = packet.layout.outer_ip() else { return Fit::Fits };
    // In front of IP there is nothing, or an Ethernet header, which the overhead contains, and tags, which it does not.
    let mtu = mtu.saturating_sub(ip.start().saturating_sub(ethernet::LEN));
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

/// Returns whether a packet is in a frame to a group of stations, about which no error may be sent (RFC 1812, section
/// 4.3.2.7; RFC 4443, section 2.4 (e.4)).
pub fn is_to_group<B: AsRef<[u8]>>(packet: &Packet<B>) -> bool {
    let is_frame = packet.layout.outer_ip().is_some_and(|ip| ip.start() >= ethernet::LEN);
    is_frame && packet.head.bytes().first_chunk().is_some_and(|to| ethernet::is_group(*to))
}

/// Writes the error for `packet` to `out`, after the packet's link headers with swapped addresses, and returns its
/// length; `None` if no error may be sent ([`may_answer_v4`], [`may_answer_v6`], [`is_to_group`]), or if `out` is too
/// short.
///
/// Its source is the packet's own destination, the one address that is known to be beyond the tunnel.
pub fn too_big<B: AsRef<[u8]>>(packet: &Packet<B>, mtu: usize, out: &mut [u8]) -> Option<usize> {
    let ip = packet.layout.outer_ip()?;
    let (head, l3) = (packet.head.bytes(), ip.start());
    let header = head.get(l3..ip.end())?;
    let is_v4 = ip.kind == Kind::Ipv4;
    let (ip_len, most) = if is_v4 { (ipv4::MIN_LEN, icmp::MOST_V4) } else { (ipv6::LEN, icmp::MOST_V6) };

    // Quotes the first bytes of the packet.
    let quoted_len = (head.len() - l3 + packet.payload.len()).min(most - ip_len - icmp::LEN);
    let quote_at = l3 + ip_len + icmp::LEN;
    let quote = out.get_mut(quote_at..quote_at + quoted_len)?;
    let in_head = quoted_len.min(head.len() - l3);
    quote[..in_head].copy_from_slice(&head[l3..l3 + in_head]);
    packet.payload.copy_to(0..quoted_len - in_head, &mut quote[in_head..]);

    let may = if is_v4 { may_answer_v4(quote) } else { may_answer_v6(quote) };
    if !may || is_to_group(packet) {
        return None;
    }
    let (src, dst) = if is_v4 { (ipv4::SRC, ipv4::DST) } else { (ipv6::SRC, ipv6::DST) };
    let total = ip_len + icmp::LEN + quoted_len;
    out[..l3].copy_from_slice(&head[..l3]);
    if l3 >= ethernet::LEN {
        out[ethernet::DST].copy_from_slice(&head[ethernet::SRC]);
        out[ethernet::SRC].copy_from_slice(&head[ethernet::DST]);
    }
    let (reply, _) = out[l3..].split_at_mut(total);
    reply[..ip_len + icmp::LEN].fill(0);
    reply[src.clone()].copy_from_slice(&header[dst.clone()]);
    reply[dst].copy_from_slice(&header[src]);
    if is_v4 {
        reply[ipv4::VERSION_IHL] = 0x45;
        // The cast fits: the length is at most 576.
        write_u16(reply, ipv4::TOTAL_LEN, total as u16);
        reply[ipv4::TTL] = 64;
        reply[ipv4::PROTOCOL] = protocol::ICMP;
        let field = Field::complete(Sum::of(&reply[..ip_len]));
        write_u16(reply, ipv4::CHECKSUM, field.value());
        emit_v4(&mut reply[ip_len..], UNREACHABLE, FRAGMENTATION_NEEDED, mtu.min(u16::MAX.into()) as u32)?;
    } else {
        reply[ipv6::VERSION_CLASS_LABEL] = 0x60;
        write_u16(reply, ipv6::PAYLOAD_LEN, (total - ip_len) as u16);
        (reply[ipv6::NEXT_HEADER], reply[ipv6::HOP_LIMIT]) = (protocol::ICMPV6, 64);
        let ends = (ipv6::source(reply)?, ipv6::destination(reply)?);
        emit_v6(&mut reply[ip_len..], ends, PACKET_TOO_BIG, 0, u32::try_from(mtu).unwrap_or(u32::MAX))?;
    }
    Some(l3 + total)
}
