//! The port of a guest: its front ends, and packets in both directions.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use segue::gso::Limits;
use segue::packet::{GsoKind, Start};
use segue::reason::{Counts, Reason};
use segue::virtio::{VirtioNet, device};

use super::config::{GUEST_CONNECTED, GUEST_READY, GUEST_STALLED, Source, VhostConfig};
use super::copy::{copy_in, copy_out};
use super::feature;
use super::message::{Assembler, PATIENCE};
use super::reasons::{GuestDrop, Stop};
use super::ring::{MOST_DESCRIPTORS, Piece};
use super::session::{FROM_GUEST, MAX_FRAME, Session, TO_GUEST};
use super::sys::{self, Events, Timer};
use crate::batch::{RxBatch, TxBatch, TxUnit};
use crate::page::Scatter;
use crate::port::{Blocked, Counters, Drop, Extra, MOST_BYTES, OffloadState, Polled, Port, Sent};
use crate::vnet;

/// Longest time for which packets are held back for a guest that offers no buffers.
const HOLD: Duration = Duration::from_millis(100);
/// Largest number of messages that one call of [`Port::listen`] acts on.
const MOST_MESSAGES: usize = 64;
/// Number of bytes for a guest after which it is notified, although more follow.
const CALL_EVERY: usize = 1 << 17;
/// Largest number of descriptors read for one packet to the guest: a chain with a table in it, or as many in several
/// chains. A guest with buffers of a few bytes would have thousands read for each packet.
const MOST_PIECES: usize = 2 * MOST_DESCRIPTORS;
/// Number of descriptors after which one call of [`Port::receive`] reads no further chain. Chains of many descriptors
/// with few bytes would otherwise take the time of other ports.
const ENOUGH_DESCRIPTORS: usize = 4 * MOST_DESCRIPTORS;

/// A guest's network device as a port.
#[derive(Debug)]
pub struct VhostPort {
    connection: Option<Connection>,
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
    /// Time since which the guest has offered no buffers.
    blocked_since: Option<Instant>,
    /// Whether the guest has offered no buffers for longer than the limit.
    is_stalled: bool,
    /// Whether a batch may hold trains prepared for an earlier guest.
    is_changed: bool,
    scatter: Scatter,
    reads: Vec<(Range<usize>, VirtioNet)>,
    pieces: Vec<Piece>,
    chain: Vec<Piece>,
    heads: Vec<(u16, u32)>,
    counters: Counters,
    drops: Counts<GuestDrop>,
    stops: Counts<Stop>,
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

/// Result of an attempt to pass a packet to the guest.
enum Put {
    Done,
    NoBuffers,
    /// The guest's driver does not accept this kind of train, or its buffers cannot hold it.
    Narrow,
    Dropped(GuestDrop),
    Refused,
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
            mtu: config.mtu,
            limits: Limits { mtu: config.mtu, ..Limits::NONE },
            control,
            kicks: Events::new()?,
            buffers: Events::new()?,
            waits: true,
            hold: Timer::new()?,
            patience: Timer::new()?,
            blocked_since: None,
            is_stalled: false,
            is_changed: false,
            scatter: Scatter::default(),
            reads: Vec::new(),
            pieces: Vec::new(),
            chain: Vec::new(),
            heads: Vec::new(),
            counters: Counters::default(),
            drops: Counts::default(),
            stops: Counts::default(),
            numbers: Numbers::default(),
        };
        port.buffers.add_level(port.hold.as_fd())?;
        port.control.add_level(port.patience.as_fd())?;
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
        // A relay may close the files of memory from here on: this process has let them go.
        drop(connection);
        if reason == Stop::CallBlocked {
            // The next front end could do so again.
            self.retire();
        }
        self.patience.set(Duration::ZERO);
        self.stops.add(reason);
        match reason {
            Stop::Ended => notice!(info, "the front end is gone"),
            _ => notice!(warn, reason = reason.name(), "the guest's port was stopped: {reason}"),
        }
        self.unblock();
        self.settle();
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
        self.is_stalled = false;
    }

    /// Accepts a front end's connection. One that comes while another one is connected is refused.
    fn accept(&mut self) -> io::Result<()> {
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
    fn process_messages(&mut self) {
        let outcome = self.converse().and_then(|()| self.call_first());
        outcome.unwrap_or_else(|reason| self.stop(reason));
    }

    /// Handles the messages that have been received.
    fn converse(&mut self) -> Result<(), Stop> {
        let Some(Connection { stream, assembler, session, begun }) = &mut self.connection else {
            return Ok(());
        };
        for _ in 0..MOST_MESSAGES {
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
                ring.call.iter().try_for_each(|call| sys::signal(call.as_fd()))?;
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

    /// Passes one packet or train to the guest.
    fn put(&mut self, unit: &TxUnit<'_>) -> Result<Put, Stop> {
        let Some(Connection { session, .. }) = &mut self.connection else {
            return Ok(Put::Dropped(GuestDrop::NotReady));
        };
        if !session.is_ready() {
            return Ok(Put::Dropped(GuestDrop::NotReady));
        }
        let (form, merges) = (session.form(), session.has(feature::MRG_RXBUF));
        let Some(mut header) = vnet::header_of(unit) else { return Ok(Put::Refused) };
        if !session.takes(&self.limits, unit, &header) {
            return Ok(Put::Narrow);
        }
        let Session { memory, rings, .. } = session;
        let ring = &mut rings[TO_GUEST];
        let len = form.len() + unit.len();
        // The buffers are found before a byte is written, so that all of a packet is there or nothing.
        self.heads.clear();
        self.pieces.clear();
        let mut room = 0;
        let mut chain = std::mem::take(&mut self.chain);
        let found = loop {
            if room >= len {
                break Put::Done;
            }
            let count = self.heads.len() as u16;
            let is_used_up = ring.waiting(count)? == 0;
            // However long it waits, the guest cannot offer more for it.
            if count > 0 && !merges || is_used_up && ring.is_full_with(count) {
                break unit.gso().map_or(Put::Dropped(GuestDrop::BufferTooSmall), |_| Put::Narrow);
            }
            if is_used_up {
                // In this order: a kick after the last look is an event that is still there when the port waits.
                self.buffers.take();
                if !ring.listen(count)? {
                    break Put::NoBuffers;
                }
            }
            ring.prefetch(count, memory, len);
            let (head, _) = ring.chain(count, memory, &mut chain)?;
            let here: usize = chain.iter().map(|piece| piece.len as usize).sum();
            self.heads.push((head, here.min(len - room) as u32));
            room += here.min(len - room);
            self.pieces.append(&mut chain);
            if self.pieces.len() > MOST_PIECES {
                return Err(Stop::RingLoop);
            }
        };
        self.chain = chain;
        let count = self.heads.len() as u16;
        match found {
            Put::Done => {}
            // Rings that are gone look empty.
            Put::NoBuffers if memory.is_lost() => return Err(Stop::MemoryLost),
            // The one buffer goes back empty: it would be too small again.
            Put::Dropped(_) => {
                ring.put(0, self.heads.first().map_or(0, |first| first.0), 0)?;
                ring.publish(1);
                return Ok(found);
            }
            _ => return Ok(found),
        }
        header.num_buffers = count;
        let emitted = header.emit(form);
        copy_out(memory, &self.pieces, [&emitted[..form.len()], unit.head()].into_iter().chain(unit.pieces()))?;
        if memory.is_lost() {
            return Err(Stop::MemoryLost);
        }
        for (ahead, (head, written)) in (0..).zip(&self.heads) {
            ring.put(ahead, *head, *written)?;
        }
        ring.publish(count);
        if count > 1 {
            self.numbers.merged_packets += 1;
            self.numbers.merged_buffers += u64::from(count);
        }
        Ok(Put::Done)
    }

    /// Notifies the guest of received packets, unless it suppresses notifications.
    fn call(&mut self) -> Result<(), Stop> {
        let Some(Connection { session, .. }) = &mut self.connection else { return Ok(()) };
        let ring = &mut session.rings[TO_GUEST];
        if ring.is_ready() && ring.take_call()? {
            self.numbers.calls += 1;
            self.counters.tx.calls += 1;
            ring.call.iter().try_for_each(|call| sys::signal(call.as_fd()))?;
        }
        Ok(())
    }

    /// Notifies the guest once after the start of a queue.
    fn call_first(&mut self) -> Result<(), Stop> {
        let Some(Connection { session, .. }) = &mut self.connection else { return Ok(()) };
        for ring in &mut session.rings {
            if ring.take_first_call()
                && let Some(call) = &ring.call
            {
                self.numbers.calls += 1;
                sys::signal(call.as_fd())?;
            }
        }
        Ok(())
    }

    /// Returns whether packets wait for buffers, after the guest had none.
    fn holds(&mut self) -> bool {
        self.counters.blocked += 1;
        let since = *self.blocked_since.get_or_insert_with(|| {
            // In this order the time is over when the timer is.
            let now = Instant::now();
            self.hold.set(HOLD);
            now
        });
        if !self.is_stalled && since.elapsed() >= HOLD {
            self.is_stalled = true;
            self.numbers.stalls += 1;
            self.hold.set(Duration::ZERO);
        }
        !self.is_stalled
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<Sent, Stop> {
        let mut uncalled = 0;
        let is_changed = std::mem::take(&mut self.is_changed);
        for entry in 0..batch.entries() {
            loop {
                let Some(unit) = batch.units_of(entry).next() else { break };
                let (len, segments, gso) = (unit.len(), unit.segments(), unit.gso());
                match self.put(&unit)? {
                    Put::Done => {
                        self.unblock();
                        self.counters.tx.add(len, segments);
                        uncalled += len;
                    }
                    Put::NoBuffers if self.holds() => {
                        self.call()?;
                        self.is_changed = is_changed;
                        return Ok(Sent::Blocked);
                    }
                    Put::NoBuffers => self.drops.add_many(GuestDrop::NoBuffers, segments as u64),
                    Put::Narrow if is_changed || self.narrow(gso.map(|gso| gso.kind)) => {
                        self.call()?;
                        return Ok(Sent::Narrowed);
                    }
                    Put::Narrow | Put::Refused => self.counters.drops.add_many(Drop::Refused, segments as u64),
                    Put::Dropped(reason) => self.drops.add_many(reason, segments as u64),
                }
                batch.sent_of(entry, 1);
                if uncalled >= CALL_EVERY {
                    uncalled = 0;
                    self.call()?;
                }
            }
        }
        self.call()?;
        Ok(Sent::All)
    }

    /// Stops accepting one kind of train, after the guest's driver refused it. Returns whether that changes anything.
    fn narrow(&mut self, kind: Option<GsoKind>) -> bool {
        let before = self.limits;
        if let Some(kind) = kind {
            self.limits.refuse(kind);
        }
        self.limits != before
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
                Err(reason) => self.stop(reason),
            }
        }
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.control.as_fd())
    }

    /// Handles connections and messages of front ends. Their faults are no errors.
    fn listen(&mut self) -> io::Result<()> {
        self.process_messages();
        let before = self.numbers.connections;
        if let Err(error) = self.accept() {
            notice!(warn, %error, "a front end could not be taken");
        }
        if self.numbers.connections != before {
            self.process_messages();
        }
        // A driver that was stopped has no ring that could be stalled, and starts with the whole time again.
        if !self.is_ready() {
            self.unblock();
        }
        self.settle();
        Ok(())
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
