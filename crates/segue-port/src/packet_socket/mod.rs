//! Packet sockets (AF_PACKET), which carry whole Ethernet frames of one interface, and trains where the kernel has
//! some.
//!
//! Frames are received into a ring that the kernel fills (`TPACKET_V2`) and stay there: a packet refers to its slot,
//! which goes back to the kernel when the packet is done with. A slot has room for a frame of the interface's MTU;
//! longer ones, which are trains of this host or of the kernel's GRO, are read from the socket's queue. Blocks of
//! variable length (`TPACKET_V3`) would take trains in one place, but a block is handed over only when it is full or a
//! timer of at least one millisecond has run out, too late for something in the middle of a wire.
//!
//! The kernel's copy into the ring is the only one. A ring was chosen over `recvmmsg` into pages because the receiving
//! thread makes no system call for a frame and copies nothing itself; `docs/bench.md` has the figures.
//! `PACKET_QDISC_BYPASS` would bypass the traffic shaping of an operator, so it is not used.
//!
//! The ring's blocks are the *pages* of [`Buffers::Pages`]: as many frames lie in one as fit, and each is counted and
//! given back by itself. The kernel puts no frame across two blocks, so that a frame that a page does not hold comes
//! through the queue, from which it is read into as many pages as it needs. With [`Buffers::Frames`] a block holds one
//! frame.
//!
//! Every frame has a virtio-net header in both directions. VLAN tags, which the kernel takes out of the frame, are put
//! back. The socket is promiscuous and does not receive frames that this host sends.
//!
//! **The socket is a tap**: the host's own stack receives every frame as well. An interface of a gateway must have no
//! addresses, or the host answers too.

mod config;
mod frame;
mod socket;
pub(crate) mod sys;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use segue::gso::Limits;
use segue::packet::{Frag, GsoKind, Start};
use segue::wire::ethernet;
use segue::wire::virtio::VirtioNet;

use self::config::RingShape;
pub use self::config::{Buffers, OpenError, PacketConfig, Trains};
pub use self::frame::restored;
use self::frame::{Header, emit_native, status};
pub use self::socket::PacketSocket;
use self::sys::VNET_LEN;
use crate::batch::{RxBatch, TxBatch};
use crate::link::{LinkState, LinkWatch};
use crate::messages::SendScratch;
use crate::mmap::Memory;
use crate::page::{Page, RingPages, Scatter};
use crate::port::{Counters, Drop, Fallback, OffloadState, Polled, Port, Sent};
use crate::sys::{MAX_MESSAGES, option};
use crate::vnet;

/// Number of consecutive empty polls after which the port checks whether its interface still exists: poll(2) returns at
/// once as long as an error is pending.
const CHECK_AFTER: u32 = 16;
/// Number of reads of a frame from the queue while the interface goes down again and again.
const MAX_TRIES: u32 = 8;

/// A port for an interface, through a packet socket.
///
/// ```no_run
/// use segue_port::packet_socket::{PacketConfig, PacketPort};
/// use segue_port::{Polled, Port, RxBatch};
///
/// let mut port = PacketPort::open(&PacketConfig::new("eth0"))?;
/// let mut batch = RxBatch::new(64);
/// while port.receive(&mut batch, 64)? != Polled::Idle {
///     while let Some(packet) = batch.pop_packet() {
///         batch.pool.put(packet); // after it was sent elsewhere: TxBatch::push, Port::transmit
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PacketPort {
    fd: OwnedFd,
    name: String,
    trains: Trains,
    ring: RingPages,
    limits: Limits,
    counters: Counters,
    scatter: Scatter,
    frames: Vec<Frame>,
    scratch: SendScratch,
    headers: Vec<[u8; VNET_LEN]>,
    watch: LinkWatch,
    timer: File,
    events: OwnedFd,
    shape: RingShape,
    /// Whether the ring was empty at the last look at it, and no slot was taken since.
    is_quiet: bool,
    /// Number of consecutive empty polls.
    empty: u32,
    #[cfg(test)]
    refuse_trains: Option<i32>,
}

/// A frame of the current poll.
#[derive(Debug)]
struct Frame {
    /// Slot of the frame; `None` for a frame from the queue.
    slot: Option<Page>,
    /// Range of the frame, in the slot or in the pages into which the queue was read.
    range: Range<usize>,
    vnet: VirtioNet,
}

impl From<PacketSocket> for PacketPort {
    /// Makes the port, which maps the ring when it first receives. A process that was forked before has no mapping of
    /// it, which would keep the kernel from replacing the ring.
    fn from(socket: PacketSocket) -> PacketPort {
        let PacketSocket { fd, name, trains, shape, limits, watch, timer, events } = socket;
        PacketPort {
            fd,
            name,
            trains,
            ring: RingPages::new(Vec::new()),
            limits,
            counters: Counters::default(),
            scatter: Scatter::default(),
            frames: Vec::new(),
            scratch: SendScratch::default(),
            headers: Vec::new(),
            watch,
            timer,
            events,
            shape,
            is_quiet: false,
            empty: 0,
            #[cfg(test)]
            refuse_trains: None,
        }
    }
}

impl PacketSocket {
    /// Maps the ring and makes the port.
    ///
    /// # Errors
    /// Where the ring cannot be mapped.
    pub fn map(self) -> Result<PacketPort, OpenError> {
        let mut port = PacketPort::from(self);
        port.map_ring().map_err(|error| OpenError::Call("mmap", error))?;
        Ok(port)
    }
}

impl PacketPort {
    /// Opens an interface for packets. It need not be up. The receive ring is mapped by the first
    /// [`receive`](Port::receive).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: &PacketConfig) -> Result<PacketPort, OpenError> {
        PacketSocket::open(config, None).map(PacketPort::from)
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of frames of the interface's MTU that the ring holds.
    pub fn ring_frames(&self) -> usize {
        self.shape.slots()
    }

    /// Maps the ring, if it is not mapped.
    fn map_ring(&mut self) -> io::Result<()> {
        if self.ring.len() == 0 {
            let RingShape { blocks, block_len, slot_len } = self.shape;
            self.ring = RingPages::new(Memory::map(self.fd.as_fd(), blocks, block_len, slot_len)?);
        }
        Ok(())
    }

    /// Takes one frame from the ring. `None` where the ring is empty. The frame is appended to the batch, unless one
    /// that was read from the queue, whose pages are not frozen yet, is in front of it.
    fn take(&mut self, into: &mut RxBatch) -> Option<()> {
        let mut page = self.ring.claim()?;
        self.is_quiet = false;
        let bytes = page.bytes_mut();
        let Some(header) = Header::parse(bytes) else {
            self.counters.drops.add(Drop::VnetShort);
            return Some(());
        };
        if header.status & status::LOSING != 0 {
            self.count_drops();
        }
        if header.status & status::COPY != 0 {
            self.take_from_queue(&header);
        } else if let Some(frame) = header.frame() {
            match header.restore(bytes, frame) {
                Some((vnet, range)) => {
                    let slot = page.freeze(range.end);
                    if self.frames.is_empty() {
                        let frag = Frag::new(slot, range);
                        vnet::deliver_piece(&vnet, frag, Start::Ethernet, into, &mut self.counters);
                    } else {
                        self.frames.push(Frame { slot: Some(slot), range, vnet });
                    }
                }
                None => self.counters.drops.add(Drop::VnetShort),
            }
        } else {
            // The frame did not fit the slot, and the queue was full.
            self.counters.drops.add(Drop::SocketOverflow);
        }
        Some(())
    }

    /// Reads a frame that exceeded its slot from the socket's queue.
    fn take_from_queue(&mut self, header: &Header) {
        // Room for a tag in front.
        let got = match self.read_queue(ethernet::VLAN_LEN) {
            Ok(got) if got == header.len + VNET_LEN => got,
            // Another frame than the ring announced, or one that is longer than any packet can be.
            _ => return self.counters.drops.add(Drop::Truncated),
        };
        let start = ethernet::VLAN_LEN + VNET_LEN;
        let frame = start..ethernet::VLAN_LEN + got;
        match header.restore(self.scatter.front(), frame) {
            Some((vnet, range)) => {
                let range = self.scatter.commit(range);
                self.frames.push(Frame { slot: None, range, vnet });
            }
            None => self.counters.drops.add(Drop::VnetShort),
        }
    }

    /// Reads the next frame of the socket's queue after `skip` bytes. That the interface went down is reported in the
    /// place of a frame, which stays in the queue; left there, it would be taken for each one that the ring announces
    /// later.
    fn read_queue(&mut self, skip: usize) -> io::Result<usize> {
        let mut tries = 0;
        loop {
            self.counters.rx.calls += 1;
            tries += 1;
            match self.scatter.read(self.fd.as_fd(), skip) {
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) && tries < MAX_TRIES => {}
                done => return done,
            }
        }
    }

    /// Appends the received frames to the batch, in order.
    fn deliver(&mut self, into: &mut RxBatch) {
        let PacketPort { frames, counters, scatter, .. } = self;
        scatter.freeze();
        for Frame { slot, range, vnet } in frames.drain(..) {
            match slot {
                Some(slot) => {
                    vnet::deliver_piece(&vnet, Frag::new(slot, range), Start::Ethernet, into, counters);
                }
                None => vnet::deliver(&vnet, scatter.frags(range), Start::Ethernet, into, counters),
            }
        }
        scatter.release();
    }

    fn count_drops(&mut self) {
        if let Ok(drops) = sys::take_drops(self.fd.as_fd()) {
            self.counters.drops.add_many(Drop::SocketOverflow, u64::from(drops));
        }
    }

    /// Looks whether the kernel has stopped filling the ring, and replaces such a ring. The kernel takes a slot for a
    /// frame and keeps it for ever if the virtio-net header cannot describe the frame: a train of SCTP, or one of UDP
    /// as IP fragments (UFO), which a guest or container may send. Every later frame is dropped then, and no poll
    /// reports anything (`tpacket_rcv`).
    ///
    /// # Errors
    /// Where no other ring can be made.
    fn check_ring(&mut self) -> io::Result<()> {
        if self.ring.len() == 0 {
            return Ok(());
        }
        let dropped = sys::take_drops(self.fd.as_fd()).unwrap_or(0);
        let is_empty = self.ring.is_unused();
        // A ring that was empty at both looks, and of which nothing was taken in between, has dropped nothing.
        if dropped > 0 && is_empty && self.is_quiet {
            self.counters.drops.add_many(Drop::RingStopped, u64::from(dropped));
            notice!(
                warn,
                id = "port",
                interface = self.name,
                "the kernel stopped filling the receive ring; it is replaced"
            );
            // No page is referenced, so that the memory is unmapped. Where another process has a mapping too, the old
            // ring stays, and the next look tries again.
            self.ring = RingPages::new(Vec::new());
            match self.shape.make_again(self.fd.as_fd()) {
                Err(error) if error.raw_os_error() != Some(libc::EBUSY) => return Err(error),
                _ => self.map_ring()?,
            }
        } else {
            self.counters.drops.add_many(Drop::SocketOverflow, u64::from(dropped));
        }
        self.is_quiet = is_empty;
        Ok(())
    }

    /// Reads the kernel's counters after an empty poll, and an error that would keep the descriptor readable. The error
    /// of an interface that is down is ignored, that of a deleted one is returned.
    fn check_interface(&mut self) -> io::Result<()> {
        self.empty += 1;
        if self.empty == 1 {
            self.count_drops();
        }
        if self.empty.is_multiple_of(CHECK_AFTER) {
            let Ok(error) = option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR) else { return Ok(()) };
            if error != 0 && (error != libc::ENETDOWN || sys::is_unbound(self.fd.as_fd())) {
                return Err(io::Error::from_raw_os_error(error));
            }
        }
        Ok(())
    }

    /// Sends as many units as one call takes. Returns the number that the kernel took, or its error for the first.
    fn send(&mut self, batch: &TxBatch) -> io::Result<usize> {
        let PacketPort { headers, scratch, fd, .. } = self;
        headers.clear();
        for unit in batch.units().take(MAX_MESSAGES) {
            #[cfg(test)]
            if let (Some(errno), Some(_), true) = (self.refuse_trains, unit.gso(), headers.is_empty()) {
                return Err(io::Error::from_raw_os_error(errno));
            }
            match vnet::header_of(&unit) {
                Some(header) => headers.push(emit_native(&header)),
                None if headers.is_empty() => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
                None => break,
            }
            #[cfg(test)]
            if self.refuse_trains.is_some() {
                break;
            }
        }
        let mut out = scratch.begin();
        for (unit, header) in batch.units().zip(headers.iter()) {
            out.message();
            out.piece(header);
            out.piece(unit.head());
            for piece in unit.pieces() {
                out.piece(piece);
            }
        }
        out.send(fd.as_fd(), None, 0)
    }

    /// Stops accepting trains of `kind`.
    fn narrow(&mut self, kind: GsoKind) {
        self.limits.refuse(kind);
        self.counters.fallbacks.add(match kind {
            GsoKind::Tcp => Fallback::PacketTcpTrain,
            GsoKind::Udp => Fallback::PacketUdpTrain,
        });
        notice!(
            info,
            id = "offload",
            interface = self.name,
            ?kind,
            "the interface refused a train; such trains are cut in software"
        );
    }
}

impl Port for PacketPort {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        let state = |wanted: bool, taken: bool| match (wanted, taken) {
            (false, _) => OffloadState::Off,
            (true, true) => OffloadState::On,
            (true, false) => OffloadState::Refused(libc::EINVAL),
        };
        vec![
            ("packet_csum", OffloadState::On),
            ("packet_tso", state(self.trains != Trains::None, self.limits.tso4)),
            ("packet_uso", state(self.trains == Trains::All, self.limits.uso)),
        ]
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        self.map_ring()?;
        let mut polled = Polled::More;
        for read in 0..budget {
            // Whether a frame needs it is known only when its slot has been taken.
            if !self.scatter.make_room(&mut into.pages) {
                polled = Polled::Starved;
                break;
            }
            if self.take(into).is_none() {
                polled = Polled::Idle;
                if read == 0 {
                    self.check_interface()?;
                }
                break;
            }
            self.empty = 0;
            if self.ring.take_held_up() {
                // The ring stops at a slot that is still in use, and it does not matter by how few.
                polled = Polled::Starved;
                break;
            }
        }
        self.deliver(into);
        Ok(polled)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let mut is_again = false;
        loop {
            let Some(first) = batch.units().next() else { return Ok(Sent::All) };
            let (segments, gso) = (first.segments(), first.gso());
            self.counters.tx.calls += 1;
            let error = match self.send(batch) {
                Ok(sent) => {
                    for unit in batch.units().take(sent) {
                        self.counters.tx.add(unit.len(), unit.segments());
                    }
                    batch.sent(sent);
                    continue;
                }
                Err(error) => error,
            };
            let reason = match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => {
                    self.counters.blocked += 1;
                    return Ok(Sent::Blocked);
                }
                // The kernel took the frame and its queue dropped it, as it does with those of every other sender.
                Some(libc::ENOBUFS) => Drop::QueueFull,
                // That the interface went down, once, is reported in the place of a frame although it is up again.
                Some(libc::ENETDOWN) if !std::mem::replace(&mut is_again, true) => continue,
                Some(libc::ENOMEM) => Drop::NoMemory,
                Some(libc::EMSGSIZE) => Drop::TooBig,
                Some(libc::ENETDOWN) => Drop::DeviceDown,
                Some(libc::ENXIO | libc::ENODEV | libc::EBADF) => return Err(error),
                Some(libc::EINVAL) if gso.is_some() => {
                    self.narrow(gso.map_or(GsoKind::Tcp, |gso| gso.kind));
                    return Ok(Sent::Narrowed);
                }
                _ => Drop::Refused,
            };
            self.counters.drops.add_many(reason, segments as u64);
            batch.sent(1);
        }
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn listen(&mut self) -> io::Result<()> {
        let state = self.watch.listen()?;
        if state.is_gone {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        // The kernel refuses a packet that is longer, but takes a train of such packets and loses them.
        self.limits.mtu = state.mtu;
        if (&self.timer).read(&mut [0; 8]).is_ok() {
            self.check_ring()?;
        }
        Ok(())
    }

    fn link(&self) -> Option<LinkState> {
        Some(self.watch.state())
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
