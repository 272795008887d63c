//! Configuration of a guest's port, the source of its front ends, and the keys of its state.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

/// The source of front ends.
#[derive(Debug)]
pub enum Source {
    /// A listening socket at which the port accepts one front end at a time.
    Listener(UnixListener),
    /// One connected front end, and none after it.
    Connected(UnixStream),
    /// A SOCK_SEQPACKET socket, over which another process sends a connection with each message of one byte: one for
    /// each front end, after the preceding one has ended.
    Supplied(OwnedFd),
}

/// Configuration of a vhost-user port.
#[derive(Clone, Copy, Debug)]
pub struct VhostConfig {
    /// Longest IP packet in bytes; `usize::MAX` for any.
    pub mtu: usize,
}

/// Key of the counter that is 1 while a front end is connected.
pub const GUEST_CONNECTED: &str = "guest_connected";
/// Key of the counter that is 1 while the guest's driver is ready.
pub const GUEST_READY: &str = "guest_ready";
/// Key of the counter that is 1 while the guest offers no buffers.
pub const GUEST_STALLED: &str = "guest_stalled";
/// Key of the reason of the last stop: 0 without one, else 1 more than its index among [`Stop`](super::Stop).
pub const LAST_STOP: &str = "last_stop";
