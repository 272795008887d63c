//! An allocator that refuses large allocations of a thread on request.
#![allow(unreachable_pub, reason = "a module of a test program")]
#![allow(unsafe_code, reason = "a global allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Smallest size of an allocation that counts as that of a transfer; no other allocation of a test's own thread is
/// between it and [`PAGE`].
pub const LARGE: usize = 9000;
/// Smallest size of an allocation that counts as a page of the receive side.
pub const PAGE: usize = 100_000;

thread_local! {
    /// Number of transfers whose allocation is still granted to this thread. The program of the tests allocates as much
    /// in threads of its own, at any moment, and ends where it is refused.
    pub static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

pub struct Scarce;

// SAFETY: every call is passed to the system's allocator; a refusal is null, as the trait allows.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if (LARGE..PAGE).contains(&layout.size()) {
            match LEFT.get() {
                0 => return std::ptr::null_mut(),
                usize::MAX => {}
                left => LEFT.set(left - 1),
            }
        }
        // SAFETY: the caller's layout is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from the system's allocator with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
