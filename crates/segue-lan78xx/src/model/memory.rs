//! The external EEPROM and the internal one-time programmable (OTP) memory.

use super::{Config, Identity};
use crate::regs::e2p;

/// Size of the OTP memory, bytes.
const OTP_LEN: usize = 0x200;

#[derive(Debug)]
pub(super) struct Memory {
    eeprom: Option<[u8; e2p::LEN]>,
    writable: bool,
    otp: [u8; OTP_LEN],
}

impl Memory {
    pub(super) fn new(config: &Config) -> Memory {
        let mut memory = Memory { eeprom: None, writable: false, otp: [0; OTP_LEN] };
        let at = usize::from(e2p::MAC);
        match config.identity {
            Identity::Register | Identity::None => {}
            Identity::Eeprom => {
                let mut image = [0xff; e2p::LEN];
                image[0] = e2p::VALID;
                image[at..at + 6].copy_from_slice(&config.mac);
                memory.eeprom = Some(image);
            }
            Identity::OtpLow => {
                memory.otp[0] = e2p::OTP_LOW;
                memory.otp[at..at + 6].copy_from_slice(&config.mac);
            }
            Identity::OtpHigh => {
                let base = usize::from(e2p::OTP_HIGH_AT);
                memory.otp[0] = e2p::OTP_HIGH;
                memory.otp[base + at..base + at + 6].copy_from_slice(&config.mac);
            }
        }
        memory
    }

    pub(super) fn has_eeprom(&self) -> bool {
        self.eeprom.is_some()
    }

    /// Executes an EEPROM command; returns the byte for the data register. Without an EEPROM the pins are pulled up:
    /// all bytes read as ones, without a timeout.
    pub(super) fn eeprom(&mut self, command: u32, data: u8) -> u8 {
        let at = (command & e2p::ADDRESS) as usize;
        match command & e2p::COMMAND {
            e2p::READ => self.eeprom.map_or(0xff, |image| image[at]),
            e2p::EWEN => {
                self.writable = true;
                data
            }
            e2p::EWDS => {
                self.writable = false;
                data
            }
            e2p::WRITE => {
                if let (Some(image), true) = (&mut self.eeprom, self.writable) {
                    image[at] = data;
                }
                data
            }
            _ => data,
        }
    }

    pub(super) fn otp(&self, at: usize) -> u8 {
        self.otp.get(at).copied().unwrap_or(0)
    }
}
