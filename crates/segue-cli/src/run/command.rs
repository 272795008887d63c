//! The command line that corresponds to a table of the configuration file.

use std::cell::RefCell;
use std::ops::Range;

use clap::{CommandFactory, FromArgMatches};
use segue_control::error::{Error, Kind as ErrorKind, printable};
use segue_host::names::Names;
use segue_metrics::listen::Place;
use segue_service::gateway::config::Spelling;
use segue_service::supervise::spec::{ALSO, InstancePlan, Kind, Token, Unresolved};

use super::source::{MOST_ERRORS, Text};
use crate::args::{Cli, Command};
use crate::gateway;
use crate::lan78xx;
use crate::usage::{self, Origin};
use segue_grammar::parse::{self, Parsed, Value, host_at};
use segue_grammar::plan::plan_with;
use segue_grammar::tunnel::KEYWORDS;

/// Documentation addresses (RFC 5737, RFC 3849), used as placeholders for the address of a name that has none yet.
const STAND_INS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

thread_local! {
    /// The words that the program takes. They are built once: that takes longer than to parse the words of a table, of
    /// which a file may have a thousand.
    static GRAMMAR: RefCell<clap::Command> = RefCell::new(Cli::command());
}

/// Adds the position in the file to an error about words of a command line.
pub(super) fn located(tokens: &[Token], header: &Range<usize>, text: &Text, error: Error) -> Error {
    let placed = error.place.as_ref().and_then(|place| {
        let wrong = place.words.get(place.at);
        let same = place.words.len() == tokens.len();
        let token = if same { tokens.get(place.at) } else { None };
        token.or_else(|| tokens.iter().rfind(|token| Some(&token.text) == wrong))
    });
    let about = error.about.as_deref().filter(|_| error.place.is_none());
    let named = || tokens.iter().rfind(|token| Some(token.text.as_str()) == about);
    let span = placed.or_else(named).map_or(header, |token| &token.span);
    text.at(&span.clone(), error)
}

/// Parses the command line of a table, as the program parses its own.
fn parsed(kind: Kind, tokens: &[Token], names: &Names) -> Result<InstancePlan, Error> {
    let cli = command_line(kind, tokens).map_err(|found| usage_error(kind, tokens, &found))?;
    planned(cli, names)
}

/// Parses the command line of a table as [`planned_by_name`] does.
pub(super) fn parsed_by_name(
    kind: Kind,
    tokens: &mut [Token],
    names: &Names,
) -> Result<(InstancePlan, Option<Unresolved>), Error> {
    let cli = command_line(kind, tokens).map_err(|found| usage_error(kind, tokens, &found))?;
    planned_by_name(kind, tokens, cli, names)
}

/// Parses the command line of a table whose option values may be wrong: `errors` gets the position of each wrong one,
/// and the rest is parsed without it. A table without a wrong value is parsed once.
pub(super) fn checked(
    kind: Kind,
    mut tokens: Vec<Token>,
    text: &Text,
    errors: &mut Vec<Error>,
) -> Result<Cli, clap::Error> {
    loop {
        let found = match command_line(kind, &tokens) {
            Ok(cli) => return Ok(cli),
            Err(found) => found,
        };
        match refused_value(&tokens, &found) {
            Some(at) if errors.len() <= MOST_ERRORS => {
                let pair: Vec<Token> = tokens.drain(at - 1..=at).collect();
                errors.push(text.at(&pair[1].span, usage_error(kind, &pair, &found)));
            }
            _ => return Err(found),
        }
    }
}

/// Parses the words of an instance as its process does.
pub(super) fn command_line(kind: Kind, tokens: &[Token]) -> Result<Cli, clap::Error> {
    let words = tokens.iter().map(|token| token.text.clone());
    let words = std::iter::once("segue").chain(kind.words()).map(str::to_owned).chain(words);
    GRAMMAR.with_borrow_mut(|grammar| {
        let mut matches = grammar.try_get_matches_from_mut(words)?;
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(grammar))
    })
}

/// Converts an error of clap about some of the words of a table.
pub(super) fn usage_error(kind: Kind, tokens: &[Token], found: &clap::Error) -> Error {
    let words: Vec<String> = tokens.iter().map(|token| token.text.clone()).collect();
    usage::error(found, &words, Origin::File(kind.command()))
}

/// Returns the index of the value that an error of clap refuses; `None` for other errors.
fn refused_value(tokens: &[Token], found: &clap::Error) -> Option<usize> {
    let (option, value) = usage::refused_value(found)?;
    tokens.windows(2).position(|pair| pair[0].text == option && pair[1].text == value).map(|at| at + 1)
}

/// Converts the parsed command line of a table into the plan of its instance, and records the address of each name next
/// to the word. Where the remote is a name without an address now, another one stands for it, so that all else is
/// checked, and the name is returned with the reason.
pub(super) fn planned_by_name(
    kind: Kind,
    tokens: &mut [Token],
    cli: Cli,
    names: &Names,
) -> Result<(InstancePlan, Option<Unresolved>), Error> {
    let error = match planned(cli, names) {
        Ok(plan) => {
            note_addresses(tokens, &plan);
            return Ok((plan, None));
        }
        Err(error) => error,
    };
    let Some(at) = nameless(kind, tokens, &error) else { return Err(error) };
    let stand_in = |address: &str| {
        let mut tokens = tokens.to_vec();
        address.clone_into(&mut tokens[at].text);
        parsed(kind, &tokens, names)
    };
    let is_ipv6 = tokens.windows(2).any(|pair| pair[0].text == "local" && pair[1].text.contains(':'));
    let plan = match STAND_INS.map(stand_in) {
        [Ok(plan), _] | [_, Ok(plan)] => plan,
        [Err(first), Err(second)] => return Err(if is_ipv6 { second } else { first }),
    };
    Ok((plan, Some(Unresolved { host: tokens[at].text.clone(), error: Box::new(error) })))
}

/// Records the address of each remote next to the word with its name.
fn note_addresses(tokens: &mut [Token], plan: &InstancePlan) {
    let InstancePlan::Tunnels(plans) = plan else { return };
    for (own, plan) in tokens.split_mut(|token| token.text == ALSO).zip(plans) {
        let tokens: &[Token] = own;
        // The file of a trace may have the name of a keyword.
        let is_file = |at: usize| at > 0 && tokens[at - 1].text == "--trace";
        let word = |at: usize| if is_file(at) { "" } else { tokens[at].text.as_str() };
        let words: Vec<&str> = (0..tokens.len()).map(word).collect();
        if let Some(at) = host_at(KEYWORDS, &words) {
            own[at].address = Some(plan.remote);
        }
    }
}

/// Returns the index of the remote's host name among the words, where an error is that it has no address.
fn nameless(kind: Kind, tokens: &[Token], error: &Error) -> Option<usize> {
    let place = error.place.as_ref().filter(|_| kind == Kind::Tunnel && error.kind == ErrorKind::Unreachable)?;
    let host = place.words.get(place.at)?;
    tokens.windows(2).position(|pair| pair[0].text == "remote" && pair[1].text == *host).map(|at| at + 1)
}

/// Converts the parsed command line of a table into the plan of its instance.
fn planned(cli: Cli, names: &Names) -> Result<InstancePlan, Error> {
    match cli.command {
        Some(Command::Tunnel(args)) => {
            let each = parse::parse_each("segue tunnel", KEYWORDS, &args.words)?;
            let plan = |parsed: &Parsed| {
                let dev = match parsed.value_of("dev") {
                    Some(Value::Device(dev)) => dev.as_str(),
                    _ => "",
                };
                plan_with(parsed, args.capture(), &[], &|host: &str| names.addresses(host, dev))
            };
            Ok(InstancePlan::Tunnels(each.iter().map(plan).collect::<Result<_, _>>()?))
        }
        Some(Command::Gateway(args)) => Ok(InstancePlan::Gateway(Box::new(gateway::config(&args, Spelling::Key)))),
        Some(Command::Lan78xx(lan78xx::args::Lan78xx { action: Some(lan78xx::args::Action::Up(args)) })) => {
            Ok(InstancePlan::Adapter(lan78xx::up::checked(&args)?))
        }
        Some(Command::Metrics(args)) if args.listen.is_empty() && args.textfile.is_none() => Err(Error::new(
            segue_control::error::Kind::Missing,
            "`listen` or `textfile` is missing",
            "segue help metrics",
        )
        .why("without them nothing would read the metrics")),
        Some(Command::Metrics(args)) => match args.listen.iter().find(|place| matches!(place, Place::Passed(_))) {
            Some(place) => Err(Error::new(
                ErrorKind::Conflict,
                format!("`{}` does not go with `segue run`", printable(&place.to_string())),
                "systemctl enable --now segue-metrics.socket",
            )
            .why("the service manager passes a socket to the process that it starts: here segue-metrics.service")
            .about(place)),
            None => Ok(InstancePlan::Metrics),
        },
        _ => Err(Error::new(segue_control::error::Kind::Internal, "a key became another command", "segue help run")),
    }
}
