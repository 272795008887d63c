//! `segue bench`: tables of measurements next to published results.

use segue_control::error::{Error, Kind};
use segue_control::units;
use segue_lab::bench::{self, Select, Settings};
use segue_lab::{LabError, interrupt};
use segue_report::document::{All, Failed};

use crate::args::Bench;
use crate::lab::failure_of;
use crate::out::Out;
use crate::progress::Shown;
use crate::{report, simulation, version};

/// Runs `segue bench`.
pub(crate) fn run(args: &Bench, out: &Out) -> Result<(), Error> {
    if let Some(words) = args.end.as_deref().and_then(|end| end.strip_prefix("target ")) {
        let wrong = || Error::new(Kind::BadValue, format!("no such case: `{words}`"), "segue bench napi");
        let value = simulation::answer(words).ok_or_else(wrong)?;
        out.value(&value.map_err(|error| Error::new(Kind::System, error, "segue bench napi"))?);
        return Ok(());
    }
    if let Some(words) = &args.end {
        let said = bench::end(words).map_err(|error| {
            Error::system("the load ended", &error, "segue bench --help").why("this is one end of a bench")
        })?;
        out.data(&(said + "\n"));
        return Ok(());
    }
    match args.name.as_deref() {
        Some("compare") => return report::compare(&args.files, out),
        Some("report") => return report::report(&args.files, &args.output, out),
        Some("all") => return all(args, out),
        Some(name) if !args.files.is_empty() => {
            return Err(Error::new(
                Kind::Usage,
                format!("`bench {name}` reads no file"),
                "segue bench compare A.json B.json",
            )
            .why("only compare and report do"));
        }
        _ => {}
    }
    let name = args.name.as_deref().ok_or_else(|| {
        Error::new(Kind::Missing, "`bench` needs the name of a bench", "segue bench lro")
            .why(format!("they are: {}", bench::NAMES.join(", ")))
    })?;
    let found = bench::named(name).map_err(of_bench)?;
    let settings = settings(args, &found).map_err(of_bench)?;
    if args.list {
        let (rows, time) = found.size(&settings).map_err(of_bench)?;
        if out.json {
            let value = serde_json::json!({
                "bench": found.name, "title": found.title, "rows": rows, "seconds": time.as_secs(), "words": found.words(),
            });
            out.value(&value);
        } else {
            out.data(&format!("{}: {}\n", found.name, found.title));
            out.data(&format!("{rows} rows, about {}\n", units::long_duration(time)));
            out.data(&format!("words of rows: {}\n", found.words().join(" ")));
        }
        return Ok(());
    }
    interrupt::catch().map_err(|error| {
        Error::system("cannot catch signals", &error, "segue doctor").why("the kernel refused a signal handler")
    })?;
    if found.has_hosts() {
        segue_lab::enter_user_namespace().map_err(of_bench)?;
    }
    let mut progress = Shown::new(&args.progress, out.quiet);
    let outcome = found.run(&settings, &mut progress);
    progress.clear();
    let table = outcome.map_err(of_bench)?;
    if out.json {
        out.data(&(table.to_json(out.pretty) + "\n"));
        return Ok(());
    }
    out.data(&found.text(&table));
    out.data(&format!("\n{}", table.caption()));
    Ok(())
}

/// Runs every bench, and writes the data and the page. A bench that cannot run here is named in both, and the others go
/// on; the command then fails.
fn all(args: &Bench, out: &Out) -> Result<(), Error> {
    report::check_output(&args.output)?;
    interrupt::catch().map_err(|error| {
        Error::system("cannot catch signals", &error, "segue doctor").why("the kernel refused a signal handler")
    })?;
    segue_lab::enter_user_namespace().map_err(of_bench)?;
    let (mut texts, mut failed) = (Vec::new(), Vec::new());
    for name in bench::NAMES {
        let found = bench::named(name).map_err(of_bench)?;
        let settings = settings(args, &found).map_err(of_bench)?;
        let mut progress = Shown::new(&args.progress, out.quiet);
        let outcome = found.run(&settings, &mut progress);
        progress.clear();
        match outcome.map_err(of_bench) {
            Ok(table) => texts.push(table.to_json(false)),
            Err(error) if error.kind == Kind::Interrupted => return Err(error),
            Err(error) => {
                failed.push(Failed { bench: found.name.to_owned(), reason: error.sentence() });
                // With -j the one document on stdout lists it.
                if !out.json {
                    out.error(&error);
                }
            }
        }
    }
    if texts.is_empty() {
        let reasons: Vec<String> = failed.iter().map(|one| format!("{}: {}", one.bench, one.reason)).collect();
        return Err(Error::new(Kind::System, "no bench could run here", "segue doctor").why(reasons.join("; ")));
    }
    let parts = texts.iter().map(|text| report::read("a bench", text)).collect::<Result<Vec<_>, _>>()?;
    let all = All { failed, ..All::joined(parts) };
    report::write(&all, &args.output, out)?;
    if all.failed.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = all.failed.iter().map(|failed| failed.bench.as_str()).collect();
    out.note(&format!("could not run: {}", names.join(", ")));
    Err(Error::new(Kind::Shown, "benches could not run", "segue doctor"))
}

fn settings(args: &Bench, of: &bench::Bench) -> Result<Settings, LabError> {
    let (runs, seconds) = if args.quick { (1, 1) } else { of.usual() };
    Ok(Settings {
        segue: std::env::current_exe().map_err(|error| LabError::System {
            what: "find the program segue".to_owned(),
            source: error,
            hint: "start it by its path".to_owned(),
        })?,
        beside: args.beside.clone(),
        runs: args.runs.unwrap_or(runs),
        seconds: args.seconds.unwrap_or(seconds),
        select: match (args.all, args.quick) {
            (true, _) => Select::All,
            (false, true) => Select::Quick,
            (false, false) => Select::Usual,
        },
        rows: args.rows.clone(),
        link: args.link.clone(),
        quota: args.quota,
        simd: Some(version::simd()),
    })
}

fn of_bench(error: LabError) -> Error {
    failure_of("segue bench", error)
}
