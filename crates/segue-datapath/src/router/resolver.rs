//! Neighbours whose link address is asked for, and those that are known and asked again now and then.

use std::collections::{HashMap, VecDeque};

use segue::packet::Packet;
use segue::time::Nanos;
use segue_port::Page;

use super::tables::Neighbour;
use crate::route::Hop;

const SECOND: u64 = 1_000_000_000;
/// How long an answer is good before the neighbour is asked again (RFC 4861, section 10: 30 seconds).
const GOOD: u64 = 30 * SECOND;
/// Time between questions (the same: 1 second), and how many.
const AGAIN: u64 = SECOND;
const QUESTIONS: u8 = 3;
/// Most neighbours that are asked for at a time, packets that wait for one, and packets that wait in all.
const MOST_HOPS: usize = 256;
const MOST_PACKETS: usize = 32;
const MOST_HELD: usize = 512;
/// Most neighbours that are known.
pub(super) const MOST_KNOWN: usize = 8192;

/// A packet that waits, and where it came in.
pub(super) type Held = (u16, Box<Packet<Page>>);

#[derive(Debug)]
struct Waiting {
    held: VecDeque<Held>,
    asked: u8,
    next: Nanos,
}

/// A neighbour that is known.
#[derive(Clone, Copy, Debug)]
struct Known {
    mac: [u8; 6],
    is_permanent: bool,
    asked: u8,
    next: Nanos,
}

/// Whether what the kernel says has just happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Old,
    New,
}

/// What is to be done after some time.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Ask for these.
    pub(super) ask: Vec<Hop>,
    /// Forget these.
    pub(super) gone: Vec<Hop>,
    /// Nobody answered for these packets.
    pub(super) failed: Vec<Held>,
}

#[derive(Debug, Default)]
pub(super) struct Resolver {
    waiting: HashMap<Hop, Waiting>,
    known: HashMap<Hop, Known>,
    held: usize,
}

impl Resolver {
    /// Whether one more packet may wait for a neighbour.
    pub(super) fn has_room(&self, hop: &Hop) -> bool {
        self.held < MOST_HELD
            && match self.waiting.get(hop) {
                None => self.waiting.len() < MOST_HOPS,
                Some(waiting) => waiting.held.len() < MOST_PACKETS,
            }
    }

    /// Keeps a packet until the neighbour is known. Whether it is to be asked for: it is the first.
    pub(super) fn hold(&mut self, hop: Hop, held: Held, now: Nanos) -> bool {
        let is_new = !self.waiting.contains_key(&hop);
        let fresh = || Waiting { held: VecDeque::new(), asked: 1, next: Nanos(now.0 + AGAIN) };
        self.waiting.entry(hop).or_insert_with(fresh).held.push_back(held);
        self.held += 1;
        is_new
    }

    /// A neighbour's answer. `None` where nobody asked; else the packets that waited.
    pub(super) fn answered(&mut self, hop: Hop, mac: [u8; 6], now: Nanos) -> Option<VecDeque<Held>> {
        let is_asked = self.waiting.contains_key(&hop);
        match self.known.get(&hop) {
            Some(known) if known.is_permanent => return None,
            None if !is_asked || self.known.len() >= MOST_KNOWN => return None,
            _ => {}
        }
        Some(self.learn(hop, mac, false, now))
    }

    /// What the kernel says. The packets that waited for it.
    pub(super) fn told(&mut self, neighbour: &Neighbour, news: News, now: Nanos) -> VecDeque<Held> {
        let Neighbour { hop, mac, is_permanent } = *neighbour;
        let is_newer = match self.known.get(&hop) {
            None => self.known.len() < MOST_KNOWN,
            Some(known) if known.is_permanent || is_permanent => true,
            // What was heard here is newer than what the kernel remembers.
            Some(known) => news == News::New && known.mac != mac,
        };
        if is_newer { self.learn(hop, mac, is_permanent, now) } else { VecDeque::new() }
    }

    /// The kernel no longer has a neighbour. Whether it is forgotten here, too: it was set by hand.
    pub(super) fn forget(&mut self, hop: &Hop) -> bool {
        let is_permanent = self.known.get(hop).is_some_and(|known| known.is_permanent);
        is_permanent && self.known.remove(hop).is_some()
    }

    fn learn(&mut self, hop: Hop, mac: [u8; 6], is_permanent: bool, now: Nanos) -> VecDeque<Held> {
        self.known.insert(hop, Known { mac, is_permanent, asked: 0, next: Nanos(now.0 + GOOD) });
        let held = self.waiting.remove(&hop).map(|waiting| waiting.held).unwrap_or_default();
        self.held -= held.len();
        held
    }

    /// Forgets what was set by hand, before the kernel says anew what is.
    pub(super) fn forget_permanent(&mut self) {
        self.known.retain(|_, known| !known.is_permanent);
    }

    /// Those that are known.
    pub(super) fn hops(&self) -> impl Iterator<Item = Hop> {
        self.known.keys().copied()
    }

    /// The link address of one that is.
    pub(super) fn mac(&self, hop: &Hop) -> Option<[u8; 6]> {
        self.known.get(hop).map(|known| known.mac)
    }

    /// Whether time matters.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.known.values().all(|known| known.is_permanent)
    }

    pub(super) fn due(&mut self, now: Nanos) -> Due {
        let mut due = Due::default();
        self.waiting.retain(|hop, waiting| {
            if waiting.next > now {
                return true;
            }
            if waiting.asked >= QUESTIONS {
                due.failed.extend(waiting.held.drain(..));
                return false;
            }
            waiting.asked += 1;
            waiting.next = Nanos(now.0 + AGAIN);
            due.ask.push(*hop);
            true
        });
        self.held -= due.failed.len();
        self.known.retain(|hop, known| {
            if known.is_permanent || known.next > now {
                return true;
            }
            if known.asked >= QUESTIONS {
                due.gone.push(*hop);
                return false;
            }
            known.asked += 1;
            known.next = Nanos(now.0 + AGAIN);
            due.ask.push(*hop);
            true
        });
        due
    }
}
