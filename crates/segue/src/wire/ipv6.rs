//! IPv6 (RFC 8200) and its extension-header chain.

use core::net::Ipv6Addr;
use core::ops::Range;

use super::{address, protocol, read_u16, read_u32};

/// Length of the fixed header in bytes.
pub const LEN: usize = 40;
/// Length in bytes of a fragment header (RFC 8200, section 4.5).
pub const FRAGMENT_LEN: usize = 8;
/// Offset in a fragment header of the fragment offset (13 bits, in 8-byte units) and [`MF`].
pub const FRAGMENT: usize = 2;
/// Offset in a fragment header of the identification, four bytes.
pub const FRAGMENT_ID: usize = 4;
/// Mask of the fragment offset, which is in bytes with the other bits clear.
pub const OFFSET: u16 = 0xfff8;
/// Flag: more fragments.
pub const MF: u16 = 1;

/// Largest payload length of an IPv6 packet, bytes.
pub const MAX_PAYLOAD_LEN: usize = 65_535;

/// Version, traffic class and flow label.
pub const VERSION_CLASS_LABEL: usize = 0;
/// Payload length: all that follows the fixed header.
pub const PAYLOAD_LEN: usize = 4;
/// Offset of the next header field.
pub const NEXT_HEADER: usize = 6;
/// Offset of the hop limit.
pub const HOP_LIMIT: usize = 7;
/// Byte range of the source address.
pub const SRC: Range<usize> = 8..24;
/// Byte range of the destination address.
pub const DST: Range<usize> = 24..40;

/// Maximum number of extension headers that [`chain`] follows; real packets have one or two.
pub const MAX_EXTENSIONS: usize = 6;
/// Maximum number of bytes of extension headers that [`chain`] follows.
pub const MAX_EXTENSION_LEN: usize = 96;

/// Returns the traffic class of a header whose first two bytes are given.
pub const fn traffic_class(first: u8, second: u8) -> u8 {
    first << 4 | second >> 4
}

/// Returns the source address in `header`, or `None` where it is truncated.
#[inline]
pub fn source(header: &[u8]) -> Option<Ipv6Addr> {
    address::v6(header.get(SRC)?)
}

/// Returns the destination address in `header`, or `None` where it is truncated.
#[inline]
pub fn destination(header: &[u8]) -> Option<Ipv6Addr> {
    address::v6(header.get(DST)?)
}

/// The end of an extension-header chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// The chain ends at a header that is no extension header.
    End {
        /// Type of the header after the chain.
        next: u8,
        /// Length of the extension headers in bytes.
        len: usize,
    },
    /// The chain has a fragment header, possibly that of an atomic fragment.
    Fragment,
    /// The chain of extension headers is longer than the bytes present.
    Truncated,
    /// The chain exceeds [`MAX_EXTENSIONS`] or [`MAX_EXTENSION_LEN`].
    TooLong,
}

/// Follows hop-by-hop, routing and destination-options headers in `bytes`, which start after the fixed header.
///
/// Each header's length field counts 8-byte units beyond the first 8 bytes, so every step advances (RFC 8200, section
/// 4.2 to 4.6).
pub fn chain(first: u8, bytes: &[u8]) -> Chain {
    let (mut next, mut len) = (first, 0);
    for _ in 0..=MAX_EXTENSIONS {
        match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => {
                let Some(&[following, units]) = bytes.get(len..).and_then(|b| b.first_chunk()) else {
                    return Chain::Truncated;
                };
                len += 8 + usize::from(units) * 8;
                if len > MAX_EXTENSION_LEN {
                    return Chain::TooLong;
                }
                if len > bytes.len() {
                    return Chain::Truncated;
                }
                next = following;
            }
            protocol::FRAGMENT => return Chain::Fragment,
            _ => return Chain::End { next, len },
        }
    }
    Chain::TooLong
}

/// A fragment header (RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Type of the first header after those that every fragment has.
    pub next: u8,
    /// Offset of the fragment in the packet, bytes.
    pub offset: u16,
    /// Whether another one follows.
    pub more: bool,
    /// Identification of the packet.
    pub id: u32,
    /// Offset after the fragment header, in the bytes in which it was found.
    pub end: usize,
}

impl Fragment {
    /// Returns whether the fragment is a whole packet (RFC 6946).
    pub const fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// Returns the first fragment header in `bytes`, which start after the fixed header, whose next header is `first`.
///
/// ```
/// use segue::wire::{ipv6, protocol};
///
/// let found = ipv6::fragment(protocol::FRAGMENT, &[protocol::UDP, 0, 0x05, 0xa9, 0, 0, 0, 7]).unwrap();
/// assert_eq!((found.next, found.offset, found.more, found.id, found.end), (protocol::UDP, 1448, true, 7, 8));
/// ```
pub fn fragment(first: u8, bytes: &[u8]) -> Option<Fragment> {
    let (mut next, mut at) = (first, 0);
    // One more than there may be, for the fragment header.
    for _ in 0..=MAX_EXTENSIONS {
        let &[following, units] = bytes.get(at..)?.first_chunk()?;
        match next {
            protocol::FRAGMENT => {
                let word = read_u16(bytes, at + FRAGMENT)?;
                let id = read_u32(bytes, at + FRAGMENT_ID)?;
                let (offset, more) = (word & OFFSET, word & MF != 0);
                return Some(Fragment { next: following, offset, more, id, end: at + FRAGMENT_LEN });
            }
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => at += 8 + usize::from(units) * 8,
            _ => return None,
        }
        next = following;
    }
    None
}

/// Returns the ranges of source and destination in `header`, the fixed header with its extension headers, for the
/// pseudo-header of its payload.
///
/// The source is the home address where an option has one (RFC 6275, section 6.3). While a routing header has segments
/// left (RFC 8200, section 8.1), the destination is in it: the last address of types 0 and 2 (RFC 6275, section 6.4),
/// the first one of the reversed list of segment routing (RFC 8754, section 2). `None` for other routing headers.
pub fn ends(header: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
    const ADDRESS: usize = 16;
    let (mut src, mut dst) = (SRC, DST);
    let (mut next, mut at) = (*header.get(NEXT_HEADER)?, LEN);
    while let Some(&[following, units, kind, segments_left]) = header.get(at..).and_then(|h| h.first_chunk()) {
        let end = at + 8 + usize::from(units) * 8;
        if next == protocol::ROUTING && segments_left != 0 && dst == DST {
            let index = match kind {
                0 | 2 => usize::from(units / 2).checked_sub(1)?,
                4 => 0,
                _ => return None,
            };
            let place = at + 8 + index * ADDRESS;
            dst = place..place + ADDRESS;
            if dst.end > end.min(header.len()) {
                return None;
            }
        }
        if next == protocol::DESTINATION && src == SRC {
            src = home_address(header, at + 2, end).unwrap_or(SRC);
        }
        next = following;
        at = end;
    }
    Some((src, dst))
}

/// Returns the range of the address in a home address option among the options from `at` to `end`, if there is one.
fn home_address(header: &[u8], mut at: usize, end: usize) -> Option<Range<usize>> {
    const PAD1: u8 = 0;
    const HOME_ADDRESS: u8 = 0xc9;
    let options = header.get(..end)?;
    while let Some(&kind) = options.get(at) {
        if kind == PAD1 {
            at += 1;
            continue;
        }
        let len = usize::from(*options.get(at + 1)?);
        let value = at + 2..at + 2 + len;
        if kind == HOME_ADDRESS && len == SRC.len() && value.end <= end {
            return Some(value);
        }
        at = value.end;
    }
    None
}

/// Returns whether the payload's pseudo-header has an address other than those in the fixed header, or an unknown one;
/// see [`ends`].
#[inline]
pub fn is_routed(header: &[u8]) -> bool {
    header.len() > LEN && ends(header) != Some((SRC, DST))
}

/// Returns the number of bytes of the per-fragment headers in `header`, the fixed header with its extension headers,
/// and the offset of their last next header field. They are all headers up to the routing header, or else the
/// hop-by-hop options, or else the fixed header alone (RFC 8200, section 4.5).
pub fn unfragmentable(header: &[u8]) -> (usize, usize) {
    let mut found = (LEN, NEXT_HEADER);
    let (mut next_at, mut at) = (NEXT_HEADER, LEN);
    while let (Some(&next), Some(&units)) = (header.get(next_at), header.get(at + 1)) {
        next_at = at;
        at += 8 + usize::from(units) * 8;
        if matches!(next, protocol::HOP_BY_HOP | protocol::ROUTING) && at <= header.len() {
            found = (at, next_at);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_routing_header_with_stops_to_come_is_one() {
        let header = |kind: u8, segments_left: u8| {
            let mut header = vec![0; LEN];
            header[NEXT_HEADER] = protocol::HOP_BY_HOP;
            header.extend([kind, 0, 1, 4, 0, 0, 0, 0]);
            header.extend([protocol::TCP, 0, 4, segments_left, 0, 0, 0, 0]);
            header
        };
        assert!(is_routed(&header(protocol::ROUTING, 1)));
        assert!(!is_routed(&header(protocol::ROUTING, 0)));
        assert!(!is_routed(&header(protocol::DESTINATION, 1)));
        assert!(!is_routed(&header(protocol::ROUTING, 1)[..LEN]));
        assert!(!is_routed(&[]));
    }

    /// Returns a header with one extension header of the given kind, whose content is `bytes`, padded to a multiple of
    /// 8.
    fn with(kind: u8, bytes: &[u8]) -> Vec<u8> {
        let mut header = vec![0; LEN];
        header[NEXT_HEADER] = kind;
        header.extend([protocol::TCP, ((bytes.len() + 2).div_ceil(8) - 1) as u8]);
        header.extend(bytes);
        header.resize(header.len().next_multiple_of(8), 0);
        header
    }

    #[test]
    fn a_home_address_is_the_source() {
        let home = [&[0xc9, 16][..], &[7; 16]].concat();
        // Padding of one byte, of several, and another option before it.
        for front in [&[][..], &[0], &[1, 2, 0, 0], &[0x1e, 1, 0xc9, 0, 0]] {
            let at = LEN + 2 + front.len() + 2;
            let header = with(protocol::DESTINATION, &[front, &home].concat());
            assert_eq!(ends(&header), Some((at..at + 16, DST)), "{front:?}");
            assert!(is_routed(&header));
        }
        // Another length, one that does not fit, a hop-by-hop option, and a truncated header.
        assert_eq!(ends(&with(protocol::DESTINATION, &[0xc9, 15, 7, 7])), Some((SRC, DST)));
        assert_eq!(ends(&with(protocol::DESTINATION, &home[..12])), Some((SRC, DST)));
        assert_eq!(ends(&with(protocol::HOP_BY_HOP, &home)), Some((SRC, DST)));
        assert_eq!(ends(&with(protocol::DESTINATION, &home)[..LEN + 12]), Some((SRC, DST)));
    }

    #[test]
    fn the_last_stop_is_the_destination() {
        let route = |kind: u8, left: u8, stops: usize| {
            with(protocol::ROUTING, &[vec![kind, left], vec![0; 4 + stops * 16]].concat())
        };
        for (kind, left, stops, dst) in [
            (0, 1, 1, Some(48..64)),
            (0, 1, 3, Some(80..96)),
            (2, 1, 1, Some(48..64)),
            (4, 2, 3, Some(48..64)),
            (0, 0, 3, Some(DST)),
            (2, 0, 1, Some(DST)),
            (253, 0, 1, Some(DST)),
            (253, 1, 1, None),
            (0, 1, 0, None),
            (4, 1, 0, None),
        ] {
            assert_eq!(ends(&route(kind, left, stops)), dst.map(|dst| (SRC, dst)), "{kind} {left} {stops}");
        }
        // Both at once: the type 2 header of a route to a mobile node, which answers from its home address.
        let mut both = route(2, 1, 1);
        both[LEN] = protocol::DESTINATION;
        both.extend(&with(protocol::DESTINATION, &[&[1, 2, 0, 0, 0xc9, 16][..], &[7; 16]].concat())[LEN..]);
        assert_eq!(ends(&both), Some((72..88, 48..64)));
    }

    #[test]
    fn every_fragment_has_all_up_to_the_routing_header() {
        let header = |kinds: &[u8]| {
            let mut header = vec![0; LEN];
            let mut next_at = NEXT_HEADER;
            for &kind in kinds {
                header[next_at] = kind;
                next_at = header.len();
                header.extend([0, u8::from(kind == protocol::ROUTING), 1, 4, 0, 0, 0, 0]);
                header.resize(header.len() + if kind == protocol::ROUTING { 8 } else { 0 }, 0);
            }
            header[next_at] = protocol::UDP;
            header
        };
        use protocol::{DESTINATION as DST, HOP_BY_HOP as HOP, ROUTING};
        assert_eq!(unfragmentable(&header(&[])), (LEN, NEXT_HEADER));
        assert_eq!(unfragmentable(&header(&[DST])), (LEN, NEXT_HEADER));
        assert_eq!(unfragmentable(&header(&[HOP])), (LEN + 8, LEN));
        assert_eq!(unfragmentable(&header(&[HOP, DST])), (LEN + 8, LEN));
        assert_eq!(unfragmentable(&header(&[HOP, DST, ROUTING, DST])), (LEN + 32, LEN + 16));
        assert_eq!(unfragmentable(&header(&[HOP])[..LEN + 7]), (LEN, NEXT_HEADER));
        assert_eq!(unfragmentable(&[]), (LEN, NEXT_HEADER));
    }

    /// Tests fragment headers behind other extension headers, and everything that has none.
    #[test]
    fn the_fragment_header_of_a_chain_is_found() {
        let fragment = [protocol::UDP, 0, 0x05, 0xa9, 1, 2, 3, 4];
        let found = |end| Fragment { next: protocol::UDP, offset: 1448, more: true, id: 0x0102_0304, end };
        assert_eq!(super::fragment(protocol::FRAGMENT, &fragment), Some(found(8)));
        let mut behind = vec![protocol::ROUTING, 0, 0, 0, 0, 0, 0, 0, protocol::FRAGMENT, 1];
        behind.resize(24, 0);
        behind.extend(fragment);
        assert_eq!(super::fragment(protocol::HOP_BY_HOP, &behind), Some(found(32)));
        assert!((0..behind.len()).all(|len| super::fragment(protocol::HOP_BY_HOP, &behind[..len]).is_none()));
        assert_eq!(super::fragment(protocol::UDP, &fragment), None);
        assert_eq!(super::fragment(protocol::HOP_BY_HOP, &[0; 4096]), None);
        for (word, offset, more, is_atomic) in
            [(0_u16, 0, false, true), (1, 0, true, false), (0xfff8, 0xfff8, false, false)]
        {
            let [a, b] = word.to_be_bytes();
            let found = super::fragment(protocol::FRAGMENT, &[17, 0, a, b, 0, 0, 0, 0]).unwrap();
            assert_eq!((found.offset, found.more, found.is_atomic()), (offset, more, is_atomic), "{word:#x}");
        }
    }

    #[test]
    fn a_chain_of_options_ends_at_the_transport() {
        let mut bytes = vec![protocol::DESTINATION, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([protocol::TCP, 1]);
        bytes.extend([0; 14]);
        assert_eq!(chain(protocol::HOP_BY_HOP, &bytes), Chain::End { next: protocol::TCP, len: 24 });
        assert_eq!(chain(protocol::HOP_BY_HOP, &bytes[..23]), Chain::Truncated);
        assert_eq!(chain(protocol::TCP, &[]), Chain::End { next: protocol::TCP, len: 0 });
    }

    #[test]
    fn endless_chains_and_fragments_are_told_apart() {
        assert_eq!(chain(protocol::HOP_BY_HOP, &[0; 4096]), Chain::TooLong);
        let mut long = vec![protocol::TCP, 255];
        long.resize(2048, 0);
        assert_eq!(chain(protocol::ROUTING, &long), Chain::TooLong);
        assert_eq!(chain(protocol::FRAGMENT, &[0; 8]), Chain::Fragment);
        assert_eq!(chain(protocol::DESTINATION, &[6]), Chain::Truncated);
    }

    #[test]
    fn extension_headers_are_followed_up_to_the_most_bytes() {
        for (units, expected) in
            [(11_u8, Chain::End { next: protocol::TCP, len: MAX_EXTENSION_LEN }), (12, Chain::TooLong)]
        {
            let mut bytes = vec![protocol::TCP, units];
            bytes.resize(8 + 8 * usize::from(units), 0);
            assert_eq!(chain(protocol::DESTINATION, &bytes), expected);
        }
        assert_eq!(traffic_class(0x6a, 0xb5), 0xab);
    }
}
