//! Application of the host interface's settings to the adapter.

use crate::frame::{MAX_MTU, MIN_MTU, is_awkward_mtu};
use crate::usb::Transport;

use super::address::is_unicast;
use super::chip::Result;
use super::timing::LINK_RETRY;
use super::{AddressSource, Driver, Filter, Host, Interface};

impl<T: Transport> Driver<T> {
    /// Starts following the host's interface with the adapter. An MTU that the chip does not support is replaced by the
    /// nearest supported one, and shown as `refused_mtu`.
    ///
    /// # Errors
    /// The error of epoll if the descriptor cannot be waited for.
    pub fn follow(&mut self, host: Box<dyn Host>) -> std::io::Result<()> {
        self.set.add(host.fd(), false)?;
        self.follower.host = Some(host);
        Ok(())
    }

    /// Applies changes of the host's interface, and repeats failed attempts that are due.
    pub(super) fn follow_host(&mut self) {
        let mut is_new = false;
        if let Some(host) = &mut self.follower.host {
            while let Some(wanted) = host.next_change() {
                self.follower.pending = Some(wanted);
                is_new = true;
            }
        }
        let now = self.chip.usb.now();
        let is_due = is_new || self.follower.again.is_some_and(|at| at <= now);
        let Some(wanted) = self.follower.pending.filter(|_| is_due) else { return };
        // A failed attempt may have been applied in part.
        let done = self.apply_interface(&wanted, self.follower.again.is_some());
        self.follower.again = done.is_err().then(|| now.after(LINK_RETRY));
        self.note(done);
    }

    fn apply_interface(&mut self, wanted: &Interface, all: bool) -> Result<()> {
        let mtu = self.fit_mtu(wanted.mtu);
        if self.gone {
            // The device is set up with these settings when it is back.
            if is_unicast(wanted.mac) && wanted.mac != self.mac {
                (self.mac, self.source) = (wanted.mac, AddressSource::User);
            }
            (self.config.mtu, self.filter.promiscuous, self.is_up) = (mtu, wanted.promiscuous, wanted.up);
            return Ok(());
        }
        if is_unicast(wanted.mac) && (all || wanted.mac != self.mac) {
            self.set_mac(wanted.mac)?;
        }
        if all || mtu != self.config.mtu {
            self.set_mtu(mtu)?;
        }
        if all || wanted.promiscuous != self.filter.promiscuous {
            self.set_filter(Filter { promiscuous: wanted.promiscuous, ..self.filter.clone() })?;
        }
        match wanted.up {
            // Packets sent to an interface that is down are lost, like those of one without carrier.
            false if all && !self.is_up => self.stop(),
            false => self.down(),
            true => self.up(),
        }
    }
}

impl<T: Transport> Driver<T> {
    /// Returns the MTU for the chip for an interface with the MTU `wanted`, which is shown as refused if the two
    /// differ.
    fn fit_mtu(&mut self, wanted: usize) -> usize {
        let mtu = nearest(wanted, self.chip.usb.speed().max_packet());
        let refused = (mtu != wanted).then_some(wanted);
        if refused.is_some() && self.follower.refused_mtu != refused {
            tracing::warn!(id = "adapter", wanted, taken = mtu, "the adapter does not take the MTU of the interface");
        }
        self.follower.refused_mtu = refused;
        mtu
    }

    /// Chooses the MTU again for a bus whose speed may have changed.
    pub(super) fn refit_mtu(&mut self) {
        self.config.mtu = self.fit_mtu(self.follower.refused_mtu.unwrap_or(self.config.mtu));
    }
}

/// Returns the MTU nearest to `mtu` that the chip supports on a bus with packets of `max_packet` bytes.
fn nearest(mtu: usize, max_packet: usize) -> usize {
    let mtu = mtu.clamp(MIN_MTU, MAX_MTU);
    if is_awkward_mtu(mtu, max_packet) { mtu + 1 } else { mtu }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usb::Speed;

    #[test]
    fn every_mtu_has_one_beside_it_that_the_chip_takes() {
        for speed in [Speed::Full, Speed::High, Speed::Super] {
            let packet = speed.max_packet();
            for mtu in 0..12_000 {
                let taken = nearest(mtu, packet);
                assert!((MIN_MTU..=MAX_MTU).contains(&taken) && !is_awkward_mtu(taken, packet), "{mtu}: {taken}");
                let fits = (MIN_MTU..=MAX_MTU).contains(&mtu) && !is_awkward_mtu(mtu, packet);
                assert!(taken == mtu || !fits);
            }
        }
    }
}
