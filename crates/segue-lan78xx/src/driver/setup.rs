//! Reset, set-up, MTU, start and stop, suspend and resume.

use crate::frame::{ETHERNET_LEN, FCS_LEN, MAX_MTU, MIN_MTU, VLAN_LEN, is_awkward_mtu};
use crate::regs::{
    self, Chip as Kind, e2p, endpoint, fct, hw_cfg, mac_cr, mac_rx, mac_tx, pmt, rfe, usb_cfg0, usb_cfg1,
};
use crate::usb::{self, Speed, Transport};

use super::chip::Result;
use super::{Driver, Error};

/// Largest value of BURST_CAP, USB packets.
const MAX_BURST_CAP: usize = 255;
/// Longest time to stop a part of the chip: number of steps, and nanoseconds per step.
const STOP: (u32, u64) = (100, 1_000_000);

impl<T: Transport> Driver<T> {
    /// Resets the chip and sets it up, in the order of Linux 6.12.
    pub(super) fn reset(&mut self, mac: Option<[u8; 6]>) -> Result<()> {
        let speed = self.chip.usb.speed();
        self.interrupts = self.chip.read(regs::INT_EP_CTL)? & !regs::int::PHY;
        self.chip.modify(regs::HW_CFG, 0, hw_cfg::LRST)?;
        self.chip.wait(regs::HW_CFG, "the reset", |value| value & hw_cfg::LRST == 0)?;
        let id = self.chip.read(regs::ID_REV)?;
        self.chip.kind = Kind::of_id(id).ok_or(Error::Chip(id))?;
        self.find_address(mac)?;
        self.chip.modify(regs::USB_CFG0, 0, usb_cfg0::BIR)?;
        self.set_latency()?;
        // A burst of the chip must not continue in the next transfer, also on a bus that has become faster.
        let most = self.config.rx_transfer_len.min(self.config.burst_cap) / speed.max_packet();
        self.chip.write(regs::BURST_CAP, most.clamp(1, MAX_BURST_CAP) as u32)?;
        self.chip.write(regs::BULK_IN_DLY, u32::from(self.config.bulk_in_delay))?;
        self.chip.modify(regs::HW_CFG, 0, hw_cfg::MEF | hw_cfg::CLK125_EN | hw_cfg::REFCLK25_EN)?;
        self.chip.modify(regs::USB_CFG0, 0, usb_cfg0::BCE)?;
        self.chip.write(regs::FCT_RX_FIFO_END, fct::END_12K)?;
        self.chip.write(regs::FCT_TX_FIFO_END, fct::END_12K)?;
        self.chip.write(regs::INT_STS, u32::MAX)?;
        self.chip.write(regs::FLOW, 0)?;
        self.chip.write(regs::FCT_FLOW, 0)?;
        self.apply_filter()?;
        self.chip.modify(regs::PMT_CTL, 0, pmt::PHY_RST)?;
        self.chip.wait(regs::PMT_CTL, "the reset of the PHY", |value| {
            value & pmt::PHY_RST == 0 && value & pmt::READY != 0
        })?;
        let (clear, set) = match self.chip.kind {
            // The LAN7801 has an external PHY; GMII is for the internal one.
            Kind::Lan7801 => (mac_cr::GMII_EN, mac_cr::AUTO_DUPLEX | mac_cr::AUTO_SPEED),
            // An EEPROM image may have set these bits already; setting them again changes nothing.
            _ => (0, mac_cr::AUTO_DUPLEX | mac_cr::AUTO_SPEED),
        };
        self.chip.modify(regs::MAC_CR, clear, set)?;
        self.apply_mtu(self.config.mtu, speed)
    }

    /// Sets the latency tolerance messages to the values of EEPROM or OTP, if they are enabled.
    fn set_latency(&mut self) -> Result<()> {
        let mut words = [0; 6];
        if self.chip.read(regs::USB_CFG1)? & usb_cfg1::LTM_ENABLE != 0 {
            const LEN: u8 = 24;
            let mut place = [0; 2];
            let mut bytes = [0; LEN as usize];
            let found = if self.chip.eeprom(e2p::LTM, &mut place)?.is_some() && place[0] == LEN {
                self.chip.eeprom(u16::from(place[1]) * 2, &mut bytes)?
            } else if self.chip.otp(e2p::LTM, &mut place)?.is_some() && place[0] == LEN {
                self.chip.otp(u16::from(place[1]) * 2, &mut bytes)?
            } else {
                None
            };
            if found.is_some() {
                for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
                    *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
        }
        for (at, word) in words.into_iter().enumerate() {
            self.chip.write(regs::LTM_BELT_IDLE0 + 4 * at as u16, word)?;
        }
        Ok(())
    }

    /// Sets the MTU of chip and driver.
    ///
    /// # Errors
    /// [`Error::Setting`] for an MTU below 68 or above 9000, or one whose full frames end where a USB packet ends,
    /// which Linux refuses as well; see [`Error`].
    pub fn set_mtu(&mut self, mtu: usize) -> Result<()> {
        let speed = self.chip.usb.speed();
        self.apply_mtu(mtu, speed)?;
        self.config.mtu = mtu;
        Ok(())
    }

    fn apply_mtu(&mut self, mtu: usize, speed: Speed) -> Result<()> {
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            return Err(Error::Setting("the MTU is 68 to 9000"));
        }
        if is_awkward_mtu(mtu, speed.max_packet()) {
            return Err(Error::Setting("frames of this MTU would end where a USB packet ends; take one less or more"));
        }
        let most = (mtu + ETHERNET_LEN + VLAN_LEN + FCS_LEN) as u32;
        let before = self.chip.read(regs::MAC_RX)?;
        let runs = before & mac_rx::RXEN != 0;
        if runs {
            self.chip.write(regs::MAC_RX, before & !mac_rx::RXEN)?;
        }
        let size = mac_rx::MAX_SIZE << mac_rx::MAX_SIZE_SHIFT;
        let after = before & !(size | mac_rx::RXEN) | most << mac_rx::MAX_SIZE_SHIFT;
        self.chip.write(regs::MAC_RX, after)?;
        if runs {
            self.chip.write(regs::MAC_RX, after | mac_rx::RXEN)?;
        }
        Ok(())
    }

    /// Starts sending and receiving; the link comes up later.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn up(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_up, true) {
            return Ok(());
        }
        let started = self.start();
        // A device that is gone is to be started when it is back; after any other error the caller can try again.
        self.is_up = started.is_ok() || started == Err(Error::Usb(usb::Error::Gone));
        started
    }

    fn start(&mut self) -> Result<()> {
        self.start_phy()?;
        self.listen();
        self.chip.modify(regs::FCT_RX_CTL, 0, fct::RST)?;
        self.start_transmitter()?;
        self.chip.modify(regs::FCT_RX_CTL, 0, fct::EN)?;
        self.chip.modify(regs::MAC_RX, 0, mac_rx::RXEN)?;
        self.link_work = Some(self.chip.usb.now());
        self.fill();
        Ok(())
    }

    fn start_transmitter(&mut self) -> Result<()> {
        self.chip.modify(regs::FCT_TX_CTL, 0, fct::RST)?;
        self.chip.modify(regs::MAC_TX, 0, mac_tx::TXEN)?;
        self.chip.modify(regs::FCT_TX_CTL, 0, fct::EN).map(drop)
    }

    /// Stops the chip's transmit side and starts it again; the frames in its FIFO are lost. Nothing is waited for,
    /// since a part that is stuck may not stop.
    pub(super) fn restart_transmitter(&mut self) -> Result<()> {
        self.chip.modify(regs::FCT_TX_CTL, fct::EN, 0)?;
        self.chip.modify(regs::MAC_TX, mac_tx::TXEN, 0)?;
        self.start_transmitter()
    }

    /// Stops sending and receiving. Packets under way are lost.
    ///
    /// # Errors
    /// See [`Error`]; the transfers are cancelled in any case.
    pub fn down(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_up) {
            return Ok(());
        }
        let stopped = if self.gone { Ok(()) } else { self.stop() };
        for address in [endpoint::BULK_IN, endpoint::BULK_OUT, endpoint::INTERRUPT] {
            self.chip.cancel(address);
        }
        // Cancelled transfers come back soon, but over a network not at once.
        for _ in 0..100 {
            self.reap();
            if self.gone || self.interrupt.is_some() && self.rx.is_home() && self.tx.is_home() {
                break;
            }
            self.chip.usb.sleep(1_000_000);
        }
        self.forget_received();
        self.tx.lose(&mut self.numbers);
        self.forget_halts();
        self.statistics.stop();
        self.set_link(super::LinkState::default());
        // Transfers that there was no time to cancel end with the device, which is given up for it.
        stopped.and_then(|()| self.chip.in_time())
    }

    pub(super) fn stop(&mut self) -> Result<()> {
        let steps = [
            (regs::FCT_TX_CTL, fct::EN, fct::DIS, "the transmit FIFO's stop"),
            (regs::MAC_TX, mac_tx::TXEN, mac_tx::TXD, "the transmitter's stop"),
            (regs::MAC_RX, mac_rx::RXEN, mac_rx::RXD, "the receiver's stop"),
            (regs::FCT_RX_CTL, fct::EN, fct::DIS, "the receive FIFO's stop"),
        ];
        for (register, run, stopped, what) in steps {
            if self.chip.modify(register, run, 0)? & run != 0 {
                self.chip.wait_in(register, what, STOP, |value| value & stopped != 0)?;
            }
        }
        Ok(())
    }

    /// Prepares the chip for a suspended host: everything is stopped, and nothing wakes the host.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn suspend(&mut self) -> Result<()> {
        self.down()?;
        self.chip.write(regs::WUCSR, 0)?;
        self.chip.write(regs::WUCSR2, 0)?;
        self.chip.write(regs::WK_SRC, u32::MAX)?;
        // Mode 3: the lowest power mode from which the bus can resume the chip.
        let clear = pmt::WOL_EN | pmt::PHY_WAKE_EN | pmt::SUS_MODE;
        self.chip.modify(regs::PMT_CTL, clear, pmt::RES_CLR_WKP_EN | pmt::SUS_MODE | pmt::WUPS).map(drop)
    }

    /// Restarts the chip after [`Driver::suspend`], also if it has lost power in the meantime.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn resume(&mut self) -> Result<()> {
        let kept = self.chip.read(regs::RFE_CTL)? & rfe::DA_PERFECT != 0;
        if kept {
            self.chip.write(regs::WUCSR, 0)?;
            self.chip.write(regs::WUCSR2, 0)?;
            self.chip.modify(regs::PMT_CTL, pmt::SUS_MODE, pmt::WUPS)?;
        } else {
            self.statistics.rebase();
            self.reset(Some(self.mac))?;
        }
        self.up()
    }
}
