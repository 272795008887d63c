//! The client: a device on another machine as a [`Transport`].

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use segue::time::Nanos;
use segue_port::Interest;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::sys;
use crate::usb::{Done, Error, Guard, Lent, Setup, Speed, Transfer, Transport, Verdict};

use super::wire::{self, HEADER_LEN, Header, MAX_TRANSFER, OP_LEN, RECORD_LEN, Record, command, flag, op};

/// Timeout of a control request, nanoseconds, as in Linux.
const CONTROL_TIMEOUT: u64 = 5_000_000_000;
/// Timeout of connecting and importing a device.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a wait after one that ended though the connection was not ready.
const USELESS_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a wait for the server's answer to an operation, in which more of it comes.
const GATHERING: Duration = Duration::from_millis(1);
/// Pause after a read from the connection that returned nothing although poll(2) reported it ready.
const FAILED_PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of devices in a server's list that are read.
const MAX_DEVICES: u32 = 1024;
/// Largest number of UNLINK requests without an answer. An honest server answers each, and the driver has fewer
/// transfers.
const MAX_UNLINKS: usize = 1024;

/// The reason why a device could not be imported.
#[derive(Debug)]
pub enum ImportError {
    /// The server could not be reached, or closed the connection.
    Io(io::Error),
    /// The server uses another protocol or version.
    Protocol,
    /// The server has no such device, or another client is using it.
    Refused,
    /// The server exports another device under the bus id, with these vendor and product ids.
    Other((u16, u16)),
    /// The device could not be configured (SET_CONFIGURATION 1).
    Configuration(Error),
    /// The device has a speed that no LAN78xx adapter has.
    Speed(u32),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::Io(error) => write!(f, "{error}"),
            ImportError::Protocol => f.write_str("no answer in USB/IP 1.1.1"),
            ImportError::Refused => f.write_str("the server has no such device free"),
            ImportError::Other((vendor, product)) => write!(f, "another device, {vendor:04x}:{product:04x}"),
            ImportError::Configuration(error) => write!(f, "SET_CONFIGURATION 1: {error}"),
            ImportError::Speed(speed) => write!(f, "a device of USB/IP speed {speed}"),
        }
    }
}

impl std::error::Error for ImportError {}

impl From<io::Error> for ImportError {
    fn from(error: io::Error) -> ImportError {
        ImportError::Io(error)
    }
}

/// A connection with one deadline for connecting and importing, however slowly the server answers.
struct Greeting<'a> {
    stream: TcpStream,
    until: Instant,
    guard: Option<&'a Guard>,
}

impl<'a> Greeting<'a> {
    fn connect(server: impl ToSocketAddrs, guard: Option<&'a Guard>) -> io::Result<Greeting<'a>> {
        let until = Instant::now() + GREETING_TIMEOUT;
        let addresses: Vec<SocketAddr> = server.to_socket_addrs()?.collect();
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for (tried, address) in addresses.iter().enumerate() {
            // An address that never answers leaves time for the others.
            let share = left(until)? / (addresses.len() - tried) as u32;
            match connect(*address, Instant::now() + share, guard) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    super::watch(&stream)?;
                    return Ok(Greeting { stream, until, guard });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Waits until the connection is ready, after a pause where a wait of the same call ended for nothing.
    fn wait(&self, write: bool, has_waited: &mut bool) -> io::Result<()> {
        if std::mem::replace(has_waited, true) {
            thread::sleep(USELESS_PAUSE);
        }
        wait(&self.stream, write, self.until, self.guard)
    }
}

/// Connects a non-blocking socket to the server.
fn connect(address: SocketAddr, until: Instant, guard: Option<&Guard>) -> io::Result<TcpStream> {
    let stream = TcpStream::from(Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?);
    stream.set_nonblocking(true)?;
    match SockRef::from(&stream).connect(&address.into()) {
        Ok(()) => return Ok(stream),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    wait(&stream, true, until, guard)?;
    stream.take_error()?.map_or(Ok(stream), Err)
}

/// Waits until the connection is readable, or with `write` writable.
fn wait(stream: &TcpStream, write: bool, until: Instant, guard: Option<&Guard>) -> io::Result<()> {
    loop {
        let mut time = left(until)?;
        let mut interests = vec![Interest { fd: stream.as_fd(), read: !write, write }];
        if let Some(guard) = guard {
            match guard.verdict() {
                None => {}
                Some(Verdict::Stopped) => {
                    return Err(io::Error::new(ErrorKind::ConnectionAborted, "the connection was stopped"));
                }
                Some(Verdict::TooLong) => return Err(late()),
            }
            time = time.min(guard.left());
            interests.push(guard.interest());
        }
        if sys::wait(&interests, Some(time))?.first() == Some(&true) {
            return Ok(());
        }
    }
}

fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the server did not answer in time")
}

/// Returns the time until `until`, or the error of a timeout.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

impl Read for Greeting<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut has_waited = false;
        loop {
            match self.stream.read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait(false, &mut has_waited)?;
                    // A server that sends byte by byte has no wake-up for each.
                    thread::sleep(GATHERING);
                }
                done => return done,
            }
        }
    }
}

impl Write for Greeting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut has_waited = false;
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(true, &mut has_waited)?,
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Sends an operation and returns the status of its reply.
fn request_operation(stream: &mut Greeting<'_>, code: u16, rest: &[u8], answer: u16) -> Result<u32, ImportError> {
    let mut request = Vec::with_capacity(OP_LEN + rest.len());
    request.extend_from_slice(&wire::VERSION.to_be_bytes());
    request.extend_from_slice(&code.to_be_bytes());
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(rest);
    stream.write_all(&request)?;
    let mut head = [0; OP_LEN];
    stream.read_exact(&mut head)?;
    if wire::half(&head, 0) != wire::VERSION || wire::half(&head, 2) != answer {
        return Err(ImportError::Protocol);
    }
    Ok(wire::word(&head, 4))
}

/// Returns the devices that a server exports.
///
/// # Errors
/// See [`ImportError`].
pub fn list(server: impl ToSocketAddrs) -> Result<Vec<Record>, ImportError> {
    let mut stream = Greeting::connect(server, None)?;
    if request_operation(&mut stream, op::REQ_DEVLIST, &[], op::REP_DEVLIST)? != 0 {
        return Err(ImportError::Refused);
    }
    let mut count = [0; 4];
    stream.read_exact(&mut count)?;
    let mut records = Vec::new();
    for _ in 0..u32::from_be_bytes(count).min(MAX_DEVICES) {
        let mut bytes = [0; RECORD_LEN];
        stream.read_exact(&mut bytes)?;
        let record = Record::parse(&bytes).ok_or(ImportError::Protocol)?;
        let mut interfaces = vec![0; 4 * usize::from(record.interfaces)];
        stream.read_exact(&mut interfaces)?;
        records.push(record);
    }
    Ok(records)
}

/// A request without a reply so far.
#[derive(Debug)]
enum Waiting {
    /// A transfer, and whether its cancellation was requested.
    Transfer(Transfer<Lent>, bool),
    /// A control request, with the largest length of its reply.
    Control(usize),
    /// A request to cancel a transfer.
    Unlink(u32),
    /// A control request that has timed out; its reply is ignored.
    Forgotten(usize),
}

/// A device on another machine, imported by USB/IP.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    record: Record,
    speed: Speed,
    next: u32,
    waiting: HashMap<u32, Waiting>,
    /// Sequence numbers of transfers in the order of submission.
    order: VecDeque<u32>,
    done: VecDeque<Transfer<Done>>,
    /// The reply to the control request in progress.
    answer: Option<Result<Vec<u8>, Error>>,
    input: Vec<u8>,
    gone: bool,
    guard: Option<Arc<Guard>>,
}

impl Client {
    /// Imports the device `bus_id` of a server.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import(server: impl ToSocketAddrs, bus_id: &str) -> Result<Client, ImportError> {
        Client::import_guarded(server, bus_id, None)
    }

    /// Imports a device under a guard, which the client keeps; see [`Transport::guard`].
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import_guarded(
        server: impl ToSocketAddrs,
        bus_id: &str,
        guard: Option<Arc<Guard>>,
    ) -> Result<Client, ImportError> {
        Client::import_accepted(server, bus_id, guard, &|_| true)
    }

    /// Imports a device under a guard if `accepts` accepts the vendor and product id that the server names. A device
    /// that is not accepted is given back before any request is sent to it.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import_accepted(
        server: impl ToSocketAddrs,
        bus_id: &str,
        guard: Option<Arc<Guard>>,
        accepts: &dyn Fn((u16, u16)) -> bool,
    ) -> Result<Client, ImportError> {
        let mut stream = Greeting::connect(server, guard.as_deref())?;
        if request_operation(&mut stream, op::REQ_IMPORT, &wire::bus_id_bytes(bus_id), op::REP_IMPORT)? != 0 {
            return Err(ImportError::Refused);
        }
        let mut bytes = [0; RECORD_LEN];
        stream.read_exact(&mut bytes)?;
        let record = Record::parse(&bytes).ok_or(ImportError::Protocol)?;
        if !accepts(record.identity) {
            return Err(ImportError::Other(record.identity));
        }
        let mut client = Client { guard: guard.clone(), ..Client::of(stream.stream, record)? };
        // The server does not configure the device.
        const SET_CONFIGURATION: u8 = 9;
        let setup = Setup { request_type: 0, request: SET_CONFIGURATION, value: 1, index: 0, length: 0 };
        client.control_out(setup, &[]).map_err(ImportError::Configuration)?;
        Ok(client)
    }

    /// Creates a client for a device that was imported but not used yet, possibly by another process; see
    /// [`Client::into_parts`].
    ///
    /// # Errors
    /// [`ImportError::Speed`] for a device with a speed that no adapter has.
    pub fn of(stream: TcpStream, record: Record) -> Result<Client, ImportError> {
        let speed = record.usb_speed().ok_or(ImportError::Speed(record.speed))?;
        Ok(Client {
            stream,
            record,
            speed,
            next: 1,
            waiting: HashMap::new(),
            order: VecDeque::new(),
            done: VecDeque::new(),
            answer: None,
            input: Vec::new(),
            gone: false,
            guard: None,
        })
    }

    /// Returns the connection and the device's record, for another process. Only valid while nothing was submitted.
    pub fn into_parts(self) -> (TcpStream, Record) {
        (self.stream, self.record)
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        number
    }

    fn lose(&mut self) {
        self.gone = true;
        self.answer.get_or_insert(Err(Error::Gone));
        for number in std::mem::take(&mut self.order) {
            if let Some(Waiting::Transfer(transfer, _)) = self.waiting.remove(&number) {
                self.done.push_back(transfer.complete(Err(Error::Gone)));
            }
        }
        self.waiting.clear();
    }

    /// Closes the connection if the guard has stopped.
    fn check_guard(&mut self) {
        if self.guard.as_ref().is_some_and(|guard| guard.verdict().is_some()) {
            self.lose();
        }
    }

    /// Sends a USB/IP message. While the connection's send buffer is full, waits and reads, so that both ends cannot
    /// block each other.
    fn send(&mut self, bytes: &[u8]) {
        let (mut at, mut is_again) = (0, false);
        let until = segue_port::now().after(CONTROL_TIMEOUT);
        while at < bytes.len() && !self.gone {
            match self.stream.write(&bytes[at..]) {
                Ok(0) => self.lose(),
                Ok(len) => (at, is_again) = (at + len, false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && segue_port::now() < until => {
                    let interest = Interest { fd: self.stream.as_fd(), read: true, write: true };
                    let _ = sys::wait(&[interest], Some(Duration::from_millis(100)));
                    // A wait that ends at once, again and again, costs no processor time.
                    if !self.listen() && std::mem::replace(&mut is_again, true) {
                        std::thread::sleep(FAILED_PAUSE);
                    }
                    self.check_guard();
                }
                Err(_) => self.lose(),
            }
        }
    }

    /// Reads messages of the server. Returns whether there was anything to read.
    fn listen(&mut self) -> bool {
        let mut buffer = [0; 65536];
        let mut has_read = false;
        while !self.gone {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.lose(),
                Ok(len) => {
                    has_read = true;
                    self.input.extend_from_slice(&buffer[..len]);
                    if self.process_input().is_none() {
                        self.lose();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.lose(),
            }
        }
        has_read
    }

    /// Processes the complete messages in the buffer; `None` for an invalid one.
    fn process_input(&mut self) -> Option<()> {
        let mut at = 0;
        while let Some(header) = Header::parse(&self.input[at..]) {
            match header.command {
                command::RET_SUBMIT => {
                    let Some(len) = self.submitted(&header, at + HEADER_LEN)? else { break };
                    at += HEADER_LEN + len;
                }
                command::RET_UNLINK => {
                    // A transfer that has the number stays, and comes back when the device is given up.
                    let Some(Waiting::Unlink(target)) = self.waiting.get(&header.seqnum) else { return None };
                    let target = *target;
                    self.waiting.remove(&header.seqnum);
                    if wire::error_of(header.words[0] as i32) == Some(Error::Cancelled) {
                        self.finish(target, Err(Error::Cancelled));
                    }
                    at += HEADER_LEN;
                }
                _ => return None,
            }
        }
        self.input.drain(..at);
        Some(())
    }

    /// Processes the reply to a transfer. Returns the length of its data, or `Some(None)` while they are incomplete.
    #[expect(clippy::option_option, reason = "nonsense, not yet, and done are three answers")]
    fn submitted(&mut self, header: &Header, body: usize) -> Option<Option<usize>> {
        let (status, len) = (header.words[0] as i32, header.words[1] as usize);
        let result = wire::error_of(status).map_or(Ok(len), Err);
        match self.waiting.get_mut(&header.seqnum)? {
            Waiting::Transfer(transfer, _) => {
                let request = transfer.request();
                if len > request.len.min(MAX_TRANSFER) {
                    return None;
                }
                let mut data = 0;
                if request.endpoint & 0x80 != 0 {
                    let Some(bytes) = self.input.get(body..body + len) else { return Some(None) };
                    transfer.incoming()[..len].copy_from_slice(bytes);
                    data = len;
                }
                self.finish(header.seqnum, result);
                Some(Some(data))
            }
            waiting @ (Waiting::Control(_) | Waiting::Forgotten(_)) => {
                let is_wanted = matches!(waiting, Waiting::Control(_));
                let (Waiting::Control(most) | Waiting::Forgotten(most)) = *waiting else { return None };
                // The reply to a request with outgoing data has no data.
                let data = if most == 0 { 0 } else { len };
                if data > most {
                    return None;
                }
                let Some(bytes) = self.input.get(body..body + data) else { return Some(None) };
                if is_wanted {
                    self.answer = Some(result.map(|_| bytes.to_vec()));
                }
                self.waiting.remove(&header.seqnum);
                Some(Some(data))
            }
            Waiting::Unlink(_) => None,
        }
    }

    fn finish(&mut self, number: u32, result: Result<usize, Error>) {
        if let Some(Waiting::Transfer(transfer, _)) = self.waiting.remove(&number) {
            self.order.retain(|waiting| *waiting != number);
            self.done.push_back(transfer.complete(result));
        }
    }

    fn header(&self, number: u32, endpoint: u8, words: [u32; 5], setup: [u8; 8]) -> Header {
        Header {
            command: command::SUBMIT,
            seqnum: number,
            devid: self.record.bus << 16 | self.record.device,
            direction: u32::from(endpoint >> 7),
            ep: u32::from(endpoint & 0x7f),
            words,
            setup,
        }
    }

    fn control(&mut self, setup: Setup, data: &[u8]) -> Result<Vec<u8>, Error> {
        self.check_guard();
        if self.gone {
            return Err(Error::Gone);
        }
        let number = self.number();
        let (endpoint, flags, most) =
            if setup.is_in() { (0x80, flag::DIR_IN, usize::from(setup.length)) } else { (0, 0, 0) };
        let mut message = Vec::with_capacity(HEADER_LEN + data.len());
        self.header(number, endpoint, [flags, u32::from(setup.length), 0, 0, 0], setup.emit()).emit(&mut message);
        message.extend_from_slice(data);
        self.waiting.insert(number, Waiting::Control(most));
        self.answer = None;
        self.send(&message);
        let until = segue_port::now().after(CONTROL_TIMEOUT);
        let mut is_ready = false;
        loop {
            if !self.listen() && is_ready {
                std::thread::sleep(FAILED_PAUSE);
            }
            if let Some(answer) = self.answer.take() {
                return answer;
            }
            let left = until.0.saturating_sub(segue_port::now().0);
            if left == 0 {
                // The reply may still come.
                self.waiting.insert(number, Waiting::Forgotten(most));
                return Err(Error::Timeout);
            }
            let mut left = Duration::from_nanos(left);
            let mut interests = vec![Interest::read(self.stream.as_fd())];
            if let Some(guard) = &self.guard {
                left = left.min(guard.left());
                interests.push(guard.interest());
            }
            // A wait that fails ends at once too.
            is_ready = sys::wait(&interests, Some(left)).map_or(true, |ready| ready.first() == Some(&true));
            self.check_guard();
        }
    }
}

impl Transport for Client {
    fn identity(&self) -> (u16, u16) {
        self.record.identity
    }

    fn speed(&self) -> Speed {
        self.speed
    }

    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, Error> {
        let answer = self.control(setup, &[])?;
        let len = answer.len().min(into.len());
        into[..len].copy_from_slice(&answer[..len]);
        Ok(len)
    }

    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), Error> {
        self.control(setup, data).map(drop)
    }

    fn submit(&mut self, transfer: Transfer<Lent>) {
        if self.gone {
            return self.done.push_back(transfer.complete(Err(Error::Gone)));
        }
        let request = transfer.request();
        let number = self.number();
        let is_in = request.endpoint & 0x80 != 0;
        let mut flags = if is_in { flag::DIR_IN } else { 0 };
        if request.zero_packet {
            flags |= flag::ZERO_PACKET;
        }
        let outgoing = if is_in { &[][..] } else { transfer.outgoing() };
        let mut message = Vec::with_capacity(HEADER_LEN + outgoing.len());
        self.header(number, request.endpoint, [flags, request.len as u32, 0, 0, 0], [0; 8]).emit(&mut message);
        message.extend_from_slice(outgoing);
        self.waiting.insert(number, Waiting::Transfer(transfer, false));
        self.order.push_back(number);
        self.send(&message);
    }

    fn reap(&mut self) -> Option<Transfer<Done>> {
        if self.done.is_empty() {
            self.listen();
        }
        self.done.pop_front()
    }

    fn cancel(&mut self, endpoint: u8) {
        let mut targets = Vec::new();
        for number in &self.order {
            if let Some(Waiting::Transfer(transfer, is_cancelled)) = self.waiting.get_mut(number)
                && transfer.request().endpoint == endpoint
                && !std::mem::replace(is_cancelled, true)
            {
                targets.push(*number);
            }
        }
        let unanswered = self.waiting.values().filter(|waiting| matches!(waiting, Waiting::Unlink(_))).count();
        if !targets.is_empty() && unanswered + targets.len() > MAX_UNLINKS {
            return self.lose();
        }
        for target in targets {
            let number = self.number();
            let mut message = Vec::with_capacity(HEADER_LEN);
            let mut header = self.header(number, endpoint, [target, 0, 0, 0, 0], [0; 8]);
            header.command = command::UNLINK;
            header.emit(&mut message);
            self.waiting.insert(number, Waiting::Unlink(target));
            self.send(&message);
        }
    }

    fn clear_halt(&mut self, endpoint: u8) -> Result<(), Error> {
        const CLEAR_FEATURE: u8 = 1;
        let index = u16::from(endpoint);
        self.control_out(Setup { request_type: 2, request: CLEAR_FEATURE, value: 0, index, length: 0 }, &[])
    }

    fn guard(&mut self, guard: Option<Arc<Guard>>) {
        self.guard = guard;
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn release(&mut self) {
        // The connection may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.lose();
    }

    fn now(&self) -> Nanos {
        segue_port::now()
    }

    fn sleep(&mut self, nanos: u64) {
        std::thread::sleep(Duration::from_nanos(nanos));
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    fn deadline(&self) -> Option<Nanos> {
        // Messages read during a control request make no descriptor readable.
        (!self.done.is_empty()).then_some(Nanos(0))
    }
}
