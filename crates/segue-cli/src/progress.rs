//! The progress of the lab and the benches, on stderr.

use std::io::{self, IsTerminal};
use std::time::Duration;

use segue_lab::{Measurement, Progress, SampleAt, Step};
use serde_json::{Value, json};

use crate::out::to_stderr;

/// Forms in which progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// One line on a terminal, overwritten by the next step.
    Line,
    /// One line for each completed step.
    Lines,
    /// One JSON object for each step.
    Json,
    Never,
}

/// The progress display of a lab or bench on stderr.
pub(crate) struct Shown {
    how: How,
    /// Length in columns of the progress line on the terminal; 0 for none.
    standing: usize,
}

impl Shown {
    /// Returns the display for `--progress`: `auto`, `never` or `json`.
    pub(crate) fn new(how: &str, quiet: bool) -> Shown {
        let how = match how {
            "json" => How::Json,
            "never" => How::Never,
            _ if quiet => How::Never,
            _ if io::stderr().is_terminal() => How::Line,
            _ => How::Lines,
        };
        Shown { how, standing: 0 }
    }

    /// Clears the progress line from the terminal.
    pub(crate) fn clear(&mut self) {
        if self.standing > 0 {
            to_stderr(&format!("\r{}\r", " ".repeat(self.standing)));
            self.standing = 0;
        }
    }
}

impl Progress for Shown {
    fn step(&mut self, step: &Step) {
        match (self.how, step) {
            (How::Never, _) => {}
            (How::Json, _) => to_stderr(&format!("{}\n", object(step))),
            (How::Lines, Step::Measuring(_) | Step::Sampling(_)) => {}
            (How::Lines, _) | (How::Line, Step::Skipped { .. }) => {
                self.clear();
                to_stderr(&format!("{step}\n"));
            }
            (How::Line, _) => {
                let text = step.to_string();
                let rest = self.standing.saturating_sub(text.len());
                to_stderr(&format!("\r{text}{}", " ".repeat(rest)));
                self.standing = text.len();
            }
        }
    }
}

fn object(step: &Step) -> Value {
    let measurement = |name: &str, m: &Measurement| {
        json!({
            "step": name, "case": m.case, "family": m.family.number(), "proto": m.proto.as_str(), "run": m.run,
            "runs": m.runs, "done": m.done, "total": m.total, "left_s": seconds(m.left),
        })
    };
    let sample = |name: &str, at: &SampleAt| {
        json!({
            "step": name, "bench": at.bench, "case": at.case, "run": at.run, "runs": at.runs, "done": at.done,
            "total": at.total, "left_s": seconds(at.left),
        })
    };
    match step {
        Step::Preparing(what) => json!({ "step": "preparing", "what": what }),
        Step::Skipped { case, reason } => json!({ "step": "skipped", "case": case, "reason": reason }),
        Step::Measuring(m) => measurement("measuring", m),
        Step::Measured { measurement: m, gbps } => {
            let mut value = measurement("measured", m);
            value["gbps"] = json!(gbps);
            value
        }
        Step::Sampling(at) => sample("measuring", at),
        Step::Sampled { at, gbps } => {
            let mut value = sample("measured", at);
            value["gbps"] = json!(gbps);
            value
        }
        other => json!({ "step": "other", "what": other.to_string() }),
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
