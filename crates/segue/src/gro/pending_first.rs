//! First segments that no other segment has followed yet.
//!
//! Most of them leave alone. They wait as unparsed frames; a box is filled only when they leave, then a recently used
//! one, or when another segment follows.

use alloc::boxed::Box;

use super::form::{FormId, Forms};
use crate::packet::{Csum, Frag, Frame, HEAD_BLOCK, Packet, Pool, Start, Tunnels};
use crate::time::Nanos;

/// The frame of a first segment without a following one.
#[derive(Debug)]
pub(super) struct PendingFirst<B> {
    /// Bytes of the whole frame; `None` after it was moved into a box.
    pub(super) bytes: Option<Frag<B>>,
    pub(super) since: Nanos,
    pub(super) seq: u32,
    pub(super) form: FormId,
    /// Whether the port verified its checksums.
    pub(super) verified: bool,
}

impl<B: AsRef<[u8]>> PendingFirst<B> {
    /// Moves the frame into a box, once. Also returns whether it has its form; that is false only if its buffer has
    /// changed since it was pushed.
    #[inline(always)]
    pub(super) fn load(&mut self, forms: &Forms, pool: &mut Pool<B>) -> Option<(Box<Packet<B>>, bool)> {
        let bytes = self.bytes.take()?;
        let mut packet = pool.take_used();
        let (form, csum) = (self.form, self.csum());
        if let Some(form) = forms.get(form)
            && bytes.len() > form.len
        {
            let short;
            let front = match bytes.bytes().first_chunk() {
                Some(front) => front,
                None => {
                    short = padded(bytes.bytes());
                    &short
                }
            };
            packet.load_known(front, form.len, bytes.len(), &form.layout, csum);
            packet.payload.push(bytes.skip(form.len));
            return Some((packet, true));
        }
        packet.load(bytes, self.start(), &Tunnels::NONE);
        Some((packet, false))
    }

    /// Returns the sequence number after the segment; `None` if its buffer has changed since it was pushed.
    #[inline(always)]
    pub(super) fn next_seq(&self, forms: &Forms) -> Option<u32> {
        Some(self.seq.wrapping_add(self.payload_len(forms)? as u32))
    }

    /// Returns the length of the segment's payload in bytes.
    #[inline(always)]
    pub(super) fn payload_len(&self, forms: &Forms) -> Option<usize> {
        let len = self.bytes.as_ref()?.bytes().len().checked_sub(forms.get(self.form)?.len)?;
        (len > 0).then_some(len)
    }

    /// Returns the frame in the pushed form; `None` after it was moved into a box.
    #[inline(always)]
    pub(super) fn into_frame(self) -> Option<Frame<B>> {
        let (start, csum) = (self.start(), self.csum());
        Some(Frame { bytes: self.bytes?, start, csum })
    }

    #[inline(always)]
    pub(super) fn start(&self) -> Start {
        if self.form.link() == 0 { Start::Ip } else { Start::Ethernet }
    }

    #[inline(always)]
    fn csum(&self) -> Csum {
        if self.verified { Csum::Verified } else { Csum::Unknown }
    }
}

/// Returns the bytes of a frame shorter than a block, padded with zeros.
#[inline]
pub(super) fn padded(bytes: &[u8]) -> [u8; HEAD_BLOCK] {
    const HALF: usize = HEAD_BLOCK / 2;
    let mut front = [0; HEAD_BLOCK];
    match (bytes.first_chunk::<HALF>(), bytes.last_chunk::<HALF>()) {
        // Copies of constant length, which overlap.
        (Some(first), Some(last)) if bytes.len() <= HEAD_BLOCK => {
            front[..HALF].copy_from_slice(first);
            front[bytes.len() - HALF..][..HALF].copy_from_slice(last);
        }
        _ => front.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from),
    }
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_frame_is_padded_with_zeros_to_a_block() {
        let bytes: Vec<u8> = (1..=200).collect();
        for len in 0..=bytes.len() {
            let front = padded(&bytes[..len]);
            let used = len.min(HEAD_BLOCK);
            assert_eq!(front[..used], bytes[..used], "{len}");
            assert!(front[used..].iter().all(|byte| *byte == 0), "{len}");
        }
    }
}
