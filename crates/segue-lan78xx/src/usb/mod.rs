//! USB as the driver sees it: control requests, and transfers that are lent to a transport and come back.
//!
//! A [`Transport`] is one opened device: behind it is hardware ([`usbfs`]), a device on another machine ([`usbip`]), or
//! the model in this process ([`local`]). Memory for transfers goes round in three types, so that nobody touches what the
//! device may be writing: [`Transfer<Idle>`] is ours to read and write, [`Transfer::lend`] makes it the transport's
//! ([`Transfer<Lent>`]), and it comes back from [`Transport::reap`] as [`Transfer<Done>`] with what happened.

pub mod local;
pub mod usbfs;
pub mod usbip;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use segue::time::Nanos;
use segue_port::Extra;

use crate::sys::{self, Interest};

/// How fast the bus is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// 12 Mbit/s.
    Full,
    /// 480 Mbit/s.
    High,
    /// 5 Gbit/s.
    Super,
}

impl Speed {
    /// Bytes of the largest packet of a bulk endpoint.
    pub const fn max_packet(self) -> usize {
        match self {
            Speed::Full => 64,
            Speed::High => 512,
            Speed::Super => 1024,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Speed::Full => "full",
            Speed::High => "high",
            Speed::Super => "super",
        }
    }
}

/// A control request (USB 2.0, 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// `bmRequestType`: direction, type, recipient.
    pub request_type: u8,
    /// `bRequest`.
    pub request: u8,
    /// `wValue`.
    pub value: u16,
    /// `wIndex`.
    pub index: u16,
    /// `wLength`: bytes of data.
    pub length: u16,
}

impl Setup {
    /// Whether data go from the device to the host.
    pub const fn is_in(&self) -> bool {
        self.request_type & 0x80 != 0
    }

    /// The eight bytes on the bus.
    pub const fn emit(&self) -> [u8; 8] {
        let (v, i, l) = (self.value.to_le_bytes(), self.index.to_le_bytes(), self.length.to_le_bytes());
        [self.request_type, self.request, v[0], v[1], i[0], i[1], l[0], l[1]]
    }

    /// Reads them.
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

/// Why a request or a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The endpoint refused it and, if it is no control endpoint, stays halted until [`Transport::clear_halt`].
    Stall,
    /// It was cancelled.
    Cancelled,
    /// The device is gone.
    Gone,
    /// Damaged on the bus, or answered with nonsense.
    Protocol,
    /// The device sent more than was asked for.
    Overflow,
    /// No answer in time.
    Timeout,
    /// There is no memory for it.
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

/// State of a transfer's memory: ours.
#[derive(Debug)]
pub struct Idle(());

/// State of a transfer's memory: the transport's, and perhaps the device's.
#[derive(Debug)]
pub struct Lent {
    request: Request,
}

/// State of a transfer's memory: back, with a result.
#[derive(Debug)]
pub struct Done {
    request: Request,
    result: Result<usize, Error>,
}

/// What a transfer is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Address of the endpoint, with the direction in bit 7.
    pub endpoint: u8,
    /// Comes back with it.
    pub tag: u32,
    /// Bytes to send, or most bytes to receive.
    pub len: usize,
    /// Whether a zero-length packet is to follow what is sent.
    pub zero_packet: bool,
}

/// Memory for a transfer, in one of the states [`Idle`], [`Lent`], [`Done`].
#[derive(Debug)]
pub struct Transfer<S> {
    bytes: Vec<u8>,
    state: S,
}

impl Transfer<Idle> {
    /// Memory for `len` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is none.
    pub fn allocate(len: usize) -> Result<Transfer<Idle>, Error> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Error::Memory)?;
        bytes.resize(len, 0);
        Ok(Transfer { bytes, state: Idle(()) })
    }

    /// The memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Bytes of it.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Gives it out of hand. A length past the memory is cut to it.
    pub fn lend(self, request: Request) -> Transfer<Lent> {
        let len = request.len.min(self.bytes.len());
        Transfer { bytes: self.bytes, state: Lent { request: Request { len, ..request } } }
    }
}

impl Transfer<Lent> {
    /// What is to be done.
    pub fn request(&self) -> Request {
        self.state.request
    }

    /// What is to be sent.
    pub fn outgoing(&self) -> &[u8] {
        &self.bytes[..self.state.request.len]
    }

    /// Where what is received goes.
    pub fn incoming(&mut self) -> &mut [u8] {
        let len = self.state.request.len;
        &mut self.bytes[..len]
    }

    /// Gives it back. A length past what was asked for is an overflow.
    pub fn complete(self, result: Result<usize, Error>) -> Transfer<Done> {
        let request = self.state.request;
        let result = result.and_then(|len| if len <= request.len { Ok(len) } else { Err(Error::Overflow) });
        Transfer { bytes: self.bytes, state: Done { request, result } }
    }

    /// Takes the memory out, for transports that hand it to somebody else.
    pub fn into_bytes(self) -> (Request, Vec<u8>) {
        (self.state.request, self.bytes)
    }

    /// The reverse.
    pub fn from_bytes(request: Request, mut bytes: Vec<u8>) -> Transfer<Lent> {
        if bytes.len() < request.len {
            bytes.resize(request.len, 0);
        }
        Transfer { bytes, state: Lent { request } }
    }
}

impl Transfer<Done> {
    /// What was to be done.
    pub fn request(&self) -> Request {
        self.state.request
    }

    /// Bytes moved, or why not.
    pub fn result(&self) -> Result<usize, Error> {
        self.state.result
    }

    /// What was received; empty after an error.
    pub fn received(&self) -> &[u8] {
        &self.bytes[..self.state.result.unwrap_or(0)]
    }

    /// The memory, to be used again.
    pub fn recycle(self) -> Transfer<Idle> {
        Transfer { bytes: self.bytes, state: Idle(()) }
    }
}

/// What ends a set-up before it is over: a descriptor, and a time.
#[derive(Debug)]
pub struct Guard {
    stop: OwnedFd,
    until: Instant,
}

/// Why a set-up is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The descriptor is readable.
    Stopped,
    /// It has taken too long.
    TooLong,
}

impl Guard {
    /// Ends it once `stop` is readable, which nobody reads here, or when `longest` has passed from now on.
    pub fn new(stop: OwnedFd, longest: Duration) -> Guard {
        Guard { stop, until: Instant::now() + longest }
    }

    /// Whether it is to end, and why.
    pub fn verdict(&self) -> Option<Verdict> {
        let interest = [Interest::read(self.stop.as_fd())];
        if sys::wait(&interest, Some(Duration::ZERO)).is_ok_and(|ready| ready == [true]) {
            return Some(Verdict::Stopped);
        }
        self.left().is_zero().then_some(Verdict::TooLong)
    }

    /// What to wait for besides, and how long at most.
    pub(crate) fn interest(&self) -> Interest<'_> {
        Interest::read(self.stop.as_fd())
    }

    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// One opened device.
///
/// Transfers of one endpoint are done in the order in which they were submitted. What cannot be submitted comes back from
/// [`Transport::reap`] like everything else.
pub trait Transport {
    /// Vendor and product id.
    fn identity(&self) -> (u16, u16);

    /// How fast the bus is.
    fn speed(&self) -> Speed;

    /// Reads; waits for the answer. Returns how many bytes came.
    ///
    /// # Errors
    /// See [`Error`].
    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, Error>;

    /// Writes; waits until it is done.
    ///
    /// # Errors
    /// See [`Error`].
    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), Error>;

    /// Starts a bulk or interrupt transfer.
    fn submit(&mut self, transfer: Transfer<Lent>);

    /// A transfer that is done, if there is one. Never waits.
    fn reap(&mut self) -> Option<Transfer<Done>>;

    /// Asks for all transfers of an endpoint back; those not done come as [`Error::Cancelled`].
    fn cancel(&mut self, endpoint: u8);

    /// Lets a halted endpoint run again (USB 2.0, 9.4.5). All of its transfers must be back.
    ///
    /// # Errors
    /// See [`Error`].
    fn clear_halt(&mut self, endpoint: u8) -> Result<(), Error>;

    /// While there is a guard, control requests fail with [`Error::Gone`] from when it says so; a request that waits is ended
    /// as soon as the kind of transport allows.
    fn guard(&mut self, guard: Option<Arc<Guard>>) {
        let _ = guard;
    }

    /// Whether the device is known to be gone, also where no transfer is left that could say so. What was submitted and is not
    /// done comes from [`Transport::reap`] as [`Error::Gone`] all the same.
    fn is_gone(&self) -> bool;

    /// Why the transport itself has become useless for good, beyond any device that may come back. Each reason once.
    fn failure(&mut self) -> Option<io::Error> {
        None
    }

    /// Gives the device up, so that it can be opened anew. What waits ends, or is never heard of again.
    fn release(&mut self) {}

    /// The monotonic clock that all times are on.
    fn now(&self) -> Nanos;

    /// Lets time pass.
    fn sleep(&mut self, nanos: u64);

    /// A descriptor that is readable when [`Transport::reap`] may have something; `None` where only time can tell.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the descriptor is ready for writing, not for reading, when [`Transport::reap`] may have something.
    fn wakes_by_writing(&self) -> bool {
        false
    }

    /// When [`Transport::reap`] may have something even if the descriptor stays silent.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Gives every counter that only this kind of transport has to `put`, always the same ones in the same order, under names
    /// that no driver has.
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
