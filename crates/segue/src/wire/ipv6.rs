//! IPv6 (RFC 8200) and its extension-header chain.

use core::ops::Range;

use super::protocol;

/// Bytes of the fixed header.
pub const LEN: usize = 40;
/// Bytes of a fragment header (RFC 8200, section 4.5).
pub const FRAGMENT_LEN: usize = 8;

/// Most that the payload length can say.
pub const MAX_PAYLOAD_LEN: usize = 65_535;

/// Version, traffic class and flow label.
pub const VERSION_CLASS_LABEL: usize = 0;
/// Payload length: all that follows the fixed header.
pub const PAYLOAD_LEN: usize = 4;
/// Type of the next header.
pub const NEXT_HEADER: usize = 6;
/// Hop limit.
pub const HOP_LIMIT: usize = 7;
/// Source address.
pub const SRC: Range<usize> = 8..24;
/// Destination address.
pub const DST: Range<usize> = 24..40;

/// Most extension headers that [`chain`] follows; real packets have one or two.
pub const MAX_EXTENSIONS: usize = 6;
/// Most bytes of extension headers that [`chain`] follows.
pub const MAX_EXTENSION_LEN: usize = 96;

/// Traffic class of a header whose first two bytes are given.
pub const fn traffic_class(first: u8, second: u8) -> u8 {
    first << 4 | second >> 4
}

/// Where an extension-header chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// At a header that is no extension: its type, and the bytes of extensions in front of it.
    End {
        /// Type of the header after the chain.
        next: u8,
        /// Bytes of the extension headers.
        len: usize,
    },
    /// At a fragment header, an atomic one included.
    Fragment,
    /// Past the bytes present.
    Truncated,
    /// Past [`MAX_EXTENSIONS`] or [`MAX_EXTENSION_LEN`].
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

/// Whether `header`, the fixed header with its extension headers, has a routing header that has stops to come: the
/// checksum inside then covers an address that is not the one in the fixed header (RFC 8200, section 8.1).
pub fn is_routed(header: &[u8]) -> bool {
    let Some(&first) = header.get(NEXT_HEADER) else { return false };
    let (mut next, mut at) = (first, LEN);
    while let Some(&[following, units, _, segments_left]) = header.get(at..).and_then(|h| h.first_chunk()) {
        if next == protocol::ROUTING && segments_left != 0 {
            return true;
        }
        next = following;
        at += 8 + usize::from(units) * 8;
    }
    false
}

/// How much of `header`, the fixed header with its extension headers, every fragment has, and where the field is that names
/// what follows that part: all up to the routing header, or else the hop-by-hop options, or else the fixed header alone (RFC
/// 8200, section 4.5).
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
}
