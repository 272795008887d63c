//! The programs as readers of maps whose entries change.
//!
//! The kernel has the memory of an entry that was replaced or removed hold the next one at once. A program that has
//! looked the old one up, and still reads it, then reads that of another tunnel or peer. So between two such changes
//! the programs that run are waited for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::{self, MapKind};

/// Number of entries that are replaced or removed one by one while packets take the path, with a wait after each. For
/// more the path is switched off meanwhile, with one wait.
pub(crate) const FEW: usize = 4;

/// A means of waiting for programs.
pub(crate) struct Readers {
    /// A map of one map: the kernel ends each change of it after the programs that ran meanwhile.
    outer: OwnedFd,
    inner: OwnedFd,
    waits: AtomicU64,
}

impl Readers {
    /// Creates the maps.
    pub(crate) fn create() -> io::Result<Readers> {
        let inner = sys::create_map(MapKind::Array, false, [4, 4], 1, "segue_inner")?;
        let outer = sys::create_map_of(inner.as_fd(), "segue_readers")?;
        Ok(Readers { outer, inner, waits: AtomicU64::new(0) })
    }

    /// Waits until the programs have ended that run at the call, some milliseconds as a rule.
    pub(crate) fn wait(&self) -> io::Result<()> {
        sys::update(self.outer.as_fd(), &0_u32.to_ne_bytes(), &self.inner.as_raw_fd().to_ne_bytes())?;
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of waits.
    #[cfg(test)]
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}
