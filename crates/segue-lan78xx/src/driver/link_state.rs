//! The state of the link.

/// What the link is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Whether it is up.
    pub up: bool,
    /// Mbit/s.
    pub mbit: u32,
    /// Whether both sides may send at once.
    pub full_duplex: bool,
    /// Whether pause frames of the partner are obeyed.
    pub rx_pause: bool,
    /// Whether pause frames are sent.
    pub tx_pause: bool,
}
