//! Memory between two guard pages.
#![allow(unsafe_code, reason = "mmap and mprotect exist only as libc calls")]

use std::ptr::null_mut;
use std::slice;

/// Bytes between two guard pages: an access beyond them ends the test program by a signal.
#[derive(Debug)]
pub(crate) struct Guarded {
    base: *mut u8,
    page: usize,
    len: usize,
}

impl Guarded {
    /// Maps at least `len` bytes, all zero.
    pub(crate) fn new(len: usize) -> Guarded {
        // SAFETY: no pointers.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("the size of a page");
        let len = len.next_multiple_of(page);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses the place of the new mapping.
        let base = unsafe { libc::mmap(null_mut(), len + 2 * page, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let base = base.cast::<u8>();
        // SAFETY: the range is inside the mapping that was made above.
        let opened = unsafe { libc::mprotect(base.add(page).cast(), len, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        Guarded { base, page, len }
    }

    /// Returns the bytes between the guard pages.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range is mapped for reading and writing as long as `self` lives, which is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.base.add(self.page), self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference to it is left.
        unsafe { libc::munmap(self.base.cast(), self.len + 2 * self.page) };
    }
}
