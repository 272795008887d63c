//! The port of a guest: its front ends, and packets from the guest.

mod transmit;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use segue::gso::Limits;
use segue::packet::Start;
use segue::reason::{Counts, Reason};
use segue::virtio::{VirtioNet, device};

use super::calls::Calls;
use super::config::{GUEST_CONNECTED, GUEST_READY, GUEST_STALLED, LAST_STOP, Source, VhostConfig};
use super::copy::copy_in;
use super::feature;
use super::message::{Assembler, PATIENCE};
use super::reasons::{GuestDrop, Stop};
use super::ring::{MOST_DESCRIPTORS, Piece};
use super::session::{FROM_GUEST, MAX_FRAME, Session, TO_GUEST};
use super::sys::{self, Events, Timer};
use crate::batch::{RxBatch, TxBatch};
use crate::page::Scatter;
use crate::port::{Blocked, Counters, Drop, Extra, MOST_BYTES, OffloadState, Polled, Port, Sent};
use crate::vnet;

/// Largest number of messages that one call of [`Port::listen`] acts on.
const MOST_MESSAGES: usize = 64;
/// Number of descriptors after which one call of [`Port::receive`] or [`Port::transmit`] reads no further chain. Chains
/// of many descriptors with few bytes would otherwise take the time of other ports.
const ENOUGH_DESCRIPTORS: usize = 4 * MOST_DESCRIPTORS;
/// Time of a timer that is to run out at once: 0 would stop it.
const SOON: Duration = Duration::from_nanos(1);
/// Time for which one call of [`Port::listen`] unmaps memory: a GiB of pages of 4 kB that were all touched takes 0.07 s
/// (AMD EPYC, Linux 6.18), and a guest may have a thousand. All ports of a bridge may unmap in one round.
const UNMAPPING: Duration = Duration::from_millis(1);

/// A guest's network device as a port.
#[derive(Debug)]
pub struct VhostPort {
    connection: Option<Connection>,
    /// A connection that has ended, until its memory is unmapped: no other one is accepted before.
    leaving: Option<Connection>,
    source: Option<Source>,
    mtu: usize,
    limits: Limits,
    /// Events of the socket and of the connection, of the guest's transmit queue, and of its receive queue.
    control: Events,
    kicks: Events,
    buffers: Events,
    /// Whether a kick was requested, and its events must be read.
    waits: bool,
    hold: Timer,
    patience: Timer,
    /// Timer that has run out while memory is to be unmapped.
    unmapping: Timer,
    is_unmapping: bool,
    /// Time for which one call of [`Port::listen`] unmaps memory.
    pub(super) step: Duration,
    /// Time since which the guest has offered no buffers.
    blocked_since: Option<Instant>,
    /// Whether the guest has offered no buffers for longer than the limit.
    is_stalled: bool,
    /// Whether the last call of [`Port::transmit`] ended because of the descriptors that it had read.
    is_paused: bool,
    /// Number of descriptors that this call of [`Port::transmit`] has read.
    descriptors: usize,
    /// Whether a batch may hold trains prepared for an earlier guest.
    is_changed: bool,
    scatter: Scatter,
    reads: Vec<(Range<usize>, VirtioNet)>,
    pieces: Vec<Piece>,
    chain: Vec<Piece>,
    heads: Vec<(u16, u32)>,
    calls: Calls,
    counters: Counters,
    drops: Counts<GuestDrop>,
    stops: Counts<Stop>,
    last_stop: Option<Stop>,
    numbers: Numbers,
}

/// A connection to a front end.
#[derive(Debug)]
struct Connection {
    // The stream is dropped last: a relay holds the files of memory until it hangs up.
    session: Session,
    assembler: Assembler,
    stream: UnixStream,
    /// Time at which the first byte of an incomplete message arrived.
    begun: Option<Instant>,
}

/// Counters that only guest ports have.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    connections: u64,
    refused: u64,
    kicks: u64,
    calls: u64,
    merged_packets: u64,
    merged_buffers: u64,
    stalls: u64,
}

impl VhostPort {
    /// Creates a port without a guest, which may connect later.
    ///
    /// # Errors
    /// Where the kernel refuses a descriptor, or the handler of SIGBUS.
    pub fn new(source: Source, config: &VhostConfig) -> io::Result<VhostPort> {
        sys::catch_faults()?;
        let control = Events::new()?;
        let mut port = VhostPort {
            source: None,
            connection: None,
            leaving: None,
            mtu: config.mtu,
            limits: Limits { mtu: config.mtu, ..Limits::NONE },
            control,
            kicks: Events::new()?,
            buffers: Events::new()?,
            waits: true,
            hold: Timer::new()?,
            patience: Timer::new()?,
            unmapping: Timer::new()?,
            is_unmapping: false,
            step: UNMAPPING,
            blocked_since: None,
            is_stalled: false,
            is_paused: false,
            descriptors: 0,
            is_changed: false,
            scatter: Scatter::default(),
            reads: Vec::new(),
            pieces: Vec::new(),
            chain: Vec::new(),
            heads: Vec::new(),
            calls: Calls::default(),
            counters: Counters::default(),
            drops: Counts::default(),
            stops: Counts::default(),
            last_stop: None,
            numbers: Numbers::default(),
        };
        port.buffers.add_level(port.hold.as_fd())?;
        port.control.add_level(port.patience.as_fd())?;
        port.control.add_level(port.unmapping.as_fd())?;
        match source {
            Source::Connected(stream) => port.connect(stream)?,
            Source::Listener(listener) => {
                listener.set_nonblocking(true)?;
                port.control.add_level(listener.as_fd())?;
                port.source = Some(Source::Listener(listener));
            }
            Source::Supplied(fd) => {
                port.control.add_level(fd.as_fd())?;
                port.source = Some(Source::Supplied(fd));
            }
        }
        Ok(port)
    }

    /// Returns whether a guest's driver is ready to send and to receive.
    pub fn is_ready(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.session.is_ready())
    }

    /// Returns the numbers of closed connections, by reason.
    pub fn stops(&self) -> &Counts<Stop> {
        &self.stops
    }

    /// Returns the numbers of packets dropped for reasons specific to this kind of port.
    pub fn guest_drops(&self) -> &Counts<GuestDrop> {
        &self.drops
    }

    pub(super) fn connect(&mut self, stream: UnixStream) -> io::Result<()> {
        self.control.add_level(stream.as_fd())?;
        let (assembler, session) = (Assembler::default(), Session::new());
        self.connection = Some(Connection { stream, assembler, session, begun: None });
        self.numbers.connections += 1;
        notice!(info, "a front end connected");
        Ok(())
    }

    /// Closes the connection of the front end.
    pub(super) fn stop(&mut self, reason: Stop) {
        let Some(mut connection) = self.connection.take() else { return };
        // What replaced lost memory may look like any other fault.
        let is_lost = reason != Stop::CallBlocked && connection.session.memory.is_lost();
        let reason = if is_lost { Stop::MemoryLost } else { reason };
        connection.session.end([&self.buffers, &self.kicks]);
        self.control.remove(connection.stream.as_fd());
        self.leaving = Some(connection);
        let mut no_time = Duration::ZERO;
        self.unmap(&mut no_time);
        if reason == Stop::CallBlocked {
            // The next front end could do so again.
            self.retire();
        }
        self.patience.set(Duration::ZERO);
        self.stops.add(reason);
        self.last_stop = Some(reason);
        match reason {
            Stop::Ended => notice!(info, "the front end is gone"),
            _ => notice!(warn, reason = reason.name(), "the guest's port was stopped: {reason}"),
        }
        self.unblock();
        self.settle();
    }

    /// Shows the guest the packets that were written before the one at which its port stops: they count as sent.
    fn show_sent(&mut self) {
        if let Some(connection) = self.connection.as_mut().filter(|connection| !connection.session.memory.is_lost()) {
            let ring = &mut connection.session.rings[TO_GUEST];
            if ring.is_ready() {
                // A ring that cannot be written is what the port stops for.
                let _ = ring.show();
            }
        }
    }

    /// Returns whether a file of the guest's memory became shorter while it was used.
    fn has_lost_memory(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.session.memory.is_lost())
    }

    /// Unmaps memory that is no longer used, for the time `left` of this call of [`Port::listen`]. A connection that
    /// ended is closed once all of its memory is unmapped: a relay may close the files from then on.
    fn unmap(&mut self, left: &mut Duration) {
        let connection = self.leaving.as_mut().or(self.connection.as_mut());
        let is_over = connection.is_none_or(|connection| connection.session.memory.unmap(left));
        if is_over {
            self.leaving = None;
        }
        if self.is_unmapping == is_over {
            self.is_unmapping = !is_over;
            self.unmapping.set(if is_over { Duration::ZERO } else { SOON });
        }
    }

    /// Closes the source of front ends, so that no other one is accepted.
    fn retire(&mut self) {
        match self.source.take() {
            Some(Source::Listener(listener)) => self.control.remove(listener.as_fd()),
            Some(Source::Supplied(fd)) => self.control.remove(fd.as_fd()),
            Some(Source::Connected(_)) | None => {}
        }
    }

    /// Applies the limits that the front end negotiated.
    fn settle(&mut self) {
        let session = self.connection.as_ref().map(|connection| &connection.session);
        let limits = match session.filter(|session| session.is_ready()) {
            Some(session) => session.limits(self.mtu),
            None => Limits { mtu: self.mtu, ..Limits::NONE },
        };
        self.is_changed |= limits != self.limits;
        self.limits = limits;
    }

    fn unblock(&mut self) {
        if self.blocked_since.take().is_some() {
            self.hold.set(Duration::ZERO);
        }
        self.end_stall();
    }

    /// Records that packets are dropped from now on. The port listens for buffers.
    fn stall(&mut self) {
        self.is_stalled = true;
        // Where the kernel refuses, the next packet finds the buffers.
        let _ = self.control.add_level(self.buffers.as_fd());
    }

    fn end_stall(&mut self) {
        if std::mem::take(&mut self.is_stalled) {
            self.control.remove(self.buffers.as_fd());
        }
    }

    /// Ends a stall where the guest has offered buffers since. If they are too few for the next packet, it is dropped
    /// at once all the same.
    fn look_for_buffers(&mut self) -> Result<(), Stop> {
        let Some(Connection { session, .. }) = self.connection.as_mut().filter(|_| self.is_stalled) else {
            return Ok(());
        };
        let ring = &mut session.rings[TO_GUEST];
        self.buffers.take();
        if ring.is_ready() && ring.listen(ring.too_few_for(usize::MAX).unwrap_or(0))? {
            self.end_stall();
        }
        Ok(())
    }

    /// Accepts a front end's connection. One that comes while another one is connected is refused; while the memory of
    /// an earlier one is unmapped, it waits.
    fn accept(&mut self) -> io::Result<()> {
        if self.leaving.is_some() {
            return Ok(());
        }
        match &mut self.source {
            Some(Source::Listener(listener)) => loop {
                match listener.accept() {
                    Ok((stream, _)) if self.connection.is_none() => return self.connect(stream),
                    Ok(_) => self.numbers.refused += 1,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return Ok(()),
                }
            },
            Some(Source::Supplied(fd)) if self.connection.is_none() => {
                let mut fds = Vec::new();
                match sys::receive(fd.as_fd(), &mut [0], &mut fds) {
                    Ok(0) => {}
                    Ok(_) => return fds.pop().map_or(Ok(()), |stream| self.connect(UnixStream::from(stream))),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                    // Nothing has come, or the kernel has no memory at the moment. Without a free descriptor the
                    // connection is closed, and another one follows it.
                    Err(_) => return Ok(()),
                }
                // The process that makes connections has ended.
                self.control.remove(fd.as_fd());
                self.source = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Handles the messages that have been received, and stops the port where one is wrong.
    fn process_messages(&mut self, left: &mut Duration) {
        let outcome = self.converse(left).and_then(|()| self.call_first()).and_then(|()| self.look_for_buffers());
        outcome.unwrap_or_else(|reason| self.stop(reason));
        self.unmap(left);
    }

    /// Handles the messages that have been received.
    fn converse(&mut self, left: &mut Duration) -> Result<(), Stop> {
        let Some(Connection { stream, assembler, session, begun }) = &mut self.connection else {
            return Ok(());
        };
        for _ in 0..MOST_MESSAGES {
            // Further messages wait for what an earlier one removed.
            if !session.memory.unmap(left) {
                break;
            }
            let Some(message) = assembler.read(stream.as_fd())? else { break };
            if let Some(reply) = session.handle(message, [&self.buffers, &self.kicks])? {
                match sys::send(stream.as_fd(), &reply, &[]) {
                    Ok(len) if len == reply.len() => {}
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => {
                        return Err(Stop::Ended);
                    }
                    _ => return Err(Stop::ReplyBlocked),
                }
            }
        }
        match (assembler.is_empty(), *begun) {
            (true, None) => {}
            (true, Some(_)) => {
                *begun = None;
                self.patience.set(Duration::ZERO);
            }
            (false, None) => {
                *begun = Some(Instant::now());
                self.patience.set(PATIENCE);
            }
            (false, Some(since)) if since.elapsed() >= PATIENCE => return Err(Stop::MessageIncomplete),
            (false, Some(_)) => {}
        }
        Ok(())
    }

    /// Copies packets sent by the guest into the batch.
    fn take(&mut self, into: &mut RxBatch, budget: usize) -> Result<Polled, Stop> {
        if self.waits {
            self.waits = false;
            self.numbers.kicks += u64::from(self.kicks.take());
        }
        let Some(Connection { session, .. }) = &mut self.connection else { return Ok(self.idle()) };
        if !session.rings[FROM_GUEST].is_ready() {
            return Ok(self.idle());
        }
        let form = session.form();
        let Session { memory, rings, .. } = session;
        let ring = &mut rings[FROM_GUEST];
        ring.ignore()?;
        let (mut count, mut bytes, mut descriptors) = (0u16, 0, 0);
        let budget = budget.min(usize::from(u16::MAX)) as u16;
        let mut polled = loop {
            if count == budget || bytes >= MOST_BYTES || descriptors >= ENOUGH_DESCRIPTORS {
                break Polled::More;
            }
            if ring.waiting(count)? == 0 {
                break Polled::Idle;
            }
            if !self.scatter.make_room(&mut into.pages) {
                break Polled::Starved;
            }
            ring.prefetch(count, memory, usize::MAX);
            let (head, read) = ring.chain(count, memory, &mut self.pieces)?;
            descriptors += read;
            let len: usize = self.pieces.iter().map(|piece| piece.len as usize).sum();
            if len > form.len() + MAX_FRAME {
                self.drops.add(GuestDrop::ChainLength);
            } else if len <= form.len() {
                self.counters.drops.add(Drop::VnetShort);
            } else {
                let header = copy_in(memory, &self.pieces, form, &mut self.scatter)?;
                self.reads.push((self.scatter.commit(0..len - form.len()), header));
                bytes += len;
            }
            ring.put(count, head, 0)?;
            count += 1;
        };
        if memory.is_lost() {
            return Err(Stop::MemoryLost);
        }
        if count > 0 {
            ring.publish(count);
            self.scatter.freeze();
            for (range, header) in self.reads.drain(..) {
                vnet::deliver(&header, self.scatter.frags(range), Start::Ethernet, into, &mut self.counters);
            }
            self.scatter.release();
            if ring.take_call()? {
                self.numbers.calls += 1;
                self.counters.rx.calls += 1;
                ring.call.iter().try_for_each(|call| self.calls.signal(call.as_fd()))?;
            }
        }
        if polled == Polled::Idle {
            self.waits = true;
            if ring.listen(0)? {
                polled = Polled::More;
            }
        }
        Ok(polled)
    }

    /// Waits for a kick while there is no usable ring.
    fn idle(&mut self) -> Polled {
        self.waits = true;
        Polled::Idle
    }

    /// Notifies the guest once after the start of a queue.
    fn call_first(&mut self) -> Result<(), Stop> {
        let Some(Connection { session, .. }) = &mut self.connection else { return Ok(()) };
        for ring in &mut session.rings {
            if ring.take_first_call()
                && let Some(call) = &ring.call
            {
                self.numbers.calls += 1;
                self.calls.signal(call.as_fd())?;
            }
        }
        Ok(())
    }
}

impl Port for VhostPort {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns no offloads: each guest negotiates its own, and they are among the numbers of [`Port::extras`].
    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        Vec::new()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.kicks.as_fd()
    }

    fn blocked_fd(&self) -> BorrowedFd<'_> {
        self.buffers.as_fd()
    }

    fn blocked_event(&self) -> Blocked {
        Blocked::Readable
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        Ok(match self.take(into, budget) {
            Ok(polled) => polled,
            Err(reason) => {
                if self.has_lost_memory() {
                    self.drops.add_many(GuestDrop::Reset, self.reads.len() as u64);
                }
                self.reads.clear();
                self.scatter.forget();
                self.stop(reason);
                self.idle()
            }
        })
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        loop {
            match self.send(batch) {
                Ok(sent) => return Ok(sent),
                // What waits is dropped with its guest, at the next attempt.
                Err(reason) => {
                    self.show_sent();
                    self.stop(reason);
                }
            }
        }
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.control.as_fd())
    }

    /// Handles connections and messages of front ends. Their faults are no errors.
    fn listen(&mut self) -> io::Result<()> {
        let mut left = self.step;
        self.process_messages(&mut left);
        let before = self.numbers.connections;
        if let Err(error) = self.accept() {
            notice!(warn, %error, "a front end could not be taken");
        }
        if self.numbers.connections != before {
            self.process_messages(&mut left);
        }
        // A driver that was stopped has no ring that could be stalled, and starts with the whole time again.
        if !self.is_ready() {
            self.unblock();
        }
        self.settle();
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.is_unmapping
    }

    fn is_up(&self) -> bool {
        self.is_ready()
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        let session = self.connection.as_ref().map(|connection| &connection.session);
        let has = |feature: u64| u64::from(session.is_some_and(|session| session.has(feature)));
        let Numbers { connections, refused, kicks, calls, merged_packets, merged_buffers, stalls } = self.numbers;
        for (key, value) in [
            (GUEST_CONNECTED, u64::from(session.is_some())),
            (GUEST_READY, u64::from(self.is_ready())),
            (GUEST_STALLED, u64::from(self.is_stalled)),
            (LAST_STOP, self.last_stop.map_or(0, |reason| 1 + reason.index() as u64)),
            ("guest_csum", has(1 << device::GUEST_CSUM)),
            ("guest_tso4", has(1 << device::GUEST_TSO4)),
            ("guest_tso6", has(1 << device::GUEST_TSO6)),
            ("guest_uso", has(1 << device::GUEST_USO4)),
            ("guest_mergeable", has(feature::MRG_RXBUF)),
            ("guest_event_idx", has(feature::EVENT_IDX)),
            ("front_ends", connections),
            ("front_ends_refused", refused),
            ("kicks", kicks),
            ("calls", calls),
            ("merged_packets", merged_packets),
            ("merged_buffers", merged_buffers),
            ("ring_stalls", stalls),
        ] {
            put(Extra::Number, key, value);
        }
        self.stops.iter().for_each(|(reason, count)| put(Extra::Number, reason.name(), count));
        self.drops.iter().for_each(|(reason, count)| put(Extra::Drop, reason.name(), count));
    }
}
