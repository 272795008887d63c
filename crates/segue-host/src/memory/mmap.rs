//! Atomic numbers in memory that a process shares with its forked children, or with other processes that map the same
//! file.
#![allow(unsafe_code, reason = "memory of mmap is behind a pointer")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU64;

/// Atomic numbers, all zero at first, in a mapping that a forked child shares: each process sees the writes of the
/// other.
#[derive(Debug)]
pub struct SharedNumbers {
    first: NonNull<AtomicU64>,
    count: usize,
}

impl SharedNumbers {
    /// Maps memory for `count` shared numbers.
    pub fn new(count: usize) -> io::Result<SharedNumbers> {
        // Miri has no shared mappings. Threads share a private one too.
        let sharing = if cfg!(miri) { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
        SharedNumbers::map(count, sharing | libc::MAP_ANONYMOUS, -1)
    }

    /// Maps the first `count` numbers of a file, shared with every process that maps it.
    ///
    /// # Errors
    /// Where the file is shorter, since its end would be no memory.
    pub fn over(file: &File, count: usize) -> io::Result<SharedNumbers> {
        if file.metadata()?.len() < SharedNumbers::len_of(count) as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        SharedNumbers::map(count, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(count: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<SharedNumbers> {
        let (protection, len) = (libc::PROT_READ | libc::PROT_WRITE, SharedNumbers::len_of(count));
        // SAFETY: a new mapping at an address of the kernel's choice replaces no other one.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(at.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedNumbers { first, count })
    }

    /// Returns the length of the mapping in bytes; the kernel accepts no mapping of length 0.
    fn len_of(count: usize) -> usize {
        count.max(1) * size_of::<AtomicU64>()
    }
}

impl Deref for SharedNumbers {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned to a page, has room for `count` numbers, was filled with zeros by the kernel,
        // and lives as long as `self`. Other processes write to it as well, by atomic operations alone.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for SharedNumbers {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference to it is left.
        unsafe { libc::munmap(self.first.as_ptr().cast(), SharedNumbers::len_of(self.count)) };
    }
}

// SAFETY: the value owns its mapping, and what it hands out are shared references to atomics.
unsafe impl Send for SharedNumbers {}
// SAFETY: as above.
unsafe impl Sync for SharedNumbers {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_number_is_zero_at_first_and_keeps_what_another_thread_wrote() {
        let numbers = SharedNumbers::new(3).unwrap();
        assert!(numbers.iter().all(|number| number.load(Ordering::Relaxed) == 0));
        std::thread::scope(|scope| {
            scope.spawn(|| numbers[2].store(7, Ordering::Relaxed));
        });
        let read: Vec<u64> = numbers.iter().map(|number| number.load(Ordering::Relaxed)).collect();
        assert_eq!(read, [0, 0, 7]);
        let last = std::thread::spawn(move || numbers[2].load(Ordering::Relaxed)).join().unwrap();
        assert_eq!(last, 7, "read by a thread that unmaps the numbers too");
    }
}
