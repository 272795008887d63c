//! A device of this machine, accessed by the kernel's usbfs (Linux, Documentation/driver-api/usb/usb.rst). It needs no
//! thread and no library, and has a descriptor for the poll loop.

mod sys;

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use segue::time::Nanos;

pub use sys::{IOCTLS, OPENING_IOCTLS};

use crate::regs::{Chip, endpoint};
use crate::usb::{Done, Error, Guard, Lent, Setup, Speed, Transfer, Transport};

/// Timeout of a control request, milliseconds, as in Linux.
const CONTROL_MS: u32 = 5000;
/// Directory in which the kernel describes USB devices.
const DESCRIPTIONS: &str = "/sys/bus/usb/devices";
/// Directory with the device nodes of USB devices.
const DEVICES: &str = "/dev/bus/usb";

/// An adapter in the kernel's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Bus and port, such as `1-1.4`: the name of the device in sysfs.
    pub port: String,
    /// Path of the device node.
    pub path: PathBuf,
    /// Kind of the adapter's chip.
    pub chip: Chip,
    /// USB vendor and product id.
    pub identity: (u16, u16),
    /// Speed of the bus in Mbit/s, as the kernel reports it.
    pub mbit: u32,
    /// The kernel driver bound to the adapter.
    pub driver: Option<String>,
}

/// Returns all adapters of this machine, sorted by port.
///
/// # Errors
/// The error of reading sysfs. A machine without USB has no adapters.
pub fn list() -> io::Result<Vec<Adapter>> {
    let folder = match fs::read_dir(DESCRIPTIONS) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found: Vec<Adapter> = folder.flatten().filter_map(|entry| describe(&entry.path())).collect();
    found.sort_by(|a, b| a.port.cmp(&b.port));
    Ok(found)
}

fn describe(folder: &Path) -> Option<Adapter> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned());
    let hex = |name: &str| u16::from_str_radix(&text(name)?, 16).ok();
    let identity = (hex("idVendor")?, hex("idProduct")?);
    let chip = Chip::of(identity.0, identity.1)?;
    let number = |name: &str| text(name)?.parse::<u32>().ok();
    let (bus, device) = (number("busnum")?, number("devnum")?);
    let port = folder.file_name()?.to_str()?.to_owned();
    let interface = folder.join(format!("{port}:1.0/driver"));
    let driver = fs::read_link(interface).ok();
    Some(Adapter {
        path: PathBuf::from(format!("{DEVICES}/{bus:03}/{device:03}")),
        port,
        chip,
        identity,
        mbit: number("speed").unwrap_or(0),
        driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
    })
}

fn error_of(number: i32) -> Error {
    match number {
        libc::EPIPE => Error::Stall,
        libc::ENODEV | libc::ESHUTDOWN => Error::Gone,
        libc::ETIMEDOUT => Error::Timeout,
        libc::EOVERFLOW => Error::Overflow,
        libc::ENOENT | libc::ECONNRESET => Error::Cancelled,
        libc::ENOMEM => Error::Memory,
        _ => Error::Protocol,
    }
}

fn from_io(error: &io::Error) -> Error {
    error.raw_os_error().map_or(Error::Protocol, error_of)
}

/// Opens an adapter and detaches the kernel's driver. Closing the descriptor does not reattach it; [`Usbfs`] does.
///
/// # Errors
/// An error if the device node cannot be opened for writing, or another program has claimed the interface.
pub fn take(adapter: &Adapter) -> io::Result<(OwnedFd, Speed)> {
    let file = OpenOptions::new().read(true).write(true).open(&adapter.path)?;
    sys::claim(&file)?;
    let speed = match sys::speed(&file)? {
        ..=2 => Speed::Full,
        3 | 4 => Speed::High,
        _ => Speed::Super,
    };
    Ok((file.into(), speed))
}

/// An adapter of this machine. The kernel's driver is detached until this value is dropped; a device that is gone is
/// not given back to it.
#[derive(Debug)]
pub struct Usbfs {
    file: File,
    identity: (u16, u16),
    speed: Speed,
    /// Transfers that the kernel has, in the order of submission.
    pending: VecDeque<sys::Pending>,
    done: VecDeque<Transfer<Done>>,
    gone: bool,
    /// Whether a request has failed because the device is gone, which may be long before the kernel disconnects it, or
    /// has not answered in time, and none has succeeded since.
    unreachable: bool,
    guard: Option<Arc<Guard>>,
}

impl Usbfs {
    /// Opens an adapter and detaches the kernel's driver.
    ///
    /// # Errors
    /// An error if the device node cannot be opened for writing, or another program has claimed the interface.
    pub fn open(adapter: &Adapter) -> io::Result<Usbfs> {
        let (fd, speed) = take(adapter)?;
        Ok(Usbfs::of(fd, adapter.identity, speed))
    }

    /// Creates a value for an adapter opened by [`take`], possibly in another process.
    pub fn of(fd: OwnedFd, identity: (u16, u16), speed: Speed) -> Usbfs {
        let (pending, done) = (VecDeque::new(), VecDeque::new());
        let file = File::from(fd);
        Usbfs { file, identity, speed, pending, done, gone: false, unreachable: false, guard: None }
    }

    /// Converts the result of a request, and records whether the device answers.
    fn judge<T>(&mut self, result: io::Result<T>) -> Result<T, Error> {
        self.unreachable &= result.is_err();
        result.map_err(|error| self.note(from_io(&error)))
    }

    fn note(&mut self, error: Error) -> Error {
        self.unreachable |= matches!(error, Error::Gone | Error::Timeout);
        error
    }

    /// Returns an error once the guard aborts. A request that is waiting in the kernel ends only at its timeout.
    fn check(&self) -> Result<(), Error> {
        let is_over = self.guard.as_ref().is_some_and(|guard| guard.verdict().is_some());
        if is_over { Err(Error::Gone) } else { Ok(()) }
    }

    fn collect(&mut self) {
        loop {
            match sys::reap(&self.file) {
                Ok(None) => return,
                Ok(Some(address)) => {
                    let place = self.pending.iter().position(|pending| pending.address() == address);
                    let Some(pending) = place.and_then(|place| self.pending.remove(place)) else { continue };
                    let (request, bytes, status, len) = pending.finish();
                    let result = if status == 0 { Ok(len) } else { Err(self.note(error_of(-status))) };
                    self.done.push_back(Transfer::from_bytes(request, bytes).complete(result));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.gone = true;
                    // The device is disconnected, and pending transfers are never reaped.
                    for pending in std::mem::take(&mut self.pending) {
                        let (request, bytes, ..) = pending.finish();
                        self.done.push_back(Transfer::from_bytes(request, bytes).complete(Err(Error::Gone)));
                    }
                    return;
                }
            }
        }
    }
}

impl Drop for Usbfs {
    fn drop(&mut self) {
        self.release();
        // The kernel's driver would set up a device that does not answer: each register access waits for its timeout
        // of five seconds, with the device locked.
        if !self.gone && !self.unreachable {
            sys::reattach(&self.file);
        }
    }
}

impl Transport for Usbfs {
    fn identity(&self) -> (u16, u16) {
        self.identity
    }

    fn speed(&self) -> Speed {
        self.speed
    }

    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, Error> {
        self.check()?;
        let result = sys::control(&self.file, setup, into, CONTROL_MS);
        self.judge(result)
    }

    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), Error> {
        self.check()?;
        let mut data = data.to_vec();
        let result = sys::control(&self.file, setup, &mut data, CONTROL_MS);
        self.judge(result.map(drop))
    }

    fn submit(&mut self, transfer: Transfer<Lent>) {
        // It would never be collected.
        if self.gone {
            self.done.push_back(transfer.complete(Err(Error::Gone)));
            return;
        }
        let (request, bytes) = transfer.into_bytes();
        let interrupt = request.endpoint == endpoint::INTERRUPT;
        match sys::Pending::submit(&self.file, request, bytes, interrupt) {
            Ok(pending) => self.pending.push_back(pending),
            Err((request, bytes, error)) => {
                let error = self.note(from_io(&error));
                self.done.push_back(Transfer::from_bytes(request, bytes).complete(Err(error)));
            }
        }
    }

    fn reap(&mut self) -> Option<Transfer<Done>> {
        // Of a device that is gone the kernel must be asked for nothing more: it would write to memory that was given
        // back.
        if self.done.is_empty() && !self.gone {
            self.collect();
        }
        self.done.pop_front()
    }

    fn cancel(&mut self, endpoint: u8) {
        for pending in self.pending.iter_mut().filter(|pending| pending.request().endpoint == endpoint) {
            pending.discard(&self.file);
        }
    }

    fn clear_halt(&mut self, endpoint: u8) -> Result<(), Error> {
        let result = sys::clear_halt(&self.file, endpoint);
        self.judge(result)
    }

    fn guard(&mut self, guard: Option<Arc<Guard>>) {
        self.guard = guard;
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn release(&mut self) {
        sys::release(&self.file);
    }

    fn now(&self) -> Nanos {
        segue_port::now()
    }

    fn sleep(&mut self, nanos: u64) {
        std::thread::sleep(Duration::from_nanos(nanos));
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn wakes_by_writing(&self) -> bool {
        // usbfs makes the descriptor writable when a transfer has completed.
        true
    }

    fn deadline(&self) -> Option<Nanos> {
        (!self.done.is_empty()).then_some(Nanos(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usb::Request;

    #[test]
    fn a_device_that_the_kernel_knows_no_more_is_gone_without_any_transfer() {
        // A file that is no usbfs device refuses the request like a device that was unplugged.
        let file = File::open("/dev/null").unwrap();
        let mut usb = Usbfs::of(file.into(), (0, 0), Speed::High);
        assert!(!usb.is_gone());
        assert!(usb.reap().is_none() && usb.is_gone());
        // The kernel is not asked: it would refuse with another error.
        let transfer = Transfer::allocate(64).unwrap();
        usb.submit(transfer.lend(Request { endpoint: 2, tag: 0, len: 64, zero_packet: false }));
        assert_eq!(usb.reap().map(|done| done.result()), Some(Err(Error::Gone)));
    }

    #[test]
    fn a_device_that_has_not_answered_is_not_given_back_unless_it_has_answered_since() {
        let mut usb = Usbfs::of(File::open("/dev/null").unwrap().into(), (0, 0), Speed::High);
        for (errno, is_silent) in [(libc::EPIPE, false), (libc::ETIMEDOUT, true), (libc::ENODEV, true)] {
            assert!(usb.judge::<()>(Err(io::Error::from_raw_os_error(errno))).is_err());
            assert_eq!(usb.unreachable, is_silent, "{errno}");
            assert!(usb.judge(Ok(())).is_ok() && !usb.unreachable);
        }
    }

    #[test]
    fn a_transfer_that_the_kernel_does_not_take_comes_back_with_its_memory() {
        let file = File::open("/dev/null").unwrap();
        let mut usb = Usbfs::of(file.into(), (0, 0), Speed::High);
        for tag in 0..100 {
            let mut transfer = Transfer::allocate(4096).unwrap();
            transfer.bytes_mut().fill(tag as u8);
            usb.submit(transfer.lend(Request { endpoint: 2, tag, len: 4096, zero_packet: false }));
            let mut done = usb.reap().expect("it was refused").recycle();
            assert!(done.capacity() == 4096 && done.bytes_mut().iter().all(|byte| *byte == tag as u8));
        }
    }
}
