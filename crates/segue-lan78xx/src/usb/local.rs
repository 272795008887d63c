//! The model, in this process, as a [`Transport`].

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use segue::time::Nanos;
use segue_port::Extra;

use crate::model::{Completion, Model, Outcome, TransferRequest};
use crate::regs::VENDOR;
use crate::usb::usbip::serve::{Lost, Wire};
use crate::usb::{Done, Error, Lent, Setup, Speed, Transfer, Transport};

/// Clock of a local device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The system's monotonic clock.
    System,
    /// A clock that only [`Transport::sleep`] advances.
    Still(Nanos),
}

/// The model as a device in this process, with its cable.
#[derive(Debug)]
pub struct Local {
    /// The model of the device.
    pub model: Model,
    /// The cable of the model. Without one, frames are passed by [`Model::receive`] and [`Model::transmit`], or see
    /// [`Local::alone`].
    pub wire: Option<Wire>,
    /// Frames sent by a device without a cable, if they are to be dropped.
    uncabled: Option<u64>,
    /// Error of a failed cable.
    failure: Option<io::Error>,
    clock: Clock,
    next: u32,
    waiting: BTreeMap<u32, Transfer<Lent>>,
    done: VecDeque<Transfer<Done>>,
    /// Whether the model has new input to process.
    fresh: bool,
}

impl Local {
    /// Creates a device around a model.
    pub fn new(model: Model, wire: Option<Wire>, clock: Clock) -> Local {
        Local {
            model,
            wire,
            uncabled: None,
            failure: None,
            clock,
            next: 0,
            waiting: BTreeMap::new(),
            done: VecDeque::new(),
            fresh: false,
        }
    }

    /// Creates a device without a cable: the frames that it sends are lost.
    pub fn alone(model: Model, clock: Clock) -> Local {
        Local { uncabled: Some(0), ..Local::new(model, None, clock) }
    }

    fn collect(&mut self) {
        self.fresh = false;
        self.model.advance(self.now());
        if let Err(error) = self.carry() {
            self.failure.get_or_insert(error);
        }
        while let Some(Completion { id, result, .. }) = self.model.done() {
            let Some(mut transfer) = self.waiting.remove(&id) else { continue };
            let result = result.map(|outcome| match outcome {
                Outcome::Received(bytes) => {
                    let room = transfer.incoming();
                    let len = bytes.len().min(room.len());
                    room[..len].copy_from_slice(&bytes[..len]);
                    bytes.len()
                }
                Outcome::Sent(len) => len,
            });
            self.done.push_back(transfer.complete(result));
        }
    }
}

impl Local {
    /// Moves frames between the model and its cable.
    fn carry(&mut self) -> io::Result<()> {
        let now = self.now();
        if let Some(lost) = &mut self.uncabled {
            while self.model.transmit().is_some() {
                *lost += 1;
            }
        }
        let Some(wire) = self.wire.as_mut().filter(|_| self.failure.is_none()) else { return Ok(()) };
        wire.read(&mut self.model)?;
        self.model.advance(match self.clock {
            Clock::System => segue_port::now(),
            Clock::Still(_) => now,
        });
        while wire.write(&mut self.model)? {}
        Ok(())
    }
}

impl Transport for Local {
    fn identity(&self) -> (u16, u16) {
        (VENDOR, self.model.config().chip.product())
    }

    fn speed(&self) -> Speed {
        self.model.config().speed
    }

    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, Error> {
        self.model.advance(self.now());
        let answer = self.model.control(setup, &[])?;
        let len = answer.len().min(into.len());
        into[..len].copy_from_slice(&answer[..len]);
        Ok(len)
    }

    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), Error> {
        self.model.advance(self.now());
        self.model.control(setup, data).map(drop)
    }

    fn submit(&mut self, transfer: Transfer<Lent>) {
        let request = transfer.request();
        // The transfer of the interrupt endpoint may wait while all other numbers are used.
        while self.waiting.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        let wanted = if request.endpoint & 0x80 != 0 {
            TransferRequest::In(request.len)
        } else {
            TransferRequest::Out(transfer.outgoing().to_vec(), request.zero_packet)
        };
        self.waiting.insert(id, transfer);
        self.model.submit(id, request.endpoint, wanted);
        self.fresh = true;
    }

    fn reap(&mut self) -> Option<Transfer<Done>> {
        if self.done.is_empty() {
            self.collect();
        }
        self.done.pop_front()
    }

    fn cancel(&mut self, endpoint: u8) {
        let is_meant =
            |(id, transfer): (&u32, &Transfer<Lent>)| (transfer.request().endpoint == endpoint).then_some(*id);
        let ids: Vec<u32> = self.waiting.iter().filter_map(is_meant).collect();
        for id in ids {
            if self.model.cancel(id)
                && let Some(transfer) = self.waiting.remove(&id)
            {
                self.done.push_back(transfer.complete(Err(Error::Cancelled)));
            }
        }
    }

    fn clear_halt(&mut self, endpoint: u8) -> Result<(), Error> {
        const CLEAR_FEATURE: u8 = 1;
        let index = u16::from(endpoint);
        self.control_out(Setup { request_type: 2, request: CLEAR_FEATURE, value: 0, index, length: 0 }, &[])
    }

    fn is_gone(&self) -> bool {
        self.model.is_gone()
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    fn now(&self) -> Nanos {
        match self.clock {
            Clock::System => segue_port::now(),
            Clock::Still(now) => now,
        }
    }

    fn sleep(&mut self, nanos: u64) {
        match &mut self.clock {
            Clock::System => std::thread::sleep(Duration::from_nanos(nanos)),
            Clock::Still(now) => *now = now.after(nanos),
        }
        self.model.advance(self.now());
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.wire.as_ref().map(Wire::fd)
    }

    fn deadline(&self) -> Option<Nanos> {
        let done = (self.fresh || !self.done.is_empty()).then_some(Nanos(0));
        done.or_else(|| self.model.deadline())
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        let lost = self.wire.as_ref().map_or(0, |wire| {
            let Lost { queue_full, refused } = wire.lost();
            queue_full + refused + wire.counters().drops.iter().map(|(_, count)| count).sum::<u64>()
        });
        put(Extra::Drop, "cable_lost", lost + self.uncabled.unwrap_or(0));
        let notes = self.model.notes();
        put(Extra::Drop, "partner_lost", notes.partner_lost);
        put(Extra::Drop, "wire_full", notes.wire_full);
        put(Extra::Drop, "unfit", notes.unfit);
        put(Extra::Drop, "flushed", notes.flushed);
        put(Extra::Drop, "unclaimed", notes.unclaimed);
        put(Extra::Drop, "cut_off", notes.cut_off);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Config;
    use crate::regs::endpoint;
    use crate::usb::Request;

    #[test]
    fn the_number_of_a_transfer_that_waits_is_not_used_again() {
        let mut local = Local::alone(Model::new(Config::default()), Clock::Still(Nanos(1)));
        let lend = |local: &mut Local, endpoint| {
            let request = Request { endpoint, tag: 0, len: 64, zero_packet: false };
            local.submit(Transfer::allocate(64).unwrap().lend(request));
        };
        lend(&mut local, endpoint::INTERRUPT);
        local.next = u32::MAX;
        (0..2).for_each(|_| lend(&mut local, endpoint::BULK_IN));
        assert_eq!(local.waiting.keys().copied().collect::<Vec<_>>(), [0, 1, u32::MAX]);
    }
}
