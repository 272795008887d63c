//! The time zone of this host, as TZ or /etc/localtime has it.

mod sys;

/// Returns the offset of local time from UTC in seconds at a time, which is given in seconds since 1970-01-01 UTC; 0
/// where the system has no time zone data.
pub fn offset(seconds: i64) -> i64 {
    sys::offset(seconds).unwrap_or(0)
}
