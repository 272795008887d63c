//! IPv4 (RFC 791), with the DSCP and ECN fields of RFC 2474 and RFC 3168.

use core::ops::Range;

/// Bytes of a header without options.
pub const MIN_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_LEN: usize = 60;

/// Most that the total length can say.
pub const MAX_TOTAL_LEN: usize = 65_535;

/// Version and header length in 32-bit words.
pub const VERSION_IHL: usize = 0;
/// DSCP (6 bits) and ECN (2 bits).
pub const TOS: usize = 1;
/// Total length, header included.
pub const TOTAL_LEN: usize = 2;
/// Identification.
pub const ID: usize = 4;
/// Flags (3 bits) and fragment offset (13 bits, in 8-byte units).
pub const FRAGMENT: usize = 6;
/// Time to live.
pub const TTL: usize = 8;
/// Protocol of the payload.
pub const PROTOCOL: usize = 9;
/// Header checksum.
pub const CHECKSUM: usize = 10;
/// Source address.
pub const SRC: Range<usize> = 12..16;
/// Destination address.
pub const DST: Range<usize> = 16..20;

/// Reserved flag; RFC 791 wants it zero.
pub const RESERVED: u16 = 0x8000;
/// Don't fragment.
pub const DF: u16 = 0x4000;
/// More fragments.
pub const MF: u16 = 0x2000;
/// Mask of the fragment offset.
pub const OFFSET: u16 = 0x1fff;

/// Header length in bytes as the first byte states it (0..=60, unchecked against the minimum).
pub const fn header_len(first: u8) -> usize {
    (first as usize & 0x0f) * 4
}

/// Puts no-operations in the place of the options in `header` that only a first fragment has (RFC 791, section 3.1: those
/// without the copied flag); the header keeps its length.
pub fn drop_uncopied_options(header: &mut [u8]) {
    const COPIED: u8 = 0x80;
    let len = header.first().map_or(0, |&first| header_len(first)).min(header.len());
    let mut at = MIN_LEN;
    while at < len {
        let size = match (header[at], header[..len].get(at + 1)) {
            (0, _) => return,
            (1, _) => 1,
            (_, Some(&size)) if size >= 2 && at + usize::from(size) <= len => usize::from(size),
            _ => return,
        };
        if header[at] & COPIED == 0 {
            header[at..at + size].fill(1);
        }
        at += size;
    }
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
}
