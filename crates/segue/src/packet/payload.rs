//! The payload of a packet: ranges of buffers, in order, never copied.

use alloc::vec::Vec;
use core::ops::Range;

use super::buffer::{self, Buffer};
use crate::checksum::Sum;

/// A range of a buffer.
#[derive(Clone, Debug)]
pub struct Frag<B> {
    buf: B,
    start: u32,
    len: u32,
    /// End of the range in its payload, in bytes from the payload's beginning when it was last empty. It fills a word:
    /// padding would be copied in pieces, which the processor cannot forward from store to load.
    end: usize,
}

impl<B: Buffer> Frag<B> {
    /// Creates the range `range` of `buf`, clamped to the buffer; bytes past 4 GiB are not addressed.
    #[inline]
    pub fn new(buf: B, range: Range<usize>) -> Frag<B> {
        let have = buf.size().min(u32::MAX as usize);
        let start = range.start.min(have);
        let len = range.end.clamp(start, have) - start;
        Frag { buf, start: start as u32, len: len as u32, end: 0 }
    }

    /// Creates a range of the whole of `buf`; bytes past 4 GiB are not addressed.
    #[inline]
    pub fn all(buf: B) -> Frag<B> {
        let len = buf.size().min(u32::MAX as usize) as u32;
        Frag { buf, start: 0, len, end: 0 }
    }

    /// Returns the bytes of the range, if nothing else can write to them ([`Buffer::as_slice`]).
    #[inline(always)]
    pub fn as_slice(&self) -> Option<&[u8]> {
        // In range by construction; for a buffer whose length changes meanwhile this returns nothing rather than
        // panicking.
        Some(self.buf.as_slice()?.get(self.start as usize..self.start as usize + self.len as usize).unwrap_or(&[]))
    }

    /// Copies the bytes from `offset` of the range on to `out`, which the range covers; bytes that it does not have are
    /// zeros.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) {
        let len = self.len().saturating_sub(offset).min(out.len());
        let (out, rest) = out.split_at_mut(len);
        buffer::read_all(&self.buf, self.start as usize + offset, out);
        rest.fill(0);
    }

    /// Returns the sum of the bytes in `range`, clamped to this one; bytes that a shrunken buffer has lost count as
    /// zeros.
    pub fn sum(&self, range: Range<usize>) -> Sum {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        buffer::sum(&self.buf, self.start as usize + start..self.start as usize + end)
    }

    /// Returns the length of the range, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the range is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the range without its first `n` bytes; an empty one if it has fewer.
    #[must_use]
    #[inline]
    pub fn skip(mut self, n: usize) -> Frag<B> {
        let n = n.min(self.len()) as u32;
        self.start += n;
        self.len -= n;
        self
    }

    /// Returns the first `n` bytes of the range; all of it if it has fewer.
    #[must_use]
    pub fn first(mut self, n: usize) -> Frag<B> {
        self.len = self.len.min(n.min(u32::MAX as usize) as u32);
        self
    }

    /// Returns the buffer of which this is a range.
    pub fn buffer(&self) -> &B {
        &self.buf
    }

    /// Returns the range of the bytes in their buffer.
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len()
    }

    /// Returns the bytes of the range as the pieces of a payload with this range only.
    #[inline]
    pub fn pieces(&self) -> Pieces<'_, B> {
        self.pieces_from(0)
    }

    /// Returns the bytes of the range from `offset` on, like [`Frag::pieces`]; none past its end.
    #[inline]
    pub fn pieces_from(&self, offset: usize) -> Pieces<'_, B> {
        Pieces { frags: core::slice::from_ref(self), skip: offset, left: self.len().saturating_sub(offset) }
    }

    /// Returns the buffer that the range refers to.
    pub fn into_inner(self) -> B {
        self.buf
    }
}

impl<B: AsRef<[u8]>> Frag<B> {
    /// Returns the bytes of the range.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // In range by construction; for a buffer whose length changes meanwhile this returns nothing rather than
        // panicking.
        self.buf.as_ref().get(self.start as usize..self.start as usize + self.len as usize).unwrap_or(&[])
    }
}

/// The payload of a packet: ranges of buffers, in order.
#[derive(Debug)]
pub struct Payload<B> {
    frags: Vec<Frag<B>>,
    len: usize,
    /// Bytes dropped from the front since the payload was last empty, modulo 2^32.
    gone: usize,
}

impl<B> Default for Payload<B> {
    fn default() -> Self {
        Payload { frags: Vec::new(), len: 0, gone: 0 }
    }
}

impl<B: Buffer> Payload<B> {
    /// Returns the total length, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the payload has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the ranges; none of them is empty.
    #[inline]
    pub fn frags(&self) -> &[Frag<B>] {
        &self.frags
    }

    /// Reserves memory for `count` ranges.
    pub(super) fn reserve(&mut self, count: usize) {
        self.frags.reserve(count);
    }

    /// Appends a range; an empty one is dropped at once.
    // Inlined always, so that the parts of a range are stored once: what was stored in parts cannot be forwarded as a
    // whole.
    #[inline(always)]
    pub fn push(&mut self, frag: Frag<B>) {
        if !frag.is_empty() {
            self.len += frag.len();
            let Frag { buf, start, len, .. } = frag;
            self.frags.push(Frag { buf, start, len, end: self.gone.wrapping_add(self.len) });
        }
    }

    /// Moves all ranges of `other` to the end of this payload.
    #[inline]
    pub fn append(&mut self, other: &mut Payload<B>) {
        other.frags.drain(..).for_each(|frag| self.push(frag));
        (other.len, other.gone) = (0, 0);
    }

    /// Drops the first `len` bytes; all of them if there are fewer.
    pub fn advance(&mut self, len: usize) {
        let (mut left, mut gone) = (len, 0);
        self.gone = self.gone.wrapping_add(len.min(self.len));
        for frag in &mut self.frags {
            if left < frag.len() {
                // The cast fits: the value is less than a range's length.
                (frag.start, frag.len) = (frag.start + left as u32, frag.len - left as u32);
                self.len -= left;
                break;
            }
            left -= frag.len();
            self.len -= frag.len();
            gone += 1;
        }
        self.frags.drain(..gone);
    }

    /// Drops all bytes after the first `len`.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            let Some(last) = self.frags.pop() else { return };
            self.len -= last.len();
            if self.len < len {
                self.push(last.first(len - self.len));
                return;
            }
        }
    }

    /// Removes all ranges and returns them, for an owner that wants its buffers back ([`Frag::into_inner`]). Those that
    /// are not taken from the iterator are released.
    ///
    /// A packet without payload keeps no buffer: it was released when the packet was loaded.
    ///
    /// ```
    /// use segue::packet::{Frag, Payload};
    ///
    /// let mut payload = Payload::default();
    /// payload.push(Frag::new(vec![0; 100], 40..100));
    /// let buffers: Vec<Vec<u8>> = payload.drain().map(Frag::into_inner).collect();
    /// assert_eq!((buffers[0].len(), payload.len()), (100, 0));
    /// ```
    pub fn drain(&mut self) -> impl Iterator<Item = Frag<B>> + '_ {
        (self.len, self.gone) = (0, 0);
        self.frags.drain(..)
    }

    /// Removes all ranges, which releases their buffers.
    #[inline]
    pub fn clear(&mut self) {
        self.frags.clear();
        (self.len, self.gone) = (0, 0);
    }

    /// Returns the first range with bytes after `start`, and its offset in the payload. Found in time logarithmic in
    /// the number of ranges. Payloads of 4 GiB and more are not addressed.
    fn find(&self, start: usize) -> (&[Frag<B>], usize) {
        let end = |frag: &Frag<B>| frag.end.wrapping_sub(self.gone);
        let frags = self.frags.get(self.frags.partition_point(|frag| end(frag) <= start)..).unwrap_or(&[]);
        (frags, frags.first().map_or(0, |frag| end(frag) - frag.len()))
    }

    /// Returns the buffers that hold the bytes of `range`, clamped to the payload, each with the range of them in it.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (&B, Range<usize>)> {
        let (frags, mut at) = self.find(range.start);
        frags.iter().map_while(move |frag| {
            let (from, to) = (range.start.max(at), range.end.min(at + frag.len()));
            let place = frag.range().start;
            let part = (from < to).then(|| (&frag.buf, place + from - at..place + to - at));
            at += frag.len();
            part
        })
    }

    /// Copies the bytes of `range`, clamped to the payload, to `out` and returns how many there were. Of a range that
    /// does not fit, only whole pieces are copied.
    pub fn copy_to(&self, range: Range<usize>, out: &mut [u8]) -> usize {
        let mut at = 0;
        for (buf, part) in self.parts(range) {
            let Some(place) = out.get_mut(at..at + part.len()) else { break };
            buffer::read_all(buf, part.start, place);
            at += part.len();
        }
        at
    }

    /// Returns the sum of the bytes of `range`, clamped to the payload.
    pub fn sum(&self, range: Range<usize>) -> Sum {
        let mut sum = Sum::ZERO;
        for (buf, part) in self.parts(range) {
            sum.append(buffer::sum(buf, part.clone()), part.len());
        }
        sum
    }
}

impl<B: AsRef<[u8]>> Payload<B> {
    /// Returns the bytes of `range`, clamped to the payload, in contiguous pieces. The start is found in time
    /// logarithmic in the number of ranges. Payloads of 4 GiB and more are not addressed.
    pub fn pieces(&self, range: Range<usize>) -> Pieces<'_, B> {
        let (frags, at) = self.find(range.start);
        let skip = range.start.saturating_sub(at);
        let skip = if frags.is_empty() { 0 } else { skip };
        Pieces { frags, skip, left: range.end.saturating_sub(range.start) }
    }
}

/// An iterator over the contiguous pieces of a payload range.
#[derive(Debug)]
pub struct Pieces<'a, B> {
    frags: &'a [Frag<B>],
    skip: usize,
    left: usize,
}

impl<'a, B: AsRef<[u8]>> Iterator for Pieces<'a, B> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let frags: &'a [Frag<B>] = self.frags;
        let (first, rest) = frags.split_first()?;
        let bytes = first.bytes().get(self.skip..)?;
        let len = bytes.len().min(self.left);
        if len == 0 {
            return None;
        }
        self.left -= len;
        if len == bytes.len() {
            (self.frags, self.skip) = (rest, 0);
        } else {
            self.skip += len;
        }
        Some(&bytes[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_range_begin_at_an_offset() {
        let frag = Frag::new(b"xxabcyy".as_slice(), 2..5);
        for (offset, expected) in [(0, "abc"), (2, "c"), (3, ""), (4, ""), (9, "")] {
            let pieces: Vec<&[u8]> = frag.pieces_from(offset).collect();
            assert_eq!(pieces.concat(), expected.as_bytes(), "{offset}");
            assert_eq!(pieces.len(), usize::from(offset < 3), "{offset}");
        }
    }

    fn payload() -> Payload<&'static [u8]> {
        let mut payload = Payload::default();
        payload.push(Frag::new(b"xxabc".as_slice(), 2..9));
        payload.push(Frag::new(b"".as_slice(), 0..0));
        payload.push(Frag::all(b"defgh".as_slice()).skip(1).first(3));
        payload
    }

    #[test]
    fn every_range_yields_its_bytes() {
        let (payload, whole) = (payload(), b"abcefg");
        assert_eq!((payload.len(), payload.frags().len()), (6, 2));
        for start in 0..8 {
            for end in start..9 {
                let expected = whole.get(start.min(6)..end.min(6)).unwrap();
                let pieces: Vec<u8> = payload.pieces(start..end).flatten().copied().collect();
                assert_eq!(pieces, expected, "{start}..{end}");
                let mut out = [0; 16];
                assert_eq!(payload.copy_to(start..end, &mut out), expected.len());
                assert_eq!(&out[..expected.len()], expected);
            }
        }
    }

    #[test]
    fn truncation_keeps_exactly_the_first_bytes() {
        for len in 0..8 {
            let mut payload = payload();
            payload.truncate(len);
            let bytes: Vec<u8> = payload.pieces(0..99).flatten().copied().collect();
            assert_eq!(bytes, b"abcefg"[..len.min(6)]);
            assert_eq!(payload.len(), len.min(6));
        }
    }

    #[test]
    fn advancing_gives_up_exactly_the_first_bytes() {
        for len in 0..8 {
            let mut payload = payload();
            payload.advance(len);
            let bytes: Vec<u8> = payload.pieces(0..99).flatten().copied().collect();
            assert_eq!(bytes, b"abcefg"[len.min(6)..]);
            assert_eq!(payload.len(), bytes.len());
            assert!(payload.frags().iter().all(|frag| !frag.is_empty()));
        }
    }

    #[test]
    fn advanced_and_appended_ranges_are_read_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        let (mut payload, mut model) = (Payload::default(), Vec::new());
        for round in 0..300_usize {
            let at = round * 31 % 200;
            let part = Frag::new(&bytes[..], at..at + round % 7);
            model.extend_from_slice(part.bytes());
            match round % 5 {
                0 | 1 => payload.push(part),
                2 => {
                    let mut other = Payload::default();
                    other.push(Frag::new(&bytes[..], 0..9));
                    other.push(part);
                    other.advance(9);
                    payload.append(&mut other);
                    assert!(other.is_empty() && other.pieces(0..9).next().is_none());
                }
                3 => {
                    payload.push(part);
                    let gone = (round % 11).min(model.len());
                    payload.advance(gone);
                    model.drain(..gone);
                }
                _ => {
                    payload.push(part);
                    model.truncate(model.len().saturating_sub(2));
                    payload.truncate(model.len());
                }
            }
            for start in 0..=model.len() + 1 {
                let found: Vec<u8> = payload.pieces(start..start + 5).flatten().copied().collect();
                let expected = model.get(start.min(model.len())..(start + 5).min(model.len())).unwrap_or(&[]);
                assert_eq!(found, expected, "round {round}, from {start}");
            }
        }
    }

    #[test]
    fn ranges_past_the_buffer_are_cut() {
        assert!(Frag::new(b"abc".as_slice(), 5..9).is_empty());
        assert_eq!(Frag::new(b"abc".as_slice(), 1..99).bytes(), b"bc");
        assert_eq!(Frag::all(b"abc".as_slice()).skip(9).len(), 0);
    }
}
