//! The driver: brings the chip up, follows its link, and moves packets between its USB endpoints and a
//! [`Port`](segue_port::Port).
//!
//! [`Driver::open`] resets and sets up the chip, [`Driver::up`] starts it. From then on the user calls the two halves of the
//! port, [`receive`](segue_port::Port::receive) and [`transmit`](segue_port::Port::transmit), when its descriptor is
//! readable; everything else (interrupts, link, statistics, halted endpoints, a device that went and came back) is dealt with
//! inside. [`Config::napi`] and [`Config::standard`] are the two forms that Linux's driver had.
//!
//! Received frames are joined by whoever calls `receive`; a train that is sent is cut by the chip up to
//! [`Config::lso`], and in front of the port into trains of that size where it is larger
//! ([`Limits::max_bytes`](segue::gso::Limits)).
//!
//! What differs from Linux: its queue of pending frames is the caller's batch here, so that the stack is not stopped and woken
//! but held back ([`Sent::Blocked`](segue_port::Sent::Blocked)); and its older form handed transfers themselves to the stack,
//! where [`Copying::WholeTransfer`] copies each once as a whole.

mod chip;
mod config;
mod host;
mod link;
mod port;
mod rx;
mod setup;
mod stats;
mod tx;

use segue::gso::Limits;
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::Counters;

pub use chip::Error;
pub use config::{Config, Copying, Kick, Resubmit};
pub use host::{Host, Interface};
pub use link::LinkState;
pub use setup::{AddressSource, Filter};
pub use stats::Numbers;

use crate::frame::rx::Malformed;
use crate::regs::{self, Chip as Kind, STATISTICS, endpoint};
use crate::sys::{Set, Timer};
use crate::usb::{self, Done, Idle, Request, Transfer, Transport};

/// How often a lost device is looked for, nanoseconds.
const LOOK: u64 = 1_000_000_000;
/// How long to wait when the link could not be looked at, nanoseconds.
const LINK_RETRY: u64 = 100_000_000;
/// How long to wait where there is no memory for a transfer or the bus refused one: the next would fail as well.
const TRANSFER_RETRY: u64 = 10_000_000;
/// How long sending may be stuck, as in Linux.
const TX_PATIENCE: u64 = 5_000_000_000;
/// Bytes of an interrupt transfer.
const INTERRUPT_LEN: usize = 16;

/// What a look for a device that went away has found.
#[derive(Debug)]
pub enum Look<T> {
    /// It is not known yet: a later look says it.
    Unknown,
    /// There is nothing in the device's place.
    Nothing,
    /// There is another device, with these vendor and product ids, which was not touched.
    Other((u16, u16)),
    /// The device, taken.
    Back(T),
}

/// Finds a device again that went away, by its chip: what has another one is nobody's to take.
pub type Finder<T> = Box<dyn FnMut(Kind) -> Look<T>>;
/// Hears of the link.
pub type Listener = Box<dyn FnMut(&LinkState)>;

/// The driver of one adapter.
pub struct Driver<T> {
    chip: chip::Chip<T>,
    config: Config,
    mac: [u8; 6],
    source: AddressSource,
    filter: Filter,
    link: LinkState,
    is_up: bool,
    gone: bool,
    /// INT_EP_CTL as it was found.
    interrupts: u32,
    rx: rx::Rx,
    tx: tx::Tx,
    interrupt: Option<Transfer<Idle>>,
    /// Until when nothing that receives is submitted.
    rests_until: Option<Nanos>,
    /// When something is to be done about the link.
    link_work: Option<Nanos>,
    finder: Option<Finder<T>>,
    look_at: Option<Nanos>,
    /// What came back in the adapter's place: vendor and product id.
    stranger: Option<(u16, u16)>,
    listener: Option<Listener>,
    follower: host::Follower,
    statistics: stats::Chip,
    moved_at_reading: u64,
    numbers: Numbers,
    malformed: Counts<Malformed>,
    counters: Counters,
    limits: Limits,
    set: Set,
    timer: Timer,
}

impl<T: Transport> std::fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("chip", &self.chip.kind).field("link", &self.link).finish_non_exhaustive()
    }
}

impl<T: Transport> Driver<T> {
    /// Takes a device over: resets it, finds its address, sets it up. The link stays down until [`Driver::up`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(usb: T, config: Config) -> Result<Driver<T>, Error> {
        let (vendor, product) = usb.identity();
        let kind = Kind::of(vendor, product).ok_or(Error::Chip(u32::from(product) << 16))?;
        if config.rx_transfers == 0 || config.tx_transfers == 0 {
            return Err(Error::Setting("at least one transfer each way"));
        }
        if config.mac.or(config.platform_mac).is_some_and(|mac| !setup::is_unicast(mac)) {
            return Err(Error::Setting(setup::NO_UNICAST));
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
        let rx = rx::Rx::new(&config)?;
        let tx = tx::Tx::new(&config)?;
        let limits = Limits {
            csum: true,
            tso4: config.lso.is_some(),
            tso6: config.lso.is_some(),
            max_bytes: config.lso.unwrap_or(Limits::NONE.max_bytes),
            ..Limits::NONE
        };
        let mut driver = Driver {
            chip: chip::Chip { usb, kind },
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
            rests_until: None,
            link_work: None,
            finder: None,
            look_at: None,
            stranger: None,
            listener: None,
            follower: host::Follower::default(),
            statistics: stats::Chip::default(),
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

    /// The adapter's address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Where it was found.
    pub fn address_source(&self) -> AddressSource {
        self.source
    }

    /// The chip.
    pub fn kind(&self) -> Kind {
        self.chip.kind
    }

    /// The factors in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The link as it was last seen.
    pub fn link(&self) -> LinkState {
        self.link
    }

    /// Whether the device went away and has not come back.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// The transport.
    pub fn usb(&mut self) -> &mut T {
        &mut self.chip.usb
    }

    /// What the driver counts.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// What was wrong with what was received.
    pub fn malformed(&self) -> &Counts<Malformed> {
        &self.malformed
    }

    /// The chip's counters as of the last reading, 64 bits each, in the order of [`STATISTICS`].
    pub fn statistics(&self) -> [u64; STATISTICS.len()] {
        std::array::from_fn(|at| self.statistics.value(at))
    }

    /// Reads the chip's counters now.
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

    /// Segments received and sent.
    fn moved(&self) -> u64 {
        self.counters.rx.segments + self.counters.tx.segments
    }

    /// Brings the next reading of the chip's counters forward where packets moved since the last.
    fn note_traffic(&mut self) {
        self.statistics.traffic(self.moved() - self.moved_at_reading, self.chip.usb.now());
    }

    /// Calls `listener` with the link now and whenever it changes.
    pub fn on_link(&mut self, mut listener: Listener) {
        listener(&self.link);
        self.listener = Some(listener);
    }

    /// How to find the device again when it went away.
    pub fn on_gone(&mut self, finder: Finder<T>) {
        self.finder = Some(finder);
    }

    /// Sends whatever is still to be dealt with: completions, interrupts, timers.
    fn service(&mut self) {
        self.reap();
        self.obey();
        // Where nothing is on its way nothing comes back to say so.
        if self.chip.usb.is_gone() {
            self.lose();
        }
        if self.gone {
            return self.look_for_it();
        }
        let now = self.chip.usb.now();
        if self.is_up {
            if self.link_work.take_if(|at| *at <= now).is_some() {
                let done = self.follow_link();
                if done.is_err() {
                    // The chip reports an event once.
                    self.link_work = Some(now.after(LINK_RETRY));
                }
                self.note(done);
            }
            self.recover();
            if self.tx.stuck_since(now).is_some_and(|since| since.after(TX_PATIENCE) <= now) {
                self.numbers.tx_timeouts += 1;
                self.chip.usb.cancel(endpoint::BULK_OUT);
                self.tx.restart_clock(now);
                self.reap();
            }
            if self.statistics.due().is_some_and(|at| at <= now) {
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

    /// Counts a failure. A device that is gone is one, and so is one that answers no more: each further request would hold
    /// everything else up as long again.
    fn note(&mut self, done: Result<(), Error>) {
        match done {
            Ok(()) => {}
            Err(Error::Usb(usb::Error::Gone)) => self.lose(),
            Err(error) => {
                self.numbers.control_errors += 1;
                tracing::warn!(%error, "an access to the adapter failed");
                if error == Error::Usb(usb::Error::Timeout) {
                    self.lose();
                }
            }
        }
    }

    /// Takes what is done from the transport.
    fn reap(&mut self) {
        while let Some(transfer) = self.chip.usb.reap() {
            match transfer.request().endpoint {
                endpoint::BULK_IN => self.reap_in(transfer),
                endpoint::BULK_OUT => self.reap_out(transfer),
                _ => self.reap_interrupt(transfer),
            }
        }
    }

    fn reap_interrupt(&mut self, transfer: Transfer<Done>) {
        match transfer.result() {
            Ok(endpoint::INTERRUPT_LEN) => {
                let bytes = transfer.received();
                let events = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                // All else that the chip reports is known otherwise, or harmless.
                if events & regs::int::PHY != 0 {
                    self.link_work = Some(self.chip.usb.now());
                }
            }
            Ok(_) => self.numbers.bad_interrupts += 1,
            Err(usb::Error::Gone) => self.lose(),
            Err(usb::Error::Cancelled) => {}
            Err(error) => self.rest(error),
        }
        let cancelled = transfer.result() == Err(usb::Error::Cancelled);
        self.interrupt = Some(transfer.recycle());
        if !cancelled {
            self.listen();
        }
    }

    /// Waits for the next interrupt.
    fn listen(&mut self) {
        let may = self.is_up && !self.gone && !self.rests();
        if let Some(transfer) = self.interrupt.take_if(|_| may) {
            let request = Request { endpoint: endpoint::INTERRUPT, tag: 0, len: INTERRUPT_LEN, zero_packet: false };
            self.chip.usb.submit(transfer.lend(request));
        }
    }

    /// Leaves the bus alone for a while after such an error.
    fn rest(&mut self, error: usb::Error) {
        self.numbers.no_memory += u64::from(error == usb::Error::Memory);
        self.rests_until = Some(self.chip.usb.now().after(TRANSFER_RETRY));
    }

    /// Whether that while is not over.
    fn rests(&mut self) -> bool {
        let now = self.chip.usb.now();
        self.rests_until.take_if(|until| *until <= now);
        self.rests_until.is_some()
    }

    /// The device is gone: the link is down, and what was on its way is lost.
    fn lose(&mut self) {
        if std::mem::replace(&mut self.gone, true) {
            return;
        }
        self.numbers.unplugs += 1;
        self.let_go();
        self.statistics.stop();
        self.tx.lose(&mut self.numbers);
        self.look_at = Some(self.chip.usb.now().after(LOOK));
        self.stranger = None;
        self.set_link(LinkState::default());
        tracing::warn!("the adapter is gone");
    }

    /// Wants nothing more of this transport.
    fn let_go(&mut self) {
        // The descriptor of a device that is gone is ready for ever.
        if let Some(fd) = self.chip.usb.fd() {
            self.set.remove(fd);
        }
        self.chip.usb.release();
    }

    fn look_for_it(&mut self) {
        let now = self.chip.usb.now();
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        self.look_at = Some(now.after(LOOK));
        let kind = self.chip.kind;
        let found = match self.finder.as_mut().map_or(Look::Unknown, |finder| finder(kind)) {
            Look::Unknown => return,
            Look::Nothing => {
                self.stranger = None;
                return;
            }
            Look::Other(identity) => return self.meet(identity),
            Look::Back(found) if Kind::of(found.identity().0, found.identity().1) != Some(kind) => {
                return self.meet(found.identity());
            }
            Look::Back(found) => found,
        };
        self.stranger = None;
        self.chip.usb = found;
        self.gone = false;
        self.refit_mtu();
        self.statistics.rebase();
        let was_up = std::mem::take(&mut self.is_up);
        // Transfers went down with the old transport.
        let renewed = self.renew();
        let done = renewed.and_then(|()| self.reset(Some(self.mac)));
        let done = done.and_then(|()| if was_up { self.up() } else { Ok(()) });
        match done {
            Ok(()) => {
                self.look_at = None;
                tracing::info!("the adapter is back");
            }
            Err(error) => {
                tracing::warn!(%error, "the adapter came back and could not be set up");
                (self.gone, self.is_up) = (true, was_up);
                // It could not be opened once more otherwise.
                self.let_go();
            }
        }
    }

    /// Another device is in the place of this one.
    fn meet(&mut self, (vendor, product): (u16, u16)) {
        if self.stranger.replace((vendor, product)) != Some((vendor, product)) {
            let (was, came) = (self.chip.kind.name(), format!("{vendor:04x}:{product:04x}"));
            tracing::warn!(was, came, "another device came back than the adapter, and is left alone");
        }
    }

    fn renew(&mut self) -> Result<(), Error> {
        // The old transport's descriptor left the set when it was closed.
        if let Some(fd) = self.chip.usb.fd() {
            self.set
                .add(fd, self.chip.usb.wakes_by_writing())
                .map_err(|_| Error::Setting("epoll refused the transport"))?;
        }
        // What the old transport never gave back is lost as well.
        self.numbers.tx_errors += self.tx.forget();
        self.rx = rx::Rx::new(&self.config)?;
        self.tx = tx::Tx::new(&self.config)?;
        self.interrupt = Some(Transfer::allocate(INTERRUPT_LEN)?);
        Ok(())
    }
}
