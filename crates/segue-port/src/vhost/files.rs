//! The files of a guest's memory that a [relay](super::relay) holds for as long as the port may use them.
//!
//! The process that closes the last reference to a file gives its pages back to the kernel, which takes 0.14 s for each
//! GiB of pages of 4 kB (AMD EPYC, Linux 6.18). A port would keep other guests waiting meanwhile, and that of a guest
//! of 8 GiB would be taken for one that loops; a relay has one guest.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::memory::MOST_REGIONS;
use super::message::{Message, Region};
use super::reasons::Stop;

/// Time for which a file is held after the message that takes it away. The port unmaps memory in short steps, and reads
/// no further message meanwhile: 1 TiB, the most of a guest, takes 70 s where all of its pages were touched.
pub(super) const HELD: Duration = Duration::from_secs(120);
/// Largest number of such files.
const MOST_GONE: usize = 128;

/// The files that a port may use.
#[derive(Debug, Default)]
pub(super) struct MemoryFiles {
    mapped: Vec<(Region, File)>,
    /// Files that the port was told to let go, or that came with a message without need, each of them once.
    gone: VecDeque<Gone>,
}

/// A file that the port lets go.
#[derive(Debug)]
struct Gone {
    since: Instant,
    /// Numbers of the file system and of the file in it; `None` where the kernel does not tell.
    number: Option<(u64, u64)>,
    _file: File,
}

impl MemoryFiles {
    /// Takes the descriptors of a message that the port has been sent.
    ///
    /// # Errors
    /// For more regions than a guest may have, and for more files that are held.
    pub(super) fn follow(&mut self, message: Message, now: Instant) -> Result<(), Stop> {
        if message.replaces_memory() {
            std::mem::take(&mut self.mapped).into_iter().for_each(|(_, file)| self.let_go(file, now));
        }
        let removed = message.removed().and_then(|region| {
            let is_it =
                |known: &Region| (known.guest, known.user, known.len) == (region.guest, region.user, region.len);
            self.mapped.iter().position(|(known, _)| is_it(known))
        });
        if let Some(at) = removed {
            let (_, file) = self.mapped.swap_remove(at);
            self.let_go(file, now);
        }
        let regions = super::regions(&message).into_iter().map(|(region, _)| region);
        let mut files = message.fds.into_iter().map(File::from);
        self.mapped.extend(regions.zip(files.by_ref()));
        files.for_each(|file| self.let_go(file, now));
        let is_much = self.mapped.len() > MOST_REGIONS || self.gone.len() > MOST_GONE;
        if is_much { Err(Stop::MemoryRegions) } else { Ok(()) }
    }

    /// Holds a file from now on for the time that the port takes to let it go. Its pages remain as long as there is one
    /// descriptor of it.
    fn let_go(&mut self, file: File, now: Instant) {
        let number = file.metadata().ok().map(|found| (found.dev(), found.ino()));
        if number.is_some() {
            self.gone.retain(|gone| gone.number != number);
        }
        self.gone.push_back(Gone { since: now, number, _file: file });
    }

    /// Closes the files whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.left(now).is_some_and(|left| left.is_zero()) {
            self.gone.pop_front();
        }
    }

    /// Returns the time until the next file can be closed, if there is one.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.gone.front().map(|gone| HELD.saturating_sub(now.saturating_duration_since(gone.since)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mapped.is_empty() && self.gone.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use segue_testkit::vhost::{Frontend, message, region};

    use super::*;

    /// Returns the message with the given number about a region of a file of memory, with the file.
    fn told(number: u32, file: &File, at: u64) -> Message {
        let payload = [vec![0; 8], region(at, 4096, at, 0)].concat();
        let words = [number, 1, payload.len() as u32].map(u32::to_le_bytes);
        Message { bytes: [words.concat(), payload].concat(), fds: vec![file.try_clone().unwrap().into()] }
    }

    #[test]
    fn a_file_is_held_until_the_port_has_unmapped_what_went_before_it() {
        let (mut files, begin) = (MemoryFiles::default(), Instant::now());
        let memory = [1 << 20, 2 << 20].map(|at| (Frontend::over(UnixStream::pair().unwrap().0, 0).memory, at));
        let [(first, at), (second, elsewhere)] = &memory;
        for (file, at) in &memory {
            files.follow(told(message::ADD_MEM_REG, file, *at), begin).unwrap();
        }
        assert_eq!(files.left(begin), None);
        let later = begin + Duration::from_secs(3);
        files.follow(told(message::REM_MEM_REG, second, *elsewhere), begin).unwrap();
        files.follow(told(message::REM_MEM_REG, first, *at), later).unwrap();
        // The port has not read the second message: it unmaps memory.
        files.expire(begin + HELD - Duration::from_secs(1));
        assert_eq!((files.gone.len(), files.left(later)), (2, Some(HELD - Duration::from_secs(3))));
        files.expire(begin + HELD);
        assert_eq!((files.gone.len(), files.left(later)), (1, Some(HELD)));
        // A region of the same file comes and goes: its time begins again.
        let again = later + Duration::from_secs(1);
        files.follow(told(message::ADD_MEM_REG, first, *at), again).unwrap();
        files.follow(told(message::REM_MEM_REG, first, *at), again).unwrap();
        assert_eq!((files.gone.len(), files.left(again)), (1, Some(HELD)));
        files.expire(again + HELD);
        assert!(files.is_empty());
    }
}
