//! The table in memory that a process shares with its successor.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Duration;

use segue_control::json;
use segue_control::peers::Table;
use segue_control::protocol::TABLE_LEN;
use segue_host::memory::SharedNumbers;
use segue_host::sys::memory_file;

/// Size of a number in the shared memory, bytes.
const EACH: usize = size_of::<u64>();
/// Number of values for the longest table, plus a leading one for its length. Memory that is never written takes none.
const COUNT: usize = 1 + TABLE_LEN / EACH;
/// Number of times that a table is read again which another process replaces meanwhile, as one that gets single changes
/// without a pause does.
const TRIES: usize = 100;
/// Number of looks in turn that find no table before there is none: each of them may fall into a write.
const EMPTY: usize = 10;
/// Pause before the next one where there is no whole table: writing the longest one takes milliseconds.
const PAUSE: Duration = Duration::from_millis(1);

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

    pub(crate) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Replaces the kept peer table. The length in front is zero meanwhile, so that no half of it is read.
    pub(super) fn write(&self, table: &Table) {
        let text = serde_json::to_vec(table).unwrap_or_default();
        let Some((len, words)) = self.words.split_first() else { return };
        len.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
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

    /// Returns the kept table; `None` where there is none, or another process replaces it all the time.
    pub(super) fn read(&self) -> Option<Table> {
        whole(|| self.text())
    }

    /// Returns the text that is kept, or a mixture of two where another one is written meanwhile.
    fn text(&self) -> Option<Vec<u8>> {
        let (len, words) = self.words.split_first()?;
        let len = usize::try_from(len.load(Ordering::Acquire)).ok().filter(|len| (1..=TABLE_LEN).contains(len))?;
        let used = words.iter().take(len.div_ceil(EACH));
        let mut text: Vec<u8> = used.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        text.truncate(len);
        fence(Ordering::Acquire);
        Some(text)
    }
}

/// Returns the table whose text `look` finds twice in turn. Another one may be written meanwhile, of the same length
/// too: its text is another one, since its generation is, and what is there twice is whole.
fn whole(mut look: impl FnMut() -> Option<Vec<u8>>) -> Option<Table> {
    let mut text: Option<Vec<u8>> = None;
    for tried in 1..=TRIES {
        match look() {
            Some(again) if text.as_ref() == Some(&again) => return json::read(&again).ok(),
            Some(again) => text = Some(again),
            None if text.is_none() && tried >= EMPTY => return None,
            None => thread::sleep(PAUSE),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_found_though_the_first_looks_fall_into_a_write() {
        let text = br#"{"generation":9,"peers":[]}"#.to_vec();
        let generation = |looks: &[Option<Vec<u8>>]| {
            let mut looks = looks.iter().cloned();
            whole(|| looks.next().flatten()).and_then(|table| table.generation)
        };
        for writes in 0..EMPTY {
            let looks = [vec![None; writes], vec![Some(text.clone()), None, Some(text.clone())]].concat();
            assert_eq!(generation(&looks), Some(9), "{writes}");
        }
        assert_eq!(generation(&[]), None);
    }
}
