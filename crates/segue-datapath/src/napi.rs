//! Weights of ports, the budget of a round, and the sleep of the poll loop.
//!
//! As in Linux's NAPI, one poll takes at most a port's weight in packets, and one round at most the budget from all
//! ports together. Packets that a port gave beyond its weight wait here and are first at the next poll. A loop with
//! nothing left to do waits for its ports' descriptors, as a kernel waits for interrupts. It may poll on for a while
//! before it sleeps (busy polling), or wake up by a timer a few times before it waits for a descriptor again
//! (deferral), so that packets gather meanwhile and are joined.

use std::collections::VecDeque;
use std::io;

use segue::time::Nanos;
use segue_port::{Polled, Port, Received, RxBatch};

use crate::board::{Group, Sink};
use crate::knobs::{Dial, Knob};

/// Default limit of packets in a round; usual weights are far below it.
const BUDGET: u64 = 1024;
/// Largest value of a weight and of the budget, packets.
const MOST: u64 = 65_535;
/// Largest value of the deferral timer and of the busy polling time, microseconds.
const LONGEST_US: u64 = 1_000_000;
/// Largest number of consecutive timers.
const MOST_TIMERS: u64 = 1000;
/// Busy polling that catches no packet may take one part in so many of the time,
const VAIN_PART: u64 = 8;
/// and so many times its whole length at once, and one more.
const VAIN_TIMES: u64 = 3;

/// Policy of the loop before it waits for descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollPolicy {
    /// Longest time after the last packet for which the loop polls without sleeping, nanoseconds. Where most packets
    /// come later the loop polls after some of them only: in vain for an eighth of the time.
    pub busy_poll: u64,
    /// Number of consecutive timers without a packet before a descriptor may wake the loop again.
    pub deferrals: u64,
    /// Length of a timer that defers the descriptors, nanoseconds.
    pub flush_timeout: u64,
}

impl PollPolicy {
    /// Returns whether the loop sleeps by timers.
    pub(crate) fn defers(&self) -> bool {
        self.deferrals > 0 && self.flush_timeout > 0
    }
}

/// The settings of a pipeline's loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    /// Largest number of packets of one poll, for each port.
    pub(crate) weights: [u64; 2],
    /// Largest number of packets of a round.
    pub(crate) budget: u64,
    busy_poll_us: u64,
    deferrals: u64,
    flush_timeout_us: u64,
}

impl Sharing {
    pub(crate) fn new(weight: usize) -> Sharing {
        let weight = (weight as u64).clamp(1, MOST);
        Sharing { weights: [weight; 2], budget: BUDGET, busy_poll_us: 0, deferrals: 0, flush_timeout_us: 0 }
    }

    pub(crate) fn tune(&mut self, dial: &mut Dial<'_>, names: &[String; 2]) {
        let mut weights = self.weights;
        self.tune_around(dial, |dial| {
            for (name, weight) in names.iter().zip(&mut weights) {
                tune_weight(dial, name, weight);
            }
        });
        self.weights = weights;
    }

    /// Applies the settings that are not per port; `ports` applies the per-port ones, which are listed in between.
    pub(crate) fn tune_around(&mut self, dial: &mut Dial<'_>, ports: impl FnOnce(&mut Dial<'_>)) {
        let all = |key: &str| format!("net.napi.{key}");
        let help = "most packets of all ports together in a round";
        dial.number(|| Knob::number(all("budget"), (1, MOST), "packets", help), &mut self.budget);
        ports(dial);
        let us = |key, help| Knob::number(all(key), (0, LONGEST_US), "us", help);
        dial.number(
            || us("busy_poll_us", "how long after the last packet ports are asked without sleeping, at most"),
            &mut self.busy_poll_us,
        );
        dial.number(
            || {
                let help = "timers in a row without a packet before a port may wake the loop again";
                Knob::number(all("defer_wakeups"), (0, MOST_TIMERS), "", help)
            },
            &mut self.deferrals,
        );
        dial.number(
            || us("flush_timeout_us", "how long such a timer is; trains stay open meanwhile"),
            &mut self.flush_timeout_us,
        );
    }

    /// Applies the weight of the first port, like [`tune`](Self::tune), and copies the other settings from `others`.
    pub(crate) fn tune_first(&mut self, dial: &mut Dial<'_>, name: &str, others: &Sharing) {
        *self = Sharing { weights: [self.weights[0], others.weights[1]], ..*others };
        tune_weight(dial, name, &mut self.weights[0]);
    }

    /// Applies the weight of the second port, like [`tune`](Self::tune), and copies the other settings from `others`.
    pub(crate) fn tune_second(&mut self, dial: &mut Dial<'_>, name: &str, others: &Sharing) {
        *self = Sharing { weights: [others.weights[0], self.weights[1]], ..*others };
        tune_weight(dial, name, &mut self.weights[1]);
    }

    pub(crate) fn poll_policy(&self) -> PollPolicy {
        PollPolicy {
            busy_poll: self.busy_poll_us * 1000,
            deferrals: self.deferrals,
            flush_timeout: self.flush_timeout_us * 1000,
        }
    }

    /// Returns the hold time of GRO in nanoseconds: `hold`, or with 0 the length of a deferral timer, so that trains
    /// grow meanwhile.
    pub(crate) fn hold(&self, hold: u64) -> u64 {
        let policy = self.poll_policy();
        if hold == 0 && policy.defers() { policy.flush_timeout } else { hold }
    }
}

/// Applies the weight of one port.
pub(crate) fn tune_weight(dial: &mut Dial<'_>, name: &str, weight: &mut u64) {
    let help = "most packets that one poll takes from this port";
    dial.number(|| Knob::number(format!("net.napi.dev.{name}.weight"), (1, MOST), "packets", help), weight);
}

/// The polls of one port, and the packets that exceeded its weight.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    /// Largest number of packets of one poll.
    pub(crate) weight: usize,
    /// Whether the port is no longer read.
    pub(crate) closed: bool,
    /// Packets that the port delivered beyond its weight.
    overflow: VecDeque<Received>,
    polls: u64,
    full: u64,
    overflows: u64,
    pub(crate) wake_ups: u64,
    pub(crate) taken: u64,
}

impl Polls {
    /// Receives at most the weight and at most `left` packets into `rx`, which must be empty, and reduces `left` by as
    /// many.
    pub(crate) fn poll(&mut self, port: &mut dyn Port, rx: &mut RxBatch, left: &mut usize) -> io::Result<Polled> {
        let weight = self.weight.min(*left).max(1);
        self.polls += 1;
        let first = self.overflow.len().min(weight);
        rx.packets.extend(self.overflow.drain(..first));
        let mut polled = if self.closed && self.overflow.is_empty() { Polled::Idle } else { Polled::More };
        if first < weight && !self.closed {
            polled = port.receive(rx, weight - first)?;
            if rx.packets.len() > weight {
                self.overflows += (rx.packets.len() - weight) as u64;
                self.overflow.extend(rx.packets.drain(weight..));
                polled = Polled::More;
            }
        }
        let taken = rx.packets.len() + rx.bursts.len();
        *left = left.saturating_sub(taken);
        self.taken += taken as u64;
        self.full += u64::from(taken >= weight);
        Ok(polled)
    }

    pub(crate) fn collect(&self, name: &str, sink: &mut Sink<'_>) {
        for (key, value) in [
            ("polls", self.polls),
            ("full_budgets", self.full),
            ("overflows", self.overflows),
            ("wake_ups", self.wake_ups),
        ] {
            sink.put(name, Group::Napi, key, value);
        }
    }
}

/// The order of two ports within a round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundRobin {
    /// Index of the port polled first: the one that got no share of the last round's budget.
    first: usize,
}

impl RoundRobin {
    /// Makes the port with the given index the first one of the next round.
    pub(crate) fn begin_with(&mut self, port: usize) {
        self.first = port;
    }

    /// Calls `forward` for both ports within `budget` packets. Returns whether one of them has more.
    pub(crate) fn round(
        &mut self,
        budget: u64,
        mut forward: impl FnMut(usize, &mut usize) -> io::Result<Polled>,
    ) -> io::Result<bool> {
        let (mut more, mut left) = (false, budget as usize);
        for from in [self.first, 1 - self.first] {
            if left == 0 {
                self.first = from;
                return Ok(true);
            }
            more |= forward(from, &mut left)? != Polled::Idle;
        }
        Ok(more)
    }
}

/// The policy that decides how the loop sleeps after an idle round.
#[derive(Debug, Default)]
pub(crate) struct IdlePolicy {
    /// Number of packets received up to the last decision.
    taken: u64,
    /// Time of the last new packet.
    last: Nanos,
    timers: u64,
    /// Whether the loop polls until the next packet comes.
    polls: bool,
    /// Time that was polled in vain, nanoseconds, less its share of the time since.
    vain: u64,
}

/// The mode in which the loop sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepMode {
    /// The worker polls again at once.
    Spin,
    /// The worker sleeps for this many nanoseconds; ports do not wake it.
    Timer(u64),
    /// The worker sleeps until a port is ready.
    Ports,
}

impl IdlePolicy {
    /// Returns the sleep mode after an idle round at `now`. `taken` is the number of packets received so far.
    pub(crate) fn sleep_mode(&mut self, policy: &PollPolicy, taken: u64, now: Nanos) -> SleepMode {
        let waited = now.0.saturating_sub(self.last.0);
        if self.taken != taken {
            // What was polled for a longer time than is set now does not count.
            let most = (VAIN_TIMES + 1) * policy.busy_poll;
            self.vain = self.vain.min(most).saturating_sub(waited / VAIN_PART);
            self.polls = policy.busy_poll > 0 && self.vain <= VAIN_TIMES * policy.busy_poll;
            (self.taken, self.last, self.timers) = (taken, now, policy.deferrals);
            if self.polls {
                return SleepMode::Spin;
            }
        }
        if self.polls {
            if waited < policy.busy_poll {
                return SleepMode::Spin;
            }
            self.polls = false;
            self.vain += policy.busy_poll;
        }
        if policy.defers() && self.timers > 0 {
            self.timers -= 1;
            return SleepMode::Timer(policy.flush_timeout);
        }
        SleepMode::Ports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_spins_then_comes_back_by_timers_then_waits() {
        let policy = PollPolicy { busy_poll: 100, deferrals: 2, flush_timeout: 7 };
        let mut idle = IdlePolicy::default();
        let mut mode_of = |taken, now| idle.sleep_mode(&policy, taken, Nanos(now));
        assert_eq!(mode_of(0, 50), SleepMode::Ports, "nothing has come yet");
        assert_eq!([mode_of(1, 60), mode_of(1, 159)], [SleepMode::Spin; 2]);
        assert_eq!([mode_of(1, 160), mode_of(1, 167)], [SleepMode::Timer(7); 2]);
        assert_eq!([mode_of(1, 174), mode_of(1, 9999)], [SleepMode::Ports; 2]);
        // A packet begins it anew.
        assert_eq!(mode_of(2, 10_000), SleepMode::Spin);
        assert_eq!(mode_of(2, 10_100), SleepMode::Timer(7));
    }

    #[test]
    fn a_loop_spins_in_vain_for_an_eighth_of_the_time() {
        let policy = PollPolicy { busy_poll: 100, ..PollPolicy::default() };
        let mut idle = IdlePolicy::default();
        let (mut now, mut taken) = (1000, 0);
        // Whether the loop spins after the next packet, which is followed by another one so many nanoseconds later.
        let mut spins = |until_next: u64| {
            taken += 1;
            let mode = idle.sleep_mode(&policy, taken, Nanos(now));
            if mode == SleepMode::Spin && until_next >= 100 {
                assert_eq!(idle.sleep_mode(&policy, taken, Nanos(now + 100)), SleepMode::Ports);
            }
            now += until_next;
            mode == SleepMode::Spin
        };
        let seldom: Vec<u32> = (0..80).filter(|_| spins(400)).collect();
        assert_eq!(seldom[..6], [0, 1, 2, 3, 4, 5], "it may begin so");
        // 80 packets in 32,000 ns, of which 4,000 may be in vain, and 400 more.
        assert!((39..=44).contains(&seldom.len()), "{}", seldom.len());
        assert!((0..1000).filter(|_| spins(99)).count() > 990, "packets that come in time cost nothing");
        assert!((0..1000).all(|_| spins(800)), "nor do those that come so seldom");
        let often = (0..800).filter(|_| spins(100)).count();
        assert!((96..=104).contains(&often), "{often}");
        // A time that is set to a thousandth is not paid for with what the longer one has used.
        let shorter = PollPolicy { busy_poll: 8, ..policy };
        let mut idle = IdlePolicy { vain: 400_000, ..IdlePolicy::default() };
        assert_eq!([1, 2].map(|at| idle.sleep_mode(&shorter, at, Nanos(at * 64))), [SleepMode::Spin; 2]);
    }

    #[test]
    fn an_end_that_got_nothing_of_a_budget_is_first_in_the_next_round() {
        let mut round_robin = RoundRobin::default();
        let mut served = Vec::new();
        for _ in 0..4 {
            // Each end has more than a budget.
            let more = round_robin.round(10, |from, left| {
                served.push((from, *left));
                *left -= (*left).min(7);
                Ok(Polled::More)
            });
            assert!(more.unwrap());
        }
        assert_eq!(served, [(0, 10), (1, 3)].repeat(4), "3 are left for the second");
        served.clear();
        for _ in 0..4 {
            let more = round_robin.round(7, |from, left| {
                served.push((from, *left));
                *left -= (*left).min(7);
                Ok(Polled::Idle)
            });
            assert!(more.unwrap(), "nobody has asked the other one");
        }
        assert_eq!(served, [(0, 7), (1, 7), (0, 7), (1, 7)]);
    }

    #[test]
    fn without_settings_a_loop_waits_at_once() {
        let mut idle = IdlePolicy::default();
        assert_eq!(
            [1, 2, 2].map(|taken| idle.sleep_mode(&PollPolicy::default(), taken, Nanos(taken))),
            [SleepMode::Ports; 3]
        );
        let half = PollPolicy { deferrals: 3, ..PollPolicy::default() };
        assert_eq!(idle.sleep_mode(&half, 9, Nanos(9)), SleepMode::Ports, "a timer of no time would be a spin");
    }
}
