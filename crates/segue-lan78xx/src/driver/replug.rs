//! Handling of a device that is lost and plugged in again.

use crate::regs::Chip as Kind;
use crate::usb::{Transfer, Transport};

use super::lookup::LookupResult;
use super::receiver::Receiver;
use super::state::{Driver, INTERRUPT_LEN};
use super::timing::SETUP_TIME;
use super::transmitter::Transmitter;
use super::{Error, LinkState};

/// Interval between searches for a lost device, nanoseconds.
const LOOKUP_INTERVAL: u64 = 1_000_000_000;

impl<T: Transport> Driver<T> {
    /// Marks the device as gone: the link goes down, and transfers in flight are lost.
    pub(super) fn lose(&mut self) {
        if std::mem::replace(&mut self.gone, true) {
            return;
        }
        self.numbers.unplugs += 1;
        self.let_go();
        self.statistics.stop();
        self.tx.lose(&mut self.numbers);
        self.link_failures = 0;
        self.next_lookup = Some(self.chip.usb.now().after(LOOKUP_INTERVAL));
        self.stranger = None;
        self.set_link(LinkState::default());
        tracing::warn!(id = "adapter", "the adapter is gone");
    }

    /// Closes the device, so that the system can open it again.
    pub(super) fn let_go(&mut self) {
        // The descriptor of a device that is gone stays ready for ever.
        if let Some(fd) = self.chip.usb.fd() {
            self.set.remove(fd);
        }
        self.chip.usb.release();
    }

    pub(super) fn find_again(&mut self) {
        let now = self.chip.usb.now();
        if self.next_lookup.is_none_or(|at| at > now) {
            return;
        }
        self.next_lookup = Some(now.after(LOOKUP_INTERVAL));
        let kind = self.chip.kind;
        let found = match self.finder.as_mut().map_or(LookupResult::Unknown, |finder| finder(kind)) {
            LookupResult::Unknown => return,
            LookupResult::Nothing => {
                self.stranger = None;
                return;
            }
            LookupResult::Other(identity) => return self.note_stranger(identity),
            LookupResult::Back(found) if Kind::of(found.identity().0, found.identity().1) != Some(kind) => {
                return self.note_stranger(found.identity());
            }
            LookupResult::Back(found) => found,
        };
        self.stranger = None;
        self.chip.usb = found;
        self.chip.until = Some(self.chip.usb.now().after(SETUP_TIME));
        self.gone = false;
        self.refit_mtu();
        self.statistics.rebase();
        let was_up = std::mem::take(&mut self.is_up);
        // The transfers were lost with the old transport.
        let renewed = self.renew();
        let done = renewed.and_then(|()| self.reset(Some(self.mac)));
        let done = done.and_then(|()| if was_up { self.up() } else { Ok(()) });
        // Some of its transfers may not have been submitted.
        let done = done.and_then(|()| self.chip.in_time());
        match done {
            Ok(()) => {
                self.next_lookup = None;
                tracing::info!(id = "adapter", "the adapter is back");
            }
            Err(error) => {
                tracing::warn!(id = "adapter", %error, "the adapter came back and could not be set up");
                (self.gone, self.is_up) = (true, was_up);
                // Otherwise it could not be opened again.
                self.let_go();
            }
        }
    }

    /// Records that another device is connected to this one's USB port.
    pub(super) fn note_stranger(&mut self, (vendor, product): (u16, u16)) {
        if self.stranger.replace((vendor, product)) != Some((vendor, product)) {
            let (was, came) = (self.chip.kind.name(), format!("{vendor:04x}:{product:04x}"));
            tracing::warn!(id = "adapter", was, came, "another device is in the adapter's place, and is not used");
        }
    }

    pub(super) fn renew(&mut self) -> Result<(), Error> {
        // The old transport's descriptor left the epoll set when it was closed.
        if let Some(fd) = self.chip.usb.fd() {
            self.set
                .add(fd, self.chip.usb.wakes_by_writing())
                .map_err(|_| Error::Setting("epoll refused the transport"))?;
        }
        // Transfers that the old transport never gave back are lost too.
        self.numbers.tx_errors += self.tx.forget();
        self.forget_received();
        self.forget_halts();
        self.rx = Receiver::new(&self.config)?;
        self.tx = Transmitter::new(&self.config)?;
        self.interrupt = Some(Transfer::allocate(INTERRUPT_LEN)?);
        Ok(())
    }
}
