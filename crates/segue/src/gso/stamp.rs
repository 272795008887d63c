//! The headers of segments, made from the template of a plan.

use super::arena::{Arena, BLOCK, Frames};
use super::check::{complete, word};
use super::cursor::Cursor;
use super::parts::{Part, SegmentRuns};
use super::plan::{Op, PlainTcp, SegmentPlan};
use crate::arch;
use crate::checksum::{Field, Sum};
use crate::packet::Buffer;
use crate::wire::{ipv4, tcp, udp, write_u16, write_u32};

impl SegmentPlan<'_> {
    /// Returns the TCP flags of `part`, if those of the train are `flags`.
    #[inline(always)]
    fn flags_of(&self, flags: u8, part: &Part) -> u8 {
        let mut edge = self.edge_flags();
        if part.last {
            edge &= !(tcp::FIN | tcp::PSH);
        }
        if part.start == 0 {
            edge &= !tcp::CWR;
        }
        flags & !edge
    }

    /// Returns how many of the next segments differ in counting fields only, and a generator of their headers.
    #[inline(always)]
    fn counting<B>(&mut self, parts: &SegmentRuns<'_, B>) -> Option<(usize, Counting<'_>)> {
        // It is known already that more changes; this avoids the division.
        let is_known = self.plain.is_none() && self.fitted == Some(parts.size);
        if is_known || self.head.len() > BLOCK {
            return None;
        }
        let whole = parts.whole();
        if whole == 0 {
            return None;
        }
        self.fit(parts.size);
        let PlainTcp { sum, tcp: at, seq, flags, ipv4 } = self.plain?;
        let (index, start) = (parts.index, parts.at);
        let edge = flags & self.edge_flags();
        if start == 0 && edge & tcp::CWR != 0 {
            return None;
        }
        let has_last = start + whole * parts.size == self.total && edge & (tcp::FIN | tcp::PSH) != 0;
        let count = whole - usize::from(has_last);
        if count == 0 {
            return None;
        }
        let base = sum.map(|base| {
            let mut sum = word(base);
            sum.add_u16(u16::from(flags & !self.edge_flags()));
            sum
        });
        let (seq, step) = (seq.wrapping_add(start as u32), parts.size as u32);
        let ipv4 = ipv4.map(|ipv4| ipv4.map(|(at, id, base)| (at, id.wrapping_add(index as u16), base)));
        let block = self.template.first_chunk()?;
        Some((count, Counting { block, tcp: at, seq, step, base, ipv4 }))
    }

    /// Builds the next segments in one run, as long as they differ in counting fields only. Returns their number.
    pub(super) fn run<B>(&mut self, parts: &mut SegmentRuns<'_, B>, arena: &mut Arena) -> usize {
        if !self.primed {
            return 0;
        }
        let (csum, head_len) = (self.csum(), self.head.len());
        let Some((count, mut heads)) = self.counting(parts) else { return 0 };
        arena.push_run(head_len, (parts.at, parts.size, count), csum, move |head| {
            heads.write(head);
        });
        parts.skip(count);
        count
    }

    /// Builds a run of segments, as [`SegmentPlan::run`] does, in linear form: the payload is read from `cursor`, and
    /// copied and summed in one pass.
    pub(super) fn run_linear<B: Buffer>(
        &mut self,
        parts: &mut SegmentRuns<'_, B>,
        cursor: &mut Cursor<'_, B>,
        frames: &mut Frames,
        room: usize,
    ) -> usize {
        let (csum, head_len, size) = (self.csum(), self.head.len(), parts.size);
        // A block is written to each frame.
        if head_len + size < BLOCK {
            return 0;
        }
        let Some((count, heads)) = self.counting(parts) else { return 0 };
        let is_summed = heads.base.is_some();
        let Some(memory) = frames.push_run(room, head_len + size, count, csum) else { return 0 };
        arch::chosen().work(Fill { heads, head_len, size, cursor, memory, room });
        if is_summed {
            frames.checksummed += (count * size) as u64;
        }
        parts.skip(count);
        count
    }

    /// Turns `head`, a copy of the template, into the headers of `part`, whose payload sums to `payload`.
    #[inline(always)]
    pub(super) fn stamp(&self, head: &mut [u8], part: &Part, payload: Sum) {
        let Some(PlainTcp { sum, tcp: at, seq, flags, ipv4 }) = self.plain else {
            return self.stamp_ops(head, part, payload);
        };
        let (seq, flags) = (seq.wrapping_add(part.start as u32), self.flags_of(flags, part));
        write_u32(head, at + tcp::SEQ, seq);
        head[at + tcp::FLAGS] = flags;
        if let Some(base) = sum {
            let mut sum = word(base);
            sum.add_u32(seq);
            sum.add_u16(u16::from(flags));
            sum.append(payload, part.len);
            write_u16(head, at + tcp::CHECKSUM, Field::complete(sum).value());
        }
        for ipv4 in ipv4 {
            let Some((at, id, base)) = ipv4 else { break };
            stamp_ipv4(head, at, id.wrapping_add(part.index as u16), base);
        }
    }

    /// Performs [`SegmentPlan::stamp`] for trains in which other fields change.
    #[inline(never)]
    fn stamp_ops(&self, head: &mut [u8], part: &Part, payload: Sum) {
        // The sum of transport header and payload, with the pseudo header or, which is the same number, the primed
        // field.
        let mut body = Sum::ZERO;
        let mut varied = Sum::ZERO;
        for op in &self.ops[..self.ops_len] {
            match *op {
                Op::Tcp { at, seq, flags, base, fill } => {
                    let at = usize::from(at);
                    let seq = seq.wrapping_add(part.start as u32);
                    let flags = self.flags_of(flags, part);
                    write_u32(head, at + tcp::SEQ, seq);
                    head[at + tcp::FLAGS] = flags;
                    if self.sums_payload {
                        body = word(base);
                        body.add_u32(seq);
                        body.add_u16(u16::from(flags));
                        body.append(payload, part.len);
                        if fill {
                            write_u16(head, at + tcp::CHECKSUM, complete(body, false).value());
                        }
                    }
                }
                Op::Udp { at, base, fill } => {
                    if self.sums_payload {
                        body = word(base);
                        body.append(payload, part.len);
                        if fill {
                            write_u16(head, usize::from(at) + udp::CHECKSUM, complete(body, true).value());
                        }
                    }
                }
                Op::Ipv4 { at, id, base } => {
                    stamp_ipv4(head, usize::from(at), id.wrapping_add(part.index as u16), base);
                }
                Op::GreSeq { at, seq } => {
                    let seq = seq.wrapping_add(part.index as u32);
                    write_u32(head, usize::from(at), seq);
                    varied.add_u32(seq);
                }
                Op::Reveal => varied.add_u16(body.fold()),
                Op::Checksum { at, base, udp } => {
                    varied.add_u16(base);
                    write_u16(head, usize::from(at), complete(varied, udp).value());
                    varied = Sum::ZERO;
                }
            }
        }
    }
}

/// A generator of the headers of segments that differ in counting fields only.
struct Counting<'a> {
    /// The headers before the counting fields are set.
    block: &'a [u8; BLOCK],
    /// Offset of the TCP header.
    tcp: usize,
    /// Sequence number of the next segment.
    seq: u32,
    /// Difference of the sequence numbers of two segments.
    step: u32,
    /// Constant part of the checksum, unless the port completes it.
    base: Option<Sum>,
    /// Counting identifications of IPv4, the innermost first: offset of the header, the next identification, and the
    /// sum of all other words. Nothing follows the first `None`.
    ipv4: [Option<(usize, u16, u16)>; 2],
}

impl Counting<'_> {
    /// Writes the next headers except the TCP checksum, and returns the part of its sum that is not payload, if the
    /// checksum is owed.
    #[inline(always)]
    fn write(&mut self, head: &mut [u8; BLOCK]) -> Option<Sum> {
        *head = *self.block;
        write_u32(head, self.tcp + tcp::SEQ, self.seq);
        for ipv4 in &mut self.ipv4 {
            let Some((at, id, base)) = ipv4 else { break };
            stamp_ipv4(head, *at, *id, *base);
            *id = id.wrapping_add(1);
        }
        let mut sum = self.base;
        if let Some(sum) = &mut sum {
            sum.add_u32(self.seq);
        }
        self.seq = self.seq.wrapping_add(self.step);
        sum
    }

    /// Writes the next headers, lets `fill` write and sum the payload after them, and completes the checksum.
    #[inline(always)]
    fn complete(&mut self, frame: &mut [u8], fill: impl FnOnce(&mut [u8], Option<&mut Sum>)) {
        let Some(head) = frame.first_chunk_mut() else { return };
        let mut sum = self.write(head);
        fill(frame, sum.as_mut());
        if let Some(sum) = sum {
            write_u16(frame, self.tcp + tcp::CHECKSUM, Field::complete(sum).value());
        }
    }
}

/// The task of writing consecutive whole frames: headers, payload and completed checksums.
struct Fill<'a, 'c, B> {
    heads: Counting<'a>,
    head_len: usize,
    /// Number of payload bytes of each frame.
    size: usize,
    cursor: &'a mut Cursor<'c, B>,
    memory: &'a mut [u8],
    /// Length of each frame's headroom, bytes.
    room: usize,
}

impl<B: Buffer> arch::Work for Fill<'_, '_, B> {
    #[inline(always)]
    fn run(self, copier: impl arch::Copier) {
        let Fill { mut heads, head_len, size, cursor, memory, room } = self;
        let mut places = memory.chunks_exact_mut(room + head_len + size).map(|place| &mut place[room..]);
        loop {
            // Most segments lie in one piece.
            let mut taken = 0;
            for (piece, frame) in cursor.rest().chunks_exact(size).zip(places.by_ref()) {
                heads.complete(frame, |frame, sum| match sum {
                    Some(sum) => sum.copy_by(copier, &mut frame[head_len..], piece),
                    None => frame[head_len..].copy_from_slice(piece),
                });
                taken += size;
            }
            cursor.skip(taken);
            let Some(frame) = places.next() else { return };
            heads.complete(frame, |frame, sum| cursor.copy(&mut frame[head_len..], sum));
        }
    }
}

/// Writes the identification and the checksum of the IPv4 header at `at`, whose other words sum to `base`.
#[inline(always)]
fn stamp_ipv4(head: &mut [u8], at: usize, id: u16, base: u16) {
    write_u16(head, at + ipv4::ID, id);
    let mut sum = word(base);
    sum.add_u16(id);
    write_u16(head, at + ipv4::CHECKSUM, Field::complete(sum).value());
}
