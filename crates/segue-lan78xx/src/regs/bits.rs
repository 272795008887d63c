//! Bits of registers, a module for each register or group of registers.

/// Bits of [`INT_STS`](crate::regs::INT_STS) and [`INT_EP_CTL`](crate::regs::INT_EP_CTL).
pub mod int {
    /// Receive FIFO overflow.
    pub const RDFO: u32 = 1 << 22;
    /// Transmitter error, loss of sync among them.
    pub const TXE: u32 = 1 << 21;
    /// The transmitter has stopped.
    pub const TX_DIS: u32 = 1 << 19;
    /// The receiver has stopped.
    pub const RX_DIS: u32 = 1 << 18;
    /// The PHY has something to say.
    pub const PHY: u32 = 1 << 17;
    /// In [`INT_EP_CTL`](crate::regs::INT_EP_CTL): the endpoint answers also without news.
    pub const INTEP_ON: u32 = 1 << 31;
    /// Bits that stand for an event.
    pub const EVENTS: u32 = 0x0770_ffff | PHY | RX_DIS | TX_DIS;
}

/// Bits of [`HW_CFG`](crate::regs::HW_CFG).
pub mod hw_cfg {
    /// 125 MHz clock to an outside PHY.
    pub const CLK125_EN: u32 = 1 << 25;
    /// 25 MHz clock to an outside PHY.
    pub const REFCLK25_EN: u32 = 1 << 24;
    /// The two LEDs that share pins with the EEPROM.
    pub const LED1_EN_LED0_EN: u32 = 0b11 << 20;
    /// Several frames in one bulk-in transfer.
    pub const MEF: u32 = 1 << 4;
    /// Lite reset; clears itself.
    pub const LRST: u32 = 1 << 1;
    /// Soft reset; clears itself, and the device enumerates anew.
    pub const SRST: u32 = 1;
}

/// Bits of [`PMT_CTL`](crate::regs::PMT_CTL).
pub mod pmt {
    /// The chip is ready.
    pub const READY: u32 = 1 << 7;
    /// Resets the PHY; clears itself.
    pub const PHY_RST: u32 = 1 << 4;
    /// Wake on LAN enable.
    pub const WOL_EN: u32 = 1 << 3;
    /// Wake by the PHY.
    pub const PHY_WAKE_EN: u32 = 1 << 2;
    /// What woke it, write 1 to clear.
    pub const WUPS: u32 = 0b11;
    /// Suspend mode, bits 6 and 5.
    pub const SUS_MODE: u32 = 0b11 << 5;
    /// Clears the wake-up status at resume.
    pub const RES_CLR_WKP_EN: u32 = 1 << 8;
    /// Cleared at resume.
    pub const RES_CLR_WKP_STS: u32 = 1 << 9;
    /// Power for the PHY during suspend.
    pub const PHY_PWRUP: u32 = 1 << 10;
}

/// The data port.
pub mod dp {
    /// In [`DP_SEL`](crate::regs::DP_SEL): idle.
    pub const READY: u32 = 1 << 31;
    /// In [`DP_SEL`](crate::regs::DP_SEL): the RAM of the VLAN and address tables.
    pub const VLAN_DA_RAM: u32 = 1;
    /// In [`DP_SEL`](crate::regs::DP_SEL): the bits that select.
    pub const SELECT: u32 = 0xf;
    /// In [`DP_CMD`](crate::regs::DP_CMD): write.
    pub const WRITE: u32 = 1;
    /// Words of the VLAN table, one bit for each id, from address 0 on.
    pub const VLAN_WORDS: usize = 128;
    /// Words of the address hash, from address [`VLAN_WORDS`] on.
    pub const HASH_WORDS: usize = 16;
}

/// The EEPROM.
pub mod e2p {
    /// A command runs.
    pub const BUSY: u32 = 1 << 31;
    /// It found no EEPROM.
    pub const TIMEOUT: u32 = 1 << 10;
    /// Command: read a byte.
    pub const READ: u32 = 0;
    /// Command: forbid writing.
    pub const EWDS: u32 = 1 << 28;
    /// Command: allow writing.
    pub const EWEN: u32 = 2 << 28;
    /// Command: write a byte.
    pub const WRITE: u32 = 3 << 28;
    /// The bits of the command.
    pub const COMMAND: u32 = 7 << 28;
    /// The bits of the address.
    pub const ADDRESS: u32 = 0x1ff;
    /// First byte of a valid image.
    pub const VALID: u8 = 0xa5;
    /// Bytes.
    pub const LEN: usize = 512;
    /// Where the address starts in an image, in EEPROM and OTP.
    pub const MAC: u16 = 1;
    /// Where an image says whether it has latency tolerance words.
    pub const LTM: u16 = 0x3f;
    /// First byte of an OTP image at 0.
    pub const OTP_LOW: u8 = 0xf3;
    /// First byte where the OTP image is at 0x100.
    pub const OTP_HIGH: u8 = 0xf7;
    /// Where it then is.
    pub const OTP_HIGH_AT: u16 = 0x100;
}

/// Bits of [`USB_CFG0`](crate::regs::USB_CFG0).
pub mod usb_cfg0 {
    /// An empty bulk-in endpoint answers NAK, not a zero-length packet.
    pub const BIR: u32 = 1 << 6;
    /// [`BURST_CAP`](crate::regs::BURST_CAP) is in force.
    pub const BCE: u32 = 1 << 5;
    /// Loss of sync does not stall bulk-out.
    pub const NO_STALL: u32 = 1;
}

/// Bits of [`USB_CFG1`](crate::regs::USB_CFG1).
pub mod usb_cfg1 {
    /// The device may ask for U2.
    pub const U2_INIT_EN: u32 = 1 << 12;
    /// The device may ask for U1.
    pub const U1_INIT_EN: u32 = 1 << 10;
    /// Latency tolerance messages.
    pub const LTM_ENABLE: u32 = 1 << 8;
}

/// Bits of [`RFE_CTL`](crate::regs::RFE_CTL).
pub mod rfe {
    /// Checks IGMP.
    pub const IGMP_COE: u32 = 1 << 14;
    /// Checks ICMP.
    pub const ICMP_COE: u32 = 1 << 13;
    /// Sums TCP and UDP.
    pub const TCPUDP_COE: u32 = 1 << 12;
    /// Checks IPv4 headers.
    pub const IP_COE: u32 = 1 << 11;
    /// All four.
    pub const COE: u32 = IGMP_COE | ICMP_COE | TCPUDP_COE | IP_COE;
    /// Takes broadcasts.
    pub const BCAST_EN: u32 = 1 << 10;
    /// Takes all multicasts.
    pub const MCAST_EN: u32 = 1 << 9;
    /// Takes all unicasts.
    pub const UCAST_EN: u32 = 1 << 8;
    /// Takes VLAN tags out.
    pub const VLAN_STRIP: u32 = 1 << 7;
    /// Drops frames without tag.
    pub const DISCARD_UNTAGGED: u32 = 1 << 6;
    /// Drops tagged frames whose id is not in the table.
    pub const VLAN_FILTER: u32 = 1 << 5;
    /// Multicasts by hash.
    pub const MCAST_HASH: u32 = 1 << 3;
    /// Unicasts by hash.
    pub const DA_HASH: u32 = 1 << 2;
    /// By perfect filters.
    pub const DA_PERFECT: u32 = 1 << 1;
}

/// Bits of [`FCT_RX_CTL`](crate::regs::FCT_RX_CTL) and [`FCT_TX_CTL`](crate::regs::FCT_TX_CTL).
pub mod fct {
    /// Runs.
    pub const EN: u32 = 1 << 31;
    /// Empties it; clears itself.
    pub const RST: u32 = 1 << 30;
    /// Keeps bad frames (receive).
    pub const BAD: u32 = 1 << 25;
    /// Overflow (receive).
    pub const OVERFLOW: u32 = 1 << 24;
    /// Something was dropped (receive).
    pub const DROP: u32 = 1 << 23;
    /// Not empty.
    pub const NOT_EMPTY: u32 = 1 << 22;
    /// Empty.
    pub const EMPTY: u32 = 1 << 21;
    /// Has stopped.
    pub const DIS: u32 = 1 << 20;
    /// 12 KiB, as a value of the two `FIFO_END` registers.
    pub const END_12K: u32 = 0x17;
}

/// Bits of [`MAC_CR`](crate::regs::MAC_CR).
pub mod mac_cr {
    /// GMII to the PHY.
    pub const GMII_EN: u32 = 1 << 19;
    /// Energy efficient Ethernet.
    pub const EEE_EN: u32 = 1 << 17;
    /// Duplex follows the PHY.
    pub const AUTO_DUPLEX: u32 = 1 << 12;
    /// Speed follows the PHY.
    pub const AUTO_SPEED: u32 = 1 << 11;
    /// What is sent is received.
    pub const LOOPBACK: u32 = 1 << 10;
    /// Full duplex.
    pub const FULL_DUPLEX: u32 = 1 << 3;
    /// Speed: 0, 1, 2 for 10, 100, 1000 Mbit/s, shifted by this.
    pub const SPEED_SHIFT: u32 = 1;
    /// Resets the MAC; clears itself.
    pub const RST: u32 = 1;
}

/// Bits of [`MAC_RX`](crate::regs::MAC_RX).
pub mod mac_rx {
    /// Largest frame with its FCS, shifted by this.
    pub const MAX_SIZE_SHIFT: u32 = 16;
    /// The bits of the largest frame, before shifting.
    pub const MAX_SIZE: u32 = 0x3fff;
    /// Leaves the FCS out.
    pub const FCS_STRIP: u32 = 1 << 4;
    /// Tagged frames may be 4 bytes longer.
    pub const VLAN_FSE: u32 = 1 << 2;
    /// Has stopped.
    pub const RXD: u32 = 1 << 1;
    /// Runs.
    pub const RXEN: u32 = 1;
}

/// Bits of [`MAC_TX`](crate::regs::MAC_TX).
pub mod mac_tx {
    /// Has stopped.
    pub const TXD: u32 = 1 << 1;
    /// Runs.
    pub const TXEN: u32 = 1;
}

/// Bits of [`FLOW`](crate::regs::FLOW).
pub mod flow {
    /// Sends pause frames.
    pub const TX_FCEN: u32 = 1 << 30;
    /// Obeys pause frames.
    pub const RX_FCEN: u32 = 1 << 29;
    /// Passes pause frames on to the host.
    pub const FPF: u32 = 1 << 28;
    /// The pause time that is sent, in units of 512 bit times.
    pub const TIME: u32 = 0xffff;
}
