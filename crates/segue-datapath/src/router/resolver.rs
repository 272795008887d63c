//! Neighbours whose link address is asked for, and those that are known and asked again now and then.

use std::collections::{HashMap, VecDeque};

use segue::packet::Packet;
use segue::time::Nanos;
use segue_port::Page;

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

#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) mac: [u8; 6],
    is_permanent: bool,
    asked: u8,
    next: Nanos,
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
    /// Keeps a packet until the neighbour is known. `Ok(true)` where it is to be asked for; the packet back where too many wait.
    pub(super) fn hold(&mut self, hop: Hop, held: Held, now: Nanos) -> Result<bool, Held> {
        let is_new = !self.waiting.contains_key(&hop);
        if self.held >= MOST_HELD || is_new && self.waiting.len() >= MOST_HOPS {
            return Err(held);
        }
        let fresh = || Waiting { held: VecDeque::new(), asked: 1, next: Nanos(now.0 + AGAIN) };
        let waiting = self.waiting.entry(hop).or_insert_with(fresh);
        if waiting.held.len() >= MOST_PACKETS {
            return Err(held);
        }
        waiting.held.push_back(held);
        self.held += 1;
        Ok(is_new)
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

    /// What the kernel says.
    pub(super) fn told(&mut self, hop: Hop, mac: [u8; 6], is_permanent: bool, now: Nanos) -> VecDeque<Held> {
        let own = self.known.get(&hop);
        // What was heard here is newer than what the kernel remembers.
        if own.is_some_and(|known| !known.is_permanent && !is_permanent)
            || own.is_none() && self.known.len() >= MOST_KNOWN
        {
            return VecDeque::new();
        }
        self.learn(hop, mac, is_permanent, now)
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

    pub(super) fn known(&self) -> impl Iterator<Item = (&Hop, &Known)> {
        self.known.iter()
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
