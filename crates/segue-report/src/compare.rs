//! The comparison of two measurements: the changes beyond the spread of the samples.

use crate::document::{Bench, Better, Metric, better};

/// The verdict on one metric of one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The ranges of the samples overlap.
    Same,
    /// The newer result is better, and the ranges do not overlap.
    Better,
    /// The newer result is worse, and the ranges do not overlap.
    Worse,
    /// A measurement has only one sample, so its spread is unknown.
    OneSample,
}

impl Verdict {
    /// Returns the verdict in words.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Same => "no change",
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::OneSample => "one sample",
        }
    }
}

/// One metric of one case in both measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name of the bench.
    pub bench: String,
    /// Labels of the case.
    pub case: String,
    /// Name of the metric.
    pub metric: String,
    /// Median of the older measurement.
    pub old: f64,
    /// Median of the newer measurement.
    pub new: f64,
    /// Change in per cent of the older median.
    pub change_percent: f64,
    /// Half of the larger range of samples, in per cent of the older median.
    pub spread_percent: f64,
    /// Verdict on the difference.
    pub verdict: Verdict,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Lines of every metric with a preferred direction, of every case in both measurements.
    pub lines: Vec<Line>,
    /// Cases that only one of the two measurements contains.
    pub alone: Vec<String>,
}

impl Comparison {
    /// Returns the number of lines with the given verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.lines.iter().filter(|line| line.verdict == verdict).count()
    }
}

/// Compares two measurements, case by case.
pub fn compare(old: &[Bench], new: &[Bench]) -> Comparison {
    let mut made = Comparison::default();
    for before in old {
        let after = new.iter().find(|bench| bench.bench == before.bench);
        for row in &before.rows {
            let case = format!("{} {}", before.bench, row.name());
            let Some(other) = after.and_then(|bench| bench.rows.iter().find(|other| other.case == row.case)) else {
                made.alone.push(format!("{case}: only in the first"));
                continue;
            };
            for (name, metric) in &row.metrics {
                if let (Some(now), true) = (other.metrics.get(name), better(name) != Better::Neither) {
                    made.lines.push(line((&before.bench, &row.name(), name), metric, now));
                }
            }
        }
    }
    for after in new {
        let before = old.iter().find(|bench| bench.bench == after.bench);
        let has = |case| before.is_some_and(|bench| bench.rows.iter().any(|row| row.case == case));
        for row in after.rows.iter().filter(|row| !has(row.case.clone())) {
            made.alone.push(format!("{} {}: only in the second", after.bench, row.name()));
        }
    }
    made
}

fn line((bench, case, metric): (&str, &str, &str), old: &Metric, new: &Metric) -> Line {
    let percent = |part: f64| if old.median == 0.0 { 0.0 } else { 100.0 * part / old.median };
    let (rose, fell) = (new.min > old.max, new.max < old.min);
    let verdict = match better(metric) {
        _ if !old.has_spread() || !new.has_spread() => Verdict::OneSample,
        Better::More if rose => Verdict::Better,
        Better::More if fell => Verdict::Worse,
        Better::Less if rose => Verdict::Worse,
        Better::Less if fell => Verdict::Better,
        _ => Verdict::Same,
    };
    Line {
        bench: bench.to_owned(),
        case: case.to_owned(),
        metric: metric.to_owned(),
        old: old.median,
        new: new.median,
        change_percent: percent(new.median - old.median),
        spread_percent: percent((old.max - old.min).max(new.max - new.min) / 2.0),
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::parse;

    fn bench(rows: &[(&str, &str, [f64; 3])]) -> Vec<Bench> {
        let row = |(case, metric, [min, median, max]): &(&str, &str, [f64; 3])| {
            serde_json::json!({ "case": { "column": case },
                "metrics": { *metric: { "min": min, "median": median, "max": max, "samples": [min, median, max] } } })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        let value = serde_json::json!({ "schema": "segue.bench/1", "bench": "lro", "machine": {}, "rows": rows });
        parse(&value.to_string()).unwrap().benches
    }

    #[test]
    fn a_change_counts_where_the_ranges_do_not_overlap_and_less_time_is_better() {
        let old = bench(&[
            ("a", "gbps", [9.0, 10.0, 11.0]),
            ("b", "gbps", [9.0, 10.0, 11.0]),
            ("c", "cpu_s_per_gb", [0.4, 0.5, 0.6]),
            ("d", "gbps", [1.0, 1.0, 1.0]),
            ("e", "retransmits", [1.0, 2.0, 3.0]),
        ]);
        let new = bench(&[
            ("a", "gbps", [8.0, 9.0, 9.5]),
            ("b", "gbps", [7.0, 8.0, 8.9]),
            ("c", "cpu_s_per_gb", [0.1, 0.2, 0.3]),
            ("f", "gbps", [1.0, 1.0, 1.0]),
            ("e", "retransmits", [50.0, 60.0, 70.0]),
        ]);
        let made = compare(&old, &new);
        let verdicts: Vec<_> = made.lines.iter().map(|line| (line.case.as_str(), line.verdict)).collect();
        assert_eq!(verdicts, [("a", Verdict::Same), ("b", Verdict::Worse), ("c", Verdict::Better)]);
        assert_eq!(made.alone, ["lro d: only in the first", "lro f: only in the second"]);
        assert_eq!((made.lines[1].change_percent, made.lines[1].spread_percent), (-20.0, 10.0));
    }

    #[test]
    fn one_sample_has_no_spread_and_no_verdict() {
        let mut old = bench(&[("a", "gbps", [1.0, 1.0, 1.0])]);
        old[0].rows[0].metrics.get_mut("gbps").unwrap().samples.truncate(1);
        let new = bench(&[("a", "gbps", [9.0, 9.0, 9.0])]);
        assert_eq!(compare(&old, &new).lines[0].verdict, Verdict::OneSample);
    }
}
