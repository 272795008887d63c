//! The documents of `segue bench -j`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The schema id of one bench.
pub const SCHEMA: &str = "segue.bench/1";
/// Schema id of a file with several benches.
pub const ALL: &str = "segue.benches/1";

/// Results of one bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// The schema id, always `segue.bench/1`.
    pub schema: String,
    /// Name of the bench.
    pub bench: String,
    /// The machine, and how the figures were measured.
    pub machine: BTreeMap<String, Value>,
    /// One row for each case.
    pub rows: Vec<Row>,
    /// Cases that could not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Value>,
}

/// One case with its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Labels of the case with their values.
    pub case: BTreeMap<String, Value>,
    /// Results by name; the name carries the unit.
    pub metrics: BTreeMap<String, Metric>,
    /// Published figures under the names of the metrics: a number, or two for a range.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seed: BTreeMap<String, Value>,
}

/// The samples of one result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Smallest sample.
    pub min: f64,
    /// Median of the samples.
    pub median: f64,
    /// Largest sample.
    pub max: f64,
    /// All samples, in the order in which they were taken.
    #[serde(default)]
    pub samples: Vec<f64>,
}

/// A bench that could not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Name of the bench.
    pub bench: String,
    /// Reason why the bench did not run.
    pub reason: String,
}

/// Results of several benches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct All {
    /// The schema id, always `segue.benches/1`.
    pub schema: String,
    /// Results by bench, in order.
    pub benches: Vec<Bench>,
    /// Benches that could not run; missing when all did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Failed>,
}

impl All {
    /// Combines benches, and those that could not run, into one document.
    pub fn new(benches: Vec<Bench>, failed: Vec<Failed>) -> All {
        All { schema: ALL.to_owned(), benches, failed }
    }

    /// Combines several documents into one.
    pub fn joined(parts: impl IntoIterator<Item = All>) -> All {
        let mut all = All::new(Vec::new(), Vec::new());
        for part in parts {
            all.benches.extend(part.benches);
            all.failed.extend(part.failed);
        }
        all
    }
}

/// Reads the benches of a file: one, or several. The error says what is wrong, with line and column.
pub fn parse(text: &str) -> Result<All, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let schema = value["schema"].as_str().unwrap_or_default().to_owned();
    match schema.as_str() {
        SCHEMA => match serde_json::from_value(value) {
            Ok(bench) => Ok(All::new(vec![bench], Vec::new())),
            Err(error) => Err(error.to_string()),
        },
        ALL => serde_json::from_value(value).map_err(|error| error.to_string()),
        "" => Err("it has no key `schema`".to_owned()),
        other => Err(format!("its schema is {other}, expected {SCHEMA} or {ALL}")),
    }
}

impl Row {
    /// Returns the values of the case's labels, as one line.
    pub fn name(&self) -> String {
        let words: Vec<String> = self.case.values().map(shown).collect();
        words.join(" ")
    }
}

/// Formats a value as text: a string without its quotes.
pub(crate) fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Metric {
    /// Returns whether the metric has several samples, and thus a spread.
    pub fn has_spread(&self) -> bool {
        self.samples.len() > 1
    }
}

/// Preferred direction of a metric: more, less, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More is better for the metric.
    More,
    /// Less is better for the metric.
    Less,
    /// The metric only describes the load.
    Neither,
}

/// Returns whether more or less is better for a metric, by the unit in its name.
pub fn better(metric: &str) -> Better {
    match metric {
        "gbps" | "mpps" | "kpps" => Better::More,
        _ if metric.ends_with("_per_s") || metric.ends_with("_gbps") => Better::More,
        _ if metric.ends_with("cpu_s_per_gb") || metric.ends_with("_us") || metric.ends_with("_ns") => Better::Less,
        _ => Better::Neither,
    }
}
