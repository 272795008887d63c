//! `segue stat`: running instances as a table, as an explanation of their counters (`--why`), or as JSON.

mod table;
#[cfg(test)]
mod tests;
mod why;

use std::time::{Duration, SystemTime};

use segue_control::client;
use segue_control::error::{Error, Kind, is_hidden, printable};
use segue_control::model::{Document, Instance, SCHEMA};
use segue_control::units;
use segue_host::sys;
use serde_json::json;

use self::table::table;
pub(crate) use self::table::{lines, plain_table};
use self::why::why;
use crate::args::Stat;
use crate::out::Out;

/// Runs `segue stat`.
pub(crate) fn run(args: &Stat, out: &Out) -> Result<(), Error> {
    sys::exit_130_on_interrupt();
    loop {
        let document = ask(args, out)?;
        if args.health {
            return health(&document, out);
        }
        show(&document, args, out);
        match args.watch {
            None => return Ok(()),
            Some(seconds) => std::thread::sleep(Duration::from_secs(u64::from(seconds))),
        }
    }
}

fn ask(args: &Stat, out: &Out) -> Result<Document, Error> {
    let instances = match &args.name {
        Some(name) => vec![client::one(name)?],
        None => {
            let found = client::all();
            match (found.instances.is_empty(), found.failed.first()) {
                (true, Some(error)) => return Err(error.clone()),
                _ => {
                    found.failed.iter().for_each(|error| out.warn(&format!("note: {}", error.message)));
                    found.instances
                }
            }
        }
    };
    Ok(Document { schema: SCHEMA.to_owned(), t: units::rfc3339(SystemTime::now()), instances })
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
    if args.why {
        for instance in &document.instances {
            out.data(&why(instance, args.raw));
        }
    } else {
        out.data(&table(&document.instances, args.raw, args.details));
    }
    if let (Some(name), [instance]) = (&args.name, &document.instances[..])
        && let Some(note) = of_several(name, instance)
    {
        out.note(&note);
    }
}

/// Returns a note if `name` is one of several tunnels of an instance, whose figures are summed over all of them.
fn of_several(name: &str, instance: &Instance) -> Option<String> {
    let is_one = *name != instance.name && instance.ports.contains_key(name);
    is_one.then(|| {
        format!(
            "note: {name} shares its port with {}: the figures are sums over all of them; its own are in `segue stat {name} -j` under ports.{name}",
            instance.name
        )
    })
}

fn health(document: &Document, out: &Out) -> Result<(), Error> {
    let sick: Vec<String> = document
        .instances
        .iter()
        .flat_map(|instance| instance.health.iter().map(move |note| (instance, note)))
        .map(|(instance, note)| {
            let why = note.why.as_ref().map(|why| format!(" ({})", printable_line(why))).unwrap_or_default();
            format!("{}: {}{why}", printable(&instance.name), printable_line(&note.what))
        })
        .collect();
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
        (false, false) if out.json => {
            let hint = "segue stat --why";
            Err(Error::new(Kind::Unhealthy, sick.join("; "), hint).why("the instance reports it"))
        }
        (false, false) => {
            out.data(&(sick.join("\n") + "\n"));
            Err(Error::new(Kind::Unhealthy, format!("{} not well", things(sick.len())), "segue stat --why")
                .why("the instance reports it"))
        }
    }
}

fn things(n: usize) -> String {
    if n == 1 { "1 thing is".to_owned() } else { format!("{n} things are") }
}

/// Returns text from an instance on one line that is safe to print: control characters become `?`.
fn printable_line(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { '?' } else { c }).collect()
}
