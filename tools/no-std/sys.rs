//! The runtime of a program without std: panic handler, allocator, and one use of the engine.
#![no_std]
#![allow(unsafe_code)]

extern crate segue;
#[cfg(feature = "std")]
extern crate std;

use core::alloc::{GlobalAlloc, Layout};

struct None;

// SAFETY: a null pointer is the documented answer of an allocator that has no memory.
unsafe impl GlobalAlloc for None {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static NONE: None = None;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
