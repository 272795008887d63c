//! PHY registers and the word that accesses them (IEEE 802.3, clause 22).

/// Bit of [`MII_ACC`](crate::regs::MII_ACC): an access is in progress.
pub const BUSY: u32 = 1;
/// Bit of [`MII_ACC`](crate::regs::MII_ACC): the access is a write.
pub const WRITE: u32 = 1 << 1;
/// Address of the internal PHY.
pub const INTERNAL: u8 = 1;

/// Returns the word that starts an access to a register of a PHY.
pub const fn access(phy: u8, register: u8, write: bool) -> u32 {
    (phy as u32) << 11 | (register as u32) << 6 | if write { WRITE } else { 0 } | BUSY
}

/// Register: control (IEEE 802.3, 22.2.4.1).
pub const BMCR: u8 = 0;
/// Register: status (22.2.4.2).
pub const BMSR: u8 = 1;
/// Register: PHY identifier, first half.
pub const ID1: u8 = 2;
/// Register: PHY identifier, second half.
pub const ID2: u8 = 3;
/// Register: autonegotiation advertisement (28.2.4.1.3).
pub const ADVERTISE: u8 = 4;
/// Register: the link partner's advertisement.
pub const LPA: u8 = 5;
/// Register: autonegotiation expansion.
pub const EXPANSION: u8 = 6;
/// Register: 1000BASE-T control (40.5.1.1).
pub const CTRL1000: u8 = 9;
/// Register: 1000BASE-T status.
pub const STAT1000: u8 = 10;
/// Register: MMD access control, the device and the function (22.2.4.3.11).
pub const MMD_CONTROL: u8 = 13;
/// Register: MMD access address or data.
pub const MMD_DATA: u8 = 14;
/// Register: extended status.
pub const ESTATUS: u8 = 15;
/// Register of the internal PHY: interrupt mask.
pub const INT_MASK: u8 = 0x19;
/// Register of the internal PHY: interrupt status; reading clears it.
pub const INT_STATUS: u8 = 0x1a;
/// Register of the internal PHY: page of the registers 0x10 to 0x1e.
pub const PAGE: u8 = 0x1f;

/// Bit of [`BMCR`]: reset.
pub const BMCR_RESET: u16 = 1 << 15;
/// Bit of [`BMCR`]: speed 100 Mbit/s.
pub const BMCR_SPEED100: u16 = 1 << 13;
/// Bit of [`BMCR`]: autonegotiation is enabled.
pub const BMCR_AN_ENABLE: u16 = 1 << 12;
/// Bit of [`BMCR`]: the PHY is powered down.
pub const BMCR_POWER_DOWN: u16 = 1 << 11;
/// Bit of [`BMCR`]: isolated from the MAC.
pub const BMCR_ISOLATE: u16 = 1 << 10;
/// Bit of [`BMCR`]: restart autonegotiation.
pub const BMCR_AN_RESTART: u16 = 1 << 9;
/// Bit of [`BMCR`]: full duplex.
pub const BMCR_FULL_DUPLEX: u16 = 1 << 8;
/// Bit of [`BMCR`]: speed 1000 Mbit/s.
pub const BMCR_SPEED1000: u16 = 1 << 6;
/// Bit of [`BMSR`]: link status; it stays 0 after a link loss until it is read.
pub const BMSR_LINK: u16 = 1 << 2;
/// Bit of [`BMSR`]: autonegotiation is complete.
pub const BMSR_AN_COMPLETE: u16 = 1 << 5;
/// Bit of [`ADVERTISE`] and [`LPA`]: symmetric pause.
pub const PAUSE: u16 = 1 << 10;
/// Bit of [`ADVERTISE`] and [`LPA`]: asymmetric pause.
pub const PAUSE_ASYM: u16 = 1 << 11;
/// Bit of [`ADVERTISE`] and [`LPA`]: 100BASE-TX full duplex.
pub const FULL100: u16 = 1 << 8;
/// Bit of [`ADVERTISE`] and [`LPA`]: 100BASE-TX half duplex.
pub const HALF100: u16 = 1 << 7;
/// Bit of [`ADVERTISE`] and [`LPA`]: 10BASE-T full duplex.
pub const FULL10: u16 = 1 << 6;
/// Bit of [`ADVERTISE`] and [`LPA`]: 10BASE-T half duplex.
pub const HALF10: u16 = 1 << 5;
/// Bit of [`CTRL1000`]: 1000BASE-T full duplex is advertised.
pub const ADV_FULL1000: u16 = 1 << 9;
/// Bit of [`STAT1000`]: the link partner can do 1000BASE-T full duplex.
pub const LPA_FULL1000: u16 = 1 << 11;
/// Bit of [`INT_MASK`] and [`INT_STATUS`]: interrupts are enabled, or pending.
pub const INT_ENABLE: u16 = 1 << 15;
/// Bit of [`INT_MASK`] and [`INT_STATUS`]: the link has changed.
pub const INT_LINK: u16 = 1 << 13;
/// Bit of [`INT_MASK`] and [`INT_STATUS`]: autonegotiation is complete.
pub const INT_AN_DONE: u16 = 1 << 10;
/// Bit of [`MMD_CONTROL`]: access data without address increment.
pub const MMD_NO_INCREMENT: u16 = 1 << 14;
/// Number of the MMD device for autonegotiation.
pub const MMD_AN: u16 = 7;
/// Register of [`MMD_AN`]: the speeds advertised with Energy-Efficient Ethernet.
pub const MMD_AN_EEE_ADV: u16 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_for_a_phy_access_is_the_known_one() {
        assert_eq!(access(1, 1, false), 0x0841);
    }
}
