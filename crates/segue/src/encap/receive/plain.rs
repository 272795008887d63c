//! The fast path of decapsulation, for datagrams from which only headers have to be removed.
//!
//! The inner packet leaves as a frame that is not parsed, for a stage that recognises most packets by a few bytes.
//! Whatever is not simple takes [`Decapsulator::pull`]; a frame that leaves here is the packet that `pull` would give.

use super::decapsulator::Decapsulator;
use super::headers::TunnelHeaders;
use super::received::{OuterCsum, Received};
use crate::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use crate::encap::config::Carrier;
use crate::encap::ecn;
use crate::encap::inner::Inner;
use crate::packet::{Csum, Frag, Frame, Start};
use crate::wire::{Remcsum, ethernet, ethertype, ipv4, ipv6, protocol, read_u16, tcp, udp};

impl Decapsulator {
    /// Removes the tunnel headers of `datagram` like [`Decapsulator::pull`], if nothing else has to be done: no GRE
    /// checksum or sequence number to check, no congestion mark to copy, no trailer to cut off. The checksum state of
    /// the frame is [`Csum::Partial`] if the checksum was left to the receiver, and otherwise unknown.
    ///
    /// # Errors
    /// The datagram, for `pull`, which judges it.
    #[inline(always)]
    pub fn pull_frame<B: AsRef<[u8]>>(&self, datagram: Frag<B>, meta: &Received) -> Result<Frame<B>, Frag<B>> {
        match self.plain(datagram.bytes(), meta) {
            Some((start, len, csum)) => Ok(Frame { bytes: datagram.skip(len), start, csum }),
            None => Err(datagram),
        }
    }

    /// Returns kind and offset of the inner packet's first header, and the state of its transport checksum.
    #[inline]
    fn plain(&self, bytes: &[u8], meta: &Received) -> Option<(Start, usize, Csum)> {
        let is_absent = meta.csum == OuterCsum::Absent && self.config.carrier != Carrier::Bare;
        if meta.sum.is_some() || is_absent && !self.config.zero_csum6 && self.config.local.is_ipv6() {
            return None;
        }
        let tunnel = self.tunnel_headers(bytes).ok()?;
        if tunnel.gre.is_some_and(|gre| gre.checksum.is_some() || gre.seq.is_some()) {
            return None;
        }
        let frame = bytes.get(tunnel.len..)?;
        let (start, l3) = match self.config.mode.is_ethernet() {
            false => (Start::Ip, 0),
            true => {
                let source = frame.get(ethernet::SRC)?.first_chunk()?;
                let version = frame.get(ethernet::LEN)? >> 4;
                if !ethernet::is_station(*source)
                    || !matches!(
                        (read_u16(frame, ethernet::TYPE)?, version),
                        (ethertype::IPV4, 4) | (ethertype::IPV6, 6)
                    )
                {
                    return None;
                }
                (Start::Ethernet, ethernet::LEN)
            }
        };
        let packet = frame.get(l3..)?;
        let inner = Inner::read(packet)?;
        let is_announced = start == Start::Ethernet
            || self.config.mode.takes(inner.version) && tunnel.version == inner.version && !inner.source_is_martian();
        if inner.total_len != packet.len() || !is_announced || ecn::combine(inner.tos, meta.tos) != Some(inner.tos) {
            return None;
        }
        let (ip_len, number) = match packet {
            [0x45, ..] => (ipv4::MIN_LEN, packet[ipv4::PROTOCOL]),
            [0x60..=0x6f, ..] => (ipv6::LEN, packet[ipv6::NEXT_HEADER]),
            _ => return None,
        };
        if ip_len == ipv6::LEN && is_extension(number) {
            return None;
        }
        let csum = match tunnel.option {
            None if self.config.unfinished.is_some() && may_be_unfinished(packet.split_at_checked(ip_len)?, number) => {
                return None;
            }
            None => Csum::Unknown,
            Some(option) if meta.csum == OuterCsum::Verified => {
                let ip = packet.split_at_checked(ip_len)?;
                remote_csum_state(option, &tunnel, ip, number, l3)?
            }
            Some(_) => return None,
        };
        Some((start, tunnel.len, csum))
    }
}

/// Returns the state of a transport checksum that a remote checksum option leaves to the receiver, if the option names
/// it and the field is primed. `ip` are the IP header and what follows it; the header is at `l3`.
fn remote_csum_state(
    option: Remcsum,
    tunnel: &TunnelHeaders,
    (ip, transport): (&[u8], &[u8]),
    number: u8,
    l3: usize,
) -> Option<Csum> {
    let is_v4 = ip.len() == ipv4::MIN_LEN;
    let (field, is_whole) = match number {
        protocol::TCP => {
            let header_len = tcp::header_len(*transport.get(tcp::OFFSET)?);
            (tcp::CHECKSUM, (tcp::MIN_LEN..=transport.len()).contains(&header_len))
        }
        protocol::UDP => (udp::CHECKSUM, usize::from(read_u16(transport, udp::LENGTH)?) == transport.len()),
        _ => return None,
    };
    let is_fragment = is_v4 && read_u16(ip, ipv4::FRAGMENT)? & (ipv4::MF | ipv4::OFFSET) != 0;
    let start = tunnel.len - tunnel.gre_at + l3 + ip.len();
    let is_named = usize::from(option.start) == start && usize::from(option.offset) == start + field;
    if !is_whole || is_fragment || !is_named {
        return None;
    }
    let sum = pseudo(ip, number, transport.len())?;
    (read_u16(transport, field)? == Field::primed(sum).value()).then_some(Csum::Partial)
}

/// Returns whether the innermost transport checksum may hold the sum of the pseudo-header, which
/// [`Config::unfinished`](crate::encap::Config::unfinished) asks for: that of `transport`, behind the header `ip`, or
/// one further inside.
#[inline(always)]
fn may_be_unfinished((ip, transport): (&[u8], &[u8]), number: u8) -> bool {
    let at = match number {
        protocol::TCP => tcp::CHECKSUM,
        protocol::UDP => udp::CHECKSUM,
        protocol::IPV4 | protocol::IPV6 | protocol::GRE | protocol::ETHERNET => return true,
        _ => return false,
    };
    let (Some(field), Some(sum)) = (read_u16(transport, at), pseudo(ip, number, transport.len())) else { return false };
    // Both zeros of ones' complement arithmetic.
    field % 0xffff == sum.fold() % 0xffff
}

/// Returns the sum of the pseudo-header of `len` bytes behind the IP header `ip`, which has no options.
#[inline(always)]
fn pseudo(ip: &[u8], number: u8, len: usize) -> Option<Sum> {
    Some(if ip.len() == ipv4::MIN_LEN {
        pseudo_v4(*ip[ipv4::SRC].first_chunk()?, *ip[ipv4::DST].first_chunk()?, number, len)
    } else {
        pseudo_v6(*ip[ipv6::SRC].first_chunk()?, *ip[ipv6::DST].first_chunk()?, number, len)
    })
}

fn is_extension(number: u8) -> bool {
    matches!(number, protocol::HOP_BY_HOP | protocol::ROUTING | protocol::FRAGMENT | protocol::DESTINATION)
}
