//! Failed reads and writes of a descriptor: which errors are transient, how long a port waits for their end, and which
//! ones concern a packet.

use std::io;

use crate::port::{Counters, Drop, Fallback};
use crate::sys::passes;

/// Number of consecutive failures after which a port gives up. The loop pauses between them, so that they take some ten
/// seconds at least.
const MOST_FAILURES: u32 = 1000;

/// Consecutive failed reads.
#[derive(Debug, Default)]
pub(crate) struct ReadFailures(u32);

impl ReadFailures {
    /// Resets the count after a read that succeeded or found nothing to read.
    pub(crate) fn end(&mut self) {
        self.0 = 0;
    }

    /// Counts a read that failed. It ends the poll; the next one reads again.
    ///
    /// # Errors
    /// An error that does not pass, such as that of a device that is gone, and one that has not passed for long.
    pub(crate) fn add(&mut self, error: io::Error, counters: &mut Counters) -> io::Result<()> {
        self.0 = self.0.saturating_add(1);
        if !passes(&error) || self.0 >= MOST_FAILURES {
            return Err(error);
        }
        counters.fallbacks.add(Fallback::ReadFailed);
        Ok(())
    }
}

/// Returns the reason for which a TUN or TAP device lost the packet of a failed write; `None` for an error of the
/// device itself, which every other packet would meet too: it is full, or gone.
pub(crate) fn lost_by_device(error: &io::Error) -> Option<Drop> {
    match error.raw_os_error()? {
        libc::EAGAIN | libc::EINTR | libc::EBADFD | libc::ENODEV | libc::EBADF => None,
        // To wait would be a spin: the device stays writable.
        libc::ENOBUFS => Some(Drop::QueueFull),
        libc::ENOMEM => Some(Drop::NoMemory),
        libc::EIO | libc::ENETDOWN => Some(Drop::DeviceDown),
        _ => Some(Drop::Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_stays_and_one_of_a_lost_device_end_the_port() {
        let (mut failures, mut counters) = (ReadFailures::default(), Counters::default());
        let error = |number| io::Error::from_raw_os_error(number);
        for _ in 1..MOST_FAILURES {
            failures.add(error(libc::ENOMEM), &mut counters).unwrap();
        }
        assert_eq!(counters.fallbacks.of(Fallback::ReadFailed), u64::from(MOST_FAILURES) - 1);
        assert_eq!(failures.add(error(libc::ENOMEM), &mut counters).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        failures.end();
        failures.add(error(libc::EINTR), &mut counters).unwrap();
        for gone in [libc::ENODEV, libc::EBADFD, libc::EBADF, libc::ENXIO, libc::EFAULT] {
            assert!(ReadFailures::default().add(error(gone), &mut counters).is_err(), "{gone}");
        }
    }
}
