//! Transfers in and out, interrupts, and the passing of time.

use segue::time::Nanos;

use crate::regs::{self, endpoint};
use crate::usb::{Error, Speed};

use super::state::Model;
use super::{Completion, Fault, Outcome, TransferRequest};

impl Model {
    /// Takes a transfer for an endpoint; `id` is any number that no pending transfer has.
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

    /// Takes a transfer back; `false` where it is not pending. It is not completed then.
    pub fn cancel(&mut self, id: u32) -> bool {
        let before = self.pending();
        self.bulk_in.cancel(id);
        self.bulk_out.pending.retain(|(pending, _, _)| *pending != id);
        self.interrupts.retain(|pending| *pending != id);
        self.pending() < before
    }

    /// Takes all transfers back, and those that are done and were not fetched, whose frames are lost.
    pub fn cancel_all(&mut self) {
        self.bulk_in.pending.clear();
        self.bulk_out.pending.clear();
        self.interrupts.clear();
        while let Some(done) = self.completions.pop_front() {
            self.lose(&done);
        }
    }

    /// Nobody takes what was done any more: its frames are lost.
    pub fn lose(&mut self, done: &Completion) {
        self.notes.unclaimed += done.frames;
    }

    /// Transfers that wait.
    pub fn pending(&self) -> usize {
        self.bulk_in.pending.len() + self.bulk_out.pending.len() + self.interrupts.len()
    }

    /// A transfer that is done.
    pub fn done(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    pub(super) fn complete(&mut self, id: u32, result: Result<Outcome, Error>) {
        self.completions.push_back(Completion { id, result, frames: 0 });
    }

    /// Moves everything along. Time never goes back.
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
        // What left the FIFO may have ended a pause.
        self.pump_wire();
        self.pump_in();
        self.pump_interrupt();
        self.stall_halted();
    }

    /// When [`Model::advance`] has something to do even if nothing comes.
    pub fn deadline(&self) -> Option<Nanos> {
        if self.gone {
            return None;
        }
        let interrupt = (!self.interrupts.is_empty() && self.news() != 0).then_some(self.next_interrupt);
        [self.phy.deadline(), self.in_deadline(), self.wire_deadline(), interrupt].into_iter().flatten().min()
    }

    /// Sets bits of the interrupt status.
    pub(super) fn raise(&mut self, bits: u32) {
        self.words[usize::from(regs::INT_STS) / 4] |= bits;
    }

    /// Interrupts that are enabled and were not reported.
    fn news(&self) -> u32 {
        self.register(regs::INT_STS) & self.register(regs::INT_EP_CTL) & regs::int::EVENTS & !self.reported
    }

    /// Reports on the rising edge only, and at the endpoint's interval at most: nothing paces a host over a network.
    fn pump_interrupt(&mut self) {
        if self.news() == 0 || self.now < self.next_interrupt || self.interrupt_halted {
            return;
        }
        let Some(id) = self.interrupts.pop_front() else { return };
        let status = self.register(regs::INT_STS);
        self.reported |= self.news();
        let interval = if self.config.speed == Speed::Super { 4_000_000 } else { 1_000_000 };
        self.next_interrupt = self.now.after(interval);
        self.notes.interrupts += 1;
        let mut packet = status.to_le_bytes().to_vec();
        if let Some(Fault::InterruptLength(len)) = self.take_fault(|fault| matches!(fault, Fault::InterruptLength(_))) {
            packet.resize(len.min(16), 0);
        }
        self.complete(id, Ok(Outcome::Received(packet)));
    }

    /// Takes the device off the bus: everything pending ends, and nothing is answered any more.
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

    /// Puts it in again, fresh from power-on; the faults and the cable stay. One that is in is unplugged before.
    pub fn replug(&mut self) {
        if !self.gone {
            self.unplug();
        }
        let fresh = Model::new(self.config);
        let before = std::mem::replace(self, fresh);
        (self.lies, self.faults, self.now, self.notes) = (before.lies, before.faults, before.now, before.notes);
        self.completions = before.completions;
        self.mac.keep_arrived(before.mac);
        self.phy.set_partner(before.config.partner, self.now);
    }

    /// Whether it is off the bus.
    pub fn is_gone(&self) -> bool {
        self.gone
    }
}
