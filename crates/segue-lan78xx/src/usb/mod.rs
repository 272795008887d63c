//! The USB interface that the driver uses: control requests, and transfers that are lent to a transport and come back.
//!
//! A [`Transport`] is one opened device: hardware ([`usbfs`]), a device on another machine ([`usbip`]), or the model in
//! this process ([`local`]). The memory of a transfer has three types, so that memory that the device may be writing
//! cannot be touched: [`Transfer<Idle>`] can be read and written, [`Transfer::lend`] hands it to the transport
//! ([`Transfer<Lent>`]), and [`Transport::reap`] returns it with its result ([`Transfer<Done>`]).

pub mod local;
pub mod usbfs;
pub mod usbip;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use segue::time::Nanos;
use segue_port::{Extra, Interest};

use crate::sys;

/// The speed of a USB bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// Full speed (USB 1.1), 12 Mbit/s.
    Full,
    /// High speed, 480 Mbit/s.
    High,
    /// SuperSpeed, 5 Gbit/s.
    Super,
}

impl Speed {
    /// Returns the size of a bulk endpoint's largest packet in bytes.
    pub const fn max_packet(self) -> usize {
        match self {
            Speed::Full => 64,
            Speed::High => 512,
            Speed::Super => 1024,
        }
    }

    /// Returns the speed's name.
    pub const fn name(self) -> &'static str {
        match self {
            Speed::Full => "full",
            Speed::High => "high",
            Speed::Super => "super",
        }
    }
}

/// The setup packet of a control request (USB 2.0, section 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// `bmRequestType`: direction, type, recipient.
    pub request_type: u8,
    /// `bRequest`: the request code.
    pub request: u8,
    /// `wValue`: parameter of the request.
    pub value: u16,
    /// `wIndex`: index or endpoint.
    pub index: u16,
    /// `wLength`: bytes of the data stage.
    pub length: u16,
}

impl Setup {
    /// Returns whether the data stage goes from the device to the host.
    pub const fn is_in(&self) -> bool {
        self.request_type & 0x80 != 0
    }

    /// Returns the packet's eight bytes.
    pub const fn emit(&self) -> [u8; 8] {
        let (v, i, l) = (self.value.to_le_bytes(), self.index.to_le_bytes(), self.length.to_le_bytes());
        [self.request_type, self.request, v[0], v[1], i[0], i[1], l[0], l[1]]
    }

    /// Parses a USB setup packet.
    pub const fn parse(bytes: [u8; 8]) -> Setup {
        let [request_type, request, v0, v1, i0, i1, l0, l1] = bytes;
        Setup {
            request_type,
            request,
            value: u16::from_le_bytes([v0, v1]),
            index: u16::from_le_bytes([i0, i1]),
            length: u16::from_le_bytes([l0, l1]),
        }
    }
}

/// The reason why a request or a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The endpoint stalled. Other than a control endpoint, it stays halted until [`Transport::clear_halt`].
    Stall,
    /// The transfer was cancelled.
    Cancelled,
    /// The device is gone.
    Gone,
    /// The transfer was damaged on the bus, or its answer was malformed.
    Protocol,
    /// The device sent more bytes than requested.
    Overflow,
    /// The device did not answer in time.
    Timeout,
    /// Memory for the transfer could not be allocated.
    Memory,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Stall => "the device refused a request (stall)",
            Error::Cancelled => "a transfer was cancelled",
            Error::Gone => "the device is gone",
            Error::Protocol => "a transfer was damaged on the bus",
            Error::Overflow => "the device sent more than was asked for",
            Error::Timeout => "the device did not answer in time",
            Error::Memory => "out of memory for USB transfers",
        })
    }
}

impl std::error::Error for Error {}

/// State of a transfer whose memory the driver may read and write.
#[derive(Debug)]
pub struct Idle(());

/// State of a transfer that is lent to a transport, and whose memory the device may be writing.
#[derive(Debug)]
pub struct Lent {
    request: Request,
}

/// State of a transfer that was returned with a result.
#[derive(Debug)]
pub struct Done {
    request: Request,
    result: Result<usize, Error>,
}

/// The parameters of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Address of the endpoint, with the direction in bit 7.
    pub endpoint: u8,
    /// The driver's tag of the transfer, which comes back with it.
    pub tag: u32,
    /// Number of bytes to send, or largest number of bytes to receive.
    pub len: usize,
    /// Whether a zero-length packet follows the data sent.
    pub zero_packet: bool,
}

/// The memory of a transfer, in one of the states [`Idle`], [`Lent`], [`Done`].
#[derive(Debug)]
pub struct Transfer<S> {
    bytes: Vec<u8>,
    state: S,
}

impl Transfer<Idle> {
    /// Allocates memory for `len` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] if the allocation fails.
    pub fn allocate(len: usize) -> Result<Transfer<Idle>, Error> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Error::Memory)?;
        bytes.resize(len, 0);
        Ok(Transfer { bytes, state: Idle(()) })
    }

    /// Returns the transfer's memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the size of the transfer's memory in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Lends the transfer's memory to a transport. A length beyond the memory is clamped.
    pub fn lend(self, request: Request) -> Transfer<Lent> {
        let len = request.len.min(self.bytes.len());
        Transfer { bytes: self.bytes, state: Lent { request: Request { len, ..request } } }
    }
}

impl Transfer<Lent> {
    /// Returns the parameters of the transfer.
    pub fn request(&self) -> Request {
        self.state.request
    }

    /// Returns the bytes to send.
    pub fn outgoing(&self) -> &[u8] {
        &self.bytes[..self.state.request.len]
    }

    /// Returns the memory for received bytes.
    pub fn incoming(&mut self) -> &mut [u8] {
        let len = self.state.request.len;
        &mut self.bytes[..len]
    }

    /// Completes the transfer with a result. A length beyond the one requested is an overflow.
    pub fn complete(self, result: Result<usize, Error>) -> Transfer<Done> {
        let request = self.state.request;
        let result = result.and_then(|len| if len <= request.len { Ok(len) } else { Err(Error::Overflow) });
        Transfer { bytes: self.bytes, state: Done { request, result } }
    }

    /// Extracts the memory, for transports that pass it on, for example to the kernel.
    pub fn into_bytes(self) -> (Request, Vec<u8>) {
        (self.state.request, self.bytes)
    }

    /// Creates a transfer from memory that [`Transfer::into_bytes`] returned.
    pub fn from_bytes(request: Request, mut bytes: Vec<u8>) -> Transfer<Lent> {
        if bytes.len() < request.len {
            bytes.resize(request.len, 0);
        }
        Transfer { bytes, state: Lent { request } }
    }
}

impl Transfer<Done> {
    /// Returns the parameters of the transfer.
    pub fn request(&self) -> Request {
        self.state.request
    }

    /// Returns the bytes transferred, or the error.
    pub fn result(&self) -> Result<usize, Error> {
        self.state.result
    }

    /// Returns the bytes received; empty after an error.
    pub fn received(&self) -> &[u8] {
        &self.bytes[..self.state.result.unwrap_or(0)]
    }

    /// Returns the transfer's memory to be used for another transfer.
    pub fn recycle(self) -> Transfer<Idle> {
        Transfer { bytes: self.bytes, state: Idle(()) }
    }
}

/// A condition that aborts a set-up: a descriptor that becomes readable, or a deadline.
#[derive(Debug)]
pub struct Guard {
    stop: OwnedFd,
    until: Instant,
}

/// The reason why a set-up is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The descriptor has become readable.
    Stopped,
    /// The deadline of the guard has passed.
    TooLong,
}

impl Guard {
    /// Creates a guard that aborts when `stop` becomes readable (which is never read here), or after `longest`.
    pub fn new(stop: OwnedFd, longest: Duration) -> Guard {
        Guard { stop, until: Instant::now() + longest }
    }

    /// Returns the reason to abort, or `None`.
    pub fn verdict(&self) -> Option<Verdict> {
        let interest = [Interest::read(self.stop.as_fd())];
        if sys::wait(&interest, Some(Duration::ZERO)).is_ok_and(|ready| ready == [true]) {
            return Some(Verdict::Stopped);
        }
        self.left().is_zero().then_some(Verdict::TooLong)
    }

    /// Returns the additional descriptor to wait for.
    pub(crate) fn interest(&self) -> Interest<'_> {
        Interest::read(self.stop.as_fd())
    }

    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// An opened USB device.
///
/// Transfers of one endpoint complete in the order of their submission. A transfer that cannot be submitted comes back
/// from [`Transport::reap`] like any other.
pub trait Transport {
    /// Returns vendor and product id.
    fn identity(&self) -> (u16, u16);

    /// Returns the speed of the bus.
    fn speed(&self) -> Speed;

    /// Performs a control request with data from the device, and waits for it. Returns the number of bytes.
    ///
    /// # Errors
    /// See [`Error`].
    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, Error>;

    /// Performs a control request with data to the device, or none, and waits for it.
    ///
    /// # Errors
    /// See [`Error`].
    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), Error>;

    /// Submits a bulk or interrupt transfer.
    fn submit(&mut self, transfer: Transfer<Lent>);

    /// Returns a completed transfer, if there is one. Never waits.
    fn reap(&mut self) -> Option<Transfer<Done>>;

    /// Cancels all transfers of an endpoint; those not complete come back with [`Error::Cancelled`].
    fn cancel(&mut self, endpoint: u8);

    /// Clears the halt of an endpoint (USB 2.0, section 9.4.5). All of its transfers must have come back.
    ///
    /// # Errors
    /// See [`Error`].
    fn clear_halt(&mut self, endpoint: u8) -> Result<(), Error>;

    /// Sets or removes the guard. From the time at which the guard says so, control requests fail with [`Error::Gone`];
    /// one that is waiting then ends as soon as the transport allows.
    fn guard(&mut self, guard: Option<Arc<Guard>>) {
        let _ = guard;
    }

    /// Returns whether the device is known to be gone, even if no transfer is left that could report it. Incomplete
    /// transfers still come from [`Transport::reap`] with [`Error::Gone`].
    fn is_gone(&self) -> bool;

    /// Returns the reason why the transport itself has failed permanently, so that it cannot serve even a replugged
    /// device. Each reason is returned once.
    fn failure(&mut self) -> Option<io::Error> {
        None
    }

    /// Closes the device, so that another open can succeed. Pending transfers end or are never reported.
    fn release(&mut self) {}

    /// Returns the current time of the monotonic clock on which all times are based.
    fn now(&self) -> Nanos;

    /// Waits for `nanos` nanoseconds.
    fn sleep(&mut self, nanos: u64);

    /// Returns a descriptor that is readable when [`Transport::reap`] may return a transfer; `None` if only time can
    /// tell.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns whether the descriptor becomes writable, not readable, when [`Transport::reap`] may return a transfer.
    fn wakes_by_writing(&self) -> bool {
        false
    }

    /// Returns the time at which [`Transport::reap`] may return a transfer even if the descriptor is not ready.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Passes every counter specific to this kind of transport to `put`: always the same ones, in the same order, under
    /// names that no driver uses.
    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        let _ = put;
    }
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn identity(&self) -> (u16, u16) {
        (**self).identity()
    }

    fn speed(&self) -> Speed {
        (**self).speed()
    }

    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, Error> {
        (**self).control_in(setup, into)
    }

    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), Error> {
        (**self).control_out(setup, data)
    }

    fn submit(&mut self, transfer: Transfer<Lent>) {
        (**self).submit(transfer);
    }

    fn reap(&mut self) -> Option<Transfer<Done>> {
        (**self).reap()
    }

    fn cancel(&mut self, endpoint: u8) {
        (**self).cancel(endpoint);
    }

    fn clear_halt(&mut self, endpoint: u8) -> Result<(), Error> {
        (**self).clear_halt(endpoint)
    }

    fn guard(&mut self, guard: Option<Arc<Guard>>) {
        (**self).guard(guard);
    }

    fn is_gone(&self) -> bool {
        (**self).is_gone()
    }

    fn failure(&mut self) -> Option<io::Error> {
        (**self).failure()
    }

    fn release(&mut self) {
        (**self).release();
    }

    fn now(&self) -> Nanos {
        (**self).now()
    }

    fn sleep(&mut self, nanos: u64) {
        (**self).sleep(nanos);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }

    fn wakes_by_writing(&self) -> bool {
        (**self).wakes_by_writing()
    }

    fn deadline(&self) -> Option<Nanos> {
        (**self).deadline()
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        (**self).extras(put);
    }
}
