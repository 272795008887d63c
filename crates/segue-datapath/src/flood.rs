//! Rate limit of flooded packets: a token bucket.

use segue::time::Nanos;

/// Fraction of a second whose packets may arrive in one burst.
const BURST: u64 = 10;
const SECOND: u64 = 1_000_000_000;

/// A token bucket that limits flooded packets: those from one port of a bridge, or the copies to the peers of a table.
#[derive(Debug, Default)]
pub(crate) struct FloodLimit {
    /// Flooding rate limit, packets per second.
    rate: u64,
    /// Tokens left, in packets times the nanoseconds of a second.
    left: u64,
    filled: Nanos,
}

impl FloodLimit {
    /// Sets the rate of the bucket, packets per second.
    pub(crate) fn set(&mut self, rate: u64) {
        if self.rate != rate {
            *self = FloodLimit { rate, left: FloodLimit::most(rate), filled: self.filled };
        }
    }

    /// Takes tokens for `packets` from the bucket, refilled up to `now`; returns whether there were enough. A train
    /// larger than the burst passes when the bucket is full.
    pub(crate) fn take(&mut self, packets: u64, now: Nanos) -> bool {
        let since = now.0.saturating_sub(self.filled.0);
        self.filled = now;
        let most = FloodLimit::most(self.rate);
        self.left = self.left.saturating_add(self.rate.saturating_mul(since)).min(most);
        let cost = packets.saturating_mul(SECOND).min(most);
        let is_within = self.rate > 0 && self.left >= cost;
        if is_within {
            self.left -= cost;
        }
        is_within
    }

    fn most(rate: u64) -> u64 {
        (rate / BURST).max(1).saturating_mul(SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_floods_a_burst_and_then_its_rate() {
        let mut limit = FloodLimit::default();
        assert!(!limit.take(1, Nanos(5)), "nothing without a limit that was set");
        limit.set(1000);
        let mut taken = |packets: u64, at: u64| (0..packets).filter(|_| limit.take(1, Nanos(at))).count();
        assert_eq!(taken(500, 10), 100, "a tenth of a second at once");
        assert_eq!(taken(500, 10 + SECOND / 100), 10);
        assert_eq!(taken(5000, 10 + 3600 * SECOND), 100, "an hour of silence earns no more than a burst");
    }

    #[test]
    fn a_train_above_the_burst_passes_when_the_bucket_is_full() {
        let mut limit = FloodLimit::default();
        limit.set(100);
        assert!(limit.take(44, Nanos(1)) && !limit.take(44, Nanos(2)));
        assert!(limit.take(44, Nanos(SECOND)));
        limit.set(0);
        assert!(!limit.take(1, Nanos(9 * SECOND)));
    }
}
