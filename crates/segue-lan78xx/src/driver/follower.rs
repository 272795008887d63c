//! The host's interface, which the adapter may follow.

use std::os::fd::BorrowedFd;

use segue::time::Nanos;

/// What the host's interface is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Whether it is up.
    pub up: bool,
    /// Largest packet.
    pub mtu: usize,
    /// Its address.
    pub mac: [u8; 6],
    /// Whether frames to other addresses are wanted: by a bridge, a macvlan, a capture.
    pub promiscuous: bool,
}

/// Hears of the host's interface.
pub trait Host {
    /// Readable when there is news.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The interface as it has become, each state once. Never waits.
    fn news(&mut self) -> Option<Interface>;
}

/// Follows the host's interface.
#[derive(Default)]
pub(super) struct Follower {
    pub(super) host: Option<Box<dyn Host>>,
    /// What is to be done, and when it is tried again.
    pub(super) wanted: Option<Interface>,
    pub(super) again: Option<Nanos>,
    /// The interface's MTU where the chip does not take it.
    pub(super) refused_mtu: Option<usize>,
}
