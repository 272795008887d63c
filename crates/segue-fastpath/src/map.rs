//! BPF maps with keys and values of fixed length.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::{self, MapKind};

/// A BPF map. After its creation it needs only the commands 1 to 3 of bpf(2), and no capability.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    key: usize,
    value: usize,
    /// Number of values of an entry: that of the possible CPUs for a per-CPU map, otherwise 1.
    values: usize,
}

impl Map {
    /// Creates a map with keys and values of the given lengths in bytes.
    pub(crate) fn create(kind: MapKind, key: usize, value: usize, entries: u32, name: &str) -> io::Result<Map> {
        Map::of(kind, false, [key, value], entries, name)
    }

    /// Creates a map of at most `most` entries that are allocated when they are added (`BPF_F_NO_PREALLOC`).
    pub(crate) fn growing(kind: MapKind, key: usize, value: usize, most: u32, name: &str) -> io::Result<Map> {
        Map::of(kind, true, [key, value], most, name)
    }

    fn of(kind: MapKind, grows: bool, [key, value]: [usize; 2], entries: u32, name: &str) -> io::Result<Map> {
        let values = if matches!(kind, MapKind::PerCpuArray | MapKind::PerCpuHash) { possible_cpus()? } else { 1 };
        let fd = sys::create_map(kind, grows, [key as u32, value as u32], entries, name)?;
        Ok(Map { fd, key, value, values })
    }

    /// Returns the values of an entry, one after the other; `None` where there is no entry.
    pub(crate) fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.check(key, None)?;
        let mut value = vec![0; self.value * self.values];
        match sys::lookup(self.fd.as_fd(), key, &mut value) {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds an entry or replaces it. A lookup in a hash map finds the old or the new one, or at the moment of the
    /// replacement neither; the old one is whole until another entry is added (see [`crate::readers`]).
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check(key, Some(value))?;
        sys::update(self.fd.as_fd(), key, value)
    }

    /// Deletes an entry, if it exists.
    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<()> {
        self.check(key, None)?;
        match sys::delete(self.fd.as_fd(), key) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Adds or replaces an entry, with the same value for every CPU.
    pub(crate) fn set_all(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.set(key, &value.repeat(self.values))
    }

    /// Checks the lengths of key and value: the kernel would read past shorter ones.
    fn check(&self, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let fits = key.len() == self.key && value.is_none_or(|value| value.len() == self.value * self.values);
        if fits { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the number of CPUs that a per-CPU map has values for.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
