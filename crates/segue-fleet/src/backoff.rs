//! The waiting time between attempts: it doubles up to a limit, less a random part of up to half of it, so that the
//! hosts of a fleet do not all retry at once.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The waiting time after the first failure.
const FIRST: Duration = Duration::from_millis(250);

/// State of the waiting time between attempts.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Creates a backoff whose waiting time never exceeds `longest`.
    pub fn new(longest: Duration) -> Backoff {
        Backoff { next: FIRST.min(longest), longest }
    }

    /// Returns the waiting time after one more failure.
    pub fn failed(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.longest);
        // From half of it to all of it.
        whole / 2 + whole.mul_f64((random() % 1024) as f64 / 2048.0)
    }

    /// Resets the waiting time, after a success.
    pub fn succeeded(&mut self) {
        self.next = FIRST.min(self.longest);
    }
}

/// Returns a random number, derived from the random keys of the standard library's hash tables. Not for secrets.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_to_its_limit_and_chance_takes_at_most_half() {
        let mut backoff = Backoff::new(Duration::from_secs(1));
        for whole in [250, 500, 1000, 1000] {
            let wait = backoff.failed();
            assert!(wait >= Duration::from_millis(whole / 2) && wait <= Duration::from_millis(whole), "{wait:?}");
        }
        backoff.succeeded();
        assert!(backoff.failed() <= Duration::from_millis(250));
    }

    #[test]
    fn chance_differs() {
        assert_ne!(random(), random());
    }
}
