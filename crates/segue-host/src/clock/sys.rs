//! The C library's local time.
#![allow(unsafe_code, reason = "a function of the C library without a safe wrapper in std")]

/// Returns `tm_gmtoff` of localtime(3).
pub(super) fn offset(seconds: i64) -> Option<i64> {
    let time = libc::time_t::try_from(seconds).ok()?;
    let mut tm = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call, and a `tm` of zeros is a valid value; the call writes to `tm`
    // alone.
    let tm = unsafe {
        if libc::localtime_r(&raw const time, tm.as_mut_ptr()).is_null() {
            return None;
        }
        tm.assume_init()
    };
    #[allow(clippy::useless_conversion, reason = "the width of this field differs between machines")]
    Some(tm.tm_gmtoff.into())
}
