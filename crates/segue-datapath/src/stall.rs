//! The guard against a loop that spins without moving a packet.
//!
//! A descriptor that is ready and can neither be read nor written would keep the loop at work without end: a read that
//! fails for lack of memory and leaves its packet where it is, a full queue whose socket says that it is writable. The
//! loop then pauses, for longer and longer, until packets arrive or leave again.

use std::time::Duration;

use segue::time::Nanos;

/// Number of rounds without a packet before pauses begin, so that normal work is not paused: descriptors become
/// readable for other reasons too.
const FREE: u32 = 16;
/// Number of rounds without a packet that one round with a packet offsets, so that a busy direction does not let the
/// other spin.
const EARNED: u32 = 2;
/// Interval in nanoseconds above which rounds without packets are too rare to pause.
const SELDOM: u64 = 50_000_000;
/// Number of times the pause doubles from a quarter of a millisecond: up to 16 ms. It delays the first packet after.
const DOUBLINGS: u32 = 6;

/// Count of rounds without a packet, and the current pause.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    taken: u64,
    sent: u64,
    rounds: u32,
    last: Nanos,
}

impl Stall {
    /// Records a round that ended at `now` and was run because of an event, not a timer. `taken` and `sent` are the
    /// packets of all rounds so far; `sent` is asked for only where nothing was taken. Returns the pause to make.
    pub(crate) fn round(&mut self, taken: u64, sent: impl FnOnce() -> Option<u64>, now: Nanos) -> Option<Duration> {
        if taken != self.taken {
            self.taken = taken;
            return self.moved();
        }
        let sent = sent()?;
        if sent != self.sent {
            self.sent = sent;
            return self.moved();
        }
        if now.0.saturating_sub(self.last.0) > SELDOM {
            self.rounds = 0;
        }
        self.last = now;
        self.rounds = (self.rounds + 1).min(FREE + DOUBLINGS);
        let beyond = self.rounds.checked_sub(FREE)?;
        Some(Duration::from_micros(250 << beyond))
    }

    fn moved(&mut self) -> Option<Duration> {
        self.rounds = self.rounds.saturating_sub(EARNED);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_move_nothing_are_free_for_a_while_and_then_seldom() {
        let mut stall = Stall::default();
        let (mut now, mut rounds) = (0, 0);
        while now < 1_000_000_000 {
            now += stall.round(0, || Some(0), Nanos(now)).map_or(1000, |pause| pause.as_nanos() as u64);
            rounds += 1;
        }
        assert!((FREE..FREE + 80).contains(&rounds), "{rounds} in a second");
        for packets in 1..=u64::from(FREE) {
            assert_eq!(stall.round(packets, || Some(0), Nanos(now)), None, "a packet came");
        }
        let taken = u64::from(FREE);
        for _ in 1..FREE {
            assert_eq!(stall.round(taken, || Some(0), Nanos(now)), None);
        }
        assert_eq!(stall.round(taken, || Some(1), Nanos(now)), None, "a packet was sent");
        assert!((0..EARNED).all(|_| stall.round(taken, || Some(1), Nanos(now)).is_none()));
        assert!(stall.round(taken, || Some(1), Nanos(now)).is_some());
    }

    #[test]
    fn wake_ups_that_are_seldom_never_lead_to_a_pause() {
        let mut stall = Stall::default();
        for number in 0..1000 {
            assert_eq!(stall.round(7, || Some(7), Nanos(number * 2 * SELDOM)), None);
        }
        assert_eq!(Stall::default().round(0, || None, Nanos(0)), None, "a pipeline that does not count is not judged");
    }
}
