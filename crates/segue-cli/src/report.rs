//! `segue bench compare` and `segue bench report`: results of benches that are in files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use segue_control::error::{Error, Kind};
use segue_control::units;
use segue_host::file;
use segue_report::compare::{Comparison, Line, Verdict};
use segue_report::document::{All, parse};
use segue_report::html;
use serde_json::json;

use crate::out::Out;
use crate::stat::plain_table;
use crate::version::VERSION;

/// Compares two files; an error where a case became worse.
pub(crate) fn compare(files: &[PathBuf], out: &Out) -> Result<(), Error> {
    let [old, new] = files else {
        return Err(Error::new(
            Kind::Missing,
            "`bench compare` needs two files",
            "segue bench compare old.json new.json",
        )
        .why("segue bench NAME -j prints what is in them"));
    };
    let made = segue_report::compare::compare(&load(old)?.benches, &load(new)?.benches);
    if out.json {
        let lines = made.lines.iter().map(|line| {
            json!({
                "bench": line.bench, "case": line.case, "metric": line.metric, "old": line.old, "new": line.new,
                "change_percent": line.change_percent, "spread_percent": line.spread_percent,
                "verdict": line.verdict.text().to_lowercase(),
            })
        });
        let lines: Vec<_> = lines.collect();
        out.value(&json!({ "schema": "segue.compare/1", "lines": lines, "alone": made.alone }));
    } else {
        out.data(&text(&made));
    }
    let worse = made.count(Verdict::Worse);
    if worse > 0 {
        // The table says it all.
        return Err(Error::new(Kind::Shown, format!("{worse} worse"), ""));
    }
    if made.lines.is_empty() {
        return Err(Error::new(
            Kind::Conflict,
            "the two files have no case in common",
            "segue bench compare A.json B.json",
        )
        .why("they are of other benches, or of other rows"));
    }
    Ok(())
}

fn text(made: &Comparison) -> String {
    let heads = ["CASE", "METRIC", "OLD", "NEW", "CHANGE", "VERDICT"].map(str::to_owned).to_vec();
    let row = |line: &Line| {
        vec![
            format!("{} {}", line.bench, line.case),
            line.metric.clone(),
            format!("{:.3}", line.old),
            format!("{:.3}", line.new),
            format!("{:+.1} % +-{:.1}", line.change_percent, line.spread_percent),
            line.verdict.text().to_owned(),
        ]
    };
    let mut text = plain_table(heads, made.lines.iter().map(row), &[false, false, true, true, true, false]);
    made.alone.iter().for_each(|alone| text.push_str(&format!("{alone}\n")));
    let count = |verdict| made.count(verdict);
    text.push_str(&format!(
        "{} figures: {} no change, {} better, {} worse beyond their spread, {} of one sample without a verdict\n",
        made.lines.len(),
        count(Verdict::Same),
        count(Verdict::Better),
        count(Verdict::Worse),
        count(Verdict::OneSample)
    ));
    text
}

/// Makes one HTML page from the results in files.
pub(crate) fn report(files: &[PathBuf], output: &Path, out: &Out) -> Result<(), Error> {
    if files.is_empty() {
        return Err(Error::new(Kind::Missing, "`bench report` needs a file", "segue bench report lro.json gso.json")
            .why("segue bench NAME -j prints what is in it"));
    }
    check_output(output)?;
    let parts = files.iter().map(|file| load(file)).collect::<Result<Vec<_>, _>>()?;
    write_page(&All::joined(parts), output)?;
    out.note(&format!("report: {}", output.display()));
    Ok(())
}

/// Checks before any measurement that the page's file name has a valid extension.
pub(crate) fn check_output(output: &Path) -> Result<(), Error> {
    if output.extension().is_some_and(|end| end == "html") {
        return Ok(());
    }
    Err(Error::new(Kind::BadValue, format!("{} is no name of a page", output.display()), "--output segue-report.html")
        .why("it ends in .html; the data is put beside it, in .json"))
}

/// Writes the HTML page and the data file.
pub(crate) fn write(all: &All, output: &Path, out: &Out) -> Result<(), Error> {
    write_page(all, output)?;
    let data = output.with_extension("json");
    let all = json!(all);
    put(&data, &format!("{all}\n"))?;
    if out.json {
        out.value(&all);
    }
    out.note(&format!("report: {}   data: {}", output.display(), data.display()));
    Ok(())
}

fn write_page(all: &All, output: &Path) -> Result<(), Error> {
    let made = format!("{}, segue {VERSION}", units::rfc3339(SystemTime::now()));
    put(output, &html::page(all, &made))
}

/// Replaces a file in one step.
fn put(path: &Path, text: &str) -> Result<(), Error> {
    file::replace(path, text.as_bytes(), None).map_err(|error| {
        Error::system(format!("cannot write {}", path.display()), &error, "segue bench report --output FILE.html")
            .why("the folder must be one where this user may make files")
    })
}

fn load(path: &Path) -> Result<All, Error> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| {
        Error::system(format!("cannot read {name}"), &error, format!("ls -l {name}"))
            .why("it holds the results of a bench")
    })?;
    read(&name, &text)
}

/// Parses the results of a bench; `name` names their source.
pub(crate) fn read(name: &str, text: &str) -> Result<All, Error> {
    parse(text).map_err(|why| {
        Error::new(Kind::Damaged, format!("{name} has no results of a bench"), "segue bench lro -j > lro.json").why(why)
    })
}
