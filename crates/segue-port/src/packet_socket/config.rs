//! The configuration of a packet port, and the resulting ring.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use segue::wire::ethernet;

use super::sys;
use crate::page::MIN_PAGE_LEN;
use crate::sys::page_len;
use crate::tun::MAX_FRAME;

/// Number of bytes in front of a frame in its slot: the ring's header, an address, the virtio header, and rounding.
const SLOT_OVERHEAD: usize = 80;
/// Alignment of slots (`TPACKET_ALIGNMENT`), bytes.
const SLOT_ALIGN: usize = 16;
/// Default length of the ring's pages, bytes.
const DEFAULT_PAGE_LEN: usize = 1 << 15;
/// Length of a slot in bytes if a page cannot hold a frame of the interface's MTU: enough for a frame of 1500.
const SHORT_SLOT_LEN: usize = 2048;

/// Configuration of a packet port to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Name of the interface to open.
    pub interface: String,
    /// Size in bytes of the receive ring, which the kernel keeps in memory. A ring of the default 8 MiB takes 5000
    /// frames of 1500 bytes: 6 ms at 10 Gbit/s.
    pub ring_bytes: usize,
    /// Placement of frames in the ring.
    pub buffers: Buffers,
    /// Trains that the port accepts for sending.
    pub trains: Trains,
}

impl PacketConfig {
    /// Returns the defaults for an interface.
    pub fn new(interface: impl Into<String>) -> PacketConfig {
        PacketConfig {
            interface: interface.into(),
            ring_bytes: 8 << 20,
            buffers: Buffers::Pages(DEFAULT_PAGE_LEN),
            trains: Trains::All,
        }
    }
}

/// Placement of received frames in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Buffers {
    /// Slots lie in pages of the given length in bytes, a power of two from 4096 to 65536; a frame longer than a page
    /// spans several. Frames do not cross the pages of the ring; one that is longer than a page comes through the
    /// socket's queue.
    Pages(usize),
    /// Each frame lies in a buffer of its own.
    Frames,
}

/// Trains that a packet port accepts for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trains {
    /// TCP and UDP trains; the kernel segments them if the interface cannot.
    All,
    /// TCP trains only, for kernels before 6.2.
    NoUdp,
    /// No trains: the port segments all of them.
    None,
}

/// Reason for which a port could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// No interface has this name.
    NoInterface(String),
    /// The interface carries no Ethernet frames.
    NotEthernet(String),
    /// The process lacks CAP_NET_RAW.
    Denied(io::Error),
    /// Another system call failed.
    Call(&'static str, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoInterface(name) => write!(f, "there is no interface {name}"),
            OpenError::NotEthernet(name) => write!(f, "{name} carries no Ethernet frames"),
            OpenError::Denied(error) => write!(f, "not permitted to open a packet socket: {error}"),
            OpenError::Call(call, error) => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Denied(error) | OpenError::Call(_, error) => Some(error),
            OpenError::NoInterface(_) | OpenError::NotEthernet(_) => None,
        }
    }
}

/// Dimensions of a receive ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingShape {
    pub(super) blocks: usize,
    pub(super) block_len: usize,
    pub(super) slot_len: usize,
}

impl RingShape {
    /// Returns the dimensions for frames of an interface with the given MTU.
    pub(super) fn of(mtu: usize, config: &PacketConfig) -> RingShape {
        let frame = SLOT_OVERHEAD + (mtu + ethernet::LEN + 2 * ethernet::VLAN_LEN).min(MAX_FRAME);
        // A block is a multiple of the kernel's page.
        let (slot_len, block_len) = match config.buffers {
            Buffers::Pages(len) => {
                let block_len = len.clamp(MIN_PAGE_LEN, 1 << 16).next_multiple_of(page_len());
                let slot_len = frame.next_multiple_of(SLOT_ALIGN);
                (if slot_len > block_len { SHORT_SLOT_LEN } else { slot_len }, block_len)
            }
            Buffers::Frames => {
                let slot_len = frame.next_multiple_of(page_len());
                (slot_len, slot_len)
            }
        };
        let blocks = (config.ring_bytes / block_len).clamp(2, 1 << 16);
        RingShape { blocks, block_len, slot_len }
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> usize {
        self.blocks * (self.block_len / self.slot_len)
    }

    /// Creates the receive ring of a socket with these dimensions.
    pub(super) fn make(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let narrow = |len: usize| u32::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
        sys::receive_ring(fd, narrow(self.blocks)?, narrow(self.block_len)?, narrow(self.slot_len)?)
    }

    /// Removes the receive ring of a socket, which must not be mapped, and creates another one.
    pub(super) fn make_again(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        RingShape { blocks: 0, ..*self }.make(fd)?;
        self.make(fd)
    }
}
