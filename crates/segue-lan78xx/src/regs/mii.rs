//! PHY access.

/// In [`MII_ACC`](crate::regs::MII_ACC): runs.
pub const BUSY: u32 = 1;
/// In [`MII_ACC`](crate::regs::MII_ACC): write.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_for_a_phy_access_is_the_known_one() {
        assert_eq!(access(1, 1, false), 0x0841);
    }
}
