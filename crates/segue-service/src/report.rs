//! The interface for the output of a service, human-readable or as JSON.

use std::io::{self, Write};

use segue_control::error::Error;
use segue_control::event::{LogEntry, LogEvent};
use serde_json::Value;

use crate::forward::Forwarded;

/// The output of a service, implemented by the program. Every method may be called from any thread and never fails: a
/// closed output does not end a service.
pub trait Report: Send + Sync {
    /// Returns whether events are written as JSON; human-readable lines are then left out.
    fn is_json(&self) -> bool;
    /// Returns whether lines are written as a log: one for each event, with the event's id.
    fn is_log(&self) -> bool {
        false
    }
    /// Writes one event to the output.
    fn value(&self, value: &Value);
    /// Writes an event of another process to the output, whose text was checked.
    fn forward(&self, event: &Forwarded<'_>);
    /// Writes an event as a human-readable line or a line of a log. A quiet program leaves out what is no warning.
    fn event(&self, line: &LogEntry<'_>);
    /// Writes a note, the event [`LogEvent::Note`].
    fn note(&self, text: &str) {
        self.event(&LogEntry::new(LogEvent::Note, text));
    }
    /// Reports a change to the system as the command that a person could type; `call` names the system call or
    /// message.
    fn change(&self, command: &str, call: &str);
    /// Reports a failure that does not end the service.
    fn error(&self, error: &Error);
    /// Returns a failure as human-readable text, without colour.
    fn text_of(&self, error: &Error) -> String {
        format!("error: {}\n", error.message)
    }
}

/// Writes `text` to stderr, ignoring a closed stderr; a process of an instance does not wait for its reader.
pub(crate) fn to_stderr(text: &str) {
    let Some(text) = segue_host::stderr::admit(text) else { return };
    let mut stderr = io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
