//! Sockets that the service manager passes to the process that it starts (sd_listen_fds(3)).

pub(crate) mod sys;

use std::os::fd::OwnedFd;

/// Takes over the socket with this name (`FileDescriptorName=` of a socket unit), the first one of several; `None`
/// where the environment names none, names another process, or the socket was taken before.
pub fn passed(name: &str) -> Option<OwnedFd> {
    sys::passed(name)
}
