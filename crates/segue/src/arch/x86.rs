//! Plain sums with AVX2, AVX-512BW and AVX-512 VNNI.
//!
//! One algorithm, [`run`], is written over the small trait [`Lanes`]; a shell for each instruction set supplies the
//! registers.
//!
//! The idea: vectors have no carry flag, but they can multiply pairs of *signed* 16-bit words and add the two products
//! into 32 bits (`vpmaddwd`; `vpdpwssd` also adds to an accumulator). Flipping the top bit of each word gives `w -
//! 32768`, which is signed; the factor is 1; the 32768 for each word are added back when lanes are totalled. That is
//! two arithmetic instructions for each 64 bytes.
//!
//! Departures from the plain loop:
//! 1. A 32-bit lane could wrap, so lanes are totalled every [`BLOCK`] bytes. One horizontal sum in 64 KiB costs
//!    nothing.
//! 2. Loads that straddle cache lines cost a third of the rate, so inputs from [`ALIGN_FROM`] bytes start with a
//!    partial vector that ends at an aligned address. Words are then counted by address; if the input starts at an odd
//!    one, the sum comes out byte-swapped and is rotated back at the end.
//! 3. The partial vectors at both edges are masked loads with AVX-512, which never touch a masked byte. AVX2 has no
//!    such load: there they are whole vectors that reach back over bytes already summed, or forward over bytes to come,
//!    with those bytes masked out. Inputs shorter than a step are left to the scalar code.
//! 4. The bytes after the last whole step are read by as many masked vectors as a step has, however few they are, and
//!    the first vector is always masked: neither has a branch that depends on a length or an address. Packets of one
//!    length begin at all addresses, so such branches would be mispredicted again and again.
#![expect(unsafe_code, reason = "vector intrinsics, raw loads and stores, CPUID")]

use core::arch::x86_64::*;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, Ordering};

use super::scalar;
use super::work::{Copier, HEAD_BLOCK, Work};

/// A vector instruction set. Values come from [`available`] and [`chosen`] only, which ask the CPU and the operating
/// system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Avx2 = 1,
    Avx512 = 2,
    Avx512Vnni = 3,
}

impl Set {
    pub(super) fn name(self) -> &'static str {
        match self.0 {
            Kind::Avx2 => "avx2",
            Kind::Avx512 => "avx512",
            Kind::Avx512Vnni => "avx512-vnni",
        }
    }

    #[inline]
    pub(super) fn sum(self, bytes: &[u8]) -> u64 {
        let (src, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: a `Set` exists only for instructions that `detect` found; `src` has `len` readable bytes.
        unsafe {
            match self.0 {
                Kind::Avx2 => sum_avx2(src, len),
                Kind::Avx512 => sum_avx512(src, len),
                Kind::Avx512Vnni => sum_avx512_vnni(src, len),
            }
        }
    }

    #[inline]
    pub(super) fn copy(self, dst: &mut [u8], src: &[u8]) -> u64 {
        // SAFETY: as in `sum`.
        unsafe {
            match self.0 {
                Kind::Avx2 => copy_avx2(dst, src),
                Kind::Avx512 | Kind::Avx512Vnni => copy_avx512(dst, src),
            }
        }
    }

    #[inline]
    pub(super) fn work(self, work: impl Work) {
        // SAFETY: as in `sum`.
        unsafe {
            match self.0 {
                Kind::Avx2 => work_avx2(work),
                Kind::Avx512 | Kind::Avx512Vnni => work_avx512(work),
            }
        }
    }
}

/// Value of [`CHOICE`] when no vectors are to be used.
const NONE: u8 = 0x80;
/// The chosen set: 0 until the first call of [`chosen`], then the `Kind` or `NONE`.
static CHOICE: AtomicU8 = AtomicU8::new(0);

/// Returns the fastest vector set of this CPU, if it has one, or the one given to [`choose`]. The answer is cached:
/// every thread finds the same, so a race between two first callers is harmless.
#[inline]
pub(super) fn chosen() -> Option<Set> {
    #[cold]
    fn find() -> Option<Set> {
        let best = available().last();
        choose(best);
        best
    }

    match CHOICE.load(Ordering::Relaxed) {
        3 => Some(Set(Kind::Avx512Vnni)),
        2 => Some(Set(Kind::Avx512)),
        1 => Some(Set(Kind::Avx2)),
        NONE => None,
        _ => find(),
    }
}

/// Sets what [`chosen`] returns from the next call on.
pub(super) fn choose(set: Option<Set>) {
    CHOICE.store(set.map_or(NONE, |set| set.0 as u8), Ordering::Relaxed);
}

/// Prefetches the cache lines of `bytes`, of which at most `most`.
#[inline(always)]
pub(super) fn prefetch(bytes: &[u8], most: usize) {
    let (first, len) = (bytes.as_ptr(), bytes.len().min(most * LINE));
    let mut at = 0;
    // SAFETY: SSE, which every x86-64 target with SSE2 has. A prefetch never faults, and each pointer is in the slice.
    unsafe {
        while at + 4 * LINE <= len {
            _mm_prefetch::<_MM_HINT_T0>(first.add(at).cast());
            _mm_prefetch::<_MM_HINT_T0>(first.add(at + LINE).cast());
            _mm_prefetch::<_MM_HINT_T0>(first.add(at + 2 * LINE).cast());
            _mm_prefetch::<_MM_HINT_T0>(first.add(at + 3 * LINE).cast());
            at += 4 * LINE;
        }
        while at < len {
            _mm_prefetch::<_MM_HINT_T0>(first.add(at).cast());
            at += LINE;
        }
    }
}

/// Length in bytes of a cache line.
const LINE: usize = 64;

/// Returns every vector set that this CPU can run, the fastest last.
pub(super) fn available() -> impl Iterator<Item = Set> {
    let found = detect();
    [
        found.avx2.then_some(Set(Kind::Avx2)),
        (found.avx2 && found.avx512bw).then_some(Set(Kind::Avx512)),
        (found.avx2 && found.avx512bw && found.avx512vnni).then_some(Set(Kind::Avx512Vnni)),
    ]
    .into_iter()
    .flatten()
}

struct Features {
    avx2: bool,
    avx512bw: bool,
    avx512vnni: bool,
}

/// Reads from CPUID which instructions exist and from XCR0 whether the system saves their registers (Intel SDM volume
/// 1, 14.3 and 15.2). The standard library's macro for this is not in `core`.
fn detect() -> Features {
    const OSXSAVE_AND_AVX: u32 = 1 << 27 | 1 << 28;
    const YMM_STATE: u64 = 0b110;
    const ZMM_STATE: u64 = 0b1110_0110;
    const AVX2: u32 = 1 << 5;
    const AVX512F_AND_BW: u32 = 1 << 16 | 1 << 30;
    const AVX512VNNI: u32 = 1 << 11;

    let none = Features { avx2: false, avx512bw: false, avx512vnni: false };
    // Miri interprets no CPUID; what it examines then is the scalar code and SSE2.
    if cfg!(miri) || cpuid(0).eax < 7 || cpuid(1).ecx & OSXSAVE_AND_AVX != OSXSAVE_AND_AVX {
        return none;
    }
    // SAFETY: OSXSAVE is set, so XGETBV exists, and so does register 0, XCR0.
    let saved = unsafe { _xgetbv(0) };
    if saved & YMM_STATE != YMM_STATE {
        return none;
    }
    let leaf = cpuid(7);
    let zmm = saved & ZMM_STATE == ZMM_STATE && leaf.ebx & AVX512F_AND_BW == AVX512F_AND_BW;
    Features { avx2: leaf.ebx & AVX2 != 0, avx512bw: zmm, avx512vnni: zmm && leaf.ecx & AVX512VNNI != 0 }
}

#[allow(unused_unsafe, reason = "the intrinsic is an unsafe function in the oldest compilers we support")]
fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: every x86-64 CPU has CPUID.
    unsafe { __cpuid_count(leaf, 0) }
}

/// Defines the entry point for sums of one instruction set, in steps of `$step` vectors with separate accumulators,
/// which hides the latency of an addition.
///
/// # Safety
/// The CPU must have the features; `src` must have `len` readable bytes.
macro_rules! sums {
    ($features:literal, $lanes:ty, $step:literal, $sum:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $sum(src: *const u8, len: usize) -> u64 {
            // SAFETY: this function's contract is that of `run`, whose `dst` is not used when it does not copy.
            unsafe { run::<$lanes, $step, false>(core::ptr::null_mut(), src, len) }
        }
    };
}

sums!("avx2", Ymm, 2, sum_avx2);
sums!("avx512f,avx512bw", Zmm<false>, 4, sum_avx512);
sums!("avx512f,avx512bw,avx512vnni", Zmm<true>, 4, sum_avx512_vnni);

/// Defines the entry points for copies of one instruction set, in steps of one vector: copies are bound by memory.
/// Separate additions keep up with that, while those of VNNI, each waiting for the one before, do not. The CPU must
/// have the features.
macro_rules! copies {
    ($features:literal, $lanes:ty, $copy:ident, $work:ident) => {
        #[target_feature(enable = $features)]
        fn $copy(dst: &mut [u8], src: &[u8]) -> u64 {
            WithFeatures::<$lanes>(PhantomData).copy(dst, src)
        }

        #[target_feature(enable = $features)]
        fn $work<W: Work>(work: W) {
            work.run(WithFeatures::<$lanes>(PhantomData));
        }
    };
}

copies!("avx2", Ymm, copy_avx2, work_avx2);
copies!("avx512f,avx512bw", Zmm<false>, copy_avx512, work_avx512);

/// A token for running inside a function that was compiled with the features of `L`; created only there.
#[derive(Clone, Copy)]
struct WithFeatures<L>(PhantomData<L>);

impl<L: Lanes> Copier for WithFeatures<L> {
    #[inline(always)]
    fn copy(self, dst: &mut [u8], src: &[u8]) -> u64 {
        assert_eq!(dst.len(), src.len(), "copy needs source and destination of one length");
        // SAFETY: the instructions exist, since a token is created only where they do; both slices have that many bytes
        // and, one being `&mut`, do not overlap.
        unsafe { run::<L, 1, true>(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
    }
}

/// Returns whether the first `len` bytes of `a` and `b` differ in a bit of `mask`. Uses SSE2, which every x86-64 CPU
/// has: code that can be inlined is faster here than wider vectors.
#[inline(always)]
pub(super) fn differ(a: &[u8; HEAD_BLOCK], b: &[u8; HEAD_BLOCK], mask: &[u8; HEAD_BLOCK], len: usize) -> bool {
    let part = |at: usize| {
        // SAFETY: `at` is 112 or below, so the 16 bytes from there on are inside each array.
        unsafe {
            let [a, b, mask] = [a, b, mask].map(|bytes| _mm_loadu_si128(bytes.as_ptr().add(at).cast()));
            _mm_and_si128(_mm_xor_si128(a, b), mask)
        }
    };
    // SAFETY: SSE2 exists on every x86-64 CPU.
    unsafe {
        let or = |a, b| _mm_or_si128(a, b);
        let mut all = or(or(part(0), part(16)), or(part(32), part(48)));
        if len > 64 {
            all = or(all, part(64));
        }
        if len > 80 {
            all = or(all, or(part(80), or(part(96), part(112))));
        }
        _mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_setzero_si128())) != 0xffff
    }
}

/// Bytes between two totals of the lanes. A vector of 32 words moves the total by at most 32 * 32768, so a block of
/// 1024 such vectors, plus partial ones of at most two steps at the edges, stays below 2^31 (and also with AVX2, whose
/// vectors are half as wide and twice as many).
const BLOCK: usize = 64 * 1024;

/// Smallest length at which the head is split off, in bytes, so that the remaining bytes are read (or, when copying,
/// written) aligned.
const ALIGN_FROM: usize = 1024;

/// Sums, and copies if `COPY`, in steps of `STEP` vectors. Always inlined, so that it is compiled with the features of
/// the calling shell.
///
/// # Safety
/// The CPU must have the instructions of `L`; `src` must have `len` readable bytes; if `COPY`, `dst` must have `len`
/// writable bytes that do not overlap them.
#[inline(always)]
unsafe fn run<L: Lanes, const STEP: usize, const COPY: bool>(
    mut dst: *mut u8,
    mut src: *const u8,
    mut len: usize,
) -> u64 {
    const { assert!(STEP * L::WIDTH * 2 <= ALIGN_FROM, "a step is left behind the head") };
    let (width, step) = (L::WIDTH, STEP * L::WIDTH);

    // SAFETY: `src` and `dst` advance together and `len` shrinks by the same amount, so that `len` is always what is
    // left of both; whole vectors are touched only while `len >= step`, edges only within the input. The instructions
    // exist by this function's contract. Pointers move by `wrapping_*` because an edge's window may start in front of
    // the input or after it and, when not copying, `dst` is null.
    unsafe {
        if len < step {
            return L::short::<STEP, COPY>(dst, src, len);
        }
        let mut sum = 0;
        let mut lanes = [L::zero(); STEP];

        let mut skew = 0;
        if len >= ALIGN_FROM {
            skew = if COPY { dst as usize } else { src as usize } % width;
            sum = lanes[0].head::<COPY>(dst, src, skew);
            (dst, src) = (dst.wrapping_add(width - skew), src.wrapping_add(width - skew));
            len -= width - skew;
        }

        loop {
            let steps = len.min(BLOCK) / step;
            for _ in 0..steps {
                for (at, lane) in lanes.iter_mut().enumerate() {
                    *lane = lane.take::<COPY>(dst.wrapping_add(at * width), src.wrapping_add(at * width));
                }
                (dst, src) = (dst.wrapping_add(step), src.wrapping_add(step));
            }
            len -= steps * step;
            let is_last = len < step;
            if is_last {
                sum = scalar::join(sum, L::tail::<STEP, COPY>(&mut lanes, dst, src, len));
            }

            // The total is not negative: the bias of whole vectors is added back here, and edges leave none.
            let total = i64::from(L::total(lanes)) + (steps * step / 2 * 32768) as i64;
            sum = scalar::join(sum, total as u64);
            if is_last {
                break;
            }
            lanes = [L::zero(); STEP];
        }

        if skew % 2 == 1 { sum.rotate_left(8) } else { sum }
    }
}

/// A vector register as 32-bit lanes, each holding a sum of signed words.
///
/// # Safety
/// Every method needs the instructions of its set. `take` needs `WIDTH` readable bytes at `src` and, if `COPY`, as many
/// writable ones at `dst`, and so does `head`, whose `skew` is less than `WIDTH`. `short` and `tail` need `len` bytes,
/// fewer than `STEP` vectors hold; `tail`, where an implementation reaches back, also the whole `STEP` vectors that end
/// with those bytes, the part in front having been summed already.
trait Lanes: Copy {
    const WIDTH: usize;
    unsafe fn zero() -> Self;
    /// Returns the sum of all lanes.
    unsafe fn total<const STEP: usize>(lanes: [Self; STEP]) -> i32;
    /// Adds the words of a whole vector, each less 32768.
    unsafe fn take<const COPY: bool>(self, dst: *mut u8, src: *const u8) -> Self;
    /// Adds the first `WIDTH - skew` bytes to the lanes, at the byte positions that they would have after `skew` other
    /// bytes. Adds to the lanes at most what two whole vectors would, and returns the rest as a plain sum.
    unsafe fn head<const COPY: bool>(&mut self, dst: *mut u8, src: *const u8, skew: usize) -> u64;
    /// Adds the last `len` bytes, which may be none, to the lanes, and returns the rest as a plain sum.
    unsafe fn tail<const STEP: usize, const COPY: bool>(
        lanes: &mut [Self; STEP],
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> u64;
    /// Returns the plain sum of an input shorter than a step.
    unsafe fn short<const STEP: usize, const COPY: bool>(dst: *mut u8, src: *const u8, len: usize) -> u64;
}

#[derive(Clone, Copy)]
struct Ymm(__m256i);

impl Lanes for Ymm {
    const WIDTH: usize = 32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's contract.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn total<const STEP: usize>(lanes: [Self; STEP]) -> i32 {
        // SAFETY: the trait's contract.
        unsafe {
            let mut all = Self::zero();
            for one in lanes {
                all = all.plus(one);
            }
            let sum = _mm_add_epi32(_mm256_castsi256_si128(all.0), _mm256_extracti128_si256::<1>(all.0));
            let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
            let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b10_11_00_01>(sum));
            _mm_cvtsi128_si32(sum)
        }
    }

    #[inline(always)]
    unsafe fn take<const COPY: bool>(self, dst: *mut u8, src: *const u8) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let bytes = _mm256_loadu_si256(src.cast());
            if COPY {
                _mm256_storeu_si256(dst.cast(), bytes);
            }
            let signed = _mm256_xor_si256(bytes, _mm256_set1_epi16(i16::MIN));
            self.plus(Self(_mm256_madd_epi16(signed, _mm256_set1_epi16(1))))
        }
    }

    #[inline(always)]
    unsafe fn head<const COPY: bool>(&mut self, dst: *mut u8, src: *const u8, skew: usize) -> u64 {
        // SAFETY: the trait's contract; the 32 bytes from there on are inside `KEPT`.
        unsafe {
            let words = Self::part::<COPY>(dst, src, KEPT.as_ptr().add(skew));
            if skew % 2 == 1 {
                // The total is not negative, since no bias is left in it.
                return (Self::total([words]) as u64).rotate_left(8);
            }
            *self = self.plus(words);
        }
        0
    }

    #[inline(always)]
    unsafe fn tail<const STEP: usize, const COPY: bool>(
        lanes: &mut [Self; STEP],
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> u64 {
        const { assert!(STEP * Self::WIDTH <= KEPT_MOST, "the mask reaches back a whole step") };
        // SAFETY: the trait's contract; the last vector's mask ends `len` bytes, less than a step, after `KEPT_LAST`,
        // where `KEPT` has `KEPT_MOST`.
        unsafe {
            let back = STEP * Self::WIDTH - len;
            let mask = KEPT.as_ptr().add(KEPT_LAST - back);
            let mut words = [Self::zero(); STEP];
            for (at, words) in words.iter_mut().enumerate() {
                let at = at * Self::WIDTH;
                let (dst, src) = (dst.wrapping_add(at).wrapping_sub(back), src.wrapping_add(at).wrapping_sub(back));
                *words = Self::part::<COPY>(dst, src, mask.add(at));
            }
            if len % 2 == 1 {
                return (Self::total(words) as u64).rotate_left(8);
            }
            for (lane, words) in lanes.iter_mut().zip(words) {
                *lane = lane.plus(words);
            }
        }
        0
    }

    #[inline(always)]
    unsafe fn short<const STEP: usize, const COPY: bool>(dst: *mut u8, src: *const u8, len: usize) -> u64 {
        // SAFETY: the trait's contract; the slice lives only within this call.
        unsafe {
            if COPY {
                core::ptr::copy_nonoverlapping(src, dst, len);
            }
            scalar::sum(core::slice::from_raw_parts(src, len))
        }
    }
}

impl Ymm {
    /// Returns the lane-wise sum of both vectors.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: the function's contract.
        Self(unsafe { _mm256_add_epi32(self.0, other.0) })
    }

    /// Returns the words of those bytes of a whole vector that `mask` keeps, and copies the whole vector if `COPY`.
    ///
    /// # Safety
    /// As for [`Lanes::take`]; `mask` has 32 readable bytes.
    #[inline(always)]
    unsafe fn part<const COPY: bool>(dst: *mut u8, src: *const u8, mask: *const u8) -> Self {
        // SAFETY: this function's contract.
        unsafe {
            let bytes = _mm256_loadu_si256(src.cast());
            if COPY {
                _mm256_storeu_si256(dst.cast(), bytes);
            }
            let kept = _mm256_and_si256(bytes, _mm256_loadu_si256(mask.cast()));
            let signed = _mm256_xor_si256(kept, _mm256_set1_epi16(i16::MIN));
            // The bias of two words in each lane is added back at once.
            let unbias = Self(_mm256_set1_epi32(2 * 32768));
            Self(_mm256_madd_epi16(signed, _mm256_set1_epi16(1))).plus(unbias)
        }
    }
}

/// A window of masks: from index `n` up to 32 on, it keeps the first `32 - n` of 32 bytes; from `KEPT_LAST - n` on, the
/// bytes after the first `n`, at most `KEPT_MOST`.
static KEPT: [u8; KEPT_LAST + KEPT_MOST] = {
    let mut kept = [0xff; KEPT_LAST + KEPT_MOST];
    let mut at = 32;
    while at < KEPT_LAST {
        kept[at] = 0;
        at += 1;
    }
    kept
};
const KEPT_LAST: usize = 32 + KEPT_MOST;
const KEPT_MOST: usize = 64;

#[derive(Clone, Copy)]
struct Zmm<const VNNI: bool>(__m512i);

impl<const VNNI: bool> Zmm<VNNI> {
    /// Returns the lane-wise sum of both vectors.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: the function's contract.
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    /// Adds the words of a vector, each less 32768.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn add_words(self, bytes: __m512i) -> Self {
        // SAFETY: the function's contract.
        unsafe {
            let signed = _mm512_xor_si512(bytes, _mm512_set1_epi16(i16::MIN));
            let ones = _mm512_set1_epi16(1);
            if VNNI {
                Self(_mm512_dpwssd_epi32(self.0, signed, ones))
            } else {
                self.plus(Self(_mm512_madd_epi16(signed, ones)))
            }
        }
    }

    /// Adds the bytes whose bits are set in `mask`.
    ///
    /// # Safety
    /// As for [`Lanes::take`], of those bytes alone.
    #[inline(always)]
    unsafe fn part<const COPY: bool>(&mut self, dst: *mut u8, src: *const u8, mask: u64) {
        // SAFETY: this function's contract; a masked byte is neither read nor written.
        unsafe {
            let bytes = _mm512_maskz_loadu_epi8(mask, src.cast());
            if COPY {
                _mm512_mask_storeu_epi8(dst.cast(), mask, bytes);
            }
            // The bias of two words in each lane is added back at once.
            let unbias = Self(_mm512_set1_epi32(2 * 32768));
            *self = self.add_words(bytes).plus(unbias);
        }
    }
}

impl<const VNNI: bool> Lanes for Zmm<VNNI> {
    const WIDTH: usize = 64;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's contract.
        Self(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn total<const STEP: usize>(lanes: [Self; STEP]) -> i32 {
        // SAFETY: the trait's contract.
        unsafe {
            let mut all = Self::zero();
            for one in lanes {
                all = all.plus(one);
            }
            _mm512_reduce_add_epi32(all.0)
        }
    }

    #[inline(always)]
    unsafe fn take<const COPY: bool>(self, dst: *mut u8, src: *const u8) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let bytes = _mm512_loadu_si512(src.cast());
            if COPY {
                _mm512_storeu_si512(dst.cast(), bytes);
            }
            self.add_words(bytes)
        }
    }

    #[inline(always)]
    unsafe fn head<const COPY: bool>(&mut self, dst: *mut u8, src: *const u8, skew: usize) -> u64 {
        // SAFETY: the trait's contract.
        unsafe { self.part::<COPY>(dst.wrapping_sub(skew), src.wrapping_sub(skew), u64::MAX << skew) }
        0
    }

    #[inline(always)]
    unsafe fn tail<const STEP: usize, const COPY: bool>(
        lanes: &mut [Self; STEP],
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> u64 {
        for (at, lane) in lanes.iter_mut().enumerate() {
            let at = at * Self::WIDTH;
            let mask = match len.saturating_sub(at).min(Self::WIDTH) {
                0 => 0,
                kept => u64::MAX >> (Self::WIDTH - kept),
            };
            // SAFETY: the trait's contract, which covers the bytes that the mask keeps.
            unsafe { lane.part::<COPY>(dst.wrapping_add(at), src.wrapping_add(at), mask) }
        }
        0
    }

    #[inline(always)]
    unsafe fn short<const STEP: usize, const COPY: bool>(dst: *mut u8, src: *const u8, len: usize) -> u64 {
        // SAFETY: the trait's contract; masked vectors touch no byte outside the input.
        unsafe {
            let mut lanes = [Self::zero(); STEP];
            Self::tail::<STEP, COPY>(&mut lanes, dst, src, len);
            Self::total(lanes) as u64
        }
    }
}
