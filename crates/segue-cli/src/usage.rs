//! Converts clap's errors into the error type of the program.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use segue_control::error::{Error, Kind, Place, printable};
use segue_control::suggest::nearest;

use crate::args::Cli;

/// The source of a command's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The words are those of the command line.
    CommandLine,
    /// The words are a table of a configuration file, whose keys are the command's options without dashes.
    File(&'static str),
}

impl Origin {
    /// Returns the spelling of an option in this source.
    fn written(self, option: &str) -> &str {
        match self {
            Origin::CommandLine => option,
            Origin::File(_) => option.strip_prefix("--").unwrap_or(option),
        }
    }
}

/// Converts an error of clap; `args` are the words after the program's name.
pub(crate) fn error(found: &clap::Error, args: &[String], origin: Origin) -> Error {
    let invalid = text(found, ContextKind::InvalidSubcommand).or_else(|| text(found, ContextKind::InvalidArg));
    let path = commands(args);
    let help = match origin {
        Origin::CommandLine => {
            [&["segue"], &path.iter().map(String::as_str).collect::<Vec<_>>()[..], &["--help"]].concat().join(" ")
        }
        Origin::File(command) => format!("segue help {command}"),
    };
    let point = |kind, message: String, word: &str, note: String, near: Option<String>| {
        let error = Error::new(kind, message, help.clone());
        match args.iter().position(|arg| arg == word || arg.starts_with(&format!("{word}="))) {
            Some(at) => error.at(Place { words: args.to_vec(), at, note, nearest: near }),
            None => error,
        }
    };
    match (found.kind(), invalid) {
        (ErrorKind::InvalidSubcommand, Some(word)) => {
            let names = names(&at(&path));
            let near = nearest(&word, names.iter().map(String::as_str)).map(str::to_owned);
            let note = near.as_ref().map_or(String::new(), |near| format!("did you mean `{near}`?"));
            point(Kind::Usage, format!("unknown command `{}`", printable(&word)), &word, note, near)
        }
        (ErrorKind::UnknownArgument, Some(word)) => {
            let near = nearest_option(&word, &path).or_else(|| text(found, ContextKind::SuggestedArg));
            let note = near.as_ref().map_or(String::new(), |near| format!("did you mean `{near}`?"));
            let what = if word.starts_with('-') { "unknown option" } else { "unknown word" };
            point(Kind::Usage, format!("{what} `{}`", origin.written(&printable(&word))), &word, note, near)
        }
        (ErrorKind::InvalidValue | ErrorKind::ValueValidation, Some(option)) => {
            let value = text(found, ContextKind::InvalidValue).unwrap_or_default();
            let option = option.split(' ').next().unwrap_or_default().to_owned();
            if value.is_empty() {
                return point(
                    Kind::Usage,
                    format!("`{}` needs a value", origin.written(&option)),
                    &option,
                    allowed(found, &option, &path),
                    None,
                );
            }
            if option == "--watch" && !value.starts_with(|first: char| first.is_ascii_digit()) {
                let name = printable(&value);
                let text = format!("`{name}` was read as the SECS of `--watch`");
                return point(Kind::BadValue, text, &value, "expected 1 to 86400".to_owned(), None)
                    .hint(format!("segue stat {name} --watch                    the name in front"));
            }
            let near = text(found, ContextKind::SuggestedValue);
            let note =
                near.as_ref().map_or_else(|| allowed(found, &option, &path), |near| format!("did you mean `{near}`?"));
            let message = format!("`{}` is not a value of `{}`", printable(&value), origin.written(&option));
            point(Kind::BadValue, message, &value, note, near)
        }
        (ErrorKind::ArgumentConflict, Some(option)) => {
            let other = text(found, ContextKind::PriorArg).unwrap_or_default();
            let [option, other] = [&option, &other].map(|text| text.split(' ').next().unwrap_or_default().to_owned());
            if other.is_empty() || other == option {
                let message = format!("`{}` is given twice", origin.written(&option));
                return point(Kind::Conflict, message, &option, String::new(), None);
            }
            let message = format!("`{}` does not go with `{}`", origin.written(&option), origin.written(&other));
            point(Kind::Conflict, message, &option, String::new(), None)
        }
        (ErrorKind::MissingRequiredArgument, Some(needed)) => {
            // clap does not say which option requires it.
            let needed = needed.split(' ').next().unwrap_or_default();
            let message = match needed.starts_with('-') {
                true => format!("`{}` is missing, which another option needs", origin.written(needed)),
                false => format!("{} is missing", needed.trim_matches(['<', '>', '.'])),
            };
            Error::new(Kind::Missing, message, help)
        }
        _ => {
            // clap renders its messages with the prefix `error: ` only.
            let rendered = found.to_string();
            let first = rendered.lines().next().unwrap_or_default().trim_start_matches("error: ").trim_end_matches(':');
            let more: Vec<&str> = rendered.lines().skip(1).map(str::trim).take_while(|line| !line.is_empty()).collect();
            Error::new(Kind::Usage, [&[first], &more[..]].concat().join(" "), help)
        }
    }
}

/// Returns the option whose value is wrong, and the value; `None` for another error.
pub(crate) fn refused_value(found: &clap::Error) -> Option<(String, String)> {
    if !matches!(found.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) {
        return None;
    }
    let argument = text(found, ContextKind::InvalidArg)?;
    let option = argument.split(' ').next().filter(|option| option.starts_with("--"))?;
    Some((option.to_owned(), text(found, ContextKind::InvalidValue).unwrap_or_default()))
}

/// Returns the names of the command of a command line and of its subcommand, if any.
fn commands(args: &[String]) -> Vec<String> {
    let mut path = Vec::new();
    for word in args {
        if names(&at(&path)).contains(word) {
            path.push(word.clone());
        }
    }
    path
}

/// Returns the clap command at the end of `path`.
fn at(path: &[String]) -> clap::Command {
    let mut tree = Cli::command();
    tree.build();
    path.iter().fold(tree, |tree, name| tree.find_subcommand(name).cloned().unwrap_or(tree))
}

fn names(command: &clap::Command) -> Vec<String> {
    command.get_subcommands().map(|c| c.get_name().to_owned()).collect()
}

fn nearest_option(word: &str, path: &[String]) -> Option<String> {
    let own = at(path);
    let names: Vec<String> = own
        .get_arguments()
        .flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default())
        .map(|name| format!("--{name}"))
        .collect();
    nearest(word, names.iter().map(String::as_str)).map(str::to_owned)
}

/// Returns the values that `option` of the command at `path` accepts.
fn allowed(found: &clap::Error, option: &str, path: &[String]) -> String {
    match found.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => format!("expected {}", values.join(", ")),
        // clap gives the range only in its text, after the second colon: "0 is not in 1..=86400". segue's own value
        // parsers write there what they expect.
        _ => {
            let text = found.to_string();
            let line = text.lines().next().unwrap_or_default();
            match line.rsplit_once(": expected ") {
                Some((_, what)) => format!("expected {what}"),
                None => range(line).or_else(|| named(option, path)).unwrap_or_else(|| "expected a number".to_owned()),
            }
        }
    }
}

fn range(line: &str) -> Option<String> {
    let (min, max) = line.rsplit_once(" is not in ")?.1.split_once("..=")?;
    Some(format!("expected {min} to {max}"))
}

/// Returns the values that an option accepts: its range, as clap reports it for a number outside of every range, or
/// else the name of its value.
fn named(option: &str, path: &[String]) -> Option<String> {
    const FAR_OUT: &str = "999999999999999999";
    let words = [&["segue"], &path.iter().map(String::as_str).collect::<Vec<_>>()[..], &[option, FAR_OUT]].concat();
    let found = Cli::try_parse_from(words).err();
    let said = found.and_then(|found| range(found.to_string().lines().next().unwrap_or_default()));
    said.or_else(|| {
        let command = at(path);
        let arg = command.get_arguments().find(|arg| arg.get_long() == option.strip_prefix("--"))?;
        Some(format!("expected {}", arg.get_value_names()?.first()?))
    })
}

fn text(found: &clap::Error, kind: ContextKind) -> Option<String> {
    match found.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    }
}
