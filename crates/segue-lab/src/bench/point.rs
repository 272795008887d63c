//! One row of a bench: its labels, and how it is measured.

use std::fmt;

use serde_json::Value;

use super::site::Site;
use crate::{LabError, Named};

/// One row of a bench.
pub(super) struct Point {
    pub(super) labels: Named<Value>,
    /// What was published for it, by the metric's name.
    pub(super) seed: Named<Value>,
    /// The widest selection that it is not part of the next narrower one of.
    pub(super) part: Part,
    pub(super) sample: Box<Measure>,
}

pub(super) type Measure = dyn Fn(&Site) -> Result<Sample, LabError>;

/// To which selections a point belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// To every one.
    Quick,
    /// To all but the quickest.
    Usual,
    /// Only to the whole.
    Rest,
}

/// What came of one measurement.
#[derive(Debug)]
pub(super) enum Sample {
    /// Metrics by name.
    Values(Named<f64>),
    /// It cannot be had here, and why.
    Skipped(String),
}

impl Point {
    /// Its labels as words.
    pub(super) fn words(&self) -> impl Iterator<Item = String> {
        self.labels.0.iter().map(|(name, value)| match value {
            Value::String(text) => text.clone(),
            other => format!("{name}={other}"),
        })
    }

    pub(super) fn name(&self) -> String {
        self.words().collect::<Vec<_>>().join(" ")
    }

    /// Whether every word of `words` is one of its labels.
    pub(super) fn has(&self, words: &str) -> bool {
        words.split_whitespace().all(|word| self.words().any(|own| own == word))
    }
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Point").field("labels", &self.name()).finish_non_exhaustive()
    }
}
