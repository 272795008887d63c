//! `segue stat`: running instances as a table, as an explanation of their counters (`--why`), or as JSON.

mod explain;
mod fleet;
mod path;
mod table;
#[cfg(test)]
mod tests;
mod workers;

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use segue_control::client::{self, Found};
use segue_control::error::{Error, Kind, printable, printable_line};
use segue_control::fleet_health;
use segue_control::model::{Complaint, Document, Instance, SCHEMA};
use segue_control::{services, units};
use segue_host::sys;
use serde_json::json;

use self::explain::why;
use self::table::{Form, table};
pub(crate) use self::table::{lines, plain_table};
use crate::args::Stat;
use crate::out::Out;

/// Time after which `--watch` shows the first rates.
const FIRST: Duration = Duration::from_secs(1);

/// Runs `segue stat`.
pub(crate) fn run(args: &Stat, out: &Out) -> Result<(), Error> {
    sys::exit_130_on_interrupt();
    if args.health {
        return health(&query(args, out)?, args.strict, out);
    }
    let Some(seconds) = args.watch else {
        show(&query(args, out)?, args, out);
        return Ok(());
    };
    let interval = Duration::from_secs(u64::from(seconds));
    let mut before = query(args, out)?;
    thread::sleep(interval.min(FIRST));
    let mut next = Instant::now();
    loop {
        let mut document = query(args, out)?;
        document.instances.iter_mut().for_each(|instance| measure(instance, &before));
        show(&document, args, out);
        before = document;
        next += interval;
        let now = Instant::now();
        // Times that have passed while the program was stopped are left out.
        next = next.max(now);
        thread::sleep(next - now);
    }
}

/// Longest wait for an instance to end.
const STOP: Duration = Duration::from_secs(10);

/// Runs `segue stop`: ends instances one after another; the first failure ends the command.
pub(crate) fn stop(names: &[String], out: &Out) -> Result<(), Error> {
    for name in names {
        client::stop(name, STOP)?;
        if out.json {
            out.value(&json!({ "schema": "segue.stop/1", "stopped": name }));
        } else {
            out.note(&format!("{} is down", printable(name)));
        }
    }
    Ok(())
}

/// Computes the rates of an instance from the difference to the previous document.
fn measure(instance: &mut Instance, before: &Document) {
    let is_same = |old: &&Instance| old.name == instance.name && old.pid == instance.pid;
    let old = before.instances.iter().find(is_same).filter(|old| instance.uptime_s > old.uptime_s);
    if let Some(old) = old {
        instance.recent = Some(instance.recent_since(old, instance.uptime_s - old.uptime_s));
    }
}

fn query(args: &Stat, out: &Out) -> Result<Document, Error> {
    let Found { mut instances, failed } = match &args.name {
        Some(name) => Found { instances: vec![client::one(name)?], failed: Vec::new() },
        None => services::instances(),
    };
    // Instances of other users are no concern of this one.
    let is_own = |(_, error): &&(String, Error)| error.kind != Kind::NoPermission;
    if let (true, Some((_, error))) = (instances.is_empty(), failed.iter().find(is_own).or(failed.first())) {
        return Err(error.clone());
    }
    let noted = failed.iter().filter(|one| !args.health || !is_own(one));
    noted.for_each(|(_, error)| out.warn(&format!("note: {}", error.message)));
    let unanswered = failed.iter().filter(is_own).map(|(name, error)| (name.clone(), complaint(error))).collect();
    let fleet = fleet_health::add(&mut instances);
    Ok(Document { schema: SCHEMA.to_owned(), t: units::rfc3339(SystemTime::now()), instances, fleet, unanswered })
}

/// Returns the problem that an instance does not answer, or is down without a control socket.
fn complaint(error: &Error) -> Complaint {
    let (what, fix) = (error.message.clone(), Some(error.hint.clone()));
    Complaint { what, why: error.why.clone(), fix, ..Complaint::default() }
}

fn show(document: &Document, args: &Stat, out: &Out) {
    if out.json {
        // With `--watch` each object is one line, even with `--pretty`.
        let out = Out { pretty: out.pretty && args.watch.is_none(), ..*out };
        out.value(&json!(document));
        return;
    }
    if document.instances.is_empty() {
        out.note("nothing runs; segue help tunnel says how to start one");
        return;
    }
    let only = args
        .name
        .as_deref()
        .filter(|name| document.instances.iter().any(|instance| instance.name != **name || instance.tunnels.len() > 1));
    if args.why {
        for instance in &document.instances {
            out.data(&why(instance, only, args.raw));
        }
        return;
    }
    let form = Form { raw: args.raw, details: args.details };
    let window =
        document.instances.iter().find_map(|instance| instance.recent.as_ref()).map(|recent| recent.interval_s);
    let rates = window.map_or("no rates yet".to_owned(), |window| format!("rates: mean of the last {window:.1} s"));
    let mut text = table(&document.instances, only, form);
    text.push_str(&path::lines(&document.instances, only, args.raw));
    text.push_str(&fleet::lines(&document.fleet));
    if args.details {
        text.push_str(&workers::table(&document.instances, args.raw));
    }
    match args.watch {
        Some(_) => out.data(&format!("{}, {rates}\n{text}", units::local_time(SystemTime::now()))),
        None => out.data(&format!("{text}{rates}\n")),
    }
}

/// Returns a problem of the instance `name` on one line that begins with the names it concerns.
fn problem(name: &str, note: &Complaint) -> String {
    const NAMED: usize = 3;
    let of = match &note.tunnels[..] {
        [] => printable(name),
        all => {
            let named: Vec<String> = all.iter().take(NAMED).map(|name| printable(name)).collect();
            let more = all.len().saturating_sub(NAMED);
            named.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
        }
    };
    let why = note.why.as_ref().map(|why| format!(" ({})", printable_line(why))).unwrap_or_default();
    format!("{of}: {}{why}", printable_line(&note.what))
}

fn health(document: &Document, strict: bool, out: &Out) -> Result<(), Error> {
    let reported = document.instances.iter().flat_map(|one| one.health.iter().map(|note| (&one.name, note)));
    let all = document.unanswered.iter().chain(reported);
    let (sick, notices): (Vec<_>, Vec<_>) = all.partition(|(_, note)| strict || !note.notice);
    for (name, note) in notices {
        out.note(&format!("note: {}", problem(name, note)));
    }
    let lines: Vec<String> = sick.iter().map(|(name, note)| problem(name, note)).collect();
    let why = if document.unanswered.is_empty() { "the instance reports it" } else { "an instance is silent or down" };
    match (document.instances.is_empty(), sick.is_empty()) {
        (true, _) => {
            Err(Error::new(Kind::Unhealthy, "nothing runs", "segue tunnel --help").why("no control socket answers"))
        }
        (false, true) => {
            if out.json {
                out.value(&json!(document));
            }
            Ok(())
        }
        (false, false) => {
            let fix = sick.iter().find_map(|(_, note)| note.fix.as_deref());
            let hint = fix.map_or_else(|| "segue stat --why".to_owned(), printable_line);
            if out.json {
                return Err(Error::new(Kind::Unhealthy, lines.join("; "), hint).why(why));
            }
            out.data(&(lines.join("\n") + "\n"));
            Err(Error::new(Kind::Unhealthy, format!("{} not well", things(sick.len())), hint).why(why))
        }
    }
}

fn things(n: usize) -> String {
    if n == 1 { "1 thing is".to_owned() } else { format!("{n} things are") }
}
