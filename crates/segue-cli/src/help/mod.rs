//! Help texts: one screen for `-h`, the complete text for `--help` and `help`, both made from clap's tree and the
//! table of keywords.

mod pages;

use clap::CommandFactory;
use segue_control::error::{Error, Kind};
use segue_control::health;
use segue_control::suggest::nearest;
use segue_service::reasons;

use self::pages::PAGES;
pub(crate) use self::pages::{EXAMPLES, Page};
use crate::args::Cli;
use segue_grammar::help::entry;
use segue_grammar::{help as grammar_help, tunnel};

/// Returns the pages of all commands.
pub(crate) fn pages() -> &'static [Page] {
    PAGES
}

/// Commands that the overview omits; `segue help` lists them.
const LESS_USED: &str = "schema help lan78xx nat metrics completions complete stop reload top fleet peer";

/// Returns the overview that `segue` prints without a command.
pub(crate) fn overview() -> String {
    let mut text = String::from("segue: packet offloads in user space\n\n");
    for command in
        Cli::command().get_subcommands().filter(|command| LESS_USED.split(' ').all(|name| name != command.get_name()))
    {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        text.push_str(&format!("  segue {:<8} {about}\n", command.get_name()));
    }
    text.push_str(
        "
  segue doctor
  FIRST_TUNNEL
  segue stat sg0 --why
",
    );
    text.replace("FIRST_TUNNEL", pages::FIRST_TUNNEL)
}

/// Returns the help of the program: one screen, or examples and every option too if `long`.
pub(crate) fn whole(long: bool) -> String {
    if !long {
        return format!("{}\nOptions: -j JSON, -p indented, -q quiet, -v verbose, -V version, --help\n", overview());
    }
    let mut text = String::from("Examples:\n");
    for (line, what) in EXAMPLES {
        text.push_str(&format!("  {line}\n      {what}\n"));
    }
    text.push_str("\nUsage: segue COMMAND [OPTION]...\n\nCommands:\n");
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        text.push_str(&entry(command.get_name(), &about));
    }
    text.push_str(&format!("\nOptions:\n{}", options(&Cli::command(), true)));
    text.push_str("\nExit status: 0 done, 1 failed, 2 used wrongly, 130 interrupted.\n");
    text
}

/// Returns the help of the command `name`, or an error for an unknown name.
pub(crate) fn of(name: &str, long: bool) -> Result<String, Error> {
    let mut tree = Cli::command();
    tree.build();
    let page = PAGES.iter().find(|page| page.name == name);
    let (Some(page), Some(command)) = (page, tree.find_subcommand(name)) else {
        let found: Vec<String> = problem(name).into_iter().chain(reason(name)).collect();
        if !found.is_empty() {
            return Ok(found.join("\n"));
        }
        let others = reasons::all().map(|reason| reason.name).chain(health::CODES.iter().map(|code| code.name));
        let near = nearest(name, PAGES.iter().map(|page| page.name).chain(others));
        let mut error = Error::new(
            Kind::Usage,
            format!("there is no help for `{}`", segue_control::error::printable(name)),
            near.map_or("segue help".to_owned(), |near| format!("segue help {near}")),
        );
        error.why = Some("it is no command of segue, no reason that it counts, and no problem of HEALTH".to_owned());
        return Err(error);
    };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    Ok(if long { complete(page, command, &about) } else { screen(page, command, &about) })
}

/// Returns the help of a problem of HEALTH, by its code.
fn problem(name: &str) -> Option<String> {
    let code = health::find(&name.replace([' ', '-'], "_"))?;
    let mut text = format!("{}: a problem that HEALTH names\n", code.name);
    for (head, sentence) in [("", code.sentence), ("Likely: ", code.cause), ("To do: ", code.cure)] {
        let words: Vec<String> = format!("{head}{sentence}").split(' ').map(str::to_owned).collect();
        text.push_str(&grammar_help::wrapped(&words, "  ", "  "));
    }
    Some(text + "  In JSON: health[].code\nSee: segue stat --health\n")
}

/// Returns the help of a reason, by its name in JSON or as it is printed: `gre_mismatch`, `gre mismatch`.
fn reason(name: &str) -> Option<String> {
    let name = name.replace([' ', '-'], "_");
    let mut text = String::new();
    for entry in reasons::all().filter(|entry| entry.name == name) {
        let what = match entry.group {
            "drops" => "why a packet was dropped",
            "flushes" => "why a train ended",
            "refusals" => "why a packet was not joined",
            "mismatches" => "how a packet differed from the train of its flow",
            "numbers" => "why the connection of a guest was closed",
            _ => "why a costlier operation was used; nothing was lost",
        };
        text.push_str(&format!("{}: {what} ({})\n", entry.name, entry.stage));
        let words: Vec<String> = entry.sentence.split(' ').map(str::to_owned).collect();
        text.push_str(&grammar_help::wrapped(&words, "  ", "  "));
        text.push_str(&format!("  In JSON: ports.PORT.{}.{}\n", entry.group, entry.name));
    }
    (!text.is_empty()).then(|| text + "See: segue stat --why\n")
}

/// Returns the help of a command for `-h`: at most 24 lines.
pub(crate) fn screen(page: &Page, command: &clap::Command, about: &str) -> String {
    let mut text = format!("segue {}: {about}\n\nUsage: {}\n\n", page.name, page.usage);
    if page.name == "tunnel" {
        text.push_str(&grammar_help::synopsis(tunnel::KEYWORDS));
        text.push('\n');
    }
    text.push_str(&options(command, false));
    text.push_str(&format!("\nAll of it, with examples: segue {} --help\n", page.name));
    text
}

pub(crate) fn complete(page: &Page, command: &clap::Command, about: &str) -> String {
    let mut text = String::from("Examples:\n");
    for (line, what) in page.examples {
        text.push_str(&format!("  {line}\n      {what}\n"));
    }
    text.push_str(&format!("\nsegue {}: {about}\n\nUsage: {}\n", page.name, page.usage));
    if page.name == "tunnel" {
        text.push_str("\nWords, [default]:\n");
        text.push_str(&grammar_help::complete(tunnel::KEYWORDS));
    }
    text.push_str(&format!("\nOptions:\n{}", options(command, true)));
    if !page.more.is_empty() {
        text.push_str(&format!("\n{}", page.more));
    }
    text
}

/// Returns the list of a command's dashed options: its own, and with `common` those of every command too.
fn options(command: &clap::Command, common: bool) -> String {
    // Options that are rarely changed are on the long page only.
    let own = own(command).filter(|arg| common || !arg.is_hide_short_help_set()).map(described);
    let shown = own.chain(if common { shared() } else { Vec::new() });
    shown.map(|(name, help)| entry(&name, &help)).collect()
}

/// Returns every option of a command with its description: its own, then those of every command.
pub(crate) fn listed(command: &clap::Command) -> Vec<(String, String)> {
    own(command).map(described).chain(shared()).collect()
}

/// Returns the help of a command's own options and arguments.
fn own(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    let shared: Vec<String> =
        Cli::command().get_arguments().filter(|arg| arg.is_global_set()).map(|arg| arg.get_id().to_string()).collect();
    command.get_arguments().filter(move |arg| !shared.contains(&arg.get_id().to_string()) && !arg.is_hide_set())
}

/// Returns the options of every command.
fn shared() -> Vec<(String, String)> {
    Cli::command().get_arguments().filter(|arg| arg.is_global_set()).map(described).collect()
}

/// Returns an option or argument as typed, with its description, default and values.
pub(crate) fn described(arg: &clap::Arg) -> (String, String) {
    let value = arg.get_value_names().and_then(|names| names.first()).filter(|_| takes_value(arg));
    let mut names: Vec<String> = Vec::new();
    names.extend(arg.get_short().map(|short| format!("-{short}")));
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    names.extend(arg.get_visible_aliases().unwrap_or_default().iter().map(|alias| format!("--{alias}")));
    let name = match (names.is_empty(), value) {
        (true, Some(value)) => value.to_string(),
        (_, Some(value)) => format!("{} {value}", names.join(", ")),
        (_, None) => names.join(", "),
    };
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if let (Some(default), true) = (arg.get_default_values().first(), takes_value(arg)) {
        help.push_str(&format!(" [{}]", default.to_string_lossy()));
    }
    let values: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if takes_value(arg) && !values.is_empty() && !name.contains('|') {
        help.push_str(&format!(" ({})", values.join(", ")));
    }
    (name, help)
}

fn takes_value(arg: &clap::Arg) -> bool {
    arg.is_positional() || arg.get_action().takes_values()
}

/// Returns the help of a subcommand such as `pcap merge`; `pages` are those of all subcommands of `command`.
pub(crate) fn of_action(pages: &[Page], command: &str, action: &str, long: bool) -> Result<String, Error> {
    let mut tree = Cli::command();
    tree.build();
    let page = pages.iter().find(|page| page.name.split_once(' ') == Some((command, action)));
    let found = tree.find_subcommand(command).and_then(|found| found.find_subcommand(action));
    let (Some(page), Some(found)) = (page, found) else {
        let what = format!("there is no help for `{command} {action}`");
        return Err(Error::new(Kind::Usage, what, format!("segue help {command}")));
    };
    let about = found.get_about().map(ToString::to_string).unwrap_or_default();
    Ok(if long { complete(page, found, &about) } else { screen(page, found, &about) })
}

/// Panics unless `pages` cover all subcommands of `command`, each with examples and a screen of at most 24 lines of 80
/// columns.
#[cfg(test)]
pub(crate) fn check_actions(pages: &[Page], command: &str) {
    let tree = Cli::command();
    let actions: Vec<String> = tree
        .find_subcommand(command)
        .unwrap()
        .get_subcommands()
        .map(|c| format!("{command} {}", c.get_name()))
        .collect();
    assert_eq!(pages.iter().map(|page| page.name).collect::<Vec<_>>(), actions);
    for page in pages {
        let (_, action) = page.name.split_once(' ').unwrap();
        let screen = of_action(pages, command, action, false).unwrap();
        assert!(screen.lines().count() <= 24, "{} lines\n{screen}", screen.lines().count());
        let long = of_action(pages, command, action, true).unwrap();
        assert!(long.starts_with("Examples:\n  ") && (2..=3).contains(&page.examples.len()), "{long}");
        for text in [screen, long] {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_the_reverse() {
        let pages: Vec<&str> = PAGES.iter().map(|page| page.name).collect();
        let tree = Cli::command();
        let shown = tree.get_subcommands().filter(|command| !command.is_hide_set());
        let commands: Vec<&str> = shown.map(|command| command.get_name()).collect();
        assert_eq!(pages, commands);
    }

    #[test]
    fn a_screen_has_24_lines_of_80_columns() {
        let mut screens = vec![whole(false), overview()];
        screens.extend(PAGES.iter().map(|page| of(page.name, false).unwrap()));
        for screen in screens {
            assert!(screen.lines().count() <= 24, "{} lines\n{screen}", screen.lines().count());
            assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
        }
    }

    #[test]
    fn complete_help_opens_with_two_or_three_examples() {
        for page in PAGES {
            assert!((2..=3).contains(&page.examples.len()), "{}", page.name);
            let text = of(page.name, true).unwrap();
            assert!(text.starts_with("Examples:\n  segue"), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }
}
