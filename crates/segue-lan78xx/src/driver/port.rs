//! The implementation of [`Port`] by the driver.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use segue::gso::Limits;
use segue_port::{Blocked, Counters, Drop, Extra, OffloadState, Polled, Port, RxBatch, Sent, TxBatch};

use crate::regs::{STATISTICS, stat};
use crate::usb::Transport;

use super::Driver;
use super::timing::{HALT_PATIENCE, TRANSFER_RETRY, TX_PATIENCE};

impl<T: Transport> Port for Driver<T> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        let lso = if self.config.lso.is_some() { OffloadState::On } else { OffloadState::Off };
        let strip = if self.config.strip_tags { OffloadState::On } else { OffloadState::Off };
        vec![("chip_csum", OffloadState::On), ("chip_lso", lso), ("chip_vlan_strip", strip)]
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.set.0.as_fd()
    }

    fn blocked_event(&self) -> Blocked {
        // An epoll set is never writable.
        Blocked::Readable
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        self.counters.rx.calls += 1;
        self.call(|driver| {
            let polled = driver.poll(into, budget);
            driver.note_traffic();
            // Parsing has freed transfers, and others may be complete already.
            driver.fill();
            let more = if polled == Polled::Idle { driver.arm() } else { false };
            if more { Polled::More } else { polled }
        })
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        self.call(|driver| {
            let mut sent = driver.send(batch);
            if sent == Sent::Blocked {
                // Transfers may have completed while the last ones were packed, or have ended with the device.
                driver.reap();
                sent = driver.send(batch);
            }
            if sent == Sent::Blocked {
                driver.counters.blocked += 1;
            }
            driver.note_traffic();
            driver.arm();
            sent
        })
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        for (reason, count) in self.malformed.iter() {
            put(Extra::Drop, segue::reason::Reason::name(reason), count);
        }
        // Frames that the chip received and did not deliver.
        for at in [stat::RX_OVERSIZE, stat::RX_DROPPED] {
            put(Extra::Drop, STATISTICS[at].name, self.statistics.value(at));
        }
        let n = self.numbers;
        for (name, value) in [
            ("chip_polls", n.polls),
            ("rx_transfers", n.rx_transfers),
            ("rx_errors", n.rx_errors),
            ("tx_transfers", n.tx_transfers),
            ("tx_errors", n.tx_errors),
            ("lso", n.lso),
            ("tx_csum", n.tx_csum),
            ("software", n.software),
            ("rx_csum", n.rx_csum),
            ("halts", n.halts),
            ("tx_timeouts", n.tx_timeouts),
            ("no_memory", n.no_memory),
            ("bad_interrupts", n.bad_interrupts),
            ("link_ups", n.link_ups),
            ("unplugs", n.unplugs),
            ("control_errors", n.control_errors),
            ("gone", u64::from(self.gone)),
            ("stranger", self.stranger.map_or(0, |(vendor, product)| u64::from(vendor) << 16 | u64::from(product))),
            ("interface_down", u64::from(self.follower.pending.is_some_and(|wanted| !wanted.up))),
            ("mtu", self.config.mtu as u64),
            ("refused_mtu", self.follower.refused_mtu.unwrap_or(0) as u64),
            ("link_mbit", u64::from(if self.link.up { self.link.mbit } else { 0 })),
        ] {
            put(Extra::Number, name, value);
        }
        for (at, kind) in STATISTICS.iter().enumerate() {
            put(Extra::Number, kind.name, self.statistics.value(at));
        }
        self.chip.usb.extras(put);
    }
}

impl<T: Transport> Driver<T> {
    /// Packs and submits a batch. While the device or its link is down, the packets are dropped, as by an interface
    /// without carrier.
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        if !self.link.up || self.gone || !self.is_up {
            let lost: usize = batch.units().map(|unit| unit.segments()).sum();
            self.counters.drops.add_many(Drop::DeviceDown, lost as u64);
            batch.sent(batch.len());
            return Sent::All;
        }
        let sent = self.pack(batch);
        self.kick();
        sent
    }

    /// Sets the timer for the next deadline; returns whether that has passed already.
    fn arm(&mut self) -> bool {
        let now = self.chip.usb.now();
        let due = if self.gone {
            [self.next_lookup.filter(|_| self.finder.is_some()), self.follower.again].into_iter().flatten().min()
        } else {
            let memory = self.tx.is_starved().then(|| now.after(TRANSFER_RETRY));
            let stuck = self.tx.deadline().map(|since| since.after(TX_PATIENCE));
            let halted = self.halted_since.map(|since| since.after(HALT_PATIENCE));
            // Transfers may wait for the next call, and none be under way that would wake the loop.
            let late = self.chip.is_late().then_some(now);
            // What is done only while the adapter is up would be due for ever while it is down.
            let work = [self.statistics.due(), self.link_work, self.suspended_until, halted, self.next_clear];
            let work = work.into_iter().chain([memory, stuck, late]).map(|at| at.filter(|_| self.is_up));
            let others = [self.chip.usb.deadline(), self.follower.again];
            others.into_iter().chain(work).flatten().min()
        };
        self.timer.arm(due, now);
        due.is_some_and(|at| at <= now)
    }
}
