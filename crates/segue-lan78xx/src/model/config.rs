//! What kind of chip the model is, and what it is connected to.

use crate::regs::Chip;
use crate::usb::Speed;

use super::phy::{LinkSpeed, Partner};

/// Where a driver can find the adapter's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// In the address registers, where firmware left it.
    Register,
    /// In an EEPROM.
    Eeprom,
    /// In the OTP memory, image at 0.
    OtpLow,
    /// In the OTP memory, image at 0x100.
    OtpHigh,
    /// Nowhere.
    None,
}

/// What kind of chip, and what it is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The chip.
    pub chip: Chip,
    /// The bus.
    pub speed: Speed,
    /// The address.
    pub mac: [u8; 6],
    /// Where it is.
    pub identity: Identity,
    /// The other end of the cable; `None` where there is no cable.
    pub partner: Option<Partner>,
    /// How long negotiation takes, nanoseconds.
    pub negotiation: u64,
    /// Whether frames take as long as they do on a wire of the link's speed. Otherwise they take no time.
    pub paced: bool,
    /// Most frames that the partner holds while it is paused or the wire is busy; what comes on top is lost.
    pub partner_queue: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            chip: Chip::Lan7800,
            speed: Speed::Super,
            mac: [0x02, 0x78, 0x00, 0x00, 0x00, 0x01],
            identity: Identity::Register,
            partner: Some(Partner { speed: LinkSpeed::M1000, pause: true }),
            negotiation: 50_000_000,
            paced: false,
            partner_queue: 1024,
        }
    }
}
