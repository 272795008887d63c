//! Plain sums with NEON, which every 64-bit ARM CPU with a vector unit has, so that no detection at run time is needed.
//!
//! `uadalp` adds pairs of unsigned 16-bit words to 32-bit lanes, one instruction for each 16 bytes. A lane gains at
//! most 2 * 65535 each time, so that lanes are totalled every [`BLOCK`] bytes, long before one could wrap.
#![expect(unsafe_code, reason = "raw loads and stores of vectors")]

use core::arch::aarch64::*;

use super::scalar;

const BLOCK: usize = 64 * 1024;
/// Length of a vector, bytes.
const WIDTH: usize = 16;
/// Number of vectors with a separate sum.
const SUMS: usize = 4;
const STEP: usize = WIDTH * SUMS;

#[inline]
fn load(bytes: &[u8; WIDTH]) -> uint8x16_t {
    // SAFETY: the array has the bytes that are read; no alignment is required.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
fn store(bytes: &mut [u8; WIDTH], vector: uint8x16_t) {
    // SAFETY: the array has the bytes that are written; no alignment is required.
    unsafe { vst1q_u8(bytes.as_mut_ptr(), vector) }
}

/// Vectors of 32-bit lanes, `SUMS` of them.
#[derive(Clone, Copy)]
struct Lanes([uint32x4_t; SUMS]);

#[allow(unused_unsafe, reason = "these intrinsics are unsafe functions in the oldest compilers we support")]
impl Lanes {
    #[inline]
    fn zero() -> Lanes {
        // SAFETY: this file is compiled only for targets that have NEON.
        Lanes(unsafe { [vdupq_n_u32(0); SUMS] })
    }

    #[inline]
    fn add(&mut self, at: usize, bytes: uint8x16_t) {
        // SAFETY: as in `zero`.
        self.0[at] = unsafe { vpadalq_u16(self.0[at], vreinterpretq_u16_u8(bytes)) };
    }

    #[inline]
    fn total(self) -> u64 {
        // SAFETY: as in `zero`.
        self.0.iter().map(|lanes| unsafe { vaddlvq_u32(*lanes) }).sum()
    }
}

/// Returns the plain sum of any number of bytes.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let mut total = 0;
    for block in bytes.chunks(BLOCK) {
        let mut lanes = Lanes::zero();
        let (steps, rest) = block.as_chunks::<STEP>();
        for step in steps {
            for (at, vector) in step.as_chunks::<WIDTH>().0.iter().enumerate() {
                lanes.add(at, load(vector));
            }
        }
        total = scalar::join(total, scalar::join(lanes.total(), scalar::short(rest)));
    }
    total
}

/// Copies `src` to `dst` and returns its plain sum.
pub(super) fn copy(dst: &mut [u8], src: &[u8]) -> u64 {
    assert_eq!(dst.len(), src.len(), "copy needs source and destination of one length");
    let mut total = 0;
    for (dst, src) in dst.chunks_mut(BLOCK).zip(src.chunks(BLOCK)) {
        let mut lanes = Lanes::zero();
        let (to, last) = dst.as_chunks_mut::<STEP>();
        let (from, rest) = src.as_chunks::<STEP>();
        for (to, from) in to.iter_mut().zip(from) {
            let pairs = to.as_chunks_mut::<WIDTH>().0.iter_mut().zip(from.as_chunks::<WIDTH>().0);
            for (at, (to, from)) in pairs.enumerate() {
                let vector = load(from);
                store(to, vector);
                lanes.add(at, vector);
            }
        }
        last.copy_from_slice(rest);
        total = scalar::join(total, scalar::join(lanes.total(), scalar::short(rest)));
    }
    total
}
