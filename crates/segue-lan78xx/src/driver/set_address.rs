//! Finding and setting the adapter's MAC address.

use crate::regs::{self, e2p};
use crate::usb::Transport;

use super::address::{AddressSource, NO_UNICAST, is_unicast, random_address};
use super::chip::Result;
use super::{Driver, Error};

impl<T: Transport> Driver<T> {
    pub(super) fn find_address(&mut self, given: Option<[u8; 6]>) -> Result<()> {
        let (low, high) = (self.chip.read(regs::RX_ADDRL)?, self.chip.read(regs::RX_ADDRH)?);
        let [a, b, c, d] = low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        let mut mac = [a, b, c, d, e, f];
        if let Some(given) = given {
            // An address that was found before keeps its source.
            self.source = if self.mac == given { self.source } else { AddressSource::User };
            mac = given;
        } else if is_unicast(mac) {
            self.source = AddressSource::Register;
        } else if let Some(platform) = self.config.platform_mac {
            (mac, self.source) = (platform, AddressSource::Platform);
        } else {
            let from_eeprom = self.chip.eeprom(e2p::MAC, &mut mac)?.is_some() && is_unicast(mac);
            self.source = AddressSource::Eeprom;
            if !from_eeprom {
                let from_otp = self.chip.otp(e2p::MAC, &mut mac)?.is_some() && is_unicast(mac);
                self.source = AddressSource::Otp;
                if !from_otp {
                    mac = random_address();
                    self.source = AddressSource::Random;
                }
            }
        }
        self.mac = mac;
        let low = u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]]);
        let high = u32::from_le_bytes([mac[4], mac[5], 0, 0]);
        self.chip.write(regs::RX_ADDRL, low)?;
        self.chip.write(regs::RX_ADDRH, high)?;
        self.chip.write(regs::maf_lo(0), low)?;
        self.chip.write(regs::maf_hi(0), high | regs::MAF_VALID)
    }

    /// Sets the adapter's MAC address, until the next reset.
    ///
    /// # Errors
    /// [`Error::Setting`] for a multicast address; see [`Error`].
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<()> {
        if !is_unicast(mac) {
            return Err(Error::Setting(NO_UNICAST));
        }
        self.find_address(Some(mac))
    }
}
