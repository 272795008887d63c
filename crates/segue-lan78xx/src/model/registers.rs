//! The effects of reading and writing each register.

use crate::regs::{self, dp, e2p, fct, hw_cfg, mac_cr, mac_rx, mac_tx, mii, pmt};
use crate::usb::Speed;

use super::state::WORDS;
use super::{Identity, Model};

/// Chip revision in register ID_REV.
const REVISION: u32 = 2;

impl Model {
    fn word(&mut self, address: u16) -> &mut u32 {
        // Every constant address lies below WORDS, as does every address that passed `is_known`.
        &mut self.words[usize::from(address) / 4 % WORDS]
    }

    /// Sets all registers to their values after power-on.
    pub(super) fn reset_registers(&mut self) {
        self.words.fill(0);
        self.table.fill(0);
        self.reported = 0;
        self.notes.flushed += self.bulk_in.flush();
        self.bulk_out.restart();
        self.mac.reset();
        *self.word(regs::ID_REV) = u32::from(self.config.chip.product()) << 16 | REVISION;
        *self.word(regs::PMT_CTL) = pmt::READY;
        *self.word(regs::DP_SEL) = dp::READY;
        *self.word(regs::BURST_CAP) = 0;
        *self.word(regs::BULK_IN_DLY) = 0x800;
        *self.word(regs::VLAN_TYPE) = 0x8100;
        *self.word(regs::FCT_RX_CTL) = fct::EMPTY | fct::DIS;
        *self.word(regs::FCT_TX_CTL) = fct::EMPTY | fct::DIS;
        *self.word(regs::FCT_RX_FIFO_END) = fct::END_12K;
        *self.word(regs::FCT_TX_FIFO_END) = fct::END_12K;
        *self.word(regs::MAC_CR) = mac_cr::GMII_EN;
        *self.word(regs::MAC_RX) = 1518 << mac_rx::MAX_SIZE_SHIFT | mac_rx::RXD;
        *self.word(regs::MAC_TX) = mac_tx::TXD;
        if self.memory.has_eeprom() {
            // The image in the EEPROM sets these bits.
            *self.word(regs::MAC_CR) |= mac_cr::AUTO_DUPLEX | mac_cr::AUTO_SPEED;
        }
        let mac = match self.config.identity {
            Identity::Register | Identity::Eeprom => self.config.mac,
            _ => [0xff; 6],
        };
        *self.word(regs::RX_ADDRL) = u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]]);
        *self.word(regs::RX_ADDRH) = u32::from_le_bytes([mac[4], mac[5], 0, 0]);
    }

    fn is_known(address: u16) -> bool {
        address.is_multiple_of(4) && usize::from(address) / 4 < WORDS
    }

    pub(super) fn read_register(&mut self, address: u16) -> u32 {
        if !Model::is_known(address) {
            return 0;
        }
        let value = match address {
            regs::FCT_RX_CTL => {
                let used = self.bulk_in.used();
                let level = if used == 0 { fct::EMPTY } else { fct::NOT_EMPTY };
                *self.word(address) & !(fct::EMPTY | fct::NOT_EMPTY) | level | used.min(0xffff) as u32
            }
            _ => *self.word(address),
        };
        let stuck = self.stuck.iter().find(|(at, _, _)| *at == address);
        stuck.map_or(value, |(_, set, clear)| (value | set) & !clear)
    }

    pub(super) fn write_register(&mut self, address: u16, value: u32) {
        if !Model::is_known(address) {
            return;
        }
        match address {
            regs::ID_REV | regs::OTP_STATUS | regs::OTP_RD_DATA => {}
            regs::INT_STS => {
                *self.word(address) &= !value;
                self.reported &= !value;
            }
            regs::HW_CFG => {
                if value & (hw_cfg::LRST | hw_cfg::SRST) != 0 {
                    self.reset_registers();
                    // Pending transfers stay pending; the host cancels them if it wants to.
                    *self.word(address) = value & !(hw_cfg::LRST | hw_cfg::SRST);
                } else {
                    *self.word(address) = value;
                }
            }
            regs::PMT_CTL => {
                let woken = *self.word(address) & pmt::WUPS & !value;
                *self.word(address) = value & !(pmt::PHY_RST | pmt::WUPS) | pmt::READY | woken;
                if value & pmt::PHY_RST != 0 {
                    self.phy.reset(self.now);
                }
            }
            regs::DP_SEL => *self.word(address) = value & dp::SELECT | dp::READY,
            regs::DP_CMD => self.data_port(value),
            regs::E2P_CMD => {
                let data = *self.word(regs::E2P_DATA) as u8;
                *self.word(regs::E2P_DATA) = u32::from(self.memory.eeprom(value, data));
                *self.word(address) = value & !(e2p::BUSY | e2p::TIMEOUT);
            }
            regs::OTP_CMD_GO => {
                let at = (*self.word(regs::OTP_ADDR1) & 0x1f) << 8 | *self.word(regs::OTP_ADDR2) & 0xff;
                if value & 1 != 0 && *self.word(regs::OTP_FUNC_CMD) & 1 != 0 {
                    *self.word(regs::OTP_RD_DATA) = u32::from(self.memory.otp(at as usize));
                }
            }
            regs::FCT_RX_CTL | regs::FCT_TX_CTL => {
                if value & fct::RST != 0 {
                    if address == regs::FCT_RX_CTL {
                        self.notes.flushed += self.bulk_in.flush();
                    } else {
                        self.bulk_out.restart();
                    }
                }
                // The two sticky bits are cleared by writing 1.
                let sticky = fct::OVERFLOW | fct::DROP;
                let kept = *self.word(address) & sticky & !value;
                let stopped = if value & fct::EN == 0 { fct::DIS } else { 0 };
                *self.word(address) = value & (fct::EN | fct::BAD) | stopped | kept | fct::EMPTY;
            }
            regs::MAC_CR if value & mac_cr::RST != 0 => {
                let kept = *self.word(regs::MAC_CR);
                self.mac.reset();
                *self.word(regs::MAC_CR) = value & !mac_cr::RST | kept & mac_cr::GMII_EN;
            }
            regs::MAC_RX => {
                let stopped = if value & mac_rx::RXEN == 0 { mac_rx::RXD } else { 0 };
                *self.word(address) = value & !mac_rx::RXD | stopped;
            }
            regs::MAC_TX => {
                let stopped = if value & mac_tx::TXEN == 0 { mac_tx::TXD } else { 0 };
                *self.word(address) = value & !mac_tx::TXD | stopped;
            }
            regs::MII_ACC => self.mii(value),
            _ => *self.word(address) = value,
        }
    }

    /// Accesses one word of the RAM with the VLAN and hash tables.
    fn data_port(&mut self, command: u32) {
        let at = (*self.word(regs::DP_ADDR) & 0x3fff) as usize;
        let selected = *self.word(regs::DP_SEL) & dp::SELECT == dp::VLAN_DA_RAM;
        let Some(place) = self.table.get_mut(at).filter(|_| selected) else { return };
        if command & dp::WRITE != 0 {
            *place = self.words[usize::from(regs::DP_DATA) / 4];
        } else {
            self.words[usize::from(regs::DP_DATA) / 4] = *place;
        }
    }

    fn mii(&mut self, access: u32) {
        let (phy, register) = ((access >> 11 & 0x1f) as u8, (access >> 6 & 0x1f) as u8);
        let is_ours = phy == mii::INTERNAL;
        if access & mii::WRITE != 0 {
            let value = *self.word(regs::MII_DATA) as u16;
            if is_ours {
                self.phy.write(register, value, self.now);
            }
        } else {
            // The line is pulled up where no PHY answers.
            *self.word(regs::MII_DATA) = if is_ours { u32::from(self.phy.read(register)) } else { 0xffff };
        }
        *self.word(regs::MII_ACC) = access & !mii::BUSY;
        // The write may have changed the interrupt line.
        let line = self.phy.advance(self.now);
        if line && !self.phy_line {
            self.raise(regs::int::PHY);
        }
        self.phy_line = line;
    }

    /// Returns the number of bytes of a bulk-in transfer that the burst cap allows; without a burst cap, no limit.
    pub(super) fn burst_cap(&self) -> usize {
        let cap = (self.register(regs::BURST_CAP) & 0xff) as usize;
        let on = self.register(regs::USB_CFG0) & regs::usb_cfg0::BCE != 0;
        if on && cap > 0 { cap * self.config.speed.max_packet() } else { usize::MAX }
    }

    /// Returns the time for which a bulk-in transfer waits for more frames, nanoseconds.
    pub(super) fn bulk_in_delay(&self) -> u64 {
        // Cycles of 60 MHz.
        u64::from(self.register(regs::BULK_IN_DLY) & 0xffff) * 1000 / 60
    }

    /// Returns the shortest time between two zero-length packets, nanoseconds: a microframe, or a frame at full speed.
    pub(super) fn empty_interval(&self) -> u64 {
        if self.config.speed == Speed::Full { 1_000_000 } else { 125_000 }
    }
}
