//! Remote checksum options of received packets.

use super::headers::TunnelHeaders;
use super::refusal::DecapRefusal;
use crate::checksum::Sum;
use crate::encap::inner;
use crate::packet::{Head, Kind, Layout, Remote, Stop, remote};
use crate::wire::Remcsum;
use crate::wire::gue::{self, Gue};

/// Returns which checksum a remote checksum option names. `head` holds the inner headers, and does so again afterwards.
pub(super) fn resolve(
    option: Remcsum,
    tunnel: &TunnelHeaders,
    head: &mut Head,
    inner: &Layout,
) -> Result<Remote, DecapRefusal> {
    // Offsets count from the end of the header with the option, so it does not matter which header that is; its surplus
    // words, for which there may be no room, are left out.
    let gre_len = tunnel.len - tunnel.gre_at;
    let mut layout = *inner;
    let mut outer = Layout::empty(Stop::Protocol);
    outer.push(Kind::Gue, gue::REMCSUM_LEN);
    if let Some(gre) = tunnel.gre {
        outer.push(Kind::Gre, gre.len());
    }
    let bytes = head.push_front(gue::REMCSUM_LEN + gre_len).filter(|_| layout.prepend(&outer));
    let bytes = bytes.ok_or(DecapRefusal::RemcsumField)?;
    Gue::emit(bytes, 0, Some(option));
    if let Some(gre) = tunnel.gre {
        gre.emit(&mut bytes[gue::REMCSUM_LEN..]);
    }
    let resolved = remote::option(head, &layout, 0);
    head.pull_front(gue::REMCSUM_LEN + gre_len);
    match resolved {
        Some(resolved) => Ok(resolved?),
        None => Err(DecapRefusal::RemcsumField),
    }
}

/// Returns the value of the pending field, if it is the pseudo-header sum of the packet.
///
/// A packet with a length field that says less than the one around it is refused: the sum would run further than the
/// length that the receiver's transport uses.
pub(super) fn check_primed(head: &Head, layout: &Layout, len: usize) -> Result<u16, DecapRefusal> {
    match inner::primed(head, layout, len) {
        Some((sum, field)) if layout.is_exact() && sum == Sum::of(&field.to_be_bytes()) => Ok(field),
        _ => Err(DecapRefusal::RemcsumPrimed),
    }
}

/// Returns the sum over a GRE header and its payload with the transport checksum complete: a segment of `segment_len`
/// bytes with a right checksum sums to the complement of its pseudo header, so its bytes need not be read.
pub(super) fn finished_sum(
    bytes: &[u8],
    headers: core::ops::Range<usize>,
    primed: u16,
    segment_len: usize,
    trailer: &[u8],
) -> Sum {
    let mut sum = Sum::of(bytes.get(headers).unwrap_or(&[]));
    sum.append(Sum::of(&(!primed).to_be_bytes()), segment_len);
    sum.add(trailer);
    sum
}
