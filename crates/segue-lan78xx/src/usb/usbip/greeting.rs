//! The start of a connection to a server: connecting, the list of its devices, and the request for one.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use segue_port::Interest;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::sys;
use crate::usb::{Error, Guard, Verdict};

use super::wire::{self, OP_LEN, RECORD_LEN, Record, op};

/// Timeout of connecting and importing a device.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a wait after one that ended though the connection was not ready.
const USELESS_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a wait for the server's answer to an operation, in which more of it comes.
const GATHERING: Duration = Duration::from_millis(1);
/// Maximum number of devices in a server's list that are read.
const MAX_DEVICES: u32 = 1024;

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
pub(super) struct Greeting<'a> {
    pub(super) stream: TcpStream,
    until: Instant,
    guard: Option<&'a Guard>,
}

impl<'a> Greeting<'a> {
    pub(super) fn connect(server: impl ToSocketAddrs, guard: Option<&'a Guard>) -> io::Result<Greeting<'a>> {
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
pub(super) fn request_operation(
    stream: &mut Greeting<'_>,
    code: u16,
    rest: &[u8],
    answer: u16,
) -> Result<u32, ImportError> {
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
