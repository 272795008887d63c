//! The Internet checksum (RFC 1071): a running sum, the resulting field, and the pseudo headers. Besides it, the CRC32c
//! of SCTP.
//!
//! A [`Sum`] is a sum in progress, a [`Field`] is two bytes of a header. They are different types because confusing the
//! two, or forgetting the complement between them, is a classic mistake.
//!
//! To check data that contains its checksum field, sum everything, the pseudo header included: the data is good if
//! [`Sum::fold`] returns `0xffff`. To fill in a field, sum with the field as zero and use [`Field::complete`], or
//! [`Field::complete_udp`] for UDP.
//!
//! Long inputs are summed with the widest vectors that the CPU has; [`implementation`] names them.

mod crc32c;
mod field;
mod pseudo;
mod sum;

pub use crc32c::Crc32c;
pub use field::Field;
pub use pseudo::{pseudo_v4, pseudo_v6};
pub use sum::Sum;

use crate::arch::{self, Copier, Kernel};

/// Returns the name of the implementation in use on this CPU: `"avx512-vnni"`, `"avx512"`, `"avx2"`, `"neon"` or
/// `"scalar"`.
///
/// Inputs of at most 64 bytes are summed by the scalar code on every CPU, because there the call and the horizontal sum
/// of a vector cost more than the vector saves. The segments of one train, which share a call, are an exception.
pub fn implementation() -> &'static str {
    arch::chosen().name()
}

/// Returns every implementation that this CPU can run, the slowest (scalar) first and the one in use last. For tests
/// and benchmarks.
pub fn implementations() -> impl Iterator<Item = Implementation> {
    arch::available().map(Implementation)
}

/// An implementation of the sums, from [`implementations`]. All of them give the same results.
#[derive(Clone, Copy, Debug)]
pub struct Implementation(Kernel);

impl Implementation {
    /// Returns the implementation's name, as [`implementation`] lists it.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Selects this implementation for the whole process, instead of the fastest. For measurements; call it
    /// at the start, since work that runs at the same time may use either.
    pub fn choose(self) {
        arch::choose(self.0);
    }

    /// Computes [`Sum::of`] without its shortcut for short inputs.
    pub fn sum(self, bytes: &[u8]) -> Sum {
        Sum::from_plain(self.0.sum(bytes), bytes.len())
    }

    /// Performs [`Sum::copy`] on an empty sum, without its shortcut for short inputs.
    ///
    /// # Panics
    /// If `dst` and `src` differ in length.
    pub fn copy(self, dst: &mut [u8], src: &[u8]) -> Sum {
        Sum::from_plain(self.0.copy(dst, src), src.len())
    }
}

#[cfg(test)]
mod tests;
