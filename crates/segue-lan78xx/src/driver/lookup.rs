//! The user's callbacks for finding a lost device and for link changes.

use crate::regs::Chip as Kind;

use super::LinkState;

/// The result of a search for a lost device.
#[derive(Debug)]
pub enum LookupResult<T> {
    /// The result is not known yet; a later search returns it.
    Unknown,
    /// No device is connected to the lost one's USB port.
    Nothing,
    /// Another device, with these vendor and product ids, is connected to the lost one's USB port; it was not touched.
    Other((u16, u16)),
    /// The lost device was found and opened.
    Back(T),
}

/// Function that searches for a lost device by its chip. A device with another chip must not be taken.
pub type Finder<T> = Box<dyn FnMut(Kind) -> LookupResult<T>>;
/// Callback for each new state of the link.
pub type Listener = Box<dyn FnMut(&LinkState)>;
