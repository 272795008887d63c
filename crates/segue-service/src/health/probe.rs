//! The sending half of a tunnel's probe: when a request is sent, and the verdict from the replies.
//!
//! A request leaves once an interval. Where a reply is missing, the next ones leave in a quarter of it, so that one
//! that was lost on the way is told from an end that is gone; after [`SILENT`] tenths of an interval without a reply
//! that end counts as silent, and a request leaves once an interval again. Time in which this
//! host did not ask is no silence: the second request without a reply must be [`REPEATED`] tenths old.
//!
//! Until a reply or a request of the other end says that it understands them, it gets hellos only: three, and then one
//! in ten seconds at most.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use segue::encap::Identity;
use segue::hash;
use segue_datapath::tunnel::probe::{Kind, Measured, Message, Probe};

/// Time without a reply after which the remote end counts as silent, in tenths of an interval. One lost message makes
/// twenty.
const SILENT: u32 = 24;
/// Age of the second request without a reply below which the remote end does not count as silent, in tenths of an
/// interval.
const REPEATED: u32 = 4;
/// Shortest time between two echo requests.
const SHORTEST: Duration = Duration::from_millis(250);
/// Number of hellos sent at the normal interval to a remote that has never announced support for the probe.
const FIRST_HELLOS: u32 = 3;
/// Shortest time between two hellos after the first [`FIRST_HELLOS`].
const LATER_HELLOS: Duration = Duration::from_secs(10);
/// Time after which a request counts as lost, where the interval is shorter.
const LATE: Duration = Duration::from_secs(2);
/// Age below which a request of the remote end counts as fresh.
const FRESH: Duration = Duration::from_secs(1);

/// Verdict of a probe on the remote end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The remote end replies, or its next reply is not overdue.
    Answers,
    /// The remote sends no replies.
    Silent {
        /// The time for which requests had no reply.
        span: Duration,
        /// Whether the remote end has ever replied.
        has_replied: bool,
        /// The last part of `span`, in which a remote that is gone sends nothing.
        quiet: Duration,
        /// Whether the remote end's own requests arrive.
        sends_requests: bool,
    },
}

/// The sending half of the probe of one tunnel.
#[derive(Debug)]
pub(crate) struct Prober {
    probe: Arc<Probe>,
    identity: Identity,
    to: SocketAddr,
    /// Seconds between two requests at the last look; 0 while the probe is off.
    interval: u64,
    /// The time of the next request.
    due: Option<Instant>,
    /// The time of the first request since the probe is on.
    began: Option<Instant>,
    /// Number of requests sent since the probe is on.
    hellos: u32,
    /// Number of replies at the last look, and the times of the first two requests sent since a reply.
    replies: u64,
    unreplied: [Option<Instant>; 2],
    /// Number of requests made in all.
    pub(super) sent: u64,
    /// Numbers of requests that have left, and that a filter of this host refused.
    pub(super) left: u64,
    pub(super) denied: u64,
}

impl Prober {
    /// Creates the sending half for a tunnel to `to` whose packets have this identity.
    pub(crate) fn new(probe: Arc<Probe>, identity: Identity, to: SocketAddr) -> Prober {
        Prober {
            probe,
            identity,
            to,
            interval: 0,
            due: None,
            began: None,
            hellos: 0,
            replies: 0,
            unreplied: [None; 2],
            sent: 0,
            left: 0,
            denied: 0,
        }
    }

    /// Returns the time of the next request; `None` while the probe is off.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns whether the probe is on.
    pub(super) fn is_on(&self) -> bool {
        self.began.is_some()
    }

    /// Returns the measurements of the probe.
    pub(super) fn measured(&self) -> Measured {
        self.probe.measured()
    }

    /// Sends a request if one is due. `nonce` returns numbers that no other host can guess.
    pub(super) fn send_due(&mut self, now: Instant, socket: &UdpSocket, nonce: impl FnOnce() -> u64) {
        let measured = self.probe.measured();
        let interval = Duration::from_secs(measured.interval);
        self.probe.expire(interval.max(LATE).as_nanos() as u64);
        if measured.interval != self.interval {
            // The next request may be far away by the interval of before.
            (self.interval, self.began, self.hellos, self.due) = (measured.interval, None, 0, None);
            self.unreplied = [None; 2];
        }
        if interval.is_zero() {
            return;
        }
        if measured.replies != self.replies {
            (self.replies, self.unreplied) = (measured.replies, [None; 2]);
        }
        // An end that begins to send requests gets one at once: it can reply now.
        let peer_request = measured.peer_request_age.map(Duration::from_nanos);
        let is_new =
            self.hellos >= FIRST_HELLOS && measured.reply_age.is_none() && peer_request.is_some_and(|age| age < FRESH);
        if self.due.is_some_and(|due| now < due) && !is_new {
            return;
        }
        let began = *self.began.get_or_insert(now);
        let kind = if measured.reply_age.is_some() { Kind::EchoRequest } else { Kind::Hello };
        let message = Message { kind, identity: self.identity, nonce: nonce().max(1) };
        self.probe.note_sent(kind, message.nonce);
        // A call may return the error of an earlier datagram; then it has sent nothing.
        let send = || socket.send_to(&message.bytes(), self.to);
        match send().or_else(|_| send()) {
            Ok(_) => self.left += 1,
            Err(error) => self.denied += u64::from(error.kind() == ErrorKind::PermissionDenied),
        }
        (self.hellos, self.sent) = (self.hellos.saturating_add(1), self.sent + 1);
        if let Some(free) = self.unreplied.iter_mut().find(|at| at.is_none()) {
            *free = Some(now);
        }
        self.due = Some(now + pause(interval, &measured, self.hellos, now.saturating_duration_since(began)));
    }

    /// Returns the time of the last reply; `None` while the probe is off.
    pub(super) fn last_reply(&self, now: Instant) -> Option<Instant> {
        self.began?;
        now.checked_sub(Duration::from_nanos(self.probe.measured().reply_age?))
    }

    /// Returns the verdict of the probe; `None` while it is off.
    pub(super) fn verdict(&self, now: Instant) -> Option<Verdict> {
        let began = self.began?;
        let measured = Measured { interval: self.interval, ..self.probe.measured() };
        let age = |at: Instant| now.saturating_duration_since(at);
        let unreplied = self.unreplied.map(|at| at.filter(|_| measured.replies == self.replies).map(age));
        Some(verdict(&measured, age(began), unreplied))
    }
}

/// Returns the time without a reply: since the last one, or since the probe was switched on if that is later.
fn without_reply(measured: &Measured, sending: Duration) -> Duration {
    measured.reply_age.map_or(sending, |age| Duration::from_nanos(age).min(sending))
}

/// Returns the time from a request to the next one, after `hellos` hellos in the time `sending`.
fn pause(interval: Duration, measured: &Measured, hellos: u32, sending: Duration) -> Duration {
    let age = without_reply(measured, sending);
    match (measured.reply_age, measured.peer_request_age) {
        (None, None) if hellos >= FIRST_HELLOS => interval.max(LATER_HELLOS),
        (None, _) => interval,
        // The last request had its reply within an interval.
        (Some(_), _) if age < interval + interval / 4 => interval,
        (Some(_), _) if age < interval * SILENT / 10 => (interval / 4).max(SHORTEST),
        (Some(_), _) => interval,
    }
}

/// Returns the verdict on an end to which requests were sent for the time `sending`; `unreplied` are the ages of the
/// first two without a reply.
fn verdict(measured: &Measured, sending: Duration, unreplied: [Option<Duration>; 2]) -> Verdict {
    let interval = Duration::from_secs(measured.interval);
    let [Some(first), Some(second)] = unreplied else { return Verdict::Answers };
    let span = without_reply(measured, sending);
    if span < interval * SILENT / 10 || second < interval * REPEATED / 10 {
        return Verdict::Answers;
    }
    // A quarter of an interval is for packets that were on their way.
    let quiet = first.saturating_sub(interval / 4);
    let sends_requests = measured.peer_request_age.is_some_and(|age| Duration::from_nanos(age) < quiet);
    Verdict::Silent { span, has_replied: measured.reply_age.is_some(), quiet, sends_requests }
}

/// The nonces of the requests: a keyed hash of a counter, so that earlier ones do not reveal the next.
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

    fn measured(reply: Option<Duration>, request: Option<Duration>) -> Measured {
        let nanos = |age: Option<Duration>| age.map(|age| age.as_nanos() as u64);
        Measured { interval: 1, reply_age: nanos(reply), peer_request_age: nanos(request), ..Measured::default() }
    }

    #[test]
    fn one_lost_message_is_no_silence_and_an_end_that_is_gone_is_silent_within_three_seconds() {
        let long = SECOND * 100;
        let verdict = |measured: &Measured, sending: Duration| {
            let span = without_reply(measured, sending);
            let first = if measured.reply_age.is_some() { span - SECOND } else { span };
            verdict(measured, sending, [Some(first), Some(first - SECOND)])
        };
        assert_eq!(verdict(&measured(Some(SECOND * 21 / 10), None), long), Verdict::Answers);
        let quiet = SECOND * 5 / 4;
        let silent = Verdict::Silent { span: SECOND * 5 / 2, has_replied: true, quiet, sends_requests: false };
        // The verdict is read twice a second.
        assert_eq!(verdict(&measured(Some(SECOND * 5 / 2), None), long), silent);
        assert_eq!(
            verdict(&measured(Some(SECOND * 5 / 2), Some(SECOND * 2)), long),
            silent,
            "its request came before it was gone"
        );
        let sends_request =
            Verdict::Silent { span: SECOND * 3, has_replied: false, quiet: SECOND * 11 / 4, sends_requests: true };
        assert_eq!(verdict(&measured(None, Some(SECOND)), SECOND * 3), sends_request);
        assert_eq!(verdict(&measured(None, None), SECOND), Verdict::Answers, "requests were sent for a second only");
    }

    /// Returns a prober whose requests go to this address.
    fn prober(interval: u64, to: SocketAddr) -> Prober {
        Prober::new(Arc::new(Probe::new(interval)), Identity::Protocol(4), to)
    }

    #[test]
    fn a_watch_that_ran_late_blames_no_end_for_what_it_did_not_ask() {
        let verdict_at = |unreplied| verdict(&measured(Some(SECOND * 5), None), SECOND * 100, unreplied);
        for asked in [[None; 2], [Some(SECOND * 4), None], [Some(SECOND * 4), Some(SECOND * 3 / 10)]] {
            assert_eq!(verdict_at(asked), Verdict::Answers, "{asked:?}");
        }
        let quiet = SECOND * 15 / 4;
        let silent = Verdict::Silent { span: SECOND * 5, has_replied: true, quiet, sends_requests: false };
        assert_eq!(verdict_at([Some(SECOND * 4), Some(SECOND * 4 / 10)]), silent);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut prober = prober(1, socket.local_addr().unwrap());
        let begin = Instant::now();
        for (ms, is_silent) in [(0, false), (9_000, false), (9_300, false), (9_400, true)] {
            let now = begin + Duration::from_millis(ms);
            prober.send_due(now, &socket, || 1);
            assert_eq!(matches!(prober.verdict(now), Some(Verdict::Silent { .. })), is_silent, "{ms}");
        }
    }

    #[test]
    fn a_shorter_interval_counts_from_its_change_and_the_first_request_leaves_at_once() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut prober = prober(60, socket.local_addr().unwrap());
        let begin = Instant::now();
        let look = |prober: &mut Prober, seconds: u64| {
            let now = begin + Duration::from_secs(seconds);
            prober.send_due(now, &socket, || 1);
            (prober.sent, prober.due(), prober.verdict(now))
        };
        let due = |seconds: u64| Some(begin + Duration::from_secs(seconds));
        assert_eq!(look(&mut prober, 0), (1, due(60), Some(Verdict::Answers)));
        assert_eq!(look(&mut prober, 59), (1, due(60), Some(Verdict::Answers)));
        prober.probe = Arc::new(Probe::new(1));
        assert_eq!(look(&mut prober, 59), (2, due(60), Some(Verdict::Answers)));
        assert_eq!(look(&mut prober, 60), (3, due(61), Some(Verdict::Answers)), "not silent since the first one");
        prober.probe = Arc::new(Probe::new(0));
        assert_eq!(look(&mut prober, 61), (3, None, None));
    }

    #[test]
    fn a_request_that_this_host_refuses_to_send_has_not_left() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut prober = prober(1, "127.255.255.255:9".parse().unwrap());
        let look = |prober: &mut Prober| {
            prober.send_due(Instant::now(), &socket, || 1);
            [prober.sent, prober.left, prober.denied]
        };
        // A broadcast, which the kernel refuses to a socket that is not made for it by the same error.
        assert_eq!(look(&mut prober), [1, 0, 1]);
        (prober.to, prober.due) = (socket.local_addr().unwrap(), None);
        assert_eq!(look(&mut prober), [2, 1, 1]);
    }

    #[test]
    fn after_a_missing_reply_requests_leave_more_often_until_the_end_is_silent() {
        let pause =
            |reply: u32, hellos| pause(SECOND, &measured(Some(SECOND * reply / 10), None), hellos, SECOND * 100);
        assert_eq!(pause(10, 50), SECOND);
        assert_eq!(pause(20, 50), SHORTEST);
        assert_eq!(pause(30, 50), SECOND);
    }

    #[test]
    fn an_end_that_has_never_said_that_it_understands_gets_a_hello_in_ten_seconds() {
        let pause = |request, hellos| pause(SECOND, &measured(None, request), hellos, SECOND * 100);
        assert_eq!(pause(None, 1), SECOND);
        assert_eq!(pause(None, FIRST_HELLOS), LATER_HELLOS);
        assert_eq!(pause(Some(SECOND), FIRST_HELLOS), SECOND, "it sends requests itself");
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
