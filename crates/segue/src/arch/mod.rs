//! The hot loops, one implementation for each instruction set, behind one dispatch point.
//!
//! Everything here works on *plain sums*: a `u64` that is congruent, modulo 65535, to the sum of the 16-bit words of
//! the input, each word read in little-endian order and a missing last byte read as zero. A plain sum is zero only if
//! every byte is zero. `checksum::Sum` turns it into what protocols need (byte order, parity, folding).
//!
//! Only this directory of the crate may contain `unsafe` code.

pub(crate) mod lent;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
mod neon;
pub(crate) mod scalar;
mod work;
// Targets without SSE2 (`x86_64-unknown-none`) are kernels, which do not save vector registers.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod x86;

#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) use work::{Copier, HEAD_BLOCK, Work};

/// An implementation of the hot loops that this CPU supports.
///
/// Values come only from [`chosen`] and [`available`], so that holding one proves that its instructions exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Scalar,
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
    Neon,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    X86(x86::Set),
}

impl Kernel {
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Set::Scalar => "scalar",
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Set::Neon => "neon",
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Set::X86(set) => set.name(),
        }
    }

    /// Returns the plain sum of `bytes`.
    #[inline]
    pub(crate) fn sum(self, bytes: &[u8]) -> u64 {
        match self.0 {
            Set::Scalar => scalar::sum(bytes),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Set::Neon => neon::sum(bytes),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Set::X86(set) => set.sum(bytes),
        }
    }

    /// Runs `work` compiled for this implementation.
    #[inline]
    pub(crate) fn work(self, work: impl Work) {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Set::X86(set) => set.work(work),
            _ => work.run(self),
        }
    }

    /// Returns whether the first `len` bytes of `a` and `b` differ in a bit that is set in `mask`, which is zero after
    /// them.
    #[inline(always)]
    #[cfg_attr(not(all(target_arch = "x86_64", target_feature = "sse2")), allow(unused_variables))]
    pub(crate) fn differ(
        self,
        a: &[u8; HEAD_BLOCK],
        b: &[u8; HEAD_BLOCK],
        mask: &[u8; HEAD_BLOCK],
        len: usize,
    ) -> bool {
        match self.0 {
            Set::Scalar => scalar::differ(a, b, mask),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            // The compiler vectorises the scalar loop.
            Set::Neon => scalar::differ(a, b, mask),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Set::X86(_) => x86::differ(a, b, mask, len),
        }
    }
}

impl Copier for Kernel {
    #[inline]
    fn copy(self, dst: &mut [u8], src: &[u8]) -> u64 {
        match self.0 {
            Set::Scalar => scalar::copy(dst, src),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Set::Neon => neon::copy(dst, src),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Set::X86(set) => set.copy(dst, src),
        }
    }
}

/// Prefetches the first `most` cache lines of `bytes`, for use a little later. Does nothing where the target has no
/// such instruction.
#[inline(always)]
#[cfg_attr(not(all(target_arch = "x86_64", target_feature = "sse2")), allow(unused_variables))]
pub(crate) fn prefetch(bytes: &[u8], most: usize) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    x86::prefetch(bytes, most);
}

/// Returns the fastest implementation for this CPU, or the one selected by [`choose`]. The CPU is examined once; later
/// calls are a relaxed load.
#[inline]
pub(crate) fn chosen() -> Kernel {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    if let Some(set) = x86::chosen() {
        return Kernel(Set::X86(set));
    }
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
    if !NO_NEON.load(Ordering::Relaxed) {
        return Kernel(Set::Neon);
    }
    Kernel(Set::Scalar)
}

/// Whether [`choose`] selected the scalar code.
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
static NO_NEON: AtomicBool = AtomicBool::new(false);

/// Selects the implementation that [`chosen`] returns from the next call on, in all threads.
pub(crate) fn choose(kernel: Kernel) {
    match kernel.0 {
        Set::Scalar => {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            x86::choose(None);
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            NO_NEON.store(true, Ordering::Relaxed);
        }
        #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
        Set::Neon => NO_NEON.store(false, Ordering::Relaxed),
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        Set::X86(set) => x86::choose(Some(set)),
    }
}

/// Returns every implementation that this CPU can run, the slowest (scalar) first.
pub(crate) fn available() -> impl Iterator<Item = Kernel> {
    let scalar = core::iter::once(Kernel(Set::Scalar));
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
    let scalar = scalar.chain(core::iter::once(Kernel(Set::Neon)));
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    let scalar = scalar.chain(x86::available().map(|set| Kernel(Set::X86(set))));
    scalar
}

#[cfg(test)]
mod tests {
    /// Miri judges this test: a pointer beyond the bytes is undefined behaviour, but a processor ignores it.
    #[test]
    fn a_prefetch_has_no_pointer_beyond_its_bytes() {
        for len in [0, 1, 63, 64, 65, 255, 256, 257, 640] {
            let bytes = vec![0_u8; len];
            for most in [0, 1, 4, 5, 100] {
                super::prefetch(&bytes, most);
            }
        }
    }
}
