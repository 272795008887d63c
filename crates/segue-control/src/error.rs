//! The error type of segue's programs: the failure, its reason, and a hint.

use serde_json::{Value, json};

/// The kind of a failure. Its name is the `kind` of the JSON form and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command or an option does not exist, or is used wrongly.
    Usage,
    /// A word is not part of the grammar.
    UnknownWord,
    /// A word does not take this value.
    BadValue,
    /// A word or a value is missing.
    Missing,
    /// Two words contradict each other.
    Conflict,
    /// This version lacks a feature.
    NotAvailable,
    /// The user lacks a privilege.
    NoPermission,
    /// A security module, a sandbox or the device list of a container refused.
    Denied,
    /// /dev/net/tun or its driver is missing.
    NoTun,
    /// A name, a port or an address is in use.
    InUse,
    /// A named object does not exist.
    NotFound,
    /// There is no route to an address, or the address is not one of this host.
    Unreachable,
    /// The system refused for any other reason.
    System,
    /// A running instance reports a problem.
    Unhealthy,
    /// A configuration file is invalid.
    Config,
    /// A file is truncated, damaged, or of another type.
    Damaged,
    /// The findings have been printed already; only the exit status remains.
    Shown,
    /// segue itself has a fault.
    Internal,
    /// The user stopped the command.
    Interrupted,
}

impl Kind {
    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Usage => "usage",
            Kind::UnknownWord => "unknown_word",
            Kind::BadValue => "bad_value",
            Kind::Missing => "missing",
            Kind::Conflict => "conflict",
            Kind::NotAvailable => "not_available",
            Kind::NoPermission => "no_permission",
            Kind::Denied => "denied",
            Kind::NoTun => "no_tun",
            Kind::InUse => "in_use",
            Kind::NotFound => "not_found",
            Kind::Unreachable => "unreachable",
            Kind::System => "system",
            Kind::Unhealthy => "unhealthy",
            Kind::Config => "config",
            Kind::Damaged => "damaged",
            Kind::Shown => "shown",
            Kind::Internal => "internal",
            Kind::Interrupted => "interrupted",
        }
    }

    /// Every kind of error, in the order of the documentation.
    const ALL: [Kind; 19] = [
        Kind::Usage,
        Kind::UnknownWord,
        Kind::BadValue,
        Kind::Missing,
        Kind::Conflict,
        Kind::NotAvailable,
        Kind::NoPermission,
        Kind::Denied,
        Kind::NoTun,
        Kind::InUse,
        Kind::NotFound,
        Kind::Unreachable,
        Kind::System,
        Kind::Unhealthy,
        Kind::Config,
        Kind::Damaged,
        Kind::Shown,
        Kind::Internal,
        Kind::Interrupted,
    ];

    /// Returns the kind with this name in JSON.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the exit status: 2 for wrong usage, 130 for an interrupt, 1 for all other errors.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Usage | Kind::UnknownWord | Kind::BadValue | Kind::Missing | Kind::Conflict | Kind::NotAvailable => 2,
            Kind::Interrupted => 130,
            _ => 1,
        }
    }
}

/// A place of an error in a command line, shown with a caret under the wrong word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// All words of the command line.
    pub words: Vec<String>,
    /// The index of the wrong word; the number of words where one is missing at the end.
    pub at: usize,
    /// The note next to the caret.
    pub note: String,
    /// The nearest valid word, if there is one.
    pub nearest: Option<String>,
}

/// The position of an error in a file, shown with a caret under it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file, as the user named it.
    pub file: String,
    /// Number of the line in the file, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The number of wrong characters, at least 1.
    pub width: usize,
    /// The text of the line.
    pub text: String,
    /// The note next to the caret.
    pub note: String,
    /// The nearest valid word, if there is one.
    pub nearest: Option<String>,
    /// The other errors of the file.
    pub more: Vec<Error>,
    /// The number of further errors that `more` leaves out.
    pub left_out: usize,
}

/// A failure that a user can act on.
#[derive(Clone, Debug)]
pub struct Error {
    /// The kind of the failure.
    pub kind: Kind,
    /// The failed action, with the system's error text if there is one.
    pub message: String,
    /// The reason of the failure, if known.
    pub why: Option<String>,
    /// Hint for the user, one line or several. Never empty.
    pub hint: String,
    /// The error number of the system.
    pub os_error: Option<i32>,
    /// Whether the message begins with the name of the instance, so that its supervisor does not put it in front.
    pub names_instance: bool,
    /// The wrong word and its position. It is on the heap to keep `Result`s small.
    pub place: Option<Box<Place>>,
    /// The position of the error in a file.
    pub source: Option<Box<Source>>,
    /// The value that the failure is about, as the user wrote it, where no word is marked: an error of a configuration
    /// file points at it.
    pub about: Option<Box<str>>,
}

impl Error {
    /// Creates a failure from its kind, the failed action, and a hint.
    pub fn new(kind: Kind, message: impl Into<String>, hint: impl Into<String>) -> Error {
        let (message, hint) = (message.into(), hint.into());
        let (names_instance, os_error) = (false, None);
        Error { kind, message, why: None, hint, os_error, names_instance, place: None, source: None, about: None }
    }

    /// Creates a failure from an error of the system; its message is `message` followed by the system's text.
    pub fn system(message: impl std::fmt::Display, error: &std::io::Error, hint: impl Into<String>) -> Error {
        let mut made = Error::new(Kind::System, format!("{message}: {}", os_text(error)), hint);
        made.os_error = error.raw_os_error();
        made
    }

    /// Returns the failure and its reason as one line.
    pub fn sentence(&self) -> String {
        match &self.why {
            Some(why) => printable_line(&format!("{}: {why}", self.message)),
            None => printable_line(&self.message),
        }
    }

    /// Adds the reason to the error.
    pub fn why(mut self, why: impl Into<String>) -> Error {
        self.why = Some(why.into());
        self
    }

    /// Replaces the hint of the failure.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = hint.into();
        self
    }

    /// Sets the kind of the error.
    pub fn kind(mut self, kind: Kind) -> Error {
        self.kind = kind;
        self
    }

    /// Marks a message that begins with the name of the instance.
    pub fn names_instance(mut self) -> Error {
        self.names_instance = true;
        self
    }

    /// Adds the place of the wrong word.
    pub fn at(mut self, place: Place) -> Error {
        self.place = Some(Box::new(place));
        self
    }

    /// Adds the value that the failure is about.
    pub fn about(mut self, value: impl std::fmt::Display) -> Error {
        self.about = Some(value.to_string().into());
        self
    }

    /// Returns the error as JSON: `{"error":{kind, message, why, hint, os_error}}`.
    pub fn json(&self) -> Value {
        let mut error = json!({
            "kind": self.kind.name(),
            "message": self.message,
            "why": self.why,
            "hint": self.hint,
            "os_error": self.os_error,
        });
        if self.names_instance {
            error["names_instance"] = json!(true);
        }
        if let Some(place) = &self.place {
            error["word"] = json!(place.words.get(place.at));
            error["word_index"] = json!(place.at);
            error["nearest"] = json!(place.nearest);
            error["note"] = json!(place.note);
        }
        if let Some(source) = &self.source {
            error["file"] = json!(source.file);
            error["line"] = json!(source.line);
            error["column"] = json!(source.column);
            error["nearest"] = json!(source.nearest);
            error["note"] = json!(source.note);
            if source.left_out > 0 {
                error["left_out"] = json!(source.left_out);
            }
            if !source.more.is_empty() {
                error["more"] = source.more.iter().map(|error| error.json()["error"].take()).collect();
            }
        }
        json!({ "error": error })
    }
}

/// Largest number of errors of a file that are shown at once.
const MOST: usize = 20;

/// Merges the errors of a file into one, in the order of their lines; returns `None` for an empty list.
pub fn together(errors: Vec<Error>) -> Option<Error> {
    let apart = |mut error: Error| {
        let more = error.source.as_mut().map(|source| std::mem::take(&mut source.more)).unwrap_or_default();
        std::iter::once(error).chain(more)
    };
    let mut errors: Vec<Error> = errors.into_iter().flat_map(apart).collect();
    errors.sort_by_key(|error| error.source.as_ref().map_or((0, 0), |source| (source.line, source.column)));
    let left_out = errors.len().saturating_sub(MOST);
    errors.truncate(MOST);
    let mut errors = errors.into_iter();
    let mut first = errors.next()?;
    // An error without a place in the file stands alone.
    if let Some(source) = &mut first.source {
        source.more = errors.collect();
        source.left_out = left_out;
    }
    Some(first)
}

/// Returns the system's error text without the suffix "(os error N)" of Rust.
pub fn os_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match (error.raw_os_error(), text.find(" (os error")) {
        (Some(_), Some(at)) => text[..at].to_owned(),
        _ => text,
    }
}

/// Returns a word in a form that is safe to print: no character moves the cursor or shifts the caret's column.
pub fn printable(word: &str) -> String {
    if word.is_empty() {
        return "\"\"".to_owned();
    }
    word.chars().map(|c| if is_hidden(c) || c.is_whitespace() { '?' } else { c }).collect()
}

/// Returns untrusted text on one line that is safe to print: control characters become `?`.
pub fn printable_line(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { '?' } else { c }).collect()
}

/// Returns untrusted text of several lines that is safe to print: control characters but line feeds become `?`.
pub fn printable_lines(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) && c != '\n' { '?' } else { c }).collect()
}

/// Returns untrusted text with colours (SGR, `ESC [ 0 m`) that is safe to print: they stay, and other control
/// characters but line feeds become `?`.
pub fn printable_coloured(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut safe = printable_lines(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.strip_prefix('[').and_then(|rest| rest.find(|c: char| !c.is_ascii_digit() && c != ';'));
        let is_colour = end.is_some_and(|end| part[1 + end..].starts_with('m'));
        safe.push(if is_colour { '\u{1b}' } else { '?' });
        safe.push_str(&printable_lines(part));
    }
    safe
}

/// Returns whether a character acts on the terminal instead of being visible: controls, and the bidirectional and
/// default-ignorable format characters of Unicode.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_shown_acts_on_the_terminal() {
        let word = "a\u{202e}b\u{1b}[2J\u{200b}c\u{feff}\u{e0041}d e";
        assert_eq!(printable(word), "a?b?[2J?c??d?e");
        assert_eq!(printable_line("a\nb \u{1b}c"), "a?b ?c");
        assert_eq!(printable_lines("a\nb \u{1b}c"), "a\nb ?c");
        let coloured = "\u{1b}[1;31merror:\u{1b}[0m\u{1b}[2J\u{1b}]52;c\u{7}\u{1b}[m\n\u{1b}";
        assert_eq!(printable_coloured(coloured), "\u{1b}[1;31merror:\u{1b}[0m?[2J?]52;c?\u{1b}[m\n?");
        assert_eq!(printable("\u{fc}\u{4e2d}\u{5d0}"), "\u{fc}\u{4e2d}\u{5d0}");
    }

    #[test]
    fn the_text_and_the_number_of_the_system_are_in_the_json_form() {
        let os = std::io::Error::from_raw_os_error(libc::EPERM);
        let error = Error::system("cannot create sg0", &os, "sudo segue tunnel ...");
        assert_eq!(error.json()["error"]["os_error"], 1);
        assert_eq!(error.message, "cannot create sg0: Operation not permitted");
    }
}
