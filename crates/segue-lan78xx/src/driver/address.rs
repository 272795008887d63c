//! The adapter's MAC address and its possible sources.

/// The source of the adapter's MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// The address registers of the chip.
    Register,
    /// The platform, for example a device tree.
    Platform,
    /// The EEPROM of the adapter.
    Eeprom,
    /// The OTP memory of the adapter.
    Otp,
    /// A random address was chosen, for lack of another source.
    Random,
    /// The user, by a command-line option.
    User,
}

pub(super) const NO_UNICAST: &str = "an adapter's address must be unicast and not zero";

pub(super) fn is_unicast(mac: [u8; 6]) -> bool {
    segue::wire::ethernet::is_station(mac)
}

/// Returns a random, locally administered unicast address.
pub(super) fn random_address() -> [u8; 6] {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hash keys are random.
    let value = std::collections::hash_map::RandomState::new().build_hasher().finish().to_ne_bytes();
    [value[0] & 0xfc | 0x02, value[1], value[2], value[3], value[4], value[5]]
}
