//! The log of long-running commands: human-readable text, or one line for each event.
//!
//! In the form logfmt every line has the id of its event in front, and the time unless the journal adds its own. For
//! the journal it begins with the priority (`<4>`, sd-daemon(3)). A warning or an error that repeats within a minute is
//! counted, and the count is shown with the next line. So are events of ports and drivers, of any priority and in each
//! form, beyond some lines a minute of one kind: a guest, or another host, can cause as many as it wants.

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
/// Largest number of lines of one kind that are written within [`WINDOW`].
const MOST: usize = 20;
/// Largest number of kinds of lines that are remembered, so that their repetitions are counted.
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

    /// Returns the line about messages that were lost.
    pub(crate) fn lost(self, what: &str) -> String {
        let Form::Lines { is_journal } = self else { return format!("warning: {what}\n") };
        let line = LogEntry::new(LogEvent::Lost, what).logfmt();
        format!("{}{line}\n", front(is_journal, Priority::Warning))
    }
}

/// Returns whether stderr is connected to the journal (systemd.exec(5), `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let own = io::stderr().as_fd().try_clone_to_owned().map(File::from).and_then(|stderr| stderr.metadata());
    own.is_ok_and(|data| stream == Identity::from(&data).to_string())
}

/// Writes to stderr, ignoring errors such as a closed stderr; a long-running command does not wait for its reader.
pub(crate) fn to_stderr(text: &str) {
    let Some(text) = segue_host::stderr::admit(text) else { return };
    let mut stderr = AutoStream::auto(io::stderr());
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// The lines of one kind that were written within [`WINDOW`], and the number of those that were only counted.
struct Logged {
    kind: String,
    at: Instant,
    lines: Vec<String>,
    repeated: u64,
}

static SEEN: Mutex<VecDeque<Logged>> = Mutex::new(VecDeque::new());

/// Writes a line of the log to stderr. Events of ordinary operation are always written: they answer a request, or the
/// service limits them.
pub(crate) fn write(is_journal: bool, priority: Priority, line: &str) {
    if priority > Priority::Warning {
        return to_stderr(&format!("{}{line}\n", front(is_journal, priority)));
    }
    // A name in the line may be a number, so that the line is a kind of its own.
    write_limited(priority, line, line, || front(is_journal, priority));
}

/// Returns what stands in front of a line: its priority for the journal, elsewhere the time.
fn front(is_journal: bool, priority: Priority) -> String {
    match is_journal {
        true => format!("<{}>", priority as u8),
        false => format!("t={} ", units::local_time(SystemTime::now())),
    }
}

/// Writes a line of the given kind to stderr behind what `front` returns, or counts it.
fn write_limited(priority: Priority, kind: &str, line: &str, front: impl Fn() -> String) {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(line) = counted(&mut seen, priority, kind, line, Instant::now()) {
        to_stderr(&format!("{}{line}\n", front()));
    }
}

/// Returns the line to write, with the number of lines of its kind that were only counted before; `None` where it is
/// only counted: [`MOST`] lines of its kind were written within [`WINDOW`], or the same warning or error was.
fn counted(seen: &mut VecDeque<Logged>, priority: Priority, kind: &str, line: &str, now: Instant) -> Option<String> {
    let mut repeated = 0;
    if let Some(at) = seen.iter().position(|known| known.kind == kind) {
        let known = &mut seen[at];
        if now.saturating_duration_since(known.at) < WINDOW {
            let is_repeated = priority <= Priority::Warning && known.lines.iter().any(|known| known == line);
            if is_repeated || known.lines.len() >= MOST {
                known.repeated += 1;
                return None;
            }
            known.lines.push(line.to_owned());
            return Some(line.to_owned());
        }
        repeated = seen.remove(at).map_or(0, |known| known.repeated);
    }
    if seen.len() >= REMEMBERED {
        seen.pop_front();
    }
    seen.push_back(Logged { kind: kind.to_owned(), at: now, lines: vec![line.to_owned()], repeated: 0 });
    Some(if repeated > 0 { format!("{line} repeated={repeated}") } else { line.to_owned() })
}

/// Returns the kind of a line: the line without its numbers. Digits of a name that begins with a letter stay.
fn kind(line: &str) -> String {
    let words = line.split_inclusive(|c: char| !c.is_alphanumeric());
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    words.map(|word| if is_number(word) { word.trim_start_matches(char::is_alphanumeric) } else { word }).collect()
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
                let line = line.logfmt();
                write_limited(priority, &kind(&line), &line, || front(is_journal, priority));
            }
            Form::Text => {
                let mut text = fields.message;
                for (name, value) in &fields.more {
                    text.push_str(&format!(" {name}={value}"));
                }
                let label = if priority <= Priority::Warning { "warning" } else { "note" };
                let line = format!("{label}: {text}");
                write_limited(priority, &kind(&line), &line, || format!("{} ", units::local_time(SystemTime::now())));
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

    /// Logs a line at a time, and returns what is written.
    fn at(seen: &mut VecDeque<Logged>, priority: Priority, line: &str, time: Instant) -> Option<String> {
        counted(seen, priority, &kind(line), line, time)
    }

    #[test]
    fn a_warning_that_repeats_is_counted_at_once() {
        let (mut seen, begin) = (VecDeque::new(), Instant::now());
        let mut at = |line, seconds| at(&mut seen, Priority::Warning, line, begin + Duration::from_secs(seconds));
        assert_eq!(at("a", 0).as_deref(), Some("a"));
        assert_eq!(at("b", 0).as_deref(), Some("b"));
        assert_eq!(at("a", 1), None);
        assert_eq!(at("a", 59), None);
        assert_eq!(at("a", 61).as_deref(), Some("a repeated=2"));
        assert_eq!(at("a", 130).as_deref(), Some("a"));
        assert_eq!(at("error 5", 130).as_deref(), Some("error 5"));
        assert_eq!(at("error 6", 130).as_deref(), Some("error 6"));
        assert_eq!(at("error 5", 131), None);
    }

    #[test]
    fn a_flood_of_one_kind_of_line_is_bounded_and_counted_and_holds_back_no_other() {
        let floods: [fn(u64) -> String; 2] =
            [|_| "link is down".to_owned(), |number| format!("id=link mbit={number} msg=\"link is up\"")];
        for priority in [Priority::Error, Priority::Warning, Priority::Notice, Priority::Info] {
            for flood in floods {
                let (mut seen, begin) = (VecDeque::new(), Instant::now());
                let mut written = 0;
                for number in 0..1000 {
                    let now = begin + Duration::from_millis(number);
                    written += u64::from(at(&mut seen, priority, &flood(number), now).is_some());
                    // Another event happens now and then.
                    if number % 100 == 0 {
                        let line = format!("front {}", ["end", "door"][number as usize / 100 % 2]);
                        assert!(at(&mut seen, Priority::Info, &line, now).is_some());
                    }
                }
                assert!((1..=MOST as u64).contains(&written), "{written} lines were written");
                let next = at(&mut seen, priority, &flood(7), begin + WINDOW).unwrap();
                assert_eq!(next, format!("{} repeated={}", flood(7), 1000 - written));
                assert_eq!(at(&mut seen, priority, &flood(7), begin + 3 * WINDOW), Some(flood(7)));
            }
        }
    }

    #[test]
    fn what_happens_a_few_times_a_minute_is_written() {
        let (mut seen, begin) = (VecDeque::new(), Instant::now());
        for number in 0..100 {
            let now = begin + Duration::from_secs(6) * number;
            assert_eq!(at(&mut seen, Priority::Info, "link is up", now).as_deref(), Some("link is up"));
        }
    }

    #[test]
    fn lines_that_differ_in_numbers_alone_are_of_one_kind() {
        assert_eq!(kind("id=link name=eth0 mbit=1000 msg=\"10 of 20\""), "id=link name=eth0 mbit= msg=\" of \"");
        assert_ne!(kind("device=t1 refused"), kind("device=t2 refused"));
    }

    #[test]
    fn the_lines_that_are_remembered_are_bounded() {
        let (mut seen, now) = (VecDeque::new(), Instant::now());
        for number in 0..10_000 {
            assert!(at(&mut seen, Priority::Error, &format!("t{number}"), now).is_some());
        }
        assert_eq!(seen.len(), REMEMBERED);
    }
}
