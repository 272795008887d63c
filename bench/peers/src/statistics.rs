//! Medians, and intervals of ratios within each round.

/// Nanoseconds per packet of one implementation in one row, a value for each round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) nanos: Vec<f64>,
    /// Whether the implementation does this work at all.
    pub(crate) is_possible: bool,
}

impl Measured {
    pub(crate) fn median(&self) -> f64 {
        median(self.nanos.clone())
    }

    /// Returns the per-round ratio to `other`, which has the same rounds.
    pub(crate) fn over(&self, other: &Measured) -> Option<Ratio> {
        Ratio::of(self.nanos.iter().zip(&other.nanos).map(|(a, b)| a / b).collect())
    }

    /// Returns the per-round ratio to the sum of `base` and a multiple of `part`.
    pub(crate) fn over_sum(&self, base: &Measured, times: f64, part: &Measured) -> Ratio {
        let parts = base.nanos.iter().zip(&part.nanos).map(|(base, part)| base + times * part);
        Ratio::of(self.nanos.iter().zip(parts).map(|(a, b)| a / b).collect()).expect("there are rounds")
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A ratio: median, and an interval that holds the median of all possible rounds with a probability of 90 %.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    fn of(mut values: Vec<f64>) -> Option<Ratio> {
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len();
        // A round lies below the median with a probability of one half: the sign test. `below` is the probability that
        // at most `rank` rounds do.
        let (mut rank, mut term, mut below) = (0, 0.5_f64.powi(count as i32), 0.0);
        while below + term <= 0.05 {
            below += term;
            rank += 1;
            term *= (count + 1 - rank) as f64 / rank as f64;
        }
        let rank = rank.saturating_sub(1);
        Some(Ratio { median: *values.get(count / 2)?, low: values[rank], high: values[count - 1 - rank] })
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{:.2} [{:.2}, {:.2}]", self.median, self.low, self.high))
    }
}
