//! Errors as text for a terminal: the failure, its reason, and a remedy.

use anstyle::{AnsiColor, Style};
use segue_control::error::{Error, Place, Source, is_hidden, printable};

/// Errors that have a text form for a terminal.
pub(crate) trait Rendered {
    /// Returns the text of the error: `error:`, the words with a caret or `why:`, and `try:`.
    fn text(&self) -> String;
}

impl Rendered for Error {
    fn text(&self) -> String {
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
        // With `why:` the texts are aligned in one column; under a caret there is only `try:`.
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
            // All hints are collected at the end, each printed once.
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
}

/// Maximum width of an excerpt of a command line, in characters.
const EXCERPT: usize = 72;

/// Returns the words on one line and the caret line under it, cut to a window around the wrong word when long.
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

/// Returns a line made safe to print: control characters are replaced, and every character takes one column.
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

#[cfg(test)]
mod tests {
    use segue_control::error::Kind;
    use serde_json::json;

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
        assert_eq!(shown(word), "a?b?[2J?c??d e");
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
