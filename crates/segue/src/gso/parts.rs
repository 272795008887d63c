//! The parts into which a train is split.

use super::cursor::Cursor;
use crate::packet::Buffer;

/// A part of a train: one segment, or several that stay together.
pub(super) struct Part {
    /// Number of segments before the part.
    pub(super) index: usize,
    /// Offset of the part's first byte of payload.
    pub(super) start: usize,
    /// Length of the part's payload, in bytes.
    pub(super) len: usize,
    /// Whether the part is the last of its train.
    pub(super) last: bool,
}

/// An iterator over the parts of a train, in order.
pub(super) struct SegmentRuns<'a, B> {
    pub(super) cursor: Cursor<'a, B>,
    pub(super) total: usize,
    pub(super) size: usize,
    /// Largest payload of a part, in bytes; 0 if the port takes no trains.
    pub(super) most: usize,
    /// Largest number of segments of a part that is not the last; at least 1.
    pub(super) segs: usize,
    /// Largest number of pieces of a part, and of bytes of a piece, if these limits can matter.
    pub(super) pieces: Option<(usize, usize)>,
    pub(super) at: usize,
    pub(super) index: usize,
    pub(super) started: bool,
}

impl<B> SegmentRuns<'_, B> {
    /// Returns the number of full segments that follow next, if each is a part.
    pub(super) fn whole(&self) -> usize {
        if self.most == 0 && self.pieces.is_none() { (self.total - self.at) / self.size } else { 0 }
    }

    /// Skips `count` full segments.
    pub(super) fn skip(&mut self, count: usize) {
        self.at += count * self.size;
        self.index += count;
        self.started |= count > 0;
    }
}

impl<B: Buffer> SegmentRuns<'_, B> {
    /// Returns the largest number of bytes and segments of the next part if the number of pieces is limited.
    #[inline(never)]
    fn reach(&self, (pieces, most_piece): (usize, usize)) -> (usize, usize) {
        let most = self.most.min(self.cursor.reach(pieces.saturating_sub(1), most_piece));
        (most, (most / self.size).max(1))
    }
}

impl<B: Buffer> Iterator for SegmentRuns<'_, B> {
    type Item = Part;

    // Inlined: a part returned through memory is read back before its stores have drained, which costs more than
    // everything else here.
    #[inline(always)]
    fn next(&mut self) -> Option<Part> {
        let left = self.total - self.at;
        if left == 0 && self.started {
            return None;
        }
        self.started = true;
        let (most, segs) = match self.pieces {
            None => (self.most, self.segs),
            Some(pieces) => self.reach(pieces),
        };
        let len = if left <= most { left } else { (segs * self.size).min(left) };
        let part = Part { index: self.index, start: self.at, len, last: len == left };
        self.at += len;
        self.index += segs;
        if self.pieces.is_some() {
            self.cursor.skip(len);
        }
        Some(part)
    }
}
