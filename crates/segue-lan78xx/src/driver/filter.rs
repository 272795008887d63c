//! The receive filter as its user sets it.

/// Which frames are received besides those to the own address and broadcasts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// All of them.
    pub promiscuous: bool,
    /// All multicasts.
    pub all_multicast: bool,
    /// These multicasts: the first 32 exactly, further ones by a hash that lets others through too.
    pub multicast: Vec<[u8; 6]>,
    /// Tagged frames with these ids only; `None` for all.
    pub vlans: Option<Vec<u16>>,
}
