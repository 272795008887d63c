//! A position in a payload that only moves forward.

use crate::checksum::Sum;
use crate::packet::{Frag, Payload};

/// A position in a payload that only moves forward.
pub(super) struct Cursor<'a, B> {
    frags: &'a [Frag<B>],
    skip: usize,
}

impl<'a, B: AsRef<[u8]>> Cursor<'a, B> {
    pub(super) fn new(payload: &'a Payload<B>) -> Self {
        Cursor { frags: payload.frags(), skip: 0 }
    }

    /// Passes the next `len` bytes to `each`, piece by piece, and moves behind them.
    pub(super) fn take(&mut self, mut len: usize, mut each: impl FnMut(&'a [u8])) {
        while len > 0
            && let Some((frag, rest)) = self.frags.split_first()
        {
            let bytes = frag.bytes().get(self.skip..).unwrap_or(&[]);
            if bytes.len() <= len {
                each(bytes);
                len -= bytes.len();
                (self.frags, self.skip) = (rest, 0);
            } else {
                each(&bytes[..len]);
                self.skip += len;
                return;
            }
        }
    }

    /// Copies the next bytes to `out`, and adds them to `sum` if one is given.
    pub(super) fn copy(&mut self, out: &mut [u8], mut sum: Option<&mut Sum>) {
        // In most cases they lie in one piece.
        if let Some((frag, _)) = self.frags.split_first()
            && let Some(bytes) = frag.bytes().get(self.skip..)
            && out.len() < bytes.len()
        {
            self.skip += out.len();
            return copy(out, &bytes[..out.len()], sum);
        }
        let mut at = 0;
        self.take(out.len(), |bytes| {
            copy(&mut out[at..at + bytes.len()], bytes, sum.as_deref_mut());
            at += bytes.len();
        });
    }

    /// Returns the rest of the current piece.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.frags.first().and_then(|frag| frag.bytes().get(self.skip..)).unwrap_or(&[])
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
