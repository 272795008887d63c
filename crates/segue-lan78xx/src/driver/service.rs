//! Work of the driver besides moving packets: completions, interrupts, timers.

use std::io;

use segue::time::Nanos;

use crate::regs::{self, endpoint};
use crate::usb::{self, Done, Request, Transfer, Transport};

use super::Error;
use super::state::{Driver, INTERRUPT_LEN};
use super::timing::{
    CLEAR_RETRY, HALT_PATIENCE, LINK_FAILURES, LINK_RETRY, MOST_CLEARS, REAP_TIME, SERVICE_TIME, TRANSFER_RETRY,
    TX_PATIENCE,
};

impl<T: Transport> Driver<T> {
    /// Services the device and then does `work`, unless the transport has failed. After [`SERVICE_TIME`] a further
    /// request fails, for which the device is given up, and further transfers wait for the next call: a slow network
    /// may take as long for them.
    pub(super) fn call<R>(&mut self, work: impl FnOnce(&mut Driver<T>) -> R) -> io::Result<R> {
        self.chip.until = Some(self.chip.usb.now().after(SERVICE_TIME));
        self.service();
        let done = match self.chip.usb.failure() {
            Some(error) => Err(error),
            None => Ok(work(self)),
        };
        self.chip.until = None;
        done
    }

    /// Processes completions, interrupts and timers.
    fn service(&mut self) {
        self.reap_first();
        self.follow_host();
        // Without a transfer under way no completion reports that the device is gone.
        if self.chip.usb.is_gone() {
            self.lose();
        }
        if self.gone {
            return self.find_again();
        }
        let now = self.chip.usb.now();
        if self.is_up {
            self.suspended_until.take_if(|until| *until <= now);
            if self.link_work.take_if(|at| *at <= now).is_some() {
                let done = self.follow_link();
                self.link_failures = if done.is_err() { self.link_failures + 1 } else { 0 };
                if done.is_err() {
                    // The chip reports each event only once.
                    self.link_work = Some(self.chip.usb.now().after(LINK_RETRY));
                }
                self.note(done);
                if self.link_failures >= LINK_FAILURES {
                    self.lose();
                }
            }
            if self.tx.stuck_since(now).is_some_and(|since| since.after(TX_PATIENCE) <= now) {
                self.numbers.tx_timeouts += 1;
                if self.tx.time_out(now) {
                    self.lose();
                } else {
                    self.restart_sending();
                }
            }
            self.recover();
            if self.halted_since().is_some_and(|since| since.after(HALT_PATIENCE) <= now) {
                self.lose();
            }
            // The counters can wait where transfers have taken the time of this call.
            if self.statistics.due().is_some_and(|at| at <= now) && !self.chip.is_late() {
                let done = self.read_statistics();
                if done.is_err() {
                    self.statistics.start(now);
                }
                self.note(done);
            }
            self.listen();
            self.fill();
            self.kick();
        }
    }

    /// Restarts sending that makes no progress: cancels its transfers, and restarts the chip's transmit side. The
    /// endpoint is cleared like a halted one once the transfers are back.
    fn restart_sending(&mut self) {
        self.tx.halted = true;
        self.chip.cancel(endpoint::BULK_OUT);
        self.reap_first();
        if !self.gone {
            let done = self.restart_transmitter();
            self.note(done);
        }
    }

    /// Restarts halted endpoints once all of their transfers are back.
    fn recover(&mut self) {
        for (is_halted, is_home, address) in [
            (self.rx.halted, self.rx.is_home(), endpoint::BULK_IN),
            (self.tx.halted, self.tx.is_home(), endpoint::BULK_OUT),
        ] {
            if is_halted && !is_home {
                self.chip.cancel(address);
                self.reap_first();
            }
        }
        let now = self.chip.usb.now();
        if self.next_clear.is_some_and(|at| at > now) {
            return;
        }
        self.next_clear = None;
        if self.rx.halted && self.rx.is_home() {
            self.rx.halted = !self.clear(endpoint::BULK_IN, self.rx.clears);
            self.rx.clears += 1;
        }
        if self.tx.halted && self.tx.is_home() {
            self.tx.halted = !self.clear(endpoint::BULK_OUT, self.tx.clears);
            self.tx.clears += 1;
        }
        if self.interrupt_halted {
            self.interrupt_halted = !self.clear(endpoint::INTERRUPT, self.interrupt_clears);
            self.interrupt_clears += 1;
        }
    }

    /// Clears the halt of an endpoint, and returns whether that has succeeded; `clears` is the number of attempts since
    /// one of its transfers has succeeded. The next attempt is made after a pause, unless this one is the first and
    /// succeeds. After many of them the device is given up.
    fn clear(&mut self, address: u8, clears: u32) -> bool {
        if clears >= MOST_CLEARS {
            self.lose();
        }
        if self.gone {
            return false;
        }
        let cleared = self.chip.clear_halt(address);
        let is_cleared = cleared.is_ok();
        self.numbers.halts += u64::from(is_cleared);
        if !is_cleared || clears > 0 {
            self.next_clear = Some(self.chip.usb.now().after(CLEAR_RETRY));
        }
        self.note(cleared);
        is_cleared
    }

    /// Returns the time since which an endpoint has been halted.
    fn halted_since(&mut self) -> Option<Nanos> {
        let is_halted = self.rx.halted || self.tx.halted || self.interrupt_halted;
        if !is_halted || self.gone {
            self.halted_since = None;
        } else if self.halted_since.is_none() {
            self.halted_since = Some(self.chip.usb.now());
        }
        self.halted_since
    }

    /// Forgets the halts of endpoints whose transfers are given up.
    pub(super) fn forget_halts(&mut self) {
        (self.interrupt_halted, self.interrupt_clears) = (false, 0);
        (self.halted_since, self.next_clear) = (None, None);
        (self.rx.clears, self.tx.clears) = (0, 0);
    }

    /// Counts a failed register access. The device is given up if it is gone, and also if it does not answer: each
    /// further request would block everything else for as long again.
    pub(super) fn note(&mut self, done: Result<(), Error>) {
        match done {
            Ok(()) => {}
            Err(Error::Usb(usb::Error::Gone)) => self.lose(),
            Err(error) => {
                self.numbers.control_errors += 1;
                tracing::warn!(id = "adapter", %error, "an access to the adapter failed");
                if error == Error::Usb(usb::Error::Timeout) {
                    self.lose();
                }
            }
        }
    }

    /// Takes completed transfers from the transport before requests are made. What is to be submitted again after
    /// [`REAP_TIME`] of the call waits until they were made, so that requests have the time of the call.
    fn reap_first(&mut self) {
        let until = self.chip.until;
        self.chip.until = until.map(|until| Nanos(until.0.saturating_sub(SERVICE_TIME - REAP_TIME)));
        self.reap();
        self.chip.until = until;
    }

    /// Takes completed transfers from the transport.
    pub(super) fn reap(&mut self) {
        while let Some(transfer) = self.chip.usb.reap() {
            match transfer.request().endpoint {
                endpoint::BULK_IN => self.reap_in(transfer),
                endpoint::BULK_OUT => self.reap_out(transfer),
                _ => self.reap_interrupt(transfer),
            }
        }
    }

    pub(super) fn reap_interrupt(&mut self, transfer: Transfer<Done>) {
        if transfer.result().is_ok() {
            self.interrupt_clears = 0;
        }
        match transfer.result() {
            Ok(endpoint::INTERRUPT_LEN) => {
                let bytes = transfer.received();
                let events = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                // All other events are known by other means, or harmless.
                if events & regs::int::PHY != 0 {
                    self.link_work = Some(self.chip.usb.now());
                }
            }
            Ok(_) => {
                self.numbers.bad_interrupts += 1;
                self.miss_event();
            }
            Err(usb::Error::Gone) => self.lose(),
            Err(usb::Error::Cancelled) => {}
            Err(error) => {
                self.interrupt_halted = error == usb::Error::Stall;
                self.suspend_submissions(error);
                self.miss_event();
            }
        }
        let cancelled = transfer.result() == Err(usb::Error::Cancelled);
        self.interrupt = Some(transfer.recycle());
        if !cancelled {
            self.listen();
        }
    }

    /// Has the link's state read soon: an interrupt transfer that failed may have had a change of it, and the chip
    /// reports each event only once.
    fn miss_event(&mut self) {
        self.link_work.get_or_insert(self.chip.usb.now().after(LINK_RETRY));
    }

    /// Submits the transfer for interrupt notifications.
    pub(super) fn listen(&mut self) {
        let may = self.is_up && !self.gone && !self.interrupt_halted && !self.is_suspended();
        if let Some(transfer) = self.interrupt.take_if(|_| may && !self.chip.is_late()) {
            let request = Request { endpoint: endpoint::INTERRUPT, tag: 0, len: INTERRUPT_LEN, zero_packet: false };
            self.chip.usb.submit(transfer.lend(request));
        }
    }

    /// Suspends submissions for a while after an error.
    pub(super) fn suspend_submissions(&mut self, error: usb::Error) {
        self.numbers.no_memory += u64::from(error == usb::Error::Memory);
        self.suspended_until = Some(self.chip.usb.now().after(TRANSFER_RETRY));
    }

    /// Returns whether submissions are suspended.
    pub(super) fn is_suspended(&self) -> bool {
        self.suspended_until.is_some_and(|until| until > self.chip.usb.now())
    }
}
