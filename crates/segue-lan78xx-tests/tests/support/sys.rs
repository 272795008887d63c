//! System calls of the tests.
#![allow(unsafe_code, reason = "TCP_REPAIR has no safe wrapper")]

use std::os::fd::AsRawFd;

/// Drops a TCP connection without notice to its peer, like a machine that lost power; `false` without CAP_NET_ADMIN.
pub(crate) fn vanish(socket: socket2::Socket) -> bool {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the option's value is an int of this stack frame, whose size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    result == 0
}
