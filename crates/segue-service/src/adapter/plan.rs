//! What an adapter's interface is asked to be.

use segue_control::error::{Error, Kind};
use segue_lan78xx::driver::{self, AddressSource};
use segue_lan78xx::frame::is_awkward_mtu;
use segue_lan78xx::usb::Speed;

use super::usb::Usb;
use crate::tap::Tap;

/// Packets taken from one side in one round by the older form, whose driver has no budget.
const BUDGET: usize = 256;

/// What was found out when the adapter was opened.
pub(super) struct Found {
    pub(super) chip: &'static str,
    pub(super) speed: Speed,
    pub(super) mac: [u8; 6],
    pub(super) source: AddressSource,
}

/// An adapter and its interface as they were asked for.
pub struct Plan {
    /// Where the adapter is.
    pub usb: Usb,
    /// The interface.
    pub tap: Tap,
    /// Whether the driver has its older form, which has no budget of its own.
    pub standard: bool,
    /// Leave received packets as they come.
    pub no_gro: bool,
    /// Cut trains in software, not in the chip.
    pub no_lso: bool,
    /// Bulk-in transfers at a time; the form says it where none is given.
    pub rx_transfers: Option<u16>,
    /// Bulk-out transfers at a time; the form says it where none is given.
    pub tx_transfers: Option<u16>,
    /// Most packets of one poll; the form says it where none is given.
    pub budget: Option<u32>,
    /// The adapter's address, where it is not to be that which it has.
    pub mac: Option<[u8; 6]>,
    /// Offer pause frames.
    pub pause: bool,
    /// Offer energy efficient Ethernet.
    pub eee: bool,
    pub(super) found: std::cell::OnceCell<Found>,
}

impl Plan {
    /// A plan with the usual settings of the driver.
    pub fn new(usb: Usb, tap: Tap) -> Plan {
        Plan {
            usb,
            tap,
            standard: false,
            no_gro: false,
            no_lso: false,
            rx_transfers: None,
            tx_transfers: None,
            budget: None,
            mac: None,
            pause: true,
            eee: false,
            found: std::cell::OnceCell::new(),
        }
    }

    /// The driver's settings on a bus of this speed.
    pub fn config(&self, speed: Speed) -> driver::Config {
        let base = if self.standard { driver::Config::standard(speed) } else { driver::Config::napi(speed) };
        driver::Config {
            rx_transfers: self.rx_transfers.map_or(base.rx_transfers, usize::from),
            tx_transfers: self.tx_transfers.map_or(base.tx_transfers, usize::from),
            // The poll loop has it, as the weight of both sides.
            budget: None,
            lso: base.lso.filter(|_| !self.no_lso),
            gro: base.gro && !self.no_gro,
            pause: self.pause,
            eee: self.eee,
            mtu: self.tap.mtu as usize,
            mac: self.mac,
            ..base
        }
    }

    /// Packets of one poll.
    pub(super) fn weight(&self) -> usize {
        let usual = if self.standard { None } else { driver::Config::napi(Speed::Super).budget };
        self.budget.map(|budget| budget as usize).or(usual).unwrap_or(BUDGET)
    }

    /// Refuses an MTU that Linux's driver refuses on such a bus, before the adapter is asked.
    pub fn check_mtu(&self, speed: Speed) -> Result<(), Error> {
        let mtu = self.tap.mtu;
        if !is_awkward_mtu(mtu as usize, speed.max_packet()) {
            return Ok(());
        }
        let text = format!("`{mtu}` is not a value of `--mtu` at {} speed", speed.name());
        Err(Error::new(Kind::BadValue, text, format!("--mtu {} or --mtu {}", mtu - 1, mtu + 1))
            .why("frames of this MTU would end where a USB packet ends"))
    }
}
