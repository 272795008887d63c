//! Registers of the LAN7800, LAN7801 and LAN7850, the vendor requests that reach them, and the tables behind them.
//!
//! Addresses and bits are those that the Linux driver `lan78xx` and the FreeBSD driver `muge` agree on; where they differ,
//! those of Linux. Driver and model share this file, and nothing else but [`frame`](crate::frame).

/// USB vendor id of the maker.
pub const VENDOR: u16 = 0x0424;

/// The chips of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// Super speed, with a PHY inside.
    Lan7800,
    /// Super speed, for an RGMII PHY outside.
    Lan7801,
    /// High speed, with a PHY inside.
    Lan7850,
}

impl Chip {
    /// USB product id, which is also the upper half of [`ID_REV`].
    pub const fn product(self) -> u16 {
        match self {
            Chip::Lan7800 => 0x7800,
            Chip::Lan7801 => 0x7801,
            Chip::Lan7850 => 0x7850,
        }
    }

    /// The chip of a USB device.
    pub const fn of(vendor: u16, product: u16) -> Option<Chip> {
        match (vendor, product) {
            (VENDOR, 0x7800) => Some(Chip::Lan7800),
            // A branded product with the same chip.
            (VENDOR, 0x7801) | (0x07c9, 0x0012) => Some(Chip::Lan7801),
            (VENDOR, 0x7850) => Some(Chip::Lan7850),
            _ => None,
        }
    }

    /// The chip that [`ID_REV`] names.
    pub const fn of_id(id_rev: u32) -> Option<Chip> {
        Chip::of(VENDOR, (id_rev >> 16) as u16)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Chip::Lan7800 => "LAN7800",
            Chip::Lan7801 => "LAN7801",
            Chip::Lan7850 => "LAN7850",
        }
    }
}

/// Vendor requests, all to the device with `wValue` 0.
pub mod request {
    /// Writes the register `wIndex`; 4 bytes.
    pub const WRITE_REGISTER: u8 = 0xa0;
    /// Reads the register `wIndex`; 4 bytes.
    pub const READ_REGISTER: u8 = 0xa1;
    /// Reads all statistics, [`STATISTICS_LEN`](super::STATISTICS_LEN) bytes.
    pub const READ_STATISTICS: u8 = 0xa2;
    /// `bmRequestType` of vendor requests to the device, host to device.
    pub const OUT: u8 = 0x40;
    /// The same, device to host.
    pub const IN: u8 = 0xc0;
}

/// Endpoint addresses.
pub mod endpoint {
    /// Received frames.
    pub const BULK_IN: u8 = 0x81;
    /// Frames to send.
    pub const BULK_OUT: u8 = 0x02;
    /// Events.
    pub const INTERRUPT: u8 = 0x83;
    /// Bytes of an interrupt packet: [`INT_STS`](super::INT_STS).
    pub const INTERRUPT_LEN: usize = 4;
}

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

/// Bits of [`INT_STS`] and [`INT_EP_CTL`].
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
    /// In [`INT_EP_CTL`](super::INT_EP_CTL): the endpoint answers also without news.
    pub const INTEP_ON: u32 = 1 << 31;
    /// Bits that stand for an event.
    pub const EVENTS: u32 = 0x0770_ffff | PHY | RX_DIS | TX_DIS;
}

/// Bits of [`HW_CFG`].
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

/// Bits of [`PMT_CTL`].
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
    /// In [`DP_SEL`](super::DP_SEL): idle.
    pub const READY: u32 = 1 << 31;
    /// In [`DP_SEL`](super::DP_SEL): the RAM of the VLAN and address tables.
    pub const VLAN_DA_RAM: u32 = 1;
    /// In [`DP_SEL`](super::DP_SEL): the bits that select.
    pub const SELECT: u32 = 0xf;
    /// In [`DP_CMD`](super::DP_CMD): write.
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

/// Bits of [`USB_CFG0`].
pub mod usb_cfg0 {
    /// An empty bulk-in endpoint answers NAK, not a zero-length packet.
    pub const BIR: u32 = 1 << 6;
    /// [`BURST_CAP`](super::BURST_CAP) is in force.
    pub const BCE: u32 = 1 << 5;
    /// Loss of sync does not stall bulk-out.
    pub const NO_STALL: u32 = 1;
}

/// Bits of [`USB_CFG1`].
pub mod usb_cfg1 {
    /// The device may ask for U2.
    pub const U2_INIT_EN: u32 = 1 << 12;
    /// The device may ask for U1.
    pub const U1_INIT_EN: u32 = 1 << 10;
    /// Latency tolerance messages.
    pub const LTM_ENABLE: u32 = 1 << 8;
}

/// Bits of [`RFE_CTL`].
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

/// Bits of [`FCT_RX_CTL`] and [`FCT_TX_CTL`].
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

/// Bits of [`MAC_CR`].
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

/// Bits of [`MAC_RX`].
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

/// Bits of [`MAC_TX`].
pub mod mac_tx {
    /// Has stopped.
    pub const TXD: u32 = 1 << 1;
    /// Runs.
    pub const TXEN: u32 = 1;
}

/// Bits of [`FLOW`].
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

/// PHY access.
pub mod mii {
    /// In [`MII_ACC`](super::MII_ACC): runs.
    pub const BUSY: u32 = 1;
    /// In [`MII_ACC`](super::MII_ACC): write.
    pub const WRITE: u32 = 1 << 1;
    /// The inside PHY's address.
    pub const INTERNAL: u8 = 1;

    /// The word that starts an access.
    pub const fn access(phy: u8, register: u8, write: bool) -> u32 {
        (phy as u32) << 11 | (register as u32) << 6 | if write { WRITE } else { 0 } | BUSY
    }

    /// Control (IEEE 802.3, 22.2.4.1).
    pub const BMCR: u8 = 0;
    /// Status (22.2.4.2).
    pub const BMSR: u8 = 1;
    /// Identifier, first half.
    pub const ID1: u8 = 2;
    /// Identifier, second half.
    pub const ID2: u8 = 3;
    /// What is advertised (28.2.4.1.3).
    pub const ADVERTISE: u8 = 4;
    /// What the partner advertises.
    pub const LPA: u8 = 5;
    /// Autonegotiation expansion.
    pub const EXPANSION: u8 = 6;
    /// 1000BASE-T control (40.5.1.1).
    pub const CTRL1000: u8 = 9;
    /// 1000BASE-T status.
    pub const STAT1000: u8 = 10;
    /// Address of a register of a device inside the PHY: which device, and what is done (22.2.4.3.11).
    pub const MMD_CONTROL: u8 = 13;
    /// Its address or data.
    pub const MMD_DATA: u8 = 14;
    /// Extended status.
    pub const ESTATUS: u8 = 15;
    /// Interrupt mask of the inside PHY.
    pub const INT_MASK: u8 = 0x19;
    /// Interrupt status of the inside PHY; reading clears.
    pub const INT_STATUS: u8 = 0x1a;
    /// Page of registers 0x10 to 0x1e.
    pub const PAGE: u8 = 0x1f;

    /// In [`BMCR`]: reset.
    pub const BMCR_RESET: u16 = 1 << 15;
    /// In [`BMCR`]: 100 Mbit/s.
    pub const BMCR_SPEED100: u16 = 1 << 13;
    /// In [`BMCR`]: autonegotiation.
    pub const BMCR_AN_ENABLE: u16 = 1 << 12;
    /// In [`BMCR`]: powered down.
    pub const BMCR_POWER_DOWN: u16 = 1 << 11;
    /// In [`BMCR`]: isolated from the MAC.
    pub const BMCR_ISOLATE: u16 = 1 << 10;
    /// In [`BMCR`]: negotiate anew.
    pub const BMCR_AN_RESTART: u16 = 1 << 9;
    /// In [`BMCR`]: full duplex.
    pub const BMCR_FULL_DUPLEX: u16 = 1 << 8;
    /// In [`BMCR`]: 1000 Mbit/s.
    pub const BMCR_SPEED1000: u16 = 1 << 6;
    /// In [`BMSR`]: link; once down it stays down until it is read.
    pub const BMSR_LINK: u16 = 1 << 2;
    /// In [`BMSR`]: autonegotiation is complete.
    pub const BMSR_AN_COMPLETE: u16 = 1 << 5;
    /// In [`ADVERTISE`] and [`LPA`]: symmetric pause.
    pub const PAUSE: u16 = 1 << 10;
    /// In [`ADVERTISE`] and [`LPA`]: asymmetric pause.
    pub const PAUSE_ASYM: u16 = 1 << 11;
    /// In [`ADVERTISE`] and [`LPA`]: 100BASE-TX full duplex.
    pub const FULL100: u16 = 1 << 8;
    /// In [`ADVERTISE`] and [`LPA`]: 100BASE-TX half duplex.
    pub const HALF100: u16 = 1 << 7;
    /// In [`ADVERTISE`] and [`LPA`]: 10BASE-T full duplex.
    pub const FULL10: u16 = 1 << 6;
    /// In [`ADVERTISE`] and [`LPA`]: 10BASE-T half duplex.
    pub const HALF10: u16 = 1 << 5;
    /// In [`CTRL1000`]: 1000BASE-T full duplex is advertised.
    pub const ADV_FULL1000: u16 = 1 << 9;
    /// In [`STAT1000`]: the partner has 1000BASE-T full duplex.
    pub const LPA_FULL1000: u16 = 1 << 11;
    /// In [`INT_MASK`] and [`INT_STATUS`]: the interrupt itself.
    pub const INT_ENABLE: u16 = 1 << 15;
    /// In [`INT_MASK`] and [`INT_STATUS`]: the link has changed.
    pub const INT_LINK: u16 = 1 << 13;
    /// In [`INT_MASK`] and [`INT_STATUS`]: autonegotiation is complete.
    pub const INT_AN_DONE: u16 = 1 << 10;
    /// In [`MMD_CONTROL`]: data, no address increment.
    pub const MMD_NO_INCREMENT: u16 = 1 << 14;
    /// The device for autonegotiation.
    pub const MMD_AN: u16 = 7;
    /// In it: which speeds are advertised with EEE.
    pub const MMD_AN_EEE_ADV: u16 = 60;
}

/// Bytes of the answer to [`request::READ_STATISTICS`].
pub const STATISTICS_LEN: usize = STATISTICS.len() * 4;

/// A counter of the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// Its name in the Linux driver's ethtool statistics.
    pub ethtool: &'static str,
    /// The same for segue's JSON and metrics.
    pub name: &'static str,
    /// The largest value before it wraps to zero.
    pub max: u32,
}

const fn counter(ethtool: &'static str, name: &'static str) -> Statistic {
    Statistic { ethtool, name, max: 0xf_ffff }
}

const fn wide(ethtool: &'static str, name: &'static str) -> Statistic {
    Statistic { ethtool, name, max: u32::MAX }
}

/// Every counter, in the order of the answer. Most have 20 bits.
pub const STATISTICS: [Statistic; 47] = [
    counter("RX FCS Errors", "rx_fcs_errors"),
    counter("RX Alignment Errors", "rx_alignment_errors"),
    counter("Rx Fragment Errors", "rx_fragment_errors"),
    counter("RX Jabber Errors", "rx_jabber_errors"),
    counter("RX Undersize Frame Errors", "rx_undersize_frame_errors"),
    counter("RX Oversize Frame Errors", "rx_oversize_frame_errors"),
    counter("RX Dropped Frames", "rx_dropped_frames"),
    wide("RX Unicast Byte Count", "rx_unicast_byte_count"),
    wide("RX Broadcast Byte Count", "rx_broadcast_byte_count"),
    wide("RX Multicast Byte Count", "rx_multicast_byte_count"),
    counter("RX Unicast Frames", "rx_unicast_frames"),
    counter("RX Broadcast Frames", "rx_broadcast_frames"),
    counter("RX Multicast Frames", "rx_multicast_frames"),
    counter("RX Pause Frames", "rx_pause_frames"),
    counter("RX 64 Byte Frames", "rx_64_byte_frames"),
    counter("RX 65 - 127 Byte Frames", "rx_65_127_byte_frames"),
    counter("RX 128 - 255 Byte Frames", "rx_128_255_byte_frames"),
    counter("RX 256 - 511 Bytes Frames", "rx_256_511_byte_frames"),
    counter("RX 512 - 1023 Byte Frames", "rx_512_1023_byte_frames"),
    counter("RX 1024 - 1518 Byte Frames", "rx_1024_1518_byte_frames"),
    counter("RX Greater 1518 Byte Frames", "rx_greater_1518_byte_frames"),
    wide("EEE RX LPI Transitions", "eee_rx_lpi_transitions"),
    wide("EEE RX LPI Time", "eee_rx_lpi_time"),
    counter("TX FCS Errors", "tx_fcs_errors"),
    counter("TX Excess Deferral Errors", "tx_excess_deferral_errors"),
    counter("TX Carrier Errors", "tx_carrier_errors"),
    counter("TX Bad Byte Count", "tx_bad_byte_count"),
    counter("TX Single Collisions", "tx_single_collisions"),
    counter("TX Multiple Collisions", "tx_multiple_collisions"),
    counter("TX Excessive Collision", "tx_excessive_collision"),
    counter("TX Late Collisions", "tx_late_collisions"),
    wide("TX Unicast Byte Count", "tx_unicast_byte_count"),
    wide("TX Broadcast Byte Count", "tx_broadcast_byte_count"),
    wide("TX Multicast Byte Count", "tx_multicast_byte_count"),
    counter("TX Unicast Frames", "tx_unicast_frames"),
    counter("TX Broadcast Frames", "tx_broadcast_frames"),
    counter("TX Multicast Frames", "tx_multicast_frames"),
    counter("TX Pause Frames", "tx_pause_frames"),
    counter("TX 64 Byte Frames", "tx_64_byte_frames"),
    counter("TX 65 - 127 Byte Frames", "tx_65_127_byte_frames"),
    counter("TX 128 - 255 Byte Frames", "tx_128_255_byte_frames"),
    counter("TX 256 - 511 Bytes Frames", "tx_256_511_byte_frames"),
    counter("TX 512 - 1023 Byte Frames", "tx_512_1023_byte_frames"),
    counter("TX 1024 - 1518 Byte Frames", "tx_1024_1518_byte_frames"),
    counter("TX Greater 1518 Byte Frames", "tx_greater_1518_byte_frames"),
    wide("EEE TX LPI Transitions", "eee_tx_lpi_transitions"),
    wide("EEE TX LPI Time", "eee_tx_lpi_time"),
];

/// Places in [`STATISTICS`].
pub mod stat {
    /// Frames received with a wrong FCS.
    pub const RX_FCS: usize = 0;
    /// Frames received with a dribble.
    pub const RX_ALIGNMENT: usize = 1;
    /// Short frames received with a wrong FCS.
    pub const RX_FRAGMENT: usize = 2;
    /// Long frames received with a wrong FCS.
    pub const RX_JABBER: usize = 3;
    /// Short frames received.
    pub const RX_UNDERSIZE: usize = 4;
    /// Long frames received.
    pub const RX_OVERSIZE: usize = 5;
    /// Frames dropped because the FIFO was full.
    pub const RX_DROPPED: usize = 6;
    /// Bytes received: unicast, broadcast, multicast.
    pub const RX_BYTES: usize = 7;
    /// Frames received: unicast, broadcast, multicast.
    pub const RX_FRAMES: usize = 10;
    /// Pause frames received.
    pub const RX_PAUSE: usize = 13;
    /// The first of seven classes of length, received.
    pub const RX_SIZES: usize = 14;
    /// Frames sent with a wrong FCS.
    pub const TX_FCS: usize = 23;
    /// Frames lost because there was no link.
    pub const TX_CARRIER: usize = 25;
    /// Bytes sent: unicast, broadcast, multicast.
    pub const TX_BYTES: usize = 31;
    /// Frames sent: unicast, broadcast, multicast.
    pub const TX_FRAMES: usize = 34;
    /// Pause frames sent.
    pub const TX_PAUSE: usize = 37;
    /// The first of seven classes of length, sent.
    pub const TX_SIZES: usize = 38;
}

/// The bit of the 512-bit address hash for an address: the top nine bits of the CRC-32 of its bytes (IEEE 802.3, 3.2.9),
/// its bits taken in the order of the polynomial and without the final inversion.
pub const fn address_hash(address: [u8; 6]) -> u16 {
    (crc32_state(u32::MAX, &address).reverse_bits() >> 23) as u16
}

/// The frame check sequence over `bytes` (IEEE 802.3, 3.2.9): little-endian behind the frame.
pub fn fcs(bytes: &[u8]) -> u32 {
    let mut state = u32::MAX;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let low = state ^ u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        state = TABLES[7][(low & 0xff) as usize]
            ^ TABLES[6][(low >> 8 & 0xff) as usize]
            ^ TABLES[5][(low >> 16 & 0xff) as usize]
            ^ TABLES[4][(low >> 24) as usize]
            ^ TABLES[3][chunk[4] as usize]
            ^ TABLES[2][chunk[5] as usize]
            ^ TABLES[1][chunk[6] as usize]
            ^ TABLES[0][chunk[7] as usize];
    }
    !crc32_state(state, chunks.remainder())
}

const fn crc32_state(mut state: u32, bytes: &[u8]) -> u32 {
    let mut at = 0;
    while at < bytes.len() {
        state = TABLES[0][((state ^ bytes[at] as u32) & 0xff) as usize] ^ state >> 8;
        at += 1;
    }
    state
}

/// For each byte value, what it does to the CRC 0 to 7 bytes later.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0_u32; 256]; 8];
    let mut value = 0;
    while value < 256 {
        let mut crc = value as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { 0xedb8_8320 ^ crc >> 1 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][value] = crc;
        value += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut value = 0;
        while value < 256 {
            let before = tables[table - 1][value];
            tables[table][value] = tables[0][(before & 0xff) as usize] ^ before >> 8;
            value += 1;
        }
        table += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_hash_gives_the_known_bits() {
        for (address, bit) in [
            ([0x01, 0x00, 0x5e, 0, 0, 0x01], 255),
            ([0x01, 0x00, 0x5e, 0, 0, 0xfb], 126),
            ([0x33, 0x33, 0, 0, 0, 1], 499),
            ([0x33, 0x33, 0xff, 0x12, 0x34, 0x56], 23),
            ([0x01, 0x80, 0xc2, 0, 0, 0x0e], 270),
        ] {
            assert_eq!(address_hash(address), bit, "{address:02x?}");
        }
    }

    #[test]
    fn the_frame_check_sequence_is_the_crc_of_ieee_802_3() {
        assert_eq!(fcs(b"123456789"), 0xcbf4_3926);
        assert_eq!(fcs(b""), 0);
        for len in 0..64 {
            let bytes: Vec<u8> = (0..len).map(|n: u8| n.wrapping_mul(37)).collect();
            assert_eq!(fcs(&bytes), !crc32_state(u32::MAX, &bytes), "{len} bytes");
        }
    }

    #[test]
    fn the_statistics_are_47_words_of_20_or_32_bits() {
        assert_eq!(STATISTICS_LEN, 188);
        let wide: Vec<usize> = (0..47).filter(|&n| STATISTICS[n].max == u32::MAX).collect();
        assert_eq!(wide, [7, 8, 9, 21, 22, 31, 32, 33, 45, 46]);
        assert_eq!(STATISTICS[stat::TX_PAUSE].ethtool, "TX Pause Frames");
        assert_eq!(STATISTICS[stat::TX_SIZES].ethtool, "TX 64 Byte Frames");
        assert_eq!(STATISTICS[stat::RX_SIZES + 6].ethtool, "RX Greater 1518 Byte Frames");
    }

    #[test]
    fn the_word_for_a_phy_access_is_the_known_one() {
        assert_eq!(mii::access(1, 1, false), 0x0841);
    }
}
