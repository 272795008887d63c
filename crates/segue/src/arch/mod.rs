//! The hot loops, once per instruction set, behind one dispatch point.
//!
//! Everything here works on *plain sums*: a `u64` that is congruent, modulo 65535, to the sum of the 16-bit words of
//! the input, each word taken in little-endian order and a missing last byte taken as zero. It is zero only if every
//! byte is zero. `checksum::Sum` turns that into what protocols want (byte order, parity, folding).
//!
//! This directory is the only place of the crate where `unsafe` may be written.

#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
mod neon;
pub(crate) mod scalar;
mod work;
// Targets without SSE2 (`x86_64-unknown-none`) are kernels that do not save vector registers.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod x86;

#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) use work::{Copier, HEAD_BLOCK, Work};

/// One implementation that the CPU at hand can run.
///
/// Values come only from [`chosen`] and [`available`], so that holding one is the proof that its instructions exist.
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

    /// The plain sum of `bytes`.
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

    /// Does `work` with this implementation.
    #[inline]
    pub(crate) fn work(self, work: impl Work) {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Set::X86(set) => set.work(work),
            _ => work.run(self),
        }
    }

    /// Whether the first `len` bytes of `a` and `b` differ in a bit that is set in `mask`, which is zero behind them.
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
            // The compiler makes vectors of it.
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

/// The fastest implementation for this CPU. Looked up once, then a relaxed load.
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

/// The scalar code was chosen.
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
static NO_NEON: AtomicBool = AtomicBool::new(false);

/// Has [`chosen`] give this one from now on, to all threads.
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

/// Every implementation this CPU can run, the slowest (scalar) first.
pub(crate) fn available() -> impl Iterator<Item = Kernel> {
    let scalar = core::iter::once(Kernel(Set::Scalar));
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
    let scalar = scalar.chain(core::iter::once(Kernel(Set::Neon)));
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    let scalar = scalar.chain(x86::available().map(|set| Kernel(Set::X86(set))));
    scalar
}
