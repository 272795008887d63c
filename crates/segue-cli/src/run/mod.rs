//! `segue run`: the tunnels and gateways of a file as one service.

mod command;
mod config;
pub(crate) mod keys;
mod source;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind, together};
use segue_control::knobs::Knob;
use segue_control::place;
use segue_host::names::{Lookups, Names};
use segue_host::netlink::Netlink;
use segue_service::supervise::file;
use segue_service::supervise::service::{Configuration, SCHEMA, Service, count};
use segue_service::supervise::spec::{InstanceSpec, Kind as InstanceKind, KnobAssignment, Token};
use segue_service::supervise::upgrade::Kept;
use serde_json::{Value, json};

use self::config::{Checked, Refusal};
use self::source::Text;
use crate::args::Run;
use crate::log::Form;
use crate::out::Out;

/// Largest file that is read, bytes.
const FILE_LEN: usize = 4 << 20;

/// Longest wait for the next answer of the resolver at the start, and for all answers: tunnels with an address do not
/// wait for a silent name, and tunnels of one port start together where their names have answers one after another.
const LOOKUP: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(6)];
/// Longest time for the lookup of all names where no other instance waits for it.
const LONG_LOOKUP: Duration = Duration::from_secs(30);
/// Interval at which new answers are checked for an instance that can start.
const ANSWER: Duration = Duration::from_millis(300);

/// Runs `segue run`.
pub(crate) fn run(args: &Run, out: &Out) -> Result<(), Error> {
    let Some(path) = args.config.as_deref().or(args.file.as_deref()) else {
        return Err(Error::new(Kind::Missing, "`run` needs a file", "segue run -c segue.toml")
            .why("it says what is to run: segue help run"));
    };
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for routes", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    if let Some(number) = args.resume {
        return resume(path, number, args.check, netlink, out);
    }
    let text = open(path)?;
    let begin = Instant::now();
    let mut lookups = Lookups::begin(Vec::new());
    let mut specs = config::read(&text, |hosts| {
        lookups = Lookups::begin(hosts);
        if args.check {
            lookups.wait(LONG_LOOKUP);
        } else {
            let [pause, limit] = LOOKUP;
            lookups.wait_while_answered(pause, limit);
        }
        lookups.names().clone()
    })?;
    let mut checked = check(&specs.iter().collect::<Vec<_>>(), &[], &text, &mut netlink);
    // The answers that come later are the service's, unless nothing can start without them.
    while !args.check
        && !checked.iter().any(Result::is_ok)
        && specs.iter().any(|spec| spec.unresolved.is_some())
        && !lookups.is_over()
        && begin.elapsed() < LONG_LOOKUP
    {
        if lookups.wait(ANSWER) {
            specs = config::read(&text, |_| lookups.names().clone())?;
            checked = check(&specs.iter().collect::<Vec<_>>(), &[], &text, &mut netlink);
        }
    }
    let may_come = |checked: &Result<String, Refusal>| checked.as_ref().err().is_none_or(|refusal| refusal.is_of_host);
    if args.check || !checked.iter().any(Result::is_ok) && !checked.is_empty() || !checked.iter().all(may_come) {
        let plans = whole(checked)?;
        show(&text, &specs, &plans, out);
        return Ok(());
    }
    let file = ConfigFile { path: path.to_owned(), text };
    let mut service = service(file, netlink, out)?;
    let refused = checked.into_iter().map(|checked| checked.err().map(|refusal| *refusal.error));
    service.life(specs.into_iter().zip(refused).collect(), lookups)
}

/// Continues a service whose program this one replaces; with `check` it only reports whether it can.
fn resume(path: &Path, number: i32, check: bool, netlink: Netlink, out: &Out) -> Result<(), Error> {
    let kept = Kept::read(number)?;
    // The file may have changed since it was read: what runs is in `kept`.
    let text = Text { file: path.display().to_string(), text: String::new() };
    let file = ConfigFile { path: path.to_owned(), text };
    let specs = kept.specs(&file)?;
    if check {
        return Ok(());
    }
    service(file, netlink, out)?.resume(kept, specs)
}

/// Creates the service of a file, which asks its own instances only: others may have the same names elsewhere.
fn service(file: ConfigFile, netlink: Netlink, out: &Out) -> Result<Service, Error> {
    // Where there is no directory, its own socket fails, with the reason.
    if let Ok(directory) = place::for_new() {
        place::search_only(directory);
    }
    Service::new(Box::new(file), netlink, out.unattended(), options(out))
}

fn open(path: &Path) -> Result<Text, Error> {
    let file = path.display().to_string();
    let failed = |error: &std::io::Error| {
        Error::system(format!("cannot read {file}"), error, format!("ls -l {file}")).why("it holds what is to run")
    };
    let bytes = file::read(path, FILE_LEN).map_err(|error| failed(&error))?;
    decode(file, bytes)
}

/// Returns the text of a configuration file with these bytes.
fn decode(file: String, bytes: Vec<u8>) -> Result<Text, Error> {
    if bytes.len() > FILE_LEN {
        return Err(Error::new(Kind::Config, format!("{file} is too large"), "segue help run")
            .why(format!("a configuration has at most {FILE_LEN} bytes")));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Text { file, text }),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(&error.into_bytes()).into_owned();
            let text = Text { file, text };
            Err(text.error(&(at..at + 1), "this is not UTF-8", "TOML is written in UTF-8"))
        }
    }
}

/// Parses the bytes of a configuration as `segue run` does, without any query of the system: remotes given as names
/// have no address. `file` is the name that errors show.
///
/// # Errors
/// All errors of the file in one, each with its line and column.
pub fn parse_configuration(file: &str, bytes: Vec<u8>) -> Result<Vec<InstanceSpec>, Error> {
    config::read(&decode(file.to_owned(), bytes)?, |_| Names::default())
}

/// Returns the descriptions of all instances, or all errors.
fn whole(checked: Vec<Result<String, Refusal>>) -> Result<Vec<String>, Error> {
    let (mut plans, mut errors) = (Vec::new(), Vec::new());
    for checked in checked {
        match checked {
            Ok(plan) => plans.push(plan),
            Err(refusal) => errors.push(*refusal.error),
        }
    }
    together(errors).map_or(Ok(plans), Err)
}

/// Checks whether `specs` can run on this host at the same time as `others`, which are running. Returns a description
/// or an error for each.
fn check(
    specs: &[&InstanceSpec],
    others: &[InstanceSpec],
    text: &Text,
    netlink: &mut Netlink,
) -> Vec<Result<String, Refusal>> {
    let mut found = Vec::new();
    let mut ports: HashMap<u16, Vec<(IpAddr, &InstanceSpec)>> = HashMap::new();
    for spec in others {
        if let Some(place) = spec.listens(netlink) {
            ports.entry(place.port()).or_default().push((place.ip(), spec));
        }
    }
    for spec in specs {
        let Checked { words, listens } = match config::check(spec, text, netlink) {
            Ok(checked) => checked,
            Err(refusal) => {
                found.push(Err(refusal));
                continue;
            }
        };
        let Some(place) = listens else {
            found.push(Ok(words));
            continue;
        };
        let known = ports.entry(place.port()).or_default();
        // The unspecified address covers all addresses.
        let same = |ip: IpAddr| {
            ip == place.ip() || ip.is_ipv4() == place.is_ipv4() && (ip.is_unspecified() || place.ip().is_unspecified())
        };
        let taken = known.iter().find(|(ip, _)| same(*ip)).map(|(_, first)| {
            let line = text.line(first.header.start);
            let message = format!("`{}` and `{}` would both listen on {place}, UDP", first.name, spec.name);
            let note = format!("line {line} has the first: the same `local` in each lets them share the port");
            Refusal::of_file(text.error(&spec.header, message, note))
        });
        found.push(taken.map_or(Ok(words), Err));
        known.push((place.ip(), spec));
    }
    found
}

/// Prints the instances that would run, for `--check`.
fn show(text: &Text, specs: &[InstanceSpec], plans: &[String], out: &Out) {
    if out.json {
        let specs: Vec<Value> = specs
            .iter()
            .map(|spec| {
                let knobs: serde_json::Map<String, Value> =
                    spec.knobs().into_iter().map(|(name, value)| (name, json!(value))).collect();
                json!({ "name": spec.name, "kind": spec.kind.command(), "words": spec.words(), "knobs": knobs })
            })
            .collect();
        return out.value(&json!({ "schema": SCHEMA, "event": "check", "file": text.file, "instances": specs }));
    }
    plans.iter().for_each(|plan| out.data(plan));
    out.data(&format!("{}: {}; nothing was changed\n", text.file, count(specs.len())));
}

/// Returns the options of this command that apply to each instance.
fn options(out: &Out) -> Vec<String> {
    let given = [("-v", out.verbose), ("-q", out.quiet)];
    let given = given.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option.to_owned());
    // Whether the journal reads them, instances find out by themselves.
    given.chain((out.form != Form::Text).then(|| "--log-format=logfmt".to_owned())).collect()
}

/// The file that a service follows.
struct ConfigFile {
    path: PathBuf,
    /// Content of the file when it was last loaded.
    text: Text,
}

impl Configuration for ConfigFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn path(&self) -> String {
        std::fs::canonicalize(&self.path).as_deref().unwrap_or(&self.path).display().to_string()
    }

    fn load(&mut self) -> Result<(), Error> {
        self.text = open(&self.path)?;
        Ok(())
    }

    fn hosts(&self) -> Vec<String> {
        config::hosts(&self.text)
    }

    fn specs(&self, names: &Names) -> Result<Vec<InstanceSpec>, Error> {
        config::read(&self.text, |_| names.clone())
    }

    fn check(&self, specs: &[&InstanceSpec], others: &[InstanceSpec], netlink: &mut Netlink) -> Result<(), Error> {
        whole(check(specs, others, &self.text, netlink)).map(drop)
    }

    fn spec(
        &self,
        kind: InstanceKind,
        name: &str,
        words: &[String],
        knobs: &[(String, String)],
        names: &Names,
    ) -> Result<InstanceSpec, Error> {
        // They have no place in the file.
        let token = |text: &String| Token::new(text, 0..0);
        let mut tokens: Vec<Token> = words.iter().map(token).collect();
        let (plan, unresolved) = command::parsed_by_name(kind, &mut tokens, names)?;
        let knobs = knobs.iter().map(|(name, value)| KnobAssignment { name: token(name), value: token(value) });
        let (name, assignments) = (name.to_owned(), knobs.collect());
        // Up to version 0.2.0 they were passed on in the order of the file.
        let tokens = keys::in_order(kind, &keys::options(kind), &tokens);
        Ok(InstanceSpec { kind, name, tokens, assignments, header: 0..0, plan, unresolved })
    }

    fn check_knobs(&self, spec: &InstanceSpec, known: Vec<Knob>) -> Result<(), Error> {
        config::check_knobs(spec, &self.text, known)
    }
}
