//! The plan of an adapter and its interface.

use segue_control::error::{Error, Kind};
use segue_lan78xx::driver::{self, AddressSource};
use segue_lan78xx::frame::is_awkward_mtu;
use segue_lan78xx::usb::Speed;

use super::usb::Usb;
use crate::tap::Tap;

/// Largest number of packets from one side in one round in standard mode, whose driver has no budget.
const BUDGET: usize = 256;

/// Properties of the adapter as determined by the set-up.
pub(super) struct Found {
    pub(super) chip: &'static str,
    pub(super) speed: Speed,
    pub(super) mac: [u8; 6],
    pub(super) source: AddressSource,
}

/// The requested settings of an adapter and its interface.
pub struct Plan {
    /// The location of the adapter.
    pub usb: Usb,
    /// The TAP that is the adapter's interface.
    pub tap: Tap,
    /// Whether the driver runs in standard mode, which has no budget of its own.
    pub standard: bool,
    /// Whether received packets are forwarded without being joined.
    pub no_gro: bool,
    /// Whether trains are segmented in software instead of by the chip.
    pub no_lso: bool,
    /// Number of bulk-in transfers; the default depends on the mode of the driver.
    pub rx_transfers: Option<u16>,
    /// Number of bulk-out transfers; the default depends on the mode of the driver.
    pub tx_transfers: Option<u16>,
    /// Largest number of packets of one poll; the default depends on the mode of the driver.
    pub budget: Option<u32>,
    /// The hardware address to use instead of that of the adapter.
    pub mac: Option<[u8; 6]>,
    /// Whether autonegotiation offers pause frames.
    pub pause: bool,
    /// Whether autonegotiation offers Energy Efficient Ethernet.
    pub eee: bool,
    /// Knobs to set at the start.
    pub set: Vec<(String, String)>,
    /// Whether the opener process runs without a part of its sandbox if the kernel lacks it.
    pub is_weak: bool,
    pub(super) found: std::cell::OnceCell<Found>,
}

impl Plan {
    /// Creates a plan with the default settings of the driver.
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
            set: Vec::new(),
            is_weak: false,
            found: std::cell::OnceCell::new(),
        }
    }

    /// Returns the driver's configuration for a bus of the given speed.
    pub fn config(&self, speed: Speed) -> driver::Config {
        let base = if self.standard { driver::Config::standard(speed) } else { driver::Config::napi(speed) };
        driver::Config {
            rx_transfers: self.rx_transfers.map_or(base.rx_transfers, usize::from),
            tx_transfers: self.tx_transfers.map_or(base.tx_transfers, usize::from),
            // The poll loop has the budget, as the weight of both sides.
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

    /// Returns the largest number of packets of one poll.
    pub(super) fn weight(&self) -> usize {
        let usual = if self.standard { None } else { driver::Config::napi(Speed::Super).budget };
        self.budget.map(|budget| budget as usize).or(usual).unwrap_or(BUDGET)
    }

    /// Refuses an MTU that Linux's driver refuses on the same bus, before the adapter is set up.
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
