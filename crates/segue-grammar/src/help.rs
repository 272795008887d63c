//! The part of the help that is generated from a table of keywords.

use crate::{Takes, Word};

/// Widest line of help, columns.
pub const WIDTH: usize = 80;

/// Returns a keyword as written in a synopsis.
pub fn spelling(word: &Word) -> String {
    match word.takes {
        Takes::Switch => format!("[no]{}", word.name),
        _ => format!("{} {}", word.name, word.metavar),
    }
}

/// Returns the list of all keywords with description, default and unit.
pub fn complete(table: &[Word]) -> String {
    let mut text = String::new();
    for word in table {
        text.push_str(&entry(&spelling(word), &sentence(word)));
    }
    text
}

/// Returns all keywords in a few lines: required ones first, the others in brackets.
pub fn synopsis(table: &[Word]) -> String {
    let shown = |word: &Word| match (word.required, word.repeats) {
        (true, _) => spelling(word),
        (false, true) => format!("[{}]...", spelling(word)),
        (false, false) if word.takes == Takes::Switch => spelling(word),
        (false, false) => format!("[{}]", spelling(word)),
    };
    let required = table.iter().filter(|word| word.required);
    let rest = table.iter().filter(|word| !word.required);
    let parts: Vec<String> = required.chain(rest).map(shown).collect();
    wrapped(&parts, "  ", "    ")
}

/// Returns a list entry of help: `name`, then its text in a column of its own, wrapped.
pub fn entry(name: &str, text: &str) -> String {
    const COLUMN: usize = 24;
    let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let indent = " ".repeat(COLUMN);
    let body = wrapped(&words, &indent, &indent);
    if name.len() + 4 > COLUMN {
        format!("  {name}\n{body}")
    } else {
        format!("  {name:<width$}{}", &body[COLUMN..], width = COLUMN - 2)
    }
}

/// Returns the description of a keyword with its default, unit and other spellings.
pub fn sentence(word: &Word) -> String {
    let mut text = word.help.to_owned();
    if !word.default.is_empty() {
        let unit = if word.unit.is_empty() { String::new() } else { format!(", in {}", word.unit) };
        text.push_str(&format!(" [{}{unit}]", word.default));
    }
    if !word.aliases.is_empty() {
        text.push_str(&format!(" (also {})", word.aliases.join(", ")));
    }
    text
}

/// Wraps parts to lines of at most [`WIDTH`] columns; the first line begins with `first`, the others with `next`.
pub fn wrapped(parts: &[String], first: &str, next: &str) -> String {
    let mut text = String::new();
    let mut line = first.to_owned();
    let mut empty = true;
    for part in parts {
        if !empty && line.len() + 1 + part.len() > WIDTH {
            text.push_str(&line);
            text.push('\n');
            line = next.to_owned();
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(part);
        empty = false;
    }
    text.push_str(&line);
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::KEYWORDS;

    #[test]
    fn help_names_every_word_in_80_columns() {
        for text in [complete(KEYWORDS), synopsis(KEYWORDS)] {
            for word in KEYWORDS {
                assert!(text.contains(&spelling(word)), "{} is missing in\n{text}", word.name);
            }
            for line in text.lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
        }
        assert!(synopsis(KEYWORDS).lines().count() <= 14);
    }
}
