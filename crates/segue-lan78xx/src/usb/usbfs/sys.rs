//! System calls of usbfs: the ioctls of `linux/usbdevice_fs.h`.
#![allow(unsafe_code, reason = "usbfs is ioctls on structures with pointers")]

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::usb::{Request, Setup};

/// URB type of an interrupt transfer.
const INTERRUPT: u8 = 1;
const BULK: u8 = 3;
/// URB flag: a zero-length packet follows a transfer that ends with a full packet.
const ZERO_PACKET: c_uint = 0x40;

#[repr(C)]
struct Control {
    request_type: u8,
    request: u8,
    value: u16,
    index: u16,
    length: u16,
    timeout_ms: u32,
    data: *mut c_void,
}

#[repr(C)]
struct Urb {
    kind: u8,
    endpoint: u8,
    status: c_int,
    flags: c_uint,
    buffer: *mut c_void,
    buffer_length: c_int,
    actual_length: c_int,
    start_frame: c_int,
    packets: c_int,
    error_count: c_int,
    signal: c_uint,
    context: *mut c_void,
}

#[repr(C)]
struct DisconnectRequest {
    interface: c_uint,
    flags: c_uint,
    driver: [u8; 256],
}

#[repr(C)]
struct Inner {
    interface: c_int,
    code: c_int,
    data: *mut c_void,
}

const fn code(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | (b'U' as u64) << 8 | number
}

const NONE: u64 = 0;
const WRITE: u64 = 1;
const READ: u64 = 2;
const CONTROL: u64 = code(READ | WRITE, 0, size_of::<Control>());
const SUBMIT: u64 = code(READ, 10, size_of::<Urb>());
const DISCARD: u64 = code(NONE, 11, 0);
const REAP_NOW: u64 = code(WRITE, 13, size_of::<*mut c_void>());
const RELEASE: u64 = code(READ, 16, size_of::<c_uint>());
const INNER: u64 = code(READ | WRITE, 18, size_of::<Inner>());
const CLEAR_HALT: u64 = code(READ, 21, size_of::<c_uint>());
const CONNECT: u64 = code(NONE, 23, 0);
const DISCONNECT_CLAIM: u64 = code(READ, 27, size_of::<DisconnectRequest>());
const SPEED: u64 = code(NONE, 31, 0);

/// Ioctl numbers used while the device is in use.
pub const IOCTLS: [u64; 7] = [CONTROL, SUBMIT, DISCARD, REAP_NOW, RELEASE, INNER, CLEAR_HALT];

/// Ioctl numbers used to open a device.
pub const OPENING_IOCTLS: [u64; 2] = [DISCONNECT_CLAIM, SPEED];

fn call<A>(file: &File, number: u64, argument: *mut A) -> io::Result<c_int> {
    // SAFETY: every caller passes the structure that the number stands for, or null where there is none, and it
    // outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), number as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Claims the interface, and detaches the kernel's driver if one is bound.
pub(super) fn claim(file: &File) -> io::Result<()> {
    let mut claim = DisconnectRequest { interface: 0, flags: 0, driver: [0; 256] };
    call(file, DISCONNECT_CLAIM, &raw mut claim).map(drop)
}

/// Releases the USB interface. A device that is gone is already released, and the call fails.
pub(super) fn release(file: &File) {
    let mut interface: c_uint = 0;
    let _ = call(file, RELEASE, &raw mut interface);
}

/// Requests that the kernel looks for a driver of the interface; it returns when that driver has set the device up.
pub(super) fn reattach(file: &File) {
    let mut inner = Inner { interface: 0, code: CONNECT as c_int, data: std::ptr::null_mut() };
    let _ = call(file, INNER, &raw mut inner);
}

/// Returns the speed of the bus: 2 full, 3 high, 5 and more super.
pub(super) fn speed(file: &File) -> io::Result<c_int> {
    call(file, SPEED, std::ptr::null_mut::<c_void>())
}

/// Performs a control request; `data` is read or written as `setup` says. Returns the length of the answer.
pub(super) fn control(file: &File, setup: Setup, data: &mut [u8], timeout_ms: u32) -> io::Result<usize> {
    let mut request = Control {
        request_type: setup.request_type,
        request: setup.request,
        value: setup.value,
        index: setup.index,
        length: setup.length.min(data.len().min(usize::from(u16::MAX)) as u16),
        timeout_ms,
        data: data.as_mut_ptr().cast(),
    };
    call(file, CONTROL, &raw mut request).map(|len| usize::try_from(len).unwrap_or(0))
}

pub(super) fn clear_halt(file: &File, endpoint: u8) -> io::Result<()> {
    let mut endpoint = c_uint::from(endpoint);
    call(file, CLEAR_HALT, &raw mut endpoint).map(drop)
}

/// A transfer that was submitted to the kernel. Its memory must stay in place until it is reaped: the kernel copies
/// into it then.
pub(super) struct Pending {
    /// Pointer to the URB's box, which the kernel has too: moving a box would invalidate it.
    urb: *mut Urb,
    bytes: Vec<u8>,
    request: Request,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Pending {
    /// Submits a transfer to the kernel. An error returns the memory too.
    pub(super) fn submit(
        file: &File,
        request: Request,
        mut bytes: Vec<u8>,
        interrupt: bool,
    ) -> Result<Pending, (Request, Vec<u8>, io::Error)> {
        let urb = Box::into_raw(Box::new(Urb {
            kind: if interrupt { INTERRUPT } else { BULK },
            endpoint: request.endpoint,
            status: 0,
            flags: if request.zero_packet { ZERO_PACKET } else { 0 },
            buffer: bytes.as_mut_ptr().cast(),
            buffer_length: request.len.min(bytes.len()) as c_int,
            actual_length: 0,
            start_frame: 0,
            packets: 0,
            error_count: 0,
            signal: 0,
            context: std::ptr::null_mut(),
        }));
        let pending = Pending { urb, bytes, request };
        match call(file, SUBMIT, urb) {
            Ok(_) => Ok(pending),
            Err(error) => Err((request, pending.into_bytes(), error)),
        }
    }

    /// Returns the memory of the transfer's data. The kernel must not have the transfer any more.
    fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Cancels the transfer, which [`reap`] still returns.
    pub(super) fn discard(&mut self, file: &File) {
        // A transfer that is complete cannot be discarded, and keeps its result.
        let _ = call(file, DISCARD, self.urb);
    }

    pub(super) fn request(&self) -> Request {
        self.request
    }

    /// Returns the address of the URB, by which [`reap`] names the transfer: no other one has it until then.
    pub(super) fn address(&self) -> usize {
        self.urb.addr()
    }

    /// Returns the transfer's parameters, its memory, the kernel's status (0 or a negative error number) and the number
    /// of bytes.
    pub(super) fn finish(self) -> (Request, Vec<u8>, c_int, usize) {
        // SAFETY: the pointer is that of a box that this value owns, and the kernel no longer writes to it.
        let (status, len) = unsafe { ((*self.urb).status, (*self.urb).actual_length) };
        (self.request, self.into_bytes(), status, usize::try_from(len).unwrap_or(0))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw`, and nothing else owns it. The kernel has given the transfer
        // back, or its file is closed.
        drop(unsafe { Box::from_raw(self.urb) });
    }
}

/// Returns the address of the URB of a completed transfer, if there is one.
pub(super) fn reap(file: &File) -> io::Result<Option<usize>> {
    let mut done: *mut Urb = std::ptr::null_mut();
    match call(file, REAP_NOW, &raw mut done) {
        Ok(_) => Ok((!done.is_null()).then(|| done.addr())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
