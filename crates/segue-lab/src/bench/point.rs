//! One row of a bench: its labels and its measurement.

use std::fmt;

use serde_json::Value;

use super::site::Site;
use crate::{LabError, Named};

/// One row of a bench.
pub(super) struct Point {
    pub(super) labels: Named<Value>,
    /// Published figures, by the names of the metrics.
    pub(super) seed: Named<Value>,
    /// The narrowest selection that the point belongs to.
    pub(super) part: Part,
    /// Whether the row is measured only when `--beside` names another program.
    pub(super) beside: bool,
    /// About how many loads of the chosen length one measurement takes.
    pub(super) loads: u32,
    pub(super) sample: Box<Measure>,
}

pub(super) type Measure = dyn Fn(&Site) -> Result<Sample, LabError>;

/// The narrowest selection that a point belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The point belongs to all selections.
    Quick,
    /// The point belongs to all selections but the quick one.
    Usual,
    /// The point is measured only if all points are selected.
    Full,
}

/// The result of one measurement.
#[derive(Debug)]
pub(super) enum Sample {
    /// The measured metrics by name.
    Values(Named<f64>),
    /// The measurement is not possible here, with the reason.
    Skipped(String),
}

impl Point {
    /// Returns the labels as text.
    pub(super) fn words(&self) -> impl Iterator<Item = String> {
        self.labels.0.iter().map(|(name, value)| match value {
            Value::String(text) => text.clone(),
            other => format!("{name}={other}"),
        })
    }

    pub(super) fn name(&self) -> String {
        self.words().collect::<Vec<_>>().join(" ")
    }

    /// Returns whether every word of `words` is one of the labels.
    pub(super) fn has(&self, words: &str) -> bool {
        words.split_whitespace().all(|word| self.words().any(|own| own == word))
    }
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Point").field("labels", &self.name()).finish_non_exhaustive()
    }
}
