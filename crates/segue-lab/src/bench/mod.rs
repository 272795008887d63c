//! Benches: tables of cases that are measured in turn, beside what others published.
//!
//! A bench is a list of `Point`s, each with labels that tell it from the others and a function that builds everything,
//! measures once, and takes everything away. [`Bench::run`] measures every point once, then every point once more, so that a
//! change of the machine's mood meets all alike, and makes a [`Table`] of medians with their spread.
//!
//! The parts that points are built of are in `bed`: hosts with a processor of their own, cards, wires, gateways; `pair` puts them together. A new bench
//! is a module with a list of points and a [`Layout`], and a line in [`named`].

mod ack;
mod bed;
mod datagrams;
mod ends;
mod gso;
mod layout;
mod lro;
mod napi;
mod pair;
mod profile;
mod rco;
mod rr;
mod sending;
mod span;
mod tunnel;

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::case::segue_version;
use crate::process::require;
use crate::{Cpu, LabError, Machine, Metric, Named, Progress, Row, SampleAt, Skipped, Step, Table, cores, interrupt};

pub use self::ends::end;
pub use self::layout::Layout;

/// Names of all benches.
pub const NAMES: &[&str] = &["lro", "ack", "gso", "rco", "tunnel", "napi"];

/// How to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The program `segue`.
    pub segue: PathBuf,
    /// How often each point is measured.
    pub runs: u32,
    /// Seconds of one measurement.
    pub seconds: u32,
    /// Which points, where `rows` does not say.
    pub select: Select,
    /// Words: a point is measured when for one of these its labels have every word of it. Empty: what `select` says.
    pub rows: Vec<String>,
    /// Only rows of this link, by the word that is their label.
    pub link: Option<String>,
    /// Per cent of a processor that the host under test may use; all of it when `None`.
    pub quota: Option<u32>,
    /// The caller's word on the SIMD path that segue uses, for the table's machine part.
    pub simd: Option<String>,
}

/// Which points of a bench are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// The table of the documentation.
    Usual,
    /// Every one.
    All,
    /// A few that show that the bench works.
    Quick,
}

/// A bench: what it measures and how its table looks.
#[derive(Debug)]
pub struct Bench {
    /// Its name on the command line and in JSON.
    pub name: &'static str,
    /// What it shows, for people, in one line.
    pub title: &'static str,
    /// What is measured.
    points: Vec<Point>,
    /// The link whose rows are measured where nothing is said about rows.
    link: Option<&'static str>,
    /// Whether each host has a processor of its own.
    pinned: bool,
    /// How the table is written for people.
    pub layout: Layout,
    /// What has to be known about the set-up, for the table's machine part.
    facts: Vec<(&'static str, String)>,
}

/// One row of a bench.
struct Point {
    labels: Named<Value>,
    /// What was published for it, by the metric's name.
    seed: Named<Value>,
    /// The widest selection that it is not part of the next narrower one of.
    part: Part,
    sample: Box<Measure>,
}

type Measure = dyn Fn(&Site) -> Result<Sample, LabError>;

/// To which selections a point belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// To every one.
    Quick,
    /// To all but the quickest.
    Usual,
    /// Only to the whole.
    Rest,
}

/// What came of one measurement.
#[derive(Debug)]
enum Sample {
    /// Metrics by name.
    Values(Named<f64>),
    /// It cannot be had here, and why.
    Skipped(String),
}

/// Where and how points are measured.
#[derive(Debug)]
struct Site {
    segue: PathBuf,
    /// The round, from 1.
    run: u32,
    seconds: u32,
    quota: Option<u32>,
    /// The processor of the host that makes the load.
    load_core: usize,
    /// That of the host under test.
    test_core: usize,
}

/// The bench of a name in [`NAMES`].
pub fn named(name: &str) -> Result<Bench, LabError> {
    match name {
        "lro" => Ok(lro::bench()),
        "ack" => Ok(ack::bench()),
        "rco" => Ok(rco::bench()),
        "tunnel" => Ok(tunnel::bench()),
        "napi" => Ok(napi::bench()),
        "gso" => Ok(gso::bench()),
        _ => Err(LabError::Usage(format!("`{name}` is not one of {}", NAMES.join(", ")))),
    }
}

impl Bench {
    /// The points that the settings choose, in the order of the table.
    fn chosen(&self, settings: &Settings) -> Result<Vec<&Point>, LabError> {
        let widest = match settings.select {
            Select::Quick => Part::Quick,
            Select::Usual => Part::Usual,
            Select::All => Part::Rest,
        };
        let own = self.link.filter(|_| settings.rows.is_empty() && settings.select != Select::All);
        let link = settings.link.as_deref().or(own);
        let wanted = |point: &&Point| {
            let chosen = match settings.rows.is_empty() {
                true => point.part <= widest,
                false => settings.rows.iter().any(|words| point.has(words)),
            };
            chosen && link.is_none_or(|link| point.labels.find("link").is_some_and(|own| own == link))
        };
        let chosen: Vec<&Point> = self.points.iter().filter(wanted).collect();
        if chosen.is_empty() {
            let wanted: Vec<&str> = settings.rows.iter().chain(&settings.link).map(String::as_str).collect();
            let (wanted, known) = (wanted.join("`, `"), self.words().join(" "));
            let text = format!("no row of bench {} has `{wanted}`; the words are: {known}", self.name);
            return Err(LabError::Usage(text));
        }
        Ok(chosen)
    }

    /// Whether rows are measured with hosts in namespaces, and not in a model.
    pub fn has_hosts(&self) -> bool {
        self.name != "napi"
    }

    /// Runs and seconds where nobody says how many.
    pub fn usual(&self) -> (u32, u32) {
        if self.has_hosts() { (5, 2) } else { (2, 1) }
    }

    /// Every word that a row can be chosen by.
    pub fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for word in self.points.iter().flat_map(Point::words) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words
    }

    /// How many rows there are to choose from, and how long measuring the chosen ones will take about.
    pub fn size(&self, settings: &Settings) -> Result<(usize, Duration), LabError> {
        let rows = self.chosen(settings)?.len();
        Ok((rows, self.each(settings) * settings.runs * u32::try_from(rows).unwrap_or(u32::MAX)))
    }

    /// What one measurement takes, with building and taking away.
    fn each(&self, settings: &Settings) -> Duration {
        let seconds = u64::from(settings.seconds) * 1000;
        // The model is faster than what it stands for.
        Duration::from_millis(if self.has_hosts() { seconds + 1000 } else { seconds })
    }

    /// Measures the chosen points and makes the table. Nothing stays behind, whatever comes out.
    pub fn run(&self, settings: &Settings, progress: &mut dyn Progress) -> Result<Table, LabError> {
        let limits = [("seconds", settings.seconds, 3600), ("runs", settings.runs, 1000)];
        if let Some((name, value, most)) = limits.iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            return Err(LabError::Usage(format!("--{name} {value} is not within 1..={most}")));
        }
        if self.has_hosts() {
            require(&["ip", "ethtool", "iperf3", "tc"])?;
        }
        let chosen = self.chosen(settings)?;
        let mut site = Site::new(settings)?;
        let mut lanes: Vec<Lane<'_>> = chosen.into_iter().map(Lane::new).collect();
        let (runs, begin) = (settings.runs, Instant::now());
        let (mut done, mut total) = (0, lanes.len() * runs as usize);
        for run in 1..=runs {
            site.run = run;
            for lane in lanes.iter_mut().filter(|lane| lane.skipped.is_none()) {
                interrupt::check()?;
                let each = match u32::try_from(done) {
                    Ok(done @ 1..) => begin.elapsed() / done,
                    _ => self.each(settings),
                };
                let left = |done: usize| each * u32::try_from(total.saturating_sub(done)).unwrap_or(u32::MAX);
                let case = lane.point.name();
                let at = SampleAt { bench: self.name, case, run, runs, done, total, left: left(done) };
                progress.step(&Step::Sampling(at.clone()));
                match (lane.point.sample)(&site).map_err(|error| of_point(error, &at.case))? {
                    Sample::Values(values) => {
                        done += 1;
                        let gbps = values.find("gbps").copied();
                        lane.samples.push(values);
                        progress.step(&Step::Sampled { at: SampleAt { done, left: left(done), ..at }, gbps });
                    }
                    Sample::Skipped(reason) => {
                        total -= (runs - run + 1) as usize;
                        progress.step(&Step::Skipped { case: at.case, reason: reason.clone() });
                        lane.skipped = Some(reason);
                    }
                }
            }
        }
        let mut table = Table::new(self.name, self.machine(settings, &site));
        if !self.has_hosts() {
            // Nothing of it depends on this machine.
            table.machine.cpu_method = "prices of work in a model".into();
            napi::prices(&site)?.into_iter().for_each(|(name, fact)| table.machine.more.push(&name, fact));
        }
        for lane in lanes {
            match &lane.skipped {
                Some(reason) => {
                    table.skipped.push(Skipped { name: lane.point.name(), reason: reason.clone() });
                }
                None => table.rows.push(lane.row()),
            }
        }
        Ok(table)
    }

    /// The table for people.
    pub fn text(&self, table: &Table) -> String {
        let effects = if self.has_hosts() { String::new() } else { napi::effects(table) };
        self.layout.text(table) + &effects
    }

    fn machine(&self, settings: &Settings, site: &Site) -> Machine {
        let cpu = if self.pinned { Cpu::on_core(site.test_core, None).ok() } else { None };
        let mut machine = Machine::here(&cpu.unwrap_or_default());
        let more = &mut machine.more;
        if let Some(version) = segue_version(&site.segue) {
            more.push("segue", version);
        }
        if let Some(simd) = &settings.simd {
            more.push("simd", simd.as_str());
        }
        if self.pinned {
            more.push("load_core", site.load_core);
            more.push("test_core", site.test_core);
        }
        if let Some(quota) = settings.quota {
            more.push("quota_percent", quota);
        }
        more.push("seconds", settings.seconds);
        more.push("runs", settings.runs);
        for (name, fact) in &self.facts {
            more.push(name, fact.as_str());
        }
        machine
    }
}

fn of_point(error: LabError, case: &str) -> LabError {
    match error {
        LabError::Load(text) => LabError::Load(format!("{text} ({case})")),
        other => other,
    }
}

/// A point with what was measured of it.
struct Lane<'a> {
    point: &'a Point,
    samples: Vec<Named<f64>>,
    skipped: Option<String>,
}

impl<'a> Lane<'a> {
    fn new(point: &'a Point) -> Lane<'a> {
        Lane { point, samples: Vec::new(), skipped: None }
    }

    fn row(&self) -> Row {
        let mut metrics = Named::default();
        let names = self.samples.first().map(|values| values.0.iter().map(|(name, _)| name)).into_iter().flatten();
        for name in names {
            let samples: Vec<f64> = self.samples.iter().filter_map(|values| values.find(name).copied()).collect();
            if let Some(metric) = Metric::new(&samples) {
                metrics.push(name, metric);
            }
        }
        Row { case: self.point.labels.clone(), metrics, seed: self.point.seed.clone() }
    }
}

impl Point {
    /// Its labels as words.
    fn words(&self) -> impl Iterator<Item = String> {
        self.labels.0.iter().map(|(name, value)| match value {
            Value::String(text) => text.clone(),
            other => format!("{name}={other}"),
        })
    }

    fn name(&self) -> String {
        self.words().collect::<Vec<_>>().join(" ")
    }

    /// Whether every word of `words` is one of its labels.
    fn has(&self, words: &str) -> bool {
        words.split_whitespace().all(|word| self.words().any(|own| own == word))
    }
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Point").field("labels", &self.name()).finish_non_exhaustive()
    }
}

impl Site {
    fn new(settings: &Settings) -> Result<Site, LabError> {
        let cores = cores();
        let (Some(&load_core), Some(&test_core)) = (cores.first(), cores.last()) else {
            return Err(LabError::Usage("this process may run on no processor".into()));
        };
        if load_core == test_core {
            return Err(LabError::Usage(
                "a bench needs two processors: one for the load, one for the host under test".into(),
            ));
        }
        let segue = bed::program(&settings.segue)?;
        let Settings { seconds, quota, .. } = *settings;
        Ok(Site { segue, run: 1, seconds, quota, load_core, test_core })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(rows: &[&str], select: Select) -> Settings {
        let rows = rows.iter().map(ToString::to_string).collect();
        Settings { segue: "segue".into(), runs: 5, seconds: 2, select, rows, link: None, quota: None, simd: None }
    }

    #[test]
    fn every_bench_has_rows_for_every_selection_and_no_row_twice() {
        for name in NAMES {
            let bench = named(name).unwrap();
            let count = |select| bench.chosen(&settings(&[], select)).unwrap().len();
            let (quick, usual, all) = (count(Select::Quick), count(Select::Usual), count(Select::All));
            assert!(0 < quick && quick < usual && usual < all, "{name}: {quick} {usual} {all}");
            assert_eq!(all, bench.points.len());
            let mut names: Vec<String> = bench.points.iter().map(Point::name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all, "{name}");
        }
        assert!(matches!(named("lor"), Err(LabError::Usage(_))));
    }

    #[test]
    fn rows_are_chosen_by_all_words_of_one_filter() {
        let bench = named("lro").unwrap();
        let chosen = |rows: &[&str]| bench.chosen(&settings(rows, Select::Usual)).map(|points| points.len());
        let (one, other) = (chosen(&["4k lro 1500/1500"]).unwrap(), chosen(&["frame no-lro"]).unwrap());
        assert!(one > 0 && other > 0);
        assert_eq!(chosen(&["4k lro 1500/1500", "frame no-lro"]).unwrap(), one + other);
        let error = chosen(&["4kb"]).unwrap_err().to_string();
        assert!(error.contains("`4kb`") && error.contains("4k "), "{error}");
    }
}
