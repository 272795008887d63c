//! Frames that owe the checksum of their transport header and are otherwise sent unchanged.

use super::arena::Arena;
use super::check::complete;
use super::limits::Limits;
use super::segment::SegmentCsum;
use crate::checksum::Sum;
use crate::packet::{Frame, Kind, Layout, remote};
use crate::wire::write_u16;

/// Appends `frame`, which owes the checksum of its transport header and is not longer than the MTU, to `arena`, without
/// parsing it into a packet. The bytes and the checksum state are those that [`split()`](super::split()) gives that
/// packet. Returns the layout of the segment's headers, with the options of a TCP header.
///
/// `None` stands for a frame that has to be parsed, and leaves the arena unchanged: any other than TCP or UDP over one
/// IP header without options or extension headers, with exact length fields.
///
/// ```
/// use segue::gso::{Arena, Limits, SegmentCsum, push_owing};
/// use segue::packet::{Csum, Frag, Frame, Start};
///
/// // A UDP datagram without payload, with the sum of its pseudo header.
/// let bytes = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 2, 0, 8, 0x8c, 0x41];
/// let frame = Frame { bytes: Frag::all(&bytes[..]), start: Start::Ip, csum: Csum::Partial };
/// let mut arena = Arena::new();
/// for (csum, left, field) in [(true, SegmentCsum::Partial, [0x8c, 0x41]), (false, SegmentCsum::AsIs, [0x73, 0xb3])] {
///     let layout = push_owing(&frame, &Limits { csum, ..Limits::NONE }, &mut arena).expect("a plain datagram");
///     let segment = arena.segments().last().expect("it was appended");
///     assert_eq!((layout.header_len(), segment.payload_len(), segment.csum), (28, 0, left));
///     assert_eq!(arena.head(segment)[26..], field);
/// }
/// ```
#[inline(never)]
pub fn push_owing<B: AsRef<[u8]>>(frame: &Frame<B>, limits: &Limits, arena: &mut Arena) -> Option<&'static Layout> {
    let layout = frame.exact_layout()?;
    let header = layout.transport()?;
    let bytes = frame.bytes.bytes();
    let (head, rest) = bytes.split_at_checked(layout.header_len())?;
    let len = u32::try_from(rest.len()).ok()?;
    let field = header.start() + remote::field_offset(header.kind)?;
    let is_tcp = header.kind == Kind::Tcp;
    let fill = |head: &mut [u8]| {
        if limits.csum {
            return Ok(SegmentCsum::Partial);
        }
        // The field counts as it is: it holds the sum of the pseudo header.
        let sum = Sum::of(bytes.get(header.start()..).unwrap_or(&[]));
        write_u16(head, field, complete(sum, !is_tcp).value());
        Ok(SegmentCsum::AsIs)
    };
    let csum = arena.append(head, fill).ok()?;
    if csum == SegmentCsum::AsIs {
        arena.checksummed += rest.len() as u64;
    }
    arena.finish_head(0..len, csum, None);
    Some(layout)
}
