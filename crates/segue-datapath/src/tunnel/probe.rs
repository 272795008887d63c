//! The probe: an echo inside a tunnel, in GUE control messages, and its measurements.
//!
//! docs/health.md has the format for other implementations. A *hello* and an *echo request* have a nonce that no other
//! host can guess; an *echo reply* repeats it. Only a reply to a nonce that is outstanding counts, and only once, so
//! that a forged or repeated one changes nothing. A reply is as long as its request, and goes to a configured remote at
//! a limited rate.
//!
//! The thread that sends and the workers that receive share one [`Probe`] for each tunnel: the worker that receives a
//! reply takes its nonce off the list.

use segue::encap::{Carrier, Config, Identity};
use segue::wire::{gue, protocol};

use crate::sync::{AtomicU64, Ordering};

/// Length of a probe message in bytes, GUE header included; all kinds have the same length.
pub const MESSAGE_LEN: usize = gue::BASE_LEN + 20;
/// GUE control type of probe messages. Other uses of the number do not begin with [`MAGIC`].
const CONTROL_TYPE: u8 = 0xd1;
/// Magic number after the GUE header; its last byte is the version of the format.
const MAGIC: [u8; 4] = *b"SGP\x01";
/// The GUE version and the control flag, in the first byte of a datagram.
const VERSION_AND_CONTROL: u8 = 0xe0;
/// The value of [`VERSION_AND_CONTROL`] of a control message.
const CONTROL: u8 = 0x20;
// Flags of the identity: a GRE key is present, and Ethernet is inside.
const HAS_KEY: u8 = 1;
const ETHERNET: u8 = 2;

/// Kinds of probe messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An echo request to a remote end that may not support the probe; its loss is not counted.
    Hello,
    /// An echo request to a remote end that has replied before.
    EchoRequest,
    /// The reply to an echo request or a hello.
    EchoReply,
}

/// A message of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The kind of the message.
    pub kind: Kind,
    /// The identity of the tunnel's packets in the direction of the message.
    pub identity: Identity,
    /// Number of a request, which the reply repeats; never 0.
    pub nonce: u64,
}

/// Returns whether a datagram of GUE is a control message.
#[inline]
pub(super) fn is_control(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & VERSION_AND_CONTROL == CONTROL)
}

impl Message {
    /// Reads a UDP payload; `None` where it is no message of the probe.
    pub fn parse(datagram: &[u8]) -> Option<Message> {
        let bytes: &[u8; MESSAGE_LEN] = datagram.try_into().ok()?;
        if bytes[..4] != [CONTROL, CONTROL_TYPE, 0, 0] || bytes[4..8] != MAGIC {
            return None;
        }
        let kind = match bytes[8] {
            1 => Kind::Hello,
            2 => Kind::EchoRequest,
            3 => Kind::EchoReply,
            _ => return None,
        };
        let (number, flags) = (bytes[9], bytes[10]);
        let key = u32::from_be_bytes(bytes[12..16].try_into().ok()?);
        let has_key = flags & HAS_KEY != 0;
        let is_gre = number == protocol::GRE;
        if bytes[11] != 0 || flags & !(HAS_KEY | ETHERNET) != 0 || (!has_key && key != 0) || (!is_gre && flags != 0) {
            return None;
        }
        let identity = match is_gre {
            true => Identity::Gre(has_key.then_some(key), flags & ETHERNET != 0),
            false => Identity::Protocol(number),
        };
        let nonce = u64::from_be_bytes(bytes[16..24].try_into().ok()?);
        (nonce != 0).then_some(Message { kind, identity, nonce })
    }

    /// Returns the message as a UDP payload.
    pub fn bytes(&self) -> [u8; MESSAGE_LEN] {
        let kind = match self.kind {
            Kind::Hello => 1,
            Kind::EchoRequest => 2,
            Kind::EchoReply => 3,
        };
        let (number, flags, key) = match self.identity {
            Identity::Gre(key, is_ethernet) => {
                let flags = if key.is_some() { HAS_KEY } else { 0 } | if is_ethernet { ETHERNET } else { 0 };
                (protocol::GRE, flags, key.unwrap_or(0))
            }
            Identity::Protocol(number) => (number, 0, 0),
            // No tunnel over GUE has one.
            Identity::Network(number) => (0, 0, number),
        };
        let mut bytes = [0; MESSAGE_LEN];
        bytes[..4].copy_from_slice(&[CONTROL, CONTROL_TYPE, 0, 0]);
        bytes[4..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&[kind, number, flags, 0]);
        bytes[12..16].copy_from_slice(&key.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.nonce.to_be_bytes());
        bytes
    }
}

/// Returns the identity of the tunnel's sent datagrams; `None` for a tunnel without GUE, which has no probe.
pub fn outgoing(config: &Config) -> Option<Identity> {
    if !matches!(config.carrier, Carrier::Gue { .. }) {
        return None;
    }
    let gre = config.mode.gre().map(|gre| Identity::Gre(gre.okey, config.mode.is_ethernet()));
    gre.or_else(|| config.identities().next())
}

/// Number of requests that may be outstanding. They leave at most four times a second, and late replies count for two
/// seconds at least.
const MOST_OUTSTANDING: usize = 8;

/// An echo request that awaits its answer.
#[derive(Debug, Default)]
struct Outstanding {
    /// The nonce of the request; 0 where this entry is free.
    nonce: AtomicU64,
    /// Time at which the request was sent, on the monotonic clock.
    sent: AtomicU64,
    /// Whether the loss of the request counts: 1 for an echo request, 0 for a hello.
    counts: AtomicU64,
}

/// The state of a tunnel's probe, shared by the thread that sends requests and the workers that receive.
#[derive(Debug, Default)]
pub struct Probe {
    /// Seconds between two requests; 0 switches the probe off.
    interval: AtomicU64,
    outstanding: [Outstanding; MOST_OUTSTANDING],
    requests: AtomicU64,
    lost: AtomicU64,
    replies: AtomicU64,
    /// Time of the last reply, 0 without one.
    reply_at: AtomicU64,
    /// Time of the last request from the remote end; 0 without one.
    peer_request_at: AtomicU64,
    /// Last round trip, nanoseconds.
    round_trip: AtomicU64,
    /// Smoothed mean of the round trips, nanoseconds.
    mean: AtomicU64,
}

/// The measurements of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Seconds between two requests; 0 where the probe is off.
    pub interval: u64,
    /// Number of echo requests sent.
    pub requests: u64,
    /// Number of replies to echo requests and hellos.
    pub replies: u64,
    /// Number of echo requests without a reply.
    pub lost: u64,
    /// Nanoseconds since the last reply.
    pub reply_age: Option<u64>,
    /// Nanoseconds since the last request from the remote end.
    pub peer_request_age: Option<u64>,
    /// The last round trip, nanoseconds.
    pub round_trip: Option<u64>,
    /// The smoothed round trip, nanoseconds (RFC 6298, section 2).
    pub mean: Option<u64>,
}

impl Probe {
    /// Creates the state of a probe with this interval in seconds.
    pub fn new(interval: u64) -> Probe {
        Probe { interval: AtomicU64::new(interval), ..Probe::default() }
    }

    /// Returns the number of seconds between two requests; 0 if the probe is off.
    pub fn interval(&self) -> u64 {
        self.interval.load(Ordering::Relaxed)
    }

    pub(super) fn set_interval(&self, seconds: u64) {
        self.interval.store(seconds, Ordering::Relaxed);
    }

    /// Records that a request with this nonce is sent now. It replaces the oldest one, which then is lost.
    pub fn note_sent(&self, kind: Kind, nonce: u64) {
        let oldest = self.outstanding.iter().min_by_key(|request| match request.nonce.load(Ordering::Relaxed) {
            0 => 0,
            _ => request.sent.load(Ordering::Relaxed),
        });
        let Some(place) = oldest else { return };
        self.give_up(place);
        let counts = u64::from(kind == Kind::EchoRequest);
        place.counts.store(counts, Ordering::Relaxed);
        place.sent.store(segue_port::now().0, Ordering::Relaxed);
        place.nonce.store(nonce, Ordering::Release);
        self.requests.fetch_add(counts, Ordering::Relaxed);
    }

    /// Counts the requests as lost that have been outstanding for longer than `nanoseconds`.
    pub fn expire(&self, nanoseconds: u64) {
        let now = segue_port::now().0;
        for place in &self.outstanding {
            if now.saturating_sub(place.sent.load(Ordering::Relaxed)) > nanoseconds {
                self.give_up(place);
            }
        }
    }

    /// Removes a request from the list as lost.
    fn give_up(&self, place: &Outstanding) {
        if place.nonce.swap(0, Ordering::Relaxed) != 0 {
            self.lost.fetch_add(place.counts.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Records a request of the remote end.
    pub(super) fn note_peer_request(&self) {
        self.peer_request_at.store(segue_port::now().0.max(1), Ordering::Relaxed);
    }

    /// Removes the request with the given nonce from the list, because a reply was received. Returns false where there
    /// is none: the reply is forged, repeated or too late.
    pub(super) fn receive_reply(&self, nonce: u64) -> bool {
        let now = segue_port::now().0;
        let Some(place) = self.outstanding.iter().find(|request| request.nonce.load(Ordering::Acquire) == nonce) else {
            return false;
        };
        let sent = place.sent.load(Ordering::Relaxed);
        // Of two copies on two workers one takes it.
        if place.nonce.compare_exchange(nonce, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        let round_trip = now.saturating_sub(sent).max(1);
        let mean = match self.mean.load(Ordering::Relaxed) {
            0 => round_trip,
            mean => mean - mean / 8 + round_trip / 8,
        };
        self.round_trip.store(round_trip, Ordering::Relaxed);
        self.mean.store(mean.max(1), Ordering::Relaxed);
        self.reply_at.store(now.max(1), Ordering::Relaxed);
        self.replies.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Returns the measurements of the probe.
    pub fn measured(&self) -> Measured {
        let now = segue_port::now().0;
        let value = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let known = |of: &AtomicU64| Some(value(of)).filter(|value| *value != 0);
        let age = |of: &AtomicU64| known(of).map(|at| now.saturating_sub(at));
        Measured {
            interval: value(&self.interval),
            requests: value(&self.requests),
            replies: value(&self.replies),
            lost: value(&self.lost),
            reply_age: age(&self.reply_at),
            peer_request_age: age(&self.peer_request_at),
            round_trip: known(&self.round_trip),
            mean: known(&self.mean),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_reads_back_as_written_and_nothing_else_does() {
        let identities = [
            Identity::Protocol(protocol::IPV4),
            Identity::Gre(None, false),
            Identity::Gre(Some(0), false),
            Identity::Gre(Some(u32::MAX), true),
        ];
        for identity in identities {
            for kind in [Kind::Hello, Kind::EchoRequest, Kind::EchoReply] {
                let message = Message { kind, identity, nonce: 0x0123_4567_89ab_cdef };
                let bytes = message.bytes();
                assert!(is_control(&bytes));
                assert_eq!(Message::parse(&bytes), Some(message));
                assert_eq!(Message::parse(&bytes[..MESSAGE_LEN - 1]), None);
                assert_eq!(Message::parse(&[&bytes[..], &[0]].concat()), None);
                for at in 0..MESSAGE_LEN {
                    let mut other = bytes;
                    other[at] ^= 0x80;
                    let read = Message::parse(&other);
                    assert!(read.is_none_or(|read| read != message && read.bytes() == other), "{at}");
                }
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        let message = Message { kind: Kind::EchoRequest, identity: Identity::Gre(Some(7), false), nonce: 1 };
        let expected = [
            0x20, 0xd1, 0, 0, b'S', b'G', b'P', 1, 2, 47, 1, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, //
        ];
        assert_eq!(message.bytes(), expected);
    }

    #[test]
    fn a_reply_counts_once_and_only_for_a_nonce_that_is_outstanding() {
        let probe = Probe::new(1);
        probe.note_sent(Kind::EchoRequest, 7);
        assert!(!probe.receive_reply(8), "a forged one");
        assert_eq!(probe.measured().reply_age, None);
        assert!(probe.receive_reply(7));
        assert!(!probe.receive_reply(7), "a repeated one");
        let measured = probe.measured();
        assert_eq!((measured.requests, measured.replies, measured.lost), (1, 1, 0));
        assert!(measured.round_trip.is_some() && measured.reply_age.is_some() && measured.peer_request_age.is_none());
    }

    #[test]
    fn a_request_without_a_reply_is_lost_once_and_hellos_are_not_counted() {
        let probe = Probe::new(1);
        (1..=2 * MOST_OUTSTANDING as u64).for_each(|nonce| probe.note_sent(Kind::EchoRequest, nonce));
        assert_eq!(probe.measured().lost, MOST_OUTSTANDING as u64);
        assert!(!probe.receive_reply(1), "its place was taken");
        assert!(probe.receive_reply(2 * MOST_OUTSTANDING as u64));
        probe.expire(0);
        probe.expire(0);
        assert_eq!(probe.measured().lost, 2 * MOST_OUTSTANDING as u64 - 1);
        let other = Probe::new(1);
        other.note_sent(Kind::Hello, 9);
        other.expire(0);
        assert_eq!(other.measured(), Measured { interval: 1, ..Measured::default() });
    }
}
