//! Notifications of changes: the multicast groups of rtnetlink, parsed only to find out which state to read again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Multicast groups of rtnetlink: link, IPv4 address and route, IPv6 address and route.
const ROUTES: [u32; 5] = [1, 5, 7, 9, 11];
/// Multicast group of rtnetlink for neighbours.
const NEIGHBOURS: u32 = 3;
/// Message types RTM_NEWLINK and RTM_DELLINK (linux/rtnetlink.h).
const LINKS: [u16; 2] = [16, 17];
/// Largest number of datagrams read at a time.
const MOST: usize = 1024;

/// The changes since the last read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Indexes of the links that have changed, each once.
    pub links: Vec<u32>,
    /// Whether a link, an address, a route or a neighbour has changed.
    pub anything: bool,
    /// Whether notices were lost, so that every link may have changed.
    pub lost: bool,
}

/// A connection over which the kernel reports changes.
pub struct Changes {
    socket: Socket,
}

impl Changes {
    /// Opens the connection; it needs no rights.
    pub fn open() -> io::Result<Changes> {
        let changes = Changes::of_routes()?;
        changes.socket.add_membership(NEIGHBOURS)?;
        Ok(changes)
    }

    /// Opens a connection without reports of neighbours, which change all the time; it needs no rights.
    pub fn of_routes() -> io::Result<Changes> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        ROUTES.iter().try_for_each(|group| socket.add_membership(*group))?;
        socket.set_non_blocking(true)?;
        Ok(Changes { socket })
    }

    /// Reads the queued notices of changes. Never waits.
    pub fn read(&mut self) -> io::Result<Changed> {
        let mut changed = Changed::default();
        let mut bytes = Vec::with_capacity(1 << 15);
        for _ in 0..MOST {
            bytes.clear();
            match self.socket.recv(&mut bytes, 0) {
                Ok(_) => changed.add(&bytes),
                // The receive buffer overflowed. What else waits keeps the descriptor readable.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    (changed.anything, changed.lost) = (true, true);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        changed.links.sort_unstable();
        changed.links.dedup();
        Ok(changed)
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Changed {
    /// Adds the changes reported by one datagram: `struct nlmsghdr` (length, type), for links followed by `struct
    /// ifinfomsg`.
    pub fn add(&mut self, datagram: &[u8]) {
        const HEADER: usize = 16;
        let mut rest = datagram;
        while let (Some(len), Some(kind)) = (rest.first_chunk::<4>(), rest.get(4..).and_then(<[u8]>::first_chunk::<2>))
        {
            self.anything = true;
            let len = u32::from_ne_bytes(*len) as usize;
            let index = rest.get(HEADER + 4..).and_then(<[u8]>::first_chunk::<4>);
            if let (true, Some(index)) = (LINKS.contains(&u16::from_ne_bytes(*kind)), index) {
                self.links.push(u32::from_ne_bytes(*index));
            }
            rest = rest.get(len.max(HEADER).next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_named_and_messages_that_are_cut_off_end_the_reading() {
        let message = |kind: u16, index: u32| {
            let mut bytes = vec![0; 32];
            bytes[..4].copy_from_slice(&32_u32.to_ne_bytes());
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[20..24].copy_from_slice(&index.to_ne_bytes());
            bytes
        };
        let bytes = [message(16, 7), message(24, 9), message(17, 8)].concat();
        let mut changed = Changed::default();
        changed.add(&bytes);
        assert_eq!(changed, Changed { links: vec![7, 8], anything: true, lost: false });
        for len in 0..bytes.len() {
            Changed::default().add(&bytes[..len]);
        }
        let mut nothing = Changed::default();
        nothing.add(&[]);
        assert_eq!(nothing, Changed::default());
    }
}
