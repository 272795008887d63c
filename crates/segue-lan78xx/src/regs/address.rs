//! Addresses of registers.

/// Chip and revision.
pub const ID_REV: u16 = 0x000;
/// Interrupt status; writing a 1 clears the bit.
pub const INT_STS: u16 = 0x00c;
/// Hardware configuration.
pub const HW_CFG: u16 = 0x010;
/// Power management.
pub const PMT_CTL: u16 = 0x014;
/// Data port: which RAM, and whether it is idle.
pub const DP_SEL: u16 = 0x024;
/// Data port: 1 writes, 0 reads.
pub const DP_CMD: u16 = 0x028;
/// Data port: address in the RAM, in words.
pub const DP_ADDR: u16 = 0x02c;
/// Data port: the word.
pub const DP_DATA: u16 = 0x030;
/// EEPROM command.
pub const E2P_CMD: u16 = 0x040;
/// EEPROM byte.
pub const E2P_DATA: u16 = 0x044;
/// USB configuration.
pub const USB_CFG0: u16 = 0x080;
/// USB link power management.
pub const USB_CFG1: u16 = 0x084;
/// Most packets of one bulk-in transfer.
pub const BURST_CAP: u16 = 0x090;
/// How long a bulk-in transfer waits for more, in cycles of 60 MHz.
pub const BULK_IN_DLY: u16 = 0x094;
/// Which interrupts the interrupt endpoint reports.
pub const INT_EP_CTL: u16 = 0x098;
/// Receive filter and checksum engines.
pub const RFE_CTL: u16 = 0x0b0;
/// Ethertype of VLAN tags.
pub const VLAN_TYPE: u16 = 0x0b4;
/// Receive FIFO.
pub const FCT_RX_CTL: u16 = 0x0c0;
/// Transmit FIFO.
pub const FCT_TX_CTL: u16 = 0x0c4;
/// Size of the receive FIFO, in units of 512 bytes, less 1.
pub const FCT_RX_FIFO_END: u16 = 0x0c8;
/// Size of the transmit FIFO.
pub const FCT_TX_FIFO_END: u16 = 0x0cc;
/// Fill levels of the receive FIFO at which pause frames are sent, in units of 512 bytes.
pub const FCT_FLOW: u16 = 0x0d0;
/// The first of six words of latency tolerance messages.
pub const LTM_BELT_IDLE0: u16 = 0x0e0;
/// MAC control.
pub const MAC_CR: u16 = 0x100;
/// MAC receiver.
pub const MAC_RX: u16 = 0x104;
/// MAC transmitter.
pub const MAC_TX: u16 = 0x108;
/// Flow control.
pub const FLOW: u16 = 0x10c;
/// Own address, last two bytes.
pub const RX_ADDRH: u16 = 0x118;
/// Own address, first four bytes.
pub const RX_ADDRL: u16 = 0x11c;
/// PHY access.
pub const MII_ACC: u16 = 0x120;
/// PHY data.
pub const MII_DATA: u16 = 0x124;
/// Clock delays of the RGMII (LAN7801).
pub const MAC_RGMII_ID: u16 = 0x128;
/// Wake-up control.
pub const WUCSR: u16 = 0x140;
/// What woke the chip.
pub const WK_SRC: u16 = 0x144;
/// Wake-up control, second part.
pub const WUCSR2: u16 = 0x600;
/// Delay lines of the RGMII (LAN7801).
pub const RGMII_TX_BYP_DLL: u16 = 0x708;
/// Base of the block for one-time programmable memory.
pub const OTP_BASE: u16 = 0x1000;
/// OTP: power down.
pub const OTP_PWR_DN: u16 = OTP_BASE;
/// OTP: high five bits of the address.
pub const OTP_ADDR1: u16 = OTP_BASE + 0x04;
/// OTP: low eight bits of the address.
pub const OTP_ADDR2: u16 = OTP_BASE + 0x08;
/// OTP: the byte read.
pub const OTP_RD_DATA: u16 = OTP_BASE + 0x18;
/// OTP: 1 reads.
pub const OTP_FUNC_CMD: u16 = OTP_BASE + 0x20;
/// OTP: 1 starts.
pub const OTP_CMD_GO: u16 = OTP_BASE + 0x28;
/// OTP: 1 while busy.
pub const OTP_STATUS: u16 = OTP_BASE + 0x30;

/// The register with bytes 4 and 5 of perfect filter `n` (0 to 32), and its flags; the next word has bytes 0 to 3.
pub const fn maf_hi(n: u16) -> u16 {
    0x400 + 8 * n
}

/// The register with bytes 0 to 3 of perfect filter `n`.
pub const fn maf_lo(n: u16) -> u16 {
    0x404 + 8 * n
}

/// Perfect filters; number 0 is the own address.
pub const PERFECT_FILTERS: u16 = 33;
/// A perfect filter that is in use.
pub const MAF_VALID: u32 = 1 << 31;
/// A perfect filter that looks at source addresses.
pub const MAF_SOURCE: u32 = 1 << 30;
