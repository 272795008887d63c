//! Output: data to stdout, all else to stderr, with colour only where it is wanted. segue's own text is ASCII.

use std::io::{self, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, ColorChoice};
use segue_control::error::Error;
use segue_service::report::Report;
use serde_json::Value;

use crate::args::{Color, Common};
use crate::render::Rendered;

/// The output settings of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    /// JSON on stdout.
    pub(crate) json: bool,
    /// JSON with indentation.
    pub(crate) pretty: bool,
    /// Only data and errors.
    pub(crate) quiet: bool,
    /// Whether each change to the system is shown.
    pub(crate) verbose: bool,
    /// What to do when the reader of stdout has gone.
    pub(crate) on_closed: OnClosed,
}

/// What to do when the reader of stdout has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnClosed {
    /// End without an error: the reader has what it wanted (`| head`).
    Exit,
    /// Continue: a long-running command does not depend on a reader.
    Ignore,
}

/// Whether stdout is known to be closed, for [`OnClosed::Ignore`].
static CLOSED: AtomicBool = AtomicBool::new(false);

impl Out {
    /// Applies the common options. `--color` overrides the environment, in which NO_COLOR overrides CLICOLOR_FORCE.
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
            on_closed: OnClosed::Exit,
        }
    }

    /// Returns the report of a long-running command, which does not depend on a reader, and logs the messages of
    /// ports to stderr unless the command is quiet.
    pub(crate) fn staying(&self) -> Arc<dyn Report> {
        if !self.quiet {
            log_to_stderr();
        }
        self.unattended()
    }

    /// Returns a report that does not depend on a reader.
    pub(crate) fn unattended(&self) -> Arc<dyn Report> {
        Arc::new(Out { on_closed: OnClosed::Ignore, ..*self })
    }

    /// Writes data to stdout and flushes it.
    pub(crate) fn data(&self, text: &str) {
        let mut stdout = AutoStream::auto(io::stdout());
        if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            self.stdout_failed(&error);
        }
    }

    /// Writes one JSON value and a line feed.
    pub(crate) fn value(&self, value: &Value) {
        // Serialising a Value cannot fail: its keys are strings.
        let text = if self.pretty { format!("{value:#}") } else { value.to_string() };
        self.data(&(text + "\n"));
    }

    /// Writes a line for people to stderr, unless the command is quiet.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            to_stderr(&format!("{text}\n"));
        }
    }

    /// Writes a line to stderr, also where the command is quiet.
    pub(crate) fn warn(&self, text: &str) {
        to_stderr(&format!("{text}\n"));
    }

    /// Shows a change to the system as the command that a person could type; `call` names the system call or message.
    pub(crate) fn change(&self, command: &str, call: &str) {
        if self.verbose {
            to_stderr(&format!("{command}    # {call}\n"));
        }
    }

    /// Shows a failure: as JSON on stdout with `-j`, otherwise as text on stderr.
    pub(crate) fn error(&self, error: &Error) {
        if self.json {
            self.value(&error.json());
        } else {
            to_stderr(&error.text());
        }
    }

    fn stdout_failed(&self, error: &io::Error) {
        match (self.on_closed, error.kind()) {
            (OnClosed::Ignore, _) => {
                if !CLOSED.swap(true, Ordering::Relaxed) {
                    to_stderr("note: stdout is closed; going on without it\n");
                }
            }
            (OnClosed::Exit, io::ErrorKind::BrokenPipe) => process::exit(0),
            (OnClosed::Exit, _) => {
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

    fn note(&self, text: &str) {
        Out::note(self, text);
    }

    fn warn(&self, text: &str) {
        Out::warn(self, text);
    }

    fn change(&self, command: &str, call: &str) {
        Out::change(self, command, call);
    }

    fn error(&self, error: &Error) {
        Out::error(self, error);
    }
}

/// Writes to stderr; a closed stderr is ignored.
pub(crate) fn to_stderr(text: &str) {
    let mut stderr = AutoStream::auto(io::stderr());
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Logs the messages of ports to stderr, such as an offload that the kernel took back: one line each, once.
fn log_to_stderr() {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    // A second subscriber is refused, which happens only in a test that starts two of them in one process.
    let _ = log.with_max_level(tracing_subscriber::filter::LevelFilter::INFO).try_init();
}
