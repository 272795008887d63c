//! Plain sums with 64-bit integers: the code for short inputs on every CPU, and for all inputs on CPUs without a
//! supported vector unit. No `unsafe`.

use super::work::HEAD_BLOCK;

/// Longest input of [`short`], in bytes.
pub(crate) const SHORT_MAX: usize = 64;

/// Adds two plain sums. The carry out of bit 63 is added at bit 0, because 2^64 is 1 modulo 65535.
#[inline(always)]
pub(crate) const fn join(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    // This cannot overflow: a sum that carried is at most 2^64 - 2.
    sum + carry as u64
}

/// Returns the plain sum of any number of bytes. Not inlined, so that a profile shows it under its name.
#[inline(never)]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    // Four independent add/add-with-carry chains; the upper halves collect the carries and cannot overflow.
    let mut lanes = [0u128; 4];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u128::from(u64::from_le_bytes(*word));
        }
    }
    let [a, b, c, d] = lanes;
    join(narrow(a + b + c + d), short(rest))
}

/// Returns the plain sum of at most [`SHORT_MAX`] bytes (longer inputs are summed too, more slowly than by [`sum`]).
#[inline]
pub(crate) fn short(bytes: &[u8]) -> u64 {
    let Some(last) = bytes.last_chunk::<8>() else {
        return below_8(bytes);
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = 0u128;
    for word in words {
        sum += u128::from(u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        // The last eight bytes overlap those already summed; the shift drops the overlap and brings the rest down to
        // the even position where it starts.
        sum += u128::from(u64::from_le_bytes(*last) >> (64 - 8 * rest.len()));
    }
    narrow(sum)
}

/// Returns whether `a` and `b` differ in a bit that is set in `mask`.
pub(crate) fn differ(a: &[u8; HEAD_BLOCK], b: &[u8; HEAD_BLOCK], mask: &[u8; HEAD_BLOCK]) -> bool {
    let mut differs = 0;
    for at in 0..HEAD_BLOCK {
        differs |= (a[at] ^ b[at]) & mask[at];
    }
    differs != 0
}

/// Copies `src` to `dst` and returns its plain sum. The second pass over each block finds it in the first-level cache.
pub(crate) fn copy(dst: &mut [u8], src: &[u8]) -> u64 {
    const BLOCK: usize = 8192;
    assert_eq!(dst.len(), src.len(), "copy needs source and destination of one length");
    let mut total = 0;
    for (dst, src) in dst.chunks_mut(BLOCK).zip(src.chunks(BLOCK)) {
        dst.copy_from_slice(src);
        total = join(total, sum(src));
    }
    total
}

/// Returns up to seven bytes as one little-endian number. Overlapping reads agree on the bytes they share, so `|`
/// merges them.
#[inline(always)]
fn below_8(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return u64::from(first) | u64::from(last) << (8 * (bytes.len() - 4));
    }
    match *bytes {
        [] => 0,
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, ..] => u64::from(u32::from_le_bytes([a, b, c, 0])),
    }
}

/// Reduces 128 bits to 64, keeping the value modulo 65535 and returning zero only for zero.
#[inline(always)]
fn narrow(wide: u128) -> u64 {
    join(wide as u64, (wide >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_implementation_sees_every_bit_that_counts_and_no_other() {
        let a: [u8; HEAD_BLOCK] = core::array::from_fn(|at| at as u8);
        let mask: [u8; HEAD_BLOCK] = core::array::from_fn(|at| (at as u8).wrapping_mul(37));
        for kernel in crate::arch::available() {
            assert!(!kernel.differ(&a, &a, &[0xff; HEAD_BLOCK], HEAD_BLOCK), "{}", kernel.name());
            // An interpreter takes minutes for all.
            for len in (20..=HEAD_BLOCK).step_by(if cfg!(miri) { 54 } else { 2 }) {
                let mut mask = mask;
                mask[len..].fill(0);
                for (at, bit) in (0..HEAD_BLOCK).flat_map(|at| (0..8).map(move |bit| (at, 1_u8 << bit))) {
                    let mut b = a;
                    b[at] ^= bit;
                    let expected = mask[at] & bit != 0;
                    assert_eq!(kernel.differ(&a, &b, &mask, len), expected, "{}, {len}, byte {at}", kernel.name());
                    // An interpreter has no processor with vectors, of which this form takes those that each has.
                    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                    assert_eq!(crate::arch::x86::differ(&a, &b, &mask, len), expected, "SSE2, {len}, byte {at}");
                }
            }
        }
    }
}
