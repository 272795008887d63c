//! IPv4 (RFC 791), with the DSCP and ECN fields of RFC 2474 and RFC 3168.

use core::net::Ipv4Addr;
use core::ops::Range;

use super::address;

/// Length in bytes of a header without options.
pub const MIN_LEN: usize = 20;
/// Length of the longest header in bytes.
pub const MAX_LEN: usize = 60;

/// Largest total length of an IPv4 packet, bytes.
pub const MAX_TOTAL_LEN: usize = 65_535;

/// Version and header length in 32-bit words.
pub const VERSION_IHL: usize = 0;
/// DSCP (6 bits) and ECN (2 bits).
pub const TOS: usize = 1;
/// Offset of the total length, which includes the header.
pub const TOTAL_LEN: usize = 2;
/// Offset of the identification.
pub const ID: usize = 4;
/// Flags (3 bits) and fragment offset (13 bits, in 8-byte units).
pub const FRAGMENT: usize = 6;
/// Offset of the time to live.
pub const TTL: usize = 8;
/// Offset of the payload's protocol number.
pub const PROTOCOL: usize = 9;
/// Offset of the header checksum.
pub const CHECKSUM: usize = 10;
/// Byte range of the source address.
pub const SRC: Range<usize> = 12..16;
/// Byte range of the destination address.
pub const DST: Range<usize> = 16..20;

/// Reserved flag, which RFC 791 requires to be zero.
pub const RESERVED: u16 = 0x8000;
/// Flag: don't fragment.
pub const DF: u16 = 0x4000;
/// Flag: more fragments follow.
pub const MF: u16 = 0x2000;
/// Mask of the fragment offset field.
pub const OFFSET: u16 = 0x1fff;

/// Returns the header length in bytes that the first byte states (0..=60, unchecked against the minimum).
pub const fn header_len(first: u8) -> usize {
    (first as usize & 0x0f) * 4
}

/// Returns the source address in `header`, or `None` where it is truncated.
#[inline]
pub fn source(header: &[u8]) -> Option<Ipv4Addr> {
    address::v4(header.get(SRC)?)
}

/// Returns the destination address in `header`, or `None` where it is truncated.
#[inline]
pub fn destination(header: &[u8]) -> Option<Ipv4Addr> {
    address::v4(header.get(DST)?)
}

/// Replaces the options in `header` that only a first fragment has by no-operations (RFC 791, section 3.1: those
/// without the copied flag). The header keeps its length.
pub fn drop_uncopied_options(header: &mut [u8]) {
    const COPIED: u8 = 0x80;
    let mut at = MIN_LEN;
    while let Some(option) = option(header, at) {
        at = option.end;
        if header[option.start] & COPIED == 0 {
            header[option].fill(1);
        }
    }
}

/// Returns the ranges of source and destination in `header`, the header with its options, for the pseudo-header of its
/// payload.
///
/// While a source route has stops left, the destination is its last stop, since the header's field holds the next one
/// (RFC 791, section 3.1, loose and strict source and record route). `None` where the route is malformed.
pub fn ends(header: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    const ADDRESS: usize = 4;
    let mut at = MIN_LEN;
    while let Some(option) = option(header, at) {
        at = option.end;
        if !matches!(header[option.start], LOOSE | STRICT) {
            continue;
        }
        let pointer = usize::from(*header[option.clone()].get(2)?);
        if pointer > option.len() {
            break;
        }
        // Type, length and pointer; the pointer counts from 1.
        let is_list = option.len() >= 3 + ADDRESS && option.len() % ADDRESS == 3;
        let is_place = pointer >= ADDRESS && pointer.is_multiple_of(ADDRESS);
        return (is_list && is_place).then(|| (SRC, option.end - ADDRESS..option.end));
    }
    Some((SRC, DST))
}

/// Returns whether the payload's pseudo-header has an address other than those in `header`, or an unknown one; see
/// [`ends`].
#[inline]
pub fn is_routed(header: &[u8]) -> bool {
    header.len() > MIN_LEN && ends(header) != Some((SRC, DST))
}

/// Returns the range of the option at `at` in a header; `None` after the last one, and if its length does not fit.
fn option(header: &[u8], at: usize) -> Option<Range<usize>> {
    let len = header_len(*header.first()?).min(header.len());
    let size = match header.get(at..len)? {
        [] | [0, ..] => return None,
        [1, ..] => 1,
        [_, size, ..] if *size >= 2 => usize::from(*size),
        _ => return None,
    };
    (at + size <= len).then(|| at..at + size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_not_copied_become_no_operations() {
        let mut header = vec![0; MIN_LEN];
        header[0] = 0x4a;
        // Record route (not copied), no-operation, router alert (copied), timestamp (not copied), end.
        header.extend([7, 7, 4, 1, 2, 3, 4, 1, 0x94, 4, 0, 0, 68, 4, 5, 0, 0, 7, 3, 9]);
        drop_uncopied_options(&mut header);
        assert_eq!(header[MIN_LEN..], [1, 1, 1, 1, 1, 1, 1, 1, 0x94, 4, 0, 0, 1, 1, 1, 1, 0, 7, 3, 9]);
        for damaged in [[7, 1, 0, 0], [7, 0, 0, 0], [7, 5, 0, 0]] {
            let mut header = [&[0x46; MIN_LEN][..], &damaged].concat();
            drop_uncopied_options(&mut header);
            assert_eq!(header[MIN_LEN..], damaged);
        }
        drop_uncopied_options(&mut []);
        drop_uncopied_options(&mut [0x4f; 21]);
    }

    #[test]
    fn a_source_route_with_stops_to_come_has_the_destination_at_its_end() {
        let of = |options: &[u8]| {
            let mut header = vec![0; MIN_LEN];
            header.extend(options);
            header.resize(MIN_LEN + options.len().next_multiple_of(4), 0);
            header[0] = 0x40 | (header.len() / 4) as u8;
            assert_eq!(is_routed(&header), ends(&header) != Some((SRC, DST)));
            ends(&header)
        };
        assert_eq!(of(&[]), Some((SRC, DST)));
        for kind in [131, 137] {
            assert_eq!(of(&[kind, 7, 4, 1, 2, 3, 4]), Some((SRC, 23..27)));
            // After router alert and a no-operation; the second of three stops comes next.
            let behind = [&[0x94, 4, 0, 0, 1, kind, 15, 8][..], &[9; 12]].concat();
            assert_eq!(of(&behind), Some((SRC, 36..40)));
            // No stops are left; or the option comes after the end of the options.
            assert_eq!(of(&[kind, 7, 8, 1, 2, 3, 4]), Some((SRC, DST)));
            assert_eq!(of(&[kind, 3, 4]), Some((SRC, DST)));
            assert_eq!(of(&[0, kind, 7, 4, 1, 2, 3, 4]), Some((SRC, DST)));
            assert_eq!(of(&[0, 4, 0, 0, kind, 7, 4, 1, 2, 3, 4]), Some((SRC, DST)), "the end has no length");
            // The option holds no list of addresses, or its pointer does not point at one.
            let senseless: [&[u8]; 7] = [
                &[kind, 2],
                &[kind, 6, 4, 1, 2, 3],
                &[kind, 7, 0, 1, 2, 3, 4],
                &[kind, 7, 6, 1, 2, 3, 4],
                &[kind, 7, 7, 1, 2, 3, 4],
                &[kind, 8, 4, 1, 2, 3, 4, 5],
                &[kind, 3, 1],
            ];
            for option in senseless {
                assert_eq!(of(option), None, "{option:?}");
            }
        }
        // Record route does not route, and a length that does not fit hides the options after it.
        assert_eq!(of(&[7, 7, 4, 0, 0, 0, 0]), Some((SRC, DST)));
        assert_eq!(of(&[7, 9, 131, 7, 4, 1, 2, 3]), Some((SRC, DST)));
    }
}
