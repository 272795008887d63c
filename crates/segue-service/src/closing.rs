//! Threads that close the interfaces of an instance in parallel.
//!
//! The kernel removes an interface when its last descriptor is closed, and most of the 25 ms that this takes it waits
//! for other processors, which many threads can do at once. The threads begin with the instance, because the filters of
//! system calls allow no new ones at its end.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::started;

/// Number of interfaces for each thread.
const EACH: usize = 8;
/// Largest number of closing threads.
const MOST: usize = 64;

/// Threads that wait for descriptors to close.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    threads: Vec<(Sender<Vec<OwnedFd>>, JoinHandle<()>)>,
}

impl Closing {
    /// Starts the threads for this number of interfaces; a small number needs none. Those that cannot be started are
    /// missing.
    pub(crate) fn of(interfaces: usize) -> Closing {
        let start = |_| {
            let (close, fds) = channel::<Vec<OwnedFd>>();
            let thread = started::spawn("closing", move || fds.into_iter().for_each(drop)).ok()?;
            Some((close, thread))
        };
        Closing { threads: (0..(interfaces / EACH).min(MOST)).filter_map(start).collect() }
    }

    /// Closes the descriptors, and returns when all are closed.
    pub(crate) fn close(self, mut fds: Vec<OwnedFd>) {
        let mut left = self.threads.len() + 1;
        let mut running = Vec::with_capacity(self.threads.len());
        for (close, thread) in self.threads {
            let part = fds.split_off(fds.len() - fds.len() / left);
            left -= 1;
            // A thread that has ended leaves its part to this one, which closes it at once.
            drop(close.send(part));
            running.push(thread);
        }
        drop(fds);
        for thread in running {
            // A panic would have ended the process.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn every_descriptor_is_closed_whatever_the_number_of_descriptors_and_threads() {
        for (interfaces, count) in [(0, 0), (0, 3), (8, 1), (8, 0), (80, 7), (80, 80), (10_000, 200)] {
            let (mut reader, writer) = std::io::pipe().unwrap();
            let fds = (0..count).map(|_| writer.try_clone().unwrap().into()).collect();
            let closing = Closing::of(interfaces);
            assert_eq!(closing.threads.len(), (interfaces / 8).min(64));
            drop(writer);
            closing.close(fds);
            // A pipe ends when no descriptor of its other end is left.
            assert_eq!(reader.read(&mut [0]).unwrap(), 0, "{interfaces} {count}");
        }
    }
}
