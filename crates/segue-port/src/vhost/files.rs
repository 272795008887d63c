//! The files of a guest's memory that a [relay](super::relay) holds for as long as the port may use them.
//!
//! The process that closes the last reference to a file gives its pages back to the kernel, which takes 0.14 s for each
//! GiB of pages of 4 kB (AMD EPYC, Linux 6.18). A port would keep other guests waiting meanwhile, and that of a guest
//! of 8 GiB would be taken for one that loops; a relay has one guest.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::memory::MOST_REGIONS;
use super::message::{Message, Region};
use super::reasons::Stop;

/// Time for which a file is held after the message that takes it away: by then the port has read the message and let
/// the file go.
const HELD: Duration = Duration::from_secs(1);
/// Number of such files with which no further message is read until the time of the oldest is over.
const MANY: usize = 128;

/// The files that a port may use.
#[derive(Debug, Default)]
pub(super) struct MemoryFiles {
    mapped: Vec<(Region, OwnedFd)>,
    /// Files that the port was told to let go, or that came with a message without need, with the time since when.
    gone: VecDeque<(Instant, OwnedFd)>,
}

impl MemoryFiles {
    /// Takes the descriptors of a message that the port has been sent.
    ///
    /// # Errors
    /// For more regions than a guest may have.
    pub(super) fn follow(&mut self, message: Message) -> Result<(), Stop> {
        let now = Instant::now();
        if message.replaces_memory() {
            self.gone.extend(self.mapped.drain(..).map(|(_, fd)| (now, fd)));
        }
        if let Some(region) = message.removed() {
            let is_it =
                |known: &Region| (known.guest, known.user, known.len) == (region.guest, region.user, region.len);
            let at = self.mapped.iter().position(|(known, _)| is_it(known));
            self.gone.extend(at.map(|at| (now, self.mapped.swap_remove(at).1)));
        }
        let regions = super::regions(&message).into_iter().map(|(region, _)| region);
        let mut fds = message.fds.into_iter();
        self.mapped.extend(regions.zip(fds.by_ref()));
        self.gone.extend(fds.map(|fd| (now, fd)));
        if self.mapped.len() > MOST_REGIONS { Err(Stop::MemoryRegions) } else { Ok(()) }
    }

    /// Closes the files whose time is over.
    pub(super) fn expire(&mut self) {
        while self.left().is_some_and(|left| left.is_zero()) {
            self.gone.pop_front();
        }
    }

    /// Returns the time until the next file can be closed, if there is one.
    pub(super) fn left(&self) -> Option<Duration> {
        self.gone.front().map(|(since, _)| HELD.saturating_sub(since.elapsed()))
    }

    /// Returns whether the next message is to wait for the time of a file.
    pub(super) fn are_many(&self) -> bool {
        self.gone.len() >= MANY
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mapped.is_empty() && self.gone.is_empty()
    }
}
