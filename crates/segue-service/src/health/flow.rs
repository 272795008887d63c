//! Traffic of one tunnel as evidence: when it was last sent, answered and refused.

use std::time::{Duration, Instant};

use super::probe::Verdict;

/// Counters of a tunnel at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) refused: u64,
    /// The reason of the last refusal.
    pub(super) why: Option<&'static str>,
}

/// ICMP errors about a tunnel's datagrams, each one soon after the preceding one.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    first: Instant,
    last: Instant,
    /// Whether nothing was received for a while since the first error.
    was_quiet: bool,
    /// Whether packets were received between two errors: then received packets do not disprove the refusal.
    despite: bool,
}

/// The traffic of one tunnel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) counts: Counts,
    pub(super) last_sent: Option<Instant>,
    /// The time after which the last packet was certainly sent.
    sent_after: Option<Instant>,
    pub(super) last_received: Option<Instant>,
    /// The time of the last update.
    updated: Option<Instant>,
    /// The time after which the last packet was certainly received.
    received_after: Option<Instant>,
    refusals: Option<Refusals>,
    pub(super) last_refused: Option<Instant>,
    /// The time of the first packet sent since one was received, and the number of packets sent since then.
    unanswered: Option<(Instant, u64)>,
    /// Number of datagrams refused since the last accepted one.
    refused_in_a_row: u64,
    /// Verdict of the probe, if it is on.
    pub(super) probe: Option<Verdict>,
    /// Time of the last reply to the probe.
    pub(super) last_reply: Option<Instant>,
}

/// Time of sending without an answer after which a tunnel counts as unanswered.
const UNANSWERED: Duration = Duration::from_secs(10);
/// Time after which refused datagrams no longer count, unless further ones arrive.
const STALE: Duration = Duration::from_secs(60);
/// Longest time between two ICMP errors that belong together.
const REFUSALS: Duration = Duration::from_secs(10);
/// Number of refused datagrams that count as a problem; a single one may be a stray.
const STRAY: u64 = 2;

impl Flow {
    /// Updates the flow with the current counters. Returns whether they have changed.
    pub(super) fn update(&mut self, counts: Counts, now: Instant) -> bool {
        let before = std::mem::replace(&mut self.counts, counts);
        let risen = |now: u64, before: u64| now.saturating_sub(before);
        let sent = risen(counts.sent, before.sent);
        let refused = risen(counts.refused, before.refused);
        let updated = self.updated.replace(now);
        if risen(counts.received, before.received) > 0 {
            self.last_received = Some(now);
            self.received_after = updated;
            self.unanswered = None;
            self.refused_in_a_row = 0;
        } else if sent > 0 {
            let (since, count) = self.unanswered.unwrap_or((now, 0));
            self.unanswered = Some((since, count + sent));
        }
        if let Some(refusals) = &mut self.refusals {
            let was_quiet = self.last_received != Some(now) && updated.is_some_and(|at| at >= refusals.first);
            refusals.was_quiet |= was_quiet;
        }
        if sent > 0 {
            self.last_sent = Some(now);
            self.sent_after = updated;
        }
        if refused > 0 {
            // Strays that are far apart are no streak.
            if !self.is_fresh(now) {
                self.refused_in_a_row = 0;
            }
            self.last_refused = Some(now);
            self.refused_in_a_row += if self.last_received == Some(now) { 0 } else { refused };
        }
        counts != before
    }

    /// Returns whether a packet was certainly received after `then`: the time of an update is only the latest possible
    /// one.
    pub(super) fn received_since(&self, then: Instant) -> bool {
        self.received_after.is_some_and(|after| after >= then)
    }

    /// Returns whether a packet was certainly sent after `then`.
    pub(super) fn sent_since(&self, then: Instant) -> bool {
        self.sent_after.is_some_and(|after| after >= then)
    }

    /// Returns whether datagrams were refused since the last accepted one.
    pub(super) fn has_refused(&self) -> bool {
        self.refused_in_a_row > 0
    }

    /// Forgets the datagrams that were refused.
    pub(super) fn forgive(&mut self) {
        self.refused_in_a_row = 0;
    }

    /// Returns whether the last refused datagram still counts.
    fn is_fresh(&self, now: Instant) -> bool {
        self.last_refused.is_some_and(|at| now.saturating_duration_since(at) < STALE)
    }

    /// Notes the time of the last ICMP error about a datagram of the tunnel.
    pub(super) fn note_refusal(&mut self, at: Instant) {
        let despite = self.refusals.is_some_and(|known| self.received_since(known.last));
        match &mut self.refusals {
            Some(known) if at <= known.last => {}
            Some(known) if at - known.last < REFUSALS => {
                known.despite |= despite;
                known.last = at;
            }
            refusals => *refusals = Some(Refusals { first: at, last: at, was_quiet: false, despite: false }),
        }
    }

    /// Returns whether the remote end sent nothing while it refused packets, and packets were received after the last
    /// ICMP error. An end that sends all the time although another port of it is asked says nothing by that.
    pub(super) fn is_heard_again(&self) -> bool {
        let is_after = |refusals: Refusals| self.received_since(refusals.last);
        self.refusals.is_some_and(|refusals| refusals.was_quiet && !refusals.despite && is_after(refusals))
    }

    /// Returns the reason where everything that arrives is refused.
    pub(super) fn refuses_everything(&self, now: Instant) -> Option<&'static str> {
        (self.refused_in_a_row >= STRAY && self.is_fresh(now)).then_some(self.counts.why).flatten()
    }

    /// Returns how long, and how many, packets have been sent without an answer, from ten seconds on.
    pub(super) fn unanswered(&self) -> Option<(Duration, u64)> {
        let (since, count) = self.unanswered?;
        let span = self.last_sent?.saturating_duration_since(since);
        (span >= UNANSWERED).then_some((span, count))
    }
}

/// The packets of an instance to the outside.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outgoing {
    /// Number of packets that have left.
    left: u64,
    /// Number of packets that this host refused to send.
    denied: u64,
    /// Number of packets that were refused since the last one that has left.
    denied_in_a_row: u64,
    last_denied: Option<Instant>,
}

impl Outgoing {
    /// Updates the numbers of packets that have left, and that this host refused to send. Returns whether
    /// [`Outgoing::denied`] begins or ends.
    pub(super) fn update(&mut self, left: u64, denied: u64, now: Instant) -> bool {
        let before = *self;
        (self.left, self.denied) = (left, denied);
        let is_fresh = self.last_denied.is_some_and(|at| now.saturating_duration_since(at) < STALE);
        if left > before.left || !is_fresh {
            self.denied_in_a_row = 0;
        }
        let risen = denied.saturating_sub(before.denied);
        if risen > 0 {
            self.last_denied = Some(now);
            self.denied_in_a_row += if left > before.left { 0 } else { risen };
        }
        self.denied().is_some() != before.denied().is_some()
    }

    /// Returns the time of the last refusal, where this host refuses all packets.
    pub(super) fn denied(&self) -> Option<Instant> {
        self.last_denied.filter(|_| self.denied_in_a_row >= STRAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begin: Instant, seconds: u64) -> Instant {
        begin + Duration::from_secs(seconds)
    }

    #[test]
    fn ten_seconds_of_sending_without_an_answer_are_unanswered_and_one_answer_ends_it() {
        let (begin, mut flow) = (Instant::now(), Flow::default());
        let mut counts = Counts::default();
        for second in 0..10 {
            counts.sent += 3;
            flow.update(counts, at(begin, second));
            assert_eq!(flow.unanswered(), None, "{second}");
        }
        counts.sent += 1;
        flow.update(counts, at(begin, 10));
        assert_eq!(flow.unanswered(), Some((Duration::from_secs(10), 31)));
        // It stays so while nothing is sent.
        flow.update(counts, at(begin, 100));
        assert_eq!(flow.unanswered(), Some((Duration::from_secs(10), 31)));
        counts.received += 1;
        flow.update(counts, at(begin, 101));
        assert_eq!(flow.unanswered(), None);
    }

    #[test]
    fn a_burst_that_nobody_answers_is_not_unanswered() {
        let (begin, mut flow) = (Instant::now(), Flow::default());
        flow.update(Counts { sent: 1_000_000, ..Counts::default() }, begin);
        flow.update(flow.counts, at(begin, 3600));
        assert_eq!(flow.unanswered(), None);
    }

    #[test]
    fn an_end_that_was_quiet_while_it_refused_is_heard_again_and_one_that_sends_all_the_time_is_not() {
        let (begin, mut flow) = (Instant::now(), Flow::default());
        let mut received = 0;
        let mut tick = |flow: &mut Flow, half: u64, hears: bool, refusal: Option<u64>| {
            received += u64::from(hears);
            flow.update(Counts { received, ..Counts::default() }, begin + Duration::from_millis(500 * half));
            if let Some(ms) = refusal {
                flow.note_refusal(begin + Duration::from_millis(ms));
            }
            flow.is_heard_again()
        };
        // It is killed between two updates, in the first of which it was still heard.
        assert!(!tick(&mut flow, 1, true, None));
        assert!(!tick(&mut flow, 2, true, Some(900)), "before the error");
        assert!(!tick(&mut flow, 3, false, None) && !tick(&mut flow, 4, false, Some(1900)));
        assert!(!tick(&mut flow, 5, false, None));
        assert!(tick(&mut flow, 6, true, None), "it is back");
        // An end that answers from another port than the one that is asked.
        let mut flow = Flow::default();
        assert!(!tick(&mut flow, 1, true, Some(100)));
        for half in 2..9 {
            assert!(!tick(&mut flow, half, true, Some(500 * half - 400)), "{half}");
        }
        // One that does so now and then: the next error shows that its packets say nothing.
        let mut flow = Flow::default();
        assert!(!tick(&mut flow, 1, false, Some(400)) && !tick(&mut flow, 2, false, None));
        assert!(tick(&mut flow, 3, true, None));
        assert!(!tick(&mut flow, 4, true, Some(1_900)));
        assert!(!tick(&mut flow, 5, false, None) && !tick(&mut flow, 6, true, None));
    }

    #[test]
    fn refused_datagrams_are_a_problem_until_one_is_taken() {
        let (begin, mut flow) = (Instant::now(), Flow::default());
        let refused = |refused, received| Counts { refused, received, why: Some("vni"), ..Counts::default() };
        flow.update(refused(1, 0), begin);
        assert_eq!(flow.refuses_everything(begin), None, "one may be a stray");
        flow.update(refused(2, 0), at(begin, 1));
        assert_eq!(flow.refuses_everything(at(begin, 1)), Some("vni"));
        assert_eq!(flow.refuses_everything(at(begin, 120)), None, "nothing arrives any more");
        flow.update(refused(3, 1), at(begin, 121));
        assert_eq!(flow.refuses_everything(at(begin, 121)), None, "some are taken");
        flow.update(refused(9, 1), at(begin, 122));
        assert_eq!(flow.refuses_everything(at(begin, 122)), Some("vni"), "and then no more");
        flow.update(refused(10, 1), at(begin, 182));
        assert_eq!(flow.refuses_everything(at(begin, 182)), None, "a stray long after them");
        flow.update(refused(11, 1), at(begin, 183));
        assert_eq!(flow.refuses_everything(at(begin, 183)), Some("vni"));
    }
}
