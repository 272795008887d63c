//! Addresses of the chip's registers.

/// Chip id and revision register.
pub const ID_REV: u16 = 0x000;
/// Interrupt status; writing a 1 clears the bit.
pub const INT_STS: u16 = 0x00c;
/// Hardware configuration register.
pub const HW_CFG: u16 = 0x010;
/// Power management register.
pub const PMT_CTL: u16 = 0x014;
/// Data port register: RAM selection, and whether the port is idle.
pub const DP_SEL: u16 = 0x024;
/// Data port: command, 1 for a write, 0 for a read.
pub const DP_CMD: u16 = 0x028;
/// Data port: address in the RAM, in words.
pub const DP_ADDR: u16 = 0x02c;
/// Data port: the data word.
pub const DP_DATA: u16 = 0x030;
/// EEPROM command register.
pub const E2P_CMD: u16 = 0x040;
/// EEPROM data register.
pub const E2P_DATA: u16 = 0x044;
/// USB configuration register 0.
pub const USB_CFG0: u16 = 0x080;
/// USB configuration register 1: link power management.
pub const USB_CFG1: u16 = 0x084;
/// Burst cap: the largest size of a bulk-in transfer, in packets.
pub const BURST_CAP: u16 = 0x090;
/// Bulk-in delay: time for which a bulk-in transfer waits for more frames, in cycles of 60 MHz.
pub const BULK_IN_DLY: u16 = 0x094;
/// Interrupt endpoint control: the interrupts that the endpoint reports.
pub const INT_EP_CTL: u16 = 0x098;
/// Control of the receive filter and the checksum engines.
pub const RFE_CTL: u16 = 0x0b0;
/// Register with the EtherType of VLAN tags.
pub const VLAN_TYPE: u16 = 0x0b4;
/// Control register of the receive FIFO.
pub const FCT_RX_CTL: u16 = 0x0c0;
/// Control register of the transmit FIFO.
pub const FCT_TX_CTL: u16 = 0x0c4;
/// Size of the receive FIFO, in units of 512 bytes, minus 1.
pub const FCT_RX_FIFO_END: u16 = 0x0c8;
/// Size of the transmit FIFO, in units of 512 bytes, minus 1.
pub const FCT_TX_FIFO_END: u16 = 0x0cc;
/// Fill levels of the receive FIFO at which pause frames are sent and revoked, in units of 512 bytes.
pub const FCT_FLOW: u16 = 0x0d0;
/// First of the six registers for latency tolerance messages.
pub const LTM_BELT_IDLE0: u16 = 0x0e0;
/// MAC control register.
pub const MAC_CR: u16 = 0x100;
/// MAC receiver control register.
pub const MAC_RX: u16 = 0x104;
/// MAC transmitter control register.
pub const MAC_TX: u16 = 0x108;
/// Register for flow control by pause frames.
pub const FLOW: u16 = 0x10c;
/// Register with the last two bytes of the own MAC address.
pub const RX_ADDRH: u16 = 0x118;
/// Register with the first four bytes of the own MAC address.
pub const RX_ADDRL: u16 = 0x11c;
/// Register for PHY accesses by the MII management interface.
pub const MII_ACC: u16 = 0x120;
/// Register with the data of a PHY access.
pub const MII_DATA: u16 = 0x124;
/// RGMII clock delays (LAN7801).
pub const MAC_RGMII_ID: u16 = 0x128;
/// Wake-up control and status register.
pub const WUCSR: u16 = 0x140;
/// Wake-up source register.
pub const WK_SRC: u16 = 0x144;
/// Wake-up control, second register.
pub const WUCSR2: u16 = 0x600;
/// RGMII delay lines (LAN7801).
pub const RGMII_TX_BYP_DLL: u16 = 0x708;
/// Base address of the one-time programmable (OTP) memory's registers.
pub const OTP_BASE: u16 = 0x1000;
/// OTP: power-down control.
pub const OTP_PWR_DN: u16 = OTP_BASE;
/// OTP: upper five bits of the address.
pub const OTP_ADDR1: u16 = OTP_BASE + 0x04;
/// OTP: lower eight bits of the address.
pub const OTP_ADDR2: u16 = OTP_BASE + 0x08;
/// OTP: the byte that was read.
pub const OTP_RD_DATA: u16 = OTP_BASE + 0x18;
/// OTP: function, 1 for a read.
pub const OTP_FUNC_CMD: u16 = OTP_BASE + 0x20;
/// OTP: writing 1 starts the function.
pub const OTP_CMD_GO: u16 = OTP_BASE + 0x28;
/// OTP: status, 1 while busy.
pub const OTP_STATUS: u16 = OTP_BASE + 0x30;

/// Returns the address of the register with bytes 4 and 5 of perfect filter `n` (0 to 32) and its flags; the next
/// register has bytes 0 to 3.
pub const fn maf_hi(n: u16) -> u16 {
    0x400 + 8 * n
}

/// Returns the address of the register with bytes 0 to 3 of perfect filter `n`.
pub const fn maf_lo(n: u16) -> u16 {
    0x404 + 8 * n
}

/// Number of perfect filters; filter 0 has the own address.
pub const PERFECT_FILTERS: u16 = 33;
/// Flag of a perfect filter: it is in use.
pub const MAF_VALID: u32 = 1 << 31;
/// Flag of a perfect filter: it compares the source address.
pub const MAF_SOURCE: u32 = 1 << 30;
