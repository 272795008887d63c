//! The trait of all ports, and their counters.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use segue::gso::Limits;
use segue::reason::Counts;

use crate::batch::{RxBatch, TxBatch};
use crate::link::LinkState;

/// Number of bytes after which a port that reads one packet, train or burst at a time ends a poll, as if its budget
/// were used up: data read by a poll should still be in the cache when it is sent. Single packets end a poll by their
/// number.
pub(crate) const MOST_BYTES: usize = 1 << 20;

/// An interface or socket where packets enter and leave. Owned by one worker; no method blocks.
pub trait Port {
    /// Returns the limits for which [`TxBatch::push`] must split. They narrow when the kernel refuses a train of a kind
    /// that it once took, and never widen, except for the MTU, which follows the interface ([`Port::listen`]).
    fn limits(&self) -> &Limits;

    /// Returns every offload by its name in statistics, and whether it is in use.
    fn offloads(&self) -> Vec<(&'static str, OffloadState)>;

    /// Returns the descriptor that becomes readable when [`Port::receive`] has work.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the descriptor to wait on after [`Sent::Blocked`], for writing unless [`Port::blocked_event`] has
    /// another event.
    fn blocked_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }

    /// Returns the event of [`Port::blocked_fd`] to wait for.
    fn blocked_event(&self) -> Blocked {
        Blocked::Writable
    }

    /// Receives available packets, up to `budget` reads, and appends them to `into`. A packet that is no train is
    /// appended unparsed ([`Received::Frame`](crate::Received::Frame)) where a few bytes tell the state of its
    /// checksum.
    ///
    /// # Errors
    /// Only for an event that makes the port useless, such as the loss of its device. Faults of single packets are
    /// counted.
    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled>;

    /// Sends the unsent units of `batch`, in order within a slot, and marks them as sent. Units that were not taken
    /// stay.
    ///
    /// A unit that the kernel refuses permanently is dropped and counted under a [`Drop`] reason.
    ///
    /// # Errors
    /// Only for an event that makes the port useless.
    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent>;

    /// Limits the bytes that a datagram port joins into one call; 0 disables joining. Trains that other ports are
    /// handed are limited by their caller.
    fn limit_burst(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Replaces the peers of a datagram port that sends by message: a packet's
    /// [`Outer::to`](segue::packet::Outer::to) is an index of `peers` from then on. No packet may wait in a batch of
    /// the port meanwhile. Other ports ignore it.
    fn set_peers(&mut self, peers: &Arc<[SocketAddr]>) {
        let _ = peers;
    }

    /// Returns the descriptor that becomes readable when [`Port::listen`] has work; `None` for ports that do not follow
    /// their interface.
    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads the state of the interface, for ports that follow it; [`Port::limits`] returns its MTU afterwards. Never
    /// waits.
    ///
    /// # Errors
    /// Where the interface was deleted.
    fn listen(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Returns whether [`Port::listen`] has done a part of longer work and is to be called again at once.
    fn is_busy(&self) -> bool {
        false
    }

    /// Returns the last read state of the interface; `None` for ports that do not follow one.
    fn link(&self) -> Option<LinkState> {
        None
    }

    /// Returns whether sent packets can arrive: the interface is up, or a guest is ready.
    fn is_up(&self) -> bool {
        self.link().is_none_or(|link| link.is_up)
    }

    /// Returns the port's counters.
    fn counters(&self) -> &Counters;

    /// Returns the path MTU to peer `to` in bytes, for datagram ports, if the kernel has learned it.
    fn path_mtu(&self, to: u16) -> Option<usize> {
        let _ = to;
        None
    }

    /// Returns the present address of an Ethernet interface.
    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    /// Writes every counter specific to this kind of port to `put`, always the same ones in the same order.
    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        let _ = put;
    }

    /// Returns the addresses of datagrams from `slot` to peer `to`, for datagram ports.
    fn path(&self, slot: u16, to: u16) -> Option<Path> {
        let _ = (slot, to);
        None
    }
}

/// Defines those methods of a [`Port`] wrapper that only forward to the inner port: all but receiving, sending and the
/// counters. `pass_on!(self, self.inner)`: the names of the wrapper and of the port in it.
macro_rules! pass_on {
    ($this:ident, $inner:expr) => {
        fn limits(&$this) -> &Limits {
            $inner.limits()
        }

        fn offloads(&$this) -> Vec<(&'static str, OffloadState)> {
            $inner.offloads()
        }

        fn fd(&$this) -> BorrowedFd<'_> {
            $inner.fd()
        }

        fn blocked_fd(&$this) -> BorrowedFd<'_> {
            $inner.blocked_fd()
        }

        fn blocked_event(&$this) -> Blocked {
            $inner.blocked_event()
        }

        fn limit_burst(&mut $this, bytes: usize) {
            $inner.limit_burst(bytes);
        }

        fn set_peers(&mut $this, peers: &Arc<[SocketAddr]>) {
            $inner.set_peers(peers);
        }

        fn link_fd(&$this) -> Option<BorrowedFd<'_>> {
            $inner.link_fd()
        }

        fn listen(&mut $this) -> io::Result<()> {
            $inner.listen()
        }

        fn is_busy(&$this) -> bool {
            $inner.is_busy()
        }

        fn link(&$this) -> Option<LinkState> {
            $inner.link()
        }

        fn is_up(&$this) -> bool {
            $inner.is_up()
        }

        fn path_mtu(&$this, to: u16) -> Option<usize> {
            $inner.path_mtu(to)
        }

        fn mac(&$this) -> Option<[u8; 6]> {
            $inner.mac()
        }

        fn path(&$this, slot: u16, to: u16) -> Option<Path> {
            $inner.path(slot, to)
        }
    };
}
pub(crate) use pass_on;

impl<P: Port + ?Sized> Port for Box<P> {
    pass_on!(self, (**self));

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        (**self).receive(into, budget)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        (**self).transmit(batch)
    }

    fn counters(&self) -> &Counters {
        (**self).counters()
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        (**self).extras(put);
    }
}

/// Result of a receive poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// No more packets are queued.
    Idle,
    /// The budget is used up; more may wait.
    More,
    /// No page is free, or a held packet will soon stop the receive ring; further packets stay in the kernel. Poll
    /// again when the packets that are held have left.
    Starved,
}

/// Result of sending a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All packets of the batch were sent.
    All,
    /// The kernel's queue is full. Wait for [`Port::blocked_fd`], or a moment, and call again.
    Blocked,
    /// The port's limits have narrowed. Call [`TxBatch::resplit`] with them and send again.
    Narrowed,
}

/// Event that ends [`Sent::Blocked`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The descriptor is writable: the kernel's queue has room.
    Writable,
    /// The descriptor, which is never writable, is readable: a guest has offered buffers, or the wait for buffers is
    /// over.
    Readable,
}

/// Kind of a counter of [`Port::extras`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Number of lost packets, by reason.
    Drop,
    /// A further number of any other kind.
    Number,
}

/// Whether an offload is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadState {
    /// The offload is in use.
    On,
    /// The offload was not requested.
    Off,
    /// The kernel refused the offload, with this error number.
    Refused(i32),
}

/// The addresses of a datagram port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Source address of the slot.
    pub source: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Address at which the port receives.
    pub listen: SocketAddr,
    /// IP protocol number: UDP, or that of a raw socket, whose addresses have port 0.
    pub protocol: u8,
}

/// Counters of the traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Number of units that crossed the port; a single packet or datagram counts one, and so does a train.
    pub packets: u64,
    /// Number of bytes of all units: whole packets on packet ports, UDP payload on datagram ports.
    pub bytes: u64,
    /// Number of units that stood for more than one packet.
    pub trains: u64,
    /// Number of packets on a wire that the units stand for.
    pub segments: u64,
    /// Number of system calls that moved or tried to move packets.
    pub calls: u64,
}

impl Direction {
    pub(crate) fn add(&mut self, bytes: usize, segments: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
        self.trains += u64::from(segments > 1);
        self.segments += segments as u64;
    }
}

/// The counters of a port: plain numbers with one writer, copied for publication.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Counters of received traffic.
    pub rx: Direction,
    /// Counters of sent traffic.
    pub tx: Direction,
    /// Number of bytes over which this port computed a transport checksum in software.
    pub checksummed_bytes: u64,
    /// Number of times that a full kernel queue stopped a batch.
    pub blocked: u64,
    /// Numbers of packets dropped by this port, by reason.
    pub drops: Counts<Drop>,
    /// Numbers of cases in which the kernel refused a cheap operation and a more expensive one was used. Nothing was
    /// lost.
    pub fallbacks: Counts<Fallback>,
}

segue::reasons! {
    /// Reason for which a port dropped a packet.
    pub enum Drop {
        QueueFull = "queue_full": "Dropped by the interface's transmit queue because it was full.",
        VnetShort = "vnet_short": "A read from the device was shorter than its header, or empty after it.",
        GsoType = "gso_type": "A train of a type that is unknown, or that does not fit the packet.",
        GsoHeaders = "gso_headers": "A train whose headers do not parse, are tunnelled, have SYN or RST, or do not cover it.",
        GsoChecksumPlace = "gso_csum_place": "A train whose csum_start and csum_offset do not match its transport header.",
        GsoSize = "gso_size": "A train with a segment size of 0 or 65535.",
        GsoSegments = "gso_segments": "A UDP train of more than 128 segments.",
        ChecksumBounds = "csum_bounds": "A partial checksum whose field lies past the end of the packet.",
        NoMemory = "no_memory": "The kernel had no memory to send it.",
        NoPage = "no_page": "No page was free to finish a packet in.",
        Truncated = "truncated": "A datagram longer than a page's window.",
        Empty = "empty": "A datagram without payload.",
        RemcsumNoOuterCsum = "remcsum_no_outer_csum": "A datagram with the remote checksum option and no outer UDP checksum.",
        SocketOverflow = "socket_overflow": "Dropped by the kernel at the receiving socket: it was full or, rarely, an outer checksum was wrong.",
        DeviceDown = "device_down": "The device was down.",
        TooBig = "too_big": "Larger than the path takes, and not to be fragmented.",
        Unreachable = "unreachable": "No route, or the network or host is reported unreachable.",
        Denied = "denied": "Refused by a local filter or policy.",
        Refused = "refused": "The kernel refused it in plain form.",
        NoOuter = "no_outer": "A packet without outer headers at a datagram port.",
        RingStopped = "ring_stopped": "Dropped by the kernel, which had stopped filling the receive ring, since its virtio-net header cannot describe a train that came.",
    }
}

segue::reasons! {
    /// Reason for which a port used a more expensive operation.
    pub enum Fallback {
        UdpSegmentIo = "udp_segment_eio": "UDP_SEGMENT failed with EIO where plain sends worked; it is tried again after a second.",
        UdpSegmentInvalid = "udp_segment_einval": "UDP_SEGMENT failed with EINVAL where plain sends worked; it is tried again after a second.",
        UdpSegmentSize = "udp_segment_emsgsize": "A run of datagrams was too large for UDP_SEGMENT and was sent plainly.",
        TunTcpTrain = "tun_tso_einval": "The device refused a TCP train; TCP trains are cut in software from there on.",
        TunUdpTrain = "tun_uso_einval": "The device refused a UDP train; UDP trains are cut in software from there on.",
        ForeignChecksum = "foreign_csum": "A packet owed a checksum that is not its own transport's; it was computed at once.",
        PacketTcpTrain = "packet_tso_einval": "The interface refused a TCP train; TCP trains are cut in software from there on.",
        PacketUdpTrain = "packet_uso_einval": "The interface refused a UDP train; UDP trains are cut in software from there on.",
        PendingError = "pending_error": "A send reported an earlier datagram's error and was repeated.",
        ReadFailed = "read_failed": "A read failed with an error that passes, such as a lack of memory; it is repeated.",
        TapTunnelTrain = "tap_tunnel_einval": "The device refused a train in a UDP tunnel; such trains are cut in software from there on.",
    }
}
