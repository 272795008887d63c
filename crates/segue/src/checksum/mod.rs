//! The Internet checksum (RFC 1071): a running sum, the field it ends up in, and the pseudo headers.
//!
//! A [`Sum`] is work in progress, a [`Field`] is two bytes of a header. They are different types because confusing
//! the two, or forgetting the complement between them, is the classic mistake of this trade.
//!
//! To check data that contains its checksum field, sum everything, the pseudo header included: the data is good if
//! [`Sum::fold`] gives `0xffff`. To fill a field in, sum with the field as zero and use [`Field::complete`], or
//! [`Field::complete_udp`] for UDP.
//!
//! Long inputs are summed by the widest vectors the CPU has; [`implementation`] names them.

mod field;
mod pseudo;
mod sum;

pub use field::Field;
pub use pseudo::{pseudo_v4, pseudo_v6};
pub use sum::Sum;

use crate::arch::{self, Copier, Kernel};

/// The name of the implementation in use on this CPU: `"avx512-vnni"`, `"avx512"`, `"avx2"` or `"scalar"`.
///
/// Inputs of at most 64 bytes are summed by the scalar code on every CPU, because the call and the horizontal sum of a
/// vector cost more there than the vector saves; but not the segments of one train, which share a call.
pub fn implementation() -> &'static str {
    arch::chosen().name()
}

/// Every implementation this CPU can run, the slowest (scalar) first and the one in use last. For tests and benchmarks.
pub fn implementations() -> impl Iterator<Item = Implementation> {
    arch::available().map(Implementation)
}

/// One way to compute sums, from [`implementations`]. All of them give the same results.
#[derive(Clone, Copy, Debug)]
pub struct Implementation(Kernel);

impl Implementation {
    /// One of the names that [`implementation`] lists.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Makes this the one in use, in the whole process, in place of the fastest. For measurements; best done at the start,
    /// since what runs meanwhile may use either.
    pub fn choose(self) {
        arch::choose(self.0);
    }

    /// What [`Sum::of`] computes, without its shortcut for short inputs.
    pub fn sum(self, bytes: &[u8]) -> Sum {
        Sum::from_plain(self.0.sum(bytes), bytes.len())
    }

    /// What [`Sum::copy`] does to an empty sum, without its shortcut for short inputs.
    ///
    /// # Panics
    /// If `dst` and `src` differ in length.
    pub fn copy(self, dst: &mut [u8], src: &[u8]) -> Sum {
        Sum::from_plain(self.0.copy(dst, src), src.len())
    }
}

#[cfg(test)]
mod tests;
