//! The running sum of the Internet checksum.

use core::fmt;

use crate::arch::{self, Copier, scalar};

/// A running ones-complement sum of 16-bit words (RFC 1071) that remembers whether it stopped in the middle of a word.
///
/// Data may be added in pieces of any length, odd ones included: the result is that of the concatenated pieces. The
/// total length is not limited.
///
/// Equality compares numbers: `0x0000` and `0xffff` are both zero in ones-complement arithmetic and equal here (they
/// arise from all-zero data and from [`remove`](Sum::remove)). Sums that stopped at different parities are unequal,
/// since whatever is added next would count differently.
/// ```
/// use segue::checksum::{Field, Sum};
///
/// let mut sum = Sum::of(b"odd");
/// sum.add(b"and even"); // continues in the middle of a word
/// assert_eq!(sum, Sum::of(b"oddand even"));
/// let mut copied = [0; 4];
/// sum.copy(&mut copied, b"more"); // copied and summed in one pass
/// let checksum = Field::complete(sum).value();
/// # assert_ne!(checksum, 0);
/// ```
#[derive(Clone, Copy, Default)]
pub struct Sum {
    /// The sum, congruent modulo 65535 to that of the words in little-endian order (RFC 1071 section 2(B): byte order
    /// only swaps the result); zero only if all was zero.
    plain: u64,
    /// The position of the next byte.
    next: Next,
}

/// The position of a byte in its 16-bit word. It fills a word, so that there is no padding to be copied in pieces.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(usize)]
enum Next {
    #[default]
    First,
    Second,
}

impl Next {
    /// Returns the position after `len` bytes.
    #[inline(always)]
    fn behind(len: usize) -> Next {
        if len % 2 == 1 { Next::Second } else { Next::First }
    }
}

impl Sum {
    /// The sum of zero bytes.
    pub const ZERO: Sum = Sum { plain: 0, next: Next::First };

    /// Returns the running sum of `bytes`.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        Sum::from_plain(plain(bytes), bytes.len())
    }

    /// Adds the bytes that follow those already summed.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        self.append(Sum { plain: plain(bytes), next: Next::First }, bytes.len());
    }

    /// Adds two bytes, `value` in big-endian order: the same as `add(&value.to_be_bytes())`.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        self.append(Sum { plain: u64::from(value.swap_bytes()), next: Next::First }, 2);
    }

    /// Adds four bytes, `value` in big-endian order: the same as `add(&value.to_be_bytes())`.
    #[inline]
    pub fn add_u32(&mut self, value: u32) {
        self.append(Sum { plain: u64::from(value.swap_bytes()), next: Next::First }, 4);
    }

    /// Adds the separately computed sum `next` of the `next_len` bytes that follow those already summed. Only
    /// `next_len` says where the result stops; `next` may come from a folded 16-bit value.
    #[inline]
    pub fn append(&mut self, next: Sum, next_len: usize) {
        // A sum that begins in the middle of a word is the sum of the same bytes with all words swapped (RFC 1071
        // section 2(B)), and rotating by eight bits swaps the bytes of every 16-bit column.
        let next = if self.next == Next::Second { next.plain.rotate_left(8) } else { next.plain };
        self.plain = scalar::join(self.plain, next);
        self.next = Next::behind(self.next as usize ^ next_len);
    }

    /// Copies `src` to `dst` and adds its bytes, in one pass.
    ///
    /// # Panics
    /// If `dst` and `src` differ in length.
    #[inline]
    pub fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        let plain = if src.len() <= scalar::SHORT_MAX {
            dst.copy_from_slice(src);
            scalar::short(src)
        } else {
            arch::chosen().copy(dst, src)
        };
        self.append(Sum { plain, next: Next::First }, src.len());
    }

    /// Copies `src` to `dst` and adds its bytes with `copier`, without the shortcut for short inputs.
    #[inline(always)]
    pub(crate) fn copy_by(&mut self, copier: impl Copier, dst: &mut [u8], src: &[u8]) {
        self.append(Sum { plain: copier.copy(dst, src), next: Next::First }, src.len());
    }

    /// Removes a part from the sum, as if its bytes had been zero: a ones-complement subtraction.
    ///
    /// The part must have begun at an even offset from where this sum began. The position where the sum stops is
    /// unchanged, even if the part was cut off the end and had an odd length.
    #[inline]
    pub fn remove(&mut self, part: Sum) {
        // `!part` is minus `part` modulo 2^64 - 1, and only zero is subtracted from a zero sum.
        if part.plain != 0 {
            self.plain = scalar::join(self.plain, !part.plain);
        }
    }

    /// Returns the sum in 16 bits, not complemented, as the value of a big-endian word.
    ///
    /// The result is `0x0000` only if every byte was zero; any other multiple of 65535 is `0xffff`, which is also the
    /// sum of data that contains a correct checksum.
    #[inline]
    pub fn fold(self) -> u16 {
        // Adds both halves: the carry of the lower ones is the end-around carry of the upper ones.
        let sum = (self.plain.wrapping_add(self.plain.rotate_left(32)) >> 32) as u32;
        let sum = sum.wrapping_add(sum.rotate_left(16)) >> 16;
        (sum as u16).swap_bytes()
    }

    /// Wraps the plain sum that the kernels in `arch` return for `len` bytes.
    #[inline]
    pub(super) fn from_plain(plain: u64, len: usize) -> Sum {
        Sum { plain, next: Next::behind(len) }
    }

    /// Adds an integer as the eight bytes of its big-endian form, only the low-order ones of which need to be on the
    /// wire.
    #[inline]
    pub(super) fn add_u64(&mut self, value: u64) {
        self.append(Sum { plain: value.swap_bytes(), next: Next::First }, 8);
    }
}

impl PartialEq for Sum {
    fn eq(&self, other: &Sum) -> bool {
        self.next == other.next && self.fold() % 0xffff == other.fold() % 0xffff
    }
}

impl Eq for Sum {}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parity = if self.next == Next::Second { ", odd" } else { "" };
        write!(f, "Sum({:#06x}{parity})", self.fold())
    }
}

#[inline]
fn plain(bytes: &[u8]) -> u64 {
    if bytes.len() <= scalar::SHORT_MAX { scalar::short(bytes) } else { arch::chosen().sum(bytes) }
}
