//! Calls of a port that fail as if a system call in them did, and the treatment of each error by the real ports.

use crate::port::Drop;

/// The calls that fail. Calls are counted from 1 in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Every nth call; 0 means none.
    Every(u32),
    /// Any call, once in this many on average; 0 means never.
    OneIn(u32),
    /// The first calls, this many: an error that passes.
    First(u64),
}

/// Failure of a call that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The call fails with this error number and receives nothing.
    Error(i32),
    /// The call returns only this many bytes of the first packet or datagram, and the others whole.
    Short(usize),
}

/// The failures of the calls in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<F> {
    failure: F,
    calls: Calls,
    made: u64,
}

impl<F: Copy> Plan<F> {
    pub(super) fn new(failure: F, calls: Calls) -> Plan<F> {
        Plan { failure, calls, made: 0 }
    }

    /// Counts a call, and returns its failure if it is to fail.
    pub(super) fn call(&mut self, random: impl FnOnce() -> u64) -> Option<F> {
        self.made += 1;
        let fails = match self.calls {
            Calls::Every(n) => n != 0 && self.made.is_multiple_of(u64::from(n)),
            Calls::OneIn(n) => n != 0 && random().is_multiple_of(u64::from(n)),
            Calls::First(n) => self.made <= n,
        };
        fails.then_some(self.failure)
    }
}

/// Consequence of an error of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The packet stays in the batch, and so do those behind it.
    Blocked,
    /// The packet is dropped for this reason, and the next one is sent.
    Lost(Drop),
    /// The port is useless.
    Gone,
}

impl Outcome {
    /// Returns the consequence of an error number at a UDP socket if `is_datagram`, else at a device or packet socket.
    pub(super) fn of(errno: i32, is_datagram: bool) -> Outcome {
        Outcome::Lost(match (errno, is_datagram) {
            (libc::EAGAIN | libc::EINTR, _) => return Outcome::Blocked,
            (libc::EBADF, _) | (libc::ENOTSOCK, true) | (libc::ENODEV | libc::ENXIO | libc::EBADFD, false) => {
                return Outcome::Gone;
            }
            (libc::ENOBUFS, _) => Drop::QueueFull,
            (libc::ENOMEM, _) => Drop::NoMemory,
            (libc::EMSGSIZE, _) => Drop::TooBig,
            (libc::ENETDOWN, true) => Drop::Unreachable,
            (libc::EPERM | libc::EACCES, true) => Drop::Denied,
            (libc::ENETDOWN | libc::EIO, false) => Drop::DeviceDown,
            _ => Drop::Refused,
        })
    }
}
