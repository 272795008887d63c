//! The configuration of a model: the chip, its bus and its link partner.

use crate::regs::Chip;
use crate::usb::Speed;

use super::phy::{LinkSpeed, Partner};

/// The source from which a driver reads the adapter's MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The MAC address is in the address registers, set by firmware.
    Register,
    /// The MAC address is in an EEPROM.
    Eeprom,
    /// The MAC address is in OTP memory, with the image at address 0.
    OtpLow,
    /// The MAC address is in OTP memory, with the image at address 0x100.
    OtpHigh,
    /// The adapter has no MAC address.
    None,
}

/// The configuration of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The chip that is modelled.
    pub chip: Chip,
    /// Speed of the USB bus.
    pub speed: Speed,
    /// The adapter's MAC address.
    pub mac: [u8; 6],
    /// The memory that holds the MAC address.
    pub identity: Identity,
    /// The link partner; `None` without a cable.
    pub partner: Option<Partner>,
    /// Duration of autonegotiation, nanoseconds.
    pub negotiation: u64,
    /// Whether frames take their time on a wire of the link's speed. Otherwise they take none.
    pub paced: bool,
    /// Maximum number of frames that the partner queues while it is paused or the wire is busy; further ones are lost.
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
