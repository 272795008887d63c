//! The command line that a table of the file stands for.

use std::ops::Range;

use clap::Parser;
use segue_control::error::Error;
use segue_service::gateway::config::Spelling;
use segue_service::supervise::spec::{InstancePlan, Kind, Token};

use super::source::Text;
use crate::args::{Cli, Command};
use crate::gateway;
use crate::lan78xx;
use crate::usage::{self, Origin};
use segue_grammar::parse;
use segue_grammar::plan::plan;
use segue_grammar::tunnel::WORDS;

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

/// Returns the command line of a kind with these words.
pub(super) fn line(kind: Kind, words: &[String]) -> Vec<String> {
    std::iter::once("segue").chain(kind.words()).map(str::to_owned).chain(words.iter().cloned()).collect()
}

/// Parses the command line of a table, as the program parses its own.
pub(super) fn parsed(kind: Kind, tokens: &[Token]) -> Result<InstancePlan, Error> {
    let words: Vec<String> = tokens.iter().map(|token| token.text.clone()).collect();
    let line = line(kind, &words);
    match Cli::try_parse_from(line).map_err(|found| usage::error(&found, &words, Origin::File(kind.command())))?.command
    {
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
