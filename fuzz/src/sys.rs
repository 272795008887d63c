//! A global allocator that counts the memory of each thread.
#![allow(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed. What another thread frees stays counted.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// Largest value of `HELD` since the last [`reset`].
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// Number of allocations and reallocations of this thread.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Resets the peak of held memory, and returns the memory held now.
pub(crate) fn reset() -> isize {
    PEAK.set(HELD.get());
    HELD.get()
}

/// Returns the peak of this thread's allocated bytes since [`reset`].
pub(crate) fn peak() -> isize {
    PEAK.get()
}

/// Returns the number of allocations made by this thread.
pub(crate) fn allocations() -> usize {
    ALLOCATIONS.get()
}

fn add(bytes: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    let held = HELD.get().wrapping_add_unsigned(bytes);
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

fn remove(bytes: usize) {
    HELD.set(HELD.get().wrapping_sub_unsigned(bytes));
}

struct Counting;

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        remove(layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`, and `place` is from `System`.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        remove(layout.size());
        add(size);
        // SAFETY: the caller keeps the contract of `realloc`, and `place` is from `System`.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
