//! The measurement of the points of a bench in turn, and the table of their results.

use std::time::Instant;

use super::definition::Bench;
use super::loss_free;
use super::napi;
use super::point::{Point, Sample};
use super::settings::Settings;
use super::site::Site;
use crate::case::segue_version;
use crate::process::require;
use crate::{Cpu, LabError, Machine, Metric, Named, Progress, Row, SampleAt, Skipped, Step, Table, interrupt};

impl Bench {
    /// Measures the chosen points and makes the table. Nothing stays behind, also after an error.
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
                    _ => self.each(settings) * lane.point.loads,
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
            napi::prices(&site)?.into_iter().for_each(|(name, detail)| table.machine.more.push(&name, detail));
        }
        for lane in lanes {
            match &lane.skipped {
                Some(reason) => {
                    table.skipped.push(Skipped { name: lane.point.name(), reason: reason.clone() });
                }
                None => table.rows.push(lane.row()),
            }
        }
        if let Some(detail) = loss_free::detail(&table, &site) {
            table.machine.more.push("loss_free", detail);
        }
        Ok(table)
    }

    /// Returns the table as text.
    pub fn text(&self, table: &Table) -> String {
        let more = if self.has_hosts() { loss_free::notes(table) } else { napi::effects(table) };
        self.layout.text(table) + &more
    }

    fn machine(&self, settings: &Settings, site: &Site) -> Machine {
        let cpu = if self.pinned { Cpu::on_core(site.test_core, None).ok() } else { None };
        let mut machine = Machine::here(&cpu.unwrap_or_default());
        let more = &mut machine.more;
        if let Some(version) = segue_version(&site.segue) {
            more.push("segue", version);
        }
        if let Some(version) = site.beside.as_deref().and_then(segue_version) {
            more.push("beside", version);
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
        for (name, detail) in &self.details {
            more.push(name, detail.as_str());
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

/// A point of the bench with its measurements so far.
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
