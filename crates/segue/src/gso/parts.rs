//! Where a train is cut.

use super::cursor::Cursor;

/// One part of a train: a segment, or several that stay together.
pub(super) struct Part {
    /// Number of segments in front of it.
    pub(super) index: usize,
    /// First byte of payload.
    pub(super) start: usize,
    /// Bytes of payload.
    pub(super) len: usize,
    /// Whether it is the last.
    pub(super) last: bool,
}

/// The parts of a train, in order.
pub(super) struct Parts<'a, B> {
    pub(super) cursor: Cursor<'a, B>,
    pub(super) total: usize,
    pub(super) size: usize,
    /// Most bytes of payload in one part; 0 where the port takes no trains.
    pub(super) most: usize,
    /// Most segments of a part that is not the last; at least 1.
    pub(super) segs: usize,
    /// Most pieces of a part, and most bytes of a piece, where that can matter.
    pub(super) pieces: Option<(usize, usize)>,
    pub(super) at: usize,
    pub(super) index: usize,
    pub(super) started: bool,
}

impl<B> Parts<'_, B> {
    /// How many segments of full size come next, where each is a part.
    pub(super) fn whole(&self) -> usize {
        if self.most == 0 && self.pieces.is_none() { (self.total - self.at) / self.size } else { 0 }
    }

    /// Goes on behind `count` of them.
    pub(super) fn skip(&mut self, count: usize) {
        self.at += count * self.size;
        self.index += count;
        self.started |= count > 0;
    }
}

impl<B: AsRef<[u8]>> Parts<'_, B> {
    /// The most bytes and segments of the next part where pieces count.
    #[inline(never)]
    fn reach(&self, (pieces, most_piece): (usize, usize)) -> (usize, usize) {
        let most = self.most.min(self.cursor.reach(pieces.saturating_sub(1), most_piece));
        (most, (most / self.size).max(1))
    }
}

impl<B: AsRef<[u8]>> Iterator for Parts<'_, B> {
    type Item = Part;

    // A part returned through memory is read back before its stores have drained, which costs more than all else here.
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
            self.cursor.take(len, |_| {});
        }
        Some(part)
    }
}
