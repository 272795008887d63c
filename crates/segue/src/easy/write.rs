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

/// Completes the transport checksum in `head`, whose field is primed, for a payload with this sum and length.
#[inline]
pub(super) fn complete(head: &mut [u8], layout: &Layout, payload: Sum, len: usize) {
    let Some(transport) = layout.transport() else { return };
    let Some(field) = field_offset(transport.kind) else { return };
    // The transport header is the last one, and every header has an even length.
    let mut sum = Sum::of(head.get(transport.start()..).unwrap_or(&[]));
    sum.append(payload, len);
    let value = if transport.kind == Kind::Udp { Field::complete_udp(sum) } else { Field::complete(sum) };
    write_u16(head, transport.start() + field, value.value());
}

/// Copies `head` and the bytes of `pieces` to `out`, which has exactly their length, and completes the transport
/// checksum on the way if it is `owed`.
#[inline]
pub(super) fn packet<'a>(
    head: &[u8],
    pieces: impl Iterator<Item = &'a [u8]>,
    (layout, owed): (&Layout, bool),
    out: &mut [u8],
) {
    let (front, mut body) = out.split_at_mut(head.len());
    front.copy_from_slice(head);
    let (len, mut sum) = (body.len(), Sum::ZERO);
    for piece in pieces {
        let Some((place, rest)) = body.split_at_mut_checked(piece.len()) else { break };
        if owed {
            sum.copy(place, piece);
        } else {
            place.copy_from_slice(piece);
        }
        body = rest;
    }
    if owed {
        complete(front, layout, sum, len);
    }
}
