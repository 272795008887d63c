//! The table in memory that a process shares with its successor.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use segue_control::json;
use segue_control::peers::Table;
use segue_control::protocol::TABLE_LEN;
use segue_host::memory::SharedNumbers;
use segue_host::sys::memory_file;

/// Size of a number in the shared memory, bytes.
const EACH: usize = size_of::<u64>();
/// Number of values for the longest table, plus a leading one for its length. Memory that is never written takes none.
const COUNT: usize = 1 + TABLE_LEN / EACH;

/// A table in a file that is memory only. The process that moves packets writes it after each change, without a system
/// call; its successor reads it when it begins.
#[derive(Debug)]
pub struct Kept {
    file: File,
    words: SharedNumbers,
}

impl Kept {
    /// Creates an empty shared peer table.
    ///
    /// # Errors
    /// Where the kernel has no such files.
    pub fn new() -> io::Result<Kept> {
        let file = memory_file(c"segue-peers")?;
        file.set_len((COUNT * EACH) as u64)?;
        Kept::of(file.into())
    }

    /// Adopts the table of another process.
    ///
    /// # Errors
    /// Where the file is none of [`Kept::new`].
    pub fn of(fd: OwnedFd) -> io::Result<Kept> {
        let file = File::from(fd);
        let words = SharedNumbers::over(&file, COUNT)?;
        Ok(Kept { file, words })
    }

    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Replaces the kept peer table. The length in front is zero meanwhile, so that no half of it is read.
    pub(super) fn write(&self, table: &Table) {
        let text = serde_json::to_vec(table).unwrap_or_default();
        let Some((len, words)) = self.words.split_first() else { return };
        len.store(0, Ordering::Release);
        // A table that has come over the socket fits; one with all values written out may not, and starts anew then.
        if text.len() > words.len() * EACH {
            return;
        }
        for (word, bytes) in words.iter().zip(text.chunks(EACH)) {
            let mut all = [0; EACH];
            all[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(all), Ordering::Relaxed);
        }
        len.store(text.len() as u64, Ordering::Release);
    }

    /// Returns the kept table; `None` where there is none, or an incomplete one.
    pub(super) fn read(&self) -> Option<Table> {
        let (len, words) = self.words.split_first()?;
        let len = usize::try_from(len.load(Ordering::Acquire)).ok().filter(|len| (1..=TABLE_LEN).contains(len))?;
        let used = words.iter().take(len.div_ceil(EACH));
        let mut text: Vec<u8> = used.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        text.truncate(len);
        json::read(&text).ok()
    }
}
