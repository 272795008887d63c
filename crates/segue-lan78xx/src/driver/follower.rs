//! The host's interface, whose settings the adapter can follow.

use std::os::fd::BorrowedFd;

use segue::time::Nanos;

/// The settings of the host's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Whether the interface is up.
    pub up: bool,
    /// MTU of the interface, bytes.
    pub mtu: usize,
    /// MAC address of the interface.
    pub mac: [u8; 6],
    /// Whether frames to other addresses are to be received, for a bridge, a macvlan or a capture.
    pub promiscuous: bool,
}

/// A source of changes of the host's interface.
pub trait Host {
    /// Returns a descriptor that is readable when the interface has changed.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the interface's settings after the next change, or `None` if there is none. Never waits.
    fn next_change(&mut self) -> Option<Interface>;
}

/// The state of following the host's interface.
#[derive(Default)]
pub(super) struct Follower {
    pub(super) host: Option<Box<dyn Host>>,
    /// The settings to apply.
    pub(super) pending: Option<Interface>,
    /// Time at which a failed attempt is repeated.
    pub(super) again: Option<Nanos>,
    /// The interface's MTU if the chip does not support it.
    pub(super) refused_mtu: Option<usize>,
}
