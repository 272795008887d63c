//! The asking half of a tunnel's probe: when a message leaves, and what its answers say.
//!
//! The other end is asked once an interval. Where an answer is missing, the next messages leave in a quarter of it, so
//! that one that was lost on the way is told from an end that is gone; after [`SILENT`] tenths of an interval without
//! an answer that end counts as silent, and is asked once an interval again.
//!
//! Until an answer or a message of the other end says that it understands them, it gets hellos only: three, and then
//! one in ten seconds at most.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use segue::encap::Identity;
use segue::hash;
use segue_datapath::tunnel::probe::{Kind, Measured, Message, Probe};

/// Tenths of an interval without an answer after which the other end is silent. One lost message makes twenty.
const SILENT: u32 = 24;
/// Shortest time between two messages.
const SHORTEST: Duration = Duration::from_millis(250);
/// Hellos that leave at the interval while the other end has never said that it understands them.
const FIRST_HELLOS: u32 = 3;
/// Shortest time between two hellos after those.
const LATER_HELLOS: Duration = Duration::from_secs(10);
/// Time after which a question counts as lost, where the interval is shorter.
const LATE: Duration = Duration::from_secs(2);
/// Age of a message of the other end that counts as fresh.
const FRESH: Duration = Duration::from_secs(1);

/// What the probe of a tunnel says about the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its answers come, or may still come.
    Answers,
    /// It does not answer.
    Silent {
        /// The time for which it has been asked in vain.
        span: Duration,
        /// Whether it has ever answered.
        has_answered: bool,
        /// The last part of that time, in which an end that is gone sends nothing.
        quiet: Duration,
        /// Whether its own messages arrive.
        asks: bool,
    },
}

/// The asking half of the probe of one tunnel.
#[derive(Debug)]
pub(crate) struct Prober {
    probe: Arc<Probe>,
    identity: Identity,
    to: SocketAddr,
    /// The time of the next message.
    due: Option<Instant>,
    /// The time of the first message since the probe is on.
    began: Option<Instant>,
    /// Messages sent since then.
    hellos: u32,
    /// Messages sent in all.
    pub(super) sent: u64,
}

impl Prober {
    /// Creates the asking half for a tunnel to `to` whose packets have this identity.
    pub(crate) fn new(probe: Arc<Probe>, identity: Identity, to: SocketAddr) -> Prober {
        Prober { probe, identity, to, due: None, began: None, hellos: 0, sent: 0 }
    }

    /// Returns the time of the next message; `None` while the probe is off.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns what was measured.
    pub(super) fn measured(&self) -> Measured {
        self.probe.measured()
    }

    /// Sends a message if one is due. `nonce` returns numbers that no other host can guess.
    pub(super) fn ask(&mut self, now: Instant, socket: &UdpSocket, nonce: impl FnOnce() -> u64) {
        let measured = self.probe.measured();
        let interval = Duration::from_secs(measured.interval);
        self.probe.expire(interval.max(LATE).as_nanos() as u64);
        if interval.is_zero() {
            (self.began, self.hellos, self.due) = (None, 0, None);
            return;
        }
        // An end that begins to ask is asked at once: it can answer now.
        let hears = measured.heard_age.map(Duration::from_nanos);
        let is_new =
            self.hellos >= FIRST_HELLOS && measured.answered_age.is_none() && hears.is_some_and(|age| age < FRESH);
        if self.due.is_some_and(|due| now < due) && !is_new {
            return;
        }
        let began = *self.began.get_or_insert(now);
        let kind = if measured.answered_age.is_some() { Kind::Question } else { Kind::Hello };
        let message = Message { kind, identity: self.identity, nonce: nonce().max(1) };
        self.probe.ask(kind, message.nonce);
        // A call may return the error of an earlier datagram; then it has sent nothing.
        if socket.send_to(&message.bytes(), self.to).is_err() {
            let _ = socket.send_to(&message.bytes(), self.to);
        }
        (self.hellos, self.sent) = (self.hellos.saturating_add(1), self.sent + 1);
        self.due = Some(now + pause(interval, &measured, self.hellos, now.saturating_duration_since(began)));
    }

    /// Returns the time of the last answer; `None` while the probe is off.
    pub(super) fn last_answered(&self, now: Instant) -> Option<Instant> {
        self.began?;
        now.checked_sub(Duration::from_nanos(self.probe.measured().answered_age?))
    }

    /// Returns what the probe says; `None` while it is off.
    pub(super) fn verdict(&self, now: Instant) -> Option<Verdict> {
        let began = self.began?;
        Some(verdict(&self.probe.measured(), now.saturating_duration_since(began)))
    }
}

/// Returns how long nothing was answered: since the last answer, or since the probe is on where that is shorter.
fn unanswered(measured: &Measured, asking: Duration) -> Duration {
    measured.answered_age.map_or(asking, |age| Duration::from_nanos(age).min(asking))
}

/// Returns the time from a message to the next one, after `hellos` of them in the time `asking`.
fn pause(interval: Duration, measured: &Measured, hellos: u32, asking: Duration) -> Duration {
    let age = unanswered(measured, asking);
    match (measured.answered_age, measured.heard_age) {
        (None, None) if hellos >= FIRST_HELLOS => interval.max(LATER_HELLOS),
        (None, _) => interval,
        // The last message had its answer within an interval.
        (Some(_), _) if age < interval + interval / 4 => interval,
        (Some(_), _) if age < interval * SILENT / 10 => (interval / 4).max(SHORTEST),
        (Some(_), _) => interval,
    }
}

/// Returns the verdict on an end that was asked for the time `asking`.
fn verdict(measured: &Measured, asking: Duration) -> Verdict {
    let interval = Duration::from_secs(measured.interval);
    let span = unanswered(measured, asking);
    if span < interval * SILENT / 10 {
        return Verdict::Answers;
    }
    let quiet = span - interval * 5 / 4;
    let asks = measured.heard_age.is_some_and(|age| Duration::from_nanos(age) < quiet);
    Verdict::Silent { span, has_answered: measured.answered_age.is_some(), quiet, asks }
}

/// The numbers of the messages: a keyed hash of a counter, so that those before do not tell the next one.
#[derive(Debug)]
pub(super) struct Nonces {
    key: hash::Key,
    next: u64,
}

impl Nonces {
    pub(super) fn new(key: hash::Key) -> Nonces {
        Nonces { key, next: 0 }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.next += 1;
        self.key.hash(&self.next.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn measured(answered: Option<Duration>, heard: Option<Duration>) -> Measured {
        let nanos = |age: Option<Duration>| age.map(|age| age.as_nanos() as u64);
        Measured { interval: 1, answered_age: nanos(answered), heard_age: nanos(heard), ..Measured::default() }
    }

    #[test]
    fn one_lost_message_is_no_silence_and_an_end_that_is_gone_is_silent_within_three_seconds() {
        let long = SECOND * 100;
        assert_eq!(verdict(&measured(Some(SECOND * 21 / 10), None), long), Verdict::Answers);
        let quiet = SECOND * 5 / 4;
        let silent = Verdict::Silent { span: SECOND * 5 / 2, has_answered: true, quiet, asks: false };
        // The verdict is asked for twice a second.
        assert_eq!(verdict(&measured(Some(SECOND * 5 / 2), None), long), silent);
        assert_eq!(
            verdict(&measured(Some(SECOND * 5 / 2), Some(SECOND * 2)), long),
            silent,
            "it asked before it was gone"
        );
        let asks = Verdict::Silent { span: SECOND * 3, has_answered: false, quiet: SECOND * 7 / 4, asks: true };
        assert_eq!(verdict(&measured(None, Some(SECOND)), SECOND * 3), asks);
        assert_eq!(verdict(&measured(None, None), SECOND), Verdict::Answers, "it has been asked for a second only");
    }

    #[test]
    fn a_missing_answer_is_asked_for_more_often_until_the_end_is_silent() {
        let pause =
            |answered: u32, hellos| pause(SECOND, &measured(Some(SECOND * answered / 10), None), hellos, SECOND * 100);
        assert_eq!(pause(10, 50), SECOND);
        assert_eq!(pause(20, 50), SHORTEST);
        assert_eq!(pause(30, 50), SECOND);
    }

    #[test]
    fn an_end_that_has_never_said_that_it_understands_gets_a_hello_in_ten_seconds() {
        let pause = |heard, hellos| pause(SECOND, &measured(None, heard), hellos, SECOND * 100);
        assert_eq!(pause(None, 1), SECOND);
        assert_eq!(pause(None, FIRST_HELLOS), LATER_HELLOS);
        assert_eq!(pause(Some(SECOND), FIRST_HELLOS), SECOND, "it asks itself");
    }

    #[test]
    fn no_two_numbers_are_the_same_and_another_key_has_others() {
        let numbers = |key| {
            let mut nonces = Nonces::new(hash::Key([key, 2]));
            (0..1000).map(|_| nonces.next()).collect::<std::collections::BTreeSet<u64>>()
        };
        let (one, other) = (numbers(1), numbers(9));
        assert!(one.len() == 1000 && one.is_disjoint(&other));
    }
}
