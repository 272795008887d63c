//! The one kind of failure that the program shows: what, why, and what to try.

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

/// What sort of failure it is; the name is the `kind` of the JSON form and stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
    pub(crate) fn name(self) -> &'static str {
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
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Kind::Usage | Kind::UnknownWord | Kind::BadValue | Kind::Missing | Kind::Conflict | Kind::NotAvailable => 2,
            Kind::Interrupted => 130,
            _ => 1,
        }
    }
}

/// Which word of the command is wrong, shown with a caret under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// All words as they were given.
    pub(crate) words: Vec<String>,
    /// The index of the wrong one; the number of words when something is missing at the end.
    pub(crate) at: usize,
    /// What to write beside the caret.
    pub(crate) note: String,
    /// The nearest right word, if there is one.
    pub(crate) nearest: Option<String>,
}

/// Which place of a file is wrong, shown with a caret under it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// The file as it was named.
    pub(crate) file: String,
    /// The line, from 1.
    pub(crate) line: usize,
    /// The column in characters, from 1.
    pub(crate) column: usize,
    /// How many characters are wrong, at least 1.
    pub(crate) width: usize,
    /// The line itself.
    pub(crate) text: String,
    /// What to write beside the caret.
    pub(crate) note: String,
    /// The nearest right word, if there is one.
    pub(crate) nearest: Option<String>,
    /// What else is wrong in the file.
    pub(crate) more: Vec<Error>,
    /// How many more are not among these.
    pub(crate) left_out: usize,
}

/// A failure that a person can act on.
#[derive(Clone, Debug)]
pub(crate) struct Error {
    pub(crate) kind: Kind,
    /// What failed, with the system's own text where there is one.
    pub(crate) message: String,
    /// Why, as far as it could be found out.
    pub(crate) why: Option<String>,
    /// What to do; several lines are possible. Never empty.
    pub(crate) hint: String,
    /// The system's error number.
    pub(crate) os_error: Option<i32>,
    /// The wrong word. On the heap, to keep `Result`s small.
    pub(crate) place: Option<Box<Place>>,
    /// The wrong place of a file.
    pub(crate) source: Option<Box<Source>>,
}

impl Error {
    /// A failure with what happened and what to try.
    pub(crate) fn new(kind: Kind, message: impl Into<String>, hint: impl Into<String>) -> Error {
        Error { kind, message: message.into(), why: None, hint: hint.into(), os_error: None, place: None, source: None }
    }

    /// A refusal of the system: `message`, then its text.
    pub(crate) fn system(message: impl std::fmt::Display, error: &std::io::Error, hint: impl Into<String>) -> Error {
        let mut made = Error::new(Kind::System, format!("{message}: {}", os_text(error)), hint);
        made.os_error = error.raw_os_error();
        made
    }

    /// Adds the reason.
    pub(crate) fn why(mut self, why: impl Into<String>) -> Error {
        self.why = Some(why.into());
        self
    }

    /// Replaces what to try.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = hint.into();
        self
    }

    /// Says of what sort it is.
    pub(crate) fn kind(mut self, kind: Kind) -> Error {
        self.kind = kind;
        self
    }

    /// Points at a word.
    pub(crate) fn at(mut self, place: Place) -> Error {
        self.place = Some(Box::new(place));
        self
    }

    /// The form for people: `error:`, the words with a caret or `why:`, and `try:`.
    pub(crate) fn text(&self) -> String {
        const BAD: Style = AnsiColor::Red.on_default().bold();
        const BOLD: Style = Style::new().bold();
        let mut text = match &self.source {
            None => format!("{BAD}error:{BAD:#} {}\n", self.message),
            Some(source) => {
                let Source { file, line, column, width, text, note, .. } = &**source;
                let gutter = " ".repeat(line.to_string().len());
                let (text, before) = (shown(text), " ".repeat(column.saturating_sub(1)));
                let caret = format!("{before}{BAD}{}{BAD:#} {note}", "^".repeat(*width));
                let caret = caret.trim_end();
                let message = &self.message;
                format!(
                    "{BAD}error:{BAD:#} {file}:{line}:{column}: {message}\n {gutter} |\n {line} | {text}\n {gutter} | {caret}\n"
                )
            }
        };
        // Beside `why:` the text stands in one column; under a caret there is only `try:`.
        let gap = if self.place.is_some() && self.why.is_none() { " " } else { "  " };
        if let Some(place) = &self.place {
            let (line, caret) = excerpt(place);
            text.push_str(&format!("  | {line}\n  | {BAD}{caret}{BAD:#}"));
            if !place.note.is_empty() {
                text.push_str(&format!(" {}", place.note));
            }
            text.push('\n');
        }
        let indent = format!("\n{}", " ".repeat(4 + gap.len()));
        if let Some(why) = &self.why {
            text.push_str(&format!("{BOLD}why:{BOLD:#}{gap}{}\n", why.replace('\n', &indent)));
        }
        let mut hints = vec![self.hint.as_str()];
        for error in self.source.iter().flat_map(|source| &source.more) {
            let one = error.text();
            // What to try stands at the end, each thing once.
            text.push_str(one.split(&format!("{BOLD}try:")).next().unwrap_or_default());
            if !hints.contains(&error.hint.as_str()) {
                hints.push(&error.hint);
            }
        }
        text.push_str(&format!("{BOLD}try:{BOLD:#}{gap}{}\n", hints.join("\n").replace('\n', &indent)));
        if let Some(source) = &self.source {
            let count = 1 + source.more.len() + source.left_out;
            let left_out = match source.left_out {
                0 => String::new(),
                more => format!(", {more} of them not shown"),
            };
            text.push_str(&format!(
                "{count} error{}{left_out}, nothing was changed\n",
                if count == 1 { "" } else { "s" }
            ));
        }
        text
    }

    /// The form for programs: `{"error":{kind, message, why, hint, os_error}}`.
    pub(crate) fn json(&self) -> Value {
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

/// The system's text without Rust's "(os error N)".
pub(crate) fn os_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match (error.raw_os_error(), text.find(" (os error")) {
        (Some(_), Some(at)) => text[..at].to_owned(),
        _ => text,
    }
}

/// Widest excerpt of a command line, in characters.
const EXCERPT: usize = 72;

/// The words on one line and the caret line under it, cut to a window around the wrong word when long.
fn excerpt(place: &Place) -> (String, String) {
    let shown: Vec<String> = place.words.iter().map(|word| printable(word)).collect();
    let start: usize = shown.iter().take(place.at).map(|word| word.chars().count() + 1).sum();
    let width = shown.get(place.at).map_or(1, |word| word.chars().count().max(1));
    let line: Vec<char> = shown.join(" ").chars().collect();
    let caret = |column: usize, width: usize| format!("{}{}", " ".repeat(column), "^".repeat(width));
    if line.len().max(start + width) <= EXCERPT {
        return (line.into_iter().collect(), caret(start, width));
    }
    let width = width.min(EXCERPT / 2);
    let from = start.saturating_sub(EXCERPT / 2).min(line.len().saturating_sub(EXCERPT / 2));
    let to = (from + EXCERPT).min(line.len());
    let before = if from > 0 { "... " } else { "" };
    let after = if to < line.len() { " ..." } else { "" };
    let text: String = line[from..to].iter().collect();
    (format!("{before}{text}{after}"), caret(start - from + before.len(), width))
}

/// A line as it may be shown: nothing in it can move the cursor, and every character has one column.
fn shown(line: &str) -> String {
    line.chars()
        .map(|c| {
            if c == '\t' {
                ' '
            } else if is_hidden(c) {
                '?'
            } else {
                c
            }
        })
        .collect()
}

/// A word as it may be shown: nothing in it can move the cursor or break the caret's column.
pub(crate) fn printable(word: &str) -> String {
    if word.is_empty() {
        return "\"\"".to_owned();
    }
    word.chars().map(|c| if is_hidden(c) || c.is_whitespace() { '?' } else { c }).collect()
}

/// Whether a character acts instead of being seen: controls, and what turns the direction of writing or has no width
/// (Unicode's bidirectional and default-ignorable format characters).
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(error: &Error) -> String {
        anstream::adapter::strip_str(&error.text()).to_string()
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn nothing_that_is_shown_acts_on_the_terminal() {
        let word = "a\u{202e}b\u{1b}[2J\u{200b}c\u{feff}\u{e0041}d e";
        assert_eq!(printable(word), "a?b?[2J?c??d?e");
        assert_eq!(shown(word), "a?b?[2J?c??d e");
        assert_eq!(printable("\u{fc}\u{4e2d}\u{5d0}"), "\u{fc}\u{4e2d}\u{5d0}");
    }

    #[test]
    fn a_wrong_word_is_shown_with_the_caret_under_it() {
        let line = "dev sg0 mode ipip local 198.18.0.1 remot 198.18.0.2";
        let place =
            Place { words: words(line), at: 6, note: "did you mean `remote`?".into(), nearest: Some("remote".into()) };
        let error = Error::new(Kind::UnknownWord, "unknown word `remot`", "segue tunnel --help").at(place);
        let expected = "\
error: unknown word `remot`
  | dev sg0 mode ipip local 198.18.0.1 remot 198.18.0.2
  |                                    ^^^^^ did you mean `remote`?
try: segue tunnel --help
";
        assert_eq!(plain(&error), expected);
    }

    #[test]
    fn the_os_text_stays_and_is_followed_by_why_and_try() {
        let os = std::io::Error::from_raw_os_error(libc::EPERM);
        let error = Error::system("cannot create sg0", &os, "sudo segue tunnel ...\nor that").why("no CAP_NET_ADMIN");
        let expected = "\
error: cannot create sg0: Operation not permitted
why:  no CAP_NET_ADMIN
try:  sudo segue tunnel ...
      or that
";
        assert_eq!(plain(&error), expected);
        assert_eq!(error.json()["error"]["os_error"], 1);
    }

    #[test]
    fn the_caret_stays_under_its_word_in_a_long_line() {
        let line: Vec<String> = (0..60).map(|n| format!("word{n}")).collect();
        for at in 0..=60 {
            let place = Place { words: line.clone(), at, note: String::new(), nearest: None };
            let (text, caret) = excerpt(&place);
            let column = caret.find('^').expect("a caret");
            assert!(text.len() <= EXCERPT + 8, "{text}");
            if at < 60 {
                let len = caret.len() - column;
                assert_eq!(&text[column..column + len], format!("word{at}"));
            } else {
                assert!(column >= text.len(), "the caret stands behind the last word: {text}\n{caret}");
            }
        }
    }

    #[test]
    fn a_wrong_place_of_a_file_is_shown_with_its_line_and_all_of_them_are_counted() {
        let source = |line, column, width, text: &str, note: &str| Source {
            file: "segue.toml".into(),
            line,
            column,
            width,
            text: text.into(),
            note: note.into(),
            nearest: None,
            more: Vec::new(),
            left_out: 0,
        };
        let mut error = Error::new(Kind::Config, "unknown key `remot`", "segue help run");
        let mut first = source(7, 1, 5, "remot = 1", "did you mean `remote`?");
        let mut second = Error::new(Kind::Config, "`x` is no value", "something else");
        second.source = Some(Box::new(source(12, 7, 3, "mtu =\t\"x\"", "")));
        first.more.push(second);
        error.source = Some(Box::new(first));
        let expected = "\
error: segue.toml:7:1: unknown key `remot`
   |
 7 | remot = 1
   | ^^^^^ did you mean `remote`?
error: segue.toml:12:7: `x` is no value
    |
 12 | mtu = \"x\"
    |       ^^^
try:  segue help run
      something else
2 errors, nothing was changed
";
        assert_eq!(plain(&error), expected);
        assert_eq!((error.kind.exit_code(), &error.json()["error"]["more"][0]["line"]), (1, &json!(12)));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let place = Place { words: vec!["a\x1b[2J".into()], at: 0, note: String::new(), nearest: None };
        let error = Error::new(Kind::UnknownWord, "unknown word", "x").at(place);
        assert!(!plain(&error).contains('\x1b'));
    }
}
