//! CoDel, the control law of one queue (RFC 8289): while packets wait longer than a target for a whole interval,
//! packets are marked or dropped at shorter and shorter intervals.

use segue::time::Nanos;

/// The time constants of CoDel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Time for which packets may wait in the long run.
    pub(crate) target: Nanos,
    /// Time in which senders react: the longest usual round trip.
    pub(crate) interval: Nanos,
}

/// The state of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Codel {
    /// Time at which packets will have waited longer than the target for an interval; `None` while they do not.
    first_above: Option<Nanos>,
    /// Time of the next signal.
    next: Nanos,
    /// Number of signals since the dropping state was entered.
    count: u32,
    /// Value of `count` when the dropping state was last entered.
    last_count: u32,
    dropping: bool,
}

/// Result of CoDel's congestion signal to a packet.
pub(crate) enum Signalled<P> {
    /// The packet to send; it may be ECN-marked or lack a dropped segment.
    Sent(P),
    /// The packet was dropped as the congestion signal.
    Dropped,
}

/// A packet that was taken from a queue.
#[derive(Debug)]
pub(crate) struct Taken<P> {
    pub(crate) packet: P,
    /// Time for which the packet waited.
    pub(crate) sojourn: Nanos,
    /// Whether the queue still holds enough for a signal: more than one packet of the largest size at least.
    pub(crate) is_long: bool,
}

impl Codel {
    /// Takes the next packet to be sent. `take` takes the oldest one from the queue; `signal` tells the sender of a
    /// packet. With `is_full` the queue has exhausted its memory, and the signal does not wait for an interval.
    pub(crate) fn next<P>(
        &mut self,
        times: &Times,
        now: Nanos,
        is_full: bool,
        mut take: impl FnMut() -> Option<Taken<P>>,
        mut signal: impl FnMut(P) -> Signalled<P>,
    ) -> Option<P> {
        let (mut packet, mut may_signal) = self.judge(times, now, is_full, take())?;
        if self.dropping {
            self.dropping = may_signal;
            while self.dropping && now >= self.next {
                self.count = self.count.saturating_add(1);
                match signal(packet) {
                    Signalled::Sent(packet) => {
                        self.next = self.next_signal(times, self.next);
                        return Some(packet);
                    }
                    Signalled::Dropped => (packet, may_signal) = self.judge(times, now, is_full, take())?,
                }
                self.dropping = may_signal;
                if may_signal {
                    self.next = self.next_signal(times, self.next);
                }
            }
        } else if may_signal {
            let kept = signal(packet);
            self.dropping = true;
            // After a short pause the signals go on almost where they were.
            let delta = self.count.saturating_sub(self.last_count);
            let recent = now.0.saturating_sub(self.next.0) < 16 * times.interval.0;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.last_count = self.count;
            self.next = self.next_signal(times, now);
            packet = match kept {
                Signalled::Sent(packet) => packet,
                Signalled::Dropped => self.judge(times, now, is_full, take())?.0,
            };
        }
        Some(packet)
    }

    /// Returns the dequeued packet, and whether CoDel may signal its sender.
    fn judge<P>(&mut self, times: &Times, now: Nanos, is_full: bool, taken: Option<Taken<P>>) -> Option<(P, bool)> {
        let Some(Taken { packet, sojourn, is_long }) = taken else {
            self.first_above = None;
            self.dropping = false;
            return None;
        };
        if sojourn < times.target || !is_long {
            self.first_above = None;
            return Some((packet, false));
        }
        let since = *self.first_above.get_or_insert(now + times.interval);
        Some((packet, now >= since || is_full))
    }

    /// Returns the time of the signal that follows one at `from`.
    fn next_signal(&self, times: &Times, from: Nanos) -> Nanos {
        from.after((times.interval.0 as f64 / f64::from(self.count.max(1)).sqrt()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const TIMES: Times = Times { target: Nanos(5), interval: Nanos(100) };

    /// The pseudocode of RFC 8289, section 5, statement by statement, with numbers for packets and for times; 0 is no
    /// time.
    #[derive(Default)]
    struct Reference {
        queue: VecDeque<(u64, u64)>,
        first_above_time: u64,
        drop_next: f64,
        count: u32,
        lastcount: u32,
        dropping: bool,
        dropped: Vec<u64>,
    }

    impl Reference {
        fn dodequeue(&mut self, now: u64) -> (Option<u64>, bool) {
            let Some((packet, tstamp)) = self.queue.pop_front() else {
                self.first_above_time = 0;
                return (None, false);
            };
            let sojourn_time = now - tstamp;
            if sojourn_time < TIMES.target.0 || self.queue.len() <= 1 {
                self.first_above_time = 0;
            } else if self.first_above_time == 0 {
                self.first_above_time = now + TIMES.interval.0;
            } else if now >= self.first_above_time {
                return (Some(packet), true);
            }
            (Some(packet), false)
        }

        fn control_law(&self, t: f64) -> f64 {
            (t + (TIMES.interval.0 as f64 / f64::from(self.count).sqrt())).floor()
        }

        fn deque(&mut self, now: u64) -> Option<u64> {
            let mut r = self.dodequeue(now);
            if self.dropping {
                if !r.1 {
                    self.dropping = false;
                }
                while now as f64 >= self.drop_next && self.dropping {
                    self.dropped.extend(r.0);
                    self.count += 1;
                    r = self.dodequeue(now);
                    if !r.1 {
                        self.dropping = false;
                    } else {
                        self.drop_next = self.control_law(self.drop_next);
                    }
                }
            } else if r.1 {
                self.dropped.extend(r.0);
                r = self.dodequeue(now);
                self.dropping = true;
                let delta = self.count.wrapping_sub(self.lastcount) as i32;
                self.count = 1;
                if delta > 1 && (now as f64 - self.drop_next) < 16.0 * TIMES.interval.0 as f64 {
                    self.count = delta as u32;
                }
                self.drop_next = self.control_law(now as f64);
                self.lastcount = self.count;
            }
            r.0
        }
    }

    /// Takes the next packet of a queue of numbers and times of arrival.
    fn next(
        codel: &mut Codel,
        queue: &mut VecDeque<(u64, u64)>,
        now: u64,
        is_full: bool,
        signal: impl FnMut(u64) -> Signalled<u64>,
    ) -> Option<u64> {
        let take = || {
            let (packet, came) = queue.pop_front()?;
            Some(Taken { packet, sojourn: Nanos(now - came), is_long: queue.len() > 1 })
        };
        codel.next(&TIMES, Nanos(now), is_full, take, signal)
    }

    #[test]
    fn it_drops_what_the_pseudocode_of_rfc_8289_drops() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut reference, mut codel, mut queue, mut dropped) =
            (Reference::default(), Codel::default(), VecDeque::new(), Vec::new());
        let mut packet = 0;
        for now in 1..200_000_u64 {
            // Times of overload of several lengths, and times without.
            let overload = now % 7_000 < 3_000 || now % 900 < 300;
            for _ in 0..draw(if overload { 4 } else { 2 }) {
                packet += 1;
                reference.queue.push_back((packet, now));
                queue.push_back((packet, now));
            }
            let signal = |packet| {
                dropped.push(packet);
                Signalled::Dropped
            };
            assert_eq!(next(&mut codel, &mut queue, now, false, signal), reference.deque(now), "at {now}");
        }
        assert!(dropped.len() > 1_000, "{}", dropped.len());
        assert_eq!(dropped, reference.dropped);
    }

    #[test]
    fn signals_come_closer_by_the_square_root_of_their_number() {
        let (mut codel, mut queue) = (Codel::default(), (0..10_000).map(|packet| (packet, 0)).collect());
        let mut times = Vec::new();
        for now in 5..700 {
            next(&mut codel, &mut queue, now, false, |packet| {
                times.push(now);
                Signalled::Sent(packet)
            });
        }
        // One interval above the target; then 100, 100 / sqrt(2), 100 / sqrt(3) and so on, cut to whole numbers.
        assert_eq!(times[..6], [105, 205, 275, 332, 382, 426]);
        assert_eq!(queue.len(), 10_000 - 695, "what is marked is sent");
    }

    #[test]
    fn a_full_queue_is_signalled_at_once_and_one_that_nobody_waits_in_never() {
        let (mut codel, mut queue) = (Codel::default(), (0..100).map(|packet| (packet, 0)).collect());
        let mut signals = 0;
        let signal = |packet| {
            signals += 1;
            Signalled::Sent(packet)
        };
        assert_eq!(next(&mut codel, &mut queue, 6, true, signal), Some(0));
        assert_eq!(next(&mut codel, &mut queue, 7, true, |_| panic!("the interval is not over")), Some(1));
        assert_eq!(signals, 1);
        let mut queue = (0..100).map(|packet| (packet, 1000)).collect();
        let mut codel = Codel::default();
        assert_eq!(next(&mut codel, &mut queue, 1004, true, |_| panic!("below the target")), Some(0));
    }
}
