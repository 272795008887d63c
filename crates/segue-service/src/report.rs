//! How a service tells what it does, to people or to programs.

use std::io::{self, Write};

use segue_control::error::Error;
use serde_json::Value;

/// What a program does with what a service has to say. Every method may be called from any thread and never fails: a reader
/// that has gone does not end a service.
pub trait Report: Send + Sync {
    /// Whether events go to a program, as JSON; the lines for people are left out then.
    fn is_json(&self) -> bool;
    /// Writes one event.
    fn value(&self, value: &Value);
    /// Writes a line for people, which a quiet program leaves out.
    fn note(&self, text: &str);
    /// Writes a line that is never left out.
    fn warn(&self, text: &str);
    /// Shows a change to the system as the command that a person could type; `call` names what is really done.
    fn change(&self, command: &str, call: &str);
    /// Shows a failure that is not the end of the service.
    fn error(&self, error: &Error);
}

/// Writes to stderr; a stderr that is closed is ignored.
pub(crate) fn to_stderr(text: &str) {
    let mut stderr = io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
