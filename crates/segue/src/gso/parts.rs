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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Payload;

    /// Returns the parts of a train of `total` bytes for a port that takes `most` bytes in `segs` segments.
    fn runs(
        payload: &Payload<Vec<u8>>,
        (total, size): (usize, usize),
        (most, segs): (usize, usize),
    ) -> SegmentRuns<'_, Vec<u8>> {
        let (cursor, pieces) = (Cursor::new(payload), None);
        SegmentRuns { cursor, total, size, most, segs, pieces, at: 0, index: 0, started: false }
    }

    #[test]
    fn a_train_is_split_into_parts_of_as_many_segments_as_the_port_takes() {
        let payload = Payload::default();
        for (train, port, expected) in [
            ((3000, 1000), (0, 1), &[(0, 0, 1000), (1, 1000, 1000), (2, 2000, 1000)][..]),
            ((2500, 1000), (0, 1), &[(0, 0, 1000), (1, 1000, 1000), (2, 2000, 500)]),
            ((1000, 1000), (0, 1), &[(0, 0, 1000)]),
            ((0, 1000), (0, 1), &[(0, 0, 0)]),
            ((2500, 1000), (2000, 2), &[(0, 0, 2000), (2, 2000, 500)]),
            ((2001, 1000), (2000, 2), &[(0, 0, 2000), (2, 2000, 1)]),
            ((2000, 1000), (2000, 2), &[(0, 0, 2000)]),
            ((4500, 1000), (2500, 2), &[(0, 0, 2000), (2, 2000, 2500)]),
        ] {
            let found: Vec<_> = runs(&payload, train, port)
                .map(|part| {
                    assert_eq!(part.last, part.start + part.len == train.0, "{train:?} {port:?}");
                    (part.index, part.start, part.len)
                })
                .collect();
            assert_eq!(found, expected, "{train:?} {port:?}");
        }
    }

    #[test]
    fn full_segments_are_skipped_where_each_is_a_part() {
        let payload = Payload::default();
        for (train, port, whole) in [
            ((2500, 1000), (0, 1), 2),
            ((2000, 1000), (0, 1), 2),
            ((999, 1000), (0, 1), 0),
            ((2500, 1000), (1500, 1), 0),
        ] {
            assert_eq!(runs(&payload, train, port).whole(), whole, "{train:?} {port:?}");
        }
        let limited = SegmentRuns { pieces: Some((3, 100)), ..runs(&payload, (2500, 1000), (0, 1)) };
        assert_eq!(limited.whole(), 0);
        let next = |total: usize, count: usize| {
            let mut runs = runs(&payload, (total, 1000), (0, 1));
            SegmentRuns::skip(&mut runs, count);
            runs.next().map(|part| (part.index, part.start, part.len, part.last))
        };
        assert_eq!(next(2500, 2), Some((2, 2000, 500, true)));
        assert_eq!(next(2500, 1), Some((1, 1000, 1000, false)));
        assert_eq!(next(2000, 2), None);
        assert_eq!(next(0, 0), Some((0, 0, 0, true)), "a train without payload is one part");
    }
}
