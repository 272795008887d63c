//! First segments that no other segment has followed yet.
//!
//! Most of them leave alone. They wait as unparsed frames; a box is filled only when they leave, then a recently used
//! one, or when another segment follows.

use alloc::boxed::Box;

use super::form::{FormId, Forms};
use crate::packet::{Csum, Frag, HEAD_BLOCK, Packet, Pool, Start, Tunnels};
use crate::time::Nanos;

/// The frame of a first segment without a following one.
#[derive(Debug)]
pub(super) struct PendingFirst<B> {
    /// All bytes of the frame; `None` after it was moved into a box.
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
        let PendingFirst { form, verified, .. } = *self;
        let csum = if verified { Csum::Verified } else { Csum::Unknown };
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
        let start = if form.link() == 0 { Start::Ip } else { Start::Ethernet };
        packet.load(bytes, start, &Tunnels::NONE);
        Some((packet, false))
    }
}

/// Returns the bytes of a frame shorter than a block, padded with zeros.
#[cold]
pub(super) fn padded(bytes: &[u8]) -> [u8; HEAD_BLOCK] {
    let mut front = [0; HEAD_BLOCK];
    front[..bytes.len()].copy_from_slice(bytes);
    front
}
