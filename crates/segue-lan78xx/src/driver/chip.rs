//! Access to the chip: registers, PHY, tables, EEPROM and OTP memory, statistics. Every wait is bounded.

use std::fmt;

use segue::time::Nanos;

use crate::regs::{self, Chip as Kind, dp, e2p, hw_cfg, mii, request};
use crate::usb::{self, Setup, Transport};

/// The reason why the chip cannot be used, or why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A USB request failed with this error.
    Usb(usb::Error),
    /// A status bit did not change in time; the string names the operation.
    Stuck(&'static str),
    /// The chip is not a LAN78xx; the value is its ID_REV.
    Chip(u32),
    /// An answer had an unexpected length; the string names the value read.
    Short(&'static str),
    /// The chip does not support a setting; the string says which.
    Setting(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usb(error) => write!(f, "{error}"),
            Error::Stuck(what) => write!(f, "{what} did not finish in time"),
            Error::Chip(id) => write!(f, "ID_REV {id:#010x} is not that of a LAN78xx"),
            Error::Short(what) => write!(f, "{what} had an unexpected length"),
            Error::Setting(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

impl From<usb::Error> for Error {
    fn from(error: usb::Error) -> Error {
        Error::Usb(error)
    }
}

pub(super) type Result<T> = std::result::Result<T, Error>;

const MILLISECOND: u64 = 1_000_000;
/// Longest wait for a status bit, in steps of [`MILLISECOND`].
const STEPS: u32 = 1000;
/// Number of reads of a status bit before the time decides, since over a network each may take longer than all steps.
const LEAST_READS: u32 = 10;
/// Longest wait for the data port, in steps of [`TABLE_STEP`] nanoseconds.
const TABLE_STEPS: u32 = 100;
const TABLE_STEP: u64 = 50_000;

/// The chip, accessed through a transport.
#[derive(Debug)]
pub(super) struct ChipAccess<T> {
    pub(super) usb: T,
    pub(super) kind: Kind,
    /// Time from which requests fail and transfers wait for a later call, so that a device that is late each time holds
    /// its driver up for a limited time. `None` for no limit.
    pub(super) until: Option<Nanos>,
}

impl<T: Transport> ChipAccess<T> {
    /// Returns whether there is no time for another request or transfer.
    pub(super) fn is_late(&self) -> bool {
        self.until.is_some_and(|until| self.usb.now() >= until)
    }

    /// Fails once there is no time for another request.
    pub(super) fn in_time(&self) -> Result<()> {
        if self.is_late() { Err(usb::Error::Timeout.into()) } else { Ok(()) }
    }

    /// Makes a request, unless there is no time for it. One that ends too late has failed as well.
    fn perform<R>(&mut self, request: impl FnOnce(&mut T) -> std::result::Result<R, usb::Error>) -> Result<R> {
        self.in_time()?;
        let answer = request(&mut self.usb)?;
        self.in_time()?;
        Ok(answer)
    }

    /// Clears the halt of an endpoint.
    pub(super) fn clear_halt(&mut self, endpoint: u8) -> Result<()> {
        self.perform(|usb| usb.clear_halt(endpoint))
    }

    /// Cancels all transfers of an endpoint, unless there is no time for it.
    pub(super) fn cancel(&mut self, endpoint: u8) {
        if !self.is_late() {
            self.usb.cancel(endpoint);
        }
    }

    pub(super) fn read(&mut self, register: u16) -> Result<u32> {
        let setup =
            Setup { request_type: request::IN, request: request::READ_REGISTER, value: 0, index: register, length: 4 };
        let mut bytes = [0; 4];
        let len = self.perform(|usb| usb.control_in(setup, &mut bytes))?;
        match len {
            4 => Ok(u32::from_le_bytes(bytes)),
            _ => Err(Error::Short("a register")),
        }
    }

    pub(super) fn write(&mut self, register: u16, value: u32) -> Result<()> {
        let (request_type, request) = (request::OUT, request::WRITE_REGISTER);
        let setup = Setup { request_type, request, value: 0, index: register, length: 4 };
        self.perform(|usb| usb.control_out(setup, &value.to_le_bytes()))
    }

    /// Reads a register, clears and sets bits, and writes it back. Returns the value that was read.
    pub(super) fn modify(&mut self, register: u16, clear: u32, set: u32) -> Result<u32> {
        let before = self.read(register)?;
        self.write(register, before & !clear | set)?;
        Ok(before)
    }

    /// Reads a register until `done` accepts its value, for at most a second.
    pub(super) fn wait(&mut self, register: u16, what: &'static str, done: impl Fn(u32) -> bool) -> Result<u32> {
        self.wait_in(register, what, (STEPS, MILLISECOND), done)
    }

    pub(super) fn wait_in(
        &mut self,
        register: u16,
        what: &'static str,
        (steps, step): (u32, u64),
        done: impl Fn(u32) -> bool,
    ) -> Result<u32> {
        let until = self.usb.now().after(u64::from(steps) * step);
        for read in 1..=steps {
            let value = self.read(register)?;
            if done(value) {
                return Ok(value);
            }
            if read >= LEAST_READS && self.usb.now() >= until {
                break;
            }
            self.usb.sleep(step);
        }
        Err(Error::Stuck(what))
    }

    fn mii_idle(&mut self) -> Result<()> {
        self.wait(regs::MII_ACC, "a PHY access", |value| value & mii::BUSY == 0).map(drop)
    }

    pub(super) fn phy_read(&mut self, register: u8) -> Result<u16> {
        self.mii_idle()?;
        self.write(regs::MII_ACC, mii::access(mii::INTERNAL, register, false))?;
        self.mii_idle()?;
        Ok(self.read(regs::MII_DATA)? as u16)
    }

    pub(super) fn phy_write(&mut self, register: u8, value: u16) -> Result<()> {
        self.mii_idle()?;
        self.write(regs::MII_DATA, u32::from(value))?;
        self.write(regs::MII_ACC, mii::access(mii::INTERNAL, register, true))?;
        self.mii_idle()
    }

    /// Writes a register of an MDIO manageable device in the PHY (IEEE 802.3, 22.2.4.3.11).
    pub(super) fn mmd_write(&mut self, device: u16, register: u16, value: u16) -> Result<()> {
        self.phy_write(mii::MMD_CONTROL, device)?;
        self.phy_write(mii::MMD_DATA, register)?;
        self.phy_write(mii::MMD_CONTROL, device | mii::MMD_NO_INCREMENT)?;
        self.phy_write(mii::MMD_DATA, value)
    }

    /// Resets the MAC, after any PHY access has ended: a reset during one can lock up the chip.
    pub(super) fn reset_mac(&mut self) -> Result<()> {
        self.mii_idle()?;
        self.modify(regs::MAC_CR, 0, regs::mac_cr::RST)?;
        self.wait(regs::MAC_CR, "the reset of the MAC", |value| value & regs::mac_cr::RST == 0).map(drop)
    }

    /// Writes words of the VLAN and address hash tables.
    pub(super) fn write_table(&mut self, address: usize, words: &[u32]) -> Result<()> {
        let ready = |chip: &mut ChipAccess<T>| {
            let limits = (TABLE_STEPS, TABLE_STEP);
            chip.wait_in(regs::DP_SEL, "the data port", limits, |value| value & dp::READY != 0)
        };
        ready(self)?;
        self.modify(regs::DP_SEL, dp::SELECT, dp::VLAN_DA_RAM)?;
        for (at, word) in words.iter().enumerate() {
            self.write(regs::DP_ADDR, (address + at) as u32)?;
            self.write(regs::DP_DATA, *word)?;
            self.write(regs::DP_CMD, dp::WRITE)?;
            ready(self)?;
        }
        Ok(())
    }

    /// Reads bytes of the EEPROM; `None` if there is none with a valid image.
    pub(super) fn eeprom(&mut self, address: u16, bytes: &mut [u8]) -> Result<Option<()>> {
        // The LAN7800 shares two pins between its EEPROM and its LEDs.
        let leds = match self.kind {
            Kind::Lan7800 => Some(self.modify(regs::HW_CFG, hw_cfg::LED1_EN_LED0_EN, 0)?),
            _ => None,
        };
        let outcome = self.eeprom_bytes(address, bytes);
        if let Some(before) = leds {
            self.write(regs::HW_CFG, before)?;
        }
        outcome
    }

    fn eeprom_bytes(&mut self, address: u16, bytes: &mut [u8]) -> Result<Option<()>> {
        if self.eeprom_byte(0)? != Some(e2p::VALID) {
            return Ok(None);
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            match self.eeprom_byte(address + at as u16)? {
                Some(value) => *byte = value,
                None => return Ok(None),
            }
        }
        Ok(Some(()))
    }

    fn eeprom_byte(&mut self, address: u16) -> Result<Option<u8>> {
        let what = "an EEPROM access";
        self.wait(regs::E2P_CMD, what, |value| value & e2p::BUSY == 0)?;
        self.write(regs::E2P_CMD, e2p::BUSY | e2p::READ | u32::from(address) & e2p::ADDRESS)?;
        let end = self.wait(regs::E2P_CMD, what, |value| value & e2p::BUSY == 0 || value & e2p::TIMEOUT != 0)?;
        if end & e2p::TIMEOUT != 0 {
            return Ok(None);
        }
        Ok(Some(self.read(regs::E2P_DATA)? as u8))
    }

    /// Reads bytes of the OTP memory's image; `None` if it has none.
    pub(super) fn otp(&mut self, address: u16, bytes: &mut [u8]) -> Result<Option<()>> {
        if self.read(regs::OTP_PWR_DN)? & 1 != 0 {
            self.write(regs::OTP_PWR_DN, 0)?;
            self.wait(regs::OTP_PWR_DN, "power for the OTP memory", |value| value & 1 == 0)?;
        }
        let base = match self.otp_byte(0)? {
            e2p::OTP_LOW => 0,
            e2p::OTP_HIGH => e2p::OTP_HIGH_AT,
            _ => return Ok(None),
        };
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = self.otp_byte(base + address + at as u16)?;
        }
        Ok(Some(()))
    }

    fn otp_byte(&mut self, address: u16) -> Result<u8> {
        self.write(regs::OTP_ADDR1, u32::from(address >> 8 & 0x1f))?;
        self.write(regs::OTP_ADDR2, u32::from(address & 0xff))?;
        self.write(regs::OTP_FUNC_CMD, 1)?;
        self.write(regs::OTP_CMD_GO, 1)?;
        self.wait(regs::OTP_STATUS, "an OTP access", |value| value & 1 == 0)?;
        Ok(self.read(regs::OTP_RD_DATA)? as u8)
    }

    /// Reads all counters of the chip.
    pub(super) fn statistics(&mut self) -> Result<[u32; regs::STATISTICS.len()]> {
        let setup = Setup {
            request_type: request::IN,
            request: request::READ_STATISTICS,
            value: 0,
            index: 0,
            length: regs::STATISTICS_LEN as u16,
        };
        let mut bytes = [0; regs::STATISTICS_LEN];
        let len = self.perform(|usb| usb.control_in(setup, &mut bytes))?;
        if len != regs::STATISTICS_LEN {
            return Err(Error::Short("the statistics"));
        }
        let mut words = [0; regs::STATISTICS.len()];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(words)
    }
}
