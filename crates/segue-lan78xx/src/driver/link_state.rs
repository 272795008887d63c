//! The state of the link.

/// The state and the negotiated settings of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Whether the link is up.
    pub up: bool,
    /// Link speed in Mbit/s.
    pub mbit: u32,
    /// Whether the link is full duplex.
    pub full_duplex: bool,
    /// Whether pause frames of the partner are obeyed.
    pub rx_pause: bool,
    /// Whether pause frames are sent.
    pub tx_pause: bool,
}
