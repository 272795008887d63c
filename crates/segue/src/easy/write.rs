//! Segments written as contiguous packets, with every checksum in place.

use core::fmt;

use crate::checksum::{Field, Sum};
use crate::packet::remote::field_offset;
use crate::packet::{Kind, Layout};
use crate::wire::write_u16;

/// The error of writing a packet to memory that is too small. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Short {
    /// The length of the packet, in bytes.
    pub needed: usize,
    /// The length of the memory, in bytes.
    pub given: usize,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a packet of {} bytes does not fit {} bytes of memory", self.needed, self.given)
    }
}

impl core::error::Error for Short {}

/// The offsets of a transport checksum that is completed while a packet is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// Start of the transport header, which is the last one.
    start: usize,
    /// Offset of its checksum field.
    field: usize,
    is_udp: bool,
}

impl Owed {
    /// Returns the offsets in packets with the given layout; `None` without a transport header with a checksum.
    pub(super) fn of(layout: &Layout) -> Option<Owed> {
        let transport = layout.transport()?;
        let field = transport.start() + field_offset(transport.kind)?;
        Some(Owed { start: transport.start(), field, is_udp: transport.kind == Kind::Udp })
    }

    /// Completes the checksum in `head`, whose field is primed, for a payload with this sum and length.
    #[inline]
    pub(super) fn complete(&self, head: &mut [u8], payload: Sum, len: usize) {
        // Every header has an even length.
        let mut sum = Sum::of(head.get(self.start..).unwrap_or(&[]));
        sum.append(payload, len);
        let value = if self.is_udp { Field::complete_udp(sum) } else { Field::complete(sum) };
        write_u16(head, self.field, value.value());
    }
}

/// Copies `head` and `payload` to `out`, which has exactly their length, and completes the transport checksum on the
/// way if it is `owed`.
#[inline]
pub(super) fn packet(head: &[u8], payload: &[u8], owed: Option<&Owed>, out: &mut [u8]) {
    let (front, body) = out.split_at_mut(head.len());
    copy_head(front, head);
    match owed {
        Some(owed) => {
            let mut sum = Sum::ZERO;
            sum.copy(body, payload);
            owed.complete(front, sum, payload.len());
        }
        None => body.copy_from_slice(payload),
    }
}

/// Copies headers to memory of the same length; most are copied by two moves of constant length, which overlap.
#[inline(always)]
fn copy_head(to: &mut [u8], head: &[u8]) {
    if !copy_ends::<32>(to, head) && !copy_ends::<40>(to, head) {
        to.copy_from_slice(head);
    }
}

/// Copies the first and the last `N` bytes of headers that have at least as many and no others between them. Returns
/// whether they are such headers.
#[inline(always)]
fn copy_ends<const N: usize>(to: &mut [u8], head: &[u8]) -> bool {
    let (Some(first), Some(last)) = (head.first_chunk::<N>(), head.last_chunk::<N>()) else { return false };
    if to.len() > 2 * N {
        return false;
    }
    if let Some(to) = to.first_chunk_mut() {
        *to = *first;
    }
    if let Some(to) = to.last_chunk_mut() {
        *to = *last;
    }
    true
}
