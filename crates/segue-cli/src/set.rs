//! `segue set`: knobs of a running instance, read and changed while packets are forwarded.

use std::collections::BTreeMap;

use segue_control::client;
use segue_control::error::{Error, Kind, Place, printable};
use segue_control::knobs::{self, Change, Document, Knob, SCHEMA, STATS, Stats, Wrong};
use segue_control::model::{Instance, Port};
use serde_json::json;

use crate::args::Set;
use crate::out::Out;
use crate::stat::plain_table;

/// Runs `segue set`.
pub(crate) fn run(args: &Set, out: &Out) -> Result<(), Error> {
    let Some(name) = &args.instance else { return Err(missing_instance()) };
    let words: Vec<String> = std::iter::once(name).chain(&args.words).cloned().collect();
    let known = client::knobs(name)?;
    let mut document = Document {
        schema: SCHEMA.to_owned(),
        instance: name.clone(),
        knobs: Vec::new(),
        changed: Vec::new(),
        stats: Vec::new(),
    };
    match &args.words[..] {
        [] => document.knobs = known,
        [one] if !one.contains('=') => read(one, &words, known, &mut document)?,
        _ => {
            let assignments = expanded(assignments(&words)?, &known, &words)?;
            let named: Vec<String> = assignments.iter().map(|(_, assignment)| assignment.0.clone()).collect();
            check(&known, &assignments, &words)?;
            if !args.check {
                let assignments: Vec<_> = assignments.into_iter().map(|(_, assignment)| assignment).collect();
                document.changed = client::set(name, &assignments)?;
            }
            let after = if args.check { known } else { client::knobs(name)? };
            document.knobs = after.into_iter().filter(|knob| named.contains(&knob.name)).collect();
        }
    }
    show(&document, args, out);
    Ok(())
}

fn missing_instance() -> Error {
    let found = client::all();
    let names: Vec<String> = found.instances.iter().map(|i| format!("segue set {}", printable(&i.name))).collect();
    let hint = if names.is_empty() { "segue help set".to_owned() } else { names.join("\n") };
    Error::new(Kind::Missing, "`set` needs the name of an instance", hint).why("segue stat lists those that run")
}

/// Adds to `document` the knob `name`, or the counters if `name` is that of a group such as `net.gso.stats`.
fn read(name: &str, words: &[String], known: Vec<Knob>, document: &mut Document) -> Result<(), Error> {
    if STATS.iter().any(|stats| stats.0 == name) {
        let instance = client::one(&document.instance)?;
        document.stats.push(Stats { name: name.to_owned(), ports: counters(name, &instance) });
        return Ok(());
    }
    if let Some(switch) = switch(name) {
        document.knobs = known.into_iter().filter(|knob| switch.is_of(&knob.name)).collect();
        return Ok(());
    }
    match knobs::find(&known, name) {
        Ok(knob) => document.knobs.push(knob.clone()),
        Err(wrong) => return Err(failure(wrong, words, 1)),
    }
    Ok(())
}

/// An ethtool name for a kind of knob, valid for every port that has one.
#[derive(Debug)]
struct Switch {
    name: &'static str,
    group: &'static str,
    knob: &'static str,
}

impl Switch {
    fn is_of(&self, knob: &str) -> bool {
        knob.strip_prefix(self.group).is_some_and(|rest| rest.rsplit('.').next() == Some(self.knob))
    }
}

/// The names of `ethtool -K`, which take `on` and `off`.
const SWITCHES: &[Switch] = &[
    Switch { name: "gro", group: "net.gro.dev.", knob: "enable_gro" },
    Switch { name: "gso", group: "net.gso.dev.", knob: "enable_gso" },
    Switch { name: "tso", group: "net.gso.dev.", knob: "tso" },
    Switch { name: "tx", group: "net.remcsum.dev.", knob: "enable_remcsum" },
];

fn switch(name: &str) -> Option<&'static Switch> {
    SWITCHES.iter().find(|switch| switch.name == name)
}

/// Replaces each switch by the knobs that it stands for.
fn expanded(
    assignments: Vec<PlacedAssignment>,
    known: &[Knob],
    words: &[String],
) -> Result<Vec<PlacedAssignment>, Error> {
    let mut all = Vec::new();
    for (at, (name, value)) in assignments {
        let Some(switch) = switch(&name) else {
            all.push((at, (name, value)));
            continue;
        };
        let wrong = |kind, message: String, note: &str| {
            let place = Place { words: words.to_vec(), at, note: note.to_owned(), nearest: None };
            Err(Error::new(kind, message, format!("segue set {} {name} on", printable(&words[0]))).at(place))
        };
        let value = match &value[..] {
            "on" | "1" => "1",
            "off" | "0" => "0",
            other => {
                let message = format!("`{}` is not a value of `{name}`", printable(other));
                return wrong(Kind::BadValue, message, "expected on or off");
            }
        };
        let before = all.len();
        let settable = known.iter().filter(|knob| switch.is_of(&knob.name) && knob.fixed.is_none());
        all.extend(settable.map(|knob| (at, (knob.name.clone(), value.to_owned()))));
        if all.len() == before {
            let why = known.iter().find(|knob| switch.is_of(&knob.name)).and_then(|knob| knob.fixed.clone());
            let note = why.unwrap_or_else(|| "no port has such a knob".to_owned());
            return wrong(Kind::NotAvailable, format!("`{name}` cannot be set here"), &note);
        }
    }
    Ok(all)
}

/// An assignment (name and value of a knob) with the index of its name among the words.
type PlacedAssignment = (usize, (String, String));

/// Parses assignments of the forms `KNOB VALUE` and `KNOB=VALUE`, any number of them.
fn assignments(words: &[String]) -> Result<Vec<PlacedAssignment>, Error> {
    let mut assignments = Vec::new();
    let mut at = 1;
    while let Some(word) = words.get(at) {
        if let Some((name, value)) = word.split_once('=') {
            assignments.push((at, (name.to_owned(), value.to_owned())));
            at += 1;
            continue;
        }
        let Some(value) = words.get(at + 1) else {
            let place = Place { words: words.to_vec(), at: at + 1, note: "its value".into(), nearest: None };
            let message = format!("`{}` needs a value", printable(word));
            return Err(Error::new(Kind::Missing, message, "segue set NAME KNOB VALUE").at(place));
        };
        assignments.push((at, (word.clone(), value.clone())));
        at += 2;
    }
    Ok(assignments)
}

fn check(known: &[Knob], assignments: &[PlacedAssignment], words: &[String]) -> Result<(), Error> {
    let mut shadow = known.to_vec();
    for (at, (name, text)) in assignments {
        knobs::set(&mut shadow, name, text).map_err(|wrong| {
            let is_pair = !words[*at].contains('=');
            let at = if wrong.is_name || !is_pair { *at } else { at + 1 };
            failure(wrong, words, at)
        })?;
    }
    Ok(())
}

fn failure(wrong: Wrong, words: &[String], at: usize) -> Error {
    let place = Place { words: words.to_vec(), at, note: wrong.note, nearest: wrong.nearest };
    Error::new(wrong.kind, wrong.message, wrong.good).at(place)
}

/// Returns the counters of the group `name` by port, including those that are 0.
fn counters(name: &str, instance: &Instance) -> BTreeMap<String, BTreeMap<String, u64>> {
    let of = |port: &Port| {
        let mut counters = BTreeMap::new();
        let mut add = |group: &str, from: &BTreeMap<String, u64>| {
            let prefix = if group.is_empty() { String::new() } else { format!("{group}.") };
            counters.extend(from.iter().map(|(key, count)| (format!("{prefix}{key}"), *count)));
        };
        match name {
            "net.gso.stats" => {
                add("", &port.gso);
                let drops = port.drops.iter().filter(|(key, _)| key.starts_with("gso_"));
                add("drops", &drops.map(|(key, count)| (key.clone(), *count)).collect());
            }
            "net.gro.stats" => {
                add("flushes", &port.flushes);
                add("refusals", &port.refusals);
                add("mismatches", &port.mismatches);
                if let Some(seen) = port.stages.get("gro") {
                    counters.insert("packets".to_owned(), seen.packets);
                    counters.insert("segments".to_owned(), seen.segments);
                }
            }
            "net.ack.stats" => {
                counters.insert("swallowed".to_owned(), port.swallowed);
            }
            "net.napi.stats" => add("", &port.napi),
            _ => add("", &port.remcsum),
        }
        counters
    };
    let ports = instance.ports.iter().map(|(name, port)| (name.clone(), of(port)));
    ports.filter(|(_, counters)| !counters.is_empty()).collect()
}

fn show(document: &Document, args: &Set, out: &Out) {
    if out.json {
        return out.value(&json!(document));
    }
    for stats in &document.stats {
        for (port, counters) in &stats.ports {
            for (name, count) in counters {
                out.data(&format!("{} {} {count}\n", printable(port), printable(name)));
            }
        }
    }
    if !args.words.is_empty() && args.check {
        out.data("all of it can be set; nothing was changed\n");
    } else if !document.changed.is_empty() {
        for Change { name, before, value } in &document.changed {
            out.data(&format!("{name}: {before} -> {value}\n"));
        }
    } else if let ([knob], false) = (&document.knobs[..], args.words.is_empty()) {
        out.data(&format!("{}\n", knob.value));
        out.note(&format!("takes {}: {}", knob.takes(), knob.help));
    } else if !document.knobs.is_empty() {
        let rows = document
            .knobs
            .iter()
            .map(|knob| vec![printable(&knob.name), knob.value.to_string(), knob.default.to_string(), knob.takes()]);
        let heads = ["KNOB", "VALUE", "START", "TAKES"].map(str::to_owned).to_vec();
        out.data(&plain_table(heads, rows, &[false, true, true, false]));
        for (name, what) in STATS {
            out.data(&format!("{name}: {what}; read it by its name\n"));
        }
    }
}
