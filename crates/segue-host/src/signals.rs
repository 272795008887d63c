//! Signals of a long-running process as events for its loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::sys::{SignalFd, is_ignored};

/// Actions that signals request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalAction {
    /// A clean end is requested, by the first SIGINT or SIGTERM.
    Stop,
    /// An immediate end is requested, by the second interrupt.
    StopNow,
    /// The counters are to be printed: SIGUSR1.
    Counters,
    /// A child may have ended: SIGCHLD.
    Child,
    /// SIGHUP was received: a request to reload, or the terminal was closed. A supervisor acts on it or passes it on;
    /// other processes ignore it.
    Hangup,
}

/// The signals that are read.
const NUMBERS: [i32; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGCHLD];
/// Time within which two interrupts count as one: the terminal sends SIGINT to every process of its group, and a
/// supervisor passes on the one that it received.
const ONE_INTERRUPT: Duration = Duration::from_millis(250);

/// A reader of the signals of a process. They are blocked in the thread that creates it and in the threads that this
/// one starts later.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    first_stop: Option<Instant>,
}

impl Signals {
    /// Blocks the signals and opens the descriptor that reads them. SIGHUP is read where the process has inherited that
    /// it is ignored, too: a service that nohup(1) has started reads its file again on request.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals { fd: SignalFd::new(&NUMBERS)?, first_stop: None })
    }

    /// Blocks and reads the signals for a command that ends by SIGHUP, which nohup(1) asks not to, and by SIGINT, which
    /// a shell ignores for what a script runs in the background. Where the process has inherited that one of them is
    /// ignored, it stays so: a signal that is blocked is read even then.
    pub fn of_command() -> io::Result<Signals> {
        let stays_ignored = |number: i32| [libc::SIGHUP, libc::SIGINT].contains(&number) && is_ignored(number);
        let numbers: Vec<i32> = NUMBERS.into_iter().filter(|number| !stays_ignored(*number)).collect();
        Ok(Signals { fd: SignalFd::new(&numbers)?, first_stop: None })
    }

    /// Returns the next pending signal as an action, with its number.
    pub fn receive(&mut self) -> io::Result<Option<(SignalAction, i32)>> {
        while let Some(number) = self.fd.receive()? {
            if let Some(action) = self.action(number, Instant::now()) {
                return Ok(Some((action, number)));
            }
        }
        Ok(None)
    }

    /// Returns the action for `signal` at the time `now`; `None` for the repetition of an interrupt.
    fn action(&mut self, signal: i32, now: Instant) -> Option<SignalAction> {
        match signal {
            libc::SIGINT | libc::SIGTERM => match self.first_stop {
                None => {
                    self.first_stop = Some(now);
                    Some(SignalAction::Stop)
                }
                Some(first) if now.saturating_duration_since(first) >= ONE_INTERRUPT => Some(SignalAction::StopNow),
                Some(_) => None,
            },
            libc::SIGUSR1 => Some(SignalAction::Counters),
            libc::SIGCHLD => Some(SignalAction::Child),
            libc::SIGHUP => Some(SignalAction::Hangup),
            _ => None,
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_interrupt_is_immediate_but_an_echo_of_the_first_is_not() {
        let mut signals = Signals { fd: SignalFd::new(&[]).unwrap(), first_stop: None };
        let start = Instant::now();
        assert_eq!(signals.action(libc::SIGINT, start), Some(SignalAction::Stop));
        assert_eq!(signals.action(libc::SIGINT, start + Duration::from_millis(5)), None);
        assert_eq!(signals.action(libc::SIGINT, start + Duration::from_millis(400)), Some(SignalAction::StopNow));
    }
}
