//! An allocator that refuses large allocations on request.
#![allow(unreachable_pub, reason = "a module of a test program")]
#![allow(unsafe_code, reason = "a global allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Size from which on an allocation counts as that of a transfer; no other allocation of these tests is between it and
/// [`PAGE`].
pub const LARGE: usize = 9000;
/// Size from which on an allocation is a page of the receive side.
pub const PAGE: usize = 100_000;

/// Number of transfers whose allocation is still granted.
pub static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);

pub struct Scarce;

// SAFETY: every call is passed to the system's allocator; a refusal is null, as the trait allows.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if (LARGE..PAGE).contains(&layout.size()) {
            let left = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| match left {
                usize::MAX => Some(usize::MAX),
                left => left.checked_sub(1),
            });
            if left.is_err() {
                return std::ptr::null_mut();
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
