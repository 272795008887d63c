//! The settings of the receive filter.

/// Frames to receive besides broadcasts and those to the own address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Whether all frames are received.
    pub promiscuous: bool,
    /// Whether all multicast frames are received.
    pub all_multicast: bool,
    /// Frames to these multicast addresses: the first 32 are matched exactly, further ones by a hash that also accepts
    /// some other addresses.
    pub multicast: Vec<[u8; 6]>,
    /// VLAN ids of the tagged frames to receive; `None` for all.
    pub vlans: Option<Vec<u16>>,
}
