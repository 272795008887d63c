//! The link: autonegotiation of the PHY, and the chip's settings that depend on its result.

use crate::regs::{self, flow, mii, usb_cfg1};
use crate::usb::{Speed, Transport};

use super::chip::Result;
use super::{Driver, LinkState};

impl<T: Transport> Driver<T> {
    /// Starts the PHY: advertisement, interrupts, autonegotiation.
    pub(super) fn start_phy(&mut self) -> Result<()> {
        let pause = if self.config.pause { mii::PAUSE | mii::PAUSE_ASYM } else { 0 };
        let speeds = mii::FULL100 | mii::HALF100 | mii::FULL10 | mii::HALF10;
        // Selector 1: IEEE 802.3.
        self.chip.phy_write(mii::ADVERTISE, 1 | speeds | pause)?;
        // The MAC has no half duplex at 1000 Mbit/s.
        self.chip.phy_write(mii::CTRL1000, mii::ADV_FULL1000)?;
        let eee = if self.config.eee { 0b110 } else { 0 };
        self.chip.mmd_write(mii::MMD_AN, mii::MMD_AN_EEE_ADV, eee)?;
        let mode = if self.config.eee { regs::mac_cr::EEE_EN } else { 0 };
        self.chip.modify(regs::MAC_CR, regs::mac_cr::EEE_EN, mode)?;
        self.chip.phy_write(mii::INT_MASK, 0x7fff)?;
        self.chip.phy_read(mii::INT_STATUS)?;
        self.chip.phy_write(mii::INT_MASK, mii::INT_ENABLE | mii::INT_LINK)?;
        self.chip.write(regs::INT_EP_CTL, self.interrupts | regs::int::PHY)?;
        self.chip.phy_write(mii::BMCR, mii::BMCR_AN_ENABLE | mii::BMCR_AN_RESTART)
    }

    /// Reads the link's state from the PHY, and sets up the chip accordingly.
    pub(super) fn follow_link(&mut self) -> Result<()> {
        self.chip.write(regs::INT_STS, regs::int::PHY)?;
        self.chip.phy_read(mii::INT_STATUS)?;
        // The first read may report a link that was down since the last one.
        self.chip.phy_read(mii::BMSR)?;
        let status = self.chip.phy_read(mii::BMSR)?;
        let link = if status & mii::BMSR_LINK == 0 { LinkState::default() } else { self.negotiated()? };
        if link == self.link {
            return Ok(());
        }
        if link.up {
            self.link_up(&link)?
        } else {
            self.link_down()?
        }
        self.set_link(link);
        Ok(())
    }

    fn negotiated(&mut self) -> Result<LinkState> {
        let (own, partner) = (self.chip.phy_read(mii::ADVERTISE)?, self.chip.phy_read(mii::LPA)?);
        let (own_fast, partner_fast) = (self.chip.phy_read(mii::CTRL1000)?, self.chip.phy_read(mii::STAT1000)?);
        let both = own & partner;
        let (mbit, full_duplex) = match () {
            () if own_fast & mii::ADV_FULL1000 != 0 && partner_fast & mii::LPA_FULL1000 != 0 => (1000, true),
            () if both & mii::FULL100 != 0 => (100, true),
            () if both & mii::HALF100 != 0 => (100, false),
            () => (10, both & mii::FULL10 != 0),
        };
        // Pause resolution of IEEE 802.3, 28B.3.
        let has = |word: u16, bit: u16| word & bit != 0;
        let symmetric = has(both, mii::PAUSE);
        let asymmetric = has(both, mii::PAUSE_ASYM);
        let rx_pause = full_duplex && (symmetric || asymmetric && has(own, mii::PAUSE));
        let tx_pause = full_duplex && (symmetric || asymmetric && has(partner, mii::PAUSE));
        Ok(LinkState { up: true, mbit, full_duplex, rx_pause, tx_pause })
    }

    fn link_up(&mut self, link: &LinkState) -> Result<()> {
        let speed = self.chip.usb.speed();
        if speed == Speed::Super {
            // At 1000 Mbit/s waking up from U2 takes too long.
            let (clear, set) = if link.mbit == 1000 { (usb_cfg1::U2_INIT_EN, 0) } else { (0, usb_cfg1::U2_INIT_EN) };
            self.chip.modify(regs::USB_CFG1, clear, set)?;
            self.chip.modify(regs::USB_CFG1, 0, usb_cfg1::U1_INIT_EN)?;
        }
        // The levels are set before flow control is enabled.
        let levels = match speed {
            Speed::Super => 0x0812,
            Speed::High => 0x0211,
            Speed::Full => 0,
        };
        self.chip.write(regs::FCT_FLOW, levels)?;
        let send = if link.tx_pause { flow::TX_FCEN | flow::TIME } else { 0 };
        let obey = if link.rx_pause { flow::RX_FCEN } else { 0 };
        self.chip.write(regs::FLOW, send | obey)?;
        self.statistics.start(self.chip.usb.now());
        self.numbers.link_ups += 1;
        Ok(())
    }

    fn link_down(&mut self) -> Result<()> {
        self.statistics.stop();
        // Frames that wait would leave late, when the link is up again.
        self.tx.drop_unsent(&mut self.numbers);
        self.chip.reset_mac()
    }

    pub(super) fn set_link(&mut self, link: LinkState) {
        if std::mem::replace(&mut self.link, link) != link
            && let Some(listener) = &mut self.listener
        {
            listener(&link);
        }
    }
}
