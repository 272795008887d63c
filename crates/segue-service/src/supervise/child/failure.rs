//! Errors of an instance: what it reported before its end, and that it does not come up.

use std::time::Duration;

use segue_control::error::{Error, Kind};
use segue_control::protocol::Failure;

/// Longest time in which an instance must come up.
pub(in crate::supervise) const START: Duration = Duration::from_secs(30);

/// Returns the error for an instance that does not come up in time.
pub(in crate::supervise) fn late(name: &str) -> Error {
    Error::new(Kind::System, format!("{name} does not come up"), "segue doctor")
        .why(format!("it did not report for {} s", START.as_secs()))
}

/// Returns the error for an instance that goes on although it has said that it is down.
pub(super) fn lingering(name: &str) -> Error {
    Error::new(Kind::System, format!("{name} does not end"), "segue doctor").why("it has said that it is down")
}

/// Returns the failure that an instance reported, with the name of the instance in front of the message.
pub(super) fn failure(name: &str, failure: Failure) -> Error {
    let Failure { message, why, hint, os_error, names_instance, .. } = failure;
    let message = if message.is_empty() { "failed".to_owned() } else { message };
    let message = if names_instance { message } else { format!("{name}: {message}") };
    Error { why, os_error, ..Error::new(Kind::System, message, hint) }
}
