//! Chips of the LAN78xx family.

/// USB vendor id of the manufacturer.
pub const VENDOR: u16 = 0x0424;

/// Chips of the LAN78xx family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// LAN7800: SuperSpeed, with an internal PHY.
    Lan7800,
    /// LAN7801: SuperSpeed, for an external RGMII PHY.
    Lan7801,
    /// LAN7850: high speed, with an internal PHY.
    Lan7850,
}

impl Chip {
    /// Returns the USB product id, which is also the upper half of [`ID_REV`](crate::regs::ID_REV).
    pub const fn product(self) -> u16 {
        match self {
            Chip::Lan7800 => 0x7800,
            Chip::Lan7801 => 0x7801,
            Chip::Lan7850 => 0x7850,
        }
    }

    /// Returns the chip with the given USB vendor and product id, or `None`.
    pub const fn of(vendor: u16, product: u16) -> Option<Chip> {
        match (vendor, product) {
            (VENDOR, 0x7800) => Some(Chip::Lan7800),
            // The second id is a branded product with the same chip.
            (VENDOR, 0x7801) | (0x07c9, 0x0012) => Some(Chip::Lan7801),
            (VENDOR, 0x7850) => Some(Chip::Lan7850),
            _ => None,
        }
    }

    /// Returns the chip named by the register [`ID_REV`](crate::regs::ID_REV).
    pub const fn of_id(id_rev: u32) -> Option<Chip> {
        Chip::of(VENDOR, (id_rev >> 16) as u16)
    }

    /// Returns the chip's name.
    pub const fn name(self) -> &'static str {
        match self {
            Chip::Lan7800 => "LAN7800",
            Chip::Lan7801 => "LAN7801",
            Chip::Lan7850 => "LAN7850",
        }
    }
}
