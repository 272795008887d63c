//! Output of the program: data to stdout, everything else to stderr, colour only where it is wanted. segue's own text
//! is ASCII.

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
    /// The reaction to a stdout that its reader has closed.
    pub(crate) on_closed: OnClosed,
}

/// The reaction to a stdout whose reader has closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnClosed {
    /// Exit with status 0 and no message: the reader has what it wanted (`| head`).
    Exit,
    /// Continue without output: a daemon does not depend on a reader.
    Ignore,
}

/// Whether stdout is known to be closed, for [`OnClosed::Ignore`].
static CLOSED: AtomicBool = AtomicBool::new(false);

impl Out {
    /// Returns the settings that the common options ask for; `--color` overrides the environment, in which NO_COLOR
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
            on_closed: OnClosed::Exit,
        }
    }

    /// Returns these settings for a long-running command: it continues when stdout is closed, and its ports log to
    /// stderr unless it is quiet.
    pub(crate) fn staying(&self) -> Arc<dyn Report> {
        if !self.quiet {
            log_to_stderr();
        }
        self.unattended()
    }

    /// Returns these settings for a command that continues when stdout is closed.
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

    /// Writes a line for the user to stderr, unless quiet.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            to_stderr(&format!("{text}\n"));
        }
    }

    /// Writes a line to stderr, even when quiet.
    pub(crate) fn warn(&self, text: &str) {
        to_stderr(&format!("{text}\n"));
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

    fn text_of(&self, error: &Error) -> String {
        anstream::adapter::strip_str(&error.text()).to_string()
    }
}

/// Writes to stderr, ignoring errors such as a closed stderr.
pub(crate) fn to_stderr(text: &str) {
    let mut stderr = AutoStream::auto(io::stderr());
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Starts logging the events of running ports to stderr, one line each, such as an offload that the kernel no longer
/// offers.
fn log_to_stderr() {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    // A second subscriber in one process is refused; this happens only in tests.
    let _ = log.with_max_level(tracing_subscriber::filter::LevelFilter::INFO).try_init();
}
