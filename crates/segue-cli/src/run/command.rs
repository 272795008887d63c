//! The command line that a table of the file stands for.

use std::ops::Range;

use clap::Parser;
use segue_control::error::{Error, Kind as ErrorKind};
use segue_service::gateway::config::Spelling;
use segue_service::supervise::spec::{InstancePlan, Kind, Token, Unresolved};

use super::source::{MOST_ERRORS, Text};
use crate::args::{Cli, Command};
use crate::gateway;
use crate::lan78xx;
use crate::usage::{self, Origin};
use segue_grammar::parse;
use segue_grammar::plan::plan;
use segue_grammar::tunnel::WORDS;

/// Addresses for documentation (RFC 5737, RFC 3849) that stand for that of a name without one.
const STAND_INS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Points an error about words at their place in the file.
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
fn parsed(kind: Kind, tokens: &[Token]) -> Result<InstancePlan, Error> {
    let cli = command_line(kind, tokens).map_err(|found| usage_error(kind, tokens, &found))?;
    planned(cli)
}

/// Parses the command line of a table as [`planned_by_name`] does.
pub(super) fn parsed_by_name(kind: Kind, tokens: &[Token]) -> Result<(InstancePlan, Option<Unresolved>), Error> {
    let cli = command_line(kind, tokens).map_err(|found| usage_error(kind, tokens, &found))?;
    planned_by_name(kind, tokens, cli)
}

/// Parses the command line of a table whose option values may be wrong: each of these is pointed at in `errors`, and
/// the rest is parsed without it. A table without a wrong value is parsed once.
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

fn command_line(kind: Kind, tokens: &[Token]) -> Result<Cli, clap::Error> {
    let words = tokens.iter().map(|token| token.text.clone());
    Cli::try_parse_from(std::iter::once("segue").chain(kind.words()).map(str::to_owned).chain(words))
}

/// Converts an error of clap about some of the words of a table.
pub(super) fn usage_error(kind: Kind, tokens: &[Token], found: &clap::Error) -> Error {
    let words: Vec<String> = tokens.iter().map(|token| token.text.clone()).collect();
    usage::error(found, &words, Origin::File(kind.command()))
}

/// Returns the index of the value that an error of clap refuses; `None` for other errors, and where it is no value of
/// an option.
fn refused_value(tokens: &[Token], found: &clap::Error) -> Option<usize> {
    let (option, value) = usage::refused_value(found)?;
    tokens.windows(2).position(|pair| pair[0].text == option && pair[1].text == value).map(|at| at + 1)
}

/// Converts the parsed command line of a table into the plan of its instance. Where the remote is a name without an
/// address now, another one stands for it, so that all else is checked, and the name is returned with the reason.
pub(super) fn planned_by_name(
    kind: Kind,
    tokens: &[Token],
    cli: Cli,
) -> Result<(InstancePlan, Option<Unresolved>), Error> {
    let error = match planned(cli) {
        Ok(plan) => return Ok((plan, None)),
        Err(error) => error,
    };
    let Some(at) = nameless(kind, tokens, &error) else { return Err(error) };
    let stand_in = |address: &str| {
        let mut tokens = tokens.to_vec();
        address.clone_into(&mut tokens[at].text);
        parsed(kind, &tokens)
    };
    let is_ipv6 = tokens.windows(2).any(|pair| pair[0].text == "local" && pair[1].text.contains(':'));
    let plan = match STAND_INS.map(stand_in) {
        [Ok(plan), _] | [_, Ok(plan)] => plan,
        [Err(first), Err(second)] => return Err(if is_ipv6 { second } else { first }),
    };
    Ok((plan, Some(Unresolved { host: tokens[at].text.clone(), error: Box::new(error) })))
}

/// Returns the index of the name of the remote among the words, where an error is that it has no address.
fn nameless(kind: Kind, tokens: &[Token], error: &Error) -> Option<usize> {
    let place = error.place.as_ref().filter(|_| kind == Kind::Tunnel && error.kind == ErrorKind::Unreachable)?;
    let host = place.words.get(place.at)?;
    tokens.windows(2).position(|pair| pair[0].text == "remote" && pair[1].text == *host).map(|at| at + 1)
}

/// Converts the parsed command line of a table into the plan of its instance.
pub(super) fn planned(cli: Cli) -> Result<InstancePlan, Error> {
    match cli.command {
        Some(Command::Tunnel(args)) => {
            let each = parse::parse_each("segue tunnel", WORDS, &args.words)?;
            let plan = |parsed| plan(parsed, args.capture(), &[]);
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
        Some(Command::Metrics(_)) => Ok(InstancePlan::Metrics),
        _ => Err(Error::new(segue_control::error::Kind::Internal, "a key became another command", "segue help run")),
    }
}
