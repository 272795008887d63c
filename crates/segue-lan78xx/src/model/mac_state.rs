//! The state of the MAC: frames on the wire in both directions, and pauses.

use std::collections::VecDeque;

use segue::time::Nanos;

#[derive(Debug, Default)]
pub(super) struct Mac {
    /// Frames queued at the partner.
    pub(super) incoming: VecDeque<Vec<u8>>,
    /// Time until which the incoming wire is busy.
    pub(super) busy_in: Nanos,
    /// Whether frames waited for the incoming wire, not paused, when the model was last advanced.
    pub(super) waited_in: bool,
    /// Frames to the partner, with their arrival times.
    pub(super) outgoing: VecDeque<(Nanos, Vec<u8>)>,
    /// Number of bytes of the frames to the partner.
    pub(super) outgoing_bytes: usize,
    pub(super) busy_out: Nanos,
    /// Whether frames of the host waited for the outgoing wire, not paused, when the model was last advanced.
    pub(super) waited_out: bool,
    /// Whether the chip has paused the partner.
    pub(super) partner_paused: bool,
    /// Time until which the partner has paused the chip.
    pub(super) paused_until: Nanos,
}

impl Mac {
    pub(super) fn reset(&mut self) {
        self.paused_until = Nanos(0);
        self.partner_paused = false;
    }

    /// Keeps the frames of the previous MAC that have reached the partner.
    pub(super) fn keep_arrived(&mut self, before: Mac) {
        (self.outgoing, self.outgoing_bytes) = (before.outgoing, before.outgoing_bytes);
    }
}
