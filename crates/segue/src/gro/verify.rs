//! Verification of every checksum of a packet before it may join a train.

use super::rules::RefusalReason;
use crate::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use crate::gso;
use crate::packet::{Buffer, Csum, Header, Kind, LayerCsum, Packet, Remote, Unit};
use crate::wire::{ipv4, ipv6, protocol, read_u16, tcp, udp};

/// Returns whether the transport checksum is pending.
pub(super) fn is_owed<B>(packet: &Packet<B>) -> bool {
    packet.offload.unit == Unit::Whole(Csum::Partial)
}

/// Returns the pseudo-header sum of the transport header `transport` under `ip`, for `upper_len` bytes from that header
/// on.
pub(super) fn pseudo(head: &[u8], ip: &Header, transport: &Header, upper_len: usize) -> Sum {
    let protocol = if transport.kind == Kind::Tcp { protocol::TCP } else { protocol::UDP };
    let bytes = &head[ip.start()..];
    match (ip.kind, bytes.get(ipv4::SRC).zip(bytes.get(ipv4::DST)), bytes.get(ipv6::SRC).zip(bytes.get(ipv6::DST))) {
        (Kind::Ipv4, Some((src, dst)), _) => {
            pseudo_v4(src.try_into().unwrap_or_default(), dst.try_into().unwrap_or_default(), protocol, upper_len)
        }
        (_, _, Some((src, dst))) => {
            pseudo_v6(src.try_into().unwrap_or_default(), dst.try_into().unwrap_or_default(), protocol, upper_len)
        }
        _ => Sum::ZERO,
    }
}

/// Returns the length of the payload in bytes, without padding after the outermost IP packet.
#[inline]
pub(super) fn payload_len<B: AsRef<[u8]>>(packet: &Packet<B>) -> usize {
    let len = packet.payload.len();
    if packet.layout.is_padded() { packet.layout.end().saturating_sub(packet.head.len()).min(len) } else { len }
}

/// Verifies the outer UDP, GRE and transport checksums, records the result in the packet, and adds the number of
/// payload bytes that it had to read to `checksummed`.
///
/// Padding is ignored. IPv4 header checksums are not verified here; `rules::gate` has done that.
pub(super) fn verify<B: AsRef<[u8]>>(packet: &mut Packet<B>, checksummed: &mut u64) -> Result<(), RefusalReason> {
    let len = payload_len(packet);
    let total = packet.head.len() + len;
    let mut payload = None;
    if let Unit::Whole(Csum::Complete(sum)) = packet.offload.unit {
        let l3 = packet.layout.outer_ip().map_or(0, Header::start);
        let mut rest = sum;
        rest.remove(Sum::of(&packet.head.bytes()[l3..]));
        if len < packet.payload.len() {
            // At an odd offset the padding's first word begins with the byte before it, counted as zero.
            let mut padding = Sum::ZERO;
            padding.append(Sum::ZERO, len % 2);
            packet.payload.pieces(len..usize::MAX).for_each(|piece| padding.add(piece));
            rest.remove(padding);
        }
        payload = Some(rest);
    }
    let Packet { head, payload: bytes, offload, layout, .. } = packet;
    let head = head.bytes();
    // The sum of all bytes from `from` on; every header has an even length, so parity does not matter here.
    let mut sum_from = |from: usize| {
        let rest = *payload.get_or_insert_with(|| {
            *checksummed += len as u64;
            let mut sum = Sum::ZERO;
            bytes.pieces(0..len).for_each(|piece| sum.add(piece));
            sum
        });
        let mut sum = Sum::of(&head[from..]);
        sum.append(rest, len);
        sum
    };
    let transport = layout.transport().ok_or(RefusalReason::Malformed)?;
    let (mut level, mut ip) = (0_usize, None);
    let levels = offload.layers().len();
    for header in layout.headers() {
        if header.is_ip() {
            level += 1;
            ip = Some(header);
            continue;
        }
        let (Some(over), true) = (ip, level <= levels) else { continue };
        let layer = &mut offload.layers_mut()[level - 1];
        match header.kind {
            Kind::Udp if layer.udp == LayerCsum::Unknown => {
                let mut sum = pseudo(head, over, header, total - header.start());
                sum.append(sum_from(header.start()), total - header.start());
                if sum.fold() != 0xffff {
                    return Err(RefusalReason::BadChecksum);
                }
                layer.udp = LayerCsum::Done;
            }
            Kind::Gre if layer.gre == LayerCsum::Unknown => {
                let mut sum = Sum::ZERO;
                if layer.remote == Some(Remote::Transport) {
                    // The sender computed it as if the primed field inside were complete already.
                    let field = transport.start() + field_at(transport.kind);
                    let primed = read_u16(head, field).unwrap_or(0);
                    let done = Field::complete(sum_from(transport.start())).value();
                    sum.add_u16(!primed);
                    sum.add_u16(done);
                }
                sum.append(sum_from(header.start()), total - header.start());
                if sum.fold() != 0xffff {
                    return Err(RefusalReason::BadChecksum);
                }
                layer.gre = LayerCsum::Done;
            }
            _ => {}
        }
    }
    let unprotected = offload.layers().iter().any(|l| l.remote.is_some() && l.udp != LayerCsum::Done);
    if unprotected {
        return Err(RefusalReason::RemoteUnprotected);
    }
    let over = ip.ok_or(RefusalReason::Malformed)?;
    let mut sum = pseudo(head, over, transport, total - transport.start());
    match offload.unit {
        Unit::Whole(Csum::Verified) => Ok(()),
        Unit::Whole(Csum::Partial) => {
            let field = read_u16(head, transport.start() + field_at(transport.kind));
            if field == Some(Field::primed(sum).value()) { Ok(()) } else { Err(RefusalReason::BadChecksum) }
        }
        _ => {
            sum.append(sum_from(transport.start()), total - transport.start());
            let good = sum.fold() == 0xffff;
            offload.unit = Unit::Whole(if good { Csum::Verified } else { Csum::Bad });
            if good { Ok(()) } else { Err(RefusalReason::BadChecksum) }
        }
    }
}

/// Verifies a packet like [`verify`], in fewer steps if it is a TCP packet of a known form whose checksum state is
/// unknown, like the first segment of nearly every train. Its IP and TCP headers begin at these offsets.
#[inline(never)]
pub(super) fn verify_known<const V6: bool, B: AsRef<[u8]>>(
    packet: &mut Packet<B>,
    (l3, l4): (usize, usize),
    checksummed: &mut u64,
) -> Result<(), RefusalReason> {
    let head = packet.head.bytes();
    let headers = head.get(l3..l4).zip(head.get(l4..));
    let (Unit::Whole(Csum::Unknown), Some((ip, transport))) = (packet.offload.unit, headers) else {
        return verify(packet, checksummed);
    };
    let len = packet.payload.len();
    *checksummed += len as u64;
    let mut sum = pseudo_header::<V6>(ip, protocol::TCP, transport.len() + len);
    sum.add(transport);
    packet.payload.frags().iter().for_each(|frag| sum.add(frag.bytes()));
    let is_good = sum.fold() == 0xffff;
    packet.offload.unit = Unit::Whole(if is_good { Csum::Verified } else { Csum::Bad });
    if is_good { Ok(()) } else { Err(RefusalReason::BadChecksum) }
}

/// Returns whether a TCP packet with this header begins or ends a connection, and its checksum is right or was verified
/// by what it came from. The packet stays as it is, unlike with [`verify`].
pub(super) fn is_right_end<B: Buffer>(packet: &Packet<B>, header: &[u8]) -> bool {
    let is_end = header.get(tcp::FLAGS).is_some_and(|flags| flags & (tcp::SYN | tcp::FIN | tcp::RST) != 0);
    is_end
        && match packet.offload.unit {
            Unit::Train { .. } | Unit::Whole(Csum::Verified | Csum::Partial) => true,
            Unit::Whole(Csum::Unknown | Csum::Complete(_)) => gso::verify(packet) == Csum::Verified,
            Unit::Whole(_) => false,
        }
}

fn field_at(kind: Kind) -> usize {
    if kind == Kind::Tcp { tcp::CHECKSUM } else { udp::CHECKSUM }
}

/// Returns whether the words of an IPv4 header without options sum to all ones, in either byte order.
#[inline(always)]
pub(super) fn is_sum_good(header: &[u8]) -> bool {
    let word = |at: usize| header[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    let last = header[16..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
    // 2^64 is 1 modulo 65535, so that carries out of the sum are added back in.
    let (sum, carry) = word(0).overflowing_add(word(8));
    let (sum, again) = sum.overflowing_add(u64::from(last) + u64::from(carry));
    // The version is not zero, so neither is the sum: in 16 bits it must be all ones. A number is a multiple of 65535
    // if its product with the inverse of 65535 modulo 2^64 is at most the largest quotient.
    const INVERSE: u64 = 0xfffe_fffe_fffe_ffff;
    sum.wrapping_add(u64::from(again)).wrapping_mul(INVERSE) <= u64::MAX / 0xffff
}

/// Returns the pseudo-header sum of a packet with the IP header `ip`, for `len` bytes from its transport header on.
#[inline(always)]
pub(super) fn pseudo_header<const V6: bool>(ip: &[u8], number: u8, len: usize) -> Sum {
    if V6 {
        let address = |at: usize| ip[at..].first_chunk().copied().unwrap_or_default();
        return pseudo_v6(address(ipv6::SRC.start), address(ipv6::DST.start), number, len);
    }
    let address = |at: usize| ip[at..].first_chunk().copied().unwrap_or_default();
    pseudo_v4(address(ipv4::SRC.start), address(ipv4::DST.start), number, len)
}
