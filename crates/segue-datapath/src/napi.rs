//! How the poll loop shares its time: weights of ports, the budget of a round, and when it sleeps.
//!
//! As Linux's NAPI does it: each port gives at most its weight in packets to a poll, all of them together at most the budget
//! to a round, and what a port gave beyond that waits here and is first at the next poll. A loop with nothing left to do
//! waits for its ports' descriptors, which is what interrupts are to a kernel; it may first go on asking for a while (busy
//! polling), or come back by a timer a few times before it waits for a descriptor again (deferral), so that packets gather
//! meanwhile and are joined.

use std::collections::VecDeque;
use std::io;

use segue::time::Nanos;
use segue_port::{Polled, Port, Received, RxBatch};

use crate::board::{Group, Sink};
use crate::knobs::{Dial, Knob};

/// Most packets of a round. Weights of usual ports are far below; with a knob it is what bounds a round.
const BUDGET: u64 = 1024;
/// Largest weight and budget.
const MOST: u64 = 65_535;
/// Longest time of one timer or of busy polling, microseconds.
const LONGEST_US: u64 = 1_000_000;
/// Most timers in a row.
const MOST_TIMERS: u64 = 1000;

/// What a loop does before it waits for descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollPolicy {
    /// Nanoseconds after the last packet for which it goes on asking without sleeping.
    pub busy_poll: u64,
    /// Times in a row that it comes back by a timer with nothing having come, before a descriptor may wake it again.
    pub deferrals: u64,
    /// Nanoseconds of that timer.
    pub flush_timeout: u64,
}

impl PollPolicy {
    /// Whether the loop comes back by timers.
    pub(crate) fn defers(&self) -> bool {
        self.deferrals > 0 && self.flush_timeout > 0
    }
}

/// The settings of a pipeline's loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    /// Most packets that one poll of each port gives.
    pub(crate) weights: [u64; 2],
    /// Most packets of a round.
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
        let all = |key: &str| format!("net.napi.{key}");
        let help = "most packets of all ports together in a round";
        dial.number(|| Knob::number(all("budget"), (1, MOST), "packets", help), &mut self.budget);
        for (name, weight) in names.iter().zip(&mut self.weights) {
            tune_weight(dial, name, weight);
        }
        let us = |key, help| Knob::number(all(key), (0, LONGEST_US), "us", help);
        dial.number(
            || us("busy_poll_us", "how long after the last packet ports are asked without sleeping"),
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

    /// As [`tune`](Self::tune) for the weight of the first port; the rest is as in `others`.
    pub(crate) fn tune_first(&mut self, dial: &mut Dial<'_>, name: &str, others: &Sharing) {
        *self = Sharing { weights: [self.weights[0], others.weights[1]], ..*others };
        tune_weight(dial, name, &mut self.weights[0]);
    }

    pub(crate) fn poll_policy(&self) -> PollPolicy {
        PollPolicy {
            busy_poll: self.busy_poll_us * 1000,
            deferrals: self.deferrals,
            flush_timeout: self.flush_timeout_us * 1000,
        }
    }

    /// Longest time that a packet waits for the next where nothing else is set: deferral lets trains grow.
    pub(crate) fn hold(&self, hold: u64) -> u64 {
        let policy = self.poll_policy();
        if hold == 0 && policy.defers() { policy.flush_timeout } else { hold }
    }
}

fn tune_weight(dial: &mut Dial<'_>, name: &str, weight: &mut u64) {
    let help = "most packets that one poll takes from this port";
    dial.number(|| Knob::number(format!("net.napi.dev.{name}.weight"), (1, MOST), "packets", help), weight);
}

/// The polls of one port.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    /// Packets of one poll.
    pub(crate) weight: usize,
    /// Nothing more is taken from the port.
    pub(crate) closed: bool,
    /// Given by the port beyond that.
    overflow: VecDeque<Received>,
    polls: u64,
    full: u64,
    overflows: u64,
    pub(crate) wake_ups: u64,
    pub(crate) taken: u64,
}

impl Polls {
    /// Takes at most the weight, and at most `left`, which becomes what is left of it. `rx` has no packets before.
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

/// Whose turn it is in a round of two ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundRobin {
    /// The end that is first: the one that got nothing of the last round's budget.
    first: usize,
}

impl RoundRobin {
    /// Lets both ends forward within `budget` packets; whether one of them has more.
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

/// The loop's rest: what it does when a round left nothing.
#[derive(Debug, Default)]
pub(crate) struct IdlePolicy {
    /// Packets that the pipeline had taken at the last look, and when there were new ones.
    taken: u64,
    last: Nanos,
    timers: u64,
}

/// How to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepMode {
    /// Ask again at once.
    Spin,
    /// Until the timer; ports do not wake it.
    Timer(u64),
    /// Until a port has something.
    Ports,
}

impl IdlePolicy {
    /// How to rest after a round at `now` that left nothing; `taken` are packets taken so far.
    pub(crate) fn sleep_mode(&mut self, policy: &PollPolicy, taken: u64, now: Nanos) -> SleepMode {
        if self.taken != taken {
            (self.taken, self.last, self.timers) = (taken, now, policy.deferrals);
        }
        if policy.busy_poll > 0 && taken > 0 && now.0.saturating_sub(self.last.0) < policy.busy_poll {
            return SleepMode::Spin;
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
        let mut ways = |taken, now| idle.sleep_mode(&policy, taken, Nanos(now));
        assert_eq!(ways(0, 50), SleepMode::Ports, "nothing has come yet");
        assert_eq!([ways(1, 60), ways(1, 159)], [SleepMode::Spin; 2]);
        assert_eq!([ways(1, 160), ways(1, 167)], [SleepMode::Timer(7); 2]);
        assert_eq!([ways(1, 174), ways(1, 9999)], [SleepMode::Ports; 2]);
        // A packet begins it anew.
        assert_eq!(ways(2, 10_000), SleepMode::Spin);
        assert_eq!(ways(2, 10_100), SleepMode::Timer(7));
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
