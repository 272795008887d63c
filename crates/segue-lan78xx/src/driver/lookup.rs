//! How a device that went away is found again.

use crate::regs::Chip as Kind;

use super::LinkState;

/// What a look for a device that went away has found.
#[derive(Debug)]
pub enum LookupResult<T> {
    /// It is not known yet: a later look says it.
    Unknown,
    /// There is nothing in the device's place.
    Nothing,
    /// There is another device, with these vendor and product ids, which was not touched.
    Other((u16, u16)),
    /// The device, taken.
    Back(T),
}

/// Finds a device again that went away, by its chip: what has another one is nobody's to take.
pub type Finder<T> = Box<dyn FnMut(Kind) -> LookupResult<T>>;
/// Hears of the link.
pub type Listener = Box<dyn FnMut(&LinkState)>;
