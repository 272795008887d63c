//! An allocator that refuses large pieces when it is told to.
#![allow(unreachable_pub, reason = "a module of a test program")]
#![allow(unsafe_code, reason = "a global allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pieces of transfers are at least this large; nothing else in these tests is between here and [`PAGE`].
pub const LARGE: usize = 9000;
/// Pages of the receiving side are larger.
pub const PAGE: usize = 100_000;

/// How many large pieces are still given out.
pub static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);

pub struct Scarce;

// SAFETY: everything is the system's allocator's; a refusal is null, as the trait has it.
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
