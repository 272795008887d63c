//! What a port is, and what it counts.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use segue::gso::Limits;
use segue::reason::Counts;

use crate::batch::{RxBatch, TxBatch};
use crate::link::LinkState;

/// One way for packets in and out. Owned by one worker; never blocks.
pub trait Port {
    /// What [`TxBatch::push`] has to split for. It narrows when the kernel refuses what it once took, never widens, except for
    /// the MTU, which follows the interface ([`Port::listen`]).
    fn limits(&self) -> &Limits;

    /// Every offload by its name in statistics, and whether it is in use.
    fn offloads(&self) -> Vec<(&'static str, OffloadState)>;

    /// The descriptor that becomes readable when [`Port::receive`] has work.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The descriptor to wait on, for writing, after [`Sent::Blocked`].
    fn blocked_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }

    /// Reads what waits, up to `budget` reads, and appends it to `into`.
    ///
    /// # Errors
    /// Only what makes the port useless, such as a device that is gone. What one packet did wrong is counted.
    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled>;

    /// Sends what waits in `batch`, in order within a slot, and marks it sent. What it did not take stays.
    ///
    /// A unit that the kernel refuses for good is dropped and counted under a [`Drop`] reason.
    ///
    /// # Errors
    /// Only what makes the port useless.
    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent>;

    /// Joins packets of their own into one call only up to so many bytes from here on; 0 joins none. For ports that do so,
    /// as datagram ports do: what others are handed in one piece is their caller's to limit.
    fn limit_burst(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// For ports that follow their interface: the descriptor that becomes readable when [`Port::listen`] has something to hear.
    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// For ports that follow their interface: hears what has become of it, its MTU above all, which [`Port::limits`] has from
    /// then on. Never waits.
    ///
    /// # Errors
    /// Where the interface is gone for good.
    fn listen(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// What was heard last of the interface; `None` for ports that do not follow one.
    fn link(&self) -> Option<LinkState> {
        None
    }

    /// What happened so far.
    fn counters(&self) -> &Counters;

    /// For datagram ports: the largest IP packet that the way to peer `to` takes, in bytes, as far as the kernel has learned
    /// that.
    fn path_mtu(&self, to: u16) -> Option<usize> {
        let _ = to;
        None
    }

    /// For interfaces that carry Ethernet: the address that the interface has now.
    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    /// Gives every counter that only this kind of port has to `put`, always the same ones in the same order.
    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        let _ = put;
    }

    /// For datagram ports: the addresses of what goes from `slot` to peer `to`.
    fn path(&self, slot: u16, to: u16) -> Option<Path> {
        let _ = (slot, to);
        None
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn limits(&self) -> &Limits {
        (**self).limits()
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        (**self).offloads()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }

    fn blocked_fd(&self) -> BorrowedFd<'_> {
        (**self).blocked_fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        (**self).receive(into, budget)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        (**self).transmit(batch)
    }

    fn limit_burst(&mut self, bytes: usize) {
        (**self).limit_burst(bytes);
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).link_fd()
    }

    fn listen(&mut self) -> io::Result<()> {
        (**self).listen()
    }

    fn link(&self) -> Option<LinkState> {
        (**self).link()
    }

    fn counters(&self) -> &Counters {
        (**self).counters()
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        (**self).extras(put);
    }

    fn path(&self, slot: u16, to: u16) -> Option<Path> {
        (**self).path(slot, to)
    }

    fn path_mtu(&self, to: u16) -> Option<usize> {
        (**self).path_mtu(to)
    }

    fn mac(&self) -> Option<[u8; 6]> {
        (**self).mac()
    }
}

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// Nothing more waits.
    Idle,
    /// The budget is used up; more may wait.
    More,
    /// No page is free; what waits stays in the kernel. Poll again when packets have left.
    Starved,
}

/// How a batch fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The batch is empty.
    All,
    /// The kernel's queue is full. Wait for [`Port::blocked_fd`], or a moment, and call again.
    Blocked,
    /// The port takes less than it did: [`TxBatch::resplit`] for the new limits and call again.
    Narrowed,
}

/// What a counter of [`Port::extras`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Something lost, by reason.
    Drop,
    /// Anything else.
    Number,
}

/// Whether an offload is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadState {
    /// In use.
    On,
    /// Not asked for.
    Off,
    /// The kernel refused it, with this error number.
    Refused(i32),
}

/// The addresses of a datagram port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where a slot sends from.
    pub source: SocketAddr,
    /// Where it sends to.
    pub peer: SocketAddr,
    /// Where the port receives.
    pub listen: SocketAddr,
    /// The IP protocol number: UDP's, or of a raw socket, whose addresses then have port 0.
    pub protocol: u8,
}

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Units that crossed the port: a packet or datagram by itself counts one, and so does a train.
    pub packets: u64,
    /// Bytes of all units, as one system call carried them: whole packets on packet ports, UDP payload on datagram
    /// ports.
    pub bytes: u64,
    /// Units that stood for more than one packet.
    pub trains: u64,
    /// Packets that the units stand for on a wire.
    pub segments: u64,
    /// System calls that moved or tried to move something.
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
    /// What came in.
    pub rx: Direction,
    /// What went out.
    pub tx: Direction,
    /// Bytes over which this port computed a transport checksum in software.
    pub checksummed_bytes: u64,
    /// How often a full kernel queue stopped a batch.
    pub blocked: u64,
    /// What was lost here.
    pub drops: Counts<Drop>,
    /// Where a cheap way was refused and a dearer one taken; nothing was lost.
    pub fallbacks: Counts<Fallback>,
}

segue::reasons! {
    /// Why a port dropped something.
    pub enum Drop {
        QueueFull = "queue_full": "Dropped by the interface's transmit queue because it was full.",
        VnetShort = "vnet_short": "A read from the device was shorter than its header, or empty behind it.",
        GsoType = "gso_type": "A train of a type that is unknown, or that does not fit the packet.",
        GsoHeaders = "gso_headers": "A train whose headers do not parse, are tunnelled, have SYN or RST, or do not cover it.",
        GsoChecksumPlace = "gso_csum_place": "A train whose checksum place is not that of its transport header.",
        GsoSize = "gso_size": "A train with a segment size of 0 or 65535.",
        GsoSegments = "gso_segments": "A UDP train of more than 128 segments.",
        ChecksumBounds = "csum_bounds": "An owed checksum whose place lies past the end of the packet.",
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
    }
}

segue::reasons! {
    /// Why a port took a dearer way.
    pub enum Fallback {
        UdpSegmentIo = "udp_segment_eio": "UDP_SEGMENT failed with EIO where plain sends worked; it is off from there on.",
        UdpSegmentInvalid = "udp_segment_einval": "UDP_SEGMENT failed with EINVAL where plain sends worked; it is off from there on.",
        UdpSegmentSize = "udp_segment_emsgsize": "A run of datagrams was too large for UDP_SEGMENT and was sent plainly.",
        TunTcpTrain = "tun_tso_einval": "The device refused a TCP train; TCP trains are cut in software from there on.",
        TunUdpTrain = "tun_uso_einval": "The device refused a UDP train; UDP trains are cut in software from there on.",
        ForeignChecksum = "foreign_csum": "A packet owed a checksum that is not its own transport's; it was computed at once.",
        PacketTcpTrain = "packet_tso_einval": "The interface refused a TCP train; TCP trains are cut in software from there on.",
        PacketUdpTrain = "packet_uso_einval": "The interface refused a UDP train; UDP trains are cut in software from there on.",
        PendingError = "pending_error": "A send reported an earlier datagram's error and was repeated.",
    }
}
