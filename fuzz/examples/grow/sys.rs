//! The counters that the compiler's runtime keeps.
#![allow(unsafe_code, reason = "the counters are memory of the compiler's runtime")]

unsafe extern "C" {
    fn __llvm_profile_begin_counters() -> *mut u64;
    fn __llvm_profile_end_counters() -> *mut u64;
}

/// Returns the counters of this program.
pub fn counters() -> &'static [u64] {
    // SAFETY: both ends are those of one array of the runtime, which lives as long as the program; this program has one
    // thread, and reads the counters between two runs of the target only.
    unsafe {
        let (begin, end) = (__llvm_profile_begin_counters(), __llvm_profile_end_counters());
        std::slice::from_raw_parts(begin, end.offset_from(begin) as usize)
    }
}
