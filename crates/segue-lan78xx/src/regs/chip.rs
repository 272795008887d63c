//! The chips of the family.

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
    /// USB product id, which is also the upper half of [`ID_REV`](crate::regs::ID_REV).
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

    /// The chip that [`ID_REV`](crate::regs::ID_REV) names.
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
