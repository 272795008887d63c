//! The events that long-running commands log, each with an id that never changes, and their form as one line.

use std::borrow::Cow;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::error::{Error, printable_line};
use crate::units;

/// Importance of an event, as syslog(3) numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Priority of events that report a failure.
    Error = 3,
    /// Priority of problems that the instance survives.
    Warning = 4,
    /// Priority of notable events that are no problem.
    Notice = 5,
    /// Event of ordinary operation.
    Info = 6,
}

macro_rules! events {
    ($($name:ident = $id:literal $priority:ident $meaning:literal, $remedy:literal;)*) => {
        /// An event of a long-running command.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LogEvent {
            $(#[doc = $meaning] $name,)*
        }

        impl LogEvent {
            /// Every event, in the order in which the documentation has them.
            pub const ALL: &[LogEvent] = &[$(LogEvent::$name,)*];

            /// Returns the event's id, which never changes.
            pub const fn id(self) -> &'static str {
                match self { $(LogEvent::$name => $id,)* }
            }

            /// Returns the priority of the event.
            pub const fn priority(self) -> Priority {
                match self { $(LogEvent::$name => Priority::$priority,)* }
            }

            /// Returns the description of the event, a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(LogEvent::$name => $meaning,)* }
            }

            /// Returns the remedy for the event, a sentence.
            pub const fn remedy(self) -> &'static str {
                match self { $(LogEvent::$name => $remedy,)* }
            }
        }
    };
}

events! {
    Ready = "ready" Info "The service has started its instances.", "No action is needed.";
    Up = "up" Info "An instance moves packets.", "No action is needed.";
    Down = "down" Info "An instance has ended on request.", "No action is needed.";
    Ended = "ended" Warning "An instance ended by itself; the service starts it again.", "The error in front of it says why.";
    Reloaded = "reloaded" Info "The changed file is in force.", "No action is needed.";
    ReloadRefused = "reload_refused" Error "The changed file is refused, and nothing has changed.", "Correct the file: segue run --check -c FILE.";
    Upgraded = "upgraded" Info "The service continues with a newer program.", "Restart the listed instances, which still run the old program.";
    Set = "set" Info "A knob has changed.", "No action is needed.";
    Counters = "counters" Info "The counters, asked for by SIGUSR1.", "No action is needed.";
    Unhealthy = "unhealthy" Warning "A problem of HEALTH has begun; code= names it.", "try= has the command to run.";
    Healthy = "healthy" Info "A problem of HEALTH is over; code= names it.", "No action is needed.";
    Note = "note" Notice "Something about the start that is worth knowing.", "The line says what it costs, and what changes it.";
    Stopped = "stopped" Warning "A signal stopped a process of an instance; it was continued.", "Find the process that sends SIGSTOP or SIGTSTP to it.";
    Forwarding = "forwarding" Warning "The kernel forwards between the interfaces of a gateway too.", "The line has the setting to change.";
    Sandbox = "sandbox" Notice "A part of the sandbox is missing in this kernel.", "segue doctor names it; run without --weak-sandbox to refuse.";
    Output = "output" Notice "The reader of stdout is gone, or its file system is full.", "No action is needed, or make room.";
    Lost = "lost" Warning "Messages were lost, since stderr was not read.", "Find out why its reader is slow or hangs.";
    Offload = "offload" Warning "The kernel refused an offload; packets take the slow path.", "segue stat --why says what it costs.";
    Link = "link" Info "The link of an adapter has changed.", "Look at the cable where it should be up.";
    Adapter = "adapter" Warning "An adapter was unplugged, came back, or failed an access.", "Plug it in; segue lan78xx list shows the adapters.";
    Routes = "routes" Warning "The kernel's routes or neighbours could not be followed.", "segue stat --why says what is not used.";
    Underlay = "underlay" Warning "The state of the underlay could not be read.", "segue doctor says which right is missing.";
    Port = "port" Notice "Another event of a port.", "The line says what has happened.";
}

impl LogEvent {
    /// Returns the event with the given id.
    pub fn of(id: &str) -> Option<LogEvent> {
        LogEvent::ALL.iter().copied().find(|event| event.id() == id)
    }
}

/// An event to write to the log.
#[derive(Clone, Debug)]
pub struct LogEntry<'a> {
    /// The kind of the event.
    pub event: LogEvent,
    /// The human-readable text; several lines become one.
    pub text: Cow<'a, str>,
    /// Further fields: name and value.
    pub fields: Vec<(&'static str, String)>,
}

impl<'a> LogEntry<'a> {
    /// Creates a log entry without further fields.
    pub fn new(event: LogEvent, text: impl Into<Cow<'a, str>>) -> LogEntry<'a> {
        LogEntry { event, text: text.into(), fields: Vec::new() }
    }

    /// Adds a field to the log entry.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> LogEntry<'a> {
        self.fields.push((name, value.into()));
        self
    }

    /// Returns the line in the form `id=ID NAME=VALUE... msg="TEXT"` (logfmt), without a line feed.
    pub fn logfmt(&self) -> String {
        let text = self.text.strip_prefix("note: ").unwrap_or(&self.text);
        let fields = self.fields.iter().map(|(name, value)| (*name, value.as_str()));
        logfmt(self.event.id(), fields.chain([("msg", text)]))
    }
}

/// Returns the event that takes the place of `count` events on stdout, which was not read.
pub fn lost(count: u64) -> Value {
    let (id, t) = (LogEvent::Lost.id(), units::rfc3339(SystemTime::now()));
    let what = if count == 1 { "1 message was".to_owned() } else { format!("{count} messages were") };
    let message = format!("{what} lost, since stdout was not read");
    json!({ "schema": "segue.events/1", "event": id, "t": t, "count": count, "message": message })
}

/// Returns the lines of an error, one for each position in a file: `id=KIND msg="..." why="..." try="..."`.
pub fn lines_of(error: &Error) -> Vec<String> {
    let mut fields: Vec<(&str, String)> = Vec::new();
    if let Some(source) = &error.source {
        fields.push(("file", source.file.clone()));
        fields.push(("line", source.line.to_string()));
        fields.push(("column", source.column.to_string()));
    }
    fields.push(("msg", error.message.clone()));
    fields.extend(error.why.clone().map(|why| ("why", why)));
    fields.push(("try", error.hint.clone()));
    let first = logfmt(error.kind.name(), fields.iter().map(|(name, value)| (*name, value.as_str())));
    let more = error.source.iter().flat_map(|source| &source.more).flat_map(lines_of);
    std::iter::once(first).chain(more).collect()
}

fn logfmt<'a>(id: &str, fields: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut line = format!("id={id}");
    for (name, value) in fields {
        line.push_str(&format!(" {name}={}", quoted(value)));
    }
    line
}

/// Returns a value of a field on one line: in quotes unless it is a plain word, and without terminal control
/// characters.
fn quoted(value: &str) -> String {
    let one: Vec<&str> = value.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = printable_line(&one.join("; "));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:/%,+@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn an_event_is_one_line_with_its_id_in_front() {
        let line = LogEntry::new(LogEvent::Up, "blue is up\n  GRE in GUE \u{1b}[2J\"").with("instance", "blue");
        assert_eq!(line.logfmt(), r#"id=up instance=blue msg="blue is up; GRE in GUE ?[2J\"""#);
        assert_eq!(LogEntry::new(LogEvent::Note, "note: a b").logfmt(), r#"id=note msg="a b""#);
    }

    #[test]
    fn an_error_is_one_line_with_its_kind_reason_and_hint() {
        let error = Error::new(Kind::InUse, "port 6080", "ss -ulpn\nanother `port`").why("it is bound");
        assert_eq!(lines_of(&error), [r#"id=in_use msg="port 6080" why="it is bound" try="ss -ulpn; another `port`""#]);
    }

    #[test]
    fn lost_events_are_an_event_with_their_number() {
        for (count, message) in [(1, "1 message was lost, "), (20, "20 messages were lost, ")] {
            let event = lost(count);
            assert_eq!((event["schema"].as_str(), event["event"].as_str()), (Some("segue.events/1"), Some("lost")));
            assert_eq!(event["count"], count);
            assert_eq!(event["message"], format!("{message}since stdout was not read"));
            assert!(event["t"].as_str().is_some_and(|t| t.ends_with('Z')));
        }
    }

    #[test]
    fn every_id_is_documented_with_its_remedy() {
        let page = include_str!("../../../docs/run.md");
        for event in LogEvent::ALL {
            let priority = event.priority() as u8;
            let row = format!("| `{}` | {priority} | {} | {} |", event.id(), event.meaning(), event.remedy());
            assert!(page.contains(&row), "docs/run.md lacks\n{row}");
            assert_eq!(LogEvent::of(event.id()), Some(*event), "two events have this id");
        }
    }
}
