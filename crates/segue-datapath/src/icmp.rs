//! ICMP errors of a router: RFC 1812 section 4.3 for IPv4, RFC 4443 for IPv6.

use std::net::IpAddr;

use segue::checksum::{Field, Sum, pseudo_v6};
use segue::gso::{self, Frames, Limits};
use segue::packet::{Kind, Packet};
use segue::time::Nanos;
use segue::wire::{ipv4, ipv6, protocol, read_u16, write_u16};

use crate::forward::DropReason;

/// Most bytes of an error over IPv4, whatever MTU lies on the way back (RFC 1812, section 4.3.2.3).
const MOST_V4: usize = 576;
/// The same for IPv6 (RFC 4443, section 3.1).
const MOST_V6: usize = 1280;
/// Bytes of an error's own header.
const LEN: usize = 8;
/// The offset in the fragment header of IPv6 (RFC 8200, section 4.5).
const OFFSET_V6: u16 = 0xfff8;

/// Type and code, for IPv4 and IPv6; `None` where the sender is not told.
fn number(reason: DropReason, is_v4: bool) -> Option<(u8, u8)> {
    let (v4, v6) = match reason {
        DropReason::HopLimit => ((11, 0), (3, 0)),
        DropReason::NoRoute => ((3, 0), (1, 0)),
        DropReason::Unreachable | DropReason::NoNeighbour => ((3, 1), (1, 3)),
        DropReason::Prohibited => ((3, 13), (1, 1)),
        DropReason::TooBig => ((3, 4), (2, 0)),
        DropReason::NotIp
        | DropReason::Source
        | DropReason::Own
        | DropReason::Scope
        | DropReason::Blackhole
        | DropReason::NoRoom => return None,
    };
    Some(if is_v4 { v4 } else { v6 })
}

/// The IP packet that tells the sender of `packet` why it was dropped, from the router's address `from`, of the same family.
/// Of a train its first segment is quoted, as it would have left. `None` where nobody is to be told: for some reasons, errors,
/// later fragments of IPv4, and packets from or to more than one host.
///
/// `scratch` is used, and left empty.
pub fn error<B: AsRef<[u8]>>(
    packet: &Packet<B>,
    reason: DropReason,
    mtu: u32,
    from: IpAddr,
    scratch: &mut Frames,
) -> Option<Vec<u8>> {
    let ip = packet.layout.headers().iter().find(|header| header.is_ip())?;
    let is_v4 = ip.kind == Kind::Ipv4;
    let (kind, code) = number(reason, is_v4)?;
    scratch.clear();
    gso::split_linear(packet, &Limits::NONE, scratch).ok()?;
    let frame = scratch.frames().first()?;
    let bytes = scratch.bytes(frame).get(ip.start()..)?;
    let may = if is_v4 { may_v4(bytes) } else { may_v6(bytes) };
    let reply = may.then(|| match from {
        IpAddr::V4(from) if is_v4 => Some(reply_v4(bytes, from.octets(), kind, code, mtu)),
        IpAddr::V6(from) if !is_v4 => Some(reply_v6(bytes, from.octets(), kind, code, mtu)),
        _ => None,
    });
    let reply = reply.flatten();
    scratch.clear();
    reply
}

/// Whether an error may be sent about this IPv4 packet (RFC 1812, section 4.3.2.7).
fn may_v4(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<20>() else { return false };
    let is_later = read_u16(header, ipv4::FRAGMENT).is_none_or(|word| word & ipv4::OFFSET != 0);
    let is_host = |first: u8| !matches!(first, 0 | 127 | 224..);
    let is_error = header[ipv4::PROTOCOL] == protocol::ICMP
        && bytes.get(ipv4::header_len(header[0])).is_none_or(|kind| !matches!(kind, 0 | 8 | 13..=18));
    !is_later && !is_error && is_host(header[12]) && is_host(header[16])
}

/// The same for IPv6 (RFC 4443, section 2.4 (e)). Packet too big is sent about multicast as well there; not here, since no
/// multicast is forwarded.
fn may_v6(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<40>() else { return false };
    let is_host = |address: &[u8]| address[0] != 0xff && address.iter().any(|byte| *byte != 0);
    is_host(&header[ipv6::SRC]) && is_host(&header[ipv6::DST]) && !may_be_error_v6(header[ipv6::NEXT_HEADER], bytes)
}

/// Whether an IPv6 packet is an ICMPv6 error, or something that cannot be read far enough. Its first fragment tells; a later
/// one is taken for none, since errors fit every link (RFC 4443, section 2.4 (c)) and are not fragmented.
fn may_be_error_v6(mut next: u8, bytes: &[u8]) -> bool {
    let mut at = ipv6::LEN;
    // One more than there may be, for the fragment header.
    for _ in 0..=ipv6::MAX_EXTENSIONS + 1 {
        let Some(rest) = bytes.get(at..) else { return true };
        match next {
            protocol::ICMPV6 => return rest.first().is_none_or(|kind| kind & 0x80 == 0),
            protocol::FRAGMENT => {
                let Some(&[following, _, high, low]) = rest.first_chunk() else { return true };
                if u16::from_be_bytes([high, low]) & OFFSET_V6 != 0 {
                    return false;
                }
                (next, at) = (following, at + 8);
            }
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => {
                let Some(&[following, units]) = rest.first_chunk() else { return true };
                (next, at) = (following, at + 8 + usize::from(units) * 8);
            }
            _ => return false,
        }
    }
    true
}

fn reply_v4(quoted: &[u8], from: [u8; 4], kind: u8, code: u8, mtu: u32) -> Vec<u8> {
    let quoted = &quoted[..quoted.len().min(MOST_V4 - ipv4::MIN_LEN - LEN)];
    let total = ipv4::MIN_LEN + LEN + quoted.len();
    let mut bytes = vec![0; ipv4::MIN_LEN + LEN];
    bytes[ipv4::VERSION_IHL] = 0x45;
    // Precedence 6, internetwork control (RFC 1812, section 4.3.2.5).
    bytes[ipv4::TOS] = 0xc0;
    write_u16(&mut bytes, ipv4::TOTAL_LEN, total as u16);
    write_u16(&mut bytes, ipv4::FRAGMENT, ipv4::DF);
    bytes[ipv4::TTL] = 64;
    bytes[ipv4::PROTOCOL] = protocol::ICMP;
    bytes[ipv4::SRC].copy_from_slice(&from);
    bytes[ipv4::DST].copy_from_slice(&quoted[ipv4::SRC]);
    let field = Field::complete(Sum::of(&bytes[..ipv4::MIN_LEN]));
    write_u16(&mut bytes, ipv4::CHECKSUM, field.value());
    let icmp = ipv4::MIN_LEN;
    (bytes[icmp], bytes[icmp + 1]) = (kind, code);
    // Next-hop MTU (RFC 1191, section 4); more than 65535 is no limit that IPv4 knows.
    write_u16(&mut bytes, icmp + 6, u16::try_from(mtu).unwrap_or(u16::MAX));
    bytes.extend_from_slice(quoted);
    let field = Field::complete(Sum::of(&bytes[icmp..]));
    write_u16(&mut bytes, icmp + 2, field.value());
    bytes
}

fn reply_v6(quoted: &[u8], from: [u8; 16], kind: u8, code: u8, mtu: u32) -> Vec<u8> {
    let quoted = &quoted[..quoted.len().min(MOST_V6 - ipv6::LEN - LEN)];
    let mut bytes = vec![0; ipv6::LEN + LEN];
    bytes[0] = 0x60;
    write_u16(&mut bytes, ipv6::PAYLOAD_LEN, (LEN + quoted.len()) as u16);
    bytes[ipv6::NEXT_HEADER] = protocol::ICMPV6;
    bytes[ipv6::HOP_LIMIT] = 64;
    let mut to = [0; 16];
    to.copy_from_slice(&quoted[ipv6::SRC]);
    bytes[ipv6::SRC].copy_from_slice(&from);
    bytes[ipv6::DST].copy_from_slice(&to);
    let icmp = ipv6::LEN;
    (bytes[icmp], bytes[icmp + 1]) = (kind, code);
    bytes[icmp + 4..icmp + 8].copy_from_slice(&mtu.to_be_bytes());
    bytes.extend_from_slice(quoted);
    let mut sum = pseudo_v6(from, to, protocol::ICMPV6, bytes.len() - icmp);
    sum.add(&bytes[icmp..]);
    write_u16(&mut bytes, icmp + 2, Field::complete(sum).value());
    bytes
}

/// How many errors may be sent (RFC 1812, section 4.3.2.8; RFC 4443, section 2.4 (f)): a bucket that fills with time.
#[derive(Clone, Copy, Debug)]
pub struct Limiter {
    per_second: u64,
    burst: u64,
    /// In billionths of an error.
    level: u64,
    last: Nanos,
}

const ONE: u64 = 1_000_000_000;

impl Limiter {
    /// At most `burst` at once and `per_second` in the long run.
    pub fn new(per_second: u32, burst: u32, now: Nanos) -> Limiter {
        let burst = u64::from(burst);
        Limiter { per_second: per_second.into(), burst, level: burst * ONE, last: now }
    }

    /// Whether one more may be sent, which then counts as sent.
    pub fn take(&mut self, now: Nanos) -> bool {
        let passed = now.0.saturating_sub(self.last.0);
        self.last = now;
        self.level = self.level.saturating_add(passed.saturating_mul(self.per_second)).min(self.burst * ONE);
        let may = self.level >= ONE;
        self.level -= if may { ONE } else { 0 };
        may
    }
}
