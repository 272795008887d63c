//! The program `segue`: its words, help and output. The other crates do the work.
//!
//! clap parses commands and dashed options, [`segue_grammar`] the keyword grammar of `segue tunnel`; `render` and
//! `out` print results, as text or as JSON.
//!
//! # Lifecycle
//! 1. The command line is parsed. One that is wrong ends here, with a caret under the wrong word, and changes nothing.
//! 2. The implementation of the checksums is chosen (`version::choose_simd`).
//! 3. The command runs. `tunnel`, `gateway`, `lan78xx up` and `run` stay until they are stopped: they make a plan,
//!    which [`segue_service`] runs. `stat`, `set` and `nat` ask a running instance by its control socket. `pcap` calls
//!    `segue_capture`, `lab` and `bench` call `segue_lab`. Without a command, an overview of all instances is printed.
//! 4. An error is shown, and its kind becomes the exit status.
//!
//! # Promises
//! - Data goes to stdout, all else to stderr; with `-j` data and errors are JSON on stdout, whose keys stay (`segue
//!   schema`).
//! - Every failure is a [`segue_control::error::Error`]: what failed, why, and what to try.
//! - The exit status is 0 for done, 1 for failed, 2 for a wrong use, 130 for interrupted. A panic is shown as a fault
//!   of segue, with status 1.
//! - A configuration file has the words of the command line, read by the same tables.
//!
//! # Limits
//! This crate moves no packet; of wire formats it knows only the names that `pcap` takes and prints. Ports and
//! pipelines are `segue-service`'s.

mod args;
mod bench;
mod complete;
mod doctor;
mod fleet;
mod gateway;
mod help;
mod lab;
mod lan78xx;
mod log;
mod manual;
mod metrics;
mod nat;
mod out;
mod pcap;
mod peer;
mod progress;
mod reload;
mod render;
mod report;
mod run;
mod schema;
mod set;
mod simulation;
mod stat;
mod top;
mod tunnel;
mod usage;
mod version;

pub use run::parse_configuration;

use std::panic;
use std::process::ExitCode;

use clap::Parser;
use segue_control::client;
use segue_control::error::{Error, Kind};
use segue_host::process;
use segue_service::fault;

use crate::args::{Cli, Command};
use crate::out::{Out, to_stderr};
use crate::render::Rendered;

/// Runs the program: parses the command line of this process, runs the command, and returns the exit status.
pub fn main() -> ExitCode {
    process::note_inherited();
    panic::set_hook(Box::new(|info| {
        to_stderr(&fault::describe(info).text());
    }));
    // The panic hook has printed the message; only the exit status for "failed" remains.
    panic::catch_unwind(start).unwrap_or(ExitCode::from(1))
}

fn start() -> ExitCode {
    let words: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    if segue_extcap::is_call(&words) {
        let out = Out::new(&common_of(&words));
        return match segue_extcap::answer(&words, version::VERSION) {
            Ok(text) => {
                out.data(&text);
                ExitCode::SUCCESS
            }
            Err(error) => {
                out.error(&error);
                ExitCode::from(error.kind.exit_code())
            }
        };
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(found) => {
            let out = Out::new(&common_of(&words));
            let error = usage::error(&found, &words, usage::Origin::CommandLine);
            out.error(&error);
            return ExitCode::from(error.kind.exit_code());
        }
    };
    let out = Out::new(&cli.common);
    match version::choose_simd().and_then(|()| run(&cli, &out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The JSON of `doctor` already contains its failures.
            let complete = out.json && error.kind == Kind::Unhealthy && matches!(cli.command, Some(Command::Doctor(_)));
            // The user pressed Ctrl-C and needs no message about it.
            let known = error.kind == Kind::Shown || !out.json && error.kind == Kind::Interrupted;
            if !complete && !known {
                out.error(&error);
            }
            ExitCode::from(error.kind.exit_code())
        }
    }
}

/// Returns the common options of a command line that could not be parsed, so that its error is printed in the
/// requested form.
fn common_of(words: &[String]) -> args::Common {
    let short = |letter| words.iter().any(|word| is_short_options(word) && word.contains(letter));
    let long = |name| words.iter().any(|word| word == name);
    let color = words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix("--color=") {
        Some(value) => Some(value),
        None if word == "--color" => words.get(at + 1).map(String::as_str),
        None => None,
    });
    args::Common {
        json: short('j') || long("--json"),
        pretty: short('p') || long("--pretty"),
        quiet: false,
        verbose: false,
        color: match color {
            Some("always") => args::Color::Always,
            Some("never") => args::Color::Never,
            _ => args::Color::Auto,
        },
        log_format: args::LogFormat::Auto,
        short_help: false,
        long_help: false,
    }
}

/// Returns whether `word` is a group of short options such as `-jq`: one dash and letters.
fn is_short_options(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphabetic()))
}

fn run(cli: &Cli, out: &Out) -> Result<(), Error> {
    if cli.version {
        version::run(out);
        return Ok(());
    }
    if cli.common.short_help || cli.common.long_help {
        let long = cli.common.long_help;
        let text = match &cli.command {
            None => help::whole(long),
            Some(Command::Pcap(pcap::args::Pcap { action: Some(action) })) => pcap::help::of(action.name(), long)?,
            Some(Command::Lan78xx(lan78xx::args::Lan78xx { action: Some(action) })) => {
                lan78xx::help::of(action.name(), long)?
            }
            Some(command) => help::of(command.name(), long)?,
        };
        out.data(&text);
        return Ok(());
    }
    match &cli.command {
        None => overview(out),
        Some(Command::Tunnel(args)) => tunnel::run(args, out),
        Some(Command::Gateway(args)) => gateway::run(args, out),
        Some(Command::Stat(args)) => stat::run(args, out),
        Some(Command::Top(args)) => top::run(args, out),
        Some(Command::Metrics(args)) => metrics::run(args, out),
        Some(Command::Stop(args)) => stat::stop(&args.names, out),
        Some(Command::Set(args)) => set::run(args, out),
        Some(Command::Nat(args)) => nat::run(args, out),
        Some(Command::Fleet(args)) => fleet::run(args),
        Some(Command::Peer(args)) => peer::run(args, out),
        Some(Command::Run(args)) => run::run(args, out),
        Some(Command::Reload(args)) => reload::run(args, out),
        Some(Command::Doctor(args)) => doctor::run(&args.links, out),
        Some(Command::Lab(args)) => lab::run(args, out),
        Some(Command::Bench(args)) => bench::run(args, out),
        Some(Command::Pcap(args)) => pcap::run(args, out),
        Some(Command::Lan78xx(args)) => lan78xx::run(args, out),
        Some(Command::Schema(args)) => schema::run(args, out),
        Some(Command::Completions(args)) => complete::script(args, out),
        Some(Command::Complete(args)) => {
            complete::run(args, out);
            Ok(())
        }
        Some(Command::Help(args)) => {
            if let Some(folder) = &args.manual {
                return manual::write(folder, out);
            }
            let text = match &args.command[..] {
                [] => help::whole(true),
                [command] => help::of(command, true)?,
                [command, action, ..] if command == "pcap" => pcap::help::of(action, true)?,
                [command, action, ..] if command == "lan78xx" => lan78xx::help::of(action, true)?,
                words => help::of(&words.join(" "), true)?,
            };
            out.data(&text);
            Ok(())
        }
    }
}

/// Prints the output of `segue` without a command: a line for each running instance, then the commands.
fn overview(out: &Out) -> Result<(), Error> {
    if out.json {
        return stat::run(
            &args::Stat {
                name: None,
                why: false,
                watch: None,
                health: false,
                strict: false,
                raw: false,
                details: false,
            },
            out,
        );
    }
    let found = client::all();
    if !found.instances.is_empty() {
        out.data(&(stat::lines(&found.instances) + "\n"));
    }
    out.data(&help::overview());
    Ok(())
}
