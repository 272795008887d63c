//! Progress of a lab, step by step.

use std::fmt;
use std::time::Duration;

use crate::{Family, Proto};

/// A receiver of progress reports. Implemented by `()`, which ignores them, and by every `FnMut(&Step)`.
pub trait Progress {
    /// Receives a step that has just happened.
    fn step(&mut self, step: &Step);
}

impl Progress for () {
    fn step(&mut self, _: &Step) {}
}

impl<F: FnMut(&Step)> Progress for F {
    fn step(&mut self, step: &Step) {
        self(step);
    }
}

/// One step of a run, as reported to [`Progress`]. `Display` gives one line without a newline, at most 80 columns for
/// the names that the crate itself uses.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// A part of the run, named in the text, is being set up.
    Preparing(String),
    /// A case is skipped because it cannot run here.
    Skipped {
        /// Name of the case.
        case: String,
        /// Reason why the case cannot run.
        reason: String,
    },
    /// A measurement that begins.
    Measuring(Measurement),
    /// A measurement that has ended.
    Measured {
        /// The measurement that has ended.
        measurement: Measurement,
        /// Rate of the received payload, Gbit/s.
        gbps: f64,
    },
    /// A measurement of a bench begins.
    Sampling(SampleAt),
    /// A measurement of a bench is done.
    Sampled {
        /// The measurement and its position in the run.
        at: SampleAt,
        /// Throughput of received payload in Gbit/s, if measured.
        gbps: Option<f64>,
    },
}

/// One measurement of a bench and its position in the run.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleAt {
    /// Name of the bench.
    pub bench: &'static str,
    /// Labels of the row.
    pub case: String,
    /// Number of the round, from 1.
    pub run: u32,
    /// Number of rounds.
    pub runs: u32,
    /// Number of finished measurements of all rows, including this one once it is [`Step::Sampled`].
    pub done: usize,
    /// Total number of measurements.
    pub total: usize,
    /// Estimated time until the end of the run.
    pub left: Duration,
}

/// One measurement and its position in the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// Name of the case.
    pub case: String,
    /// Address family of the load.
    pub family: Family,
    /// Transport protocol of the load.
    pub proto: Proto,
    /// Number of the round, from 1.
    pub run: u32,
    /// Number of rounds.
    pub runs: u32,
    /// Number of finished measurements of all cases, including this one once it is [`Step::Measured`].
    pub done: usize,
    /// Total number of measurements.
    pub total: usize,
    /// Estimated time until the end of the run.
    pub left: Duration,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measurement { case, family, proto, run, runs, .. } = self;
        write!(f, "{proto}{family} {case:<12} {run}/{runs} ...")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Preparing(what) => write!(f, "{what} ..."),
            Step::Skipped { case, reason } => write!(f, "{case}: skipped, {reason}"),
            Step::Measuring(m) => write!(f, "{m}{}", tail(m, None)),
            Step::Measured { measurement: m, gbps } => write!(f, "{m}{}", tail(m, Some(*gbps))),
            Step::Sampling(at) => write!(f, "{at}{}", at.tail(None)),
            Step::Sampled { at, gbps } => write!(f, "{at}{}", at.tail(*gbps)),
        }
    }
}

impl fmt::Display for SampleAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SampleAt { bench, case, run, runs, .. } = self;
        // The text after it has 49 columns at most.
        let case: String = case.chars().take(30).collect();
        write!(f, "{bench} {run}/{runs} {case:<30}")
    }
}

impl SampleAt {
    fn tail(&self, gbps: Option<f64>) -> Tail {
        Tail { gbps, done: self.done, total: self.total, left: self.left }
    }
}

fn tail(m: &Measurement, gbps: Option<f64>) -> Tail {
    Tail { gbps, done: m.done, total: m.total, left: m.left }
}

struct Tail {
    gbps: Option<f64>,
    done: usize,
    total: usize,
    left: Duration,
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gbps {
            Some(gbps) => write!(f, " {gbps:>6.2} Gbit/s")?,
            None => write!(f, " {:>13}", "")?,
        }
        let Tail { done, total, left, .. } = self;
        write!(f, "   {done} of {total}")?;
        match left.as_secs_f64().round() as u64 {
            0 => Ok(()),
            seconds @ 1..90 => write!(f, ", about {seconds} s left"),
            seconds => write!(f, ", about {} min left", seconds.div_ceil(60)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_how_far_and_how_long() {
        let measurement = Measurement {
            case: "segue".into(),
            family: Family::V4,
            proto: Proto::Tcp,
            run: 2,
            runs: 3,
            done: 9,
            total: 24,
            left: Duration::from_secs(33),
        };
        let line = Step::Measured { measurement: measurement.clone(), gbps: 7.914 }.to_string();
        assert_eq!(line, "tcp4 segue        2/3 ...   7.91 Gbit/s   9 of 24, about 33 s left");
        let last = Measurement { done: 24, left: Duration::ZERO, ..measurement };
        assert_eq!(
            Step::Measured { measurement: last, gbps: 7.914 }.to_string(),
            "tcp4 segue        2/3 ...   7.91 Gbit/s   24 of 24"
        );
    }
}
