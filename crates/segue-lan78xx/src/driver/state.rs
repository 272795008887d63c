//! The driver's state, its constructor and its accessors.

use segue::gso::Limits;
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::Counters;

use crate::frame::rx::Malformed;
use crate::regs::{Chip as Kind, STATISTICS};
use crate::sys::{Set, Timer};
use crate::usb::{Idle, Transfer, Transport};

use super::address::{AddressSource, NO_UNICAST, is_unicast};
use super::chip::{ChipAccess, Error};
use super::config::Config;
use super::filter::Filter;
use super::follower::Follower;
use super::link_state::LinkState;
use super::lookup::{Finder, Listener};
use super::receiver::Receiver;
use super::stats::{ChipCounters, Numbers};
use super::transmitter::Transmitter;

/// Length in bytes of an interrupt transfer.
pub(super) const INTERRUPT_LEN: usize = 16;

/// The driver of one adapter.
pub struct Driver<T> {
    pub(super) chip: ChipAccess<T>,
    pub(super) config: Config,
    pub(super) mac: [u8; 6],
    pub(super) source: AddressSource,
    pub(super) filter: Filter,
    pub(super) link: LinkState,
    pub(super) is_up: bool,
    pub(super) gone: bool,
    /// The value of INT_EP_CTL before the reset.
    pub(super) interrupts: u32,
    pub(super) rx: Receiver,
    pub(super) tx: Transmitter,
    pub(super) interrupt: Option<Transfer<Idle>>,
    pub(super) interrupt_halted: bool,
    /// Number of attempts to clear its halt since an interrupt transfer has succeeded.
    pub(super) interrupt_clears: u32,
    /// Time until which no receiving transfer is submitted.
    pub(super) suspended_until: Option<Nanos>,
    /// Time at which the link's state is to be read.
    pub(super) link_work: Option<Nanos>,
    /// Number of times in a row that reading it has failed.
    pub(super) link_failures: u32,
    /// Time since which an endpoint has been halted.
    pub(super) halted_since: Option<Nanos>,
    /// Time until which no halt is cleared, after an attempt that has failed or was not the first one.
    pub(super) next_clear: Option<Nanos>,
    pub(super) finder: Option<Finder<T>>,
    pub(super) next_lookup: Option<Nanos>,
    /// Vendor and product id of another device that was connected to the adapter's USB port.
    pub(super) stranger: Option<(u16, u16)>,
    pub(super) listener: Option<Listener>,
    pub(super) follower: Follower,
    pub(super) statistics: ChipCounters,
    pub(super) moved_at_reading: u64,
    pub(super) numbers: Numbers,
    pub(super) malformed: Counts<Malformed>,
    pub(super) counters: Counters,
    pub(super) limits: Limits,
    pub(super) set: Set,
    pub(super) timer: Timer,
}

impl<T: Transport> std::fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("chip", &self.chip.kind).field("link", &self.link).finish_non_exhaustive()
    }
}

impl<T: Transport> Driver<T> {
    /// Opens the driver on a device: resets it, finds its address and sets it up. The link stays down until
    /// [`Driver::up`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(usb: T, config: Config) -> Result<Driver<T>, Error> {
        let (vendor, product) = usb.identity();
        let kind = Kind::of(vendor, product).ok_or(Error::Chip(u32::from(product) << 16))?;
        if config.rx_transfers == 0 || config.tx_transfers == 0 {
            return Err(Error::Setting("at least one transfer each way"));
        }
        if config.mac.or(config.platform_mac).is_some_and(|mac| !is_unicast(mac)) {
            return Err(Error::Setting(NO_UNICAST));
        }
        let system = |_| Error::Setting("the system has no epoll or timerfd left");
        let set = Set::new().map_err(system)?;
        let timer = Timer::new().map_err(system)?;
        {
            use std::os::fd::AsFd;
            set.add(timer.fd.as_fd(), false).map_err(system)?;
            if let Some(fd) = usb.fd() {
                set.add(fd, usb.wakes_by_writing()).map_err(system)?;
            }
        }
        let rx = Receiver::new(&config)?;
        let tx = Transmitter::new(&config)?;
        let limits = Limits {
            csum: true,
            tso4: config.lso.is_some(),
            tso6: config.lso.is_some(),
            max_bytes: config.lso.unwrap_or(Limits::NONE.max_bytes),
            ..Limits::NONE
        };
        let mut driver = Driver {
            chip: ChipAccess { usb, kind, until: None },
            config,
            mac: [0; 6],
            source: AddressSource::Register,
            filter: Filter::default(),
            link: LinkState::default(),
            is_up: false,
            gone: false,
            interrupts: 0,
            rx,
            tx,
            interrupt: Some(Transfer::allocate(INTERRUPT_LEN)?),
            interrupt_halted: false,
            interrupt_clears: 0,
            suspended_until: None,
            link_work: None,
            link_failures: 0,
            halted_since: None,
            next_clear: None,
            finder: None,
            next_lookup: None,
            stranger: None,
            listener: None,
            follower: Follower::default(),
            statistics: ChipCounters::default(),
            moved_at_reading: 0,
            numbers: Numbers::default(),
            malformed: Counts::default(),
            counters: Counters::default(),
            limits,
            set,
            timer,
        };
        driver.reset(config.mac)?;
        Ok(driver)
    }

    /// Returns the adapter's MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the source of the MAC address.
    pub fn address_source(&self) -> AddressSource {
        self.source
    }

    /// Returns the kind of chip.
    pub fn kind(&self) -> Kind {
        self.chip.kind
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the last known state of the link.
    pub fn link(&self) -> LinkState {
        self.link
    }

    /// Returns whether the device is gone and has not come back.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Returns the USB transport.
    pub fn usb(&mut self) -> &mut T {
        &mut self.chip.usb
    }

    /// Returns the driver's own counters.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// Returns the counts of malformed transfers and frames, by reason.
    pub fn malformed(&self) -> &Counts<Malformed> {
        &self.malformed
    }

    /// Returns the chip's counters as of the last reading, extended to 64 bits, in the order of [`STATISTICS`].
    pub fn statistics(&self) -> [u64; STATISTICS.len()] {
        std::array::from_fn(|at| self.statistics.value(at))
    }

    /// Reads the chip's counters.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn read_statistics(&mut self) -> Result<(), Error> {
        let raw = self.chip.statistics()?;
        let moved = self.moved();
        let active = std::mem::replace(&mut self.moved_at_reading, moved) != moved;
        self.statistics.update(&raw, active, self.chip.usb.now());
        Ok(())
    }

    /// Returns the number of segments received and sent.
    pub(super) fn moved(&self) -> u64 {
        self.counters.rx.segments + self.counters.tx.segments
    }

    /// Brings the next reading of the chip's counters forward if packets were moved since the last one.
    pub(super) fn note_traffic(&mut self) {
        self.statistics.traffic(self.moved() - self.moved_at_reading, self.chip.usb.now());
    }

    /// Calls `listener` with the state of the link immediately and at each change.
    pub fn on_link(&mut self, mut listener: Listener) {
        listener(&self.link);
        self.listener = Some(listener);
    }

    /// Sets the function that searches for the device after it went away.
    pub fn on_gone(&mut self, finder: Finder<T>) {
        self.finder = Some(finder);
    }
}
