//! The shim around DPDK, and the clock.
#![expect(unsafe_code, reason = "foreign functions, and the time stamp counter")]

use std::ffi::{CString, c_char, c_int, c_void};

unsafe extern "C" {
    fn shim_start(core: *const c_char) -> c_int;
    fn shim_packets(
        name: *const c_char,
        frames: *const *const u8,
        lens: *const u32,
        count: u16,
        l4_len: u16,
        flows: u16,
    ) -> *mut c_void;
    fn shim_renew(all: *mut c_void, first: u16, count: u16);
    fn shim_gro(all: *mut c_void, first: u16, count: u16) -> u16;
    fn shim_train(frame: *const u8, len: u32, l4_len: u16, size: u16) -> *mut c_void;
    fn shim_gso(all: *mut c_void) -> c_int;
    fn shim_gso_renew(all: *mut c_void);
}

/// Starts DPDK on one core, to which this thread is bound.
pub fn start(core: usize) {
    let core = CString::new(core.to_string()).expect("digits");
    // SAFETY: the string outlives the call.
    let error = unsafe { shim_start(core.as_ptr()) };
    assert_eq!(error, 0, "DPDK does not start");
}

/// Frames in buffers of DPDK.
pub struct Packets {
    all: *mut c_void,
    count: usize,
}

impl Packets {
    /// Copies frames of Ethernet, IPv4 and TCP whose TCP header has `l4_len` bytes.
    pub fn new(name: &str, frames: &[Vec<u8>], l4_len: usize, flows: usize) -> Packets {
        let name = CString::new(name).expect("a plain name");
        let starts: Vec<_> = frames.iter().map(|frame| frame.as_ptr()).collect();
        let lens: Vec<_> = frames.iter().map(|frame| frame.len() as u32).collect();
        let count = frames.len();
        // SAFETY: `count` pointers and lengths, of frames that live through the call, which copies them.
        let all = unsafe {
            shim_packets(name.as_ptr(), starts.as_ptr(), lens.as_ptr(), count as u16, l4_len as u16, flows as u16)
        };
        assert!(!all.is_null(), "DPDK has no memory");
        Packets { all, count }
    }

    /// Restores the packets to their original state.
    pub fn renew(&mut self, first: usize, count: usize) {
        assert!(first + count <= self.count);
        // SAFETY: the pointer is from `shim_packets`, is never freed, and the packets exist.
        unsafe { shim_renew(self.all, first as u16, count as u16) }
    }

    /// Merges the frames and returns the number of resulting packets.
    #[inline]
    pub fn gro(&mut self, first: usize, count: usize) -> usize {
        assert!(first + count <= self.count && count <= 128);
        // SAFETY: as in `renew`; no burst is longer than the array there.
        usize::from(unsafe { shim_gro(self.all, first as u16, count as u16) })
    }
}

/// A train in one of DPDK's buffers.
pub struct Train(*mut c_void);

impl Train {
    /// Copies a train into DPDK's buffers.
    pub fn new(frame: &[u8], l4_len: usize, size: usize) -> Train {
        // SAFETY: the frame lives through the call, which copies it.
        let all = unsafe { shim_train(frame.as_ptr(), frame.len() as u32, l4_len as u16, size as u16) };
        assert!(!all.is_null(), "DPDK has no memory");
        Train(all)
    }

    /// Splits the train and returns the number of segments.
    #[inline]
    pub fn gso(&mut self) -> usize {
        // SAFETY: the pointer is from `shim_train` and is never freed.
        unsafe { shim_gso(self.0) as usize }
    }

    /// Returns the segments to DPDK.
    pub fn renew(&mut self) {
        // SAFETY: as in `gso`.
        unsafe { shim_gso_renew(self.0) }
    }
}

/// Reads the time stamp counter after all preceding instructions have completed.
#[inline(always)]
pub fn ticks() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every x86-64 CPU has both.
    unsafe {
        _mm_lfence();
        let ticks = _rdtsc();
        _mm_lfence();
        ticks
    }
}
