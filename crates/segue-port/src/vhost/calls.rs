//! Calls of a guest, and the processor time that they take.
//!
//! A front end can watch its event counter by any number of poll sets (epoll(7)), and each write to the counter visits
//! all of them.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::reasons::Stop;
use super::sys;

/// Time of a call after which the processor time of further ones is measured. A usual one takes microseconds.
const SLOW: Duration = Duration::from_millis(1);
/// Time for which it is measured.
const WINDOW: Duration = Duration::from_secs(1);
/// Processor time of slow calls in a window with which the port stops. Calls of a usual counter do not take a quarter
/// of a processor, even where the time of interrupts and of a hypervisor counts as that of the thread.
const MOST: Duration = Duration::from_millis(250);

/// The processor time of slow calls.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Time of the first slow call of this window.
    since: Option<Instant>,
    spent: Duration,
}

impl Calls {
    /// Notifies a guest by its event counter.
    ///
    /// # Errors
    /// [`Stop::CallBlocked`] for calls that take very long, and as [`sys::signal`].
    pub(super) fn signal(&mut self, fd: BorrowedFd<'_>) -> Result<(), Stop> {
        let begin = Instant::now();
        self.since = self.since.filter(|since| begin - *since < WINDOW);
        let before = self.since.map(|_| sys::thread_time());
        sys::signal(fd)?;
        if begin.elapsed() < SLOW {
            Ok(())
        } else {
            self.spend(begin, before.map(|before| sys::thread_time() - before))
        }
    }

    /// Records a slow call. That it was slow may be due to others, its processor time is not.
    fn spend(&mut self, begin: Instant, took: Option<Duration>) -> Result<(), Stop> {
        let Some(took) = took else {
            (self.since, self.spent) = (Some(begin), Duration::ZERO);
            return Ok(());
        };
        self.spent += took;
        if self.spent < MOST { Ok(()) } else { Err(Stop::CallBlocked) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_take_a_quarter_of_the_processor_stop_the_port_and_slow_ones_alone_do_not() {
        let (mut calls, now) = (Calls::default(), Instant::now());
        assert_eq!(calls.spend(now, None), Ok(()));
        let short = Some(Duration::from_micros(10));
        assert!((0..1000).all(|_| calls.spend(now, short) == Ok(())), "they waited for others");
        let long = Some(Duration::from_millis(10));
        let taken = (0..100).take_while(|_| calls.spend(now, long) == Ok(())).count();
        assert_eq!((taken, calls.spend(now, long)), (23, Err(Stop::CallBlocked)));
        assert_eq!(calls.spend(now + WINDOW, None), Ok(()), "another window");
        assert_eq!((0..100).take_while(|_| calls.spend(now, long) == Ok(())).count(), 24);
    }
}
