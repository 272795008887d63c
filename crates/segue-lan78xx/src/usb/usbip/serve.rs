//! A model behind a TCP port, with its cable in a packet port.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use segue::gso::Limits;
use segue::packet::{Frag, Start, Tunnels};
use segue::time::Nanos;
use segue_port::{Counters, PagePool, Polled, Port, Received, RxBatch, TxBatch};

use crate::model::Model;
use crate::sys::{self, Interest};

use super::{Exported, Phase, Session};

/// Frames moved from the wire in one round.
const BUDGET: usize = 64;
/// A client that does not read its answers is not listened to beyond this many bytes.
const MAX_OUTPUT: usize = 4 << 20;
/// Connections at a time; one of them can have the device. The oldest of those that have not gives way to a new one.
const MAX_SESSIONS: usize = 16;
/// How long a connection may take that does not have the device, nanoseconds.
const GREETING_TIMEOUT: u64 = 5_000_000_000;

/// The cable: whole frames, into a port and out of it.
pub struct Wire {
    port: Box<dyn Port>,
    rx: RxBatch,
    /// Memory for what is sent: one frame each, as many as go out at a time. The port keeps some of what it receives into.
    pages: PagePool,
    tx: TxBatch,
    frame: Vec<u8>,
    lost: Lost,
}

/// Frames that a cable did not carry, besides those that its port counts as dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The port's queue was full.
    pub queue_full: u64,
    /// Longer than any frame that a port takes.
    pub refused: u64,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl Wire {
    /// A cable into `port`, which must carry Ethernet frames, each a whole one with all checksums in place.
    pub fn new(port: Box<dyn Port>) -> Wire {
        Wire {
            port,
            rx: RxBatch::new(64),
            pages: PagePool::of_frames(BUDGET),
            tx: TxBatch::new(),
            frame: Vec::new(),
            lost: Lost::default(),
        }
    }

    /// What crossed the port, and what it dropped.
    pub fn counters(&self) -> &Counters {
        self.port.counters()
    }

    /// What was lost in front of the port.
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// The descriptor that is readable when the port has frames.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }

    /// Hands what comes from the port to the model, as much as its partner can hold; the rest waits at the port. Whether there
    /// is more that could be taken.
    ///
    /// # Errors
    /// Where the port has become useless.
    pub fn read(&mut self, model: &mut Model) -> io::Result<bool> {
        let budget = BUDGET.min(model.room());
        if budget == 0 {
            return Ok(false);
        }
        let polled = self.port.receive(&mut self.rx, budget)?;
        while let Some(received) = self.rx.packets.pop_front() {
            self.frame.clear();
            received.pieces().for_each(|piece| self.frame.extend_from_slice(piece));
            model.receive(self.frame.clone());
            if let Received::Packet(packet) = received {
                self.rx.pool.put(packet);
            }
        }
        Ok(polled == Polled::More && model.takes_more())
    }

    /// Hands what the model has sent to the port.
    ///
    /// # Errors
    /// Where the port has become useless.
    pub fn write(&mut self, model: &mut Model) -> io::Result<()> {
        loop {
            let mut count = 0;
            while count < BUDGET
                && let Some(frame) = model.transmit()
            {
                count += 1;
                let Some(mut page) = self.pages.take().filter(|_| frame.len() <= self.pages.page_len()) else {
                    self.lost.refused += 1;
                    continue;
                };
                page.bytes_mut()[..frame.len()].copy_from_slice(&frame);
                let mut packet = self.rx.pool.take();
                packet.load(Frag::all(page.freeze(frame.len())), Start::Ethernet, &Tunnels::NONE);
                if let Err((packet, _)) = self.tx.push(packet, &Limits::NONE) {
                    self.lost.refused += 1;
                    self.rx.pool.put(packet);
                }
            }
            if count == 0 {
                return Ok(());
            }
            self.port.transmit(&mut self.tx)?;
            // A wire does not wait: what is not taken is lost.
            let left = self.tx.len();
            self.lost.queue_full += left as u64;
            self.tx.sent(left);
            self.tx.recycle(&mut self.rx.pool);
        }
    }
}

/// A client.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    session: Session,
    /// When it came, or last had the device.
    since: Nanos,
}

impl Connection {
    fn is_attached(&self) -> bool {
        self.session.phase() == Phase::Attached
    }

    /// When it must be through, unless it gets the device.
    fn ends_at(&self) -> Option<Nanos> {
        (!self.is_attached()).then(|| self.since.after(GREETING_TIMEOUT))
    }
}

/// The server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    exported: Exported,
    connections: Vec<Connection>,
    /// The device.
    pub model: Model,
    /// Its cable; without one nothing comes, and what is sent is lost.
    pub wire: Option<Wire>,
    uncabled: u64,
}

impl Server {
    /// A server that answers on `listener` with one device of this bus id.
    ///
    /// # Errors
    /// Where the listener cannot be made non-blocking.
    pub fn new(listener: TcpListener, bus_id: &str, model: Model, wire: Option<Wire>) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let exported = Exported { bus_id: bus_id.to_owned(), is_taken: false };
        Ok(Server { listener, exported, connections: Vec::new(), model, wire, uncabled: 0 })
    }

    /// Whether somebody has the device.
    pub fn is_attached(&self) -> bool {
        self.exported.is_taken
    }

    /// Frames that were sent and had no cable.
    pub fn uncabled(&self) -> u64 {
        self.uncabled
    }

    /// Every descriptor to wait for, and whether for reading and for writing.
    pub fn each_interest(&self, each: &mut dyn FnMut(BorrowedFd<'_>, bool, bool)) {
        each(self.listener.as_fd(), true, false);
        for Connection { stream, session, .. } in &self.connections {
            each(stream.as_fd(), session.output().len() < MAX_OUTPUT, !session.output().is_empty());
        }
        if let Some(wire) = self.wire.as_ref().filter(|_| self.model.takes_more()) {
            each(wire.fd(), true, false);
        }
    }

    /// When [`Server::step`] has something to do even if nothing comes.
    pub fn deadline(&self) -> Option<Nanos> {
        self.connections.iter().filter_map(Connection::ends_at).chain(self.model.deadline()).min()
    }

    /// Waits until something happens, at most `longest`, and deals with it.
    ///
    /// # Errors
    /// As [`Server::step`].
    pub fn round(&mut self, longest: Duration) -> io::Result<()> {
        let due = self.deadline().map(|at| Duration::from_nanos(at.0.saturating_sub(sys::now().0)));
        let mut interests = Vec::with_capacity(4);
        self.each_interest(&mut |fd, read, write| {
            // Nothing is closed before the wait is over.
            interests.extend(fd.try_clone_to_owned().map(|fd| (fd, read, write)));
        });
        let interests: Vec<Interest<'_>> =
            interests.iter().map(|(fd, read, write)| Interest { fd: fd.as_fd(), read: *read, write: *write }).collect();
        sys::wait(&interests, Some(due.map_or(longest, |due| due.min(longest))))?;
        self.step().map(drop)
    }

    /// Deals with all that has happened, without waiting. Whether there is more to do at once.
    ///
    /// # Errors
    /// Where the wire or the listener has become useless. Connections that fail are closed.
    pub fn step(&mut self) -> io::Result<bool> {
        let now = sys::now();
        self.accept(now)?;
        self.model.advance(now);
        for connection in &mut self.connections {
            let Connection { stream, session, .. } = &mut *connection;
            if session.output().len() < MAX_OUTPUT && !listen(stream, session, &mut self.model, &mut self.exported) {
                session.close(&mut self.model, &mut self.exported);
            }
            if connection.is_attached() {
                connection.since = now;
            }
        }
        // None of these has the device.
        self.connections.retain(|connection| connection.ends_at().is_none_or(|at| at > now));
        let mut more = false;
        if let Some(wire) = &mut self.wire {
            more = wire.read(&mut self.model)?;
        }
        self.settle(sys::now())?;
        Ok(more)
    }

    /// Lets the model work, and hands on what it made.
    fn settle(&mut self, now: Nanos) -> io::Result<()> {
        self.model.advance(now);
        match &mut self.wire {
            Some(wire) => wire.write(&mut self.model)?,
            None => {
                while self.model.transmit().is_some() {
                    self.uncabled += 1;
                }
            }
        }
        if let Some(owner) = self.connections.iter_mut().find(|connection| connection.is_attached()) {
            owner.session.collect(&mut self.model);
        } else {
            while let Some(done) = self.model.done() {
                self.model.lose(&done);
            }
        }
        for Connection { stream, session, .. } in &mut self.connections {
            let hears = speak(stream, session);
            if !hears || session.phase() == Phase::Over {
                session.close(&mut self.model, &mut self.exported);
            }
            if !hears {
                session.sent(usize::MAX);
            }
        }
        self.connections
            .retain(|Connection { session, .. }| session.phase() != Phase::Over || !session.output().is_empty());
        Ok(())
    }

    fn accept(&mut self, now: Nanos) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    let _ = super::watch(&stream);
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.connections.len() >= MAX_SESSIONS
                        && let Some(oldest) = self.connections.iter().position(|connection| !connection.is_attached())
                    {
                        self.connections.remove(oldest);
                    }
                    self.connections.push(Connection { stream, session: Session::default(), since: now });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Reads what a client says; `false` once it has hung up.
fn listen(stream: &mut TcpStream, session: &mut Session, model: &mut Model, exported: &mut Exported) -> bool {
    let mut buffer = [0; 65536];
    for _ in 0..16 {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(len) => {
                session.feed(&buffer[..len], model, exported);
                model.advance(sys::now());
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
}

/// Sends what a client is to hear; `false` where it does not listen any more.
fn speak(stream: &mut TcpStream, session: &mut Session) -> bool {
    while !session.output().is_empty() {
        match stream.write(session.output()) {
            Ok(0) => return false,
            Ok(len) => session.sent(len),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
}
