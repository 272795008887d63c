//! Tests of the vector code of checksums against a naive sum, on buffers that begin or end at an inaccessible page: a
//! read or a write of one byte too many ends the test program.

mod sys;

use segue::checksum::implementations;
use sys::Guarded;

/// Largest length up to which every length is tested: longer than a step of the widest vectors with its head and tail.
const EVERY: usize = 1200;
/// Longer lengths to test, around whole pages.
const LONG: [usize; 7] = [1499, 2048, 4095, 4096, 4097, 8191, 8192];

/// Returns the checksum as described in RFC 1071.
fn oracle(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[test]
fn no_implementation_touches_a_byte_beyond_its_buffers() {
    let (mut from, mut to) = (Guarded::new(8192), Guarded::new(8192));
    let (from, to) = (from.bytes(), to.bytes());
    for (at, byte) in from.iter_mut().enumerate() {
        *byte = ((at * 167) >> 3) as u8 ^ at as u8;
    }
    let room = from.len();
    for len in (0..=EVERY).chain(LONG) {
        // At the first byte after a guard page, and up to the last one in front of the other.
        for [src, dst] in [[0, 0], [0, room - len], [room - len, 0], [room - len, room - len]] {
            let bytes = &from[src..src + len];
            let want = oracle(bytes);
            for implementation in implementations() {
                let name = implementation.name();
                assert_eq!(implementation.sum(bytes).fold(), want, "{name}: {len} bytes at {src}");
                let copy = &mut to[dst..dst + len];
                copy.fill(0xa5);
                assert_eq!(implementation.copy(copy, bytes).fold(), want, "{name}: {len} bytes from {src} to {dst}");
                assert!(*copy == *bytes, "{name}: {len} bytes from {src} to {dst}");
            }
        }
    }
}
