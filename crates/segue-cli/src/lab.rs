//! `segue lab`: the command line of the demonstration.

use std::io;

use segue_control::error::{Error, Kind};
use segue_lab::{Lab as Hosts, LabError, LinkForm, Options, interrupt};
use serde_json::{Value, json};

use crate::args::Lab;
use crate::out::Out;
use crate::progress::Shown;
use crate::version;

/// Runs `segue lab`.
pub(crate) fn run(args: &Lab, out: &Out) -> Result<(), Error> {
    let options = options(args).map_err(failure)?;
    interrupt::catch().map_err(|error| {
        Error::system("cannot catch signals", &error, "segue doctor").why("the kernel refused a signal handler")
    })?;
    segue_lab::enter_user_namespace().map_err(failure)?;
    let mut progress = Shown::new(&args.progress, out.quiet);
    let made = Hosts::new(&options, &mut progress);
    let outcome = made.and_then(|mut lab| {
        if args.keep { keep(&mut lab, &mut progress, out) } else { measure(&mut lab, &mut progress, out) }
    });
    progress.clear();
    outcome.map_err(failure)
}

fn measure(lab: &mut Hosts, progress: &mut Shown, out: &Out) -> Result<(), LabError> {
    let table = lab.measure(progress)?;
    progress.clear();
    if out.json {
        out.data(&(table.to_json(out.pretty) + "\n"));
        return Ok(());
    }
    out.data(&table.to_text());
    out.data(&format!("\n{}", table.caption()));
    out.note("next: segue lab --keep    to inspect the two hosts");
    Ok(())
}

fn keep(lab: &mut Hosts, progress: &mut Shown, out: &Out) -> Result<(), LabError> {
    let entrances = lab.entrances()?;
    progress.clear();
    if out.json {
        let hosts: Vec<Value> = entrances
            .iter()
            .map(|entrance| {
                let addresses: Vec<Value> = entrance
                    .addresses
                    .iter()
                    .map(|(case, address)| json!({ "case": case, "address": address }))
                    .collect();
                json!({ "host": entrance.host, "command": entrance.command, "addresses": addresses })
            })
            .collect();
        out.value(&json!({ "schema": "segue.lab/1", "hosts": hosts }));
    } else {
        for entrance in &entrances {
            out.data(&format!("host {}: {}\n", entrance.host, entrance.command));
            for (case, address) in &entrance.addresses {
                out.data(&format!("  {case:<12} {address}\n"));
            }
        }
        out.note("Stop: Ctrl-C takes everything away");
    }
    interrupt::wait();
    Ok(())
}

fn options(args: &Lab) -> Result<Options, LabError> {
    let mut options = Options {
        segue: std::env::current_exe().map_err(|error| LabError::System {
            what: "find the program segue".to_owned(),
            source: error,
            hint: "start it by its path".to_owned(),
        })?,
        link: args.link.parse::<LinkForm>()?,
        mode: args.mode.parse()?,
        encap: args.encap.parse()?,
        outer: args.outer.parse()?,
        proto: args.proto.parse()?,
        seconds: args.seconds,
        parallel: args.parallel,
        runs: args.runs,
        simd: Some(version::simd()),
        ..Options::default()
    };
    if let Some(family) = &args.family {
        options.families = vec![family.parse()?];
    }
    options.cases.extend(args.with.iter().cloned());
    options.checked_families()?;
    Ok(options)
}

/// Converts an error of the lab into the error type of the program.
fn failure(error: LabError) -> Error {
    failure_of("segue lab", error)
}

/// Converts an error of the lab, as [`failure`], for `command`, which its hint names.
pub(crate) fn failure_of(command: &str, error: LabError) -> Error {
    let kind = match &error {
        LabError::Usage(_) => Kind::Usage,
        LabError::Interrupted => Kind::Interrupted,
        LabError::MissingPrograms(_) => Kind::NotFound,
        LabError::System { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => Kind::NoPermission,
        _ => Kind::System,
    };
    let text = error.message();
    let (message, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let hint = error.hint().unwrap_or_else(|| match kind {
        Kind::Usage => format!("{command} --help"),
        Kind::Interrupted => command.to_owned(),
        _ => "segue doctor".to_owned(),
    });
    let mut made = Error::new(kind, message, hint);
    made.os_error = error.os_error();
    if !rest.is_empty() {
        made.why = Some(rest.lines().map(str::trim).collect::<Vec<_>>().join("\n"));
    }
    made
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn parsed(line: &str) -> Lab {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        match cli.command {
            Some(Command::Lab(lab)) => lab,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_word_that_clap_takes_is_one_that_the_lab_knows() {
        for (option, values) in [
            ("link", &["nic", "nic-csum", "veth"][..]),
            ("mode", &["gre", "ipip", "sit"]),
            ("encap", &["gue", "fou"]),
            ("outer", &["4", "6"]),
            ("proto", &["tcp", "udp"]),
            ("with", &["fastd", "wireguard-go"]),
        ] {
            for value in values {
                options(&parsed(&format!("segue lab --{option} {value}"))).unwrap();
            }
        }
        assert_eq!(options(&parsed("segue lab --family 6")).unwrap().families, [segue_lab::Family::V6]);
    }

    #[test]
    fn options_that_contradict_each_other_are_used_wrongly() {
        let error = failure(options(&parsed("segue lab --mode sit --family 4")).unwrap_err());
        assert_eq!(error.kind.exit_code(), 2);
        assert!(!error.hint.is_empty() && !error.message.contains("try:"));
        assert_eq!(failure(LabError::Interrupted).kind.exit_code(), 130);
    }
}
