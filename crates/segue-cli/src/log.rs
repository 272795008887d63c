//! The log of long-running commands: human-readable text, or one line for each event.
//!
//! In the form logfmt every line has the id of its event in front, and the time unless the journal adds its own. For
//! the journal it begins with the priority (`<4>`, sd-daemon(3)). A warning or an error that repeats within a minute is
//! counted, and the count is shown with the next line.

use std::collections::VecDeque;
use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anstream::AutoStream;
use segue_control::event::{LogEntry, LogEvent, Priority};
use segue_control::units;
use segue_host::file::Identity;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

use crate::args::LogFormat;

/// Interval within which a repeated line is counted instead of written.
const WINDOW: Duration = Duration::from_secs(60);
/// Largest number of lines that are remembered, so that their repetitions are counted.
const REMEMBERED: usize = 64;

/// The form of output that is not data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Text, where an error has several lines.
    Text,
    /// One line for each event.
    Lines {
        /// Whether the journal reads the lines.
        is_journal: bool,
    },
}

impl Form {
    /// Returns the form that the option selects.
    pub(crate) fn new(option: LogFormat) -> Form {
        match (option, is_journal()) {
            (LogFormat::Text, _) | (LogFormat::Auto, false) => Form::Text,
            (LogFormat::Logfmt, is_journal) | (LogFormat::Auto, is_journal @ true) => Form::Lines { is_journal },
        }
    }
}

/// Returns whether stderr is connected to the journal (systemd.exec(5), `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let own = io::stderr().as_fd().try_clone_to_owned().map(File::from).and_then(|stderr| stderr.metadata());
    own.is_ok_and(|data| stream == Identity::from(&data).to_string())
}

/// Writes to stderr, ignoring errors such as a closed stderr.
pub(crate) fn to_stderr(text: &str) {
    let mut stderr = AutoStream::auto(io::stderr());
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// A line that was written, and the repetitions of it since then.
struct Logged {
    line: String,
    at: Instant,
    repeated: u64,
}

static SEEN: Mutex<VecDeque<Logged>> = Mutex::new(VecDeque::new());

/// Writes a line of the log to stderr.
pub(crate) fn write(is_journal: bool, priority: Priority, line: &str) {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(line) = counted(&mut seen, priority, line, Instant::now()) {
        let front = match is_journal {
            true => format!("<{}>", priority as u8),
            false => format!("t={} ", units::local_time(SystemTime::now())),
        };
        to_stderr(&format!("{front}{line}\n"));
    }
}

/// Returns the line to write, with the number of repetitions; `None` where it is only counted.
fn counted(seen: &mut VecDeque<Logged>, priority: Priority, line: &str, now: Instant) -> Option<String> {
    if priority > Priority::Warning {
        return Some(line.to_owned());
    }
    let mut repeated = 0;
    if let Some(at) = seen.iter().position(|known| known.line == line) {
        if now.saturating_duration_since(seen[at].at) < WINDOW {
            seen[at].repeated += 1;
            return None;
        }
        repeated = seen.remove(at).map_or(0, |known| known.repeated);
    }
    if seen.len() >= REMEMBERED {
        seen.pop_front();
    }
    seen.push_back(Logged { line: line.to_owned(), at: now, repeated: 0 });
    Some(if repeated > 0 { format!("{line} repeated={repeated}") } else { line.to_owned() })
}

/// The receiver of the events that ports and drivers report through `tracing`. Their field `id` names the event.
pub(crate) struct Events {
    /// The form of the lines.
    pub(crate) form: Form,
}

/// The fields of an event of `tracing`.
#[derive(Default)]
struct Fields {
    id: Option<LogEvent>,
    message: String,
    more: Vec<(&'static str, String)>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "id" => self.id = LogEvent::of(value),
            name => self.more.push((name, value.to_owned())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" { self.message = text } else { self.more.push((field.name(), text)) }
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.is_event()
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let priority = match *event.metadata().level() {
            Level::ERROR => Priority::Error,
            Level::WARN => Priority::Warning,
            _ => Priority::Info,
        };
        match self.form {
            Form::Lines { is_journal } => {
                let mut line = LogEntry::new(fields.id.unwrap_or(LogEvent::Port), fields.message);
                line.fields = fields.more;
                write(is_journal, priority, &line.logfmt());
            }
            Form::Text => {
                let mut text = fields.message;
                for (name, value) in &fields.more {
                    text.push_str(&format!(" {name}={value}"));
                }
                let label = if priority <= Priority::Warning { "warning" } else { "note" };
                to_stderr(&format!("{} {label}: {text}\n", units::local_time(SystemTime::now())));
            }
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_that_repeats_is_counted_and_the_usual_is_not() {
        let (mut seen, begin) = (VecDeque::new(), Instant::now());
        let mut at = |priority, line, seconds| counted(&mut seen, priority, line, begin + Duration::from_secs(seconds));
        assert_eq!(at(Priority::Warning, "a", 0).as_deref(), Some("a"));
        assert_eq!(at(Priority::Warning, "b", 0).as_deref(), Some("b"));
        assert_eq!(at(Priority::Warning, "a", 1), None);
        assert_eq!(at(Priority::Warning, "a", 59), None);
        assert_eq!(at(Priority::Warning, "a", 61).as_deref(), Some("a repeated=2"));
        assert_eq!(at(Priority::Warning, "a", 130).as_deref(), Some("a"));
        assert_eq!((at(Priority::Info, "c", 0), at(Priority::Info, "c", 0)), (Some("c".into()), Some("c".into())));
    }

    #[test]
    fn the_lines_that_are_remembered_are_bounded() {
        let (mut seen, now) = (VecDeque::new(), Instant::now());
        for number in 0..10_000 {
            assert!(counted(&mut seen, Priority::Error, &number.to_string(), now).is_some());
        }
        assert_eq!(seen.len(), REMEMBERED);
    }
}
