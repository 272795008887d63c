//! Remote checksum options, and what they mean in a packet.

use super::headers::TunnelHeaders;
use super::refusal::DecapRefusal;
use crate::checksum::Sum;
use crate::encap::inner;
use crate::packet::{Head, Kind, Layout, Remote, Stop, remote};
use crate::wire::Remcsum;
use crate::wire::gue::{self, Gue};

/// What a remote checksum option means in this packet. `head` has the inner headers, before and after.
pub(super) fn resolve(
    option: Remcsum,
    tunnel: &TunnelHeaders,
    head: &mut Head,
    inner: &Layout,
) -> Result<Remote, DecapRefusal> {
    // The places count from the end of the header with the option, so it does not matter which that is, and its surplus
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

/// The value of the pending field, where it is the pseudo-header sum of the packet that is there.
///
/// A packet with a length that says less than the one around it is refused: the sum would run further than the length
/// that the receiver's transport believes.
pub(super) fn check_primed(head: &Head, layout: &Layout, len: usize) -> Result<u16, DecapRefusal> {
    match inner::primed(head, layout, len) {
        Some((sum, field)) if layout.is_exact() && sum == Sum::of(&field.to_be_bytes()) => Ok(field),
        _ => Err(DecapRefusal::RemcsumPrimed),
    }
}

/// The sum over a GRE header and its payload as it will be when the transport checksum is finished: a segment of
/// `segment_len` bytes whose checksum is right sums to the complement of its pseudo header, so its bytes need not be read.
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
