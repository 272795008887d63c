//! The one kind of failure that the program shows: what, why, and what to try.

use serde_json::{Value, json};

/// What sort of failure it is; the name is the `kind` of the JSON form and stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command or a dashed option that does not exist, or is used wrongly.
    Usage,
    /// A word that is not in the grammar.
    UnknownWord,
    /// A value that the word does not take.
    BadValue,
    /// A word or a value is missing.
    Missing,
    /// Words that do not go together.
    Conflict,
    /// A thing that this version cannot do.
    NotAvailable,
    /// The user lacks a privilege.
    NoPermission,
    /// A security module, a sandbox or a container's device list refused.
    Denied,
    /// /dev/net/tun or its driver is not there.
    NoTun,
    /// A name, port or address is taken.
    InUse,
    /// A named thing does not exist.
    NotFound,
    /// There is no route to an address, or the address is not of this host.
    Unreachable,
    /// Any other refusal of the system.
    System,
    /// A running instance reports that it is not well.
    Unhealthy,
    /// A configuration file says something that cannot be.
    Config,
    /// A file is cut off, damaged, or not what it should be.
    Damaged,
    /// What was found has been shown already; only the exit status is left to give.
    Shown,
    /// A fault of segue itself.
    Internal,
    /// Stopped by the user.
    Interrupted,
}

impl Kind {
    /// The name in JSON.
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

    /// The exit status: 2 used wrongly, 130 interrupted, 1 all else.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Usage | Kind::UnknownWord | Kind::BadValue | Kind::Missing | Kind::Conflict | Kind::NotAvailable => 2,
            Kind::Interrupted => 130,
            _ => 1,
        }
    }
}

/// Which word of the command is wrong, shown with a caret under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// All words as they were given.
    pub words: Vec<String>,
    /// The index of the wrong one; the number of words when something is missing at the end.
    pub at: usize,
    /// What to write beside the caret.
    pub note: String,
    /// The nearest right word, if there is one.
    pub nearest: Option<String>,
}

/// Which place of a file is wrong, shown with a caret under it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file as it was named.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// How many characters are wrong, at least 1.
    pub width: usize,
    /// The line itself.
    pub text: String,
    /// What to write beside the caret.
    pub note: String,
    /// The nearest right word, if there is one.
    pub nearest: Option<String>,
    /// What else is wrong in the file.
    pub more: Vec<Error>,
    /// How many more are not among these.
    pub left_out: usize,
}

/// A failure that a person can act on.
#[derive(Clone, Debug)]
pub struct Error {
    /// Of what sort it is.
    pub kind: Kind,
    /// What failed, with the system's own text where there is one.
    pub message: String,
    /// Why, as far as it could be found out.
    pub why: Option<String>,
    /// What to do; several lines are possible. Never empty.
    pub hint: String,
    /// The system's error number.
    pub os_error: Option<i32>,
    /// The wrong word. On the heap, to keep `Result`s small.
    pub place: Option<Box<Place>>,
    /// The wrong place of a file.
    pub source: Option<Box<Source>>,
}

impl Error {
    /// A failure with what happened and what to try.
    pub fn new(kind: Kind, message: impl Into<String>, hint: impl Into<String>) -> Error {
        Error { kind, message: message.into(), why: None, hint: hint.into(), os_error: None, place: None, source: None }
    }

    /// A refusal of the system: `message`, then its text.
    pub fn system(message: impl std::fmt::Display, error: &std::io::Error, hint: impl Into<String>) -> Error {
        let mut made = Error::new(Kind::System, format!("{message}: {}", os_text(error)), hint);
        made.os_error = error.raw_os_error();
        made
    }

    /// Adds the reason.
    pub fn why(mut self, why: impl Into<String>) -> Error {
        self.why = Some(why.into());
        self
    }

    /// Replaces what to try.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = hint.into();
        self
    }

    /// Says of what sort it is.
    pub fn kind(mut self, kind: Kind) -> Error {
        self.kind = kind;
        self
    }

    /// Points at a word.
    pub fn at(mut self, place: Place) -> Error {
        self.place = Some(Box::new(place));
        self
    }

    /// The form for programs: `{"error":{kind, message, why, hint, os_error}}`.
    pub fn json(&self) -> Value {
        let mut error = json!({
            "kind": self.kind.name(),
            "message": self.message,
            "why": self.why,
            "hint": self.hint,
            "os_error": self.os_error,
        });
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

/// Most errors that are shown at once.
const MOST: usize = 20;

/// All errors as one, in the order of their lines; `None` where there are none.
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
    // What points nowhere stands by itself.
    if let Some(source) = &mut first.source {
        source.more = errors.collect();
        source.left_out = left_out;
    }
    Some(first)
}

/// The system's text without Rust's "(os error N)".
pub fn os_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match (error.raw_os_error(), text.find(" (os error")) {
        (Some(_), Some(at)) => text[..at].to_owned(),
        _ => text,
    }
}

/// A word as it may be shown: nothing in it can move the cursor or break the caret's column.
pub fn printable(word: &str) -> String {
    if word.is_empty() {
        return "\"\"".to_owned();
    }
    word.chars().map(|c| if is_hidden(c) || c.is_whitespace() { '?' } else { c }).collect()
}

/// Whether a character acts instead of being seen: controls, and what turns the direction of writing or has no width
/// (Unicode's bidirectional and default-ignorable format characters).
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
