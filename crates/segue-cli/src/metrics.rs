//! `segue metrics`: the counters of running instances for Prometheus.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use segue_control::error::{Error, Kind};
use segue_control::units;
use segue_host::signals::Signals;
use segue_host::sys;
use segue_metrics::family::FAMILIES;
use segue_metrics::listen::Listener;
use segue_metrics::serve::{Server, TextFile};
use segue_metrics::text::{self, Format, SCHEMA};
use segue_metrics::{Scrape, confine, textfile};
use segue_service::report::Report;
use segue_service::{daemon, reasons};
use serde_json::json;

use crate::args::Metrics;
use crate::out::Out;
use crate::stat::plain_table;
use crate::version::VERSION;

/// Runs `segue metrics`.
pub(crate) fn run(args: &Metrics, out: &Out) -> Result<(), Error> {
    if args.list {
        list(out);
        return Ok(());
    }
    // Kept open until the end: it is the line to the supervisor.
    let _watched = daemon::follow(args.supervised, false)?;
    if args.listen.is_empty() && (args.textfile.is_none() || args.once) {
        return once(args, out);
    }
    serve(args, out)
}

/// Lists the families for `--list`.
fn list(out: &Out) {
    if out.json {
        let families = FAMILIES.iter().map(|family| {
            let (labels, kind) = (family.labels(), family.kind.name());
            json!({ "name": family.name, "type": kind, "labels": labels, "stat": family.json, "help": family.help })
        });
        return out.value(&json!({ "schema": SCHEMA, "families": families.collect::<Vec<_>>() }));
    }
    let rows = FAMILIES
        .iter()
        .map(|family| vec![family.name.to_owned(), family.kind.name().to_owned(), family.labels().join(" ")]);
    let heads = ["NAME", "TYPE", "LABELS"].map(str::to_owned).to_vec();
    out.data(&plain_table(heads, rows, &[false; 3]));
}

/// Prints the metrics, or writes the file, once.
fn once(args: &Metrics, out: &Out) -> Result<(), Error> {
    sys::exit_130_on_interrupt();
    let scrape = Scrape::now(VERSION);
    scrape.failed.iter().for_each(|error| out.warn(&format!("note: {}", error.message)));
    let samples = scrape.samples(reasons::sentence);
    match &args.textfile {
        Some(path) => {
            textfile::write(path, &text::render(&samples, Format::Prometheus)).map_err(|error| unwritten(path, &error))
        }
        None if out.json => {
            out.value(&text::document(&samples));
            Ok(())
        }
        None => {
            let format = if args.openmetrics { Format::OpenMetrics } else { Format::Prometheus };
            out.data(&text::render(&samples, format));
            Ok(())
        }
    }
}

fn serve(args: &Metrics, out: &Out) -> Result<(), Error> {
    let report = out.unattended();
    let mut signals = Signals::new().map_err(|error| {
        Error::system("cannot read signals", &error, "segue doctor").why("the kernel has no signalfd")
    })?;
    let listeners: Vec<Listener> = args.listen.iter().map(Listener::open).collect::<Result<_, _>>()?;
    if let Some(path) = &args.textfile {
        // A file that cannot be written is an error at the start, and a note later.
        let scrape = Scrape::now(VERSION);
        textfile::write(path, &text::render(&scrape.samples(reasons::sentence), Format::Prometheus))
            .map_err(|error| unwritten(path, &error))?;
    }
    let lacks = confine(&args.listen, args.textfile.as_deref(), args.weak_sandbox)?;
    announce(args, &listeners, &lacks, &*report);
    let noted = Arc::clone(&report);
    let path = args.textfile.clone().unwrap_or_default();
    let server = Server {
        listeners,
        file: args.textfile.clone().map(|path| TextFile { path, every: Duration::from_secs(u64::from(args.every)) }),
        version: VERSION.to_owned(),
        sentence: reasons::sentence,
        report: Box::new(move |failed| match failed {
            Some(error) => noted.error(&unwritten(&path, error)),
            None => noted.note(&format!("{} is written again", path.display())),
        }),
    };
    server.run(&mut signals).map_err(|error| {
        Error::system("cannot serve metrics any more", &error, "start it again").why("waiting for clients failed")
    })
}

/// Reports the addresses and files of the metrics, and what the sandbox lacks.
fn announce(args: &Metrics, listeners: &[Listener], lacks: &[String], out: &dyn Report) {
    let mut notes = lacks.to_vec();
    for listener in listeners.iter().filter(|listener| listener.is_public()) {
        let address = listener.address().map(|address| address.to_string()).unwrap_or_default();
        notes.push(format!("any host that reaches {address} can read them: there is no password and no encryption"));
    }
    // The port is known only now where port 0 was asked for.
    let places: Vec<String> = args
        .listen
        .iter()
        .zip(listeners)
        .map(|(place, listener)| match listener.address() {
            Some(address) => format!("http://{address}/metrics"),
            None => place.to_string(),
        })
        .chain(args.textfile.iter().map(|path| path.display().to_string()))
        .collect();
    if out.is_json() {
        let t = units::rfc3339(SystemTime::now());
        let event =
            json!({ "schema": SCHEMA, "event": "up", "t": t, "name": "metrics", "places": places, "notes": notes });
        return out.value(&event);
    }
    notes.iter().for_each(|note| out.note(&format!("note: {note}")));
    out.note(&format!("metrics: {}", places.join(", ")));
}

fn unwritten(path: &Path, error: &io::Error) -> Error {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = Error::system(format!("cannot write {}", path.display()), error, format!("ls -ld {}", folder.display()));
    match error.kind() {
        io::ErrorKind::NotFound => made.kind(Kind::NotFound).why("the folder does not exist"),
        io::ErrorKind::PermissionDenied => {
            made.kind(Kind::NoPermission).why("this user may not make a file in that folder")
        }
        _ => made.why("the file is made beside the old one, which it then replaces"),
    }
}
