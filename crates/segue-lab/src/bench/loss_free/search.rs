//! The search for the highest rate at which no frame is lost (RFC 2544, section 26.1).

/// Share of the higher rate by which two neighbouring rates differ at the end of the search.
pub(super) const RESOLUTION: f64 = 0.02;
/// Number of trials in which a rate can show that nothing is lost. On a machine with other tasks one trial loses a few
/// frames by chance, and the search would go on below that rate.
pub(super) const ATTEMPTS: u32 = 3;
/// Share of lost frames from which on a trial is not repeated.
pub(super) const CLEAR_LOSS: f64 = 0.01;
/// Rate at which the search gives up, frames per second.
const FLOOR: f64 = 1000.0;

/// One trial: frames were offered for a while, and those that arrived were counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trial {
    /// Number of frames that were offered.
    pub(super) sent: u64,
    /// Number of frames that arrived.
    pub(super) arrived: u64,
    /// Duration of the offer.
    pub(super) seconds: f64,
}

impl Trial {
    /// Returns the offered rate, frames per second.
    fn rate(self) -> f64 {
        self.sent as f64 / self.seconds
    }

    /// Returns the share of the frames that did not arrive.
    fn lost(self) -> f64 {
        self.sent.saturating_sub(self.arrived) as f64 / self.sent.max(1) as f64
    }
}

/// Result of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Throughput {
    /// The highest rate without loss, frames per second; 0 where frames were lost at every rate.
    pub(super) rate: f64,
    /// Difference to the next higher rate that was tried, as a share of that rate; 0 where there is none.
    pub(super) step: f64,
    /// Share of frames lost at the next higher rate; 0 where the generator does not offer a rate at which any is.
    pub(super) lost: f64,
    /// The highest rate of the generator, frames per second.
    pub(super) limit: f64,
    /// Number of trials.
    pub(super) trials: u32,
}

/// Searches by bisection between nothing and the highest rate of the generator. `offer` makes a trial at a rate in
/// frames per second, or at the highest one where the generator does not reach it.
pub(super) fn search<E>(mut offer: impl FnMut(u32) -> Result<Trial, E>) -> Result<Throughput, E> {
    let mut trials = 0;
    // The last trial of a rate, and whether it has shown that nothing is lost when `least` is offered.
    let mut judge = |rate: u32, least: f64| -> Result<(Trial, bool), E> {
        let mut attempt = 1;
        loop {
            let trial = offer(rate)?;
            trials += 1;
            let is_free = trial.arrived >= trial.sent && trial.rate() >= least;
            if is_free || attempt == ATTEMPTS || trial.lost() >= CLEAR_LOSS {
                return Ok((trial, is_free));
            }
            attempt += 1;
        }
    };
    let (flood, is_free) = judge(u32::MAX, 0.0)?;
    let limit = flood.rate();
    let (mut low, mut high) = (if is_free { limit } else { 0.0 }, limit);
    let (mut rate, mut lost) = (low, flood.lost());
    while high > FLOOR && high - low > RESOLUTION * high {
        let middle = f64::midpoint(low, high);
        let (trial, is_free) = judge(middle as u32, middle * (1.0 - RESOLUTION))?;
        if is_free {
            (low, rate) = (middle, trial.rate());
        } else {
            (high, lost) = (middle, trial.lost());
        }
    }
    let step = if high > 0.0 { (high - low) / high } else { 0.0 };
    Ok(Throughput { rate, step, lost, limit, trials })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const SECONDS: u32 = 2;

    /// Makes a trial of a generator with a limit, through a host that forwards `capacity` frames per second.
    fn trial(rate: u32, limit: u32, capacity: u32) -> Trial {
        let sent = u64::from(rate.min(limit)) * u64::from(SECONDS);
        let most = u64::from(capacity) * u64::from(SECONDS);
        Trial { sent, arrived: sent.min(most), seconds: f64::from(SECONDS) }
    }

    fn found(mut offer: impl FnMut(u32) -> Trial) -> Throughput {
        let found: Result<Throughput, Infallible> = search(|rate| Ok(offer(rate)));
        let Ok(found) = found;
        found
    }

    fn is_within(found: Throughput, capacity: u32) -> bool {
        let capacity = f64::from(capacity);
        found.rate <= capacity && found.rate >= capacity * (1.0 - RESOLUTION) - 1.0
    }

    #[test]
    fn the_rate_is_the_highest_without_loss_within_the_resolution() {
        for capacity in [2_000, 50_000, 137_311, 299_999, 795_000] {
            let found = found(|rate| trial(rate, 800_000, capacity));
            assert!(is_within(found, capacity), "{capacity}: {found:?}");
            assert!(found.step <= RESOLUTION && found.lost > 0.0 && found.limit == 800_000.0, "{capacity}: {found:?}");
            assert!(found.trials < 40, "{capacity}: {found:?}");
        }
    }

    #[test]
    fn trials_that_lose_a_few_frames_by_chance_do_not_lower_the_rate() {
        let mut count = 0;
        let found = found(|rate| {
            count += 1;
            let calm = trial(rate, 800_000, 120_000);
            // Two of three.
            let lost = if count % 3 == 0 { 0 } else { 40 };
            Trial { arrived: calm.arrived.saturating_sub(lost), ..calm }
        });
        assert!(is_within(found, 120_000), "{found:?}");
        assert_eq!(found.trials, count);
    }

    #[test]
    fn a_little_loss_in_every_trial_is_loss() {
        // At 90,000 and more one frame in 10,000 is lost: less than what ends the attempts.
        let found = found(|rate| {
            let calm = trial(rate, 300_000, 1_000_000);
            let lost = if rate >= 90_000 { calm.sent / 10_000 } else { 0 };
            Trial { arrived: calm.arrived - lost, ..calm }
        });
        assert!(is_within(found, 90_000), "{found:?}");
        assert!(found.lost > 0.0 && found.lost < CLEAR_LOSS, "{found:?}");
    }

    #[test]
    fn a_host_that_is_faster_than_the_generator_has_the_rate_of_the_generator() {
        let found = found(|rate| trial(rate, 200_000, 1_000_000));
        assert_eq!(found, Throughput { rate: 200_000.0, step: 0.0, lost: 0.0, limit: 200_000.0, trials: 1 });
    }

    #[test]
    fn a_rate_that_the_generator_did_not_offer_has_not_passed() {
        // Beyond 100,000 it offers only half of what it is asked for, and at its highest rate frames are lost.
        let found = found(|rate| match rate {
            u32::MAX => trial(400_000, 400_000, 300_000),
            100_001.. => trial(rate / 2, 400_000, 300_000),
            _ => trial(rate, 400_000, 300_000),
        });
        assert!(is_within(found, 100_000) && found.lost == 0.0, "{found:?}");
    }

    #[test]
    fn loss_at_every_rate_ends_the_search_with_none() {
        let found = found(|rate| Trial { arrived: 0, ..trial(rate, 800_000, 0) });
        assert!(found.rate == 0.0 && found.step == 1.0 && found.lost == 1.0 && found.trials < 15, "{found:?}");
        let silent = found_with_silent_generator();
        assert_eq!((silent.rate, silent.lost, silent.limit), (0.0, 0.0, 0.0));
    }

    fn found_with_silent_generator() -> Throughput {
        found(|_| Trial { sent: 0, arrived: 0, seconds: 1.0 })
    }

    #[test]
    fn the_error_of_a_trial_ends_the_search() {
        assert_eq!(search(|_| Err("interrupted")), Err("interrupted"));
    }
}
