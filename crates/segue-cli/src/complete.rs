//! Completion for shells: `segue completions SHELL` prints a script that asks this program for the candidates, from
//! the tables of the parser and from what runs on this host.

use std::collections::BTreeSet;
use std::fs;

use clap::{Arg, Command as Tree, CommandFactory};
use segue_control::error::{Error, Kind};
use segue_control::{client, services};

use crate::args::{Cli, Complete, Completions};
use crate::out::Out;
use segue_grammar::tunnel::KEYWORDS;
use segue_grammar::{Takes, Word};

const BASH: &str = include_str!("complete/segue.bash");
const ZSH: &str = include_str!("complete/segue.zsh");
const FISH: &str = include_str!("complete/segue.fish");

/// Line of output that makes the shell complete file names.
const FILES: &str = "@files";

/// A completion candidate, with its description.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    word: String,
    about: String,
}

/// Candidates for the next word.
enum Next {
    Candidates(Vec<Candidate>),
    Files,
}

/// Runs `segue completions`.
pub(crate) fn script(args: &Completions, out: &Out) -> Result<(), Error> {
    let script = match args.shell.as_deref() {
        Some("bash") => BASH,
        Some("zsh") => ZSH,
        Some(_) => FISH,
        None => return Err(Error::new(Kind::Missing, "`completions` needs a shell", "segue completions bash")),
    };
    out.data(script);
    Ok(())
}

/// Runs `segue complete`: prints the candidates for the last word, one per line, each with a tab and its description.
pub(crate) fn run(args: &Complete, out: &Out) {
    // bash takes `--color=auto` for three words.
    let words: Vec<&str> = args.words.iter().map(String::as_str).filter(|word| *word != "=").collect();
    let (current, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (*last, before));
    match next(before, current) {
        Next::Files => out.data(&format!("{FILES}\n")),
        Next::Candidates(found) => {
            let fitting = found.into_iter().filter(|candidate| candidate.word.starts_with(current));
            let lines = fitting.map(|Candidate { word, about }| format!("{word}\t{about}\n"));
            out.data(&lines.collect::<String>());
        }
    }
}

/// Returns the candidates that may follow the words `before`; `current` is the beginning of the word.
fn next(before: &[&str], current: &str) -> Next {
    let mut root = Cli::command();
    root.build();
    let mut tree = &root;
    let mut path: Vec<&str> = Vec::new();
    let mut rest: Vec<&str> = Vec::new();
    let mut at = 0;
    while let Some(word) = before.get(at) {
        if let Some(option) = option(tree, &root, word) {
            let has_value = option.get_action().takes_values() && !word.contains('=');
            if has_value && at + 1 == before.len() {
                return values(option);
            }
            at += 1 + usize::from(has_value);
            continue;
        }
        match tree.find_subcommand(word) {
            Some(found) if rest.is_empty() => {
                tree = found;
                path.push(word);
            }
            _ => rest.push(word),
        }
        at += 1;
    }
    if current.starts_with('-') {
        return Next::Candidates(options(tree, &root));
    }
    let positional = rest.len();
    match path[..] {
        ["tunnel"] => tunnel(&rest),
        ["stat" | "nat" | "top"] if positional == 0 => Next::Candidates(instances()),
        ["peer"] if positional == 1 => Next::Candidates(instances()),
        ["stop"] => Next::Candidates(instances()),
        ["reload"] if positional == 0 => Next::Candidates(services()),
        ["set"] if positional == 0 => Next::Candidates(instances()),
        ["set"] => Next::Candidates(knobs(&rest)),
        ["gateway"] => Next::Candidates(interfaces()),
        ["doctor"] => Next::Candidates(interfaces()),
        ["help"] => Next::Candidates(commands(&root)),
        _ if tree.has_subcommands() && positional == 0 => Next::Candidates(commands(tree)),
        _ => match tree.get_positionals().nth(positional) {
            Some(arg) => values(arg),
            None => Next::Candidates(Vec::new()),
        },
    }
}

/// Returns the option that a word names, of the command or of every command.
fn option<'a>(tree: &'a Tree, root: &'a Tree, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or(word);
    let is = |arg: &&Arg| {
        let long = name.strip_prefix("--").is_some_and(|name| {
            arg.get_long() == Some(name) || arg.get_visible_aliases().is_some_and(|all| all.contains(&name))
        });
        let short = name.strip_prefix('-').is_some_and(|name| arg.get_short().is_some_and(|c| name == c.to_string()));
        !arg.is_positional() && (long || short)
    };
    tree.get_arguments().find(is).or_else(|| root.get_arguments().find(is))
}

/// Returns the values of an option or of a positional argument.
fn values(arg: &Arg) -> Next {
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let word = |value: &clap::builder::PossibleValue| candidate(value.get_name(), "");
        return Next::Candidates(possible.iter().map(word).collect());
    }
    let name = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
    let is_file = name.starts_with("FILE")
        || name.starts_with("FOLDER")
        || matches!(name.as_str(), "IN" | "OUT" | "A.json" | "B.json");
    if is_file { Next::Files } else { Next::Candidates(Vec::new()) }
}

fn candidate(word: &str, about: &str) -> Candidate {
    let about = about.lines().next().unwrap_or_default().replace('\t', " ");
    Candidate { word: word.to_owned(), about }
}

fn commands(tree: &Tree) -> Vec<Candidate> {
    let shown = tree.get_subcommands().filter(|command| !command.is_hide_set());
    let about = |command: &Tree| command.get_about().map(ToString::to_string).unwrap_or_default();
    shown.map(|command| candidate(command.get_name(), &about(command))).collect()
}

/// Returns the options of a command and those of every command.
fn options(tree: &Tree, root: &Tree) -> Vec<Candidate> {
    let own = tree.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional());
    let shared = root.get_arguments().filter(|arg| arg.is_global_set());
    let mut found: BTreeSet<Candidate> = BTreeSet::new();
    for arg in own.chain(shared) {
        let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let aliases = arg.get_visible_aliases().unwrap_or_default();
        let long = arg.get_long().into_iter().chain(aliases).map(|name| format!("--{name}"));
        let short = arg.get_short().map(|name| format!("-{name}"));
        found.extend(long.chain(short).map(|word| candidate(&word, &about)));
    }
    found.into_iter().collect()
}

/// Returns the candidates that may follow the words of a tunnel: the values of the last one, or another word.
fn tunnel(words: &[&str]) -> Next {
    let known = |word: &str| KEYWORDS.iter().find(|known| known.spellings().any(|(spelling, _)| spelling == word));
    let mut open: Option<&Word> = None;
    let mut left = 0;
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for word in words {
        if left > 0 {
            left -= 1;
            continue;
        }
        if *word == segue_service::supervise::spec::ALSO {
            used.clear();
            continue;
        }
        open = known(word);
        if let Some(found) = open {
            left = found.takes.tokens();
            used.insert(found.name);
        }
    }
    if left > 0 {
        return Next::Candidates(open.map_or(Vec::new(), values_of));
    }
    let fitting = KEYWORDS.iter().filter(|word| word.repeats || !used.contains(word.name));
    let mut found: Vec<Candidate> = fitting
        .flat_map(|word| word.spellings().map(|(spelling, _)| candidate(&spelling, word.help)).collect::<Vec<_>>())
        .collect();
    if !used.is_empty() {
        found.push(candidate(segue_service::supervise::spec::ALSO, "another tunnel on the same port"));
    }
    Next::Candidates(found)
}

fn values_of(word: &Word) -> Vec<Candidate> {
    let names: &[&str] = match word.takes {
        Takes::OneOf(names) => names,
        Takes::Number { or, .. } | Takes::Hex { or, .. } => or,
        _ => &[],
    };
    names.iter().map(|name| candidate(name, "")).collect()
}

fn instances() -> Vec<Candidate> {
    client::all().instances.iter().map(|instance| candidate(&instance.name, &instance.kind)).collect()
}

fn services() -> Vec<Candidate> {
    services::all().services.iter().map(|service| candidate(&service.name, &service.state.file)).collect()
}

fn interfaces() -> Vec<Candidate> {
    let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut found: Vec<Candidate> =
        names.filter_map(|entry| Some(candidate(entry.file_name().to_str()?, "interface"))).collect();
    found.sort();
    found.push(candidate("tap:", "a new TAP"));
    found.push(candidate("vhost:", "a guest, by its socket"));
    found
}

/// Returns the knobs of an instance, or the values of the knob that was named last.
fn knobs(words: &[&str]) -> Vec<Candidate> {
    let Ok(known) = words.first().map_or(Ok(Vec::new()), |name| client::knobs(name)) else { return Vec::new() };
    if words.len() > 1 && known.iter().any(|knob| Some(&knob.name.as_str()) == words.last()) {
        return Vec::new();
    }
    known.iter().map(|knob| candidate(&knob.name, &knob.help)).collect()
}

/// Returns every candidate that may follow a line of words, for tests and the manual.
#[cfg(test)]
fn words_behind(line: &str) -> Vec<String> {
    let before: Vec<&str> = line.split_whitespace().collect();
    match next(&before, "") {
        Next::Candidates(found) => found.into_iter().map(|candidate| candidate.word).collect(),
        Next::Files => vec![FILES.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_continues_with_a_value_or_another_word() {
        assert_eq!(words_behind("tunnel dev sg0 encap"), ["none", "gue", "fou"]);
        assert_eq!(words_behind("tunnel dev sg0 ttl"), ["inherit", "auto"]);
        let words = words_behind("tunnel dev sg0 encap gue addr 10.0.0.1/8");
        assert!(words.contains(&"noencap-csum".to_owned()) && words.contains(&"addr".to_owned()), "{words:?}");
        assert!(!words.contains(&"encap".to_owned()) && words.contains(&"also".to_owned()), "{words:?}");
        assert!(words_behind("tunnel dev sg0 remote ::1 also").contains(&"dev".to_owned()));
    }

    #[test]
    fn options_files_and_subcommands_are_found() {
        assert_eq!(words_behind("pcap"), ["merge", "split", "decap", "verify", "stat"]);
        assert_eq!(words_behind("pcap stat"), ["@files"]);
        assert_eq!(words_behind("run -c"), ["@files"]);
        assert_eq!(words_behind("-j lab --link"), ["nic", "nic-csum", "veth"]);
        assert!(words_behind("").contains(&"tunnel".to_owned()) && !words_behind("").contains(&"complete".to_owned()));
    }
}
