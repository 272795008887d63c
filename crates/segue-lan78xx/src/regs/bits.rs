//! Register bits, one module for each register or group of registers.

/// Bits of [`INT_STS`](crate::regs::INT_STS) and [`INT_EP_CTL`](crate::regs::INT_EP_CTL).
pub mod int {
    /// Interrupt: receive FIFO overflow.
    pub const RDFO: u32 = 1 << 22;
    /// Interrupt: transmitter error, including loss of synchronisation.
    pub const TXE: u32 = 1 << 21;
    /// Interrupt: the transmitter is disabled.
    pub const TX_DIS: u32 = 1 << 19;
    /// Interrupt: the receiver is disabled.
    pub const RX_DIS: u32 = 1 << 18;
    /// Interrupt: the PHY reports an event.
    pub const PHY: u32 = 1 << 17;
    /// Bit of [`INT_EP_CTL`](crate::regs::INT_EP_CTL): the endpoint also answers when no interrupt is pending.
    pub const INTEP_ON: u32 = 1 << 31;
    /// Mask of the bits that report an event.
    pub const EVENTS: u32 = 0x0770_ffff | PHY | RX_DIS | TX_DIS;
}

/// Bits of [`HW_CFG`](crate::regs::HW_CFG).
pub mod hw_cfg {
    /// Bit that enables the 125 MHz clock output to an external PHY.
    pub const CLK125_EN: u32 = 1 << 25;
    /// Bit that enables the 25 MHz clock output to an external PHY.
    pub const REFCLK25_EN: u32 = 1 << 24;
    /// Bits that enable the two LEDs that share pins with the EEPROM.
    pub const LED1_EN_LED0_EN: u32 = 0b11 << 20;
    /// Bit: a bulk-in transfer may hold multiple Ethernet frames.
    pub const MEF: u32 = 1 << 4;
    /// Bit: lite reset, which clears itself.
    pub const LRST: u32 = 1 << 1;
    /// Bit: soft reset, which clears itself; the device enumerates again.
    pub const SRST: u32 = 1;
}

/// Bits of [`PMT_CTL`](crate::regs::PMT_CTL).
pub mod pmt {
    /// Bit: the chip is ready.
    pub const READY: u32 = 1 << 7;
    /// Bit that resets the PHY, and clears itself.
    pub const PHY_RST: u32 = 1 << 4;
    /// Bit that enables Wake on LAN.
    pub const WOL_EN: u32 = 1 << 3;
    /// Bit that enables wake-up by the PHY.
    pub const PHY_WAKE_EN: u32 = 1 << 2;
    /// Bits of the wake-up status, cleared by writing 1.
    pub const WUPS: u32 = 0b11;
    /// Mask of the suspend mode.
    pub const SUS_MODE: u32 = 0b11 << 5;
    /// Bit that enables clearing of the wake-up status at resume.
    pub const RES_CLR_WKP_EN: u32 = 1 << 8;
    /// Bit of the wake-up status that is cleared at resume.
    pub const RES_CLR_WKP_STS: u32 = 1 << 9;
    /// Bit that keeps the PHY powered during suspend.
    pub const PHY_PWRUP: u32 = 1 << 10;
}

/// Values and sizes of the data port.
pub mod dp {
    /// Bit of [`DP_SEL`](crate::regs::DP_SEL): the port is idle.
    pub const READY: u32 = 1 << 31;
    /// Value of the RAM selection in [`DP_SEL`](crate::regs::DP_SEL): the RAM with the VLAN and address hash tables.
    pub const VLAN_DA_RAM: u32 = 1;
    /// Mask of the RAM selection in [`DP_SEL`](crate::regs::DP_SEL).
    pub const SELECT: u32 = 0xf;
    /// Command bit of [`DP_CMD`](crate::regs::DP_CMD): write.
    pub const WRITE: u32 = 1;
    /// Length of the VLAN table in words; it has one bit per VLAN id, from address 0 on.
    pub const VLAN_WORDS: usize = 128;
    /// Length of the address hash table in words; it starts at address [`VLAN_WORDS`].
    pub const HASH_WORDS: usize = 16;
}

/// EEPROM commands, and the image in EEPROM and OTP memory.
pub mod e2p {
    /// Status bit: a command is in progress.
    pub const BUSY: u32 = 1 << 31;
    /// Status bit: the command found no EEPROM.
    pub const TIMEOUT: u32 = 1 << 10;
    /// EEPROM command: read a byte.
    pub const READ: u32 = 0;
    /// EEPROM command: disable writes.
    pub const EWDS: u32 = 1 << 28;
    /// EEPROM command: enable writes.
    pub const EWEN: u32 = 2 << 28;
    /// EEPROM command: write a byte.
    pub const WRITE: u32 = 3 << 28;
    /// Mask of the command field.
    pub const COMMAND: u32 = 7 << 28;
    /// Mask of the EEPROM address.
    pub const ADDRESS: u32 = 0x1ff;
    /// First byte of a valid image.
    pub const VALID: u8 = 0xa5;
    /// Size of the EEPROM, bytes.
    pub const LEN: usize = 512;
    /// Offset of the MAC address in an image, in EEPROM and OTP.
    pub const MAC: u16 = 1;
    /// Offset of the length and the address of the latency tolerance words in an image.
    pub const LTM: u16 = 0x3f;
    /// First OTP byte if the image is at address 0.
    pub const OTP_LOW: u8 = 0xf3;
    /// First OTP byte if the image is at [`OTP_HIGH_AT`].
    pub const OTP_HIGH: u8 = 0xf7;
    /// Second possible address of an OTP image.
    pub const OTP_HIGH_AT: u16 = 0x100;
}

/// Bits of [`USB_CFG0`](crate::regs::USB_CFG0).
pub mod usb_cfg0 {
    /// Bit: an empty bulk-in endpoint answers NAK instead of a zero-length packet.
    pub const BIR: u32 = 1 << 6;
    /// Bit that enables [`BURST_CAP`](crate::regs::BURST_CAP).
    pub const BCE: u32 = 1 << 5;
    /// Bit: a loss of sync does not stall the bulk-out endpoint.
    pub const NO_STALL: u32 = 1;
}

/// Bits of [`USB_CFG1`](crate::regs::USB_CFG1).
pub mod usb_cfg1 {
    /// Bit: the device may initiate U2.
    pub const U2_INIT_EN: u32 = 1 << 12;
    /// Bit: the device may initiate U1.
    pub const U1_INIT_EN: u32 = 1 << 10;
    /// Bit that enables latency tolerance messages.
    pub const LTM_ENABLE: u32 = 1 << 8;
}

/// Bits of [`RFE_CTL`](crate::regs::RFE_CTL).
pub mod rfe {
    /// Bit that enables the check of IGMP checksums.
    pub const IGMP_COE: u32 = 1 << 14;
    /// Bit that enables the check of ICMP checksums.
    pub const ICMP_COE: u32 = 1 << 13;
    /// Bit that enables the check of TCP and UDP checksums.
    pub const TCPUDP_COE: u32 = 1 << 12;
    /// Bit that enables the check of IPv4 header checksums.
    pub const IP_COE: u32 = 1 << 11;
    /// Bits that enable all checksum engines.
    pub const COE: u32 = IGMP_COE | ICMP_COE | TCPUDP_COE | IP_COE;
    /// Bit that accepts broadcast frames.
    pub const BCAST_EN: u32 = 1 << 10;
    /// Bit that accepts all multicast frames.
    pub const MCAST_EN: u32 = 1 << 9;
    /// Bit that accepts all unicast frames.
    pub const UCAST_EN: u32 = 1 << 8;
    /// Bit that strips VLAN tags.
    pub const VLAN_STRIP: u32 = 1 << 7;
    /// Bit that drops untagged frames.
    pub const DISCARD_UNTAGGED: u32 = 1 << 6;
    /// Bit that drops tagged frames whose VLAN id is not in the table.
    pub const VLAN_FILTER: u32 = 1 << 5;
    /// Bit that accepts multicast frames whose address is in the hash table.
    pub const MCAST_HASH: u32 = 1 << 3;
    /// Bit that accepts unicast frames whose address is in the hash table.
    pub const DA_HASH: u32 = 1 << 2;
    /// Bit that accepts frames whose address matches a perfect filter.
    pub const DA_PERFECT: u32 = 1 << 1;
}

/// Bits of [`FCT_RX_CTL`](crate::regs::FCT_RX_CTL) and [`FCT_TX_CTL`](crate::regs::FCT_TX_CTL).
pub mod fct {
    /// Bit that enables the FIFO.
    pub const EN: u32 = 1 << 31;
    /// Bit that resets the FIFO, which empties it, and clears itself.
    pub const RST: u32 = 1 << 30;
    /// Bit that keeps bad frames (receive FIFO only).
    pub const BAD: u32 = 1 << 25;
    /// Bit: the receive FIFO overflowed.
    pub const OVERFLOW: u32 = 1 << 24;
    /// Bit: a frame was dropped (receive FIFO only).
    pub const DROP: u32 = 1 << 23;
    /// Bit: the FIFO is not empty.
    pub const NOT_EMPTY: u32 = 1 << 22;
    /// Bit: the FIFO is empty.
    pub const EMPTY: u32 = 1 << 21;
    /// Bit: the FIFO is disabled.
    pub const DIS: u32 = 1 << 20;
    /// Value of the two `FIFO_END` registers for a size of 12 KiB.
    pub const END_12K: u32 = 0x17;
}

/// Bits of [`MAC_CR`](crate::regs::MAC_CR).
pub mod mac_cr {
    /// Bit that enables the GMII to the PHY.
    pub const GMII_EN: u32 = 1 << 19;
    /// Bit that enables Energy-Efficient Ethernet.
    pub const EEE_EN: u32 = 1 << 17;
    /// Bit: duplex mode follows the PHY.
    pub const AUTO_DUPLEX: u32 = 1 << 12;
    /// Bit: the speed follows the PHY.
    pub const AUTO_SPEED: u32 = 1 << 11;
    /// Bit: loopback, so that the MAC receives its own frames.
    pub const LOOPBACK: u32 = 1 << 10;
    /// Bit that selects full duplex.
    pub const FULL_DUPLEX: u32 = 1 << 3;
    /// Shift of the speed field: 0, 1, 2 for 10, 100, 1000 Mbit/s.
    pub const SPEED_SHIFT: u32 = 1;
    /// Bit that resets the MAC, and clears itself.
    pub const RST: u32 = 1;
}

/// Bits of [`MAC_RX`](crate::regs::MAC_RX).
pub mod mac_rx {
    /// Shift of the field with the largest frame size, FCS included.
    pub const MAX_SIZE_SHIFT: u32 = 16;
    /// Mask of the largest frame size, before shifting.
    pub const MAX_SIZE: u32 = 0x3fff;
    /// Bit that strips the FCS.
    pub const FCS_STRIP: u32 = 1 << 4;
    /// Bit that allows tagged frames 4 bytes more.
    pub const VLAN_FSE: u32 = 1 << 2;
    /// Bit: the receiver is disabled.
    pub const RXD: u32 = 1 << 1;
    /// Bit that enables the receiver.
    pub const RXEN: u32 = 1;
}

/// Bits of [`MAC_TX`](crate::regs::MAC_TX).
pub mod mac_tx {
    /// Bit: the transmitter is disabled.
    pub const TXD: u32 = 1 << 1;
    /// Bit that enables the transmitter.
    pub const TXEN: u32 = 1;
}

/// Bits of [`FLOW`](crate::regs::FLOW).
pub mod flow {
    /// Bit that enables sending of pause frames.
    pub const TX_FCEN: u32 = 1 << 30;
    /// Bit that enables obeying of received pause frames.
    pub const RX_FCEN: u32 = 1 << 29;
    /// Bit that passes received pause frames on to the host.
    pub const FPF: u32 = 1 << 28;
    /// Mask of the pause time that is sent, in units of 512 bit times.
    pub const TIME: u32 = 0xffff;
}
