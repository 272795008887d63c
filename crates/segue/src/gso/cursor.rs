//! A position in a payload that only moves forward.

use core::ops::Range;

use crate::checksum::Sum;
use crate::packet::{Buffer, Frag, Payload};

/// A position in a payload that only moves forward.
pub(super) struct Cursor<'a, B> {
    frags: &'a [Frag<B>],
    skip: usize,
}

impl<'a, B: Buffer> Cursor<'a, B> {
    pub(super) fn new(payload: &'a Payload<B>) -> Self {
        Cursor { frags: payload.frags(), skip: 0 }
    }

    /// Passes the ranges that hold the next `len` bytes to `each`, with the positions of the bytes in them, and moves
    /// past them.
    fn take(&mut self, mut len: usize, mut each: impl FnMut(&'a Frag<B>, Range<usize>)) {
        while len > 0
            && let Some((frag, rest)) = self.frags.split_first()
        {
            let left = frag.len() - self.skip;
            if left <= len {
                each(frag, self.skip..frag.len());
                len -= left;
                (self.frags, self.skip) = (rest, 0);
            } else {
                each(frag, self.skip..self.skip + len);
                self.skip += len;
                return;
            }
        }
    }

    /// Moves past the next `len` bytes.
    pub(super) fn skip(&mut self, len: usize) {
        self.take(len, |_, _| {});
    }

    /// Moves past the next `len` bytes and returns their sum.
    pub(super) fn sum(&mut self, len: usize) -> Sum {
        let mut sum = Sum::ZERO;
        self.take(len, |frag, range| sum.append(frag.sum(range.clone()), range.len()));
        sum
    }

    /// Copies the next bytes to `out`, and adds them to `sum` if one is given.
    pub(super) fn copy(&mut self, out: &mut [u8], mut sum: Option<&mut Sum>) {
        // In most cases they lie in one piece.
        if let Some((frag, _)) = self.frags.split_first()
            && let Some(bytes) = frag.as_slice().and_then(|bytes| bytes.get(self.skip..))
            && out.len() < bytes.len()
        {
            self.skip += out.len();
            return copy(out, &bytes[..out.len()], sum);
        }
        let mut at = 0;
        self.take(out.len(), |frag, range| {
            let place = &mut out[at..at + range.len()];
            at += range.len();
            match frag.as_slice().and_then(|bytes| bytes.get(range.clone())) {
                Some(bytes) => copy(place, bytes, sum.as_deref_mut()),
                None => {
                    frag.copy_to(range.start, place);
                    if let Some(sum) = sum.as_deref_mut() {
                        sum.add(place);
                    }
                }
            }
        });
    }

    /// Returns the rest of the current piece; an empty slice for memory that may change.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.frags.first().and_then(|frag| frag.as_slice()?.get(self.skip..)).unwrap_or(&[])
    }

    /// Returns the number of bytes in the next `pieces` pieces, where a piece larger than `most` counts as several.
    pub(super) fn reach(&self, mut pieces: usize, most: usize) -> usize {
        let (mut bytes, mut skip) = (0_usize, self.skip);
        for frag in self.frags {
            let len = frag.len() - skip;
            let wanted = len.div_ceil(most);
            if wanted > pieces {
                return bytes + pieces * most;
            }
            (bytes, skip, pieces) = (bytes + len, 0, pieces - wanted);
        }
        bytes
    }
}

/// Copies `bytes` to `out`, of the same length, and adds them to `sum` if one is given.
#[inline(always)]
fn copy(out: &mut [u8], bytes: &[u8], sum: Option<&mut Sum>) {
    match sum {
        Some(sum) => sum.copy(out, bytes),
        None => out.copy_from_slice(bytes),
    }
}
