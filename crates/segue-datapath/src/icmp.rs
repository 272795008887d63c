//! ICMP errors that a router sends: RFC 1812, section 4.3, for IPv4, and RFC 4443 for IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use segue::checksum::{Field, Sum};
use segue::gso::{self, Frames, Limits};
use segue::hash::Key;
use segue::packet::{Kind, Packet, Unit};
use segue::time::Nanos;
use segue::wire::icmp::{self, MOST_V4, MOST_V6, emit_v4, emit_v6, may_answer_v4, may_answer_v6, v4, v6};
use segue::wire::{ipv4, ipv6, protocol, write_u16};

use crate::forward::DropReason;

/// Number of leading bytes of a packet that decide whether an error may be sent about it: an IP header with all options
/// or some extension headers, and the start of the payload.
const MOST_READ: usize = 256;

/// Kinds of ICMP errors, each with a rate limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// ICMP time exceeded: the hop limit reached 0.
    TimeExceeded,
    /// Destination unreachable, for any reason but the packet's length.
    Unreachable,
    /// Fragmentation needed, and packet too big: senders depend on them (RFC 4443, section 2.4 (f); Linux exempts them
    /// from its limit).
    TooBig,
}

/// Returns the kind of the ICMP error about a dropped packet, or `None` where none may be sent: for some reasons, about
/// ICMP errors and later fragments of IPv4, about packets from or to an address that is not one host's, and about
/// packets with a wrong IPv4 header checksum. That of a train is computed for each segment.
pub fn kind_of<B: AsRef<[u8]>>(packet: &Packet<B>, reason: DropReason) -> Option<ErrorKind> {
    let ip = packet.layout.outer_ip()?;
    let is_v4 = ip.kind == Kind::Ipv4;
    number(reason, is_v4)?;
    let head = packet.head.bytes().get(ip.start()..)?;
    let mut front = [0; MOST_READ];
    let from_head = head.len().min(MOST_READ);
    front[..from_head].copy_from_slice(&head[..from_head]);
    let len = from_head + packet.payload.copy_to(0..MOST_READ - from_head, &mut front[from_head..]);
    let front = &front[..len];
    let is_right = matches!(packet.offload.unit, Unit::Train { .. }) || is_header_right(front);
    let may = if is_v4 { may_answer_v4(front) && is_right } else { may_answer_v6(front) };
    may.then_some(match reason {
        DropReason::HopLimit => ErrorKind::TimeExceeded,
        DropReason::TooBig => ErrorKind::TooBig,
        _ => ErrorKind::Unreachable,
    })
}

/// Returns ICMP type and code for a drop reason, or `None` where no error is sent.
fn number(reason: DropReason, is_v4: bool) -> Option<(u8, u8)> {
    let (v4, v6) = match reason {
        DropReason::HopLimit => ((v4::TIME_EXCEEDED, 0), (v6::TIME_EXCEEDED, 0)),
        DropReason::NoRoute => ((v4::UNREACHABLE, v4::NET_UNREACHABLE), (v6::UNREACHABLE, v6::NO_ROUTE)),
        DropReason::Unreachable | DropReason::NoNeighbour | DropReason::Encapsulated => {
            ((v4::UNREACHABLE, v4::HOST_UNREACHABLE), (v6::UNREACHABLE, v6::ADDRESS_UNREACHABLE))
        }
        DropReason::Prohibited => ((v4::UNREACHABLE, v4::PROHIBITED), (v6::UNREACHABLE, v6::PROHIBITED)),
        DropReason::TooBig => ((v4::UNREACHABLE, v4::FRAGMENTATION_NEEDED), (v6::PACKET_TOO_BIG, 0)),
        DropReason::NotIp
        | DropReason::Source
        | DropReason::Own
        | DropReason::ReversePath
        | DropReason::Scope
        | DropReason::Blackhole
        | DropReason::NoRoom
        | DropReason::Blocked => return None,
    };
    Some(if is_v4 { v4 } else { v6 })
}

/// Returns an ICMP error in an IP packet from the router's address `from` to the sender of `packet`. Of a train the
/// first segment is quoted, as it would have left.
///
/// `None` where no error may be sent: for some reasons, about ICMP errors and later fragments of IPv4, about packets
/// from or to an address that is not one host's, and about those whose IPv4 header has a wrong checksum.
///
/// `scratch` is cleared before and after use.
pub fn error<B: AsRef<[u8]>>(
    packet: &Packet<B>,
    reason: DropReason,
    mtu: u32,
    from: IpAddr,
    scratch: &mut Frames,
) -> Option<Vec<u8>> {
    let ip = packet.layout.outer_ip()?;
    let is_v4 = ip.kind == Kind::Ipv4;
    let (kind, code) = number(reason, is_v4)?;
    scratch.clear();
    gso::split_linear(packet, &Limits::NONE, scratch).ok()?;
    let frame = scratch.frames().first()?;
    let bytes = scratch.bytes(frame).get(ip.start()..)?;
    // No more is read than by `kind_of`, whatever extension headers there are.
    let front = &bytes[..bytes.len().min(MOST_READ)];
    let may = if is_v4 { may_answer_v4(front) && is_header_right(front) } else { may_answer_v6(front) };
    let reply = may.then(|| match from {
        IpAddr::V4(from) if is_v4 => reply_v4(bytes, from, (kind, code), mtu),
        IpAddr::V6(from) if !is_v4 => reply_v6(bytes, from, (kind, code), mtu),
        _ => None,
    });
    let reply = reply.flatten();
    scratch.clear();
    reply
}

/// Returns whether an IPv4 header checksum is right; no error is sent about packets with a wrong one (RFC 1812, section
/// 4.3.2.7).
fn is_header_right(packet: &[u8]) -> bool {
    let header = packet.first().and_then(|first| packet.get(..ipv4::header_len(*first)));
    header.is_some_and(|header| Field::complete(Sum::of(header)).value() == 0)
}

fn reply_v4(quoted: &[u8], from: Ipv4Addr, (kind, code): (u8, u8), mtu: u32) -> Option<Vec<u8>> {
    let quoted = &quoted[..quoted.len().min(MOST_V4 - ipv4::MIN_LEN - icmp::LEN)];
    let mut bytes = vec![0; ipv4::MIN_LEN + icmp::LEN];
    bytes.extend_from_slice(quoted);
    let total = bytes.len() as u16;
    let (header, message) = bytes.split_at_mut(ipv4::MIN_LEN);
    header[ipv4::VERSION_IHL] = 0x45;
    // Precedence 6, internetwork control (RFC 1812, section 4.3.2.5).
    header[ipv4::TOS] = 0xc0;
    write_u16(header, ipv4::TOTAL_LEN, total);
    write_u16(header, ipv4::FRAGMENT, ipv4::DF);
    header[ipv4::TTL] = 64;
    header[ipv4::PROTOCOL] = protocol::ICMP;
    header[ipv4::SRC].copy_from_slice(&from.octets());
    header[ipv4::DST].copy_from_slice(&quoted[ipv4::SRC]);
    let field = Field::complete(Sum::of(header));
    write_u16(header, ipv4::CHECKSUM, field.value());
    // Next-hop MTU (RFC 1191, section 4); its field has 16 bits.
    emit_v4(message, kind, code, mtu.min(u16::MAX.into()))?;
    Some(bytes)
}

fn reply_v6(quoted: &[u8], from: Ipv6Addr, (kind, code): (u8, u8), mtu: u32) -> Option<Vec<u8>> {
    let quoted = &quoted[..quoted.len().min(MOST_V6 - ipv6::LEN - icmp::LEN)];
    let to = ipv6::source(quoted)?;
    let mut bytes = vec![0; ipv6::LEN + icmp::LEN];
    bytes.extend_from_slice(quoted);
    let (header, message) = bytes.split_at_mut(ipv6::LEN);
    header[ipv6::VERSION_CLASS_LABEL] = 0x60;
    write_u16(header, ipv6::PAYLOAD_LEN, message.len() as u16);
    header[ipv6::NEXT_HEADER] = protocol::ICMPV6;
    header[ipv6::HOP_LIMIT] = 64;
    header[ipv6::SRC].copy_from_slice(&from.octets());
    header[ipv6::DST].copy_from_slice(&to.octets());
    emit_v6(message, (from, to), kind, code, mtu)?;
    Some(bytes)
}

/// Rate limit of one kind of error: rate per second, and burst.
type Rate = (u32, u32);
/// Rate limits for all senders together and for one sender, by kind of error. A sender that floods reaches its own
/// limit and leaves the rest to others.
const RATES: [(Rate, Rate); 3] = [((1000, 200), (100, 50)), ((1000, 200), (100, 50)), ((10_000, 1000), (1000, 100))];
/// Number of limits of single senders for each kind; senders with the same hash share one.
const SENDERS: usize = 512;

/// The rate limits of a router's errors (RFC 1812, section 4.3.2.8; RFC 4443, section 2.4 (f)).
#[derive(Debug)]
pub struct ErrorLimits {
    all: [Limiter; 3],
    /// Rate limiters by kind of error and by the hash of the sender's address.
    senders: Box<[[Limiter; SENDERS]; 3]>,
    key: Key,
}

impl ErrorLimits {
    /// Creates the rate limits of a router; `key` should be random.
    pub fn new(key: Key, now: Nanos) -> ErrorLimits {
        let limiter = |(per_second, burst)| Limiter::new(per_second, burst, now);
        let senders = Box::new(RATES.map(|(_, one)| [limiter(one); SENDERS]));
        ErrorLimits { all: RATES.map(|(all, _)| limiter(all)), senders, key }
    }

    /// Takes a token of `sender` for an error of `kind`, and one of all senders, if both are available. Returns whether
    /// they were, so that the error may be sent.
    pub fn take(&mut self, kind: ErrorKind, sender: IpAddr, now: Nanos) -> bool {
        let bits = match sender {
            IpAddr::V4(sender) => sender.to_ipv6_mapped().to_bits(),
            IpAddr::V6(sender) => sender.to_bits(),
        };
        let place = self.key.hash(&bits.to_be_bytes()) as usize % SENDERS;
        let mut of_sender = self.senders[kind as usize][place];
        let may = of_sender.take(now) && self.all[kind as usize].take(now);
        if may {
            self.senders[kind as usize][place] = of_sender;
        }
        may
    }
}

/// A rate limit: a token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Limiter {
    per_second: u64,
    burst: u64,
    /// Fill level, in billionths of an error.
    level: u64,
    last: Nanos,
}

const ONE: u64 = 1_000_000_000;

impl Limiter {
    /// Creates a rate limit of `burst` errors at once and `per_second` in the long run.
    pub fn new(per_second: u32, burst: u32, now: Nanos) -> Limiter {
        let burst = u64::from(burst);
        Limiter { per_second: per_second.into(), burst, level: burst * ONE, last: now }
    }

    /// Takes a token, if one is available. Returns whether there was one, so that an error may be sent.
    pub fn take(&mut self, now: Nanos) -> bool {
        let passed = now.0.saturating_sub(self.last.0);
        self.last = now;
        self.level = self.level.saturating_add(passed.saturating_mul(self.per_second)).min(self.burst * ONE);
        let may = self.level >= ONE;
        self.level -= if may { ONE } else { 0 };
        may
    }
}
