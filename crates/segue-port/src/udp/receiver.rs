//! The state of the receive side.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::failures::ReadFailures;
use crate::messages::{Received, RecvScratch};
use crate::page::{Carver, PageMut};
use crate::sys;

/// The state of the receive side, and its reused memory.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) carver: Carver<Received>,
    pub(super) scratch: RecvScratch,
    pub(super) pages: Vec<PageMut>,
    pub(super) small: u32,
    pub(super) overflow: Overflow,
    pub(super) failures: ReadFailures,
}

impl Receiver {
    /// Returns the state of a port that receives on this socket.
    pub(super) fn new(socket: &OwnedFd) -> Receiver {
        Receiver {
            carver: Carver::default(),
            scratch: RecvScratch::default(),
            pages: Vec::new(),
            small: 0,
            overflow: Overflow::of(socket),
            failures: ReadFailures::default(),
        }
    }
}

/// The datagrams that the kernel has dropped because the queue of a socket was full, or by its filter.
///
/// Their number is read from the socket ([`sys::dropped`]) and not taken from the datagrams (`SO_RXQ_OVFL`): for a
/// datagram of the kernel's own TCP, as of a VXLAN device on the same machine, Linux up to 6.18 with hardened copies to
/// user space ends the thread that receives it instead of handing over that number.
#[derive(Debug)]
pub(super) struct Overflow {
    counted: u32,
    /// Estimated memory of what was received since the number was read, in bytes.
    received: usize,
    /// Estimated memory after which the number is read again: less than a full queue has.
    most: usize,
}

impl Overflow {
    /// Least memory that is estimated for a datagram, in bytes: drivers take a page for a short one.
    const LEAST: usize = 4096;
    /// Largest memory after which the number is read, in bytes.
    const MOST: usize = 1 << 20;

    /// Returns the state for this socket, which begins with what was dropped before. A socket of an earlier program has
    /// `SO_RXQ_OVFL`, and loses it.
    pub(super) fn of(socket: &OwnedFd) -> Overflow {
        let _ = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 0);
        let room = sys::option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        let most = usize::try_from(room).unwrap_or(0) / 4;
        let counted = sys::dropped(socket.as_fd()).unwrap_or(0);
        Overflow { counted, received: 0, most: most.clamp(Overflow::LEAST, Overflow::MOST) }
    }

    /// Accounts for a receive of so many bytes. Returns the number of datagrams that were dropped since the number was
    /// read last, where it is time to read it.
    pub(super) fn after(&mut self, socket: BorrowedFd<'_>, len: usize) -> u32 {
        self.received += len.max(Overflow::LEAST);
        if self.received < self.most {
            return 0;
        }
        self.received = 0;
        let now = sys::dropped(socket).unwrap_or(self.counted);
        let more = now.wrapping_sub(self.counted);
        self.counted = now;
        more
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::super::UdpConfig;
    use super::super::sockets::receiving_socket;
    use super::*;

    fn socket() -> OwnedFd {
        let here = Ipv4Addr::LOCALHOST;
        let config =
            UdpConfig { buffer_len: 1 << 16, ..UdpConfig::new(here.into(), 0, SocketAddr::new(here.into(), 9)) };
        receiving_socket(&config, false).unwrap()
    }

    /// Tests that datagrams do not bring the number of those that were dropped ([`Overflow`] says why).
    #[test]
    fn a_receiving_socket_has_no_number_of_drops_with_each_datagram() {
        let socket = socket();
        let is_on = || sys::option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL).unwrap() != 0;
        assert!(!is_on());
        // As one that an earlier program hands over.
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1).unwrap();
        assert!(is_on());
        Overflow::of(&socket);
        assert!(!is_on());
    }

    #[test]
    fn drops_are_read_before_a_full_queue_is_empty_and_not_for_each_datagram() {
        let socket = socket();
        let mut overflow = Overflow::of(&socket);
        // Twice what was asked for (socket(7)).
        assert_eq!(overflow.most, 1 << 15);
        overflow.counted = u32::MAX;
        let read = |overflow: &mut Overflow, len| overflow.after(socket.as_fd(), len);
        let short: Vec<u32> = (0..9).map(|_| read(&mut overflow, 60)).collect();
        assert_eq!(short, [0, 0, 0, 0, 0, 0, 0, 1, 0], "each counts as a page");
        assert_eq!((overflow.counted, read(&mut overflow, 1 << 16), overflow.received), (0, 0, 0));
    }
}
