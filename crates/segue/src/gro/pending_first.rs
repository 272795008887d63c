//! First segments that nothing has followed yet.
//!
//! Most of them leave alone. They wait as the frames that they came in, and a box is filled when they leave, which then is one
//! that was just in use, or when something follows.

use alloc::boxed::Box;

use super::form::{FormId, Forms};
use crate::packet::{Csum, Frag, HEAD_BLOCK, Packet, Pool, Start, Tunnels};
use crate::time::Nanos;

/// The frame of a first segment.
#[derive(Debug)]
pub(super) struct PendingFirst<B> {
    /// All of it; `None` when it is gone.
    pub(super) bytes: Option<Frag<B>>,
    pub(super) since: Nanos,
    pub(super) seq: u32,
    pub(super) form: FormId,
    /// Whether its checksums were verified by who brought it.
    pub(super) verified: bool,
}

impl<B: AsRef<[u8]>> PendingFirst<B> {
    /// Puts it into a box, once, and tells whether it has its form, as it has unless its buffer has changed.
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

/// The bytes of a short frame, and zeros.
#[cold]
pub(super) fn padded(bytes: &[u8]) -> [u8; HEAD_BLOCK] {
    let mut front = [0; HEAD_BLOCK];
    front[..bytes.len()].copy_from_slice(bytes);
    front
}
