//! The adapter's Ethernet address: where it may be found.

/// Where the adapter's address was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// In the address registers.
    Register,
    /// The platform said it, such as a device tree.
    Platform,
    /// In the EEPROM.
    Eeprom,
    /// In the OTP memory.
    Otp,
    /// Nowhere: it is a random one.
    Random,
    /// It was given by the user.
    User,
}

pub(super) const NO_UNICAST: &str = "an adapter's address is no multicast and not zero";

pub(super) fn is_unicast(mac: [u8; 6]) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// A random address that belongs to nobody (locally administered).
pub(super) fn random_address() -> [u8; 6] {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hash keys are random.
    let value = std::collections::hash_map::RandomState::new().build_hasher().finish().to_ne_bytes();
    [value[0] & 0xfc | 0x02, value[1], value[2], value[3], value[4], value[5]]
}
