//! A global allocator that counts the allocations of the current thread.
#![allow(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// Returns the number of times that this thread has allocated or grown memory.
pub(crate) fn allocations() -> usize {
    ALLOCATIONS.get()
}

/// Returns the number of bytes that this thread has allocated, less those that it has freed.
pub(crate) fn held() -> isize {
    HELD.get()
}

/// Counts an allocation of `new` bytes in the place of `old` ones.
fn count(new: usize, old: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    HELD.set(HELD.get() + new as isize - old as isize);
}

struct Counting;

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: the caller keeps the contract of `dealloc`, and `place` is from `System`.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`, and `place` is from `System`.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
