//! Output of the program: data to stdout, everything else to stderr, colour only on request or on a terminal. segue's
//! own text is ASCII.

use std::io::{self, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, ColorChoice};
use segue_control::error::Error;
use segue_control::event::{self, LogEntry, LogEvent, Priority};
use segue_service::forward::Forwarded;
use segue_service::report::Report;
use serde::Serialize;
use serde_json::Value;

use crate::args::{Color, Common};
pub(crate) use crate::log::to_stderr;
use crate::log::{self, Form};
use crate::render::Rendered;

/// The output settings of one command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    /// Whether data is printed as JSON.
    pub(crate) json: bool,
    /// Whether JSON is indented.
    pub(crate) pretty: bool,
    /// Whether only data and errors are printed.
    pub(crate) quiet: bool,
    /// Whether each change to the system is shown.
    pub(crate) verbose: bool,
    /// The form of output that is not data.
    pub(crate) form: Form,
    /// Whether the command continues when stdout is closed: a daemon does not depend on a reader. Others exit with
    /// status 0 and no message then: the reader has closed the pipe early (`| head`).
    pub(crate) stays: bool,
}

/// Whether stdout is known to be closed, for a command that continues then.
static CLOSED: AtomicBool = AtomicBool::new(false);

impl Out {
    /// Returns the settings that the common options select; `--color` overrides the environment, in which NO_COLOR
    /// overrides CLICOLOR_FORCE.
    pub(crate) fn new(common: &Common) -> Out {
        match common.color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        }
        .write_global();
        Out {
            json: common.json,
            pretty: common.pretty,
            quiet: common.quiet,
            verbose: common.verbose,
            form: Form::new(common.log_format),
            stays: false,
        }
    }

    /// Returns the settings for a long-running command, which continues when stdout is closed and whose ports log to
    /// stderr unless it is quiet.
    pub(crate) fn staying(&self) -> Arc<dyn Report> {
        if !self.quiet {
            // A second subscriber in one process is refused; this happens only in tests.
            let _ = tracing::subscriber::set_global_default(log::Events { form: self.form });
        }
        self.unattended()
    }

    /// Returns the output settings of a command that continues when stdout is closed, or not read.
    pub(crate) fn unattended(&self) -> Arc<dyn Report> {
        let out = Out { stays: true, ..*self };
        segue_host::stderr::never_wait(move |lost| out.form.lost(lost));
        if out.json {
            segue_host::stdout::never_wait(move |count| out.line(&event::lost(count)));
        }
        Arc::new(out)
    }

    /// Writes data to stdout and flushes it.
    pub(crate) fn data(&self, text: &str) {
        let written = segue_host::stdout::write(text).unwrap_or_else(|| {
            let mut stdout = AutoStream::auto(io::stdout());
            stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
        });
        if let Err(error) = written {
            self.stdout_failed(&error);
        }
    }

    /// Writes one JSON value and a line feed.
    pub(crate) fn value(&self, value: &Value) {
        self.data(&self.line(value));
    }

    /// Returns a JSON value and a line feed. Serialising it cannot fail: its keys are strings, and what is forwarded
    /// was written once when it was checked.
    fn line(&self, value: &impl Serialize) -> String {
        let text = if self.pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
        text.map_or_else(|_| String::new(), |text| text + "\n")
    }

    /// Writes a line for the user to stderr, unless quiet.
    pub(crate) fn note(&self, text: &str) {
        self.event(&LogEntry::new(LogEvent::Note, text));
    }

    /// Writes a line to stderr, even when quiet.
    pub(crate) fn warn(&self, text: &str) {
        to_stderr(&format!("{text}\n"));
    }

    /// Writes an event to stderr; with `--quiet` only warnings.
    pub(crate) fn event(&self, line: &LogEntry<'_>) {
        let priority = line.event.priority();
        // Who asks for the counters gets them.
        if self.quiet && priority > Priority::Warning && line.event != LogEvent::Counters {
            return;
        }
        match self.form {
            Form::Text => to_stderr(&format!("{}\n", line.text)),
            Form::Lines { is_journal } => log::write(is_journal, priority, &line.logfmt()),
        }
    }

    /// Shows a change to the system as the command that a user could type; `call` names the system call or request
    /// that is made instead.
    pub(crate) fn change(&self, command: &str, call: &str) {
        if self.verbose {
            to_stderr(&format!("{command}    # {call}\n"));
        }
    }

    /// Shows a failure: as JSON on stdout with `-j`, otherwise as text on stderr.
    pub(crate) fn error(&self, error: &Error) {
        if self.json {
            return self.value(&error.json());
        }
        match self.form {
            Form::Text => to_stderr(&error.text()),
            Form::Lines { is_journal } => {
                event::lines_of(error).iter().for_each(|line| log::write(is_journal, Priority::Error, line));
            }
        }
    }

    fn stdout_failed(&self, error: &io::Error) {
        match (self.stays, error.kind()) {
            (true, _) => {
                if !CLOSED.swap(true, Ordering::Relaxed) {
                    self.event(&LogEntry::new(LogEvent::Output, "note: stdout takes no more; going on without it"));
                }
            }
            (false, io::ErrorKind::BrokenPipe) => process::exit(0),
            (false, _) => {
                to_stderr(&Error::system("cannot write to stdout", error, "write to a place with room for it").text());
                process::exit(1);
            }
        }
    }
}

impl Report for Out {
    fn is_json(&self) -> bool {
        self.json
    }

    fn value(&self, value: &Value) {
        Out::value(self, value);
    }

    fn forward(&self, event: &Forwarded<'_>) {
        self.data(&self.line(event));
    }

    fn is_log(&self) -> bool {
        self.form != Form::Text
    }

    fn event(&self, line: &LogEntry<'_>) {
        Out::event(self, line);
    }

    fn change(&self, command: &str, call: &str) {
        Out::change(self, command, call);
    }

    fn error(&self, error: &Error) {
        Out::error(self, error);
    }

    fn text_of(&self, error: &Error) -> String {
        anstream::adapter::strip_str(&error.text()).to_string()
    }
}
