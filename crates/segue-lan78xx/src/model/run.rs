//! Submission and cancellation of transfers, interrupts, and the passing of time.

use segue::time::Nanos;

use crate::regs::{self, endpoint};
use crate::usb::{Error, Speed};

use super::state::Model;
use super::{Completion, Fault, Outcome, TransferRequest};

impl Model {
    /// Submits a transfer to an endpoint; `id` is any number that no pending transfer has.
    pub fn submit(&mut self, id: u32, address: u8, request: TransferRequest) {
        self.count_down();
        if self.gone {
            return self.complete(id, Err(Error::Gone));
        }
        match (address, request) {
            (endpoint::BULK_IN, TransferRequest::In(len)) => self.bulk_in.pending.push_back((id, len)),
            (endpoint::BULK_OUT, TransferRequest::Out(data, zero)) => self.bulk_out.pending.push_back((id, data, zero)),
            (endpoint::INTERRUPT, TransferRequest::In(_)) => self.interrupts.push_back(id),
            _ => self.complete(id, Err(Error::Protocol)),
        }
    }

    /// Cancels a transfer, which is then not completed; `false` if it is not pending.
    pub fn cancel(&mut self, id: u32) -> bool {
        let before = self.pending();
        self.bulk_in.cancel(id);
        self.bulk_out.pending.retain(|(pending, _, _)| *pending != id);
        self.interrupts.retain(|pending| *pending != id);
        self.pending() < before
    }

    /// Cancels all transfers, and drops the completions that were not fetched; their frames are lost.
    pub fn cancel_all(&mut self) {
        self.bulk_in.pending.clear();
        self.bulk_out.pending.clear();
        self.interrupts.clear();
        while let Some(done) = self.completions.pop_front() {
            self.lose(&done);
        }
    }

    /// Counts the frames of a completion as lost because no host collects it.
    pub fn lose(&mut self, done: &Completion) {
        self.notes.unclaimed += done.frames;
    }

    /// Returns the number of pending USB transfers.
    pub fn pending(&self) -> usize {
        self.bulk_in.pending.len() + self.bulk_out.pending.len() + self.interrupts.len()
    }

    /// Returns the next completed transfer, if there is one.
    pub fn done(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    pub(super) fn complete(&mut self, id: u32, result: Result<Outcome, Error>) {
        self.completions.push_back(Completion { id, result, frames: 0 });
    }

    /// Advances the model to `now`. Time never goes back.
    pub fn advance(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        if self.gone {
            return;
        }
        let line = self.phy.advance(self.now);
        if line && !self.phy_line {
            self.raise(regs::int::PHY);
        }
        self.phy_line = line;
        self.follow_link();
        self.pump_out();
        self.pump_wire();
        self.pump_in();
        // Frames that left the FIFO may have ended a pause.
        self.pump_wire();
        self.pump_in();
        self.pump_interrupt();
        self.stall_halted();
    }

    /// Returns the time at which [`Model::advance`] has work to do even without new input.
    pub fn deadline(&self) -> Option<Nanos> {
        if self.gone {
            return None;
        }
        let interrupt = (!self.interrupts.is_empty() && self.unreported() != 0).then_some(self.next_interrupt);
        [self.phy.deadline(), self.in_deadline(), self.wire_deadline(), interrupt].into_iter().flatten().min()
    }

    /// Sets bits of the interrupt status.
    pub(super) fn raise(&mut self, bits: u32) {
        self.words[usize::from(regs::INT_STS) / 4] |= bits;
    }

    /// Returns the enabled interrupts that were not reported yet.
    fn unreported(&self) -> u32 {
        self.register(regs::INT_STS) & self.register(regs::INT_EP_CTL) & regs::int::EVENTS & !self.reported
    }

    /// Completes an interrupt transfer for new interrupts. Reports only rising edges, and at most one packet in the
    /// endpoint's interval, since nothing else paces a host on the far side of a network.
    fn pump_interrupt(&mut self) {
        if self.unreported() == 0 || self.now < self.next_interrupt || self.interrupt_halted {
            return;
        }
        let Some(id) = self.interrupts.pop_front() else { return };
        let status = self.register(regs::INT_STS);
        self.reported |= self.unreported();
        let interval = if self.config.speed == Speed::Super { 4_000_000 } else { 1_000_000 };
        self.next_interrupt = self.now.after(interval);
        self.notes.interrupts += 1;
        let mut packet = status.to_le_bytes().to_vec();
        if let Some(Fault::InterruptLength(len)) = self.take_fault(|fault| matches!(fault, Fault::InterruptLength(_))) {
            packet.resize(len.min(16), 0);
        }
        self.complete(id, Ok(Outcome::Received(packet)));
    }

    /// Removes the device from the bus: all pending transfers end, and requests are no longer answered.
    pub fn unplug(&mut self) {
        self.gone = true;
        self.notes.flushed += self.bulk_in.flush();
        self.cut_cable();
        let ids: Vec<u32> = (self.bulk_in.pending.drain(..).map(|(id, _)| id))
            .chain(self.bulk_out.pending.drain(..).map(|(id, _, _)| id))
            .chain(self.interrupts.drain(..))
            .collect();
        for id in ids {
            self.complete(id, Err(Error::Gone));
        }
    }

    /// Plugs the device in again, in its power-on state; faults and cable are kept. A device that is plugged in is
    /// unplugged first.
    pub fn replug(&mut self) {
        if !self.gone {
            self.unplug();
        }
        let fresh = Model::new(self.config);
        let before = std::mem::replace(self, fresh);
        (self.defects, self.faults, self.now, self.notes) = (before.defects, before.faults, before.now, before.notes);
        self.completions = before.completions;
        self.mac.keep_arrived(before.mac);
        self.phy.set_partner(before.config.partner, self.now);
    }

    /// Returns whether the device is off the bus.
    pub fn is_gone(&self) -> bool {
        self.gone
    }
}
