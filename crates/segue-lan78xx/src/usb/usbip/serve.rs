//! A USB/IP server for a model, whose cable is a packet port.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use segue::gso::Limits;
use segue::packet::{Frag, Start, Tunnels};
use segue::time::Nanos;
use segue_port::{Counters, Interest, PagePool, Polled, Port, Received, RxBatch, TxBatch};

use crate::model::Model;
use crate::sys;

use super::{Exported, Phase, Session};

/// Maximum number of frames read from the cable in one round.
const BUDGET: usize = 64;
/// Maximum number of times that as many frames are written to the cable in one round.
const MOST_BATCHES: usize = 64;
/// Number of bytes of unread output beyond which a client's input is not read.
const MAX_OUTPUT: usize = 4 << 20;
/// Maximum number of connections at a time, one of which can have the device. A new one replaces the oldest of the
/// others.
const MAX_SESSIONS: usize = 16;
/// Time after which a connection without the device is closed, nanoseconds.
const GREETING_TIMEOUT: u64 = 5_000_000_000;
/// Pause after a connection could not be accepted, nanoseconds.
const ACCEPT_PAUSE: u64 = 100_000_000;

/// The cable of a model: passes whole frames to a port and from it.
pub struct Wire {
    port: Box<dyn Port>,
    rx: RxBatch,
    /// Memory for sent frames, one page per frame of a batch. The port keeps some of the pages that it receives into.
    pages: PagePool,
    tx: TxBatch,
    frame: Vec<u8>,
    lost: Lost,
}

/// Numbers of frames lost at a cable, besides those that its port counts as dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Number of frames lost because the port's queue was full.
    pub queue_full: u64,
    /// Number of frames longer than the port accepts.
    pub refused: u64,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl Wire {
    /// Creates a cable to `port`, which must carry whole Ethernet frames with complete checksums.
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

    /// Returns the port's counters.
    pub fn counters(&self) -> &Counters {
        self.port.counters()
    }

    /// Returns the numbers of frames lost before the port.
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// Returns the descriptor that is readable when the port has frames.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }

    /// Passes frames from the port to the model, as many as its partner can queue; others stay at the port. Returns
    /// whether more frames could be read.
    ///
    /// # Errors
    /// The port's error if it has failed.
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

    /// Passes frames sent by the model to the port, 4096 at most. Returns whether it may have more.
    ///
    /// # Errors
    /// The port's error if it has failed.
    pub fn write(&mut self, model: &mut Model) -> io::Result<bool> {
        for _ in 0..MOST_BATCHES {
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
                return Ok(false);
            }
            self.port.transmit(&mut self.tx)?;
            // A wire does not wait: frames that the port does not take are lost.
            let left = self.tx.len();
            self.lost.queue_full += left as u64;
            self.tx.sent(left);
            self.tx.recycle(&mut self.rx.pool);
        }
        Ok(true)
    }
}

/// The connection of a client.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    session: Session,
    /// Time at which the connection was made, or last had the device.
    since: Nanos,
}

impl Connection {
    fn is_attached(&self) -> bool {
        self.session.phase() == Phase::Attached
    }

    /// Returns the time at which the connection is closed unless it imports the device.
    fn ends_at(&self) -> Option<Nanos> {
        (!self.is_attached()).then(|| self.since.after(GREETING_TIMEOUT))
    }
}

/// A USB/IP server that exports one model.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    exported: Exported,
    connections: Vec<Connection>,
    /// Model of the exported device.
    pub model: Model,
    /// Cable of the model; without one no frames arrive, and sent ones are lost.
    pub wire: Option<Wire>,
    uncabled: u64,
    /// Time until which no connection is accepted, after a failure.
    accepts_at: Option<Nanos>,
}

impl Server {
    /// Creates a server on `listener` that exports `model` under the given bus id.
    ///
    /// # Errors
    /// The error of making the listener non-blocking.
    pub fn new(listener: TcpListener, bus_id: &str, model: Model, wire: Option<Wire>) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let exported = Exported { bus_id: bus_id.to_owned(), is_taken: false };
        Ok(Server { listener, exported, connections: Vec::new(), model, wire, uncabled: 0, accepts_at: None })
    }

    /// Returns whether a client has the device.
    pub fn is_attached(&self) -> bool {
        self.exported.is_taken
    }

    /// Returns the number of frames sent without a cable.
    pub fn uncabled(&self) -> u64 {
        self.uncabled
    }

    /// Calls `each` with every descriptor to wait for, and with whether to wait until it is readable and until it is
    /// writable.
    pub fn each_interest(&self, each: &mut dyn FnMut(BorrowedFd<'_>, bool, bool)) {
        if self.accepts_at.is_none() {
            each(self.listener.as_fd(), true, false);
        }
        for Connection { stream, session, .. } in &self.connections {
            each(stream.as_fd(), session.output().len() < MAX_OUTPUT, !session.output().is_empty());
        }
        if let Some(wire) = self.wire.as_ref().filter(|_| self.model.takes_more()) {
            each(wire.fd(), true, false);
        }
    }

    /// Returns the time at which [`Server::step`] has work to do even without input.
    pub fn deadline(&self) -> Option<Nanos> {
        let ends = self.connections.iter().filter_map(Connection::ends_at);
        ends.chain(self.model.deadline()).chain(self.accepts_at).min()
    }

    /// Waits for input or a deadline, at most `longest`, and processes it.
    ///
    /// # Errors
    /// The errors of [`Server::step`].
    pub fn round(&mut self, longest: Duration) -> io::Result<()> {
        let due = self.deadline().map(|at| Duration::from_nanos(at.0.saturating_sub(segue_port::now().0)));
        let mut interests = Vec::with_capacity(4);
        self.each_interest(&mut |fd, read, write| {
            // No descriptor is closed before the wait is over.
            interests.extend(fd.try_clone_to_owned().map(|fd| (fd, read, write)));
        });
        let interests: Vec<Interest<'_>> =
            interests.iter().map(|(fd, read, write)| Interest { fd: fd.as_fd(), read: *read, write: *write }).collect();
        sys::wait(&interests, Some(due.map_or(longest, |due| due.min(longest))))?;
        self.step().map(drop)
    }

    /// Processes all input, without waiting. Returns whether more can be processed at once.
    ///
    /// # Errors
    /// The error of a cable that has failed. Connections that fail are closed.
    pub fn step(&mut self) -> io::Result<bool> {
        let now = segue_port::now();
        self.accept(now);
        self.model.advance(now);
        for connection in &mut self.connections {
            if connection.is_attached() {
                connection.since = now;
            }
            let Connection { stream, session, .. } = connection;
            let is_open = session.output().len() >= MAX_OUTPUT
                || read_input(stream, session, &mut self.model, &mut self.exported);
            // Closed at once: a connection that is past its deadline is removed below with the device that it has.
            if !is_open || session.phase() == Phase::Over {
                session.close(&mut self.model, &mut self.exported);
            }
        }
        // Connections past their deadline do not have the device.
        self.connections.retain(|connection| connection.ends_at().is_none_or(|at| at > now));
        let mut more = false;
        if let Some(wire) = &mut self.wire {
            more = wire.read(&mut self.model)?;
        }
        more |= self.settle(segue_port::now())?;
        Ok(more)
    }

    /// Advances the model, and passes on its frames and completions. Returns whether it may have more frames.
    fn settle(&mut self, now: Nanos) -> io::Result<bool> {
        self.model.advance(now);
        let more = match &mut self.wire {
            Some(wire) => wire.write(&mut self.model)?,
            None => {
                while self.model.transmit().is_some() {
                    self.uncabled += 1;
                }
                false
            }
        };
        if let Some(owner) = self.connections.iter_mut().find(|connection| connection.is_attached()) {
            owner.session.collect(&mut self.model);
        } else {
            while let Some(done) = self.model.done() {
                self.model.lose(&done);
            }
        }
        for Connection { stream, session, .. } in &mut self.connections {
            let hears = write_output(stream, session);
            if !hears || session.phase() == Phase::Over {
                session.close(&mut self.model, &mut self.exported);
            }
            if !hears {
                session.sent(usize::MAX);
            }
        }
        self.connections
            .retain(|Connection { session, .. }| session.phase() != Phase::Over || !session.output().is_empty());
        Ok(more)
    }

    /// Accepts connections, not more than there may be at a time, so that clients which connect again and again do not
    /// hold up the one that has the device. After a failure, for lack of descriptors or memory, none is accepted for a
    /// while: the listener stays readable, and the client that has the device goes on.
    fn accept(&mut self, now: Nanos) {
        if self.accepts_at.is_some_and(|at| at > now) {
            return;
        }
        self.accepts_at = None;
        for _ in 0..MAX_SESSIONS {
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
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(_) => {
                    self.accepts_at = Some(now.after(ACCEPT_PAUSE));
                    return;
                }
            }
        }
    }
}

/// Reads a client's input; `false` once it has closed the connection.
fn read_input(stream: &mut TcpStream, session: &mut Session, model: &mut Model, exported: &mut Exported) -> bool {
    let mut buffer = [0; 65536];
    for _ in 0..16 {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(len) => {
                session.feed(&buffer[..len], model, exported);
                model.advance(segue_port::now());
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
}

/// Sends a client's output; `false` if it does not accept any more.
fn write_output(stream: &mut TcpStream, session: &mut Session) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;
    use crate::usb::usbip::wire;

    /// Message with which a client imports the device.
    fn import() -> Vec<u8> {
        [&wire::VERSION.to_be_bytes()[..], &wire::op::REQ_IMPORT.to_be_bytes(), &[0; 4], &wire::bus_id_bytes("1-1")]
            .concat()
    }

    /// A message whose command does not exist.
    const NONSENSE: [u8; wire::HEADER_LEN] = [9; wire::HEADER_LEN];

    /// Processes input until `done`, and afterwards sets the times of all connections back by more than their timeout.
    fn until(server: &mut Server, done: impl Fn(&Server) -> bool) {
        let begin = std::time::Instant::now();
        while !done(server) {
            assert!(begin.elapsed() < Duration::from_secs(60), "it never came");
            server.step().unwrap();
        }
        let before = Nanos(segue_port::now().0.saturating_sub(GREETING_TIMEOUT + 1));
        server.connections.iter_mut().for_each(|connection| connection.since = before);
    }

    #[test]
    fn very_many_connections_at_once_do_not_hold_up_a_step() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = Server::new(listener, "1-1", Model::new(model::Config::default()), None).unwrap();
        let clients: Vec<TcpStream> = (0..3 * MAX_SESSIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        for step in 0..3 {
            server.step().unwrap();
            let first = server.connections[0].stream.peer_addr().unwrap();
            assert_eq!(first, clients[step * MAX_SESSIONS].local_addr().unwrap(), "step {step}");
        }
    }

    #[test]
    fn a_client_that_says_nothing_for_long_and_then_nonsense_leaves_the_device_free() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = Server::new(listener, "1-1", Model::new(model::Config::default()), None).unwrap();
        for at_once in [false, true] {
            let mut client = TcpStream::connect(address).unwrap();
            if at_once {
                until(&mut server, |server| !server.connections.is_empty());
                client.write_all(&[&import()[..], &NONSENSE].concat()).unwrap();
            } else {
                client.write_all(&import()).unwrap();
                until(&mut server, Server::is_attached);
                client.write_all(&NONSENSE).unwrap();
            }
            until(&mut server, |server| server.connections.is_empty());
            assert!(!server.is_attached(), "at once: {at_once}");
        }
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(&import()).unwrap();
        until(&mut server, Server::is_attached);
    }
}
