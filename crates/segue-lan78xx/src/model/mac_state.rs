//! Frames on the wire, both ways, and who may send.

use std::collections::VecDeque;

use segue::time::Nanos;

#[derive(Debug, Default)]
pub(super) struct Mac {
    /// With the partner, on their way here.
    pub(super) incoming: VecDeque<Vec<u8>>,
    /// The wire is busy with a frame to here until then.
    pub(super) busy_in: Nanos,
    /// Frames waited for the wire when it was last looked at, and it was not paused.
    pub(super) waited_in: bool,
    /// On their way to the partner, and when they are there.
    pub(super) outgoing: VecDeque<(Nanos, Vec<u8>)>,
    /// Bytes of these frames.
    pub(super) outgoing_bytes: usize,
    pub(super) busy_out: Nanos,
    /// The same for the host's.
    pub(super) waited_out: bool,
    /// The partner was told to be silent.
    pub(super) partner_paused: bool,
    /// It told us to be.
    pub(super) paused_until: Nanos,
}

impl Mac {
    pub(super) fn reset(&mut self) {
        self.paused_until = Nanos(0);
        self.partner_paused = false;
    }

    /// Frames of the MAC before this one that are at the partner already.
    pub(super) fn keep_arrived(&mut self, before: Mac) {
        (self.outgoing, self.outgoing_bytes) = (before.outgoing, before.outgoing_bytes);
    }
}
