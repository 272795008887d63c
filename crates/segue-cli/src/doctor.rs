//! `segue doctor`: which features this host has, why others are missing, and what would fix them.

use anstyle::{AnsiColor, Style};
use segue_control::error::{Error, Kind};
use segue_grammar::help::WIDTH;
use segue_service::doctor::{self, Check, Status};
use serde_json::json;

use crate::out::Out;

/// The id of the JSON that `segue doctor -j` prints.
const SCHEMA: &str = "segue.doctor/1";

/// Runs `segue doctor`; `links` are the interfaces to check; an empty list stands for all that are up.
pub(crate) fn run(links: &[String], out: &Out) -> Result<(), Error> {
    let checks = doctor::all(links)?;
    let needed: Vec<&str> =
        checks.iter().filter(|check| check.status == Status::Needed).map(|check| check.name).collect();
    if out.json {
        out.value(&json!({ "schema": SCHEMA, "tunnel_can_run": needed.is_empty(), "checks": checks }));
        // The document contains the failures; an error object after it would be a second JSON value on stdout.
        return if needed.is_empty() { Ok(()) } else { Err(cannot(&needed)) };
    }
    out.data(&table(&checks));
    if needed.is_empty() {
        return Ok(());
    }
    Err(cannot(&needed))
}

fn cannot(needed: &[&str]) -> Error {
    Error::new(Kind::Unhealthy, "a tunnel cannot run here", "the lines that begin with `fix:`")
        .why(format!("{} is missing", needed.join(" and ")))
}

fn table(checks: &[Check]) -> String {
    let name_width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let style = style(check.status);
        let head = format!("{:<7}", check.status.word());
        text.push_str(&format!("{style}{head}{style:#}  {:<name_width$}  ", check.name));
        let indent = " ".repeat(7 + 2 + name_width + 2);
        text.push_str(&folded(&check.found, &indent));
        // Where nothing is missing the command says how to use it.
        let command = if check.status == Status::Ok { "use: " } else { "fix: " };
        let more = [("why: ", &check.why), (command, &check.fix)];
        for (label, part) in more.into_iter().filter_map(|(label, part)| part.as_ref().map(|part| (label, part))) {
            // A command is not wrapped, so that it can be copied; each of several has the label.
            if label == command {
                part.lines().for_each(|line| text.push_str(&format!("{indent}{label}{line}\n")));
            } else {
                text.push_str(&format!("{indent}{}", folded(&format!("{label}{part}"), &indent)));
            }
        }
    }
    text
}

fn style(status: Status) -> Style {
    match status {
        Status::Ok => AnsiColor::Green.on_default(),
        Status::Missing => AnsiColor::Yellow.on_default(),
        Status::Needed => AnsiColor::Red.on_default().bold(),
        Status::Unknown => Style::new(),
    }
}

/// Returns `text` wrapped to at most [`WIDTH`] columns, with `indent` before every line but the first.
fn folded(text: &str, indent: &str) -> String {
    let room = WIDTH.saturating_sub(indent.len());
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > room {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join(&format!("\n{indent}")) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_has_a_reason_and_lines_fit() {
        let checks = doctor::all(&[]).unwrap();
        for check in &checks {
            if check.status != Status::Ok {
                assert!(check.why.is_some(), "{} has no reason", check.name);
            }
        }
        let text = anstream::adapter::strip_str(&table(&checks)).to_string();
        for line in text.lines().filter(|line| !line.contains("fix: ") && !line.contains("use: ")) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}
