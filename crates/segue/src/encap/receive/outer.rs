//! Outer IP and UDP, for ports that carry whole packets.

use core::net::IpAddr;

use super::decapsulator::Decapsulator;
use super::received::{OuterCsum, Received, is_zero};
use super::refusal::DecapRefusal;
use crate::checksum::{Sum, pseudo_v4, pseudo_v6};
use crate::encap::config::Carrier;
use crate::encap::inner::Inner;
use crate::packet::{Kind, Start, Stop, Tunnels};
use crate::wire::{ipv4, ipv6, protocol, read_u16, udp};

impl Decapsulator {
    /// Parses and verifies outer IP and UDP.
    pub(super) fn outer(&mut self, bytes: &[u8]) -> Result<OuterHeaders, DecapRefusal> {
        let layout = crate::wire::parse(bytes, Start::Ip, &Tunnels::NONE);
        let Some(ip) = layout.headers().first() else {
            return Err(match layout.stop() {
                Stop::Fragment | Stop::Malformed => DecapRefusal::OuterMalformed,
                Stop::Transport | Stop::Protocol | Stop::Foreign | Stop::TooDeep => DecapRefusal::OuterProtocol,
            });
        };
        if layout.stop() == Stop::Fragment && layout.headers().len() == 1 {
            return Err(DecapRefusal::OuterFragment);
        }
        let outer = Inner::read(bytes).ok_or(DecapRefusal::OuterMalformed)?;
        let is_ours = |bytes: &[u8]| {
            let (source, destination) = bytes.split_at(bytes.len() / 2);
            is_address(source, self.config.remote) && is_address(destination, self.config.local)
        };
        let check_ip = || match () {
            () if !is_ours(outer.addresses()) => Err(DecapRefusal::OuterAddress),
            () if ip.kind == Kind::Ipv4 && !is_zero(Sum::of(&bytes[ip.start()..ip.end()])) => {
                Err(DecapRefusal::OuterIpCsum)
            }
            () => Ok(()),
        };
        if self.config.carrier == Carrier::Bare {
            // The last header of a chain of extension headers says what follows; the parser has walked it.
            let last = match ip.kind {
                Kind::Ipv4 => bytes.get(ipv4::PROTOCOL).copied(),
                _ => last_protocol(bytes),
            };
            if !last.is_some_and(|last| self.config.mode.protocols().contains(&last)) {
                return Err(DecapRefusal::OuterProtocol);
            }
            check_ip()?;
            let end = layout.end().min(bytes.len());
            let payload_len = end.checked_sub(ip.end()).ok_or(DecapRefusal::OuterMalformed)?;
            let meta = Received { tos: outer.tos, csum: OuterCsum::Absent, sum: None };
            return Ok(OuterHeaders { header_len: ip.end(), payload_len, meta });
        }
        let [_, udp, ..] = layout.headers() else {
            return Err(match layout.stop() {
                Stop::Malformed => DecapRefusal::OuterMalformed,
                _ => DecapRefusal::OuterProtocol,
            });
        };
        if udp.kind != Kind::Udp {
            return Err(DecapRefusal::OuterProtocol);
        }
        // The parser has checked both headers and the UDP length.
        let header = &bytes[udp.start()..udp.end()];
        let udp_len = usize::from(read_u16(header, udp::LENGTH).ok_or(DecapRefusal::OuterMalformed)?);
        let payload = bytes.get(udp.end()..udp.start() + udp_len).ok_or(DecapRefusal::OuterMalformed)?;
        check_ip()?;
        if read_u16(header, udp::DST_PORT) != Some(self.config.port) {
            return Err(DecapRefusal::OuterPort);
        }
        let mut meta = Received { tos: outer.tos, csum: OuterCsum::Absent, sum: None };
        if read_u16(header, udp::CHECKSUM) != Some(0) {
            let sum = Sum::of(payload);
            self.checksummed_bytes += payload.len() as u64;
            let mut all = match (self.config.remote, self.config.local) {
                (IpAddr::V4(from), IpAddr::V4(to)) => pseudo_v4(from.octets(), to.octets(), protocol::UDP, udp_len),
                (IpAddr::V6(from), IpAddr::V6(to)) => pseudo_v6(from.octets(), to.octets(), protocol::UDP, udp_len),
                // Refused by `Config::check`.
                (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
                    return Err(DecapRefusal::OuterAddress);
                }
            };
            all.add(header);
            all.append(sum, payload.len());
            if !is_zero(all) {
                return Err(DecapRefusal::OuterCsum);
            }
            meta.csum = OuterCsum::Verified;
            meta.sum = Some(sum);
        }
        Ok(OuterHeaders { header_len: udp.end(), payload_len: payload.len(), meta })
    }
}

/// The outer headers of a packet.
pub(super) struct OuterHeaders {
    pub(super) header_len: usize,
    pub(super) payload_len: usize,
    pub(super) meta: Received,
}

/// Returns the protocol after an IPv6 header and its extension headers.
fn last_protocol(bytes: &[u8]) -> Option<u8> {
    match ipv6::chain(*bytes.get(ipv6::NEXT_HEADER)?, bytes.get(ipv6::LEN..)?) {
        ipv6::Chain::End { next, .. } => Some(next),
        ipv6::Chain::Fragment | ipv6::Chain::Truncated | ipv6::Chain::TooLong => None,
    }
}

fn is_address(bytes: &[u8], address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => bytes == address.octets(),
        IpAddr::V6(address) => bytes == address.octets(),
    }
}
